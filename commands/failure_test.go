package commands

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
	"writegate/eventlog"
	"writegate/eventlog/event"
	"writegate/eventlog/frame/frametest"
	"writegate/projections"
)

func TestARunThatDiedLeavesUnknownOutcomesToTheNextStart(t *testing.T) {
	ctx := context.Background()
	w := begin(t, setup{})
	id := w.approvedApproval()
	approved, err := w.RecordDecision(ctx, retry(id))
	require.NoError(t, err)
	keyed, err := w.RecordDecision(ctx, withKey("k"))
	require.NoError(t, err)
	read, err := w.RecordDecision(ctx, recording(dispatching, func(r *RecordDecision) {
		r.ExecutionID, r.Dispatch.Path, r.Dispatch.XID = "", event.PathRead, 0
	}))
	require.NoError(t, err)
	finished := recording(dispatching)
	done, err := w.RecordDecision(ctx, finished)
	require.NoError(t, err)
	_, err = w.RecordResult(ctx, succeeded(finished, done.ExecutionID))
	require.NoError(t, err)
	disk := w.disk.Crash(0, 1)

	for run := range 2 { // the second start finds nothing left to settle
		next := begin(t, setup{disk: disk})
		require.Equal(t, 3, next.count(event.TypeExecutionStateUnknown), "run %d", run)
		state := func(id string) (state, outcome string) {
			require.NoError(t, next.look(context.Background(), func(v *projections.View) error {
				x, found, err := v.Execution(id)
				require.True(t, found)
				state, outcome = x.State, x.Outcome
				return err
			}))
			return state, outcome
		}
		for _, unknown := range []string{approved.ExecutionID, keyed.ExecutionID} {
			got, _ := state(unknown)
			require.Equal(t, projections.ExecutionUnknown, got)
		}
		got, outcome := state(read.ExecutionID)
		require.Equal(t, projections.ExecutionFailure, got)
		require.Equal(t, event.OutcomeAborted, outcome, "a read changed nothing")
		got, _ = state(done.ExecutionID)
		require.Equal(t, projections.ExecutionSuccess, got)

		_, _, err = next.LookUpApproval(context.Background(), id, [32]byte{1}, "")
		require.Equal(t, fault.ApprovalOutcomeUnknown, fault.CodeOf(err))
		_, kept, err := next.BeginKey(context.Background(), sha256.Sum256([]byte("k")), [32]byte{1}, moment)
		require.NoError(t, err)
		require.Equal(t, 504, kept.Status)
		var body map[string]any
		require.NoError(t, json.Unmarshal([]byte(kept.Body), &body))
		require.Equal(t, "unknown", body["execution_state"])
		require.Equal(t, keyed.ExecutionID, body["execution_id"])
		next.check()
		next.end()
	}
}

func TestAFailedSyncMeansUnknownAndThenNothingIsWritten(t *testing.T) {
	ctx := context.Background()
	disk := newDisk(t)
	var broken atomic.Bool
	fs := frametest.Inject(disk, func(op frametest.Op) error {
		if broken.Load() && op.Kind == frametest.Datasync {
			return syscall.EIO
		}
		return nil
	})
	w := begin(t, setup{disk: disk, fs: fs})
	id := w.approvedApproval()
	broken.Store(true)

	_, err := w.RecordDecision(ctx, retry(id))
	require.Equal(t, fault.AuditUnavailable, fault.CodeOf(err))
	require.Equal(t, "unknown", fault.Of(err).Details["outcome"])
	require.Error(t, <-w.log.Fatal())
	_, err = w.RecordDecision(ctx, recording(dispatching))
	require.Equal(t, fault.AuditUnavailable, fault.CodeOf(err))
	require.Equal(t, "not_written", fault.Of(err).Details["outcome"])
	_, err = w.ResolveApproval(ctx, ResolveApproval{ID: w.approvalOf(t), Decision: "approve"})
	require.Error(t, err)
}

// approvalOf finds any approval; a poisoned log still answers reads.
func (w *world) approvalOf(t *testing.T) (id string) {
	t.Helper()
	require.NoError(t, w.look(context.Background(), func(v *projections.View) error {
		list, _, err := v.Approvals(projections.ApprovalFilter{}, projections.Page{})
		id = list[0].ID
		return err
	}))
	return id
}

func TestAFullVolumeRefusesDecisionsAndStillTakesResults(t *testing.T) {
	ctx := context.Background()
	disk := newDisk(t)
	var full atomic.Bool
	fs := frametest.Inject(disk, func(op frametest.Op) error {
		// Only the zeros written ahead are this long and lengthen the file.
		if full.Load() && op.Name == "/data/audit.wal" && op.Kind == frametest.Pwrite && op.Len >= 16<<10 {
			return syscall.ENOSPC
		}
		return nil
	})
	w := begin(t, setup{disk: disk, fs: fs})
	running := recording(dispatching)
	recorded, err := w.RecordDecision(ctx, running)
	require.NoError(t, err)
	full.Store(true)
	for i := 0; err == nil; i++ {
		require.Less(t, i, 1000, "the volume is full, so it has to end")
		_, err = w.RecordDecision(ctx, recording(blocked))
	}
	require.Equal(t, fault.AuditUnavailable, fault.CodeOf(err))
	require.Equal(t, map[string]any{"outcome": "not_written", "reason": "storage_full"}, fault.Of(err).Details)
	_, err = w.RecordDecision(ctx, recording(dispatching))
	require.Equal(t, fault.AuditUnavailable, fault.CodeOf(err), "nothing more is executed")

	require.NoError(t, w.RecordHealthFail(ctx, "storage", "the volume is full", "storage_full"))
	_, err = w.RecordResult(ctx, succeeded(running, recorded.ExecutionID))
	require.NoError(t, err, "what ran is recorded")
	require.NoError(t, w.Shutdown(ctx, "signal", true))
	w.check()
}

func TestARequestTooLargeForARecordIsRefusedAndLeavesNothing(t *testing.T) {
	w := begin(t, setup{})
	before := w.log.Head().Seq
	_, err := w.RecordDecision(context.Background(), recording(dispatching, func(r *RecordDecision) { r.Request.SQLText = strings.Repeat("x", 2<<20) }))
	require.Equal(t, fault.OversizedRequest, fault.CodeOf(err))
	require.Equal(t, before, w.log.Head().Seq)
	_, err = w.RecordDecision(context.Background(), recording(dispatching))
	require.NoError(t, err)
	w.check()
}

func TestCorruptionIsRecordedOnceAndThenEveryCommandIsRefusedButResults(t *testing.T) {
	ctx := context.Background()
	w := begin(t, setup{})
	running := recording(dispatching)
	recorded, err := w.RecordDecision(ctx, running)
	require.NoError(t, err)
	for range 3 {
		require.NoError(t, w.RecordCorruption(ctx, "linkage", "event 2 does not link to event 1", 2))
	}
	require.Equal(t, 1, w.count(event.TypeAuditCorruptionDetected))
	_, err = w.RecordDecision(ctx, recording(blocked))
	require.Equal(t, fault.AuditCorruptionDetected, fault.CodeOf(err))
	_, err = w.PurgeApprovals(ctx, "ops")
	require.NoError(t, err, "there is nothing to purge, so nothing is written")
	_, err = w.RecordResult(ctx, succeeded(running, recorded.ExecutionID))
	require.NoError(t, err, "what ran is recorded all the same")
	w.check()
}

func TestErrorsOfTheLogBecomeFaultsThatSayWhatHappened(t *testing.T) {
	for _, c := range []struct {
		err     error
		code    fault.Code
		outcome any
	}{
		{eventlog.ErrOutcomeUnknown, fault.AuditUnavailable, "unknown"},
		{eventlog.ErrNotWritten, fault.AuditUnavailable, "not_written"},
		{eventlog.ErrStorageFull, fault.AuditUnavailable, "not_written"},
		{eventlog.ErrClosed, fault.AuditUnavailable, "not_written"},
		{eventlog.ErrTornTail, fault.AuditUnavailable, "not_written"},
		{eventlog.ErrUnreadable, fault.AuditUnavailable, "not_written"},
		{eventlog.ErrTooLarge, fault.OversizedRequest, nil},
		{eventlog.ErrCorrupt, fault.AuditCorruptionDetected, nil},
		{errors.New("something else"), fault.AuditUnavailable, "not_written"},
	} {
		t.Run(c.err.Error(), func(t *testing.T) {
			f := fault.Of(refusal(fmt.Errorf("append: %w", c.err)))
			require.Equal(t, c.code, f.Code)
			require.Equal(t, c.outcome, f.Details["outcome"])
			require.ErrorIs(t, f, c.err)
			require.NotContains(t, f.Message, c.err.Error())
		})
	}
}

func TestAClosedLogRefusesCommands(t *testing.T) {
	w := begin(t, setup{})
	require.NoError(t, w.log.Close(context.Background()))
	_, err := w.RecordDecision(context.Background(), recording(dispatching))
	require.Equal(t, fault.AuditUnavailable, fault.CodeOf(err))
}

// TestAPowerCutAtEachStepLosesNoAnswerAndInventsNone runs the whole life of an
// approval and a key, cuts the power at one step, and asks the next run.
func TestAPowerCutAtEachStepLosesNoAnswerAndInventsNone(t *testing.T) {
	steps := []string{"commands.decide", "commands.append", "append.encoded", "append.before_write", "append.after_write", "append.after_sync",
		"append.before_wake", "commands.appended"}
	for _, step := range steps {
		for _, keep := range []int{0, 50, 100} {
			t.Run(fmt.Sprintf("%s, %d%% of what was not synced", step, keep), func(t *testing.T) { powerCuts(t, step, keep) })
		}
	}
}

// powerCuts takes a crash clone each time the step is reached in a small story,
// together with what the story knew by then, and judges each clone.
func powerCuts(t *testing.T, step string, keep int) {
	type cut struct {
		disk *frametest.Mem
		knew story
	}
	var mu sync.Mutex
	var cuts []cut
	var told story
	seed := rand.New(rand.NewPCG(7, uint64(keep)))
	disk := newDisk(t)
	w := begin(t, setup{step: func(name string) {
		mu.Lock()
		defer mu.Unlock()
		if name == step {
			cuts = append(cuts, cut{disk.Crash(keep, seed.Uint64()), told})
		}
	}, disk: disk})
	note := func(f func(*story)) {
		mu.Lock()
		defer mu.Unlock()
		f(&told)
	}
	tell(t, w, note)
	w.end()
	require.NotEmpty(t, cuts, "the step is never reached")
	for _, c := range cuts {
		c.knew.holds(t, begin(t, setup{disk: c.disk}))
	}
}

// story is what the clients of a run were told.
type story struct {
	approval             string
	resolved, dispatched bool
	finished             bool
}

func tell(t *testing.T, w *world, note func(func(*story))) {
	ctx := context.Background()
	id := w.newApproval()
	note(func(s *story) { s.approval = id })
	_, err := w.ResolveApproval(ctx, ResolveApproval{ID: id, Decision: "approve", By: "ops"})
	require.NoError(t, err)
	note(func(s *story) { s.resolved = true })
	r := retry(id)
	r.Idempotency = withKey("k").Idempotency
	recorded, err := w.RecordDecision(ctx, r)
	require.NoError(t, err)
	note(func(s *story) { s.dispatched = true })
	_, err = w.RecordResult(ctx, succeeded(r, recorded.ExecutionID))
	require.NoError(t, err)
	note(func(s *story) { s.finished = true })
}

// holds asks a run after the crash: what was answered is so, and the statement
// can run under its approval and key only if it was never dispatched.
func (s *story) holds(t *testing.T, w *world) {
	t.Helper()
	require.NoError(t, w.log.Serving(), "an honest crash is no corruption: %+v", w.found.Report.Faults)
	dispatched := w.count(event.TypeExecutionDispatched)
	require.Equal(t, dispatched, w.count(event.TypeApprovalUsed), "one append: both or none")
	require.LessOrEqual(t, dispatched, 1)
	require.True(t, !s.dispatched || dispatched == 1, "an answered dispatch is lost")
	require.Equal(t, dispatched, w.count(event.TypeExecutionSuccess)+w.count(event.TypeExecutionStateUnknown), "every dispatch has a result or is unknown")
	require.True(t, !s.finished || w.count(event.TypeExecutionSuccess) == 1)
	if s.approval != "" {
		_, _, err := w.LookUpApproval(context.Background(), s.approval, [32]byte{1}, "")
		switch {
		case dispatched == 1:
			require.Contains(t, []fault.Code{fault.ApprovalAlreadyUsed, fault.ApprovalOutcomeUnknown}, fault.CodeOf(err))
		default:
			require.NoError(t, err)
		}
		require.True(t, !s.resolved || w.count(event.TypeApprovalResolved) == 1)
	}
	lease, kept, err := w.BeginKey(context.Background(), sha256.Sum256([]byte("k")), [32]byte{1}, moment)
	require.NoError(t, err)
	lease.Release()
	require.Equal(t, dispatched == 1, kept != nil)
	w.check()
	w.end()
}

func TestCommandsDoNotRunAheadOfTheProjections(t *testing.T) {
	ctx := context.Background()
	w := begin(t, setup{})
	stuck := event.New(moment, event.Context{Actor: "a"}, &event.HealthFail{})
	stuck.TypeVersion = 9 // no projector knows it, so nothing behind it is applied
	drafts := []event.Draft{stuck}
	for range behind {
		drafts = append(drafts, event.New(moment, event.Context{Actor: "a"}, &event.HealthFail{}))
	}
	_, err := w.log.Append(ctx, eventlog.Group{Drafts: drafts})
	require.NoError(t, err)
	head := w.log.Head()
	_, err = w.RecordDecision(ctx, recording(dispatching))
	require.Equal(t, fault.AuditUnavailable, fault.CodeOf(err))
	require.Equal(t, "not_written", fault.Of(err).Details["outcome"])
	require.Equal(t, head, w.log.Head())

	// What was answered or done already is evidence all the same.
	_, err = w.RecordBlock(ctx, &RecordBlock{Ahead: []Answered{{Request: Request{RequestID: "req_set", WireSession: "wir_1"}, Decision: Decision{Operation: "SET"}}}})
	require.NoError(t, err)
	require.NoError(t, w.RecordIncident(ctx, Incident{Type: event.TypeOperatorAuthFailed, Client: "192.0.2.1", Path: "/x"}))
	require.NoError(t, w.RecordCancelReceived(ctx, &CancelRequest{Client: "192.0.2.1"}))
	require.NoError(t, w.CloseSessions(ctx, []ClosedSession{{SessionID: "s"}}))
	require.Equal(t, head.Seq+5, w.log.Head().Seq)
}
