package lanehash

import (
	"crypto/sha256"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// widths are all that this processor can.
func widths() (can []int) {
	for _, width := range []int{alone, two, sixteen} {
		if width == alone || supported(width) {
			can = append(can, width)
		}
	}
	return can
}

// hashes gives the hashes of messages, cut in two at cut.
func hashes(t require.TestingT, width int, messages [][]byte, cut func(int) int) [][Size]byte {
	sums, given := make([][Size]byte, len(messages)), make([]bool, len(messages))
	h := newHasher(width, func(id int, sum *[Size]byte) {
		require.False(t, given[id], "given twice")
		sums[id], given[id] = *sum, true
	})
	for i, m := range messages {
		if at := cut(len(m)); i%7 == 6 { // what is due may be asked for at any time
			h.Flush()
			h.Add(i, m[:at], m[at:])
		} else {
			h.Add(i, m[:at], m[at:])
		}
	}
	h.Flush()
	require.NotContains(t, given, false)
	return sums
}

func TestEveryLengthHashesAsTheStandardLibrarySays(t *testing.T) {
	text := make([]byte, 2*copyMost)
	for i := range text {
		text[i] = byte(i * 31)
	}
	for _, prefix := range []int{0, 1, 58, 63, 64, 65, 200} {
		var messages [][]byte
		for n := range text {
			messages = append(messages, text[:n], text[len(text)-n/2:])
		}
		for _, width := range widths() {
			for i, sum := range hashes(t, width, messages, func(n int) int { return min(n, prefix) }) {
				require.Equal(t, sha256.Sum256(messages[i]), sum, "%d side by side, prefix %d, length %d", width, prefix, len(messages[i]))
			}
		}
	}
}

func TestAnyMessagesHashAsTheStandardLibrarySays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		messages := rapid.SliceOfN(rapid.SliceOfN(rapid.Byte(), 0, 3*copyMost), 0, 40).Draw(t, "messages")
		cut := rapid.IntRange(0, 64).Draw(t, "cut")
		for _, width := range widths() {
			for i, sum := range hashes(t, width, messages, func(n int) int { return min(n, cut) }) {
				require.Equal(t, sha256.Sum256(messages[i]), sum)
			}
		}
	})
}

func TestTaggedHashesAreWhatTheStandardLibrarySays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := make([][Size]byte, rapid.IntRange(0, 80).Draw(t, "hashes"))
		for i := range in {
			copy(in[i][:], rapid.SliceOfN(rapid.Byte(), Size, Size).Draw(t, "hash"))
		}
		tag, each := rapid.Byte().Draw(t, "tag"), rapid.IntRange(1, 2).Draw(t, "each")
		out := make([][Size]byte, len(in)/each)
		for _, width := range widths() {
			clear(out)
			tagged(width, out, tag, in, each)
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

// Where the lanes give a wrong hash, the standard library has the last word.
func TestATreeDoesNotKeepWrongHashes(t *testing.T) {
	usable() // tested while it is right
	right := initial
	defer func() { initial = right }()
	initial[3] ^= 1
	for n := 1; n < 70; n++ {
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
	if len(widths()) == 1 {
		require.Equal(t, alone, usable(), "this processor hashes one message at a time")
		return
	}
	for _, width := range widths()[1:] {
		require.True(t, agrees(width))
	}
	right := initial
	defer func() { initial = right }()
	initial[3] ^= 1
	for _, width := range widths()[1:] {
		require.False(t, agrees(width))
	}
}

// BenchmarkLanes compares all ways for messages as long as an event's.
func BenchmarkLanes(b *testing.B) {
	prefix, rest := make([]byte, 58), make([]byte, 400)
	for _, width := range widths() {
		b.Run(strconv.Itoa(width), func(b *testing.B) {
			b.SetBytes(458)
			var last [Size]byte
			h := newHasher(width, func(_ int, sum *[Size]byte) { last = *sum })
			for i := range b.N {
				h.Add(i, prefix, rest)
			}
			h.Flush()
			require.NotZero(b, last)
		})
	}
}
