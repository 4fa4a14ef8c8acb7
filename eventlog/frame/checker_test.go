package frame_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"writegate/eventlog/frame"
)

func TestACheckerCountsTheFramesBeforeTheFirstWrongOne(t *testing.T) {
	c := frame.NewChecker() // one for all
	rapid.Check(t, func(t *rapid.T) {
		frames := make([]frame.Placed, rapid.IntRange(0, 9).Draw(t, "frames"))
		want := len(frames)
		for i := range frames {
			f := &frames[i].Frame
			f.Seq = rapid.Uint64().Draw(t, "seq")
			f.Record = rapid.SliceOfN(rapid.Byte(), 1, rapid.SampledFrom([]int{1, 9, 200, 2000}).Draw(t, "size")).Draw(t, "record")
			copy(f.PreviousHash[:], rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "previous"))
			f.Hash = frame.EventHash(f.Seq, f.PreviousHash, f.Record)
			switch rapid.IntRange(0, 12).Draw(t, "damage") {
			case 0:
				f.Hash[rapid.IntRange(0, 31).Draw(t, "at")] ^= 1
			case 1:
				f.Record[rapid.IntRange(0, len(f.Record)-1).Draw(t, "at")] ^= 0x80
			case 2:
				f.PreviousHash[rapid.IntRange(0, 31).Draw(t, "at")] ^= 4
			case 3:
				f.Seq++
			default:
				continue
			}
			want = min(want, i)
		}
		require.Equal(t, want, c.Intact(frames))
	})
}
