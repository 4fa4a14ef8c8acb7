package eventlog

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/frame"
	"writegate/eventlog/frame/frametest"
)

// gatekeeper lets a test fail or hold calls on W from the moment it is armed.
type gatekeeper struct {
	mu   sync.Mutex
	kind frametest.Kind
	err  error
	hold chan struct{} // when set, calls of that kind wait for it
	held chan struct{} // told when one waits
	seen int
}

func (k *gatekeeper) hook(op frametest.Op) error {
	k.mu.Lock()
	if op.Name != testLog || op.Kind != k.kind {
		k.mu.Unlock()
		return nil
	}
	k.seen++
	err, hold, held := k.err, k.hold, k.held
	k.mu.Unlock()
	if hold != nil {
		held <- struct{}{}
		<-hold
	}
	return err
}

func (k *gatekeeper) failOn(kind frametest.Kind, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.kind, k.err, k.seen = kind, err, 0
}

// holdOn makes calls of a kind wait until the returned function is called.
func (k *gatekeeper) holdOn(kind frametest.Kind) (held <-chan struct{}, release func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.kind, k.hold, k.held = kind, make(chan struct{}), make(chan struct{}, 100)
	hold := k.hold
	return k.held, sync.OnceFunc(func() {
		k.mu.Lock()
		k.hold = nil
		k.mu.Unlock()
		close(hold)
	})
}

func guarded(t *testing.T, o func(*Options)) (*Log, *gatekeeper, *frametest.Mem) {
	t.Helper()
	mem, k := newMem(t), &gatekeeper{}
	opts := memOptions(frametest.Inject(mem, k.hook))
	opts.PreallocateBytes = 0
	if o != nil {
		o(&opts)
	}
	l, _ := mustOpen(t, opts)
	return l, k, mem
}

// TestAFailedWriteOrSyncPoisonsTheLog covers short writes, EIO, ENOSPC and a
// sync that fails once while the next would succeed.
func TestAFailedWriteOrSyncPoisonsTheLog(t *testing.T) {
	for name, c := range map[string]struct {
		kind frametest.Kind
		err  error
	}{
		"short write":  {frametest.Pwrite, frametest.Short{N: 50, Err: io.ErrShortWrite}},
		"EIO on write": {frametest.Pwrite, syscall.EIO},
		"ENOSPC":       {frametest.Pwrite, syscall.ENOSPC},
		"EIO on sync":  {frametest.Datasync, syscall.EIO},
	} {
		t.Run(name, func(t *testing.T) {
			l, k, mem := guarded(t, nil)
			known := newLedger()
			require.NoError(t, known.append(l, "before", 2))
			k.failOn(c.kind, c.err)
			err := known.append(l, "hit", 1)
			require.ErrorIs(t, err, ErrOutcomeUnknown)
			require.ErrorIs(t, err, rootOf(c.err), "the cause is told")
			k.failOn("", nil)

			err = known.append(l, "later", 1)
			require.ErrorIs(t, err, ErrNotWritten, "poison is sticky, though the disk works again")
			_, err = l.Append(context.Background(), Group{Drafts: group("r").Drafts, Reserve: true})
			require.ErrorIs(t, err, ErrNotWritten, "and the reserve does not pass it")
			require.Equal(t, ExitPoisoned, ExitCode(<-l.Fatal()))
			require.False(t, l.Health().OK)
			require.Equal(t, "poisoned", l.Health().Step)
			require.Equal(t, uint64(2), l.Head().Seq, "the head stays")
			require.Error(t, l.Close(context.Background()))

			head, err := frame.ReadHead(mem, testLog+frame.HeadSuffix)
			require.NoError(t, err)
			require.Equal(t, uint64(2), head.Seq)
			require.False(t, head.Clean, "a poisoned log leaves no clean mark")
			known.reopen(t, memOptions(mem))
		})
	}
}

func TestNothingIsWrittenOrSyncedAfterAPoison(t *testing.T) {
	l, k, _ := guarded(t, nil)
	mustAppend(t, l, "a")
	k.failOn(frametest.Datasync, syscall.EIO)
	_, err := l.Append(context.Background(), group("b"))
	require.ErrorIs(t, err, ErrOutcomeUnknown)
	for _, kind := range []frametest.Kind{frametest.Datasync, frametest.Pwrite, frametest.Cut} {
		k.failOn(kind, nil)
		_, err = l.Append(context.Background(), group("c"))
		require.ErrorIs(t, err, ErrNotWritten)
		require.Error(t, l.Close(context.Background()))
		require.Zero(t, k.seen, kind)
	}
}

// TestWaitersLearnWhetherTheirGroupWasWritten holds a sync that will fail while
// other groups gather behind it.
func TestWaitersLearnWhetherTheirGroupWasWritten(t *testing.T) {
	l, k, _ := guarded(t, nil)
	k.failOn(frametest.Datasync, syscall.EIO)
	held, release := k.holdOn(frametest.Datasync)
	defer release()
	first := appendLater(l, group("written"))
	<-held
	var behind []<-chan error
	for range 10 {
		behind = append(behind, appendLater(l, group("waiting")))
	}
	require.Eventually(t, func() bool { return queued(l) == 10 }, time.Minute, time.Millisecond)
	release()
	require.ErrorIs(t, <-first, ErrOutcomeUnknown)
	for _, b := range behind {
		err := <-b
		require.ErrorIs(t, err, ErrNotWritten)
		require.NotErrorIs(t, err, ErrOutcomeUnknown)
	}
}

func appendLater(l *Log, g Group) <-chan error {
	out := make(chan error, 1)
	go func() {
		_, err := l.Append(context.Background(), g)
		out <- err
	}()
	return out
}

func queued(l *Log) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.filling.waiters)
}

// TestAFailedSyncIsNotBelievedByTheNextProcess: the cache still shows the batch
// of a failed sync, the disk does not have it.
func TestAFailedSyncIsNotBelievedByTheNextProcess(t *testing.T) {
	l, k, mem := guarded(t, nil)
	known := newLedger()
	require.NoError(t, known.append(l, "kept", 3))
	k.failOn(frametest.Datasync, syscall.EIO)
	require.ErrorIs(t, known.append(l, "gone", 3), ErrOutcomeUnknown)
	require.NoError(t, mem.FailedSync(testLog))
	require.Error(t, l.Close(context.Background()))

	again, rec := mustOpen(t, memOptions(mem))
	require.False(t, rec.Clean)
	require.Equal(t, uint64(3), again.Head().Seq, "what only the cache had is not served")
	known.check(t, again)
	mustClose(t, again)
	known.reopen(t, memOptions(mem.Crash(0, 1)))
}

// TestTheLastBatchIsMadeSureBeforeAnythingFollows: bytes that reached the cache
// but not the disk are rewritten and synced by the next open.
func TestTheLastBatchIsMadeSureBeforeAnythingFollows(t *testing.T) {
	mem := newMem(t)
	o := memOptions(mem)
	l, _ := mustOpen(t, o)
	mustAppend(t, l, "a")
	mustAppend(t, l, "b")
	survivor := mem.Crash(100, 7) // a killed process: the cache is all there

	var rewritten atomic.Bool
	hook := func(op frametest.Op) error {
		if op.Name == testLog && op.Kind == frametest.Pwrite && op.Off < l.Head().Offset {
			rewritten.Store(true)
		}
		return nil
	}
	o.FS = frametest.Inject(survivor, hook)
	again, rec := mustOpen(t, o)
	require.False(t, rec.Clean)
	require.True(t, rewritten.Load())
	require.Equal(t, uint64(2), again.Head().Seq)
	left, err := Verify(context.Background(), memOptions(survivor.Crash(0, 8)))
	require.NoError(t, err)
	require.Equal(t, uint64(2), left.LastSeq, "a power cut right after the open loses nothing that it served")
}

// A volume that was frozen for a snapshot blocks the write before the sync.
func TestASlowWriteOrSyncRefusesCommands(t *testing.T) {
	t.Run("write", func(t *testing.T) { slowCallRefusesCommands(t, frametest.Pwrite) })
	t.Run("sync", func(t *testing.T) { slowCallRefusesCommands(t, frametest.Datasync) })
}

// So does one that waits for space that another thread of the process makes.
func TestASlowWaitForSpaceRefusesCommands(t *testing.T) {
	l, k, _ := guarded(t, func(o *Options) {
		o.SlowSync, o.StuckSync, o.PreallocateBytes = 20*time.Millisecond, time.Hour, 1<<20
	})
	zeros, release := k.holdOn(frametest.Pwrite)
	defer release()
	l.mu.Lock()
	l.allocated = l.filling.end() // as if it were used up
	l.mu.Unlock()
	first := appendLater(l, group("waits"))
	<-zeros
	require.Eventually(t, func() bool { return !l.Health().OK }, time.Minute, time.Millisecond)
	_, err := l.Append(context.Background(), group("refused"))
	require.ErrorIs(t, err, ErrNotWritten)
	release()
	require.NoError(t, <-first)
	require.Eventually(t, func() bool { return l.Health().OK }, time.Minute, time.Millisecond)
	require.Equal(t, []string{"waits"}, names(t, l))
}

// A wait that ends because the volume is full is over: nothing hangs, and the log goes on
// refusing for as long as there is no space.
func TestAWaitForSpaceThatIsGivenUpIsNoHangingDisk(t *testing.T) {
	l, k, _ := guarded(t, func(o *Options) {
		o.SlowSync, o.StuckSync, o.PreallocateBytes = 20*time.Millisecond, time.Hour, 1<<20
	})
	zeros, release := k.holdOn(frametest.Pwrite)
	defer release()
	l.mu.Lock()
	l.allocated = l.filling.end()
	l.mu.Unlock()
	first := appendLater(l, group("waits"))
	<-zeros
	require.Eventually(t, func() bool { return l.syncSince.Load() != 0 }, time.Minute, time.Millisecond)
	l.lengthened(0, true)
	require.ErrorIs(t, <-first, ErrStorageFull)
	require.Eventually(t, func() bool { return l.syncSince.Load() == 0 }, 10*time.Second, time.Millisecond, "the watchdog would end the process")
	require.Equal(t, "storage", l.Health().Step)
}

func slowCallRefusesCommands(t *testing.T, call frametest.Kind) {
	l, k, _ := guarded(t, func(o *Options) { o.SlowSync, o.StuckSync = 20*time.Millisecond, time.Hour })
	held, release := k.holdOn(call)
	defer release()
	first := appendLater(l, group("slow"))
	<-held
	require.Eventually(t, func() bool { return !l.Health().OK }, time.Minute, time.Millisecond)
	require.Equal(t, "sync", l.Health().Step)
	_, err := l.Append(context.Background(), group("refused"))
	require.ErrorIs(t, err, ErrNotWritten)
	result := appendLater(l, Group{Drafts: group("result").Drafts, Reserve: true})
	require.Eventually(t, func() bool { return queued(l) == 1 }, time.Minute, time.Millisecond, "what has happened is still taken")
	release()
	require.NoError(t, <-first)
	require.NoError(t, <-result)
	require.True(t, l.Health().OK)
	require.Equal(t, []string{"slow", "result"}, names(t, l))
}

// A rotation syncs without a batch behind it, so that no commit tells that the
// disk answers again.
func TestASlowSyncOfARotationRefusesCommandsOnlyWhileItLasts(t *testing.T) {
	l, k, _ := guarded(t, func(o *Options) {
		o.SlowSync, o.StuckSync, o.SegmentBytes = 20*time.Millisecond, time.Hour, frame.HeaderSize+1
	})
	held, release := k.holdOn(frametest.Sync)
	defer release()
	mustAppend(t, l, "fills the segment")
	<-held
	require.Eventually(t, func() bool { return !l.Health().OK }, time.Minute, time.Millisecond)
	require.Equal(t, "sync", l.Health().Step)
	_, err := l.Append(context.Background(), group("refused"))
	require.ErrorIs(t, err, ErrNotWritten)
	release()
	// The rotation syncs more than this once, and on a busy machine any of them may be slow.
	require.Eventually(t, func() bool {
		_, err := l.Append(context.Background(), group("goes on"))
		return err == nil
	}, time.Minute, time.Millisecond, "the sync has returned")
	mustClose(t, l)
}

func TestAStuckSyncAnswersItsWaiters(t *testing.T) {
	l, k, _ := guarded(t, func(o *Options) { o.SlowSync, o.StuckSync = 10*time.Millisecond, 50*time.Millisecond })
	held, release := k.holdOn(frametest.Datasync)
	defer release()
	first := appendLater(l, group("stuck"))
	<-held
	require.ErrorIs(t, <-first, ErrOutcomeUnknown)
	require.Equal(t, ExitPoisoned, ExitCode(<-l.Fatal()))
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, l.Close(ctx), context.DeadlineExceeded, "the flusher hangs: nothing is closed under it")
	require.Zero(t, l.Head().Seq)
}

func TestWrittenGroupsAnswerBeforeTheSync(t *testing.T) {
	l, k, _ := guarded(t, nil)
	held, release := k.holdOn(frametest.Datasync)
	defer release()
	durable := appendLater(l, group("decision"))
	<-held
	written := appendLater(l, Group{Drafts: group("result").Drafts, Ack: Written})
	require.Eventually(t, func() bool { return queued(l) == 1 }, time.Minute, time.Millisecond)
	release() // lets this sync go and holds the next no more
	require.NoError(t, <-durable)
	require.NoError(t, <-written)
	require.Eventually(t, func() bool { return l.Head().Seq == 2 }, time.Minute, time.Millisecond, "its sync is over, and is not the next one held")

	held, release = k.holdOn(frametest.Datasync)
	defer release()
	_, err := l.Append(context.Background(), Group{Drafts: group("early").Drafts, Ack: Written})
	require.NoError(t, err, "it answers while its sync is held")
	<-held
	require.Equal(t, uint64(2), l.Head().Seq, "and nobody sees it before it is durable")
	last, ok := l.Reaches(4)
	require.Equal(t, []any{uint64(3), true}, []any{last, ok}, "but who was told of it may go on behind it")
	_, ok = l.Reaches(5)
	require.False(t, ok, "nobody was told of event 4")
	_, err = l.At(context.Background(), 3)
	require.ErrorIs(t, err, ErrNotFound)
	release()
	require.Eventually(t, func() bool { return l.Head().Seq == 3 }, time.Minute, time.Millisecond)
}

func TestBackPressureHoldsAppendersAndTheirContextCounts(t *testing.T) {
	l, k, _ := guarded(t, nil)
	held, release := k.holdOn(frametest.Datasync)
	defer release()
	first := appendLater(l, group("first"))
	<-held
	big := Group{Drafts: group(numbered("n", batchFrames)...).Drafts}
	filling := appendLater(l, big)
	require.Eventually(t, func() bool { return queued(l) == 1 }, time.Minute, time.Millisecond)

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := l.Append(ctx, group("no room"))
	require.ErrorIs(t, err, ErrNotWritten)
	require.ErrorIs(t, err, context.Canceled)
	waiting := appendLater(l, group("waits"))
	release()
	for _, c := range []<-chan error{first, filling, waiting} {
		require.NoError(t, <-c)
	}
	require.Equal(t, uint64(batchFrames+2), l.Head().Seq)
}

// TestAFullVolumeKeepsAReserve: new commands are refused, the half that is left
// takes results, and commands are taken again once there is space.
func TestAFullVolumeKeepsAReserve(t *testing.T) {
	var full atomic.Bool
	mem := newMem(t)
	hook := func(op frametest.Op) error {
		// Only zeros for preallocation lengthen the file; batches lie before its end.
		if op.Name == testLog && op.Kind == frametest.Pwrite && op.Len >= 4096 && full.Load() {
			return syscall.ENOSPC
		}
		return nil
	}
	o := memOptions(frametest.Inject(mem, hook))
	l, _ := mustOpen(t, o)
	known := newLedger()
	require.NoError(t, known.append(l, "before", 1))
	full.Store(true)
	var err error
	for i := 0; err == nil; i++ {
		require.Less(t, i, 1000, "the volume is full, so it has to end")
		err = known.append(l, numbered("fill", 1000)[i], 1)
	}
	require.ErrorIs(t, err, ErrStorageFull)
	require.Equal(t, "storage", l.Health().Step)
	require.Contains(t, l.Health().Message, "storage_full")

	_, err = l.Append(context.Background(), Group{Drafts: group("result").Drafts, Reserve: true})
	require.NoError(t, err, "the reserve takes results")
	for err == nil {
		_, err = l.Append(context.Background(), Group{Drafts: group("results until it is used up").Drafts, Reserve: true})
	}
	require.ErrorIs(t, err, ErrStorageFull)
	require.NoError(t, l.Serving())

	full.Store(false)
	require.Eventually(t, func() bool { return l.Health().OK }, time.Minute, 10*time.Millisecond)
	require.NoError(t, known.append(l, "again", 3))
	mustClose(t, l)
	mustVerify(t, memOptions(mem), frame.OK)
}

// TestCommandsDoNotUseUpTheReserveBeforeTheVolumeIsKnownToBeFull: while the
// helper has not yet been told that there is no space, commands wait for it
// with a part of the space untouched, and a result that came into their batch
// is written all the same.
func TestCommandsDoNotUseUpTheReserveBeforeTheVolumeIsKnownToBeFull(t *testing.T) {
	var full atomic.Bool
	held := make(chan struct{})
	answer := sync.OnceFunc(func() { close(held) })
	mem := newMem(t)
	hook := func(op frametest.Op) error {
		if op.Name == testLog && op.Kind == frametest.Pwrite && op.Len >= 4096 && full.Load() {
			<-held
			return syscall.ENOSPC
		}
		return nil
	}
	o := memOptions(frametest.Inject(mem, hook))
	l, _ := mustOpen(t, o)
	t.Cleanup(answer)
	left := func() int64 {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.allocated - l.filling.end()
	}
	mustAppend(t, l, "command")
	before := left()
	mustAppend(t, l, "command")
	size := before - left()
	full.Store(true)
	for left() >= o.PreallocateBytes/4+size {
		mustAppend(t, l, "command")
	}
	command := appendLater(l, group("command"))
	require.Eventually(t, func() bool { return queued(l) == 1 }, time.Minute, time.Millisecond)
	result := appendLater(l, Group{Drafts: group("result").Drafts, Reserve: true})
	require.Eventually(t, func() bool { return queued(l) == 2 }, time.Minute, time.Millisecond)
	answer()
	require.ErrorIs(t, <-command, ErrStorageFull)
	require.NoError(t, <-result, "what ran is recorded")
	require.GreaterOrEqual(t, left(), o.PreallocateBytes/4-size, "there is space for more results")
	mustClose(t, l)
	mustVerify(t, memOptions(mem), frame.OK)
}

func TestABatchThatFindsNoSpaceIsTakenBackWhole(t *testing.T) {
	var full atomic.Bool
	mem := newMem(t)
	hook := func(op frametest.Op) error {
		if op.Name == testLog && op.Kind == frametest.Pwrite && op.Len >= 4096 && full.Load() {
			return syscall.ENOSPC
		}
		return nil
	}
	l, _ := mustOpen(t, memOptions(frametest.Inject(mem, hook)))
	known := newLedger()
	require.NoError(t, known.append(l, "before", 1))
	full.Store(true)
	require.ErrorIs(t, known.append(l, "too large for what is left", 200), ErrStorageFull)
	require.Equal(t, uint64(1), l.Head().Seq)
	full.Store(false)
	require.Eventually(t, func() bool { return l.Health().OK }, time.Minute, 10*time.Millisecond)
	require.NoError(t, known.append(l, "again", 200))
	known.check(t, l)
	mustClose(t, l)
	mustVerify(t, memOptions(mem), frame.OK)
}

func TestAFailedSyncOfPreallocatedSpacePoisons(t *testing.T) {
	l, k, _ := guarded(t, func(o *Options) { o.PreallocateBytes = 16 << 10 })
	mustAppend(t, l, "a")
	l.lengthening.Lock() // what it is at would tell of its space behind the next lines
	k.failOn(frametest.Datasync, syscall.EIO)
	l.mu.Lock()
	l.allocated = l.filling.end() // as if the helper had fallen behind
	l.askForSpace()
	l.mu.Unlock()
	l.lengthening.Unlock()
	require.ErrorIs(t, <-l.Fatal(), syscall.EIO)
	_, err := l.Append(context.Background(), group("b"))
	require.ErrorIs(t, err, ErrNotWritten)
}

func rootOf(err error) error {
	for errors.Unwrap(err) != nil {
		err = errors.Unwrap(err)
	}
	return err
}
