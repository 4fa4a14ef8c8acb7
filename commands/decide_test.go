package commands

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
	"writegate/eventlog/event"
)

// moment is the now of every table.
var moment = time.Date(2026, 3, 1, 12, 0, 0, 5, time.UTC)

const (
	testApproval  = "apr_018f0000-0000-7000-8000-000000000001"
	testExecution = "exe_018f0000-0000-7000-8000-000000000002"
	testRequest   = "req_018f0000-0000-7000-8000-000000000003"
)

// given makes an approval that was created a minute ago for the usual request;
// change says how it differs.
func given(change ...func(*approvalState)) *approvalState {
	a := &approvalState{id: testApproval, requestDigest: [32]byte{1}, expiresAt: moment.Add(4 * time.Minute), claims: event.Context{ApprovalID: testApproval, Actor: "ana"}}
	for _, c := range change {
		c(a)
	}
	return a
}

func inBulk(a *approvalState)    { a.profile = "bulk" }
func approved(a *approvalState)  { resolvedAs(a, event.ResolutionApprove) }
func rejected(a *approvalState)  { resolvedAs(a, event.ResolutionReject) }
func elapsed(a *approvalState)   { a.expiresAt = moment }
func timerRan(a *approvalState)  { a.expired, a.expiresAt = true, moment.Add(-time.Second) }
func taken(a *approvalState)     { a.use = used }
func uncertain(a *approvalState) { a.use = unknown }

func resolvedAs(a *approvalState, resolution string) {
	a.resolution, a.resolvedBy, a.note, a.resolvedAt = resolution, "operator", "seen", moment.Add(-time.Second)
}

func TestAnApprovalLetsItsOwnRequestRunOnceInItsTime(t *testing.T) {
	other := [32]byte{2}
	for _, c := range []struct {
		name    string
		given   *approvalState
		digest  [32]byte
		profile string
		pending bool
		refused fault.Code
	}{
		{name: "unknown", refused: fault.ApprovalNotFound},
		{name: "pending", given: given(), pending: true},
		{name: "pending, another request", given: given(), digest: other, refused: fault.ApprovalMismatch},
		{name: "pending, its last nanosecond", given: given(func(a *approvalState) { a.expiresAt = moment.Add(1) }), pending: true},
		{name: "pending, elapsed", given: given(elapsed), refused: fault.ApprovalExpired},
		{name: "expired by the timer", given: given(timerRan), refused: fault.ApprovalExpired},
		{name: "approved", given: given(approved)},
		{name: "approved, another request", given: given(approved), digest: other, refused: fault.ApprovalMismatch},
		{name: "approved, elapsed", given: given(approved, elapsed), refused: fault.ApprovalExpired},
		{name: "approved and used", given: given(approved, taken), refused: fault.ApprovalAlreadyUsed},
		{name: "approved, outcome unknown", given: given(approved, uncertain), refused: fault.ApprovalOutcomeUnknown},
		{name: "rejected", given: given(rejected), refused: fault.ApprovalRejected},
		{name: "rejected comes before elapsed", given: given(rejected, elapsed), refused: fault.ApprovalRejected},
		{name: "rejected comes before mismatch", given: given(rejected), digest: other, refused: fault.ApprovalRejected},
		{name: "elapsed comes before mismatch", given: given(approved, elapsed), digest: other, refused: fault.ApprovalExpired},
		{name: "approved, with more time", given: given(approved), profile: "bulk", refused: fault.ApprovalMismatch},
		{name: "pending, with more time", given: given(), profile: "bulk", refused: fault.ApprovalMismatch},
		{name: "approved, answered earlier", given: given(approved), profile: "latency"},
		{name: "approved for more time", given: given(approved, inBulk), profile: "bulk"},
		{name: "approved for more time than is asked", given: given(approved, inBulk), profile: "default"},
		{name: "mismatch comes before used", given: given(approved, taken), digest: other, refused: fault.ApprovalMismatch},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.digest == ([32]byte{}) {
				c.digest = [32]byte{1}
			}
			pending, err := decideUse(testApproval, c.given, c.digest, c.profile, moment)
			require.Equal(t, c.refused, fault.CodeOf(err))
			require.Equal(t, c.pending, pending)
		})
	}
}

func TestAnApprovalIsResolvedOnceAndInTime(t *testing.T) {
	for _, c := range []struct {
		name    string
		given   *approvalState
		refused fault.Code
	}{
		{name: "unknown", refused: fault.ApprovalNotFound},
		{name: "pending", given: given()},
		{name: "elapsed before the timer saw it", given: given(elapsed), refused: fault.ApprovalExpired},
		{name: "expired", given: given(timerRan), refused: fault.ApprovalExpired},
		{name: "approved", given: given(approved), refused: fault.ApprovalAlreadyResolved},
		{name: "rejected", given: given(rejected), refused: fault.ApprovalAlreadyResolved},
		{name: "approved and elapsed since", given: given(approved, elapsed), refused: fault.ApprovalAlreadyResolved},
	} {
		for _, decision := range []string{event.ResolutionApprove, event.ResolutionReject} {
			t.Run(c.name+", "+decision, func(t *testing.T) {
				drafts, err := decideResolve(ResolveApproval{ID: testApproval, Decision: decision, Note: "n", By: "ops"}, c.given, moment)
				require.Equal(t, c.refused, fault.CodeOf(err))
				if err != nil {
					require.Empty(t, drafts)
					return
				}
				require.Equal(t, []event.Type{event.TypeApprovalResolved}, types(drafts))
				require.Equal(t, &event.ApprovalResolved{Resolution: decision, Note: "n", By: "ops"}, payload(t, &drafts[0]))
				require.Equal(t, testApproval, drafts[0].Context.ApprovalID)
				require.Equal(t, "ana", drafts[0].Context.Actor, "the claims of the request are found in every event of its approval")
			})
		}
	}
}

func TestAStandingResolutionIsTold(t *testing.T) {
	_, err := decideResolve(ResolveApproval{ID: testApproval, Decision: event.ResolutionReject}, given(approved), moment)
	require.Equal(t, map[string]any{"approval_id": testApproval, "resolution": "approve", "resolved_by": "operator",
		"resolved_at": "2026-03-01T11:59:59.000000005Z", "note": "seen"}, fault.Of(err).Details)
}

func TestExpiryWritesWhatPassedItsTimeUnresolvedAndNothingTwice(t *testing.T) {
	states := []*approvalState{nil, given(), given(elapsed), given(timerRan), given(approved, elapsed), given(rejected, elapsed)}
	drafts := decideExpire(states, moment)
	require.Equal(t, []event.Type{event.TypeApprovalExpired}, types(drafts))
	require.Equal(t, &event.ApprovalExpired{ExpiresAt: moment.UnixNano()}, payload(t, &drafts[0]))
}

func TestPurgeTakesExpiredApprovalsAndNoOthers(t *testing.T) {
	named := func(id string, change ...func(*approvalState)) *approvalState {
		a := given(change...)
		a.id, a.claims.ApprovalID = id, id
		return a
	}
	states := []*approvalState{nil, named("apr_pending"), named("apr_elapsed", elapsed), named("apr_expired", timerRan),
		named("apr_approved", approved, elapsed), named("apr_rejected", rejected, elapsed)}

	drafts, n := decidePurge(states, "ops", moment)
	require.Equal(t, 2, n)
	require.Equal(t, []event.Type{event.TypeApprovalExpired, event.TypeApprovalsPurged}, types(drafts), "what the timer has not seen expires first")
	require.Equal(t, "apr_elapsed", drafts[0].Context.ApprovalID)
	require.Equal(t, &event.ApprovalsPurged{ApprovalIDs: []string{"apr_elapsed", "apr_expired"}, By: "ops"}, payload(t, &drafts[1]))

	drafts, n = decidePurge(states[:2], "ops", moment)
	require.Zero(t, n)
	require.Empty(t, drafts)
}

func TestAKeyBelongsToItsFirstRequest(t *testing.T) {
	mine, other := [32]byte{1}, [32]byte{2}
	require.NoError(t, decideKey(nil, mine))
	require.Equal(t, fault.IdempotencyInProgress, fault.CodeOf(decideKey(&keyState{requestDigest: mine}, mine)))
	require.Equal(t, fault.IdempotencyConflict, fault.CodeOf(decideKey(&keyState{requestDigest: other}, mine)))
}

// types lists the types of drafts, and checks on the way that each is whole.
func types(drafts []event.Draft) []event.Type {
	var list []event.Type
	for i := range drafts {
		if _, err := event.Encode(nil, &drafts[i]); err != nil {
			panic(err) // a draft that the log would refuse
		}
		list = append(list, drafts[i].Type)
	}
	return list
}

func payload(t *testing.T, d *event.Draft) event.Typed {
	t.Helper()
	p, err := event.Open(d)
	require.NoError(t, err)
	return p
}
