package pgwire

import (
	"bufio"
	"bytes"
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

// Bounds of a verifier. PostgreSQL's own iterations are 4096; the upper bound
// keeps a client from being made to compute for minutes.
const (
	scramIterations    = 4096
	maxScramIterations = 10_000_000
	scramSaltLen       = 16
	maxUsersFile       = 4 << 20
)

// A verifier is what the gate keeps of a password (RFC 5803): enough to check
// one, not enough to log in with.
type verifier struct {
	iterations           int
	salt                 []byte
	storedKey, serverKey [sha256.Size]byte
}

// Users are the users of a file with their verifiers. A reading that fails
// leaves what was read before in use.
type Users struct {
	path    string
	current atomic.Pointer[userList]
}

// A userList is what one reading of the file gave; it never changes.
type userList struct {
	verifiers map[string]verifier
	ring      []ringUser // by place
}

// A ringUser is a user of the file at a place that only who has the file knows.
type ringUser struct {
	place [sha256.Size]byte
	verifier
}

// OpenUsers reads GATE_PGWIRE_USERS_FILE for the first time.
func OpenUsers(path string) (*Users, error) {
	u := &Users{path: path}
	return u, u.Reload()
}

// Reload reads the file anew. After an error nothing has changed.
func (u *Users) Reload() error {
	users, err := readUsers(u.path)
	if err != nil {
		return fmt.Errorf("GATE_PGWIRE_USERS_FILE: %w", err)
	}
	if len(users.verifiers) == 0 { // nobody logs in any more; a start is refused, by mistake or not
		before := u.current.Load()
		if before == nil {
			return fmt.Errorf("GATE_PGWIRE_USERS_FILE: %s names no user", u.path)
		}
		users.ring = before.ring // strangers are shown what they were shown before
	}
	u.current.Store(users)
	return nil
}

// find gives the verifier of a user. For one that is not there it gives one that
// nothing fits, so that the exchange looks the same (RFC 5802 part 5.1: a server
// must not show who is there).
func (l *userList) find(user string) (v verifier, known bool) {
	nobody := l.unknown(user)
	if v, known = l.verifiers[user]; known {
		return v, true
	}
	return nobody, false
}

// unknown is what a user looks like that is not there: as one of the file, with a
// salt of its own. It comes from two users of the file alone, so it stays over a
// start of the gate and over most changes of the file, as that of a known user
// does; and who knows one user's password cannot tell it.
func (l *userList) unknown(user string) verifier {
	at := sha256.Sum256([]byte(user))
	i, _ := slices.BinarySearchFunc(l.ring, at, func(r ringUser, at [sha256.Size]byte) int { return bytes.Compare(r.place[:], at[:]) })
	like, next := l.ring[i%len(l.ring)], l.ring[(i+1)%len(l.ring)]
	salt := mac(slices.Concat(like.storedKey[:], like.serverKey[:], next.storedKey[:], next.serverKey[:]), "salt of nobody", user)
	return verifier{iterations: like.iterations, salt: salt[:min(len(salt), len(like.salt))]}
}

// readUsers reads lines user:SCRAM-SHA-256$iterations:salt$stored:server. Empty
// lines and those that begin with # are left out; any other is refused.
func readUsers(path string) (*userList, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe is refused below, not waited for
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil {
		return nil, err
	} else if info.Mode().Perm()&0o077 != 0 || info.Mode()&fs.ModeType != 0 {
		return nil, fmt.Errorf("%s must be a plain file that nobody but its owner can read or write: chmod 600 %s", path, path)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxUsersFile+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxUsersFile {
		return nil, fmt.Errorf("%s is larger than %d bytes", path, maxUsersFile)
	}
	return parseUsers(path, text)
}

func parseUsers(path string, text []byte) (*userList, error) {
	users := &userList{verifiers: map[string]verifier{}}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for number := 1; lines.Scan(); number++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		// A name may hold a colon; what follows it begins with the name of the mechanism.
		at := strings.LastIndex(line, ":"+scramPrefix)
		if at < 1 || !goodClaim(line[:at]) {
			return nil, fmt.Errorf("%s, line %d: want user:%s..., as `gate pgwire hash-password` prints it", path, number, scramPrefix)
		}
		v, err := parseVerifier(line[at+1:])
		if err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", path, number, err)
		}
		if _, double := users.verifiers[line[:at]]; double {
			return nil, fmt.Errorf("%s, line %d: the user %s is there twice", path, number, quote(line[:at]))
		}
		users.verifiers[line[:at]] = v
		users.ring = append(users.ring, ringUser{[sha256.Size]byte(mac(slices.Concat(v.storedKey[:], v.serverKey[:]), "place", line[:at])), v})
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	slices.SortFunc(users.ring, func(a, b ringUser) int { return bytes.Compare(a.place[:], b.place[:]) })
	return users, nil
}

// scramPrefix begins a verifier in PostgreSQL's own form (pg_authid.rolpassword).
const scramPrefix = "SCRAM-SHA-256$"

var errVerifier = errors.New("not a verifier of the form SCRAM-SHA-256$iterations:salt$stored:server")

func parseVerifier(text string) (v verifier, err error) {
	rest, ok := strings.CutPrefix(text, scramPrefix)
	head, keys, ok2 := strings.Cut(rest, "$")
	count, salt, ok3 := strings.Cut(head, ":")
	stored, server, ok4 := strings.Cut(keys, ":")
	if !ok || !ok2 || !ok3 || !ok4 {
		return v, errVerifier
	}
	if v.iterations, err = strconv.Atoi(count); err != nil || v.iterations < 1 || v.iterations > maxScramIterations {
		return v, errVerifier
	}
	if v.salt, err = base64.StdEncoding.Strict().DecodeString(salt); err != nil || len(v.salt) == 0 {
		return v, errVerifier
	}
	if !decodeKey(&v.storedKey, stored) || !decodeKey(&v.serverKey, server) {
		return v, errVerifier
	}
	return v, nil
}

func decodeKey(key *[sha256.Size]byte, text string) bool {
	b, err := base64.StdEncoding.Strict().DecodeString(text)
	return err == nil && copy(key[:], b) == len(key) && len(b) == len(key)
}

// HashPassword makes the line of a user for GATE_PGWIRE_USERS_FILE.
func HashPassword(user, password string) (string, error) {
	switch {
	case !goodClaim(user) || strings.TrimSpace(user) != user || user[0] == '#':
		return "", fmt.Errorf("a user has 1 to %d characters, no control characters, no space at its ends and no # in front", maxClaim)
	case password == "":
		return "", errors.New("the password is empty")
	case strings.ContainsFunc(password, func(c rune) bool { return c < ' ' || c > '~' }):
		// What a client makes of other characters (RFC 4013) is PostgreSQL's to repeat.
		return "", errors.New("the password holds other than printable ASCII characters; let PostgreSQL make its verifier: set it for a role there and copy rolpassword of pg_authid behind user and colon")
	}
	v, err := newVerifier(password, randomBytes(scramSaltLen), scramIterations)
	if err != nil {
		return "", err
	}
	return user + ":" + v.String(), nil
}

// newVerifier derives the keys of RFC 5802 part 3.
func newVerifier(password string, salt []byte, iterations int) (verifier, error) {
	salted, err := pbkdf2.Key(sha256.New, password, salt, iterations, sha256.Size)
	if err != nil {
		return verifier{}, err
	}
	return verifier{
		iterations: iterations, salt: salt,
		storedKey: sha256.Sum256(mac(salted, "Client Key")), serverKey: [sha256.Size]byte(mac(salted, "Server Key")),
	}, nil
}

func (v verifier) String() string {
	e := base64.StdEncoding.EncodeToString
	return fmt.Sprintf("%s%d:%s$%s:%s", scramPrefix, v.iterations, e(v.salt), e(v.storedKey[:]), e(v.serverKey[:]))
}

func mac(key []byte, parts ...string) []byte {
	h := hmac.New(sha256.New, key)
	for _, p := range parts {
		h.Write([]byte(p))
	}
	return h.Sum(nil)
}

// randomBytes are n bytes that nobody can guess; crypto/rand cannot fail.
func randomBytes(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return b
}
