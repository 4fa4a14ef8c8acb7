// Package scram makes and reads SCRAM-SHA-256 verifiers (RFC 5803, RFC 7677): what is kept
// of a password, enough to check one and not enough to log in with.
//
// A verifier is a secret all the same. Its server key lets somebody pass for the gate, and
// whoever has it and overhears one login in clear can log in from then on (RFC 5802 part 9).
package scram

import (
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Iterations are PostgreSQL's own, and SaltLen is the length of its salts.
const (
	Iterations = 4096
	SaltLen    = 16

	// maxIterations keeps a client from being made to compute for minutes.
	maxIterations = 10_000_000
)

// Prefix begins a verifier in PostgreSQL's own form (pg_authid.rolpassword).
const Prefix = "SCRAM-SHA-256$"

// A Verifier is what is kept of a password.
type Verifier struct {
	Iterations           int
	Salt                 []byte
	StoredKey, ServerKey [sha256.Size]byte
}

// New derives the keys of RFC 5802 part 3. The password is printable ASCII: what a client
// makes of other characters (RFC 4013) is not repeated here.
func New(password string, salt []byte, iterations int) (Verifier, error) {
	salted, err := pbkdf2.Key(sha256.New, password, salt, iterations, sha256.Size)
	if err != nil {
		return Verifier{}, err
	}
	return Verifier{
		Iterations: iterations, Salt: salt,
		StoredKey: sha256.Sum256(MAC(salted, "Client Key")), ServerKey: [sha256.Size]byte(MAC(salted, "Server Key")),
	}, nil
}

// NewSalt is a salt that nobody can guess.
func NewSalt() []byte {
	salt := make([]byte, SaltLen)
	_, _ = rand.Read(salt) // never fails (crypto/rand)
	return salt
}

var errVerifier = errors.New("not a verifier of the form SCRAM-SHA-256$iterations:salt$stored:server")

// Parse reads a verifier in PostgreSQL's own form.
func Parse(text string) (v Verifier, err error) {
	rest, ok := strings.CutPrefix(text, Prefix)
	head, keys, ok2 := strings.Cut(rest, "$")
	count, salt, ok3 := strings.Cut(head, ":")
	stored, server, ok4 := strings.Cut(keys, ":")
	if !ok || !ok2 || !ok3 || !ok4 {
		return v, errVerifier
	}
	if v.Iterations, err = strconv.Atoi(count); err != nil || v.Iterations < 1 || v.Iterations > maxIterations {
		return v, errVerifier
	}
	if v.Salt, err = base64.StdEncoding.Strict().DecodeString(salt); err != nil || len(v.Salt) == 0 {
		return v, errVerifier
	}
	if !decodeKey(&v.StoredKey, stored) || !decodeKey(&v.ServerKey, server) {
		return v, errVerifier
	}
	return v, nil
}

func decodeKey(key *[sha256.Size]byte, text string) bool {
	b, err := base64.StdEncoding.Strict().DecodeString(text)
	return err == nil && copy(key[:], b) == len(key) && len(b) == len(key)
}

// String is the verifier in PostgreSQL's own form.
func (v Verifier) String() string {
	e := base64.StdEncoding.EncodeToString
	return fmt.Sprintf("%s%d:%s$%s:%s", Prefix, v.Iterations, e(v.Salt), e(v.StoredKey[:]), e(v.ServerKey[:]))
}

// MAC is HMAC-SHA-256 over the parts, one behind the other.
func MAC(key []byte, parts ...string) []byte {
	h := hmac.New(sha256.New, key)
	for _, p := range parts {
		h.Write([]byte(p))
	}
	return h.Sum(nil)
}
