package pgwire

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"

	"writegate/sqlgate"
	"writegate/sqlgate/scram"
)

// maxUsersFile bounds GATE_PGWIRE_USERS_FILE, in bytes.
const maxUsersFile = 4 << 20

// Users are the users of a file with their verifiers. A reading that fails
// leaves what was read before in use.
type Users struct {
	path    string
	current atomic.Pointer[userList]
}

// A userList is what one reading of the file gave; it never changes.
type userList struct {
	verifiers map[string]scram.Verifier
	ring      []ringUser // by place
}

// A ringUser is a user of the file at a place that only who has the file knows.
type ringUser struct {
	place [sha256.Size]byte
	scram.Verifier
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
func (l *userList) find(user string) (v scram.Verifier, known bool) {
	nobody := l.unknown(user)
	if v, known = l.verifiers[user]; known {
		return v, true
	}
	return nobody, false
}

// unknown is what a user looks like that is not there: as one of the file, with a
// salt of its own.
func (l *userList) unknown(user string) scram.Verifier {
	like, salt := l.stranger(user)
	return scram.Verifier{Iterations: like.Iterations, Salt: salt[:min(len(salt), len(like.Salt))]}
}

// stranger gives a name that is nobody's one of the users and a salt. It comes from two
// users of the file alone, so it stays over a start of the gate and over most changes
// of the file, as that of a known user does; and who knows one user's password cannot
// tell it.
func (l *userList) stranger(user string) (like scram.Verifier, salt []byte) {
	at := sha256.Sum256([]byte(user))
	i, _ := slices.BinarySearchFunc(l.ring, at, func(r ringUser, at [sha256.Size]byte) int { return bytes.Compare(r.place[:], at[:]) })
	like, next := l.ring[i%len(l.ring)].Verifier, l.ring[(i+1)%len(l.ring)]
	return like, scram.MAC(slices.Concat(like.StoredKey[:], like.ServerKey[:], next.StoredKey[:], next.ServerKey[:]), "salt of nobody", user)
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
	users := &userList{verifiers: map[string]scram.Verifier{}}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for number := 1; lines.Scan(); number++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		// A name may hold a colon; what follows it begins with the name of the mechanism.
		at := strings.LastIndex(line, ":"+scram.Prefix)
		if at < 1 || !goodClaim(line[:at]) {
			return nil, fmt.Errorf("%s, line %d: want user:%s..., as `gate pgwire hash-password` prints it", path, number, scram.Prefix)
		}
		if sqlgate.AgentID(line[:at]) {
			return nil, fmt.Errorf("%s, line %d: %s is the id of an agent, who logs in with its token; give the user another name", path, number, quote(line[:at]))
		}
		v, err := scram.Parse(line[at+1:])
		if err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", path, number, err)
		}
		if _, double := users.verifiers[line[:at]]; double {
			return nil, fmt.Errorf("%s, line %d: the user %s is there twice", path, number, quote(line[:at]))
		}
		users.verifiers[line[:at]] = v
		users.ring = append(users.ring, ringUser{[sha256.Size]byte(scram.MAC(slices.Concat(v.StoredKey[:], v.ServerKey[:]), "place", line[:at])), v})
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	slices.SortFunc(users.ring, func(a, b ringUser) int { return bytes.Compare(a.place[:], b.place[:]) })
	return users, nil
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
	v, err := scram.New(password, scram.NewSalt(), scram.Iterations)
	if err != nil {
		return "", err
	}
	return user + ":" + v.String(), nil
}

// randomBytes are n bytes that nobody can guess; crypto/rand cannot fail.
func randomBytes(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return b
}
