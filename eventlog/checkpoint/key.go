package checkpoint

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/mod/sumdb/note"
)

// ErrKey says that something given as a key is not one that this package uses.
var ErrKey = errors.New("unusable key")

// Algorithm is the one signature algorithm of evidence, as it is named in answers.
const Algorithm = "Ed25519"

const (
	pemPrivate = "PRIVATE KEY" // PKCS#8, RFC 5958
	pemPublic  = "PUBLIC KEY"  // PKIX, RFC 8410
)

// A PublicKey checks signatures. It is comparable and may be printed.
type PublicKey [ed25519.PublicKeySize]byte

// ID names the key in receipts and bundles: "ed25519:" and the first 16 hex
// digits of the key's SHA-256.
func (p PublicKey) ID() string {
	sum := sha256.Sum256(p[:])
	return "ed25519:" + hex.EncodeToString(sum[:8])
}

// String is the key's ID.
func (p PublicKey) String() string { return p.ID() }

// Base64 is the raw key as answers and bundles show it.
func (p PublicKey) Base64() string { return base64.StdEncoding.EncodeToString(p[:]) }

// PEM is the key as a PKIX "PUBLIC KEY" block.
func (p PublicKey) PEM() ([]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(ed25519.PublicKey(p[:]))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrKey, err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemPublic, Bytes: der}), nil
}

// VKey is the key as a verifier key of signed notes, under a name: for a log
// its origin. Names with white space or "+" are refused.
func (p PublicKey) VKey(name string) (string, error) {
	if !validName(name) {
		return "", fmt.Errorf("%w: %q can't name a key: no white space, no \"+\", not empty", ErrKey, name)
	}
	vkey, err := note.NewEd25519VerifierKey(name, p[:])
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrKey, err)
	}
	return vkey, nil
}

// Verify reports whether sig is the key's signature of message.
func (p PublicKey) Verify(message, sig []byte) bool {
	return len(sig) == ed25519.SignatureSize && ed25519.Verify(p[:], message, sig)
}

// ParsePublicKey reads a public key in any form that people write: a PEM
// "PUBLIC KEY" block, a vkey, or the 32 raw bytes in base64. White space of ASCII around
// it is no part of it. Anything else, and anything more, is ErrKey.
func ParsePublicKey(b []byte) (PublicKey, error) {
	text := strings.Trim(string(b), "\t\n\v\f\r ")
	switch {
	case strings.HasPrefix(text, "-----BEGIN"):
		return parsePublicPEM([]byte(text))
	case strings.HasSuffix(text, "="): // a vkey never ends so: 33 bytes need no padding
		raw, ok := decodeBase64(text, ed25519.PublicKeySize)
		if !ok {
			return PublicKey{}, fmt.Errorf("%w: not 32 bytes in base64", ErrKey)
		}
		return usable(PublicKey(raw))
	case strings.Contains(text, "+"):
		_, p, err := ParseVKey(text)
		return p, err
	}
	return PublicKey{}, fmt.Errorf("%w: neither a PEM public key, nor a vkey, nor 32 bytes in base64", ErrKey)
}

// smallOrder are the y of the eight points whose order divides 8, as they stand in a
// key without the sign of x: 0, 1, -1, and the two of the points of order 8.
var smallOrder = []string{
	"0000000000000000000000000000000000000000000000000000000000000000",
	"0100000000000000000000000000000000000000000000000000000000000000",
	"ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
	"26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
	"c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
}

// Usable refuses a key that ParsePublicKey would, with ErrKey: one that was read as raw bytes.
func (p PublicKey) Usable() error {
	_, err := usable(p)
	return err
}

// usable refuses a key that anybody can sign with: a point of small order, whose
// signatures need no secret, also as another encoding than its own. One of y not below
// p, which RFC 8032 does not decode and crypto/ed25519 does, is refused for all points.
func usable(p PublicKey) (PublicKey, error) {
	y := p
	y[31] &= 0x7f // the rest is the sign of x
	above := y[0] >= 0xed && y[31] == 0x7f && bytes.Count(y[1:31], []byte{0xff}) == 30
	if above || slices.Contains(smallOrder, hex.EncodeToString(y[:])) {
		return PublicKey{}, fmt.Errorf("%w: anybody can sign with it, or it is not encoded as RFC 8032 says", ErrKey)
	}
	return p, nil
}

// decodeBase64 decodes padded base64 of n bytes in its one form; the decoder
// of the standard library would overlook line ends.
func decodeBase64(text string, n int) ([]byte, bool) {
	if len(text) != base64.StdEncoding.EncodedLen(n) {
		return nil, false
	}
	raw, err := base64.StdEncoding.Strict().DecodeString(text)
	return raw, err == nil && len(raw) == n && base64.StdEncoding.EncodeToString(raw) == text
}

func parsePublicPEM(text []byte) (PublicKey, error) {
	block, err := onePEM(text, pemPublic)
	if err != nil {
		return PublicKey{}, err
	}
	parsed, err := x509.ParsePKIXPublicKey(block)
	if err != nil {
		return PublicKey{}, fmt.Errorf("%w: %w", ErrKey, err)
	}
	key, ok := parsed.(ed25519.PublicKey)
	if !ok {
		return PublicKey{}, fmt.Errorf("%w: a %T, not Ed25519", ErrKey, parsed)
	}
	again, err := PublicKey(key).PEM()
	bare := func(pem []byte) []byte { return bytes.Join(bytes.FieldsFunc(pem, isSpace), nil) }
	if err != nil || !bytes.Equal(bare(again), bare(text)) { // the decoders let more pass
		return PublicKey{}, fmt.Errorf("%w: not the one form of a PEM block with an Ed25519 key", ErrKey)
	}
	return usable(PublicKey(key))
}

func isSpace(r rune) bool { return strings.ContainsRune("\t\n\v\f\r ", r) } // of ASCII

// onePEM gives the content of the one block that text has to be.
func onePEM(text []byte, kind string) ([]byte, error) {
	block, rest := pem.Decode(text)
	switch {
	case block == nil:
		return nil, fmt.Errorf("%w: no PEM block", ErrKey)
	case block.Type != kind:
		return nil, fmt.Errorf("%w: a PEM block of type %q, not %q", ErrKey, block.Type, kind)
	case len(block.Headers) > 0:
		return nil, fmt.Errorf("%w: the PEM block has headers; encrypted keys are not read", ErrKey)
	case len(bytes.TrimFunc(rest, isSpace)) > 0:
		return nil, fmt.Errorf("%w: more than one PEM block", ErrKey)
	}
	return block.Bytes, nil
}

// Types of keys in vkeys, by C2SP signed-note.
const (
	vkeyEd25519     = 1
	vkeyCosignature = 4
)

// ParseVKey reads the verifier key of a log: NAME+HASH+BASE64.
func ParseVKey(vkey string) (name string, key PublicKey, err error) {
	return parseVKey(vkey, vkeyEd25519)
}

func parseVKey(vkey string, kind byte) (name string, key PublicKey, err error) {
	name, rest, _ := strings.Cut(vkey, "+")
	sum, text, ok := strings.Cut(rest, "+")
	if !ok || !validName(name) {
		return "", key, fmt.Errorf("%w: a vkey is NAME+HASH+BASE64", ErrKey)
	}
	raw, ok := decodeBase64(text, 1+len(key))
	if !ok {
		return "", key, fmt.Errorf("%w: the vkey %s has no key of 32 bytes", ErrKey, name)
	}
	if raw[0] != kind {
		return "", key, fmt.Errorf("%w: the vkey %s is of type %d, not %d", ErrKey, name, raw[0], kind)
	}
	if sum != fmt.Sprintf("%08x", keyHash(name, raw)) {
		return "", key, fmt.Errorf("%w: the vkey %s has a wrong hash", ErrKey, name)
	}
	if key, err = usable(PublicKey(raw[1:])); err != nil {
		return "", key, fmt.Errorf("the vkey %s: %w", name, err)
	}
	return name, key, nil
}

// validName is the rule of signed notes for names of keys. A control character
// would make every note of that name malformed, so it is refused here already.
func validName(name string) bool {
	return name != "" && utf8.ValidString(name) && !strings.ContainsFunc(name, func(r rune) bool {
		return r < 0x20 || r == '+' || unicode.IsSpace(r)
	})
}

// keyHash is the short hash by which notes tell keys of one name apart; typed
// begins with the byte that names the algorithm.
func keyHash(name string, typed []byte) uint32 {
	sum := sha256.Sum256(append([]byte(name+"\n"), typed...))
	return binary.BigEndian.Uint32(sum[:])
}

// A PrivateKey signs evidence. However it is printed, it shows the ID of its
// public half and nothing more.
type PrivateKey struct{ key ed25519.PrivateKey }

// NewPrivateKey makes a key from the system's randomness.
func NewPrivateKey() (*PrivateKey, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrKey, err)
	}
	return &PrivateKey{key}, nil
}

// ParsePrivateKey reads a PEM "PRIVATE KEY" block (PKCS#8). Its errors never
// quote what they were given.
func ParsePrivateKey(text []byte) (*PrivateKey, error) {
	block, err := onePEM(bytes.TrimSpace(text), pemPrivate)
	if err != nil {
		return nil, err
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block)
	if err != nil {
		return nil, fmt.Errorf("%w: not a PKCS#8 private key", ErrKey)
	}
	key, ok := parsed.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("%w: a %T, not Ed25519", ErrKey, parsed)
	}
	return &PrivateKey{key}, nil
}

// Public is the half that may be shown.
func (k PrivateKey) Public() PublicKey { return PublicKey(k.key.Public().(ed25519.PublicKey)) }

// Sign signs message (RFC 8032, pure Ed25519).
func (k *PrivateKey) Sign(message []byte) []byte { return ed25519.Sign(k.key, message) }

// PEM is the key as a PKCS#8 "PRIVATE KEY" block. It is the one way to the secret.
func (k *PrivateKey) PEM() ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(k.key)
	if err != nil {
		return nil, fmt.Errorf("%w: the key has no PKCS#8 form", ErrKey)
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemPrivate, Bytes: der}), nil
}

// Format shows the key's ID whatever the verb, so that no log line can hold the
// secret. It and its like take values: a copy of a key is as secret as the key.
func (k PrivateKey) Format(f fmt.State, _ rune) { fmt.Fprint(f, k.String()) }

// String names the key by its public half.
func (k PrivateKey) String() string { return "private key of " + k.Public().ID() }

// MarshalText serves encoders such as JSON, with no more than String.
func (k PrivateKey) MarshalText() ([]byte, error) { return []byte(k.String()), nil }
