package projections_test

import (
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"writegate/eventlog/checkpoint"
	"writegate/eventlog/event"
	"writegate/projections"
	"writegate/projections/projectionstest"
)

// quiet are drafts of events that change no record.
func quiet(n int) []event.Draft {
	drafts := make([]event.Draft, n)
	for i := range drafts {
		drafts[i] = event.New(time.Unix(1e9, 0), event.Context{}, &event.HealthFail{Step: "s", Message: "m"})
	}
	return drafts
}

func TestTheStoredTreeIsThatOfTheLogWhateverTheBatchesAndRestarts(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		w := newWorld(t)
		defer w.stop()
		for range rapid.IntRange(1, 6).Draw(r, "runs") {
			for range rapid.IntRange(0, 4).Draw(r, "batches") {
				w.append(quiet(rapid.SampledFrom([]int{1, 2, 3, 100, 509, 510, 511, 512, 513, 1024}).Draw(r, "events"))...)
			}
			switch rapid.IntRange(0, 3).Draw(r, "then") {
			case 0:
				w.stop()
				w.start()
			case 1:
				require.NoError(t, w.store.Rebuild(t.Context(), w.log))
			case 2:
				require.NoError(t, w.store.Flush(t.Context()))
			}
		}
		projectionstest.RebuildAndCompare(t, w.log, w.store)
	})
}

func TestACrashLeavesTheTreeOfAnExactPrefix(t *testing.T) {
	mem := vfs.NewCrashableMem()
	log := projectionstest.NewLog()
	for i, n := range []int{300, 300, 500, 24, 1000} {
		store, err := projections.Open(projections.Options{Dir: "store", FS: mem})
		require.NoError(t, err)
		require.NoError(t, store.Connect(t.Context(), log))
		log.Append(t, quiet(n)...)
		require.NoError(t, store.Connect(t.Context(), log))
		if i%2 == 0 {
			require.NoError(t, store.Flush(t.Context()))
		}
		crashed := mem.CrashClone(vfs.CrashCloneCfg{})
		require.NoError(t, store.Close())
		mem = crashed
		again := reopened(t, mem, log)
		projectionstest.RebuildAndCompare(t, log, again)
		require.NoError(t, again.Close())
	}
}

func TestAViewProvesWhatItShowsWhileTheTreeGrows(t *testing.T) {
	w := newWorld(t)
	w.append(quiet(700)...)
	v := w.view()
	w.append(quiet(700)...)
	require.EqualValues(t, 700, v.Tree().Size())
	root, err := checkpoint.RootAt(v.Tree(), 700)
	require.NoError(t, err)
	for _, seq := range []uint64{1, 2, 511, 512, 513, 699, 700} {
		p, err := checkpoint.ProveInclusion(v.Tree(), 700, seq)
		require.NoError(t, err)
		require.NoError(t, checkpoint.CheckInclusion(p, 700, root, seq, w.log.At(seq).Hash))
	}
	_, err = checkpoint.RootAt(v.Tree(), 701)
	require.ErrorIs(t, err, checkpoint.ErrTree, "a view knows nothing of what came later")

	later := w.view()
	grown, err := checkpoint.RootAt(later.Tree(), 1400)
	require.NoError(t, err)
	for _, old := range []uint64{1, 511, 512, 513, 700, 1024, 1399, 1400} {
		oldRoot, err := checkpoint.RootAt(later.Tree(), old)
		require.NoError(t, err)
		p, err := checkpoint.ProveConsistency(later.Tree(), old, 1400)
		require.NoError(t, err)
		require.NoError(t, checkpoint.CheckConsistency(p, 1400, grown, old, oldRoot))
	}
}

func TestATreeIsNotReadBeforeItsLogOrAfterItsView(t *testing.T) {
	w := newWorld(t)
	w.append(quiet(600)...)
	v := w.store.View()
	require.NoError(t, v.Close())
	_, err := v.Tree().ReadHashes([]int64{0})
	require.ErrorIs(t, err, projections.ErrClosed)
	w.stop()

	store, err := projections.Open(projections.Options{Dir: "store", FS: w.fs})
	require.NoError(t, err)
	v = store.View()
	_, err = v.Tree().ReadHashes([]int64{0})
	require.ErrorIs(t, err, projections.ErrNotConnected)
	require.NoError(t, v.Close())
	require.NoError(t, store.Close())
}

// TestTheStoreVouchesForTheEventsItHolds and for nothing else.
func TestTheStoreVouchesForTheEventsItHolds(t *testing.T) {
	w := newWorld(t)
	require.False(t, w.store.Vouches(1, [32]byte{}), "it holds nothing")
	w.append(quiet(700)...) // a complete block and one in the making
	for _, seq := range []uint64{1, 2, 511, 512, 513, 699, 700} {
		hash := w.log.At(seq).Hash
		require.True(t, w.store.Vouches(seq, hash), "%d", seq)
		require.False(t, w.store.Vouches(seq%700+1, hash), "the hash of another event")
		hash[31] ^= 1
		require.False(t, w.store.Vouches(seq, hash), "%d", seq)
	}
	require.False(t, w.store.Vouches(0, [32]byte{}))
	require.False(t, w.store.Vouches(701, w.log.At(700).Hash), "beyond what it holds")
	closed, hash := w.store, w.log.At(5).Hash
	w.stop()
	require.False(t, closed.Vouches(5, hash), "a closed store vouches for nothing")
}
