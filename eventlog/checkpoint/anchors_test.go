package checkpoint_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"writegate/eventlog/checkpoint"
)

// verdict holds a log against what somebody kept, as a verifier does: one pass
// over its events.
func verdict(t require.TestingT, log [][32]byte, keys checkpoint.Keys, receipts []string, notes [][]byte) error {
	var sizes []uint64
	var heads []*checkpoint.Note
	for _, raw := range notes {
		n, err := checkpoint.Open(raw, keys)
		require.NoError(t, err)
		require.True(t, n.Trusted)
		heads, sizes = append(heads, n), append(sizes, n.Size)
	}
	roots := checkpoint.NewRoots(sizes...)
	for i, h := range log {
		require.NoError(t, roots.Add(uint64(i+1), h))
	}
	for _, n := range heads {
		switch root, ok := roots.At(n.Size); {
		case !ok:
			return checkpoint.ErrBeyondEnd
		case root != n.Root:
			return checkpoint.ErrRewritten
		}
	}
	for _, text := range receipts {
		r, err := checkpoint.ParseReceipt(text)
		require.NoError(t, err)
		a, err := r.Check(keys.Log...)
		require.NoError(t, err)
		switch {
		case a.Last > uint64(len(log)):
			return checkpoint.ErrBeyondEnd
		case a.Hash != log[a.Seq-1]:
			return checkpoint.ErrRewritten
		}
	}
	return nil
}

// Logs of up to 120 events in random batches; a random receipt or checkpoint is
// kept; the log is cut anywhere before what was kept, or chained anew from any
// event that it vouches for. Nothing of that passes, and the true log does, at
// any length from there on.
func TestWhateverIsKeptShowsACutAndARewriting(t *testing.T) {
	key := newKey(t)
	signer := newSigner(t, origin, key)
	keys := logKeys(key)
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 120).Draw(t, "events")
		log := history(1, n)
		_, m := grow(t, log)
		first := rapid.IntRange(1, n).Draw(t, "first")
		last := rapid.IntRange(first, n).Draw(t, "last")
		seq := rapid.IntRange(first, last).Draw(t, "seq")

		receipt, err := signBatch(t, key, uint64(first), log[first-1:last]...).Receipt(uint64(seq))
		require.NoError(t, err)
		text, err := receipt.Text()
		require.NoError(t, err)
		signed, err := signer.Sign(m, uint64(last), nil)
		require.NoError(t, err)

		for _, kept := range []struct {
			receipts []string
			notes    [][]byte
			vouched  int // a change up to here has to show
		}{{receipts: []string{text}, vouched: seq}, {notes: [][]byte{signed.Raw}, vouched: last}} {
			length := rapid.IntRange(last, n).Draw(t, "length")
			require.NoError(t, verdict(t, log[:length], keys, kept.receipts, kept.notes))
			cut := rapid.IntRange(0, last-1).Draw(t, "cut")
			require.ErrorIs(t, verdict(t, log[:cut], keys, kept.receipts, kept.notes), checkpoint.ErrBeyondEnd)
			from := uint64(rapid.IntRange(1, kept.vouched).Draw(t, "from"))
			require.ErrorIs(t, verdict(t, rewritten(length, from), keys, kept.receipts, kept.notes), checkpoint.ErrRewritten)
		}
	})
}
