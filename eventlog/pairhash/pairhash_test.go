package pairhash

import (
	"crypto/sha256"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// hashes gives the hashes of messages, cut in two at cut.
func hashes(t require.TestingT, pairs bool, messages [][]byte, cut func(int) int) [][Size]byte {
	sums, given := make([][Size]byte, len(messages)), make([]bool, len(messages))
	h := New(func(id int, sum *[Size]byte) {
		require.False(t, given[id], "given twice")
		sums[id], given[id] = *sum, true
	})
	h.pairs = h.pairs && pairs
	for i, m := range messages {
		at := cut(len(m))
		h.Add(i, m[:at], m[at:])
	}
	h.Flush()
	require.NotContains(t, given, false)
	return sums
}

func TestEveryLengthHashesAsTheStandardLibrarySays(t *testing.T) {
	text := make([]byte, 1100)
	for i := range text {
		text[i] = byte(i * 31)
	}
	for _, prefix := range []int{0, 1, 58, 63, 64, 65, 200} {
		var messages [][]byte
		for n := range text {
			messages = append(messages, text[:n], text[len(text)-n/2:])
		}
		for _, pairs := range []bool{true, false} {
			for i, sum := range hashes(t, pairs, messages, func(n int) int { return min(n, prefix) }) {
				require.Equal(t, sha256.Sum256(messages[i]), sum, "prefix %d, length %d", prefix, len(messages[i]))
			}
		}
	}
}

func TestAnyMessagesHashAsTheStandardLibrarySays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		messages := rapid.SliceOfN(rapid.SliceOfN(rapid.Byte(), 0, 700), 0, 9).Draw(t, "messages")
		cut := rapid.IntRange(0, 64).Draw(t, "cut")
		for i, sum := range hashes(t, true, messages, func(n int) int { return min(n, cut) }) {
			require.Equal(t, sha256.Sum256(messages[i]), sum)
		}
	})
}

func TestTaggedHashesAreWhatTheStandardLibrarySays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := make([][Size]byte, rapid.IntRange(0, 20).Draw(t, "hashes"))
		for i := range in {
			copy(in[i][:], rapid.SliceOfN(rapid.Byte(), Size, Size).Draw(t, "hash"))
		}
		tag, each := rapid.Byte().Draw(t, "tag"), rapid.IntRange(1, 2).Draw(t, "each")
		out := make([][Size]byte, len(in)/each)
		for _, pairs := range []bool{usable(), false} {
			clear(out)
			tagged(pairs, out, tag, in, each)
			for i := range out {
				message := []byte{tag}
				for _, h := range in[each*i : each*(i+1)] {
					message = append(message, h[:]...)
				}
				require.Equal(t, sha256.Sum256(message), out[i])
			}
		}
	})
}

// Where pairs give a wrong hash, the standard library has the last word.
func TestATreeDoesNotKeepWrongHashes(t *testing.T) {
	usable() // tested while it is right
	right := initial
	defer func() { initial = right }()
	initial[3] ^= 1
	for n := 1; n < 9; n++ {
		in, out := make([][Size]byte, 2*n), make([][Size]byte, n)
		for i := range in {
			in[i][0] = byte(i)
		}
		Tagged(out, 1, in, 2)
		for i := range out {
			require.Equal(t, sha256.Sum256(slices.Concat([]byte{1}, in[2*i][:], in[2*i+1][:])), out[i])
		}
	}
}

// The self-test must be able to say no: where the instructions were wrong, a
// verifier would have to do without them.
func TestTheSelfTestSeesAWrongRound(t *testing.T) {
	if !supported() {
		require.False(t, New(nil).pairs, "this processor hashes one message at a time")
		return
	}
	require.True(t, agrees())
	right := initial
	defer func() { initial = right }()
	initial[3] ^= 1
	require.False(t, agrees())
}

// BenchmarkPair compares both ways for messages as long as an event's.
func BenchmarkPair(b *testing.B) {
	prefix, rest := make([]byte, 58), make([]byte, 400)
	b.Run("pairs", func(b *testing.B) {
		b.SetBytes(458)
		h := New(func(int, *[Size]byte) {})
		for i := range b.N {
			h.Add(i, prefix, rest)
		}
	})
	whole := append(prefix, rest...)
	b.Run("alone", func(b *testing.B) {
		b.SetBytes(458)
		for range b.N {
			sum := sha256.Sum256(whole)
			whole[0] = sum[0]
		}
	})
}
