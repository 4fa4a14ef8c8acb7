package projections_test

import (
	"context"
	"fmt"
	"iter"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"writegate/eventlog/event"
	"writegate/projections"
	"writegate/projections/projectionstest"
)

// compareReplay rebuilds with these limits, and compares.
func (w *world) compareReplay(events, load, tables int) {
	w.t.Helper()
	compareReplay(w.t, w.log, w.store, events, load, tables)
}

func compareReplay(t testing.TB, log projections.Source, live *projections.Store, events, load, tables int) {
	t.Helper()
	fresh, err := projections.Open(projections.Options{Dir: "loaded", FS: vfs.NewMem()})
	require.NoError(t, err)
	fresh.Replay(events, load, tables)
	require.NoError(t, fresh.Connect(context.WithoutCancel(t.Context()), log))
	projectionstest.Compare(t, log, fresh, live)
	require.NoError(t, fresh.Close())
}

// A batch is folded while the load before may not be in the store yet.
func TestALogThatIsLoadedGivesTheLiveProjectionsWhereverLoadsEnd(t *testing.T) {
	w := newWorld(t)
	w.scenario(5, 150)
	for _, events := range []int{1, 7, 64, 1024} {
		for _, load := range []int{0, 10_000, 300_000} {
			w.compareReplay(events, load, 0)
			w.compareReplay(events, load, 1<<30)
			w.compareReplay(events, load, 9_000)
		}
	}
}

func TestARebuildInLoadsReplacesALiveStore(t *testing.T) {
	w := newWorld(t)
	w.scenario(6, 150)
	want := projectionstest.DigestOf(t, w.store)
	for _, tables := range []int{0, 1 << 30} {
		w.store.Replay(100, 50_000, tables)
		require.NoError(t, w.store.Rebuild(t.Context(), w.log))
		require.Equal(t, want, projectionstest.DigestOf(t, w.store))
		w.scenario(7, 20)
		w.compare()
		want = projectionstest.DigestOf(t, w.store)
	}
	w.stop()
	w.start()
	w.compare()
}

// A halting log calls at before some events.
type haltingLog struct {
	*projectionstest.Log
	at func(seq uint64)
}

func (l *haltingLog) From(ctx context.Context, seq uint64) iter.Seq2[event.Envelope, error] {
	return func(yield func(event.Envelope, error) bool) {
		for e, err := range l.Log.From(ctx, seq) {
			if l.at(e.Seq); !yield(e, err) {
				return
			}
		}
	}
}

// A cloneable lets no link be made while it is cloned: MemFS takes its two locks
// in another order in Link than elsewhere, and would stand still.
type cloneable struct {
	*vfs.MemFS
	links sync.RWMutex
}

func (c *cloneable) Link(oldname, newname string) error {
	c.links.RLock()
	defer c.links.RUnlock()
	return c.MemFS.Link(oldname, newname)
}

func (c *cloneable) clone(cfg vfs.CrashCloneCfg) *vfs.MemFS {
	c.links.Lock()
	defer c.links.Unlock()
	return c.CrashClone(cfg)
}

func TestACrashWhileALogIsLoadedLeavesAnExactPrefix(t *testing.T) {
	w := newWorld(t)
	w.scenario(8, 200)
	for seed, tables := range []int{0, 15_000, 0} {
		fs := &cloneable{MemFS: vfs.NewCrashableMem()}
		var crashed []*vfs.MemFS
		log := &haltingLog{w.log, func(seq uint64) {
			if seq%97 == 0 {
				crashed = append(crashed, fs.clone(vfs.CrashCloneCfg{UnsyncedDataPercent: int(seq) % 101, RNG: newRand(uint64(seed))}))
			}
		}}
		store, err := projections.Open(projections.Options{Dir: "store", FS: fs})
		require.NoError(t, err)
		store.Replay(20, 20_000, tables)
		require.NoError(t, store.Connect(t.Context(), log))
		require.NoError(t, store.Close())

		prefixes := map[uint64]bool{}
		for _, fs := range crashed {
			store, err := projections.Open(projections.Options{Dir: "store", FS: fs})
			require.NoError(t, err)
			_, aside := store.Aside()
			require.False(t, aside, "a crash is no damage")
			applied := store.Applied()
			prefixes[applied.Seq] = true
			prefix := reopened(t, vfs.NewMem(), w.log.Cut(int(applied.Seq)))
			require.Equal(t, projectionstest.DigestOf(t, prefix), projectionstest.DigestOf(t, store), "not the projections of the first %d events", applied.Seq)
			list, err := fs.List("store/loading")
			require.Error(t, err, "what a load left is removed: %v", list)
			store.Replay(20, 20_000, tables)
			require.NoError(t, store.Connect(t.Context(), w.log))
			projectionstest.Compare(t, w.log, store, w.store)
			require.NoError(t, store.Close())
		}
		require.Greater(t, len(prefixes), 1, "the crashes hit different moments") // how many is for the store's own goroutines to tell
	}
}

// Expired keys are swept by what the events say. Clocks run back, keys are bound
// again with another time, and loads end anywhere.
func TestKeysAreSweptTheSameWhateverClocksAndLoadsDo(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		log, now := projectionstest.NewLog(), time.Unix(0, 1735689600000000000).UTC()
		live, err := projections.Open(projections.Options{Dir: "live", FS: vfs.NewMem()})
		require.NoError(r, err)
		for i := range rapid.IntRange(1, 120).Draw(r, "keys") {
			now = now.Add(time.Duration(rapid.IntRange(-20, 40).Draw(r, "hours")) * time.Hour)
			d := dispatchOf(event.PathTx)
			d.Idempotency = &event.Idempotency{Key: "k", ScopeDigest: [32]byte{rapid.Byte().Draw(r, "key")}, ExpiresAt: now.Add(time.Duration(rapid.IntRange(1, 48).Draw(r, "life")) * time.Hour).UnixNano()}
			log.Append(t, event.New(now, event.Context{ExecutionID: fmt.Sprint("exe_", i)}, d))
			require.NoError(r, live.Connect(context.Background(), log)) // a batch for each
		}
		for range 3 {
			compareReplay(t, log, live, rapid.IntRange(1, 9).Draw(r, "events"), rapid.IntRange(0, 6000).Draw(r, "load"), rapid.SampledFrom([]int{0, 1 << 30}).Draw(r, "tables"))
		}
		require.NoError(r, live.Close())
	})
}
