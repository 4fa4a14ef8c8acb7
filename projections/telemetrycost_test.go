package projections

import (
	"runtime"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Long durations cost a bucket of metrics a few bytes each, and not room for all
// shorter ones: a batch with names of its own has thousands of such buckets.
func TestABatchWithNamesOfItsOwnTakesLittleMemoryToFold(t *testing.T) {
	s, err := Open(Options{Dir: "store", FS: vfs.NewMem()})
	require.NoError(t, err)
	events := ownNames(t, 2)
	require.NoError(t, s.apply(events[:1]))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	require.NoError(t, s.apply(events[1:]))
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(48<<20))
	require.NoError(t, s.Close())
}

// What a fold adds up in its own form is what a Histogram adds up, to the byte.
func TestFewDurationsAreKeptAsAHistogramIs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lists := rapid.SliceOfN(rapid.SliceOf(rapid.OneOf(rapid.Int64Range(-1, 300), rapid.Int64Range(0, 1<<62))), 1, 4).Draw(t, "durations")
		var whole Histogram
		var few fewDurations
		for i, list := range lists {
			var some fewDurations
			for _, ms := range list {
				whole.Add(ms)
				some.add(ms)
			}
			if i%2 == 0 {
				few.plus(&some)
			} else {
				require.NoError(t, unmarshal(marshal(nil, &some), &few))
			}
		}
		kept := marshal(nil, &whole)
		require.Equal(t, kept, marshal(nil, &few))
		var read Histogram
		require.NoError(t, unmarshal(kept, &read))
		require.Equal(t, whole, read)
	})
}
