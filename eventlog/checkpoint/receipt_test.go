package checkpoint_test

import (
	"crypto/sha256"
	"encoding/base64"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"writegate/eventlog/checkpoint"
)

func TestReceiptHasTheBytesOfItsPage(t *testing.T) {
	key := goldenKey(t)
	receipt, err := signBatch(t, key, 41, filled(1), filled(2), filled(3)).Receipt(42)
	require.NoError(t, err)
	text, err := receipt.Text()
	require.NoError(t, err)
	require.Equal(t, goldenReceipt, text)

	parsed, err := checkpoint.ParseReceipt(goldenReceipt)
	require.NoError(t, err)
	require.Equal(t, receipt, parsed)
	anchor, err := parsed.Check(newKey(t).Public(), key.Public())
	require.NoError(t, err)
	require.Equal(t, checkpoint.Anchor{LogID: goldenLog, Seq: 42, Hash: filled(2), Last: 43, Time: goldenTime}, anchor)
}

func TestEveryFlippedBitOfAReceiptIsRefused(t *testing.T) {
	key := goldenKey(t).Public()
	raw, err := base64.RawURLEncoding.DecodeString(goldenReceipt)
	require.NoError(t, err)
	refused := func(text string) bool {
		r, err := checkpoint.ParseReceipt(text)
		if err == nil {
			_, err = r.Check(key)
		}
		return err != nil
	}
	for bit := range 8 * len(raw) {
		raw[bit/8] ^= 1 << (bit % 8)
		require.True(t, refused(base64.RawURLEncoding.EncodeToString(raw)), "bit %d of the bytes", bit)
		raw[bit/8] ^= 1 << (bit % 8)
	}
	text := []byte(goldenReceipt)
	for bit := range 8 * len(text) {
		text[bit/8] ^= 1 << (bit % 8)
		require.True(t, refused(string(text)), "bit %d of the text", bit)
		text[bit/8] ^= 1 << (bit % 8)
	}
	require.False(t, refused(goldenReceipt))
}

func TestOtherTextsOfAReceiptAreMalformed(t *testing.T) {
	for name, text := range map[string]string{
		"nothing":              "",
		"padding":              goldenReceipt + "=",
		"a line end":           goldenReceipt + "\n",
		"a line end inside":    goldenReceipt[:8] + "\r\n" + goldenReceipt[8:],
		"cut short":            goldenReceipt[:len(goldenReceipt)-4],
		"doubled":              goldenReceipt + goldenReceipt,
		"the other base64":     strings.NewReplacer("-", "+", "_", "/").Replace(goldenReceipt),
		"free bits at the end": goldenReceipt[:len(goldenReceipt)-1] + "p",
		"huge":                 strings.Repeat("m", 1<<20),
		"a list of nothing":    base64.RawURLEncoding.EncodeToString([]byte{0x9b, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90}),
	} {
		_, err := checkpoint.ParseReceipt(text)
		require.ErrorIs(t, err, checkpoint.ErrMalformed, name)
	}
}

func TestFieldsOutOfTheirBoundsAreMalformed(t *testing.T) {
	for name, change := range map[string]func(*checkpoint.Receipt){
		"no seq":                   func(r *checkpoint.Receipt) { r.Seq = 0 },
		"a seq above all logs":     func(r *checkpoint.Receipt) { r.Seq = 1 << 62 },
		"a seq that wraps":         func(r *checkpoint.Receipt) { r.Seq = 1 << 63 },
		"no first seq":             func(r *checkpoint.Receipt) { r.FirstSeq = 0 },
		"an empty batch":           func(r *checkpoint.Receipt) { r.Count = 0 },
		"a batch above all writes": func(r *checkpoint.Receipt) { r.Count = 1<<16 + 1 },
		"a path above its batch":   func(r *checkpoint.Receipt) { r.Path = append(r.Path, filled(9)) },
	} {
		receipt, err := checkpoint.ParseReceipt(goldenReceipt)
		require.NoError(t, err)
		change(receipt)
		text, err := receipt.Text()
		require.NoError(t, err)
		_, err = checkpoint.ParseReceipt(text)
		require.ErrorIs(t, err, checkpoint.ErrMalformed, name)
	}
}

func TestReceiptSaysWhyItIsNotBelieved(t *testing.T) {
	key := newKey(t)
	batch := signBatch(t, key, 7, filled(1), filled(2))
	receipt := func() *checkpoint.Receipt {
		r, err := batch.Receipt(8)
		require.NoError(t, err)
		return r
	}
	_, err := receipt().Check()
	require.ErrorIs(t, err, checkpoint.ErrUnknownKey)
	_, err = receipt().Check(newKey(t).Public())
	require.ErrorIs(t, err, checkpoint.ErrUnknownKey)

	r := receipt()
	r.Time = r.Time.Add(time.Nanosecond)
	_, err = r.Check(key.Public())
	require.ErrorIs(t, err, checkpoint.ErrSignature)

	r = receipt()
	r.LogID[0] ^= 1
	_, err = r.Check(key.Public())
	require.ErrorIs(t, err, checkpoint.ErrSignature)

	r = receipt()
	r.EventHash = filled(3)
	_, err = r.Check(key.Public())
	require.ErrorIs(t, err, checkpoint.ErrProof)

	r = receipt()
	r.Seq = 7
	_, err = r.Check(key.Public())
	require.ErrorIs(t, err, checkpoint.ErrProof)

	for _, seq := range []uint64{6, 9, 1 << 60} {
		r = receipt()
		r.Seq = seq
		_, err = r.Check(key.Public())
		require.ErrorIs(t, err, checkpoint.ErrMalformed)
	}
}

func TestAnAccumulatorTakesEventsInOrderAlone(t *testing.T) {
	a := checkpoint.NewAccumulator(goldenLog, newKey(t))
	require.Nil(t, a.Sign(goldenTime), "a batch without events")
	require.Error(t, a.Add(0, filled(0)))
	require.NoError(t, a.Add(5, filled(5)))
	require.Error(t, a.Add(7, filled(7)))
	require.Error(t, a.Add(5, filled(5)))
	require.NoError(t, a.Add(6, filled(6)))
	batch := a.Sign(goldenTime)
	require.Equal(t, [2]uint64{5, 6}, [2]uint64{batch.First(), batch.Last()})
	_, err := batch.Receipt(4)
	require.Error(t, err)
	_, err = batch.Receipt(7)
	require.Error(t, err)

	require.NoError(t, a.Add(7, filled(7)))
	require.Equal(t, uint64(7), a.Sign(goldenTime).First(), "a new batch begins after Sign")
	before, err := batch.Receipt(5)
	require.NoError(t, err)
	require.Equal(t, filled(5), before.EventHash, "and leaves the one before alone")
}

// Every event of any batch gets a receipt that holds, survives its text, and
// vouches for nothing else.
func TestReceiptsOfAnyBatchHold(t *testing.T) {
	key := newKey(t)
	rapid.Check(t, func(t *rapid.T) {
		hashes := history(rapid.Uint64().Draw(t, "branch"), rapid.IntRange(1, 40).Draw(t, "count"))
		first := rapid.Uint64Range(1, 1<<50).Draw(t, "first")
		batch := signBatch(t, key, first, hashes...)
		for i, h := range hashes {
			made, err := batch.Receipt(first + uint64(i))
			require.NoError(t, err)
			text, err := made.Text()
			require.NoError(t, err)
			r, err := checkpoint.ParseReceipt(text)
			require.NoError(t, err)
			anchor, err := r.Check(key.Public())
			require.NoError(t, err)
			require.Equal(t, checkpoint.Anchor{LogID: goldenLog, Seq: first + uint64(i), Hash: h, Last: batch.Last(), Time: goldenTime}, anchor)

			other := rapid.IntRange(0, len(hashes)-1).Draw(t, "other")
			if other != i {
				r.Seq = first + uint64(other)
				_, err = r.Check(key.Public())
				require.ErrorIs(t, err, checkpoint.ErrProof)
			}
		}
	})
}

func TestTheLargestBatchFitsItsReceipt(t *testing.T) {
	key := newKey(t)
	batch := signBatch(t, key, checkpoint.MaxSize-4095, history(1, 4096)...)
	r, err := batch.Receipt(batch.Last())
	require.NoError(t, err)
	r.Path = append(r.Path, make(checkpoint.Proof, 16-len(r.Path))...)
	r.Count = checkpoint.MaxBatch
	text, err := r.Text()
	require.NoError(t, err)
	_, err = checkpoint.ParseReceipt(text)
	require.NoError(t, err)
}

// What is accepted is one text alone, and no text makes Check fall.
func FuzzReceipt(f *testing.F) {
	f.Add(goldenReceipt)
	f.Add(goldenReceipt[:40])
	f.Add("mw")
	key := goldenKey(f).Public()
	f.Fuzz(func(t *testing.T, text string) {
		r, err := checkpoint.ParseReceipt(text)
		if err != nil {
			return
		}
		again, err := r.Text()
		if err != nil || again != text {
			t.Fatalf("accepted and encoded differently: %v", err)
		}
		if _, err := r.Check(key); err == nil && text != goldenReceipt {
			t.Fatal("a receipt that the key never signed")
		}
	})
}

func BenchmarkReceipts(b *testing.B) {
	key := newKey(b)
	hashes := history(1, 64)
	for b.Loop() {
		batch := signBatch(b, key, 1, hashes...)
		if _, err := batch.Receipt(64); err != nil {
			b.Fatal(err)
		}
	}
}

// The path of a receipt is the proof that tlog makes of the same tree, for every event of
// batches of every size around the powers of two.
func TestThePathOfAReceiptIsTheProofOfItsTree(t *testing.T) {
	key := newKey(t)
	for size := 1; size <= 130; size++ {
		a := checkpoint.NewAccumulator(goldenLog, key)
		var tree checkpoint.Tree
		var stored checkpoint.Memory
		for i := range size {
			h := sha256.Sum256([]byte{byte(i), byte(size)})
			require.NoError(t, a.Add(uint64(i)+10, h))
			require.NoError(t, tree.Append(&stored, h))
		}
		b := a.Sign(time.Now())
		require.Equal(t, tree.Root(), b.Root())
		for i := range uint64(size) {
			r, err := b.Receipt(i + 10)
			require.NoError(t, err)
			want, err := checkpoint.ProveInclusion(&stored, uint64(size), i+1)
			require.NoError(t, err)
			require.Equal(t, len(want), len(r.Path), "%d of %d", i, size)
			for k := range want {
				require.Equal(t, want[k], r.Path[k])
			}
		}
	}
}
