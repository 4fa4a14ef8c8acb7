package projections_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"writegate/eventlog"
	"writegate/eventlog/event"
	"writegate/projections"
	"writegate/projections/projectionstest"
)

var (
	_ projections.Follower = (*eventlog.Log)(nil)
	_ projections.Follower = (*projectionstest.Log)(nil)
)

func openLog(t *testing.T, path string) *eventlog.Log {
	t.Helper()
	log, _, err := eventlog.Open(t.Context(), eventlog.Options{Path: path})
	require.NoError(t, err)
	return log
}

func TestTheProjectionsFollowARealLogAcrossARestart(t *testing.T) {
	path := t.TempDir() + "/audit.wal"
	fs := vfs.NewMem()
	for run := range uint64(3) {
		log := openLog(t, path)
		store, err := projections.Open(projections.Options{Dir: "store", FS: fs})
		require.NoError(t, err)
		require.NoError(t, store.Connect(t.Context(), log))
		require.Equal(t, log.Head().Seq, store.Applied().Seq)

		ran := make(chan error, 1)
		go func() { ran <- store.Run(context.Background(), log) }()
		var clients sync.WaitGroup
		for client := range 8 {
			clients.Go(func() {
				s := &stream{now: time.Unix(1e9, 0), r: newRand(run*100 + uint64(client)), n: int(run*100+uint64(client)) << 16}
				for range 10 {
					c, err := log.Append(context.Background(), eventlog.Group{Drafts: s.batch()})
					if err == nil {
						err = store.WaitApplied(context.Background(), c.Last)
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		clients.Wait()
		projectionstest.RebuildAndCompare(t, log, store)
		v := store.View()
		seqs, _, err := v.Audit(projections.AuditFilter{EventTypes: []string{string(event.TypeApprovalCreated)}}, projections.Page{Limit: 5})
		require.NoError(t, err)
		for _, seq := range seqs {
			e, err := log.At(context.Background(), seq)
			require.NoError(t, err)
			require.Equal(t, event.TypeApprovalCreated, e.Type)
		}
		require.NoError(t, v.Close())
		require.NoError(t, log.Close(context.Background()))
		require.NoError(t, <-ran, "Run ends with the log, without an error")
		require.NoError(t, store.Close())
	}
}

func TestAStoreRefusesARealLogThatIsNotItsOwn(t *testing.T) {
	fs := vfs.NewMem()
	for i, want := range []error{nil, projections.ErrOtherLog} {
		log := openLog(t, t.TempDir()+"/audit.wal")
		_, err := log.Append(t.Context(), eventlog.Group{Drafts: []event.Draft{event.New(time.Unix(1e9, 0), event.Context{}, &event.HealthFail{})}})
		require.NoError(t, err)
		store, err := projections.Open(projections.Options{Dir: "store", FS: fs})
		require.NoError(t, err)
		require.ErrorIs(t, store.Connect(t.Context(), log), want, "log %d", i)
		require.NoError(t, store.Close())
		require.NoError(t, log.Close(t.Context()))
	}
}
