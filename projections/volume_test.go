package projections_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
	"writegate/projections"
	"writegate/projections/projectionstest"
)

// A volume is a file system that can have no space left for tables.
type volume struct {
	vfs.FS
	full    atomic.Bool
	refused atomic.Int64 // writes that found none
}

func (v *volume) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := v.FS.Create(name, category)
	if err == nil && strings.HasSuffix(name, ".sst") {
		f = &volumeFile{f, v}
	}
	return f, err
}

type volumeFile struct {
	vfs.File
	volume *volume
}

func (f *volumeFile) Write(b []byte) (int, error) {
	if f.volume.full.Load() {
		f.volume.refused.Add(1)
		return 0, syscall.ENOSPC
	}
	return f.File.Write(b)
}

// said is a log of the operator's.
type said struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *said) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(b)
}

func (s *said) count(words string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Count(s.text.String(), words)
}

// A volume that takes nothing more keeps neither the events from being applied nor the
// service from its end; it is said once in a while, and the next start has everything.
func TestAStopEndsAlthoughTheVolumeIsFull(t *testing.T) {
	projections.WritingEnd(t, 100*time.Millisecond)
	projections.TryAgain(t, time.Millisecond)
	full, lines := &volume{FS: vfs.NewMem()}, &said{}
	w := &world{t: t, fs: full, log: projectionstest.NewLog(), now: time.Unix(0, 1735689600000000000).UTC()}
	store, err := projections.Open(projections.Options{Dir: "store", FS: full, FlushEvery: time.Millisecond, Logger: slog.New(slog.NewTextHandler(lines, nil))})
	require.NoError(t, err)
	require.NoError(t, store.Connect(t.Context(), w.log))
	ctx, cancel := context.WithCancel(t.Context())
	w.store, w.ran = store, make(chan error, 1)
	go func() { w.ran <- store.Run(ctx, w.log) }()
	w.scenario(1, 20)
	full.full.Store(true)
	w.scenario(2, 20)
	require.Eventually(t, func() bool { return full.refused.Load() > 100 }, time.Minute, time.Millisecond)
	require.Equal(t, 1, lines.count("work in the background failed"))
	w.scenario(3, 20)
	want := projectionstest.DigestOf(t, store)

	cancel()
	closed := make(chan error, 1)
	go func() {
		<-w.ran
		closed <- store.Close()
	}()
	select {
	case err := <-closed:
		require.ErrorIs(t, err, projections.ErrUnwritten)
	case <-time.After(time.Minute):
		t.Fatal("the store does not end")
	}

	full.full.Store(false)
	require.Eventually(t, func() bool { // what was left to the end of the process ends here
		s, err := projections.Open(projections.Options{Dir: "store", FS: full})
		return err == nil && s.Close() == nil
	}, time.Minute, time.Millisecond)
	after := reopened(t, full, w.log)
	require.Equal(t, want, projectionstest.DigestOf(t, after))
}

// What waits for a full volume is kept in memory up to a bound. Behind it everybody is told
// so, instead of being left to wait; and when there is space the store goes on by itself,
// or ends when it is told to.
func TestAFullVolumeIsToldWhenItsMemoryIsUsedUp(t *testing.T) {
	projections.WritingEnd(t, 100*time.Millisecond)
	projections.SlowWrites(t, 100*time.Millisecond)
	projections.Replace(t, event.TypeHealthFail, func(e *event.Envelope, set func(key, value string)) {
		set(fmt.Sprintf("x%d", e.Seq), strings.Repeat("x", 16<<10))
	})
	full := &volume{FS: vfs.NewMem()}
	w := &world{t: t, fs: full, log: projectionstest.NewLog(), now: time.Unix(0, 1735689600000000000).UTC()}
	store, err := projections.Open(projections.Options{Dir: "store", FS: full})
	require.NoError(t, err)
	require.NoError(t, store.Connect(t.Context(), w.log))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ran := make(chan error, 1)
	go func() { ran <- store.Run(ctx, w.log) }()
	fill := func() {
		for range 3 << 10 {
			w.log.Append(t, event.New(w.now, event.Context{}, &event.HealthFail{}))
		}
	}
	full.full.Store(true)
	fill()
	require.ErrorIs(t, store.WaitApplied(t.Context(), uint64(w.log.Len())), projections.ErrFull)
	require.ErrorIs(t, store.Full(), syscall.ENOSPC)
	_, _, err = store.View().Approval("apr_1")
	require.ErrorIs(t, err, projections.ErrFull)
	require.Less(t, store.Applied().Seq, uint64(w.log.Len()))
	tries := full.refused.Load()
	require.Less(t, tries, int64(100), "it is tried again without a pause")

	full.full.Store(false)
	// While it catches up it may be full again for a moment, by the time that this test gives it.
	require.Eventually(t, func() bool { return store.WaitApplied(t.Context(), uint64(w.log.Len())) == nil }, time.Minute, time.Millisecond)
	require.NoError(t, store.Full())

	full.full.Store(true)
	fill()
	require.ErrorIs(t, store.WaitApplied(t.Context(), uint64(w.log.Len())), projections.ErrFull)
	cancel()
	require.ErrorIs(t, <-ran, context.Canceled)
	require.NoError(t, store.View().Close(), "who comes now does not wait")
	require.ErrorIs(t, store.Close(), projections.ErrUnwritten)
}

// A volume that takes nothing does not keep an opening for ever, nor one from its end.
func TestAnOpeningEndsWhereTheVolumeIsFull(t *testing.T) {
	projections.TryAgain(t, time.Millisecond)
	for name, c := range map[string]struct {
		patience time.Duration
		want     error
	}{"it is given up": {10 * time.Millisecond, projections.ErrFull}, "it is told to end": {time.Hour, context.Canceled}} {
		projections.OpeningTakes(t, c.patience)
		full := &volume{FS: vfs.NewMem()}
		full.full.Store(true)
		ctx, cancel := context.WithCancel(t.Context())
		opened := make(chan error, 1)
		go func() {
			_, err := projections.Open(projections.Options{Dir: "store", FS: full, Context: ctx})
			opened <- err
		}()
		require.Eventually(t, func() bool { return full.refused.Load() > 2 }, time.Minute, time.Millisecond)
		if c.want == context.Canceled {
			cancel()
		}
		select {
		case err := <-opened:
			require.ErrorIs(t, err, c.want, name)
		case <-time.After(time.Minute):
			t.Fatalf("%s: the store is opened for ever", name)
		}
		cancel()
		full.full.Store(false)
		require.Eventually(t, func() bool { // what was given up ends here
			s, err := projections.Open(projections.Options{Dir: "store", FS: full})
			return err == nil && s.Close() == nil
		}, time.Minute, time.Millisecond)
	}
}

// A disk that takes no manifest any more ends the opening: Pebble calls that fatal.
func TestAnOpeningEndsWhereTheDiskFails(t *testing.T) {
	mem := vfs.NewCrashableMem()
	store, err := projections.Open(projections.Options{Dir: "store", FS: mem})
	require.NoError(t, err)
	require.NoError(t, store.Close())
	failed := 0
	for most := int64(0); ; most++ {
		var writes atomic.Int64
		broken := errorfs.Wrap(mem.CrashClone(vfs.CrashCloneCfg{}), errorfs.InjectorFunc(func(op errorfs.Op) error {
			if strings.Contains(op.Path, "MANIFEST") && op.Kind.ReadOrWrite() == errorfs.OpIsWrite && writes.Add(1) > most {
				return errorfs.ErrInjected
			}
			return nil
		}))
		opened := make(chan error, 1)
		go func() {
			_, err := projections.Open(projections.Options{Dir: "store", FS: broken})
			opened <- err
		}()
		select {
		case err = <-opened:
		case <-time.After(time.Minute):
			t.Fatalf("write %d: the store is opened for ever", most)
		}
		if err == nil {
			break // it needs no more
		}
		failed++
	}
	require.Greater(t, failed, 2)
}
