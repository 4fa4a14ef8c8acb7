package controlplane

import (
	"errors"
	"fmt"
	"strings"

	"github.com/alexedwards/argon2id"
	"golang.org/x/crypto/bcrypt"
)

// Bounds on a configured hash: below, guessing is cheap; above, a login would
// be a way to use up this process.
const (
	leastMemory, mostMemory = 19 << 10, 256 << 10 // KiB of argon2id
	leastCost, mostCost     = 10, 14              // of bcrypt
	maxPassword             = 1024                // bytes
	leastPassword           = 12
)

// A PasswordHash is what CONTROL_PLANE_ADMIN_PASSWORD_HASH holds: argon2id or
// bcrypt in their usual text forms. It is never printed.
type PasswordHash struct {
	text   string
	bcrypt bool
}

// ParsePasswordHash checks the form and the strength of a hash. Its errors do
// not show it.
func ParsePasswordHash(text string) (PasswordHash, error) {
	if strings.HasPrefix(text, "$argon2id$") {
		params, _, _, err := argon2id.DecodeHash(text)
		if err != nil {
			return PasswordHash{}, errors.New("it begins like argon2id and is not well formed; `gate control-plane hash-password` makes one")
		}
		if params.Memory < leastMemory || params.Memory > mostMemory || params.Iterations < 1 || params.Iterations > 10 {
			return PasswordHash{}, fmt.Errorf("its argon2id cost is out of bounds: memory from %d to %d KiB, 1 to 10 passes", leastMemory, mostMemory)
		}
		return PasswordHash{text: text}, nil
	}
	cost, err := bcrypt.Cost([]byte(text))
	if err != nil {
		return PasswordHash{}, errors.New("it is neither argon2id nor bcrypt; `gate control-plane hash-password` makes one")
	}
	if cost < leastCost || cost > mostCost {
		return PasswordHash{}, fmt.Errorf("its bcrypt cost is %d; it must be from %d to %d", cost, leastCost, mostCost)
	}
	return PasswordHash{text: text, bcrypt: true}, nil
}

// HashPassword makes an argon2id hash with 64 MiB, three passes and two lanes
// (RFC 9106 part 4, its second choice with fewer lanes).
func HashPassword(password string) (string, error) {
	if len(password) < leastPassword || len(password) > maxPassword {
		return "", fmt.Errorf("a password has %d to %d bytes", leastPassword, maxPassword)
	}
	return argon2id.CreateHash(password, &argon2id.Params{Memory: 64 << 10, Iterations: 3, Parallelism: 2, SaltLength: 16, KeyLength: 32})
}

// matches tells whether this is the password. It costs what the hash says,
// whatever the password is.
func (h PasswordHash) matches(password string) bool {
	if len(password) > maxPassword {
		password = ""
	}
	if h.bcrypt {
		return bcrypt.CompareHashAndPassword([]byte(h.text), []byte(password)) == nil
	}
	ok, err := argon2id.ComparePasswordAndHash(password, h.text)
	return err == nil && ok
}
