package projections_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"strings"
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

// reopened opens and connects a store on fs; the test closes it.
func reopened(t *testing.T, fs vfs.FS, log projections.Source) *projections.Store {
	t.Helper()
	store, err := projections.Open(projections.Options{Dir: "store", FS: fs})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	require.NoError(t, store.Connect(t.Context(), log))
	return store
}

func TestACrashLeavesAnExactPrefixAndTheRestIsReplayed(t *testing.T) {
	fs := vfs.NewCrashableMem()
	w := &world{t: t, fs: fs, log: projectionstest.NewLog(), now: time.Unix(0, 1735689600000000000).UTC()}
	w.start()
	t.Cleanup(w.stop)
	s := &stream{now: w.now, r: newRand(5)}
	prefixes := map[uint64]bool{}
	for i := range 120 {
		w.append(s.batch()...)
		if i%9 == 0 {
			require.NoError(t, w.store.Flush(t.Context()))
		}
		if i%7 != 0 {
			continue
		}
		crashed := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: (i * 13) % 101, RNG: newRand(uint64(i))})
		store, err := projections.Open(projections.Options{Dir: "store", FS: crashed})
		require.NoError(t, err)
		_, aside := store.Aside()
		require.False(t, aside, "a crash is no damage")
		applied := store.Applied()
		require.LessOrEqual(t, applied.Seq, uint64(w.log.Len()))
		prefixes[applied.Seq] = true

		prefix := reopened(t, vfs.NewMem(), w.log.Cut(int(applied.Seq)))
		require.Equal(t, projectionstest.DigestOf(t, prefix), projectionstest.DigestOf(t, store), "not the projections of the first %d events", applied.Seq)
		require.NoError(t, store.Connect(t.Context(), w.log))
		projectionstest.RebuildAndCompare(t, w.log, store)
		require.NoError(t, store.Close())
	}
	require.Greater(t, len(prefixes), 5, "the crashes hit different moments")
}

func TestACleanCloseLosesNothing(t *testing.T) {
	w := newWorld(t)
	w.scenario(1, 30)
	applied := w.store.Applied()
	w.stop()
	store, err := projections.Open(projections.Options{Dir: "store", FS: w.fs})
	require.NoError(t, err)
	require.Equal(t, applied, store.Applied())
	require.NoError(t, store.Close())
	require.NoError(t, store.Close(), "closing twice is harmless")
}

func TestAStoreThatIsAheadOfItsLogAccusesTheLogAndIsKept(t *testing.T) {
	w := newWorld(t)
	w.scenario(1, 200)
	n := w.log.Len()
	w.stop()

	rewritten := w.log.Cut(n - 1)
	rewritten.Append(t, event.New(w.now, event.Context{Actor: "forger"}, &event.HealthFail{}))
	other := w.log.Cut(n)
	other.ID = [16]byte{2}
	for name, c := range map[string]struct {
		log  *projectionstest.Log
		want error
	}{
		"cut by one":      {w.log.Cut(n - 1), projections.ErrAhead},
		"cut by a block":  {w.log.Cut(n - 600), projections.ErrAhead},
		"empty":           {w.log.Cut(0), projections.ErrAhead},
		"rewritten":       {rewritten, projections.ErrDiverged},
		"of another gate": {other, projections.ErrOtherLog},
	} {
		store, err := projections.Open(projections.Options{Dir: "store", FS: w.fs})
		require.NoError(t, err)
		require.ErrorIs(t, store.Connect(t.Context(), c.log), c.want, name)
		require.ErrorIs(t, store.Rebuild(t.Context(), c.log), c.want, "%s: a rebuild would destroy the proof", name)
		require.Equal(t, uint64(n), store.Applied().Seq, name)
		require.NoError(t, store.Close())
	}
	reopened(t, w.fs, w.log)
}

func TestAnUnknownTypeOrVersionStopsTheFold(t *testing.T) {
	later := event.New(time.Unix(1, 0), event.Context{}, &event.HealthFail{})
	later.TypeVersion = 2
	strange := later
	strange.Type, strange.TypeVersion = "weather_changed", 1
	wrong := event.New(time.Unix(1, 0), event.Context{}, &event.ApprovalUsed{})
	wrong.Payload = event.NewPayload(event.Field{Key: "x", Value: event.Int(1)})
	for name, d := range map[string]event.Draft{"later version": later, "unknown type": strange, "unknown field": wrong} {
		log := projectionstest.NewLog()
		log.Append(t, event.New(time.Unix(1, 0), event.Context{}, &event.HealthFail{}))
		log.Append(t, d)
		store, err := projections.Open(projections.Options{Dir: "store", FS: vfs.NewMem()})
		require.NoError(t, err)
		err = store.Connect(t.Context(), log)
		require.ErrorContains(t, err, "event 2", name)
		if name != "unknown field" {
			require.ErrorIs(t, err, event.ErrUnknownType, name)
		}
		require.NoError(t, store.Close())
	}
}

func TestAFoldThatFailsWhileRunningIsFatalAndWakesAllWhoWait(t *testing.T) {
	w := newWorld(t)
	waiting := make(chan error)
	go func() { waiting <- w.store.WaitApplied(context.Background(), 5) }()
	bad := event.New(w.now, event.Context{}, &event.HealthFail{})
	bad.TypeVersion = 9
	w.log.Append(t, bad)
	require.ErrorIs(t, <-w.store.Fatal(), event.ErrUnknownType)
	require.ErrorIs(t, <-waiting, event.ErrUnknownType)
	require.ErrorIs(t, w.store.WaitApplied(t.Context(), 1), event.ErrUnknownType)
	_, _, err := w.store.View().Approval("apr_1")
	require.ErrorIs(t, err, event.ErrUnknownType, "a view that can't be complete shows nothing")
	require.ErrorIs(t, <-w.ran, event.ErrUnknownType)
	w.end()
	require.ErrorIs(t, w.store.Close(), event.ErrUnknownType)
	w.store = nil
}

func TestAViewShowsWhatIsDurableWhenItIsOpened(t *testing.T) {
	w := newWorld(t)
	var all sync.WaitGroup
	for range 64 {
		all.Go(func() {
			for range 20 {
				e := w.log.Append(t, event.New(w.now, event.Context{Actor: "a"}, &event.HealthFail{}))[0]
				v := w.store.View()
				if got := v.Applied().Seq; got < e.Seq {
					t.Errorf("a view at %d behind event %d", got, e.Seq)
				}
				if err := v.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	require.Equal(t, uint64(64*20), w.store.Applied().Seq)
	w.compare()
}

func TestAViewWaitsForRunFromConnectOnAndNoLongerThanIt(t *testing.T) {
	log := projectionstest.NewLog()
	store, err := projections.Open(projections.Options{Dir: "store", FS: vfs.NewMem()})
	require.NoError(t, err)
	require.NoError(t, store.Connect(t.Context(), log))
	log.Append(t, event.New(time.Unix(1e9, 0), event.Context{Actor: "a"}, &event.HealthFail{}))
	require.False(t, store.Vouches(1, log.At(1).Hash), "what a rebuild asks does not wait for what it holds up")
	applied := make(chan uint64)
	look := func() {
		v := store.View()
		defer v.Close()
		applied <- v.Applied().Seq
	}
	go look()
	ctx, stop := context.WithCancel(t.Context())
	ran := make(chan error)
	go func() { ran <- store.Run(ctx, log) }()
	require.EqualValues(t, 1, <-applied)
	stop()
	require.ErrorIs(t, <-ran, context.Canceled)
	log.Append(t, event.New(time.Unix(1e9, 0), event.Context{Actor: "a"}, &event.HealthFail{}))
	go look()
	require.EqualValues(t, 1, <-applied, "nothing is folded any more, and nobody waits for it")
	require.NoError(t, store.Close())
}

func TestWaitingEndsWithItsContextAndWithTheStore(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, w.store.WaitApplied(ctx, 1), context.Canceled)
	store, waiting := w.store, make(chan error)
	go func() { waiting <- store.WaitApplied(context.Background(), 1) }()
	w.stop()
	require.ErrorIs(t, <-waiting, projections.ErrClosed)
	v := store.View()
	_, _, err := v.Approval("apr_1")
	require.ErrorIs(t, err, projections.ErrClosed)
	_, _, err = v.Audit(projections.AuditFilter{}, projections.Page{})
	require.ErrorIs(t, err, projections.ErrClosed)
	_, _, err = v.Executions(projections.ExecutionFilter{}, projections.Page{})
	require.ErrorIs(t, err, projections.ErrClosed)
	require.NoError(t, v.Close())
	require.ErrorIs(t, store.Flush(t.Context()), projections.ErrClosed)
	_, _, err = store.Digest(t.Context())
	require.ErrorIs(t, err, projections.ErrClosed)
}

func TestAViewStaysAsItWas(t *testing.T) {
	w := newWorld(t)
	w.created("apr_1", time.Hour)
	v := w.view()
	w.resolved("apr_1", event.ResolutionApprove)
	a, ok, err := v.Approval("apr_1")
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, projections.ApprovalPending, a.State)
	seqs, _, err := v.Audit(projections.AuditFilter{ApprovalID: "apr_1"}, projections.Page{})
	require.NoError(t, err)
	require.Equal(t, []uint64{1}, seqs)
	require.Equal(t, projections.ApprovalApproved, w.approval("apr_1").State)
}

func TestARunEndsWhenTheLogIsClosed(t *testing.T) {
	w := newWorld(t)
	w.scenario(1, 5)
	w.log.Close()
	require.NoError(t, <-w.ran)
	w.end()
	require.NoError(t, w.store.Close())
	w.store = nil
}

func TestARebuildSwitchesAtOnceWhileEventsGoOn(t *testing.T) {
	w := newWorld(t)
	w.scenario(1, 100)
	old := w.view()
	before, _, err := old.Executions(projections.ExecutionFilter{}, projections.Page{})
	require.NoError(t, err)

	done := make(chan struct{})
	go func() {
		defer close(done)
		s := &stream{now: w.now, r: newRand(9), n: 1 << 20}
		for range 300 {
			w.log.Append(t, s.batch()...)
		}
	}()
	for range 5 {
		require.NoError(t, w.store.Rebuild(t.Context(), w.log))
	}
	<-done
	after, _, err := old.Executions(projections.ExecutionFilter{}, projections.Page{})
	require.NoError(t, err)
	require.Equal(t, before, after, "an open view still sees the space it was opened on")
	w.compare()
	w.stop()
	store := reopened(t, w.fs, w.log)
	projectionstest.RebuildAndCompare(t, w.log, store)
}

func TestARebuildThatDidNotEndLeavesNothing(t *testing.T) {
	w := newWorld(t)
	w.scenario(1, 100)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, w.store.Rebuild(ctx, w.log), context.Canceled)
	w.compare()
	w.stop()
	w.start()
	w.compare()
}

func TestAnOfflineRebuildGivesTheSameProjections(t *testing.T) {
	w := newWorld(t)
	w.scenario(1, 50)
	want := projectionstest.DigestOf(t, w.store)
	w.stop()
	var told uint64
	o := projections.Options{Dir: "store", FS: w.fs, Progress: func(seq uint64) { told = seq }}
	applied, err := projections.RebuildOffline(t.Context(), o, w.log)
	require.NoError(t, err)
	require.Equal(t, uint64(w.log.Len()), applied.Seq)
	require.Equal(t, applied.Seq, told)
	require.Equal(t, want, projectionstest.DigestOf(t, reopened(t, w.fs, w.log)))

	require.NoError(t, w.fs.RemoveAll("store2"))
	_, err = projections.RebuildOffline(t.Context(), projections.Options{Dir: "store2", FS: w.fs}, w.log)
	require.NoError(t, err, "a folder that is gone is rebuilt as well")
}

// tables lists the files of the store that hold records.
func tables(t *testing.T, fs vfs.FS) (names []string) {
	list, err := fs.List("store")
	require.NoError(t, err)
	for _, name := range list {
		if strings.HasSuffix(name, ".sst") {
			names = append(names, fs.PathJoin("store", name))
		}
	}
	return names
}

// flip turns one bit of a file.
func flip(t *testing.T, fs vfs.FS, name string, at int64) {
	f, err := fs.OpenReadWrite(name, "test")
	require.NoError(t, err)
	one := make([]byte, 1)
	_, err = f.ReadAt(one, at)
	require.NoError(t, err)
	one[0] ^= 4
	_, err = f.WriteAt(one, at)
	require.NoError(t, err)
	require.NoError(t, f.Close())
}

func TestADamagedStoreIsPutAsideByTheNextStartAndRebuilt(t *testing.T) {
	w := newWorld(t)
	w.scenario(1, 50)
	want := projectionstest.DigestOf(t, w.store)
	w.stop()
	for _, name := range tables(t, w.fs) {
		flip(t, w.fs, name, 40)
	}
	store, err := projections.Open(projections.Options{Dir: "store", FS: w.fs})
	if err == nil { // found in use, not at open
		_, aside := store.Aside()
		if !aside {
			_, _, err = store.Digest(t.Context())
			require.ErrorIs(t, err, projections.ErrDamaged)
			require.ErrorIs(t, <-store.Fatal(), projections.ErrDamaged)
			require.Error(t, store.Close())
			store, err = projections.Open(projections.Options{Dir: "store", FS: w.fs})
		}
	}
	require.NoError(t, err)
	aside, ok := store.Aside()
	require.True(t, ok)
	require.NotEmpty(t, aside.Reason)
	_, err = w.fs.Stat(aside.Path)
	require.NoError(t, err, "the damaged store is kept")
	require.Zero(t, store.Applied().Seq)
	require.NoError(t, store.Connect(t.Context(), w.log))
	require.Equal(t, want, projectionstest.DigestOf(t, store))
	require.NoError(t, store.Close())
}

func TestAStoreThatCantBeOpenedIsPutAside(t *testing.T) {
	w := newWorld(t)
	w.scenario(1, 20)
	w.stop()
	for _, name := range tables(t, w.fs) {
		require.NoError(t, w.fs.Remove(name))
	}
	store := reopened(t, w.fs, w.log)
	aside, ok := store.Aside()
	require.True(t, ok)
	require.Equal(t, "store.aside-1", aside.Path)
	projectionstest.RebuildAndCompare(t, w.log, store)
}

func TestAStoreIsOpenOnce(t *testing.T) {
	dir := t.TempDir() + "/store"
	store, err := projections.Open(projections.Options{Dir: dir})
	require.NoError(t, err)
	_, err = projections.Open(projections.Options{Dir: dir})
	require.Error(t, err)
	require.NoError(t, store.Close())
	store, err = projections.Open(projections.Options{Dir: dir})
	require.NoError(t, err)
	_, aside := store.Aside()
	require.False(t, aside, "a store in use is not a damaged one")
	require.NoError(t, store.Close())
}

// brokenLog fails while it is read.
type brokenLog struct{ *projectionstest.Log }

var errBroken = errors.New("the disk is tired")

func (l brokenLog) From(ctx context.Context, seq uint64) iter.Seq2[event.Envelope, error] {
	return func(yield func(event.Envelope, error) bool) { yield(event.Envelope{}, errBroken) }
}

func (l brokenLog) Follow(ctx context.Context, seq uint64) iter.Seq2[eventlog.Batch, error] {
	return func(yield func(eventlog.Batch, error) bool) {
		yield(eventlog.Batch{}, fmt.Errorf("follow: %w", errBroken))
	}
}

func TestALogThatCantBeReadEndsConnectAndRun(t *testing.T) {
	store, err := projections.Open(projections.Options{Dir: "store", FS: vfs.NewMem()})
	require.NoError(t, err)
	log := projectionstest.NewLog()
	require.ErrorIs(t, store.Connect(t.Context(), brokenLog{log}), errBroken)
	require.NoError(t, store.Connect(t.Context(), log))
	require.ErrorIs(t, store.Run(t.Context(), brokenLog{log}), errBroken)
	require.ErrorIs(t, <-store.Fatal(), errBroken)
	require.ErrorIs(t, store.Close(), errBroken)
}

func TestEventsThatDoNotFollowEachOtherAreNotFolded(t *testing.T) {
	w := newWorld(t)
	w.scenario(1, 10)
	forged := w.log.Cut(5)
	forged.Append(t, event.New(w.now, event.Context{}, &event.HealthFail{}))
	gap := &gapLog{w.log}
	for name, log := range map[string]projections.Source{"gap": gap} {
		store, err := projections.Open(projections.Options{Dir: name, FS: vfs.NewMem()})
		require.NoError(t, err)
		require.ErrorIs(t, store.Connect(t.Context(), log), projections.ErrDiverged, name)
		require.NoError(t, store.Close())
	}
	store, err := projections.Open(projections.Options{Dir: "forged", FS: vfs.NewMem()})
	require.NoError(t, err)
	require.NoError(t, store.Connect(t.Context(), w.log.Cut(5)))
	require.NoError(t, store.Connect(t.Context(), forged), "what was appended honestly is taken")
	require.ErrorIs(t, store.Connect(t.Context(), w.log), projections.ErrDiverged)
	require.NoError(t, store.Close())
}

// gapLog leaves an event out.
type gapLog struct{ *projectionstest.Log }

func (l *gapLog) From(ctx context.Context, seq uint64) iter.Seq2[event.Envelope, error] {
	return func(yield func(event.Envelope, error) bool) {
		for e, err := range l.Log.From(ctx, seq) {
			if e.Seq != 3 && !yield(e, err) {
				return
			}
		}
	}
}

// The mark of damage, and files that no store of this program has, put the store aside. The
// reason is text that an event can hold, however much there stood.
func TestWhateverMarksAStoreOrMakesItUnreadablePutsItAside(t *testing.T) {
	for name, content := range map[string][]byte{
		"DAMAGED":                           []byte("junk \xff\xfe\x00\x1b[2J"),
		"DAMAGED in the middle of a letter": append(bytes.Repeat([]byte("x"), 1023), "é"...),
		"DAMAGED and large":                 make([]byte, 8<<20),
		"marker.format-version.000099.099":  {}, // of a newer Pebble
		"marker.format-version.000099.001":  {}, // of an older one
		"marker.format-version.000099.x":    {},
		"marker.format-version.000099.":     {},
		"marker.x":                          {},
		"OPTIONS-999999":                    []byte("[Version]\n[Options]\n comparer=x\n"),
	} {
		w := newWorld(t)
		w.scenario(1, 20)
		w.stop()
		file, _, _ := strings.Cut(name, " ")
		f, err := w.fs.Create(w.fs.PathJoin("store", file), "")
		require.NoError(t, err)
		_, err = f.Write(content)
		require.NoError(t, errors.Join(err, f.Close()))

		store, err := projections.Open(projections.Options{Dir: "store", FS: w.fs})
		require.NoError(t, err, name)
		aside, ok := store.Aside()
		require.True(t, ok, name)
		require.Less(t, len(aside.Reason), 2048, name)
		startup := event.New(w.now, event.Context{}, &event.Startup{Warnings: []string{aside.Reason}})
		_, err = event.Encode(nil, &startup)
		require.NoError(t, err, name)
		require.NoError(t, store.Connect(t.Context(), w.log))
		projectionstest.RebuildAndCompare(t, w.log, store)
		require.NoError(t, store.Close())
	}
	for _, name := range []string{"DAMAGED", "OPTIONS-999999"} { // a folder in the place of a file
		w := newWorld(t)
		dir := filepath.Join(t.TempDir(), "store")
		require.NoError(t, os.MkdirAll(filepath.Join(dir, name), 0o700))
		store, err := projections.Open(projections.Options{Dir: dir})
		require.NoError(t, err, name)
		_, ok := store.Aside()
		require.True(t, ok, name)
		require.NoError(t, store.Connect(t.Context(), w.log))
		require.NoError(t, store.Close())
	}
}
