package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/eventlog"
	"writegate/eventlog/event"
	"writegate/eventlog/frame"
	"writegate/projections"
	"writegate/projections/projectionstest"
)

// judgeDead verifies the log of a gate that is gone. A crash may leave a torn
// tail, or between two segments no active one; anything else is a fault.
func (d gateDir) judgeDead(t testing.TB) frame.Report {
	t.Helper()
	report, err := eventlog.Verify(t.Context(), eventlog.Options{Path: d.file("audit.wal")})
	require.NoError(t, err)
	for _, f := range report.Faults {
		require.Contains(t, []frame.Kind{frame.TornTail, frame.IncompleteBatch, frame.MissingLog}, f.Kind, "a crash made %+v", report.Faults)
	}
	require.NotEqual(t, frame.Corruption, report.Status)
	return report
}

// deadEvents reads the log as it lies, without opening it.
func (d gateDir) deadEvents(t testing.TB) []event.Envelope {
	t.Helper()
	report := d.judgeDead(t)
	set, err := frame.Discover(t.Context(), frame.OS{}, d.file("audit.wal"))
	require.NoError(t, err)
	defer set.Close()
	var all []event.Envelope
	for e, err := range eventlog.Vouched(t.Context(), &set, &report, 1) {
		require.NoError(t, err)
		all = append(all, e)
	}
	return all
}

// tear takes some of the last batch away again, from a random place on. The
// gate must have died before that batch was synced: then a power cut may do so.
func (d gateDir) tear(t testing.TB) {
	t.Helper()
	end := d.judgeDead(t).End
	require.Less(t, end.BatchOff, end.Offset, "there is no batch to tear")
	f, err := os.OpenFile(d.file("audit.wal"), os.O_RDWR, 0)
	require.NoError(t, err)
	defer f.Close()
	from := end.BatchOff + 1 + rand.Int64N(end.Offset-end.BatchOff-9) // a byte of the first frame is left, and the last 8 are gone
	_, err = f.WriteAt(make([]byte, end.Offset-from), from)
	require.NoError(t, err)
}

// compareDead folds the log of a dead gate onto what its projections hold, and
// anew, in a copy: both give the same.
func (d gateDir) compareDead(t testing.TB) {
	t.Helper()
	c := d.copyTo(t, filepath.Join(t.TempDir(), "copy"))
	log := c.openLog(t)
	store, err := projections.Open(projections.Options{Dir: c.file("approvals.db")})
	require.NoError(t, err)
	require.NoError(t, store.Connect(t.Context(), log))
	projectionstest.RebuildAndCompare(t, log, store)
	require.NoError(t, store.Close())
	require.NoError(t, log.Close(context.Background()))
	require.NoError(t, os.RemoveAll(c.path))
}

// A run is what the log says of one execution.
type run struct {
	request, approval string
	path              string
	xid               uint32 // as a row's xmin shows it
	result            event.Type
	cause             string // of an unknown
	reason            string // of a failure
	sql               [32]byte
}

// A story is what a log tells, read from its first event to its last.
type story struct {
	t         testing.TB
	events    []event.Envelope
	requests  map[string]bool   // that reached a decision or were refused
	decided   map[string]uint64 // request -> seq of its decision
	runs      map[string]*run   // by execution id
	byXID     map[uint32][]*run
	dispatch  map[string]bool   // requests that were dispatched
	created   map[string]bool   // approvals
	resolved  map[string]string // approval -> resolution
	expired   map[string]bool
	activated []string // policy versions, in order
	used      map[string]bool
	keys      map[[32]byte]bool
	open      map[string]bool // executions of this run of the gate without a result
	abandoned map[string]bool // those of earlier runs
}

func readStory(t testing.TB, events []event.Envelope) *story {
	t.Helper()
	s := &story{
		t: t, events: events, requests: map[string]bool{}, decided: map[string]uint64{}, runs: map[string]*run{}, byXID: map[uint32][]*run{},
		dispatch: map[string]bool{}, created: map[string]bool{}, resolved: map[string]string{}, expired: map[string]bool{}, used: map[string]bool{},
		keys: map[[32]byte]bool{}, open: map[string]bool{}, abandoned: map[string]bool{},
	}
	for i := range events {
		require.EqualValues(t, i+1, events[i].Seq)
		payload, err := event.Open(&events[i].Draft)
		require.NoError(t, err)
		s.tell(&events[i], payload)
	}
	return s
}

// tell reads one event and holds it against those before it.
func (s *story) tell(e *event.Envelope, payload event.Typed) {
	c := &e.Context
	at := fmt.Sprintf("event %d, %s", e.Seq, e.Type)
	s.requests[c.RequestID] = true
	switch p := payload.(type) {
	case *event.Startup:
		for id := range s.open {
			s.abandoned[id] = true
		}
		clear(s.open)
	case *event.DecisionRecorded:
		require.NotContains(s.t, s.decided, c.RequestID, at)
		s.decided[c.RequestID] = e.Seq
		require.Empty(s.t, s.abandoned, "%s: executions of an earlier run have no result yet", at)
	case *event.ApprovalCreated:
		s.created[c.ApprovalID] = true
	case *event.ApprovalResolved:
		require.True(s.t, s.created[c.ApprovalID], at)
		require.NotContains(s.t, s.resolved, c.ApprovalID, "%s: it was resolved before", at)
		s.resolved[c.ApprovalID] = p.Resolution
	case *event.PolicyActivated:
		s.activated = append(s.activated, p.PolicyVersion)
	case *event.ApprovalExpired:
		require.True(s.t, s.created[c.ApprovalID], at)
		require.NotContains(s.t, s.resolved, c.ApprovalID, at)
		require.False(s.t, s.expired[c.ApprovalID], "%s: it expired before", at)
		s.expired[c.ApprovalID] = true
	case *event.ApprovalUsed:
		require.Equal(s.t, "approve", s.resolved[c.ApprovalID], at)
		require.False(s.t, s.used[c.ApprovalID], "%s: it was used before", at)
		s.used[c.ApprovalID] = true
	case *event.ExecutionDispatched:
		s.tellDispatch(e, p, at)
	case *event.ExecutionSuccess:
		s.tellResult(e, "", at)
	case *event.ExecutionFailure:
		s.tellResult(e, "", at)
	case *event.ExecutionStateUnknown:
		s.tellResult(e, p.Cause, at)
	}
}

// tellDispatch: a statement is dispatched after its own decision, once, and once
// under its key.
func (s *story) tellDispatch(e *event.Envelope, p *event.ExecutionDispatched, at string) {
	c := &e.Context
	decision := s.decided[c.RequestID]
	require.Contains(s.t, []uint64{1, 2}, e.Seq-decision, "%s: its decision is event %d", at, decision)
	require.Equal(s.t, "ALLOW", s.events[decision-1].Context.Decision, at)
	require.False(s.t, s.dispatch[c.RequestID], "%s: the request was dispatched before", at)
	require.NotContains(s.t, s.runs, c.ExecutionID, at)
	s.dispatch[c.RequestID], s.open[c.ExecutionID] = true, true
	if p.Idempotency != nil {
		require.False(s.t, s.keys[p.Idempotency.ScopeDigest], "%s: its key was dispatched before", at)
		s.keys[p.Idempotency.ScopeDigest] = true
	}
	if c.ApprovalID != "" {
		require.Equal(s.t, event.TypeApprovalUsed, s.events[e.Seq-2].Type, at)
	}
	r := &run{request: c.RequestID, approval: c.ApprovalID, path: p.Path, xid: uint32(p.XID), sql: p.SQLSHA256}
	s.runs[c.ExecutionID] = r
	if p.Path == event.PathTx {
		require.NotZero(s.t, p.XID, at)
		s.byXID[r.xid] = append(s.byXID[r.xid], r)
	}
}

// tellResult: each execution has one result, and only a run that was dispatched
// by an earlier gate is given up as unknown.
func (s *story) tellResult(e *event.Envelope, cause, at string) {
	id := e.Context.ExecutionID
	r := s.runs[id]
	require.NotNil(s.t, r, "%s: nothing was dispatched", at)
	require.Empty(s.t, r.result, "%s: it has a result", at)
	require.Equal(s.t, s.abandoned[id], cause == "gate_stopped", at)
	r.result, r.cause, r.reason = e.Type, cause, e.Context.ReasonCode
	delete(s.open, id)
	delete(s.abandoned, id)
}

// rows are the rows of all tables, as "table value xmin".
func (d gateDir) rows(t testing.TB) [][3]string {
	t.Helper()
	all := d.value(t, `SELECT string_agg(concat_ws(' ', o, v, x), ',') FROM (
		SELECT 'ledger' AS o, v, xmin::text AS x FROM ledger UNION ALL
		SELECT 'held', v, xmin::text FROM held UNION ALL SELECT 'forgotten', v, xmin::text FROM forgotten) AS rows`)
	var found [][3]string
	for line := range strings.SplitSeq(all, ",") {
		if parts := strings.Fields(line); len(parts) == 3 {
			found = append(found, [3]string(parts))
		}
	}
	return found
}

// check holds log and database of a dead gate against what clients were told.
func (b *book) check(t testing.TB, d gateDir) *story {
	t.Helper()
	d.awaitBackends(t)
	s := readStory(t, d.deadEvents(t))
	b.checkTold(t, s)
	b.checkNews(t, s)
	d.kept.hold(t, d.judgeDead(t).Header.LogID, s.events)
	recompute(t, s.events)
	present := map[string]bool{}
	for _, row := range d.rows(t) {
		b.checkRow(t, s, row, present)
	}
	for value, f := range b.fates {
		require.True(t, present[value] || !f.must, "%s was acknowledged and is not in the database", value)
	}
	for id, r := range s.runs {
		value := b.about(r)
		wrote := r.path == event.PathTx && r.result == event.TypeExecutionSuccess
		require.True(t, present[value] || !wrote, "the log has the success of %s, the database not its row %s", id, value)
		failed := r.result == event.TypeExecutionFailure
		require.True(t, !failed || undoneByClient(r.reason), "nothing in this load fails")
		require.False(t, failed && present[value], "the log has the failure of %s, the database its row %s", id, value)
	}
	b.checkBlocks(t, present)
	return s
}

// checkTold: whatever a client was told is in the log.
func (b *book) checkTold(t testing.TB, s *story) {
	t.Helper()
	for _, a := range b.told {
		for _, e := range a.Events {
			require.LessOrEqual(t, e.Seq, uint64(len(s.events)), "%s was told of an event that the log does not have: %+v", a.request, e)
			found := &s.events[e.Seq-1]
			require.Equal(t, [3]string{e.ID, e.Type, a.request}, [3]string{found.ID.String(), string(found.Type), found.Context.RequestID})
		}
		conflict := a.status == 409 // the loser of a race may be refused under the lock, which leaves no evidence
		require.True(t, s.requests[a.request] || a.replay || conflict, "%s was answered with %d and is not in the log", a.request, a.status)
	}
	for _, version := range b.activated {
		require.Contains(t, s.activated, version, "the activation was acknowledged")
	}
	for _, id := range b.created {
		require.True(t, s.created[id], "the approval %s was acknowledged and is not in the log", id)
	}
	for id, resolution := range b.resolved {
		require.Equal(t, resolution, s.resolved[id], "the resolution of %s was acknowledged", id)
	}
}

// checkRow: a row is there once, was written by the transaction that durable
// evidence names, and that evidence is of the request that wanted the row.
func (b *book) checkRow(t testing.TB, s *story, row [3]string, present map[string]bool) {
	t.Helper()
	table, value := row[0], row[1]
	require.False(t, present[value], "%s was written twice", value)
	present[value] = true
	f := b.fates[value]
	require.NotNil(t, f, "nobody asked for %s", value)
	require.False(t, f.never, "%s must not be there", value)
	require.Equal(t, f.held, table == "held")
	var xmin uint32
	_, err := fmt.Sscan(row[2], &xmin)
	require.NoError(t, err)
	r := b.of(s.byXID[xmin], value)
	require.NotNil(t, r, "%s was written by transaction %d, of which the log has no dispatch of it", value, xmin)
	require.Equal(t, f.held, r.approval != "", "a held row runs under an approval")
}
