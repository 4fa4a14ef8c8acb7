package commands

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
	"writegate/eventlog/event"
)

// recording is an allowed write of the usual request; change says what else it is.
func recording(change ...func(*RecordDecision)) *RecordDecision {
	r := &RecordDecision{
		Request: Request{RequestID: testRequest, Actor: "ana", App: "console", Tenant: "acme", Role: "dev", Host: "db1", Env: "prod",
			SQLDigest: [32]byte{9}, RequestDigest: [32]byte{1}, SQLText: "UPDATE t SET a = $1", SQLBytes: 18, Profile: "default", Principal: "CN=ana", At: moment},
		Decision: Decision{Decision: "ALLOW", ReasonCode: "app_dml", RuleID: "app-dml", Layer: "policy", Mode: "enforce", PolicyVersion: "core@1.0.0",
			Operation: "UPDATE", Fingerprint: "abcdef", Run: "transaction", PolicyHash: [32]byte{7}, Enforced: true, Matched: []string{"app-dml"}},
	}
	for _, c := range change {
		c(r)
	}
	return r
}

func dispatching(r *RecordDecision) {
	r.ExecutionID = testExecution
	r.Dispatch = &event.ExecutionDispatched{Path: event.PathTx, SQLSHA256: r.Request.SQLDigest, XID: 77,
		Limits: event.Limits{Rows: 10, Bytes: 20, TimeoutMS: 5000}, Upstream: event.Upstream{Host: "db1", Role: "writer"}}
}

func approving(r *RecordDecision) {
	r.Decision.Decision, r.Decision.Terms = "REQUIRE_APPROVAL", &event.ApprovalTerms{TTLSeconds: 60, MaxRows: new(int64(5))}
	r.NewApproval = &NewApproval{SQL: "UPDATE t SET a = 1", Classification: `{"class":"write"}`, Message: "m", Remedy: "r"}
}

func describing(r *RecordDecision) { r.Decision.Run = event.RunDescribe }

func using(r *RecordDecision) { r.UseApproval = testApproval }
func keyed(r *RecordDecision) {
	r.Idempotency = &event.Idempotency{Key: "k", ScopeDigest: [32]byte{3}, RequestDigest: [32]byte{1}}
}
func blocked(r *RecordDecision) { r.Decision.Decision = "BLOCK" }

func notBegun(r *RecordDecision) {
	r.NotDispatched = &Failure{ExecutionFailure: event.ExecutionFailure{Outcome: event.OutcomeNotExecuted}, ReasonCode: "connect", ErrorCode: "db_connection_failed"}
}

func answering(r *RecordDecision) { r.Answered = true }
func opening(r *RecordDecision) {
	r.Request.SessionID, r.OpenSession = "s-1", &event.SessionOpened{Role: "r", Host: "h"}
}

func bypassing(r *RecordDecision) {
	r.Decision.Bypass = true
	r.Emergency = &event.EmergencyBypass{Reason: "outage", Until: 9, By: "ops"}
}

func TestADecisionLeavesItsEventsInTheOrderInWhichTheyCameAbout(t *testing.T) {
	request := []event.Type{event.TypeRequestReceived, event.TypeDecisionRecorded}
	more := func(list ...event.Type) []event.Type { return append(request[:2:2], list...) }
	for _, c := range []struct {
		name string
		when *RecordDecision
		then []event.Type
	}{
		{"blocked", recording(blocked), request},
		{"approval needed", recording(approving), more(event.TypeApprovalCreated)},
		{"allowed", recording(dispatching), more(event.TypeExecutionDispatched)},
		{"allowed under an approval", recording(dispatching, using), more(event.TypeApprovalUsed, event.TypeExecutionDispatched)},
		{"allowed, database out of reach", recording(notBegun), more(event.TypeExecutionFailure)},
		{"the same under an approval, which stays usable", recording(notBegun, using), more(event.TypeExecutionFailure)},
		{"bypassed", recording(dispatching, bypassing), more(event.TypeEmergencyBypass, event.TypeExecutionDispatched)},
		{"answered by the gate itself", recording(answering), request},
		{"the same under an approval", recording(answering, using), more(event.TypeApprovalUsed)},
		{"the same in a new session", recording(answering, opening, using), more(event.TypeSessionOpened, event.TypeApprovalUsed)},
	} {
		t.Run(c.name, func(t *testing.T) {
			drafts, _, err := decideRecord(c.when, decisionFacts{engine: 4, approval: given(approved)}, DefaultTTL, moment)
			require.NoError(t, err)
			require.Equal(t, c.then, types(drafts))
			for i := range drafts {
				require.True(t, drafts[i].Time.Equal(moment), "one moment per command")
				require.NotZero(t, drafts[i].ID)
			}
		})
	}
}

// Nothing runs under the decision that a statement may be described, and both of
// its events say what it was for.
func TestADescriptionIsRecordedAsOne(t *testing.T) {
	drafts, _, err := decideRecord(recording(describing), decisionFacts{}, DefaultTTL, moment)
	require.NoError(t, err)
	require.Equal(t, []event.Type{event.TypeRequestReceived, event.TypeDecisionRecorded}, types(drafts))
	var request event.RequestReceived
	require.NoError(t, drafts[0].Parse(&request))
	require.Equal(t, event.PurposeDescribe, request.Purpose)
	var decision event.DecisionRecorded
	require.NoError(t, drafts[1].Parse(&decision))
	require.Equal(t, event.RunDescribe, decision.Run)
	for _, more := range []func(*RecordDecision){dispatching, approving, notBegun, answering} {
		_, _, err := decideRecord(recording(describing, more), decisionFacts{}, DefaultTTL, moment)
		require.Equal(t, fault.Internal, fault.CodeOf(err))
	}
}

func TestWhatAnAgentsRuleBringsIsAppendedWithTheDecision(t *testing.T) {
	facts := decisionFacts{extra: []event.Draft{event.New(moment, event.Context{}, &event.AgentDeactivated{AgentID: "agt_1"})}}
	drafts, _, err := decideRecord(recording(blocked), facts, DefaultTTL, moment)
	require.NoError(t, err)
	require.Equal(t, []event.Type{event.TypeRequestReceived, event.TypeDecisionRecorded, event.TypeAgentDeactivated}, types(drafts))
}

func TestWhatNothingMayRunUnderLeavesNoEvent(t *testing.T) {
	mine, other := &keyState{requestDigest: [32]byte{1}}, &keyState{requestDigest: [32]byte{2}}
	for _, c := range []struct {
		name  string
		given decisionFacts
		when  *RecordDecision
		then  fault.Code
	}{
		{"unknown approval", decisionFacts{}, recording(dispatching, using), fault.ApprovalNotFound},
		{"used approval", decisionFacts{approval: given(approved, taken)}, recording(dispatching, using), fault.ApprovalAlreadyUsed},
		{"expired approval", decisionFacts{approval: given(approved, elapsed)}, recording(dispatching, using), fault.ApprovalExpired},
		{"rejected approval", decisionFacts{approval: given(rejected)}, recording(dispatching, using), fault.ApprovalRejected},
		{"unknown outcome", decisionFacts{approval: given(approved, uncertain)}, recording(dispatching, using), fault.ApprovalOutcomeUnknown},
		{"somebody else's approval", decisionFacts{approval: given(approved, func(a *approvalState) { a.requestDigest = [32]byte{8} })}, recording(dispatching, using), fault.ApprovalMismatch},
		{"pending approval", decisionFacts{approval: given()}, recording(dispatching, using), fault.Internal},
		{"key of this request", decisionFacts{key: mine}, recording(dispatching, keyed), fault.IdempotencyInProgress},
		{"key of another request", decisionFacts{key: other}, recording(dispatching, keyed), fault.IdempotencyConflict},
		{"free approval, taken key", decisionFacts{approval: given(approved), key: mine}, recording(dispatching, using, keyed), fault.IdempotencyInProgress},
		{"used approval, answered by the gate", decisionFacts{approval: given(approved, taken)}, recording(answering, using), fault.ApprovalAlreadyUsed},
		{"dispatched and answered", decisionFacts{}, recording(dispatching, answering), fault.Internal},
		{"a session opened by a dispatch", decisionFacts{}, recording(dispatching, opening), fault.Internal},
		{"a session without an id", decisionFacts{}, recording(answering, opening, func(r *RecordDecision) { r.Request.SessionID = "" }), fault.Internal},
		{"two consequences", decisionFacts{}, recording(dispatching, approving), fault.Internal},
		{"a use without a dispatch", decisionFacts{approval: given(approved)}, recording(using), fault.Internal},
		{"a key without a dispatch", decisionFacts{}, recording(keyed), fault.Internal},
		{"not dispatched and yet applied", decisionFacts{}, recording(notBegun, func(r *RecordDecision) { r.NotDispatched.Outcome = event.OutcomeAborted }), fault.Internal},
	} {
		t.Run(c.name, func(t *testing.T) {
			drafts, recorded, err := decideRecord(c.when, c.given, DefaultTTL, moment)
			require.Equal(t, c.then, fault.CodeOf(err))
			require.Empty(t, drafts)
			require.Zero(t, recorded)
		})
	}
}

func TestTheEventsOfADecisionCarryItsFacts(t *testing.T) {
	drafts, recorded, err := decideRecord(recording(dispatching, using, keyed), decisionFacts{engine: 4, approval: given(approved)}, DefaultTTL, moment)
	require.NoError(t, err)
	require.Equal(t, testExecution, recorded.ExecutionID)

	claims := event.Context{Actor: "ana", App: "console", Tenant: "acme", Env: "prod", RequestID: testRequest, Operation: "UPDATE", Fingerprint: "abcdef"}
	received := claims
	received.Role, received.Host = "dev", "db1"
	require.Equal(t, received, drafts[0].Context, "role and host stand in the first event alone")
	require.Equal(t, &event.RequestReceived{SQLDigest: [32]byte{9}, SQLBytes: 18, SQLText: "UPDATE t SET a = $1", RequestDigest: [32]byte{1}, Principal: "CN=ana"}, payload(t, &drafts[0]))

	decided := claims
	decided.ApprovalID, decided.ExecutionID = testApproval, testExecution
	decided.Decision, decided.PolicyVersion, decided.ReasonCode, decided.Mode = "ALLOW", "core@1.0.0", "app_dml", "enforce"
	require.Equal(t, decided, drafts[1].Context)
	require.Equal(t, &event.DecisionRecorded{Enforced: true, RuleID: "app-dml", Layer: "policy", Matched: []string{"app-dml"}, PolicyHash: [32]byte{7}, Engine: 4, Run: "transaction"}, payload(t, &drafts[1]))

	sent := payload(t, &drafts[3]).(*event.ExecutionDispatched)
	require.Equal(t, uint64(77), sent.XID)
	require.Equal(t, &event.Idempotency{Key: "k", ScopeDigest: [32]byte{3}, RequestDigest: [32]byte{1}, ExpiresAt: moment.Add(24 * time.Hour).UnixNano()}, sent.Idempotency)
	require.Equal(t, testExecution, drafts[3].Context.ExecutionID)
	require.Equal(t, "core@1.0.0", drafts[3].Context.PolicyVersion)
}

func TestTheDispatchOfTheCallerIsNotChanged(t *testing.T) {
	r := recording(dispatching, keyed)
	_, _, err := decideRecord(r, decisionFacts{}, DefaultTTL, moment)
	require.NoError(t, err)
	require.Nil(t, r.Dispatch.Idempotency)
	require.Zero(t, r.Idempotency.ExpiresAt)
}

func TestAnApprovalRunsFromNowForTheRulesTimeOrTheDefault(t *testing.T) {
	for _, c := range []struct {
		name  string
		terms *event.ApprovalTerms
		ttl   time.Duration
		rows  *int64
	}{
		{"the rule's", &event.ApprovalTerms{TTLSeconds: 60, MaxRows: new(int64(5))}, time.Minute, new(int64(5))},
		{"the default", nil, DefaultTTL, nil},
		{"a rule that only bounds rows", &event.ApprovalTerms{MaxRows: new(int64(0))}, DefaultTTL, new(int64(0))},
	} {
		t.Run(c.name, func(t *testing.T) {
			drafts, recorded, err := decideRecord(recording(approving, func(r *RecordDecision) { r.Decision.Terms = c.terms }), decisionFacts{}, DefaultTTL, moment)
			require.NoError(t, err)
			require.Equal(t, moment.Add(c.ttl), recorded.ExpiresAt)
			require.Equal(t, recorded.ApprovalID, drafts[2].Context.ApprovalID)
			require.Equal(t, recorded.ApprovalID, drafts[1].Context.ApprovalID, "the decision names the approval it asks for")
			require.Equal(t, &event.ApprovalCreated{SQL: "UPDATE t SET a = 1", SQLDigest: [32]byte{9}, RequestDigest: [32]byte{1}, Role: "dev", Host: "db1",
				Classification: `{"class":"write"}`, ExpiresAt: moment.Add(c.ttl).UnixNano(), TTLSeconds: int(c.ttl / time.Second), RuleID: "app-dml",
				MaxRows: c.rows, Message: "m", Remedy: "r", Principal: "CN=ana"}, payload(t, &drafts[2]))
		})
	}
}

func TestAnExecutionWithoutAnIDGetsOne(t *testing.T) {
	_, recorded, err := decideRecord(recording(dispatching, func(r *RecordDecision) { r.ExecutionID = "" }), decisionFacts{}, DefaultTTL, moment)
	require.NoError(t, err)
	require.Regexp(t, `^exe_[0-9a-f-]{36}$`, recorded.ExecutionID)
}

func TestOnlyWhatNeedsALockTakesOne(t *testing.T) {
	require.Empty(t, recording(dispatching).aggregates())
	require.Empty(t, recording(blocked).aggregates())
	require.Empty(t, recording(approving).aggregates(), "nobody knows the new id yet")
	require.Empty(t, recording(notBegun, using).aggregates(), "nothing is used up")
	require.Len(t, recording(dispatching, using, keyed).aggregates(), 2)
	require.Equal(t, []string{"agent/1"}, recording(blocked, func(r *RecordDecision) { r.Keys = []string{"agent/1"} }).aggregates())
}

func TestAResultLeavesItsEvents(t *testing.T) {
	base := RecordResult{Request: &recording().Request, Decision: &recording().Decision, ExecutionID: testExecution, ApprovalID: testApproval}
	with := func(change func(*RecordResult)) *RecordResult { r := base; change(&r); return &r }
	success := &event.ExecutionSuccess{CommandTag: "UPDATE 1", RowCount: 1, Basis: "commit_acknowledged"}
	failure := &Failure{ExecutionFailure: event.ExecutionFailure{SQLState: "23505", Outcome: event.OutcomeAborted}, ReasonCode: "db_error", ErrorCode: "db_query_failed"}
	lost := &Unknown{ExecutionStateUnknown: event.ExecutionStateUnknown{Step: "W3", Cause: "timeout"}, ErrorCode: "db_query_timeout"}
	aborted := &event.ExecutionOutcomeResolved{Outcome: event.OutcomeAborted, Basis: "rollback_acknowledged"}
	fence := &event.ReadFenceViolation{SQLState: "25006"}
	for _, c := range []struct {
		name    string
		when    *RecordResult
		then    []event.Type
		refused fault.Code
	}{
		{"success", with(func(r *RecordResult) { r.Success = success }), []event.Type{event.TypeExecutionSuccess}, ""},
		{"failure", with(func(r *RecordResult) { r.Failure = failure }), []event.Type{event.TypeExecutionFailure}, ""},
		{"the fence held", with(func(r *RecordResult) { r.Failure, r.Violation = failure, fence }), []event.Type{event.TypeExecutionFailure, event.TypeReadFenceViolation}, ""},
		{"unknown", with(func(r *RecordResult) { r.Unknown = lost }), []event.Type{event.TypeExecutionStateUnknown}, ""},
		{"unknown, settled at once", with(func(r *RecordResult) { r.Unknown, r.Resolved = lost, aborted }), []event.Type{event.TypeExecutionStateUnknown, event.TypeExecutionOutcomeResolved}, ""},
		{"no result", &base, nil, fault.Internal},
		{"two results", with(func(r *RecordResult) { r.Success, r.Failure = success, failure }), nil, fault.Internal},
		{"a known result resolved", with(func(r *RecordResult) { r.Success, r.Resolved = success, aborted }), nil, fault.Internal},
		{"a violation that succeeded", with(func(r *RecordResult) { r.Success, r.Violation = success, fence }), nil, fault.Internal},
		{"no execution", with(func(r *RecordResult) { r.Success, r.ExecutionID = success, "" }), nil, fault.Internal},
	} {
		t.Run(c.name, func(t *testing.T) {
			drafts, err := decideResult(c.when, moment)
			require.Equal(t, c.refused, fault.CodeOf(err))
			require.Equal(t, c.then, types(drafts))
			for i := range drafts {
				require.Equal(t, testExecution, drafts[i].Context.ExecutionID)
				require.Equal(t, testApproval, drafts[i].Context.ApprovalID)
				require.Equal(t, "ana", drafts[i].Context.Actor)
			}
		})
	}
}
