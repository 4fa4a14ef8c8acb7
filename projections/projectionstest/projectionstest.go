// Package projectionstest holds projections against their log in tests: after
// any scenario a rebuild from nothing must give what the live store holds.
package projectionstest

import (
	"context"
	"iter"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"writegate/eventlog"
	"writegate/eventlog/checkpoint"
	"writegate/eventlog/event"
	"writegate/eventlog/frame"
	"writegate/projections"
)

// RebuildAndCompare rebuilds the projections of log from nothing, in memory,
// and fails the test unless they equal those of store byte for byte. Nothing
// may be appended meanwhile.
func RebuildAndCompare(t testing.TB, log projections.Source, store *projections.Store) {
	t.Helper()
	fresh, err := projections.Open(projections.Options{Dir: "rebuilt", FS: vfs.NewMem()})
	require.NoError(t, err)
	require.NoError(t, fresh.Connect(context.WithoutCancel(t.Context()), log))
	defer func() { require.NoError(t, fresh.Close()) }()
	Compare(t, log, fresh, store)
}

// Compare fails the test unless a store that was rebuilt equals another one of the
// same log.
func Compare(t testing.TB, log projections.Source, fresh, store *projections.Store) {
	t.Helper()
	require.NoError(t, store.WaitApplied(context.WithoutCancel(t.Context()), fresh.Applied().Seq))
	require.Equal(t, fresh.Applied(), store.Applied(), "the store is not where the log ends")
	require.Equal(t, DigestOf(t, fresh), DigestOf(t, store), "the live projections differ from rebuilt ones")
	requireSameTree(t, log, fresh, store)
}

// requireSameTree holds every stored hash of both trees against a tree over the
// hashes of the log.
func requireSameTree(t testing.TB, log projections.Source, stores ...*projections.Store) {
	t.Helper()
	var want checkpoint.Memory
	var tree checkpoint.Tree
	for e, err := range log.From(context.WithoutCancel(t.Context()), 1) {
		require.NoError(t, err)
		require.NoError(t, tree.Append(&want, e.Hash))
	}
	for _, store := range stores {
		view := store.View()
		require.Equal(t, tree.Size(), view.Tree().Size())
		for at := int64(0); at < checkpoint.StoredHashes(tree.Size()); at += 1000 {
			var indexes []int64
			for i := at; i < min(at+1000, checkpoint.StoredHashes(tree.Size())); i++ {
				indexes = append(indexes, i)
			}
			should, err := want.ReadHashes(indexes)
			require.NoError(t, err)
			is, err := view.Tree().ReadHashes(indexes)
			require.NoError(t, err)
			require.True(t, slices.Equal(should, is), "the stored tree is not that of the log, from hash %d on", at)
		}
		require.NoError(t, view.Close())
	}
}

// DigestOf gives the digest of what store holds.
func DigestOf(t testing.TB, store *projections.Store) [32]byte {
	t.Helper()
	_, digest, err := store.Digest(context.WithoutCancel(t.Context()))
	require.NoError(t, err)
	return digest
}

// A Log is a chain of events in memory, for tests of projections that need no
// disk. It chains as the real log does.
type Log struct {
	ID     [16]byte
	before []eventlog.Ancestor

	mu      sync.Mutex
	events  []event.Envelope
	batches []int // where each batch ends
	more    chan struct{}
	closed  bool
}

// NewLog makes an empty log.
func NewLog() *Log { return &Log{ID: [16]byte{1}, more: make(chan struct{})} }

// LogID implements projections.Source.
func (l *Log) LogID() [16]byte { return l.ID }

// Append adds one batch. Drafts go through their record, as they do on disk.
func (l *Log) Append(t testing.TB, drafts ...event.Draft) []event.Envelope {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	first := len(l.events)
	for i := range drafts {
		record, err := event.Encode(nil, &drafts[i])
		require.NoError(t, err)
		d, err := event.Decode(record)
		require.NoError(t, err)
		e := event.Envelope{Seq: uint64(len(l.events) + 1), Draft: d}
		if n := len(l.events); n > 0 {
			e.PreviousHash = l.events[n-1].Hash
		}
		e.Hash = frame.EventHash(e.Seq, e.PreviousHash, record)
		l.events = append(l.events, e)
	}
	l.batches = append(l.batches, len(l.events))
	close(l.more)
	l.more = make(chan struct{})
	return l.events[first:]
}

// Cut gives a copy that ends after n events.
func (l *Log) Cut(n int) *Log {
	l.mu.Lock()
	defer l.mu.Unlock()
	return &Log{ID: l.ID, before: l.before, events: l.events[:n:n], batches: []int{n}, more: make(chan struct{})}
}

// After gives a log that follows this one, of which last events are left: its
// first event says so.
func (l *Log) After(t testing.TB, last int) *Log {
	t.Helper()
	kept := l.Cut(last)
	a := eventlog.Ancestor{LogID: l.ID, Last: uint64(last)}
	if last > 0 {
		a.Hash = kept.At(a.Last).Hash
	}
	a.Events = func(ctx context.Context) iter.Seq2[event.Envelope, error] { return kept.From(ctx, 1) }
	next := NewLog()
	next.ID, next.before = l.ID, append(slices.Clone(l.before), a)
	next.ID[1]++
	next.Append(t, event.New(time.Unix(1735689600, 0), event.Context{Actor: "system", Operation: "start"}, &event.Startup{
		Version: "1", Profile: "development", Fsync: "required", VerifyOnStart: "active", OnTornTail: "record", Engine: map[string]string{},
		Predecessor: &event.Predecessor{LogID: a.LogID, LastSeq: a.Last, LastEventHash: a.Hash, Reason: "a lost disk"},
	}))
	return next
}

// Ancestors implements projections.Source.
func (l *Log) Ancestors(context.Context) ([]eventlog.Ancestor, error) { return l.before, nil }

// Len is the number of events.
func (l *Log) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.events)
}

// At gives one event.
func (l *Log) At(seq uint64) event.Envelope {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.events[seq-1]
}

// Head implements projections.Follower.
func (l *Log) Head() eventlog.Head { return eventlog.Head{Seq: uint64(l.Len())} }

// Close ends all followers when they have everything.
func (l *Log) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	close(l.more)
	l.more = make(chan struct{})
}

// From implements projections.Source.
func (l *Log) From(ctx context.Context, seq uint64) iter.Seq2[event.Envelope, error] {
	l.mu.Lock()
	events := l.events
	l.mu.Unlock()
	return func(yield func(event.Envelope, error) bool) {
		for i := int(seq) - 1; i < len(events); i++ {
			if ctx.Err() != nil {
				yield(event.Envelope{}, ctx.Err())
				return
			}
			if !yield(events[i], nil) {
				return
			}
		}
	}
}

// Follow implements projections.Follower.
func (l *Log) Follow(ctx context.Context, seq uint64) iter.Seq2[eventlog.Batch, error] {
	return func(yield func(eventlog.Batch, error) bool) {
		for at := int(seq) - 1; ; {
			batch, more, closed := l.batchAt(at)
			if len(batch) > 0 {
				if !yield(eventlog.Batch{Events: batch}, nil) {
					return
				}
				at += len(batch)
				continue
			}
			if closed {
				return
			}
			select {
			case <-more:
			case <-ctx.Done():
				yield(eventlog.Batch{}, ctx.Err())
				return
			}
		}
	}
}

func (l *Log) batchAt(at int) ([]event.Envelope, <-chan struct{}, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i, _ := slices.BinarySearch(l.batches, at+1)
	if i == len(l.batches) {
		return nil, l.more, l.closed
	}
	return l.events[at:l.batches[i]], l.more, l.closed
}
