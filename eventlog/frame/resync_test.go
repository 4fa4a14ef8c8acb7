package frame

import (
	"hash/crc32"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheSumOfAStretchIsThatOfItsBytes(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	r := &resync{buf: make([]byte, 1<<16+5)}
	for i := range r.buf {
		r.buf[i] = byte(random.Uint32())
	}
	for range 2000 {
		from := random.IntN(len(r.buf)/Align) * Align
		to := from + random.IntN(len(r.buf)-from+1)
		require.Equal(t, crc32.Checksum(r.buf[from:to], castagnoli), r.sum(from, to), "%d to %d", from, to)
	}
}
