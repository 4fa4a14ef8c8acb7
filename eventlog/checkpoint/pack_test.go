package checkpoint

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"writegate/eventlog/event"
)

func TestAReceiptHasTheBytesOfItsValues(t *testing.T) {
	number := rapid.OneOf(rapid.Int64(), rapid.SampledFrom([]int64{0, math.MaxInt8, math.MaxInt8 + 1, math.MaxUint8, math.MaxUint8 + 1, math.MaxUint16, math.MaxUint16 + 1,
		math.MaxUint32, math.MaxUint32 + 1, math.MaxInt64, -1, -32, -33, math.MinInt8, math.MinInt8 - 1, math.MinInt16, math.MinInt16 - 1, math.MinInt32, math.MinInt32 - 1, math.MinInt64}))
	rapid.Check(t, func(t *rapid.T) {
		r := Receipt{Seq: uint64(number.Draw(t, "seq")), FirstSeq: uint64(number.Draw(t, "first")), Count: rapid.Uint32().Draw(t, "count"),
			Time: time.Unix(0, number.Draw(t, "time")), KeyID: rapid.String().Draw(t, "key") + strings.Repeat("x", rapid.SampledFrom([]int{0, 31, 32, 255, 256, 65_536}).Draw(t, "more")),
			Path: make(Proof, rapid.IntRange(0, 20).Draw(t, "path"))}
		for i, b := range rapid.SliceOfN(rapid.Byte(), 144, 144).Draw(t, "bytes") {
			switch {
			case i < 16:
				r.LogID[i] = b
			case i < 48:
				r.EventHash[i-16] = b
			case i < 80:
				r.Root[i-48] = b
			default:
				r.Signature[i-80] = b
			}
		}
		path := make([]event.Value, len(r.Path))
		for i := range r.Path {
			r.Path[i][0] = byte(i)
			path[i] = event.Bytes(r.Path[i][:])
		}
		want, err := event.AppendValue([]byte("before"), event.List(
			event.String(receiptType), event.Bytes(r.LogID[:]), event.Int(int64(r.Seq)), event.Bytes(r.EventHash[:]),
			event.Int(int64(r.FirstSeq)), event.Int(int64(r.Count)), event.Bytes(r.Root[:]), event.List(path...),
			event.Int(r.Time.UnixNano()), event.String(r.KeyID), event.Bytes(r.Signature[:])))
		require.NoError(t, err)
		got, err := r.Append([]byte("before"))
		require.NoError(t, err)
		require.Equal(t, want, got)
	})
	_, err := (&Receipt{KeyID: "\xff"}).Append(nil)
	require.ErrorIs(t, err, ErrMalformed)
}

// BenchmarkReceipt is what an answer of a signed log pays: a path in its batch and
// the text.
func BenchmarkReceipt(b *testing.B) {
	key, err := NewPrivateKey()
	require.NoError(b, err)
	a := NewAccumulator([16]byte{1}, key)
	for seq := range uint64(64) {
		require.NoError(b, a.Add(seq+1, [32]byte{byte(seq)}))
	}
	batch := a.Sign(time.Unix(0, 1735689600123456789))
	b.ReportAllocs()
	for b.Loop() {
		r, err := batch.Receipt(33)
		if err == nil {
			_, err = r.Text()
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}
