package projections

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"writegate/eventlog/event"
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

// The tags of a batch are written with it: the one that completes a block of the index
// costs no more than the ones before it, and the block in the making keeps none of them.
func TestTheTagsOfManyBatchesAreNotWrittenAtOnce(t *testing.T) {
	s, err := Open(Options{Dir: "store", FS: vfs.NewMem()})
	require.NoError(t, err)
	at := time.Unix(1735689600, 0)
	events := make(sliceSource, blockEvents)
	for i := range events {
		p := &event.TelemetryReceived{BatchID: "bat_x"}
		for k := range 50 {
			name := fmt.Sprintf("%d.%d", i, k)
			p.Events = append(p.Events, event.TelemetryEvent{ID: name, Type: "t" + name, AgentID: "agt_1", SessionID: "s" + name, Tool: event.TelemetryTool{ID: "tool_" + name}, Timestamp: at.UnixNano()})
		}
		events[i] = event.Envelope{Seq: uint64(i + 1), Draft: event.New(at, event.Context{Project: "p"}, p), Hash: [32]byte{byte(i), byte(i >> 8), 1}}
		if i > 0 {
			events[i].PreviousHash = events[i-1].Hash
		}
	}
	require.NoError(t, s.apply(events[:blockEvents-2]))
	written := func(e *event.Envelope) uint32 {
		tx := begin(s.db, s.space)
		require.NoError(t, tx.fold(e))
		require.NoError(t, tx.write())
		n := tx.batch.Count()
		require.NoError(t, s.commit(tx))
		return n
	}
	before, last := written(&events[blockEvents-2]), written(&events[blockEvents-1])
	require.Greater(t, before, uint32(150))
	require.Less(t, last, before+2*uint32(fieldCount))
	require.NoError(t, s.Close())
}
