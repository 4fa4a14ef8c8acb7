package checkpoint_test

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/mod/sumdb/note"
	"pgregory.net/rapid"

	"writegate/eventlog/checkpoint"
)

func logKeys(keys ...*checkpoint.PrivateKey) checkpoint.Keys {
	var k checkpoint.Keys
	for _, key := range keys {
		k.Log = append(k.Log, key.Public())
	}
	return k
}

func newSigner(t testing.TB, origin string, key *checkpoint.PrivateKey) *checkpoint.Signer {
	t.Helper()
	s, err := checkpoint.NewSigner(origin, key)
	require.NoError(t, err)
	return s
}

// goldenTree is the tree of the log of design part 3.
func goldenTree(t testing.TB) *checkpoint.Memory {
	h := [32]byte{0x08, 0xd3, 0x52, 0x29, 0x7b, 0xfb, 0x2d, 0x80, 0x97, 0x73, 0xe2, 0x05, 0x14, 0xc8, 0x61, 0x06, 0x8e, 0x29, 0x3d, 0x45, 0xbd, 0x7d, 0xfd, 0x7f, 0xa8, 0xf8, 0xf1, 0xd6, 0x27, 0x70, 0xa9, 0xa2}
	_, m := grow(t, [][32]byte{h})
	return m
}

func TestANoteHasTheBytesOfItsPage(t *testing.T) {
	s := newSigner(t, "gate.example", goldenKey(t))
	require.Equal(t, goldenVKey, s.VKey())
	n, err := s.Sign(goldenTree(t), 1, nil)
	require.NoError(t, err)
	require.Equal(t, goldenNote, string(n.Raw))
	require.True(t, n.Trusted)

	v, err := note.NewVerifier(goldenVKey)
	require.NoError(t, err)
	theirs, err := note.Open(n.Raw, note.VerifierList(v))
	require.NoError(t, err, "any reader of notes can check it")
	require.Equal(t, n.Text(), theirs.Text)
}

func TestTheSignaturesOfANoteAreSorted(t *testing.T) {
	key, other := goldenKey(t), newKey(t)
	both := []byte(goldenNote + goldenCosignature)

	n, err := checkpoint.Open(both, checkpoint.Keys{Log: []checkpoint.PublicKey{other.Public(), key.Public(), key.Public()}, Witnesses: []string{goldenWitness, goldenWitness}})
	require.NoError(t, err)
	require.Equal(t, "gate.example", n.Origin)
	require.Equal(t, uint64(1), n.Size)
	require.True(t, n.Trusted)
	require.Equal(t, []checkpoint.Cosignature{{Name: "witness.example/w1", Time: time.Unix(1735689700, 0).UTC()}}, n.Cosignatures)
	require.Empty(t, n.Unknown)

	n, err = checkpoint.Open(both, logKeys(key))
	require.NoError(t, err)
	require.True(t, n.Trusted)
	require.Empty(t, n.Cosignatures)
	require.Equal(t, []string{"witness.example/w1+20324abe"}, n.Unknown)

	n, err = checkpoint.Open(both, checkpoint.Keys{Witnesses: []string{goldenWitness}})
	require.NoError(t, err)
	require.False(t, n.Trusted, "a witness vouches for a history, not for who wrote it")
	require.Len(t, n.Cosignatures, 1)

	n, err = checkpoint.Open(both, logKeys(other))
	require.NoError(t, err)
	require.False(t, n.Trusted)
	require.Equal(t, []string{"gate.example+78d11f8f", "witness.example/w1+20324abe"}, n.Unknown)

	_, err = checkpoint.Open(both, checkpoint.Keys{Witnesses: []string{goldenVKey}})
	require.ErrorIs(t, err, checkpoint.ErrKey, "a log's key is no witness's key")
}

func TestEveryFlippedBitOfANoteIsSeen(t *testing.T) {
	keys := checkpoint.Keys{Log: logKeys(goldenKey(t)).Log, Witnesses: []string{goldenWitness}}
	text := []byte(goldenNote + goldenCosignature)
	want, err := checkpoint.Open(text, keys)
	require.NoError(t, err)
	for bit := range 8 * len(text) {
		text[bit/8] ^= 1 << (bit % 8)
		n, err := checkpoint.Open(text, keys)
		if err == nil { // a name or key hash that is now another's: that signature is gone
			require.False(t, n.Trusted && len(n.Cosignatures) > 0, "bit %d", bit)
			require.Equal(t, want.Checkpoint, n.Checkpoint, "bit %d", bit)
		}
		text[bit/8] ^= 1 << (bit % 8)
	}
}

func TestWhatIsNoCheckpointIsRefused(t *testing.T) {
	root := "VRWLejElRGg78uzwHkyff800YtChysiLRrB1seXv7Ew="
	for name, text := range map[string]string{
		"two lines":        "gate.example\n1\n",
		"an extension":     "gate.example\n1\n" + root + "\nmore\n",
		"a sign":           "gate.example\n+1\n" + root + "\n",
		"a leading zero":   "gate.example\n01\n" + root + "\n",
		"no size":          "gate.example\n\n" + root + "\n",
		"a size of no log": "gate.example\n1152921504606846977\n" + root + "\n",
		"above 64 bits":    "gate.example\n18446744073709551616\n" + root + "\n",
		"a short root":     "gate.example\n1\nVRWL\n",
		"free bits":        "gate.example\n1\n" + root[:42] + "x=\n",
	} {
		signed, err := note.Sign(&note.Note{Text: text}, plain{goldenKey(t)})
		require.NoError(t, err)
		_, err = checkpoint.Open(signed, logKeys(goldenKey(t)))
		require.ErrorIs(t, err, checkpoint.ErrMalformed, name)
	}
	for name, raw := range map[string]string{
		"nothing":          "",
		"no signature":     "gate.example\n1\n" + root + "\n",
		"no blank line":    strings.Replace(goldenNote, "\n\n", "\n", 1),
		"no origin":        strings.TrimPrefix(goldenNote, "gate.example"),
		"CRLF":             strings.ReplaceAll(goldenNote, "\n", "\r\n"),
		"no last line end": strings.TrimSuffix(goldenNote, "\n"),
		"text behind":      goldenNote + "x\n",
		"a huge note":      goldenNote + "— else.example " + strings.Repeat("A", 80<<10) + "\n",
		"many signatures":  goldenNote + strings.Repeat(goldenCosignature, 120),
		"free bits":        strings.Replace(goldenNote, "RHTVAw=\n", "RHTVAx=\n", 1),
		"twice, free bits": goldenNote + strings.Replace(goldenNote[strings.Index(goldenNote, "—"):], "RHTVAw=\n", "RHTVAx=\n", 1),
	} {
		for _, keys := range []checkpoint.Keys{logKeys(goldenKey(t)), {}} {
			_, err := checkpoint.Open([]byte(raw), keys)
			require.ErrorIs(t, err, checkpoint.ErrMalformed, name)
		}
	}
	for _, origin := range []string{"a b", "a+b", "a\tb", strings.Repeat("o", 257)} {
		raw := strings.Replace(goldenNote, "gate.example", origin, 1)
		_, err := checkpoint.Open([]byte(raw), checkpoint.Keys{})
		require.ErrorIs(t, err, checkpoint.ErrMalformed, "%q", origin)
	}
}

// plain signs any text as gate.example.
type plain struct{ key *checkpoint.PrivateKey }

func (p plain) Name() string                     { return "gate.example" }
func (p plain) KeyHash() uint32                  { return 0x78d11f8f }
func (p plain) Sign(text []byte) ([]byte, error) { return p.key.Sign(text), nil }

func TestAWrongSignatureOfAKnownKeyIsNamed(t *testing.T) {
	_, err := checkpoint.Open([]byte(strings.Replace(goldenNote, "\n1\n", "\n2\n", 1)), logKeys(goldenKey(t)))
	require.ErrorIs(t, err, checkpoint.ErrSignature)
	require.ErrorContains(t, err, "gate.example+78d11f8f")
	later := strings.Replace(goldenCosignature, "AAAABndIXk", "AAAABndIXl", 1)
	require.NotEqual(t, goldenCosignature, later)
	_, err = checkpoint.Open([]byte(goldenNote+later), checkpoint.Keys{Witnesses: []string{goldenWitness}})
	require.ErrorIs(t, err, checkpoint.ErrSignature, "the time is signed as well")
	for _, short := range []string{"IDJKvgA=", "IDJKvgAAAABndIXk", "IDJKvgAAAABndIXkqfs="} {
		_, err = checkpoint.Open([]byte(goldenNote+"— witness.example/w1 "+short+"\n"), checkpoint.Keys{Witnesses: []string{goldenWitness}})
		require.ErrorIs(t, err, checkpoint.ErrSignature, short)
	}
}

// The page ends time at 2^63 - 1 seconds; whoever signs a later one is wrong.
func TestTheTimeOfACosignatureHasAnEnd(t *testing.T) {
	seed := make([]byte, ed25519.SeedSize)
	for i := range seed {
		seed[i] = byte(0x20 + i)
	}
	text, _, _ := strings.Cut(goldenNote, "\n\n")
	cosigned := func(seconds uint64) string {
		sig := ed25519.Sign(ed25519.NewKeyFromSeed(seed), fmt.Appendf(nil, "cosignature/v1\ntime %d\n%s\n", seconds, text))
		b := binary.BigEndian.AppendUint64([]byte{0x20, 0x32, 0x4a, 0xbe}, seconds)
		return "— witness.example/w1 " + base64.StdEncoding.EncodeToString(append(b, sig...)) + "\n"
	}
	require.Equal(t, goldenCosignature, cosigned(1735689700))
	keys := checkpoint.Keys{Witnesses: []string{goldenWitness}}
	_, err := checkpoint.Open([]byte(goldenNote+cosigned(1<<63-1)), keys)
	require.NoError(t, err)
	_, err = checkpoint.Open([]byte(goldenNote+cosigned(1<<63)), keys)
	require.ErrorIs(t, err, checkpoint.ErrSignature)
}

// A signer goes on from what it signed before, and from nothing else.
func TestASignerNeverForks(t *testing.T) {
	s := newSigner(t, "gate.example", newKey(t))
	_, truth := grow(t, history(1, 130))
	rapid.Check(t, func(t *rapid.T) {
		old, size := drawSizes(t)
		before, err := s.Sign(truth, old, nil)
		require.NoError(t, err)
		after, err := s.Sign(truth, size, &before.Checkpoint)
		require.NoError(t, err)
		root, err := checkpoint.RootAt(truth, size)
		require.NoError(t, err)
		require.Equal(t, checkpoint.Checkpoint{Origin: "gate.example", Size: size, Root: root}, after.Checkpoint)

		_, forged := grow(t, rewritten(int(size), rapid.Uint64Range(1, old).Draw(t, "from")))
		_, err = s.Sign(forged, size, &before.Checkpoint)
		require.ErrorIs(t, err, checkpoint.ErrRewritten)
		if size > old {
			_, err = s.Sign(truth, old, &after.Checkpoint)
			require.ErrorIs(t, err, checkpoint.ErrBeyondEnd)
		}
		before.Origin = "another.example"
		_, err = s.Sign(truth, size, &before.Checkpoint)
		require.ErrorIs(t, err, checkpoint.ErrRewritten)
	})
}

func TestASignerFindsStoredHashesThatChanged(t *testing.T) {
	s := newSigner(t, "gate.example", newKey(t))
	_, m := grow(t, history(1, 20))
	before, err := s.Sign(m, 11, nil)
	require.NoError(t, err)
	_, err = s.Sign(m, 20, &before.Checkpoint)
	require.NoError(t, err)
	spoiled := 0
	for i := range int64(38) {
		_, err = s.Sign(flipped{m, i}, 20, &before.Checkpoint)
		if err != nil {
			require.ErrorIs(t, err, checkpoint.ErrRewritten)
			spoiled++
		}
	}
	require.NotZero(t, spoiled)
}

// flipped reads one stored hash wrong.
type flipped struct {
	checkpoint.Reader
	index int64
}

func (f flipped) ReadHashes(indexes []int64) ([]checkpoint.Hash, error) {
	hashes, err := f.Reader.ReadHashes(indexes)
	for i := range indexes {
		if indexes[i] == f.index {
			hashes[i][0] ^= 1
		}
	}
	return hashes, err
}

func FuzzNote(f *testing.F) {
	f.Add([]byte(goldenNote))
	f.Add([]byte(goldenNote + goldenCosignature))
	keys := checkpoint.Keys{Log: []checkpoint.PublicKey{goldenKey(f).Public()}, Witnesses: []string{goldenWitness}}
	f.Fuzz(func(t *testing.T, raw []byte) {
		n, err := checkpoint.Open(raw, keys)
		if err != nil {
			return
		}
		if !strings.HasPrefix(string(raw), n.Text()+"\n— ") {
			t.Fatal("accepted and written differently")
		}
		if (n.Trusted || len(n.Cosignatures) > 0) && !strings.HasPrefix(goldenNote, n.Text()) {
			t.Fatal("a checkpoint that nobody signed")
		}
	})
}
