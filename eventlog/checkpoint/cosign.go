package checkpoint

import (
	"crypto/ed25519"
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"golang.org/x/mod/sumdb/note"
)

// cosignatureSize is a timestamp of 8 bytes and an Ed25519 signature. It is
// also how a checked cosignature is told from a log's signature of 64 bytes.
const cosignatureSize = 8 + ed25519.SignatureSize

// ParseWitnessVKey reads the verifier key of a witness: type 4, cosignature/v1.
func ParseWitnessVKey(vkey string) (name string, key PublicKey, err error) {
	return parseVKey(vkey, vkeyCosignature)
}

// A cosigner checks the cosignatures of one witness (C2SP tlog-cosignature);
// the note package knows plain signatures only.
type cosigner struct {
	name string
	hash uint32
	key  PublicKey
}

var _ note.Verifier = (*cosigner)(nil)

func newCosigner(name string, key PublicKey) *cosigner {
	return &cosigner{name, keyHash(name, append([]byte{vkeyCosignature}, key[:]...)), key}
}

func (c *cosigner) Name() string    { return c.name }
func (c *cosigner) KeyHash() uint32 { return c.hash }

func (c *cosigner) Verify(text, sig []byte) bool {
	if len(sig) != cosignatureSize {
		return false
	}
	seconds := binary.BigEndian.Uint64(sig)
	return seconds <= math.MaxInt64 && c.key.Verify(cosignedMessage(seconds, text), sig[8:])
}

// cosignedMessage is what a witness signs: a header, the time, the text.
func cosignedMessage(seconds uint64, text []byte) []byte {
	return append(fmt.Appendf(nil, "cosignature/v1\ntime %d\n", seconds), text...)
}

// cosignedAt gives the time of a signature that was checked before; cosigned is
// false where it is a plain one.
func cosignedAt(sig []byte) (at time.Time, cosigned bool) {
	if len(sig) != cosignatureSize {
		return at, false
	}
	return time.Unix(int64(binary.BigEndian.Uint64(sig)), 0).UTC(), true
}
