package commands

import (
	"context"
	"crypto/sha256"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/eventlog"
	"writegate/eventlog/event"
	"writegate/eventlog/frame"
	"writegate/eventlog/frame/frametest"
	"writegate/fixtures/manualclock"
	"writegate/projections"
	"writegate/projections/projectionstest"
)

// world is a real log and real projections on a file system that can crash.
type world struct {
	*Commands
	t     testing.TB
	disk  *frametest.Mem
	log   *eventlog.Log
	store *projections.Store
	found eventlog.Recovery
	end   func()
}

// setup is how a test's world differs from the usual one.
type setup struct {
	disk *frametest.Mem // an empty one
	fs   frame.FS       // disk itself
	now  func() time.Time
	step func(string)
	ttl  time.Duration

	fence func() error // of the log
}

func newDisk(t testing.TB) *frametest.Mem {
	t.Helper()
	disk := frametest.NewMem()
	require.NoError(t, disk.MkdirAll("/data"))
	require.NoError(t, disk.SyncDir("/"))
	return disk
}

// begin opens a world and starts its run.
func begin(t testing.TB, s setup) *world {
	t.Helper()
	if s.disk == nil {
		s.disk = newDisk(t)
	}
	if s.fs == nil {
		s.fs = s.disk
	}
	if s.now == nil {
		s.now = manualclock.At(moment).Now
	}
	if s.step == nil {
		s.step = func(string) {}
	}
	w := &world{t: t, disk: s.disk}
	var err error
	w.store, err = projections.Open(projections.Options{Dir: "/data/approvals.db", FS: s.disk.VFS})
	require.NoError(t, err)
	w.log, w.found, err = eventlog.Open(context.Background(), eventlog.Options{Path: "/data/audit.wal", FS: s.fs, Now: s.now, Step: s.step, Origin: "test", PreallocateBytes: 64 << 10, Fence: s.fence})
	require.NoError(t, err)
	require.NoError(t, w.store.Connect(context.Background(), w.log))
	w.Commands, err = New(Options{Log: w.log, Store: w.store, Now: s.now, Step: s.step, DefaultTTL: s.ttl})
	require.NoError(t, err)

	ctx, cancel := context.WithCancel(context.Background())
	running := make(chan struct{})
	go func() {
		defer close(running)
		if err := w.store.Run(ctx, w.log); err != nil && !errors.Is(err, context.Canceled) {
			w.store.Close() // wakes whoever waits; the test reports what it misses
		}
	}()
	w.end = sync.OnceFunc(func() {
		cancel()
		<-running
		w.log.Close(context.Background()) // a poisoned log says so again
		w.store.Close()
	})
	t.Cleanup(w.end)
	require.NoError(t, w.Start(context.Background(), Startup{Mode: "enforce", Tails: w.found.Tails,
		Event: event.Startup{Version: "0.6.0", Profile: "development", Fsync: "required", VerifyOnStart: "active", OnTornTail: "record"}}))
	return w
}

// check holds the projections against a rebuild from nothing.
func (w *world) check() {
	w.t.Helper()
	projectionstest.RebuildAndCompare(w.t, w.log, w.store)
}

// events reads the log, without what every start writes.
func (w *world) events() []event.Envelope {
	w.t.Helper()
	var list []event.Envelope
	for e, err := range w.log.From(context.Background(), 1) {
		require.NoError(w.t, err)
		list = append(list, e)
	}
	return list
}

func (w *world) count(kind event.Type) (n int) {
	w.t.Helper()
	for _, e := range w.events() {
		if e.Type == kind {
			n++
		}
	}
	return n
}

// ask is a request for an approval; asking again with its id is the retry.
func ask() *RecordDecision { return recording(approving) }

func (w *world) newApproval() string {
	w.t.Helper()
	recorded, err := w.RecordDecision(context.Background(), ask())
	require.NoError(w.t, err)
	return recorded.ApprovalID
}

func (w *world) approvedApproval() string {
	w.t.Helper()
	id := w.newApproval()
	_, err := w.ResolveApproval(context.Background(), ResolveApproval{ID: id, Decision: event.ResolutionApprove, By: "operator"})
	require.NoError(w.t, err)
	return id
}

// retry dispatches under an approval.
func retry(id string) *RecordDecision {
	return recording(dispatching, func(r *RecordDecision) {
		r.UseApproval, r.Request.ApprovalID, r.ExecutionID = id, id, ""
	})
}

// withKey dispatches under an idempotency key.
func withKey(key string) *RecordDecision {
	return recording(dispatching, func(r *RecordDecision) {
		r.Idempotency = &event.Idempotency{Key: key, ScopeDigest: sha256.Sum256([]byte(key)), RequestDigest: r.Request.RequestDigest}
		r.ExecutionID = ""
	})
}

func succeeded(r *RecordDecision, id string) *RecordResult {
	return &RecordResult{Request: &r.Request, Decision: &r.Decision, ExecutionID: id, ApprovalID: r.UseApproval,
		Success: &event.ExecutionSuccess{CommandTag: "UPDATE 1", RowCount: 1, Basis: "commit_acknowledged",
			Answer: &event.Answer{Status: 200, Body: `{"decision":"ALLOW"}`}}}
}

// together runs f n times at once.
func together(n int, f func(i int)) {
	var group sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		group.Go(func() {
			<-start
			f(i)
		})
	}
	close(start)
	group.Wait()
}
