package projections_test

import (
	"context"
	"iter"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"writegate/eventlog"
	"writegate/eventlog/event"
	"writegate/projections"
	"writegate/projections/projectionstest"
)

// after goes on with a log that follows w's after a loss: of w's log only the
// first last events are left. The store is begun anew, as the operator's
// command puts the old one away.
func (w *world) after(last int) *world {
	w.t.Helper()
	w.stop()
	next := &world{t: w.t, fs: vfs.NewMem(), log: w.log.After(w.t, last), now: w.now}
	next.start()
	w.t.Cleanup(next.stop)
	return next
}

func TestALogAfterALossGoesOnWithWhatTheOneBeforeItMeant(t *testing.T) {
	w := newWorld(t)
	w.created("apr_kept", time.Hour)
	w.resolved("apr_kept", event.ResolutionApprove)
	kept := w.log.Len()
	w.resolved("apr_kept", event.ResolutionReject) // is lost
	w.created("apr_lost", time.Hour)
	next := w.after(kept)

	require.Equal(t, projections.ApprovalApproved, next.approval("apr_kept").State)
	v := next.view()
	_, found, err := v.Approval("apr_lost")
	require.NoError(t, err)
	require.False(t, found, "it was created after the last event that is left")
	require.EqualValues(t, 1, v.Applied().Seq, "what is applied is told by the log's own events")
	require.Equal(t, next.log.ID, v.Applied().LogID)
	next.compare()
}

func TestRecordsOfTwoLogsKeepTheirEventsApart(t *testing.T) {
	w := newWorld(t)
	shared := event.Context{ExecutionID: "exe_1"}
	first := w.do(shared, dispatchOf(event.PathTx))
	next := w.after(w.log.Len())
	open, err := next.view().OpenExecutions()
	require.NoError(t, err)
	require.Len(t, open, 1, "what was open is still open")

	second := next.do(shared, &event.ExecutionStateUnknown{Cause: "gate_stopped"})
	x, v := next.execution("exe_1"), next.view()
	require.Equal(t, projections.ExecutionUnknown, x.State)
	require.Len(t, x.Events, 2)
	require.Equal(t, projections.Place{LogID: w.log.ID, Seq: first.Seq}, v.Place(x.Events[0]))
	require.Equal(t, projections.Place{LogID: next.log.ID, Seq: second.Seq, Own: true}, v.Place(x.Events[1]))
	require.Zero(t, v.OwnSeq(x.Events[0]))
	require.Equal(t, second.Seq, v.OwnSeq(x.Events[1]))
	next.compare()
}

func TestListsRunOverAllLogsInTheOrderOfTime(t *testing.T) {
	w := newWorld(t)
	for _, id := range []string{"apr_1", "apr_2", "apr_3"} {
		w.created(id, time.Hour)
	}
	w = w.after(w.log.Len())
	w.created("apr_4", time.Hour)
	w = w.after(w.log.Len())
	w.created("apr_5", time.Hour)
	for _, asc := range []bool{true, false} {
		var ids []string
		page := projections.Page{Limit: 2, Asc: asc}
		for {
			found, next, err := w.view().Approvals(projections.ApprovalFilter{Now: w.now}, page)
			require.NoError(t, err)
			for _, a := range found {
				ids = append(ids, a.ID)
			}
			if next == "" {
				break
			}
			page.Cursor = next
		}
		want := []string{"apr_1", "apr_2", "apr_3", "apr_4", "apr_5"}
		if !asc {
			want = []string{"apr_5", "apr_4", "apr_3", "apr_2", "apr_1"}
		}
		require.Equal(t, want, ids)
	}
	w.compare()
}

func TestTheAuditIndexSpeaksOfTheLogAtHandAlone(t *testing.T) {
	w := newWorld(t)
	w.scenario(1, 300) // more than one block of the index
	next := w.after(w.log.Len())
	next.scenario(2, 300)
	v := next.view()
	all, _, err := v.Audit(projections.AuditFilter{}, projections.Page{Limit: 1, Asc: true})
	require.NoError(t, err)
	require.Equal(t, []uint64{1}, all)
	for _, name := range []event.Type{event.TypeStartup, event.TypeExecutionDispatched} {
		want, got := 0, 0
		for seq := uint64(1); seq <= uint64(next.log.Len()); seq++ {
			if next.log.At(seq).Type == name {
				want++
			}
		}
		page := projections.Page{Limit: 1000}
		for {
			seqs, more, err := v.Audit(projections.AuditFilter{EventTypes: []string{string(name)}}, page)
			require.NoError(t, err)
			if got += len(seqs); more == "" {
				break
			}
			page.Cursor = more
		}
		require.Equal(t, want, got, name)
	}
	next.compare()
}

// TestAFoldOverSeveralLogsIsTheSameWhereverItWasCutShort: the store goes through
// restarts, lost power and a rebuild, and holds the same bytes each time.
func TestAFoldOverSeveralLogsIsTheSameWhereverItWasCutShort(t *testing.T) {
	w := newWorld(t)
	w.scenario(3, 200)
	w = w.after(w.log.Len() - 50)
	w.scenario(4, 200)
	w = w.after(w.log.Len() - 3)
	w.scenario(5, 100)
	want := projectionstest.DigestOf(t, w.store)

	require.NoError(t, w.store.Rebuild(t.Context(), w.log))
	require.Equal(t, want, projectionstest.DigestOf(t, w.store), "rebuilt beside the old space")
	w.stop()
	w.start()
	require.Equal(t, want, projectionstest.DigestOf(t, w.store), "opened again")
	require.EqualValues(t, 2, w.view().Place(w.execution(someExecution(t, w)).Seq).LogID[1])
	w.stop()

	for _, most := range []int{0, 1, 700, 5000} { // events that a first attempt gets to see
		fs := vfs.NewMem()
		store, err := projections.Open(projections.Options{Dir: "store", FS: fs})
		require.NoError(t, err)
		require.ErrorIs(t, store.Connect(t.Context(), &breaking{Source: w.log, left: most}), errBroken)
		require.NoError(t, store.Close())
		store, err = projections.Open(projections.Options{Dir: "store", FS: fs})
		require.NoError(t, err)
		require.Zero(t, store.Applied().Seq, "an earlier log's events are not this log's")
		require.NoError(t, store.Connect(t.Context(), w.log))
		require.Equal(t, want, projectionstest.DigestOf(t, store), "after %d events", most)
		require.NoError(t, store.Close())
	}
}

// someExecution is one of the newest log.
func someExecution(t *testing.T, w *world) string {
	t.Helper()
	list, _, err := w.view().Executions(projections.ExecutionFilter{}, projections.Page{Limit: 1})
	require.NoError(t, err)
	return list[0].ID
}

// breaking is a log whose ancestors stop being readable after so many events.
type breaking struct {
	projections.Source
	left int
}

func (b *breaking) Ancestors(ctx context.Context) ([]eventlog.Ancestor, error) {
	all, err := b.Source.Ancestors(ctx)
	list := slices.Clone(all)
	for i := range list {
		events := list[i].Events
		list[i].Events = func(ctx context.Context) iter.Seq2[event.Envelope, error] {
			return func(yield func(event.Envelope, error) bool) {
				for e, err := range events(ctx) {
					if b.left--; b.left < 0 {
						yield(event.Envelope{}, errBroken)
						return
					}
					if !yield(e, err) {
						return
					}
				}
				yield(event.Envelope{}, errBroken) // nor is there an end
			}
		}
	}
	return list, err
}

// TestALogIsNotFoldedWithoutTheOneItFollows: its own first event says that there
// is one.
func TestALogIsNotFoldedWithoutTheOneItFollows(t *testing.T) {
	w := newWorld(t)
	w.created("apr_1", time.Hour)
	next := w.log.After(t, w.log.Len())
	store, err := projections.Open(projections.Options{Dir: "store", FS: vfs.NewMem()})
	require.NoError(t, err)
	require.ErrorIs(t, store.Connect(t.Context(), alone{next}), eventlog.ErrAncestor)
	require.NoError(t, store.Close())
}

// alone hides the logs before a log.
type alone struct{ projections.Source }

func (alone) Ancestors(context.Context) ([]eventlog.Ancestor, error) { return nil, nil }

// TestADigestInALogAfterALossIsReachedByAReplay, since it is as of that log's
// events and all that came before them.
func TestADigestInALogAfterALossIsReachedByAReplay(t *testing.T) {
	w := newWorld(t)
	w.scenario(6, 100)
	w = w.after(w.log.Len())
	w.scenario(7, 100)
	seq, digest, err := w.store.Digest(t.Context())
	require.NoError(t, err)
	w.do(event.Context{}, &event.Shutdown{Reason: "stopped", Digest: digest, DigestSeq: seq, DigestProjectors: projections.ProjectorVersion})
	r, err := projections.Refold(t.Context(), projections.Options{Dir: "refold", FS: vfs.NewMem()}, w.log)
	require.NoError(t, err)
	require.Equal(t, 1, r.Compared)
	require.Empty(t, r.Divergences)
}

// TestALogOfWhichNothingIsLeftIsNamedAllTheSame: then the new one begins with nothing.
func TestALogOfWhichNothingIsLeftIsNamedAllTheSame(t *testing.T) {
	w := newWorld(t)
	w.created("apr_1", time.Hour)
	next := w.after(0)
	require.Zero(t, next.view().Counters().ApprovalsPending)
	require.Equal(t, 1, next.log.Len())
	next.created("apr_2", time.Hour)
	next.compare()
}
