package checkpoints

import (
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/checkpoint"
)

func TestOfVeryManyNotesTheNewestAndOneOfEachSegmentAreJudged(t *testing.T) {
	var list []checkpoint.Stored
	for size := range uint64(5000) {
		list = append(list, checkpoint.Stored{Segment: uint32(size / 700), Size: size})
	}
	some := representative(list)
	require.Len(t, some, judgedNotes+5)
	require.Equal(t, list[4000:], some[5:])
	for i, s := range some[:5] {
		require.EqualValues(t, i*700+699, s.Size)
	}
	require.Equal(t, list[:judgedNotes], representative(list[:judgedNotes]))
	require.Empty(t, representative(nil))
}
