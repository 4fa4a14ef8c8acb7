package projections_test

import (
	"context"
	"iter"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"writegate/eventlog"
	"writegate/eventlog/event"
	"writegate/fixtures/filled"
	"writegate/projections"
	"writegate/projections/projectionstest"
)

// oneByOne is a log that has no chunks to give.
type oneByOne struct{ projections.Source }

// spoiling is a log whose chunks are spoiled as soon as nobody may look at them:
// of what was folded, texts may be kept, and no event.
type spoiling struct {
	projections.Source
	log     *eventlog.Log
	spoiled int
}

func (s *spoiling) Chunks(ctx context.Context, seq uint64, room func() *eventlog.Chunk) iter.Seq2[*eventlog.Chunk, error] {
	return s.log.Chunks(ctx, seq, func() *eventlog.Chunk {
		c := room()
		for i := range c.Events {
			c.Events[i] = event.Envelope{Draft: event.Draft{Type: "spoiled"}}
		}
		if len(c.Events) > 0 {
			s.spoiled++
		}
		return c
	})
}

// onDisk writes events into a log of its own.
func onDisk(t *testing.T, drafts []event.Draft) *eventlog.Log {
	t.Helper()
	log := openLog(t, t.TempDir()+"/audit.wal")
	t.Cleanup(func() { require.NoError(t, log.Close(context.Background())) })
	for some := range slices.Chunk(drafts, 100) {
		_, err := log.Append(t.Context(), eventlog.Group{Drafts: some})
		require.NoError(t, err)
	}
	return log
}

// requireSameThroughChunks replays a log in all ways in which it can be read.
func requireSameThroughChunks(t *testing.T, log *eventlog.Log) {
	t.Helper()
	replayed := func(src projections.Source, events, load int) *projections.Store {
		store, err := projections.Open(projections.Options{Dir: "store", FS: vfs.NewMem()})
		require.NoError(t, err)
		store.Replay(events, load, 1<<20)
		require.NoError(t, store.Connect(t.Context(), src))
		require.Equal(t, log.Head().Seq, store.Applied().Seq)
		t.Cleanup(func() { require.NoError(t, store.Close()) })
		return store
	}
	want := replayed(oneByOne{log}, 64, 0)
	for _, events := range []int{50, 1024} {
		spoiled := &spoiling{Source: log, log: log}
		projectionstest.Compare(t, log, replayed(log, events, 1<<20), want)
		projectionstest.Compare(t, log, replayed(spoiled, events, 1<<20), want)
		require.Greater(t, spoiled.spoiled, int(log.Head().Seq/128)-9, "few are on their way at a time")
	}
	r, err := projections.Refold(t.Context(), projections.Options{Dir: "refold", FS: vfs.NewMem()}, log)
	require.NoError(t, err)
	require.Equal(t, projectionstest.DigestOf(t, want), r.Digest)
}

func TestAReplayThroughChunksGivesTheProjectionsOfOneEventByEvent(t *testing.T) {
	w := newWorld(t)
	w.scenario(11, 400)
	var drafts []event.Draft
	for e, err := range w.log.From(t.Context(), 1) {
		require.NoError(t, err)
		drafts = append(drafts, e.Draft)
	}
	require.Greater(t, len(drafts), 2000)
	requireSameThroughChunks(t, onDisk(t, drafts))
}

func TestAReplayThroughChunksKnowsEveryEventType(t *testing.T) {
	var drafts []event.Draft
	now := time.Unix(1735689600, 0)
	for round := range 50 {
		for n, s := range event.Types() {
			now = now.Add(time.Second)
			p := s.New()
			filled.Struct(p, 1000*round)
			if start, ok := p.(*event.Startup); ok {
				start.Predecessor = nil // there is none
			}
			var c event.Context
			filled.Struct(&c, round%5)
			if n%3 > 0 { // ids of the service's own form, and others
				c.ExecutionID, c.ApprovalID, c.RequestID = event.NewExecutionID(now), event.NewApprovalID(now), event.NewRequestID(now)
			}
			drafts = append(drafts, event.New(now, c, p))
		}
	}
	requireSameThroughChunks(t, onDisk(t, drafts))
}
