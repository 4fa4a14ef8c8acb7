package projections_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
	"writegate/projections"
)

func TestARebuildEqualsTheLiveProjectionsWhateverTheBatchesWere(t *testing.T) {
	for seed := range uint64(4) {
		w := newWorld(t)
		w.scenario(seed, 400)
		require.Greater(t, w.log.Len(), 2000)
		w.compare()
	}
}

func TestAnApprovalGoesFromPendingToApprovedToUsed(t *testing.T) {
	w := newWorld(t)
	created := w.created("apr_1", time.Hour)
	a := w.approval("apr_1")
	require.Equal(t, projections.StatusPending, a.StatusAt(w.now))
	require.Equal(t, created.Time, a.CreatedAt)
	require.Equal(t, "DELETE FROM t", a.SQL)
	require.Equal(t, projections.StatusExpired, a.StatusAt(a.ExpiresAt), "its time is over at the moment of expiry")

	w.resolved("apr_1", event.ResolutionApprove)
	a = w.approval("apr_1")
	require.Equal(t, projections.StatusResolved, a.StatusAt(w.now))
	require.Equal(t, projections.ApprovalApproved, a.State)
	require.Equal(t, projections.StatusResolved, a.StatusAt(a.ExpiresAt.Add(time.Hour)), "a resolved approval stays resolved")
	require.True(t, a.ElapsedAt(a.ExpiresAt))
	require.Equal(t, []string{"approve", "n", "operator"}, []string{a.Resolution, a.Note, a.ResolvedBy})

	w.append(event.New(w.now, event.Context{ApprovalID: "apr_1", ExecutionID: "exe_1"}, &event.ApprovalUsed{}),
		event.New(w.now, event.Context{ApprovalID: "apr_1", ExecutionID: "exe_1"}, dispatchOf(event.PathTx)))
	a = w.approval("apr_1")
	require.Equal(t, projections.UseTaken, a.Use)
	require.Equal(t, "exe_1", a.ExecutionID)
	require.False(t, a.UsedAt.IsZero())
	w.compare()
}

func TestWhatBecomesOfAnExecutionDecidesWhetherItsApprovalIsUsable(t *testing.T) {
	type step struct {
		p    event.Typed
		use  projections.ApprovalUse
		want string // the execution's state
	}
	failure := func(outcome string) event.Typed { return &event.ExecutionFailure{Outcome: outcome} }
	resolved := func(outcome string) event.Typed {
		return &event.ExecutionOutcomeResolved{Outcome: outcome, Basis: "xid_status"}
	}
	unknown := &event.ExecutionStateUnknown{Cause: "timeout"}
	for name, steps := range map[string][]step{
		"success":               {{&event.ExecutionSuccess{}, projections.UseTaken, projections.ExecutionSuccess}},
		"refused by PostgreSQL": {{failure(event.OutcomeAborted), projections.UseTaken, projections.ExecutionFailure}},
		"perhaps partly":        {{failure(event.OutcomePartialPossible), projections.UseTaken, projections.ExecutionFailure}},
		"never sent":            {{failure(event.OutcomeNotExecuted), projections.UseFree, projections.ExecutionFailure}},
		"unknown":               {{unknown, projections.UseUnknown, projections.ExecutionUnknown}},
		"unknown, then aborted": {{unknown, projections.UseUnknown, projections.ExecutionUnknown}, {resolved(event.OutcomeAborted), projections.UseFree, projections.ExecutionFailure}},
		"unknown, committed":    {{unknown, projections.UseUnknown, projections.ExecutionUnknown}, {resolved(event.OutcomeCommitted), projections.UseTaken, projections.ExecutionSuccess}},
		"unknown, in progress, not knowable": {{unknown, projections.UseUnknown, projections.ExecutionUnknown},
			{resolved(event.OutcomeInProgress), projections.UseUnknown, projections.ExecutionUnknown}, {resolved(event.OutcomeNotKnowable), projections.UseUnknown, projections.ExecutionUnknown}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.created("apr_1", time.Hour)
			w.resolved("apr_1", event.ResolutionApprove)
			ctx := event.Context{ApprovalID: "apr_1", ExecutionID: "exe_1"}
			w.append(event.New(w.now, ctx, &event.ApprovalUsed{}), event.New(w.now, ctx, dispatchOf(event.PathTx)))
			require.Equal(t, 1, w.view().Counters().ExecutionsOpen)
			for _, s := range steps {
				w.do(ctx, s.p)
				require.Equal(t, s.use, w.approval("apr_1").Use)
				require.Equal(t, s.want, w.execution("exe_1").State)
			}
			require.Zero(t, w.view().Counters().ExecutionsOpen)
			w.compare()
		})
	}
}

func TestNewsOfAnOlderExecutionDoNotFreeAnApprovalThatANewerOneUses(t *testing.T) {
	w := newWorld(t)
	w.created("apr_1", time.Hour)
	older, newer := event.Context{ApprovalID: "apr_1", ExecutionID: "exe_1"}, event.Context{ApprovalID: "apr_1", ExecutionID: "exe_2"}
	w.append(event.New(w.now, older, &event.ApprovalUsed{}), event.New(w.now, older, dispatchOf(event.PathTx)))
	w.append(event.New(w.now, newer, &event.ApprovalUsed{}), event.New(w.now, newer, dispatchOf(event.PathTx)))
	w.do(older, &event.ExecutionOutcomeResolved{Outcome: event.OutcomeAborted, Basis: "marker"})
	require.Equal(t, projections.UseTaken, w.approval("apr_1").Use)
}

func TestAFailureBeforeDispatchLeavesNothingExecutedAndTheApprovalUsable(t *testing.T) {
	w := newWorld(t)
	w.created("apr_1", time.Hour)
	w.resolved("apr_1", event.ResolutionApprove)
	w.do(event.Context{ApprovalID: "apr_1", ExecutionID: "exe_1", ReasonCode: "db_unavailable"}, &event.ExecutionFailure{Outcome: event.OutcomeNotExecuted})
	x := w.execution("exe_1")
	require.Equal(t, projections.ExecutionNotExecuted, x.State)
	require.True(t, x.DispatchedAt.IsZero())
	require.Equal(t, "db_unavailable", x.ReasonCode)
	a := w.approval("apr_1")
	require.Equal(t, projections.UseFree, a.Use)
	require.Empty(t, a.ExecutionID)
	w.compare()
}

func TestAnExecutionRemembersItsEventsAndItsUpstream(t *testing.T) {
	w := newWorld(t)
	ctx := event.Context{ExecutionID: "exe_1", RequestID: "req_1", Actor: "a", App: "b", Fingerprint: "f", Operation: "UPDATE", PolicyVersion: "p@1.0.0"}
	first := w.do(ctx, dispatchOf(event.PathTx))
	w.do(event.Context{ExecutionID: "exe_2"}, dispatchOf(event.PathRead))
	second := w.do(ctx, &event.ExecutionStateUnknown{Step: "W5", Cause: "timeout"})
	open, err := w.view().OpenExecutions()
	require.NoError(t, err)
	require.Len(t, open, 1)
	require.Equal(t, "exe_2", open[0].ID)
	require.Equal(t, 1, w.view().UnknownCount())

	third := w.do(event.Context{ExecutionID: "exe_1"}, &event.ExecutionOutcomeResolved{Outcome: event.OutcomeCommitted, Basis: "xid_status"})
	x := w.execution("exe_1")
	require.Equal(t, []uint64{first.Seq, second.Seq, third.Seq}, x.Events)
	require.Equal(t, projections.ExecutionSuccess, x.State)
	require.Equal(t, "committed", x.Outcome)
	require.Equal(t, "xid_status", x.Basis)
	require.Equal(t, uint64(900), x.XID)
	require.Equal(t, "db", x.Upstream.Host)
	require.Equal(t, []string{"req_1", "a", "b", "f", "UPDATE", "p@1.0.0"}, []string{x.RequestID, x.Actor, x.App, x.Fingerprint, x.Operation, x.PolicyVersion})
	require.Equal(t, first.Time, x.DispatchedAt)
	require.Equal(t, second.Time, x.ResultAt)
	require.Equal(t, third.Time, x.ResolvedAt)
	require.Zero(t, w.view().UnknownCount())
	w.compare()
}

func TestAKeyGivesItsFirstAnswerUntilItExpires(t *testing.T) {
	w := newWorld(t)
	scope := [32]byte{5}
	expires := w.now.Add(24 * time.Hour)
	keyed := dispatchOf(event.PathTx)
	keyed.Idempotency = &event.Idempotency{Key: "k-1", ScopeDigest: scope, RequestDigest: [32]byte{6}, ExpiresAt: expires.UnixNano()}
	ctx := event.Context{ExecutionID: "exe_1", RequestID: "req_1"}
	w.do(ctx, keyed)

	r, ok, err := w.view().Idempotency(scope, w.now)
	require.NoError(t, err)
	require.True(t, ok)
	require.False(t, r.Answered)
	require.Equal(t, projections.ExecutionDispatched, r.State)

	unknown := &event.ExecutionStateUnknown{Cause: "timeout", Answer: &event.Answer{Status: 504, Body: `{"a":1}`}}
	w.do(ctx, unknown)
	require.NotZero(t, unknown.Salt)
	w.do(ctx, &event.ExecutionOutcomeResolved{Outcome: event.OutcomeCommitted, Basis: "marker"})
	r, ok, err = w.view().Idempotency(scope, expires.Add(-1))
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, projections.IdempotencyRecord{Key: "k-1", RequestDigest: [32]byte{6}, ExecutionID: "exe_1", RequestID: "req_1", State: projections.ExecutionSuccess,
		Outcome: "committed", ExpiresAt: expires, Answered: true, Status: 504, Body: `{"a":1}`, Salt: unknown.Salt}, r, "the digest covers the salt as it does the body")

	_, ok, err = w.view().Idempotency(scope, expires)
	require.NoError(t, err)
	require.False(t, ok, "an expired key is free")
	_, ok, err = w.view().Idempotency([32]byte{6}, w.now)
	require.NoError(t, err)
	require.False(t, ok)
	w.compare()
}

func TestALateResultDoesNotAnswerAKeyThatHasANewOwner(t *testing.T) {
	w := newWorld(t)
	scope := [32]byte{5}
	bind := func(id string) {
		d := dispatchOf(event.PathTx)
		d.Idempotency = &event.Idempotency{Key: "k", ScopeDigest: scope, RequestDigest: [32]byte{6}, ExpiresAt: w.now.Add(24 * time.Hour).UnixNano()}
		w.do(event.Context{ExecutionID: id}, d)
	}
	bind("exe_1")
	w.now = w.now.Add(25 * time.Hour)
	bind("exe_2")
	w.do(event.Context{ExecutionID: "exe_1"}, &event.ExecutionSuccess{Answer: &event.Answer{Status: 200, Body: "old"}})
	r, ok, err := w.view().Idempotency(scope, w.now)
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, "exe_2", r.ExecutionID)
	require.False(t, r.Answered)
	w.compare()
}

// What a day before the clock has passed is then before 1970.
func TestAClockNear1970ForgetsNoKeyAndNoIDOfTelemetry(t *testing.T) {
	for _, start := range []time.Duration{-48 * time.Hour, -12 * time.Hour, time.Hour, 23 * time.Hour, 25 * time.Hour} {
		t.Run(start.String(), func(t *testing.T) {
			w := newWorld(t)
			w.now = time.Unix(0, int64(start)).UTC()
			for i := range 10 {
				d := dispatchOf(event.PathTx)
				d.Idempotency = &event.Idempotency{Key: "k", ScopeDigest: [32]byte{byte(i + 1)}, ExpiresAt: w.now.Add(24 * time.Hour).UnixNano()}
				w.do(event.Context{ExecutionID: fmt.Sprintf("exe_%d", i)}, d)
				w.reported("agt_1", fmt.Sprintf("t-%d", i))
				w.created(fmt.Sprintf("apr_%d", i), time.Hour)
			}
			for i := range 10 {
				_, kept, err := w.view().Idempotency([32]byte{byte(i + 1)}, w.now)
				require.NoError(t, err)
				require.True(t, kept, "key %d", i)
				require.True(t, w.sent(project, "agt_1", fmt.Sprintf("t-%d", i)))
			}
			pending, err := w.view().ApprovalsPending(w.now)
			require.NoError(t, err)
			require.Equal(t, 10, pending)

			w.now = w.now.Add(9 * 24 * time.Hour)
			d := dispatchOf(event.PathTx)
			d.Idempotency = &event.Idempotency{Key: "k", ScopeDigest: [32]byte{100}, ExpiresAt: w.now.Add(24 * time.Hour).UnixNano()}
			w.do(event.Context{ExecutionID: "exe_new"}, d)
			_, kept, err := w.view().Idempotency([32]byte{1}, time.Unix(0, int64(start)).UTC())
			require.NoError(t, err)
			require.False(t, kept, "a key long past its time is gone")
			due, _, err := w.view().DueApprovals(w.now, 20)
			require.NoError(t, err)
			require.Len(t, due, 10)
			w.compare()
		})
	}
}

func TestKeysThatExpiredLongAgoAreSweptInOneBatchAsInMany(t *testing.T) {
	w := newWorld(t)
	var drafts []event.Draft
	for i := range 60 {
		d := dispatchOf(event.PathTx)
		d.Idempotency = &event.Idempotency{Key: "k", ScopeDigest: [32]byte{byte(i + 1)}, ExpiresAt: w.now.Add(24 * time.Hour).UnixNano()}
		drafts = append(drafts, event.New(w.now, event.Context{ExecutionID: event.NewExecutionID(w.now)}, d))
		w.now = w.now.Add(5 * time.Hour)
	}
	w.append(drafts[:30]...)
	for _, d := range drafts[30:] {
		w.append(d)
	}
	_, kept, err := w.view().Idempotency([32]byte{60}, w.now.Add(-6*time.Hour))
	require.NoError(t, err)
	require.True(t, kept)
	_, kept, err = w.view().Idempotency([32]byte{1}, time.Unix(0, 0))
	require.NoError(t, err)
	require.False(t, kept, "a key two days past its time is gone")
	w.compare()
	for _, events := range []int{1, 3, 20} {
		w.compareReplay(events, 0, 1<<20)
		w.compareReplay(events, 2000, 0)
	}
}

func TestPurgedApprovalsAreGoneAndStayGone(t *testing.T) {
	w := newWorld(t)
	w.created("apr_1", time.Minute)
	w.created("apr_2", time.Minute)
	w.do(event.Context{ApprovalID: "apr_1"}, &event.ApprovalExpired{})
	w.do(event.Context{}, &event.ApprovalsPurged{ApprovalIDs: []string{"apr_1", "apr_2"}, By: "operator"})
	w.resolved("apr_2", event.ResolutionApprove)
	v := w.view()
	for _, id := range []string{"apr_1", "apr_2"} {
		_, ok, err := v.Approval(id)
		require.NoError(t, err)
		require.False(t, ok)
	}
	list, next, err := v.Approvals(projections.ApprovalFilter{}, projections.Page{})
	require.NoError(t, err)
	require.Empty(t, list)
	require.Empty(t, next)
	require.Equal(t, projections.Counters{}, v.Counters())
	w.compare()
}

func TestPolicyVersionsFollowTheirLifecycle(t *testing.T) {
	w := newWorld(t)
	h1, h2, h3 := [32]byte{1}, [32]byte{2}, [32]byte{3}
	_, ok, err := w.view().ActivePolicy()
	require.NoError(t, err)
	require.False(t, ok)

	w.append(
		event.New(w.now, event.Context{}, &event.PolicyLoaded{Origin: event.PolicyOriginImport, PolicyVersion: "p@1.0.0", Hash: h1, Status: event.PolicyActiveStatus, Document: []byte("one")}),
		event.New(w.now, event.Context{}, &event.PolicyValidated{Cause: "startup", PolicyVersion: "p@1.0.0", Hash: h1, Valid: true, Tests: event.TestCounts{Cases: 2, Passed: 2}}),
		event.New(w.now, event.Context{}, &event.PolicyActivated{PolicyVersion: "p@1.0.0", Hash: h1, By: "gate"}))
	require.Equal(t, uint64(3), w.view().LastPolicySeq())
	w.do(event.Context{}, &event.PolicyCandidateCreated{PolicyVersion: "p@1.1.0", Hash: h2, RuleCount: 8, Document: []byte("two"), By: "operator", Note: "note"})
	w.append(
		event.New(w.now, event.Context{}, &event.PolicyCandidateCreated{PolicyVersion: "p@1.2.0", Hash: h3, Document: []byte("three"), By: "operator"}),
		event.New(w.now, event.Context{}, &event.PolicyCandidateRejected{PolicyVersion: "p@1.2.0", Hash: h3, Reason: "tests_failed", Findings: "[]"}))
	w.do(event.Context{}, &event.PolicyActivated{PolicyVersion: "p@1.1.0", Hash: h2, Previous: "p@1.0.0", PreviousHash: h1, By: "operator", Reason: "why"})
	seq := w.view().LastPolicySeq()
	w.do(event.Context{}, &event.PolicyLoaded{Origin: event.PolicyOriginLog, PolicyVersion: "p@1.1.0", Hash: h2, Status: event.PolicyActiveStatus})
	require.Equal(t, seq, w.view().LastPolicySeq(), "a start that finds what the log says changes nothing")

	statuses := func() map[string]string {
		list, _, err := w.view().PolicyVersions(projections.PolicyFilter{}, projections.Page{})
		require.NoError(t, err)
		m := map[string]string{}
		for _, p := range list {
			m[p.PolicyVersion] = p.Status
		}
		return m
	}
	require.Equal(t, map[string]string{"p@1.0.0": "archived", "p@1.1.0": "active", "p@1.2.0": "rejected"}, statuses())
	active, ok, err := w.view().ActivePolicy()
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, "p@1.1.0", active.PolicyVersion)
	require.Equal(t, []any{8, "operator", "note", "why"}, []any{active.RuleCount, active.ActivatedBy, active.Note, active.ActivateReason})

	w.do(event.Context{}, &event.PolicyRollback{PolicyVersion: "p@1.0.0", Hash: h1, From: "p@1.1.0", FromHash: h2, By: "operator"})
	require.Equal(t, map[string]string{"p@1.0.0": "active", "p@1.1.0": "archived", "p@1.2.0": "rejected"}, statuses())

	document, ok, err := w.view().PolicyDocument(h3)
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, "three", string(document))
	_, ok, err = w.view().PolicyDocument([32]byte{9})
	require.NoError(t, err)
	require.False(t, ok)

	archived, _, err := w.view().PolicyVersions(projections.PolicyFilter{Status: "archived", Name: "p"}, projections.Page{})
	require.NoError(t, err)
	require.Len(t, archived, 1)
	none, _, err := w.view().PolicyVersions(projections.PolicyFilter{Name: "p@1"}, projections.Page{})
	require.NoError(t, err)
	require.Empty(t, none)
	rejected, ok, err := w.view().PolicyVersion("p@1.2.0")
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, "tests_failed", rejected.RejectedReason)
	w.compare()
}

// The digest stands in events that everybody reads, over values that not everybody may
// read: a kept answer and the estimate of an approval.
func TestTheDigestTellsNothingOfWhatIsWithheld(t *testing.T) {
	digestOf := func(salt event.Salt) [32]byte {
		w := newWorld(t)
		keyed := dispatchOf(event.PathTx)
		keyed.Idempotency = &event.Idempotency{Key: "k", ScopeDigest: [32]byte{5}, RequestDigest: [32]byte{6}, ExpiresAt: w.now.Add(24 * time.Hour).UnixNano()}
		w.do(event.Context{ExecutionID: "exe_1"}, keyed)
		w.do(event.Context{ExecutionID: "exe_1"}, &event.ExecutionSuccess{Answer: &event.Answer{Status: 200, Body: `{"rows":[{"count":7}]}`}, Salt: salt})
		_, digest, err := w.store.Digest(t.Context())
		require.NoError(t, err)
		return digest
	}
	asked := func(salt event.Salt) [32]byte {
		w := newWorld(t)
		w.do(event.Context{ApprovalID: "apr_1"}, &event.ApprovalCreated{SQL: "DELETE", Impact: `{"rows":7}`, Salt: salt, ExpiresAt: w.now.Add(time.Hour).UnixNano()})
		_, digest, err := w.store.Digest(t.Context())
		require.NoError(t, err)
		return digest
	}
	for _, digest := range []func(event.Salt) [32]byte{digestOf, asked} {
		require.Equal(t, digest(event.Salt{1}), digest(event.Salt{1}), "whoever knows all else computes it")
		require.NotEqual(t, digest(event.Salt{1}), digest(event.Salt{2}), "the salt alone is another digest")
	}
}
