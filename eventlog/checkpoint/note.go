package checkpoint

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/note"
)

// MaxNote bounds the bytes of a checkpoint note. The note format allows 100
// signatures, of which each takes a few hundred bytes at most.
const MaxNote = 64 << 10

// maxOrigin is the bound of the origin in a segment's header.
const maxOrigin = 256

// A Checkpoint says that over the first Size events of the log Origin the root
// was Root.
type Checkpoint struct {
	Origin string
	Size   uint64
	Root   [32]byte
}

// Text is what is signed: origin, size and root, a line each.
func (c Checkpoint) Text() string {
	return fmt.Sprintf("%s\n%d\n%s\n", c.Origin, c.Size, base64.StdEncoding.EncodeToString(c.Root[:]))
}

// parseText reads those three lines and nothing else: Text gives the same back.
func parseText(text string) (Checkpoint, error) {
	lines := strings.Split(text, "\n")
	if len(lines) != 4 || lines[3] != "" {
		return Checkpoint{}, fmt.Errorf("%w: a checkpoint has three lines", ErrMalformed)
	}
	size, err := parseSize(lines[1])
	if err != nil {
		return Checkpoint{}, err
	}
	root, ok := decodeBase64(lines[2], 32)
	if !ok {
		return Checkpoint{}, fmt.Errorf("%w: the root of a checkpoint is 32 bytes in base64", ErrMalformed)
	}
	if !validName(lines[0]) || len(lines[0]) > maxOrigin {
		return Checkpoint{}, fmt.Errorf("%w: %.40q is no origin", ErrMalformed, lines[0])
	}
	return Checkpoint{Origin: lines[0], Size: size, Root: [32]byte(root)}, nil
}

// parseSize reads a size in its one form: decimal, no sign, no leading zero.
func parseSize(text string) (uint64, error) {
	size, err := strconv.ParseUint(text, 10, 64)
	if err != nil || strconv.FormatUint(size, 10) != text || size > MaxSize {
		return 0, fmt.Errorf("%w: %.40q is no size of a log", ErrMalformed, text)
	}
	return size, nil
}

// A Signer signs the checkpoints of one log.
type Signer struct {
	origin string
	key    *PrivateKey
	vkey   string
	hash   uint32
}

// NewSigner makes the signer of the log with this origin, which is also the
// key's name in notes. An origin that can't be one is ErrKey.
func NewSigner(origin string, key *PrivateKey) (*Signer, error) {
	if len(origin) > maxOrigin {
		return nil, fmt.Errorf("%w: an origin of %d bytes", ErrKey, len(origin))
	}
	vkey, err := key.Public().VKey(origin)
	if err != nil {
		return nil, err
	}
	p := key.Public()
	return &Signer{origin, key, vkey, keyHash(origin, append([]byte{vkeyEd25519}, p[:]...))}, nil
}

// VKey is the verifier key to give to others.
func (s *Signer) VKey() string { return s.vkey }

// Public is the signer's public key.
func (s *Signer) Public() PublicKey { return s.key.Public() }

// Origin is the log's.
func (s *Signer) Origin() string { return s.origin }

// ErrRewritten says that a tree does not continue a checkpoint that was signed
// or cosigned before: the log's history was changed.
var ErrRewritten = errors.New("history was rewritten")

// ErrBeyondEnd says that a checkpoint was signed or cosigned for more events
// than there are now: the log's tail was removed.
var ErrBeyondEnd = errors.New("the log ends before what was vouched for")

// Sign signs the checkpoint of the first size events. newest is the newest one
// known of this log, nil where there is none: a tree that does not continue it
// is not signed, and the error wraps ErrRewritten or ErrBeyondEnd.
func (s *Signer) Sign(r Reader, size uint64, newest *Checkpoint) (*Note, error) {
	root, err := RootAt(r, size)
	if err != nil {
		return nil, err
	}
	c := Checkpoint{Origin: s.origin, Size: size, Root: root}
	if newest != nil {
		if err := c.continues(r, newest); err != nil {
			return nil, err
		}
	}
	raw, err := note.Sign(&note.Note{Text: c.Text()}, noteSigner{s})
	if err != nil {
		return nil, fmt.Errorf("checkpoint of %d events: %w", size, err)
	}
	return Open(raw, Keys{Log: []PublicKey{s.Public()}})
}

// continues proves c against old as a stranger would have it proven, so that
// stored hashes that contradict each other are found as well.
func (c *Checkpoint) continues(r Reader, old *Checkpoint) error {
	switch {
	case old.Origin != c.Origin:
		return fmt.Errorf("%w: the newest checkpoint is of %q, not of %q", ErrRewritten, old.Origin, c.Origin)
	case old.Size > c.Size:
		return fmt.Errorf("%w: checkpoint of %d events, the log has %d", ErrBeyondEnd, old.Size, c.Size)
	}
	p, err := ProveConsistency(r, old.Size, c.Size)
	if err != nil {
		return err
	}
	if err := CheckConsistency(p, c.Size, c.Root, old.Size, old.Root); err != nil {
		return fmt.Errorf("%w: %w", ErrRewritten, err)
	}
	return nil
}

// noteSigner is a Signer as the note package sees it.
type noteSigner struct{ s *Signer }

func (n noteSigner) Name() string                     { return n.s.origin }
func (n noteSigner) KeyHash() uint32                  { return n.s.hash }
func (n noteSigner) Sign(text []byte) ([]byte, error) { return n.s.key.Sign(text), nil }

// A Note is a checkpoint that was read together with its signatures.
type Note struct {
	Checkpoint
	// Trusted says that a known key of the log itself, named like its origin,
	// has signed. An untrusted note vouches for nothing and accuses nobody.
	Trusted bool
	// Cosignatures are those of known witnesses, in the order of the note.
	Cosignatures []Cosignature
	// Unknown names the keys that signed and are not known.
	Unknown []string
	// Raw is the note as it was read.
	Raw []byte

	keys Keys // that it was opened with
}

// A Cosignature says that at Time the witness Name had seen no larger tree of
// this log and none that contradicts it.
type Cosignature struct {
	Name string
	Time time.Time // whole seconds, UTC
}

// Keys are the public keys that a reader believes.
type Keys struct {
	Log       []PublicKey // of the log; in notes they go by its origin
	Witnesses []string    // vkeys of witnesses
}

// Open reads a note and checks its signatures against known keys. A signature
// under an unknown key is no error; a wrong one under a known key is
// ErrSignature, and what is no checkpoint at all is ErrMalformed. A vkey that
// can't be read is ErrKey. Whether the checkpoint is one of the log at hand is
// the caller's to see, from Origin.
func Open(raw []byte, keys Keys) (*Note, error) {
	if len(raw) > MaxNote {
		return nil, fmt.Errorf("%w: a note of %d bytes", ErrMalformed, len(raw))
	}
	origin, _, _ := strings.Cut(string(raw), "\n")
	known, err := keys.verifiers(origin)
	if err != nil {
		return nil, err
	}
	opened, err := note.Open(raw, known)
	var nobody *note.UnverifiedNoteError
	var wrong *note.InvalidSignatureError
	switch {
	case errors.As(err, &nobody):
		opened = nobody.Note
	case errors.As(err, &wrong):
		return nil, fmt.Errorf("%w by %s+%08x", ErrSignature, wrong.Name, wrong.Hash)
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	c, err := parseText(opened.Text)
	if err != nil {
		return nil, err
	}
	n := &Note{Checkpoint: c, Raw: raw, keys: keys}
	if err := n.signedBy(opened); err != nil {
		return nil, err
	}
	return n, nil
}

// verifiers gives the known keys as the note package asks for them.
func (k Keys) verifiers(origin string) (note.Verifiers, error) {
	v := knownKeys{origin: origin, log: k.Log}
	if len(k.Log) > 0 {
		if _, err := k.Log[0].VKey(origin); err != nil {
			return nil, fmt.Errorf("%w: %.40q is no origin", ErrMalformed, origin)
		}
	}
	for _, vkey := range k.Witnesses {
		name, key, err := ParseWitnessVKey(vkey)
		if err != nil {
			return nil, err
		}
		v.witnesses = append(v.witnesses, newCosigner(name, key))
	}
	return v, nil
}

// knownKeys finds keys by name and hash. A hash has 32 bits, and whoever writes a log can
// make it name a key of any, so all of one hash are tried.
type knownKeys struct {
	origin    string
	log       []PublicKey
	witnesses []note.Verifier
}

// Verifier implements note.Verifiers.
func (k knownKeys) Verifier(name string, hash uint32) (note.Verifier, error) {
	var found note.Verifier
	add := func(v note.Verifier) {
		if found != nil {
			v = either{found, v}
		}
		found = v
	}
	for i := 0; i < len(k.log) && name == k.origin; i++ {
		if key := k.log[i]; keyHash(name, append([]byte{vkeyEd25519}, key[:]...)) == hash {
			vkey, err := key.VKey(name)
			if err != nil {
				return nil, err
			}
			v, err := note.NewVerifier(vkey)
			if err != nil {
				return nil, fmt.Errorf("%w: %w", ErrKey, err)
			}
			add(v)
		}
	}
	for _, w := range k.witnesses {
		if w.Name() == name && w.KeyHash() == hash {
			add(w)
		}
	}
	if found == nil {
		return nil, &note.UnknownVerifierError{Name: name, KeyHash: hash}
	}
	return found, nil
}

// either is two keys of one name and hash.
type either struct {
	note.Verifier
	other note.Verifier
}

func (e either) Verify(text, sig []byte) bool {
	return e.Verifier.Verify(text, sig) || e.other.Verify(text, sig)
}

// signedBy sorts the signatures that note.Open has checked. That package lets the free
// bits of base64 pass, and keeps no second signature of a key; here a note has one form.
func (n *Note) signedBy(opened *note.Note) error {
	for _, line := range n.signatureLines() {
		if _, err := base64.StdEncoding.Strict().DecodeString(strings.TrimSuffix(line[strings.LastIndexByte(line, ' ')+1:], "\n")); err != nil {
			return fmt.Errorf("%w: a signature is not base64 in its one form", ErrMalformed)
		}
	}
	for _, sig := range opened.Sigs {
		signed, err := base64.StdEncoding.DecodeString(sig.Base64)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrMalformed, err)
		}
		if at, cosigned := cosignedAt(signed[4:]); cosigned {
			n.Cosignatures = append(n.Cosignatures, Cosignature{Name: sig.Name, Time: at})
		} else {
			n.Trusted = true // the only plain keys that were known are the log's
		}
	}
	for _, sig := range opened.UnverifiedSigs {
		n.Unknown = append(n.Unknown, fmt.Sprintf("%s+%08x", sig.Name, sig.Hash))
	}
	return nil
}

// with gives the note with more signature lines, each of them once, opened with
// the keys that it was opened with and with those of more witnesses.
func (n *Note) with(lines, witnesses []string) (*Note, error) {
	raw := bytes.Clone(n.Raw)
	for _, line := range lines {
		if !bytes.Contains(raw, []byte("\n"+line)) {
			raw = append(raw, line...)
		}
	}
	return Open(raw, Keys{Log: n.keys.Log, Witnesses: slices.Concat(n.keys.Witnesses, witnesses)})
}

// signatureLines gives the lines below the text, each with its line end.
func (n *Note) signatureLines() []string {
	lines := strings.SplitAfter(string(n.Raw[len(n.Text())+1:]), "\n")
	return lines[:len(lines)-1]
}
