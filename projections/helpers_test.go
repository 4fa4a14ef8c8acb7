package projections_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
	"writegate/projections"
	"writegate/projections/projectionstest"
)

// A world is a log and a live store that follows it.
type world struct {
	t     *testing.T
	fs    vfs.FS
	log   *projectionstest.Log
	store *projections.Store
	now   time.Time
	views []*projections.View
	end   func()
	ran   chan error
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, fs: vfs.NewMem(), log: projectionstest.NewLog(), now: time.Unix(0, 1735689600000000000).UTC()}
	w.start()
	t.Cleanup(w.stop)
	return w
}

// start opens the store, connects it and lets it follow.
func (w *world) start() {
	w.t.Helper()
	store, err := projections.Open(projections.Options{Dir: "store", FS: w.fs})
	require.NoError(w.t, err)
	require.NoError(w.t, store.Connect(context.Background(), w.log))
	ctx, cancel := context.WithCancel(context.Background())
	w.store, w.end, w.ran = store, cancel, make(chan error, 1)
	go func() { w.ran <- store.Run(ctx, w.log) }()
}

// stop ends Run and closes the store cleanly.
func (w *world) stop() {
	if w.store == nil {
		return
	}
	store := w.store
	w.store = nil
	for _, v := range w.views {
		require.NoError(w.t, v.Close())
	}
	w.end()
	require.ErrorIs(w.t, <-w.ran, context.Canceled)
	require.NoError(w.t, store.Close())
}

// append adds a batch and waits until it is applied.
func (w *world) append(drafts ...event.Draft) []event.Envelope {
	w.t.Helper()
	w.now = w.now.Add(time.Second)
	events := w.log.Append(w.t, drafts...)
	require.NoError(w.t, w.store.WaitApplied(w.t.Context(), events[len(events)-1].Seq))
	return events
}

// do appends one event of p's type.
func (w *world) do(ctx event.Context, p event.Typed) event.Envelope {
	w.t.Helper()
	return w.append(event.New(w.now, ctx, p))[0]
}

// view gives a look that is closed with the store.
func (w *world) view() *projections.View {
	v := w.store.View()
	w.views = append(w.views, v)
	return v
}

func (w *world) compare() {
	w.t.Helper()
	projectionstest.RebuildAndCompare(w.t, w.log, w.store)
}

func (w *world) approval(id string) projections.Approval {
	w.t.Helper()
	v := w.store.View()
	defer v.Close()
	a, ok, err := v.Approval(id)
	require.NoError(w.t, err)
	require.True(w.t, ok, "approval %s", id)
	return a
}

func (w *world) execution(id string) projections.Execution {
	w.t.Helper()
	v := w.store.View()
	defer v.Close()
	x, ok, err := v.Execution(id)
	require.NoError(w.t, err)
	require.True(w.t, ok, "execution %s", id)
	return x
}

// created asks for an approval that lives for ttl.
func (w *world) created(id string, ttl time.Duration) event.Envelope {
	return w.do(event.Context{ApprovalID: id, Actor: "bot", App: "billing", Env: "prod", Fingerprint: "f1", RequestID: "req_of_" + id},
		&event.ApprovalCreated{SQL: "DELETE FROM t", Role: "r", Host: "h", Classification: "{}", ExpiresAt: w.now.Add(ttl).UnixNano(), TTLSeconds: int(ttl / time.Second), RuleID: "rule", RequestDigest: [32]byte{7}})
}

func (w *world) resolved(id, resolution string) {
	w.do(event.Context{ApprovalID: id}, &event.ApprovalResolved{Resolution: resolution, By: "operator", Note: "n"})
}

func dispatchOf(path string) *event.ExecutionDispatched {
	return &event.ExecutionDispatched{Path: path, Upstream: event.Upstream{Host: "db", Role: "writer", BackendPID: 3}, XID: 900}
}

// scenario appends n random but lawful batches, with times that also run back.
func (w *world) scenario(seed uint64, n int) {
	w.t.Helper()
	r := rand.New(rand.NewPCG(seed, 1))
	s := &stream{now: w.now, r: r}
	for range n {
		w.log.Append(w.t, s.batch()...)
	}
	require.NoError(w.t, w.store.WaitApplied(w.t.Context(), uint64(w.log.Len())))
}

// A stream makes events like those of a busy service.
type stream struct {
	r         *rand.Rand
	now       time.Time
	n         int
	approvals []string
	open      []string
}

func (s *stream) batch() []event.Draft {
	var drafts []event.Draft
	for range 1 + s.r.IntN(6) {
		drafts = append(drafts, s.command()...)
	}
	return drafts
}

func (s *stream) id(prefix string) string {
	s.n++
	return fmt.Sprintf("%s%08d-0000-7000-8000-%012d", prefix, s.n, s.n)
}

func (s *stream) draft(ctx event.Context, p event.Typed) event.Draft {
	return event.New(s.now, ctx, p)
}

func (s *stream) command() []event.Draft {
	s.now = s.now.Add(time.Duration(s.r.IntN(2_000_000_000) - 200_000_000))
	if s.r.IntN(200) == 0 {
		s.now = s.now.Add(time.Duration(s.r.IntN(72)) * time.Hour) // a quiet weekend
	}
	ctx := event.Context{Actor: fmt.Sprint("actor", s.r.IntN(5)), App: fmt.Sprint("app", s.r.IntN(3)), Env: "prod", RequestID: s.id("req_"), Decision: "ALLOW",
		Fingerprint: fmt.Sprint("f", s.r.IntN(20)), PolicyVersion: "p@1.0.0", Operation: "UPDATE"}
	switch k := s.r.IntN(20); {
	case k < 10:
		return s.statement(ctx)
	case k < 13:
		return s.ask(ctx)
	case k < 16 && len(s.approvals) > 0:
		return s.answer(ctx)
	case k < 19 && len(s.open) > 0:
		return s.result(ctx)
	case k == 19:
		return []event.Draft{s.draft(ctx, &event.RateLimitHit{Flood: event.Flood{Client: "10.0.0.1", Count: 3}})}
	}
	ctx.Decision = "BLOCK"
	return []event.Draft{s.draft(ctx, &event.RequestReceived{SQLBytes: 3}), s.draft(ctx, &event.DecisionRecorded{RuleID: "x", Layer: "policy"})}
}

func (s *stream) statement(ctx event.Context) []event.Draft {
	ctx.ExecutionID = s.id("exe_")
	d := dispatchOf(event.PathTx)
	if s.r.IntN(2) == 0 {
		scope := [32]byte{1, byte(s.r.IntN(200))}
		d.Idempotency = &event.Idempotency{Key: "k", ScopeDigest: scope, RequestDigest: [32]byte{9}, ExpiresAt: s.now.Add(24 * time.Hour).UnixNano()}
	}
	drafts := []event.Draft{s.draft(ctx, &event.RequestReceived{SQLBytes: 3}), s.draft(ctx, &event.DecisionRecorded{Enforced: true, RuleID: "x", Layer: "policy"})}
	if len(s.approvals) > 0 && s.r.IntN(4) == 0 {
		ctx.ApprovalID = s.approvals[s.r.IntN(len(s.approvals))]
		drafts = append(drafts, s.draft(ctx, &event.ApprovalUsed{}))
	}
	s.open = append(s.open, ctx.ExecutionID)
	return append(drafts, s.draft(ctx, d))
}

func (s *stream) ask(ctx event.Context) []event.Draft {
	ctx.ApprovalID, ctx.Decision = s.id("apr_"), "REQUIRE_APPROVAL"
	s.approvals = append(s.approvals, ctx.ApprovalID)
	return []event.Draft{s.draft(ctx, &event.ApprovalCreated{SQL: "x", ExpiresAt: s.now.Add(15 * time.Minute).UnixNano()})}
}

func (s *stream) answer(ctx event.Context) []event.Draft {
	ctx.ApprovalID = s.approvals[s.r.IntN(len(s.approvals))]
	switch s.r.IntN(8) {
	case 0:
		return []event.Draft{s.draft(ctx, &event.ApprovalExpired{ExpiresAt: s.now.UnixNano()})}
	case 1:
		return []event.Draft{s.draft(event.Context{}, &event.ApprovalsPurged{ApprovalIDs: []string{ctx.ApprovalID, "apr_nobody"}, By: "operator"})}
	case 2:
		return []event.Draft{s.draft(ctx, &event.ApprovalResolved{Resolution: event.ResolutionReject, By: "operator"})}
	}
	return []event.Draft{s.draft(ctx, &event.ApprovalResolved{Resolution: event.ResolutionApprove, By: "operator"})}
}

func (s *stream) result(ctx event.Context) []event.Draft {
	i := s.r.IntN(len(s.open))
	ctx.ExecutionID = s.open[i]
	s.open = append(s.open[:i], s.open[i+1:]...)
	answer := &event.Answer{Status: 200, Body: "{}"}
	switch s.r.IntN(6) {
	case 0:
		return []event.Draft{s.draft(ctx, &event.ExecutionFailure{Outcome: event.OutcomeAborted, SQLState: "23505", Answer: answer})}
	case 1:
		return []event.Draft{s.draft(ctx, &event.ExecutionStateUnknown{Cause: "timeout", Answer: answer}),
			s.draft(ctx, &event.ExecutionOutcomeResolved{Outcome: event.OutcomeAborted, Basis: "x"})}
	case 2:
		return []event.Draft{s.draft(ctx, &event.ExecutionStateUnknown{Cause: "connection_lost"})}
	}
	return []event.Draft{s.draft(ctx, &event.ExecutionSuccess{CommandTag: "UPDATE 1", RowCount: 1, Basis: "commit_acknowledged", Answer: answer})}
}

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 1)) }
