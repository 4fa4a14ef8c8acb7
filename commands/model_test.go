package commands

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"writegate/commands/fault"
	"writegate/eventlog/event"
	"writegate/fixtures/manualclock"
)

// modelled is an approval as a person would keep it on paper.
type modelled struct {
	id         string
	expires    time.Time
	resolution string
	use        use
	open       bool // dispatched, and no result yet
	purged     bool
}

// resolves and retries say what must happen; "" is that it works.
func (m *modelled) resolves(now time.Time) fault.Code {
	switch {
	case m.purged:
		return fault.ApprovalNotFound
	case m.resolution != "":
		return fault.ApprovalAlreadyResolved
	case !now.Before(m.expires):
		return fault.ApprovalExpired
	}
	return ""
}

func (m *modelled) retries(now time.Time) fault.Code {
	switch {
	case m.purged:
		return fault.ApprovalNotFound
	case m.resolution == event.ResolutionReject:
		return fault.ApprovalRejected
	case !now.Before(m.expires):
		return fault.ApprovalExpired
	case m.use == unknown:
		return fault.ApprovalOutcomeUnknown
	case m.use == used:
		return fault.ApprovalAlreadyUsed
	case m.resolution == "":
		return fault.Internal // pending: the caller did not look
	}
	return ""
}

// history is one random life of many approvals, with restarts and crashes.
type history struct {
	*rapid.T
	outer testing.TB
	w     *world
	time  *manualclock.Clock
	list  []*modelled
}

// TestApprovalsBehaveAsOnPaper drives the commands at random beside a model.
func TestApprovalsBehaveAsOnPaper(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		h := &history{T: rt, outer: t, time: manualclock.At(moment)}
		h.w = begin(t, setup{now: h.time.Now})
		defer func() { h.w.end() }()
		for range rapid.IntRange(5, 40).Draw(rt, "steps") {
			rapid.SampledFrom([]func(){h.ask, h.ask, h.resolve, h.resolve, h.retry, h.retry, h.retry, h.pass, h.expire, h.purge, h.restart}).Draw(rt, "step")()
		}
		h.w.check()
	})
}

func (h *history) ask() {
	recorded, err := h.w.RecordDecision(context.Background(), ask())
	require.NoError(h, err)
	h.list = append(h.list, &modelled{id: recorded.ApprovalID, expires: recorded.ExpiresAt})
}

// some picks an approval, or nil when there is none yet.
func (h *history) some() *modelled {
	if len(h.list) == 0 {
		return nil
	}
	return rapid.SampledFrom(h.list).Draw(h.T, "approval")
}

func (h *history) resolve() {
	m := h.some()
	if m == nil {
		return
	}
	decision := rapid.SampledFrom([]string{event.ResolutionApprove, event.ResolutionApprove, event.ResolutionReject}).Draw(h.T, "resolution")
	want := m.resolves(h.time.Now())
	_, err := h.w.ResolveApproval(context.Background(), ResolveApproval{ID: m.id, Decision: decision, By: "ops"})
	require.Equal(h, want, fault.CodeOf(err))
	if want == "" {
		m.resolution = decision
	}
}

func (h *history) retry() {
	m := h.some()
	if m == nil {
		return
	}
	r := retry(m.id)
	want := m.retries(h.time.Now())
	recorded, err := h.w.RecordDecision(context.Background(), r)
	require.Equal(h, want, fault.CodeOf(err))
	if want != "" {
		return
	}
	m.use, m.open = used, true
	result := &RecordResult{Request: &r.Request, Decision: &r.Decision, ExecutionID: recorded.ExecutionID, ApprovalID: m.id}
	unanswered := &Unknown{ExecutionStateUnknown: event.ExecutionStateUnknown{Step: "W5", Cause: "timeout"}}
	switch rapid.SampledFrom([]string{"success", "failure", "unknown", "aborted", "none"}).Draw(h.T, "result") {
	case "success":
		result.Success = &event.ExecutionSuccess{CommandTag: "UPDATE 1", Basis: "commit_acknowledged"}
	case "failure":
		result.Failure = &Failure{ExecutionFailure: event.ExecutionFailure{Outcome: event.OutcomeAborted}, ReasonCode: "db_error"}
	case "unknown":
		result.Unknown, m.use = unanswered, unknown
	case "aborted":
		result.Unknown, m.use = unanswered, unused
		result.Resolved = &event.ExecutionOutcomeResolved{Outcome: event.OutcomeAborted, Basis: "commit_never_sent"}
	default:
		return // the result is still on its way
	}
	_, err = h.w.RecordResult(context.Background(), result)
	require.NoError(h, err)
	m.open = false
}

func (h *history) pass() {
	h.time.Advance(time.Duration(rapid.IntRange(1, 45).Draw(h.T, "seconds")) * time.Second)
}

func (h *history) expire() {
	_, next, err := h.w.ExpireDue(context.Background())
	require.NoError(h, err)
	var want time.Time
	for _, m := range h.list {
		if m.resolution == "" && h.time.Now().Before(m.expires) && (want.IsZero() || m.expires.Before(want)) {
			want = m.expires
		}
	}
	require.True(h, want.Equal(next), "next is %v, not %v", next, want)
}

func (h *history) purge() {
	want := 0
	for _, m := range h.list {
		if !m.purged && m.resolution == "" && !h.time.Now().Before(m.expires) {
			m.purged, want = true, want+1
		}
	}
	n, err := h.w.PurgeApprovals(context.Background(), "ops")
	require.NoError(h, err)
	require.Equal(h, want, n)
}

// restart ends the run, cleanly or by a power cut; what had no result by then
// is unknown in the next.
func (h *history) restart() {
	disk := h.w.disk
	if rapid.Bool().Draw(h.T, "power cut") {
		disk = disk.Crash(rapid.SampledFrom([]int{0, 50, 100}).Draw(h.T, "kept"), rapid.Uint64().Draw(h.T, "seed"))
	} else {
		require.NoError(h, h.w.Shutdown(context.Background(), "test", true))
	}
	h.w.end()
	h.w = begin(h.outer, setup{disk: disk, now: h.time.Now})
	for i, m := range h.list {
		if m.open {
			m.use, m.open = unknown, false
		}
		_, _, err := h.w.LookUpApproval(context.Background(), m.id, [32]byte{1}, "")
		want := m.retries(h.time.Now())
		if want == fault.Internal {
			want = "" // pending is no error to who looks
		}
		require.Equal(h, want, fault.CodeOf(err), fmt.Sprint("approval ", i))
	}
}
