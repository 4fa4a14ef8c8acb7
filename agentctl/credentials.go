package agentctl

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"hash/crc32"
	"strings"
)

// Prefixes of credentials (spec/v1.md part 2).
const (
	TokenPrefix = "wga_"
	KeyPrefix   = "wgp_"
)

const (
	base62     = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	randomPart = 30
	sumPart    = 6
	secretLen  = len(TokenPrefix) + randomPart + sumPart
)

// NewSecret makes a credential: the prefix, 30 random characters and a checksum.
func NewSecret(prefix string) string {
	b := append(make([]byte, 0, secretLen), prefix...)
	for len(b) < len(prefix)+randomPart {
		var draw [64]byte
		rand.Read(draw[:]) // crypto/rand never fails: it ends the program instead
		for _, r := range draw {
			if r < 4*62 && len(b) < len(prefix)+randomPart { // the rest would favour some characters
				b = append(b, base62[r%62])
			}
		}
	}
	return string(append(b, checksum(string(b))...))
}

// checksum is CRC-32 (IEEE) as six base62 digits. It tells a slip of the hand
// from a credential without a look into the store; it is no protection.
func checksum(text string) string {
	sum := crc32.ChecksumIEEE([]byte(text))
	var digits [sumPart]byte
	for i := sumPart - 1; i >= 0; i-- {
		digits[i] = base62[sum%62]
		sum /= 62
	}
	return string(digits[:])
}

// WellFormed tells whether a text can be a credential with the prefix.
func WellFormed(prefix, text string) bool {
	if len(text) != secretLen || !strings.HasPrefix(text, prefix) {
		return false
	}
	for i := len(prefix); i < secretLen; i++ {
		if strings.IndexByte(base62, text[i]) < 0 {
			return false
		}
	}
	return text[secretLen-sumPart:] == checksum(text[:secretLen-sumPart])
}

// digestOf is what is kept of a credential.
func digestOf(secret string) [32]byte { return sha256.Sum256([]byte(secret)) }

// hintOf lets a person recognise a token without being able to use it.
func hintOf(secret string) string { return secret[:8] + "…" + secret[len(secret)-4:] }

// keyID names a project key by its digest.
func keyID(digest [32]byte) string { return "key_" + hex.EncodeToString(digest[:8]) }
