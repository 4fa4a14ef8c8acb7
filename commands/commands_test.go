package commands

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
	"writegate/eventlog/event"
	"writegate/eventlog/frame/frametest"
	"writegate/fixtures/manualclock"
	"writegate/projections"
)

func TestAnApprovalsWholeLife(t *testing.T) {
	ctx := context.Background()
	w := begin(t, setup{})
	id := w.newApproval()

	a, pending, err := w.LookUpApproval(context.Background(), id, [32]byte{1}, "")
	require.NoError(t, err)
	require.True(t, pending)
	require.Equal(t, "UPDATE t SET a = 1", a.SQL)
	require.Equal(t, moment.Add(time.Minute), a.ExpiresAt)
	_, err = w.RecordDecision(ctx, retry(id))
	require.Equal(t, fault.Internal, fault.CodeOf(err), "nothing runs under a pending approval, even when the caller did not look")

	a, err = w.ResolveApproval(ctx, ResolveApproval{ID: id, Decision: "approve", Note: "fine", By: "ops"})
	require.NoError(t, err)
	require.Equal(t, "approve", a.Resolution)
	require.Equal(t, "ops", a.ResolvedBy)
	require.Zero(t, w.count(event.TypeExecutionDispatched), "resolving executes nothing")

	r := retry(id)
	recorded, err := w.RecordDecision(ctx, r)
	require.NoError(t, err)
	require.Len(t, recorded.Events, 4)
	_, _, err = w.LookUpApproval(context.Background(), id, [32]byte{1}, "")
	require.Equal(t, fault.ApprovalAlreadyUsed, fault.CodeOf(err))
	_, err = w.RecordResult(ctx, succeeded(r, recorded.ExecutionID))
	require.NoError(t, err)
	_, err = w.RecordDecision(ctx, retry(id))
	require.Equal(t, fault.ApprovalAlreadyUsed, fault.CodeOf(err))
	w.check()
}

func TestTheEventsTheCallerIsToldAreThoseInTheLog(t *testing.T) {
	w := begin(t, setup{})
	recorded, err := w.RecordDecision(context.Background(), recording(dispatching))
	require.NoError(t, err)
	for _, ref := range recorded.Events {
		e, err := w.log.At(context.Background(), ref.Seq)
		require.NoError(t, err)
		require.Equal(t, ref, EventRef{ID: e.ID, Type: e.Type, Seq: e.Seq, Hash: e.Hash})
	}
	d := payload(t, &w.events()[2].Draft).(*event.DecisionRecorded)
	require.Equal(t, uint64(1), d.Engine)
	require.Equal(t, d.Engine, w.Engine())
}

func TestManyRetriesOfOneApprovalRunTheStatementOnce(t *testing.T) {
	w := begin(t, setup{})
	id := w.approvedApproval()
	var ran atomic.Int32
	together(64, func(int) {
		_, err := w.RecordDecision(context.Background(), retry(id))
		if err == nil {
			ran.Add(1)
		} else if code := fault.CodeOf(err); code != fault.ApprovalAlreadyUsed {
			t.Errorf("refused with %s", code)
		}
	})
	require.Equal(t, int32(1), ran.Load())
	require.Equal(t, 1, w.count(event.TypeExecutionDispatched))
	require.Equal(t, 1, w.count(event.TypeApprovalUsed))
	w.check()
}

func TestManyRequestsUnderOneKeyRunTheStatementOnceAndGetOneAnswer(t *testing.T) {
	w := begin(t, setup{})
	scope := sha256.Sum256([]byte("k"))
	var ran, replayed, waiting atomic.Int32
	attempt := func(int) {
		lease, kept, err := w.BeginKey(context.Background(), scope, [32]byte{1}, moment)
		defer lease.Release()
		switch {
		case kept != nil:
			replayed.Add(1)
			if kept.Status != 200 || kept.Body != `{"decision":"ALLOW"}` {
				t.Errorf("replayed %d %s", kept.Status, kept.Body)
			}
			return
		case fault.CodeOf(err) == fault.IdempotencyInProgress:
			waiting.Add(1)
			return
		case err != nil:
			t.Error(err)
			return
		}
		r := withKey("k")
		recorded, err := w.RecordDecision(context.Background(), r)
		if err != nil {
			t.Error(err)
			return
		}
		ran.Add(1)
		if _, err := w.RecordResult(context.Background(), succeeded(r, recorded.ExecutionID)); err != nil {
			t.Error(err)
		}
	}
	for range 4 {
		together(64, attempt)
	}
	require.Equal(t, int32(1), ran.Load())
	require.Equal(t, 1, w.count(event.TypeExecutionDispatched))
	require.GreaterOrEqual(t, replayed.Load(), int32(3*64), "once it is answered everybody gets the answer")
	require.Equal(t, int32(4*64), ran.Load()+replayed.Load()+waiting.Load())

	_, _, err := w.BeginKey(context.Background(), scope, [32]byte{2}, moment)
	require.Equal(t, fault.IdempotencyConflict, fault.CodeOf(err))
	lease, _, err := w.BeginKey(context.Background(), scope, [32]byte{2}, moment.Add(KeyLifetime))
	require.NoError(t, err, "the key is free again after its time")
	lease.Release()
	w.check()
}

func TestADurableKeyHoldsEvenWithoutItsLease(t *testing.T) {
	w := begin(t, setup{})
	var ran atomic.Int32
	together(64, func(int) {
		_, err := w.RecordDecision(context.Background(), withKey("k"))
		if err == nil {
			ran.Add(1)
		} else if code := fault.CodeOf(err); code != fault.IdempotencyInProgress {
			t.Errorf("refused with %s", code)
		}
	})
	require.Equal(t, int32(1), ran.Load())
	require.Equal(t, 1, w.count(event.TypeExecutionDispatched))
	w.check()
}

// What the latency profile told a client ahead of the sync is told to its retry.
func TestAKeyGivesTheAnswerThatWasToldAheadOfItsSync(t *testing.T) {
	var slow atomic.Bool
	synced := make(chan struct{})
	disk := newDisk(t)
	w := begin(t, setup{disk: disk, fs: frametest.Inject(disk, func(op frametest.Op) error {
		if op.Kind == frametest.Datasync && slow.Load() {
			<-synced
		}
		return nil
	})})
	release := sync.OnceFunc(func() { close(synced) })
	t.Cleanup(release)
	r := withKey("k")
	lease, _, err := w.BeginKey(t.Context(), r.Idempotency.ScopeDigest, r.Request.RequestDigest, moment)
	require.NoError(t, err)
	recorded, err := w.RecordDecision(t.Context(), r)
	require.NoError(t, err)
	slow.Store(true)
	result := succeeded(r, recorded.ExecutionID)
	result.Written = true
	_, err = w.RecordResult(t.Context(), result)
	require.NoError(t, err)
	lease.Release()
	type answer struct {
		kept *projections.IdempotencyRecord
		err  error
	}
	again := make(chan answer, 1)
	ask := func() {
		_, kept, err := w.BeginKey(context.Background(), r.Idempotency.ScopeDigest, r.Request.RequestDigest, moment)
		again <- answer{kept, err}
	}
	w.turnWait = time.Millisecond
	ask()
	require.Equal(t, fault.IdempotencyInProgress, fault.CodeOf((<-again).err), "a disk that hangs holds nobody for ever")
	w.turnWait = time.Minute
	go ask()
	select {
	case a := <-again:
		require.Fail(t, "it was answered ahead of the sync", "%v", a.err)
	case <-time.After(50 * time.Millisecond):
	}
	slow.Store(false)
	release()
	a := <-again
	require.NoError(t, a.err)
	require.Equal(t, `{"decision":"ALLOW"}`, a.kept.Body)
	w.check()
}

func TestAKeyThatLedToNoDispatchMayBeSentAgain(t *testing.T) {
	w := begin(t, setup{})
	scope := sha256.Sum256([]byte("k"))
	lease, _, err := w.BeginKey(context.Background(), scope, [32]byte{1}, moment)
	require.NoError(t, err)
	_, _, err = w.BeginKey(context.Background(), scope, [32]byte{1}, moment)
	require.Equal(t, fault.IdempotencyInProgress, fault.CodeOf(err))
	_, _, err = w.BeginKey(context.Background(), scope, [32]byte{2}, moment)
	require.Equal(t, fault.IdempotencyConflict, fault.CodeOf(err))
	_, err = w.RecordDecision(context.Background(), recording(blocked))
	require.NoError(t, err)
	lease.Release()
	lease.Release()

	second, kept, err := w.BeginKey(context.Background(), scope, [32]byte{2}, moment)
	require.NoError(t, err)
	require.Nil(t, kept)
	lease.Release()
	_, _, err = w.BeginKey(context.Background(), scope, [32]byte{2}, moment)
	require.Equal(t, fault.IdempotencyInProgress, fault.CodeOf(err), "an old lease can't release a new one's key")
	second.Release()
}

func TestManyOperatorsResolveAnApprovalOnce(t *testing.T) {
	w := begin(t, setup{})
	id := w.newApproval()
	var mu sync.Mutex
	var won []string
	together(64, func(i int) {
		decision := []string{event.ResolutionApprove, event.ResolutionReject}[i%2]
		_, err := w.ResolveApproval(context.Background(), ResolveApproval{ID: id, Decision: decision, By: "ops"})
		if err == nil {
			mu.Lock()
			won = append(won, decision)
			mu.Unlock()
		} else if fault.CodeOf(err) != fault.ApprovalAlreadyResolved {
			t.Error(err)
		}
	})
	require.Len(t, won, 1)
	_, _, err := w.LookUpApproval(context.Background(), id, [32]byte{1}, "")
	require.Equal(t, won[0] == event.ResolutionReject, fault.CodeOf(err) == fault.ApprovalRejected)
	require.Equal(t, 1, w.count(event.TypeApprovalResolved))
	w.check()
}

func TestAResolutionThatIsNotValidIsRefused(t *testing.T) {
	w := begin(t, setup{})
	id := w.newApproval()
	for _, r := range []ResolveApproval{{ID: id, Decision: "maybe"}, {ID: id}, {ID: id, Decision: "approve", Note: strings.Repeat("n", 4097)}} {
		_, err := w.ResolveApproval(context.Background(), r)
		require.Equal(t, fault.ValidationFailed, fault.CodeOf(err))
	}
	_, err := w.ResolveApproval(context.Background(), ResolveApproval{ID: "apr_none", Decision: "approve"})
	require.Equal(t, fault.ApprovalNotFound, fault.CodeOf(err))
}

func TestExpiryAndPurgeTakeEveryApprovalThatWasNotResolvedAndNoOther(t *testing.T) {
	ctx := context.Background()
	time := manualclock.At(moment)
	w := begin(t, setup{now: time.Now})
	kept := w.approvedApproval()
	const n = expiryChunk + 7 // more than one append
	together(n, func(int) {
		if _, err := w.RecordDecision(ctx, ask()); err != nil {
			t.Error(err)
		}
	})
	expired, next, err := w.ExpireDue(ctx)
	require.NoError(t, err)
	require.Zero(t, expired)
	require.Equal(t, moment.Add(minute), next.UTC())

	time.Advance(minute)
	expired, next, err = w.ExpireDue(ctx)
	require.NoError(t, err)
	require.Equal(t, n, expired)
	require.Zero(t, next)
	require.Equal(t, n, w.count(event.TypeApprovalExpired))
	expired, _, err = w.ExpireDue(ctx)
	require.NoError(t, err)
	require.Zero(t, expired, "written once")
	w.check()

	late := w.newApproval()
	time.Advance(minute)
	_, err = w.ResolveApproval(ctx, ResolveApproval{ID: late, Decision: "approve"})
	require.Equal(t, fault.ApprovalExpired, fault.CodeOf(err), "the timer need not have run")
	purged, err := w.PurgeApprovals(ctx, "ops")
	require.NoError(t, err)
	require.Equal(t, n+1, purged)
	require.Equal(t, n+1, w.count(event.TypeApprovalExpired))
	purged, err = w.PurgeApprovals(ctx, "ops")
	require.NoError(t, err)
	require.Zero(t, purged)
	_, _, err = w.LookUpApproval(context.Background(), late, [32]byte{1}, "")
	require.Equal(t, fault.ApprovalNotFound, fault.CodeOf(err))
	_, _, err = w.LookUpApproval(context.Background(), kept, [32]byte{1}, "")
	require.Equal(t, fault.ApprovalExpired, fault.CodeOf(err), "a resolved one is never purged")
	w.check()
}

const minute = time.Minute

func TestAPurgeBesideOperatorsNeverRemovesAnAnswer(t *testing.T) {
	time := manualclock.At(moment)
	w := begin(t, setup{now: time.Now})
	ids := make([]string, 64)
	for i := range ids {
		ids[i] = w.newApproval()
	}
	var resolved sync.Map
	together(len(ids)+8, func(i int) {
		if i >= len(ids) {
			time.Advance(minute / 8)
			if _, err := w.PurgeApprovals(context.Background(), "ops"); err != nil {
				t.Error(err)
			}
			return
		}
		if _, err := w.ResolveApproval(context.Background(), ResolveApproval{ID: ids[i], Decision: "reject", By: "ops"}); err == nil {
			resolved.Store(ids[i], true)
		}
	})
	for _, id := range ids {
		if _, ok := resolved.Load(id); ok {
			_, _, err := w.LookUpApproval(context.Background(), id, [32]byte{1}, "")
			require.Equal(t, fault.ApprovalRejected, fault.CodeOf(err))
		}
	}
	w.check()
}

func TestTheTimerExpiresAnApprovalByItself(t *testing.T) {
	w := begin(t, setup{now: time.Now, ttl: 20 * time.Millisecond})
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		w.RunExpiry(ctx)
	}()
	r := ask()
	r.Decision.Terms = nil
	recorded, err := w.RecordDecision(ctx, r)
	require.NoError(t, err)
	for batch, err := range w.log.Follow(ctx, 1) {
		require.NoError(t, err)
		last := batch.Events[len(batch.Events)-1]
		if last.Type == event.TypeApprovalExpired {
			require.Equal(t, recorded.ApprovalID, last.Context.ApprovalID)
			require.False(t, last.Time.Before(recorded.ExpiresAt.Round(0)))
			break
		}
	}
	cancel()
	<-stopped
}

func TestAFailureBeforeTheDispatchLeavesTheApprovalUsable(t *testing.T) {
	ctx := context.Background()
	w := begin(t, setup{})
	id := w.approvedApproval()
	_, err := w.RecordDecision(ctx, recording(notBegun, func(r *RecordDecision) { r.UseApproval = id }))
	require.NoError(t, err)
	_, pending, err := w.LookUpApproval(context.Background(), id, [32]byte{1}, "")
	require.NoError(t, err)
	require.False(t, pending)
	_, err = w.RecordDecision(ctx, retry(id))
	require.NoError(t, err)
	w.check()
}

func TestAnUnknownOutcomeBlocksTheApprovalUntilItIsSettledAborted(t *testing.T) {
	ctx := context.Background()
	w := begin(t, setup{})
	id := w.approvedApproval()
	run := func(resolved *event.ExecutionOutcomeResolved) {
		r := retry(id)
		recorded, err := w.RecordDecision(ctx, r)
		require.NoError(t, err)
		_, err = w.RecordResult(ctx, &RecordResult{Request: &r.Request, Decision: &r.Decision, ExecutionID: recorded.ExecutionID, ApprovalID: id, Resolved: resolved,
			Unknown: &Unknown{ExecutionStateUnknown: event.ExecutionStateUnknown{Step: "W3", Cause: "timeout"}, ErrorCode: "db_query_timeout"}})
		require.NoError(t, err)
	}
	run(&event.ExecutionOutcomeResolved{Outcome: event.OutcomeAborted, Basis: "commit_never_sent"})
	_, _, err := w.LookUpApproval(context.Background(), id, [32]byte{1}, "")
	require.NoError(t, err, "it never applied, so the approval is free again")
	run(nil)
	_, _, err = w.LookUpApproval(context.Background(), id, [32]byte{1}, "")
	require.Equal(t, fault.ApprovalOutcomeUnknown, fault.CodeOf(err))
	_, err = w.RecordDecision(ctx, retry(id))
	require.Equal(t, fault.ApprovalOutcomeUnknown, fault.CodeOf(err))
	w.check()
}

func TestTheLatencyProfilesResultIsInTheLogWhenItIsAnswered(t *testing.T) {
	ctx := context.Background()
	w := begin(t, setup{})
	r := withKey("k")
	recorded, err := w.RecordDecision(ctx, r)
	require.NoError(t, err)
	result := succeeded(r, recorded.ExecutionID)
	result.Written = true
	written, err := w.RecordResult(ctx, result)
	require.NoError(t, err)
	require.NoError(t, w.store.WaitApplied(ctx, written.Events[0].Seq))
	_, kept, err := w.BeginKey(context.Background(), r.Idempotency.ScopeDigest, [32]byte{1}, moment)
	require.NoError(t, err)
	require.Equal(t, 200, kept.Status)
	w.check()
}

func TestARejectionLeavesItsEvent(t *testing.T) {
	w := begin(t, setup{})
	r := &Rejection{Request: recording().Request, ErrorCode: fault.ParserError, Position: 4}
	require.NoError(t, w.RecordRejection(context.Background(), r))
	last := w.events()[1]
	require.Equal(t, event.TypeQueryRejected, last.Type)
	require.Equal(t, "parser_error", last.Context.ErrorCode)
	require.Equal(t, "ana", last.Context.Actor)
	require.Equal(t, 4, payload(t, &last.Draft).(*event.QueryRejected).Position)
	w.check()
}

func TestPoliciesAreImportedOnceAndLoadedAtEveryStart(t *testing.T) {
	ctx := context.Background()
	w := begin(t, setup{})
	files, verdict := folder()
	require.Equal(t, fault.PolicyActivationFailed, fault.CodeOf(w.RecordPolicyLoaded(ctx, verdict)), "nothing is active yet")
	require.NoError(t, w.ImportPolicies(ctx, files, verdict))
	require.NoError(t, w.look(context.Background(), func(v *projections.View) error {
		active, found, err := v.ActivePolicy()
		require.NoError(t, err)
		require.True(t, found)
		require.Equal(t, "core@1.1.0", active.PolicyVersion)
		document, found, err := v.PolicyDocument(verdict.Hash)
		require.True(t, found)
		require.Equal(t, "two", string(document))
		return err
	}))
	require.Equal(t, fault.PolicyActivationFailed, fault.CodeOf(w.ImportPolicies(ctx, files, verdict)))
	w.check()
	w.end()

	again := begin(t, setup{disk: w.disk})
	require.NoError(t, again.RecordPolicyLoaded(ctx, verdict))
	verdict.Hash[0]++
	require.Equal(t, fault.PolicyActivationFailed, fault.CodeOf(again.RecordPolicyLoaded(ctx, verdict)))
	again.check()
}

func TestADatabaseThatIsAwayLeavesFewEvents(t *testing.T) {
	ctx := context.Background()
	time := manualclock.At(moment)
	w := begin(t, setup{now: time.Now})
	for range 100 {
		require.NoError(t, w.RecordDBUnavailable(ctx, "It is away.", "db_connection_failed"))
	}
	require.Equal(t, 1, w.count(event.TypeDBUnavailable), "the first one at once, the others are counted")
	require.NoError(t, w.RecordDBUnavailable(ctx, "It is full.", "db_unavailable"))
	require.Equal(t, 2, w.count(event.TypeDBUnavailable), "another reason is another event")
	time.Advance(minute)
	require.NoError(t, w.FlushIncidents(ctx))
	require.Equal(t, 3, w.count(event.TypeDBUnavailable))
	require.NoError(t, w.FlushIncidents(ctx))
	require.Equal(t, 3, w.count(event.TypeDBUnavailable), "what was told is not told again")
	require.NoError(t, w.RecordDBUnavailable(ctx, "It is away again.", "db_connection_failed"))
	require.NoError(t, w.Shutdown(ctx, "test", true))
	counts := map[string]int{}
	for _, e := range w.events() {
		if e.Type == event.TypeDBUnavailable {
			counts[e.Context.ReasonCode] += payload(t, &e.Draft).(*event.DBUnavailable).Count
		}
	}
	require.Equal(t, map[string]int{"db_connection_failed": 101, "db_unavailable": 1}, counts, "every failure is counted in the end")
	w.check()
}

func TestIncidentsOfAFloodBecomeFewEvents(t *testing.T) {
	ctx := context.Background()
	time := manualclock.At(moment)
	w := begin(t, setup{now: time.Now})
	hit := Incident{Type: event.TypeRateLimitHit, Client: "10.0.0.1", Path: "/query", Limit: 120, RequestID: testRequest}
	for range 100 {
		require.NoError(t, w.RecordIncident(ctx, hit))
	}
	require.Equal(t, 1, w.count(event.TypeRateLimitHit))
	time.Advance(minute)
	require.NoError(t, w.FlushIncidents(ctx))
	require.Equal(t, 2, w.count(event.TypeRateLimitHit))
	require.NoError(t, w.RecordIncident(ctx, hit))
	require.Equal(t, fault.Internal, fault.CodeOf(w.RecordIncident(ctx, Incident{Type: event.TypeStartup})))
	require.NoError(t, w.Shutdown(ctx, "test", true))
	list := w.events()
	require.Equal(t, event.TypeShutdown, list[len(list)-1].Type)
	total := 0
	for _, e := range list {
		if e.Type == event.TypeRateLimitHit {
			total += payload(t, &e.Draft).(*event.RateLimitHit).Count
		}
	}
	require.Equal(t, 101, total, "every occurrence is counted in the end")
	w.check()
}

func TestClosedSessionsAreToldInChunks(t *testing.T) {
	w := begin(t, setup{})
	closed := make([]ClosedSession, closedChunk+1)
	for i := range closed {
		closed[i] = ClosedSession{SessionID: fmt.Sprint("s-", i), Actor: "ana", Statements: i}
	}
	require.NoError(t, w.CloseSessions(context.Background(), closed))
	require.NoError(t, w.CloseSessions(context.Background(), nil))
	var ids []string
	for e, err := range w.log.From(context.Background(), 1) {
		require.NoError(t, err)
		if e.Type == event.TypeSessionClosed {
			ids = append(ids, e.Context.SessionID)
		}
	}
	require.Len(t, ids, len(closed))
	require.Equal(t, "s-256", ids[256])
}

// What the gate carries out itself uses an approval up like an execution does.
func TestAnAnsweredStatementUsesItsApproval(t *testing.T) {
	w := begin(t, setup{})
	id := w.approvedApproval()
	answer := func() error {
		_, err := w.RecordDecision(context.Background(), recording(answering, func(r *RecordDecision) { r.UseApproval, r.Request.ApprovalID = id, id }))
		return err
	}
	require.NoError(t, answer())
	require.Equal(t, fault.ApprovalAlreadyUsed, fault.CodeOf(answer()))
}

// What all dispatches share with an activation is not held while one of them waits
// for an aggregate of its own: the activation would wait for it, and everybody for that.
func TestWhatIsAroundTheAppendWaitsForNoLock(t *testing.T) {
	w := begin(t, setup{})
	unlock, err := w.lock(t.Context(), "agent/a")
	require.NoError(t, err)
	around := 0
	r := recording(dispatching)
	r.Keys = []string{"agent/a"}
	r.Around = func(write func() error) error { around++; return write() }
	ended, end := context.WithCancel(t.Context())
	end()
	_, err = w.RecordDecision(ended, r)
	require.Equal(t, fault.AuditUnavailable, fault.CodeOf(err))
	require.Zero(t, around)
	w.turnWait = time.Millisecond
	_, err = w.RecordDecision(t.Context(), r)
	require.Equal(t, fault.AuditUnavailable, fault.CodeOf(err), "the wait has an end, whoever waits")
	require.Equal(t, "not_written", fault.Of(err).Details["outcome"])
	unlock()
	_, err = w.RecordDecision(t.Context(), r)
	require.NoError(t, err)
	require.Equal(t, 1, around)

	head := w.log.Head()
	refused := errors.New("another policy is in force")
	r.Around = func(func() error) error { return refused }
	_, err = w.RecordDecision(t.Context(), r)
	require.ErrorIs(t, err, refused)
	require.Equal(t, head, w.log.Head())
}
