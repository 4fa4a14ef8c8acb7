package projections_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
	"writegate/projections"
)

// Whoever has left does not wait for the projections, and is not shown less than
// is durable either.
func TestAViewEndsWithItsRequest(t *testing.T) {
	w := newWorld(t)
	w.stop()
	store, err := projections.Open(projections.Options{Dir: "store", FS: w.fs})
	require.NoError(t, err)
	require.NoError(t, store.Connect(t.Context(), w.log)) // nobody folds what comes now
	w.log.Append(t, event.New(w.now, event.Context{}, &event.HealthFail{}))
	gone, leave := context.WithCancel(t.Context())
	leave()
	v := store.ViewWithin(gone)
	_, _, err = v.Approval("apr_1")
	require.ErrorIs(t, err, projections.ErrBehind)
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, v.Close())
	require.ErrorIs(t, store.WaitFolded(gone, uint64(w.log.Len())), projections.ErrBehind)
	require.NoError(t, store.WaitFolded(gone, uint64(w.log.Len()-1)))
	require.NoError(t, store.Close())
}

// A view that somebody still reads ends when the store is to be closed, and is
// waited for: Pebble panics where it is closed under an iterator.
func TestAStoreIsClosedBehindItsViews(t *testing.T) {
	w := newWorld(t)
	w.stop()
	store, err := projections.Open(projections.Options{Dir: "store", FS: w.fs})
	require.NoError(t, err)
	require.NoError(t, store.Connect(t.Context(), w.log))
	v := store.View()
	read := make(chan error, 1)
	go func() {
		defer close(read)
		for {
			if _, _, err := v.Approvals(projections.ApprovalFilter{}, projections.Page{}); err != nil {
				read <- errors.Join(err, v.Close())
				return
			}
		}
	}()
	require.NoError(t, store.Close())
	require.ErrorIs(t, <-read, projections.ErrClosed)
}
