package eventlog

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/frame"
	"writegate/eventlog/frame/frametest"
	"writegate/fixtures/manualclock"
)

// rotating is memOptions with segments of a few batches.
func rotating(fs frame.FS) Options {
	o := memOptions(fs)
	o.SegmentBytes = frame.HeaderSize + 2000
	return o
}

// sealedNames gives the files of the sealed segments.
func sealedNames(t testing.TB, fs frame.FS) []string {
	t.Helper()
	names, err := fs.List(testLog + frame.SegmentsSuffix)
	require.NoError(t, err)
	return names
}

// segmented makes a closed log of some sealed segments, and one that is active
// and not empty.
func segmented(t *testing.T) (*frametest.Mem, *ledger) {
	t.Helper()
	mem, known := newMem(t), newLedger()
	l, _ := mustOpen(t, rotating(mem))
	for i := 0; l.Head().Segment < 3; i++ {
		require.NoError(t, known.append(l, fmt.Sprint("g", i), 3))
		settled(l)
	}
	require.NoError(t, known.append(l, "last", 2))
	mustClose(t, l)
	return mem, known
}

// settled waits until the flusher has looked whether a rotation is due: after
// that, another group finds the segment it belongs to. One that found the
// preallocation at work comes only after a later batch, so it is not waited for
// long; without preallocation nothing holds it up.
func settled(l *Log) {
	patience := time.Second
	if l.o.PreallocateBytes == 0 {
		patience = time.Minute
	}
	for end := time.Now().Add(patience); l.rotationDue() && time.Now().Before(end); {
		time.Sleep(50 * time.Microsecond)
	}
}

func TestTheChainRunsThroughSegments(t *testing.T) {
	mem, known := segmented(t)
	r := mustVerify(t, memOptions(mem), frame.OK)
	require.EqualValues(t, 3, r.Head.Segment)
	require.Len(t, sealedNames(t, mem), 3)
	require.EqualValues(t, len(known.acked), r.EventCount)
	require.Equal(t, frame.L1, r.AnchorLevel)

	l, rec := mustOpen(t, rotating(mem))
	require.True(t, rec.Clean)
	known.check(t, l)
	for seq := uint64(1); seq <= r.LastSeq; seq++ {
		e, err := l.At(context.Background(), seq)
		require.NoError(t, err)
		require.Equal(t, seq, e.Seq)
		next := seq
		for e, err := range l.From(context.Background(), seq) {
			require.NoError(t, err)
			require.Equal(t, next, e.Seq)
			next++
		}
		require.Equal(t, r.LastSeq+1, next)
	}
	require.NoError(t, known.append(l, "more", 40))
	known.check(t, l)
	mustClose(t, l)
	known.reopen(t, rotating(mem))
}

// A seventh digit would make a name that is no segment's, and so a gap in the log.
func TestNoSegmentIsBegunBehindTheLastOneThatHasAName(t *testing.T) {
	mem, known := newMem(t), newLedger()
	l, _ := mustOpen(t, memOptions(mem))
	require.NoError(t, known.append(l, "g", 1))
	number := l.active.number
	l.active.number = frame.MaxSealed + 1
	_, err := l.makeNext()
	require.ErrorContains(t, err, "segment 1000000 can't be sealed")
	l.active.number = number
	mustClose(t, l)
	known.reopen(t, memOptions(mem))
}

func TestAnEmptySegmentIsNotSealedAndALogGoesOnFromOne(t *testing.T) {
	mem, known := newMem(t), newLedger()
	o := rotating(mem)
	o.SegmentBytes = 1     // less than a header
	o.PreallocateBytes = 0 // so that each event gets its segment
	l, _ := mustOpen(t, o)
	for i := range 5 {
		require.NoError(t, known.append(l, fmt.Sprint("g", i), 1))
		settled(l)
	}
	require.EqualValues(t, 5, l.Head().Segment)
	require.EqualValues(t, frame.HeaderSize, l.Head().Offset)
	mustClose(t, l)
	for range 2 {
		l, rec := mustOpen(t, o)
		require.True(t, rec.Clean)
		require.EqualValues(t, 5, l.Head().Segment)
		known.check(t, l)
		mustClose(t, l)
	}
	known.reopen(t, o)
}

// TestASegmentIsSealedByAge: the age is counted from the segment's first event,
// over a restart, and a clock that goes back seals nothing.
func TestASegmentIsSealedByAge(t *testing.T) {
	mem, clock := newMem(t), manualclock.At(testTime) // receipts are signed beside the appends, and look at it
	o := memOptions(mem)
	o.SegmentAge, o.Now = time.Hour, clock.Now
	o.PreallocateBytes = 0 // at work after a start, it may put a rotation off to a later batch
	appendNow := func(l *Log) uint32 {
		d := draft("a", 1)
		d.Time = clock.Now()
		_, err := l.Append(context.Background(), Group{Drafts: append(group("x").Drafts[:0:0], d)})
		require.NoError(t, err)
		mustClose(t, l)
		return mustVerify(t, o, frame.OK).End.Segment
	}
	for _, c := range []struct {
		after time.Duration
		want  uint32
	}{{0, 0}, {30 * time.Minute, 0}, {-9 * time.Hour, 0}, {59 * time.Minute, 0}, {61 * time.Minute, 1}, {62 * time.Minute, 1}} {
		clock.Advance(testTime.Add(c.after).Sub(clock.Now()))
		l, _ := mustOpen(t, o)
		settled(l)
		require.Equal(t, c.want, appendNow(l), c.after)
	}
}

// TestReadersGoOnWhileSegmentsAreSealed: readers from the beginning, single
// looks, followers, the JSONL file and verifications, beside writers.
func TestReadersGoOnWhileSegmentsAreSealed(t *testing.T) {
	o := Options{
		Path: t.TempDir() + "/audit.wal", SegmentBytes: 24 << 10, PreallocateBytes: 16 << 10, Origin: "test",
		Now: func() time.Time { return testTime },
	}
	o.JSONLPath, o.IndexPath = parent(o.Path)+"/audit.log", parent(o.Path)+"/index.json"
	l, _ := mustOpen(t, o)
	known := newLedger()
	require.NoError(t, known.append(l, "first", 1))
	done := make(chan struct{})
	following, stop := context.WithCancel(context.Background())
	defer stop()
	var followed atomic.Uint64
	var readers, writers sync.WaitGroup
	readers.Go(func() {
		for next := uint64(1); following.Err() == nil; {
			for b, err := range l.Follow(following, next) {
				if following.Err() != nil {
					return
				}
				if err != nil || b.Events[0].Seq != next {
					t.Errorf("follow: event %d: %v", next, err)
					return
				}
				next = b.Last() + 1
				followed.Store(b.Last())
			}
		}
	})
	again := func(f func(head uint64) error) {
		readers.Go(func() {
			for {
				if err := f(l.Head().Seq); err != nil {
					t.Error(err)
					return
				}
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	again(func(head uint64) error {
		next := head/2 + 1
		for e, err := range l.From(context.Background(), next) {
			if err != nil || e.Seq != next {
				return fmt.Errorf("from: event %d: %w", next, err)
			}
			next++
		}
		return nil
	})
	again(func(head uint64) error {
		_, err := l.At(context.Background(), head/3+1)
		return err
	})
	again(func(uint64) error { return isOK(l.Verify(context.Background())) })
	link := parent(o.Path) + "/link"
	require.NoError(t, os.Symlink("audit.wal", link))
	for _, path := range []string{o.Path, link} {
		again(func(uint64) error { return isOK(Verify(context.Background(), Options{Path: path})) })
	}
	for a := range 4 {
		writers.Go(func() {
			// A rotation does not wait for a verifier, so how many there are in 60 rounds
			// is for the processor to tell.
			for i := 0; i < 60 || l.Head().Segment <= 3; i++ {
				if err := known.append(l, fmt.Sprintf("%d.%d", a, i), 3); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	writers.Wait()
	require.Eventually(t, func() bool { return followed.Load() == l.Head().Seq || t.Failed() }, time.Minute, time.Millisecond)
	stop()
	close(done)
	readers.Wait()
	mustClose(t, l)
	known.reopen(t, o)
}

func isOK(r frame.Report, err error) error {
	if err == nil && r.Status != frame.OK {
		err = fmt.Errorf("%s: %+v", r.Status, r.Faults)
	}
	return err
}

// TestAPowerCutDuringARotation cuts the power before each call of a life in which
// segments are sealed: the next open finishes what was begun.
func TestAPowerCutDuringARotation(t *testing.T) {
	mem, known := newMem(t), newLedger()
	c := &clones{mem: mem, ledger: known}
	o := rotating(frametest.Inject(mem, c.hook))
	o.IndexPath, o.JSONLPath = "/log/audit_index_v1.json", "/log/audit.log"
	for run := range 2 {
		l, _, err := Open(context.Background(), o)
		require.NoError(t, err)
		for i := range 5 {
			require.NoError(t, known.append(l, fmt.Sprintf("g%d.%d", run, i), 4+i))
			settled(l)
		}
		mustClose(t, l)
	}
	finished, doubled := 0, 0
	for _, clone := range c.taken {
		t.Run("", func(t *testing.T) {
			t.Logf("before %s %s", clone.op.Kind, clone.op.Name)
			o := rotating(clone.mem)
			state := rotationState(t, clone.mem)
			if state == bothNames {
				doubled++
				mustOpenAll(t, clone, o)
				return
			}
			if state == noActive {
				finished++
			}
			clone.ledger.reopen(t, o)
		})
	}
	require.Greater(t, finished+doubled, 5, "the cuts should have hit some hand-overs")
}

const (
	whole     = "whole"
	noActive  = "no active segment"
	bothNames = "a sealed segment under both names"
)

// rotationState tells what the file system shows of a rotation.
func rotationState(t *testing.T, mem *frametest.Mem) string {
	t.Helper()
	names, err := mem.List(testLog + frame.SegmentsSuffix)
	if err != nil || len(names) == 0 {
		return whole
	}
	active, err := mem.ReadFile(testLog)
	if err != nil {
		return noActive
	}
	last, err := mem.ReadFile(path.Join(testLog+frame.SegmentsSuffix, names[len(names)-1]))
	require.NoError(t, err)
	if strings.HasPrefix(string(active), string(last)) {
		return bothNames
	}
	return whole
}

// mustOpenAll is reopen for a state that only a disk without renames of one step
// leaves, and that a verifier from outside calls what it looks like.
func mustOpenAll(t *testing.T, clone clone, o Options) {
	t.Helper()
	l, rec, err := Open(context.Background(), o)
	require.NoError(t, err)
	require.NoError(t, l.Serving(), "%+v", rec.Report.Faults)
	mustClose(t, l)
	clone.ledger.reopen(t, o)
}

// TestFinishingARotationMayDieAnywhere cuts the power before each call of an open
// that finishes a rotation.
func TestFinishingARotationMayDieAnywhere(t *testing.T) {
	for name, spoil := range map[string]func(*frametest.Mem, string) error{
		noActive: func(m *frametest.Mem, last string) error { return errors.Join(m.Remove(testLog), m.SyncDir("/log")) },
		bothNames: func(m *frametest.Mem, last string) error {
			b, err := m.ReadFile(last)
			return errors.Join(err, m.WriteFile(testLog, append(b, make([]byte, 5000)...)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			mem, known := segmented(t)
			l, _ := mustOpen(t, rotating(mem))
			for l.Head().Offset > frame.HeaderSize { // nothing but a header is lost then
				require.NoError(t, known.append(l, fmt.Sprint("fill", l.Head().Seq), 1))
				settled(l)
			}
			mustClose(t, l)
			names := sealedNames(t, mem)
			require.NoError(t, spoil(mem, path.Join(testLog+frame.SegmentsSuffix, names[len(names)-1])))
			require.Equal(t, name, rotationState(t, mem))
			c := &clones{mem: mem, ledger: known}
			l, rec, err := Open(context.Background(), rotating(frametest.Inject(mem, c.hook)))
			require.NoError(t, err)
			require.NoError(t, l.Serving())
			require.Contains(t, strings.Join(rec.Warnings, "\n"), "the rotation was finished")
			require.NoError(t, known.append(l, "on", 3))
			mustClose(t, l)
			require.NotEmpty(t, c.taken)
			for _, clone := range c.taken {
				mustOpenAll(t, clone, rotating(clone.mem))
			}
		})
	}
}

func TestAMissingActiveSegmentThatAnAnchorKnowsIsLoss(t *testing.T) {
	mem, _ := segmented(t)
	require.NoError(t, mem.Remove(testLog))
	require.NoError(t, mem.SyncDir("/log"))
	mustRefuse(t, mem, rotating(mem), ErrCorrupt)
}

// TestARotationThatFails: what comes before the hand-over leaves the log in its
// old segment; what comes after poisons it. Nothing acknowledged is missing, and
// nothing is acknowledged in a segment whose name is not durable.
func TestARotationThatFails(t *testing.T) {
	segments := testLog + frame.SegmentsSuffix
	for _, c := range []struct {
		name   string
		kind   frametest.Kind
		file   string
		err    error
		poison bool
	}{
		{"folder of segments can't be made", frametest.MkdirAll, segments, syscall.EACCES, false},
		{"next segment can't be made", frametest.Create, testLog + frame.NextSuffix, syscall.ENOSPC, false},
		{"next segment can't be written", frametest.Pwrite, testLog + frame.NextSuffix, syscall.ENOSPC, false},
		{"next segment can't be synced", frametest.Sync, testLog + frame.NextSuffix, syscall.EIO, false},
		{"next segment can't be read", frametest.Open, testLog + frame.NextSuffix, syscall.EMFILE, false},
		{"old segment can't be cut", frametest.Cut, testLog, syscall.EPERM, false},
		{"old segment can't be synced", frametest.Sync, testLog, syscall.EIO, true},
		{"old segment can't be renamed", frametest.Rename, testLog, syscall.EIO, true},
		{"folder of segments can't be written", frametest.Rename, testLog, syscall.EACCES, false},
		{"old segment is mounted by itself", frametest.Rename, testLog, syscall.EBUSY, false},
		{"folder of segments can't grow", frametest.Rename, testLog, syscall.ENOSPC, false},
		{"its folder can't be synced", frametest.SyncDir, segments, syscall.EIO, true},
		{"next segment can't be renamed", frametest.Rename, testLog + frame.NextSuffix, syscall.EIO, true},
		{"the folder can't be synced", frametest.SyncDir, "/log", syscall.EIO, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			mem, known := newMem(t), newLedger()
			var failing atomic.Bool
			hits := 0
			o := rotating(frametest.Inject(mem, func(op frametest.Op) error {
				if !failing.Load() || op.Kind != c.kind || op.Name != c.file {
					return nil
				}
				if hits++; c.name == "the folder can't be synced" && hits == 1 {
					return nil // the first sync there is of the folder for segments
				}
				return c.err
			}))
			l, _ := mustOpen(t, o)
			failing.Store(true)
			refused := error(nil)
			for i := 0; i < 30 && refused == nil; i++ {
				refused = known.append(l, fmt.Sprint("g", i), 2)
			}
			require.Equal(t, c.poison, refused != nil)
			if !c.poison {
				failing.Store(false)
				require.NoError(t, known.append(l, "on", 1))
				known.check(t, l)
				mustClose(t, l)
			} else {
				require.ErrorIs(t, refused, ErrNotWritten)
				require.ErrorIs(t, <-l.Fatal(), c.err)
				require.Error(t, l.Close(context.Background()))
			}
			for _, kept := range []int{0, 50, 100} {
				left := mem.Crash(kept, 7)
				if rotationState(t, left) == bothNames {
					mustOpenAll(t, clone{ledger: known.snapshot()}, rotating(left))
				} else {
					known.snapshot().reopen(t, rotating(left))
				}
			}
		})
	}
}

// TestAFolderOfSegmentsOnAnotherVolume: the log goes on in one segment, with all of
// its preallocation, over restarts, and rotates once the folder is where it has to be.
func TestAFolderOfSegmentsOnAnotherVolume(t *testing.T) {
	elsewhere, err := os.MkdirTemp("/dev/shm", "segments")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(elsewhere) })
	dir := t.TempDir()
	var fs frame.OS
	here, err := fs.Stat(dir)
	require.NoError(t, err)
	there, err := fs.Stat(elsewhere)
	require.NoError(t, err)
	require.NotEqual(t, here.Dev, there.Dev)

	known, segments := newLedger(), dir+"/audit.wal"+frame.SegmentsSuffix
	require.NoError(t, os.Symlink(elsewhere, segments))
	o := rotating(fs)
	o.Path = dir + "/audit.wal"
	for run := range 3 {
		l, _ := mustOpen(t, o)
		for i := range 10 {
			require.NoError(t, known.append(l, fmt.Sprintf("g%d.%d", run, i), 3))
		}
		require.NoError(t, l.Serving())
		require.Zero(t, l.Head().Segment)
		l.mu.Lock()
		allocated := l.allocated
		l.mu.Unlock()
		info, err := os.Stat(o.Path)
		require.NoError(t, err)
		require.GreaterOrEqual(t, info.Size(), allocated, "the reserve of a full volume is there")
		known.check(t, l)
		mustClose(t, l)
		require.False(t, l.rotateAfter.IsZero(), "a rotation was due")
		require.NoFileExists(t, o.Path+frame.NextSuffix)
	}
	require.NoError(t, os.Remove(segments))
	l, _ := mustOpen(t, o)
	for i := 0; l.Head().Segment == 0; i++ {
		require.NoError(t, known.append(l, fmt.Sprint("on", i), 3))
		settled(l)
	}
	mustClose(t, l)
	known.reopen(t, o)
}

// TestTheReserveOfAFullVolumeIsNotCutOff: while there is no space, results still
// fit into the old segment.
func TestTheReserveOfAFullVolumeIsNotCutOff(t *testing.T) {
	mem, known := newMem(t), newLedger()
	var fullNow atomic.Bool
	o := memOptions(frametest.Inject(mem, func(op frametest.Op) error {
		if fullNow.Load() && op.Kind == frametest.Pwrite && op.Len >= 4096 && op.Name != testLog+frame.HeadSuffix {
			return syscall.ENOSPC
		}
		return nil
	}))
	o.SegmentBytes = 6 << 10
	l, _ := mustOpen(t, o)
	require.NoError(t, known.append(l, "a", 1))
	fullNow.Store(true)
	halfLeft := func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.allocated-l.durable.Offset < o.PreallocateBytes/2
	}
	for !halfLeft() {
		require.NoError(t, known.append(l, fmt.Sprint("fill", l.Head().Seq), 1))
	}
	require.Eventually(t, func() bool { l.askForSpace(); return l.Health().Step == "storage" }, time.Minute, time.Millisecond)
	require.Zero(t, l.Head().Segment)
	_, err := l.Append(context.Background(), Group{Drafts: group("result").Drafts, Reserve: true})
	require.NoError(t, err)
	mustClose(t, l)
	mustVerify(t, memOptions(mem), frame.OK)
}

// TestTheLocksHoldDuringTheHandOver opens a second writer, by every name, at each
// step of a rotation.
func TestTheLocksHoldDuringTheHandOver(t *testing.T) {
	mem := newMem(t)
	tried := map[string]bool{}
	o := rotating(mem)
	o.Step = func(name string) {
		if !strings.HasPrefix(name, "rotate.") {
			return
		}
		tried[name] = true
		_, _, err := Open(context.Background(), memOptions(mem))
		if !errors.Is(err, ErrLocked) {
			t.Errorf("%s: the log was opened twice: %v", name, err)
		}
		for _, file := range []string{testLog, testLog + frame.NextSuffix} {
			f, err := mem.Open(file, frame.ReadWrite)
			if err != nil || name == "rotate.before_next" && file != testLog {
				continue
			}
			if err := f.Flock(); !errors.Is(err, frame.ErrLocked) {
				t.Errorf("%s: %s is not locked: %v", name, file, err)
			}
		}
	}
	l, _ := mustOpen(t, o)
	for i := range 40 {
		mustAppend(t, l, fmt.Sprint(i))
	}
	mustClose(t, l)
	require.Len(t, tried, 9)
}

// TestAVerifierThatOpensFilesIsNotDisturbed: the rotation waits for a later batch.
func TestAVerifierThatOpensFilesIsNotDisturbed(t *testing.T) {
	mem := newMem(t)
	o := rotating(mem)
	o.PreallocateBytes = 0 // nobody else is to hold the rotation up
	l, _ := mustOpen(t, o)
	lock, err := mem.OpenLock(testLog+frame.LockSuffix, frame.ReadOnly)
	require.NoError(t, err)
	require.NoError(t, lock.Lock(context.Background(), frame.StructureByte, frame.Shared))
	for i := range 30 {
		mustAppend(t, l, fmt.Sprint(i))
	}
	require.Zero(t, l.Head().Segment)
	require.NoError(t, lock.Close())
	mustAppend(t, l, "then")
	mustAppend(t, l, "it", "rotates")
	require.EqualValues(t, 1, l.Head().Segment)
}

// TestAStartLooksAtTheEndsOfSealedSegments: with `active`, damage inside one is
// found while the log is served, with `full` before.
func TestAStartLooksAtTheEndsOfSealedSegments(t *testing.T) {
	mem, _ := segmented(t)
	name := path.Join(testLog+frame.SegmentsSuffix, sealedNames(t, mem)[1])
	b, err := mem.ReadFile(name)
	require.NoError(t, err)
	for what, edit := range map[string]func([]byte) []byte{
		"header":        func(b []byte) []byte { b[50] ^= 1; return b },
		"first frame":   func(b []byte) []byte { b[frame.HeaderSize+60] ^= 1; return b },
		"last frame":    func(b []byte) []byte { b[len(b)-20] ^= 1; return b },
		"cut":           func(b []byte) []byte { return b[:len(b)-8] },
		"garbage":       func(b []byte) []byte { return append(b, "garbage!"...) },
		"zeros":         func(b []byte) []byte { return append(b, make([]byte, 4096)...) },
		"only a header": func(b []byte) []byte { return b[:frame.HeaderSize] },
	} {
		for _, mode := range []string{VerifyActive, VerifyFull} {
			t.Run(what+"/"+mode, func(t *testing.T) {
				mem := mem.Crash(100, 1)
				require.NoError(t, mem.WriteFile(name, edit(slices.Clone(b))))
				o := rotating(mem)
				o.VerifyOnStart = mode
				found := make(chan frame.Report, 1)
				o.OnCorruption = func(r frame.Report) { found <- r }
				l, rec := mustOpen(t, o)
				switch {
				case what == "zeros":
					require.NoError(t, l.Serving())
					require.NoError(t, isOK(l.Verify(context.Background())))
				case what == "first frame" && mode == VerifyActive:
					require.Equal(t, frame.OK, rec.Report.Status)
					require.Zero(t, rec.Report.VerifiedTo)
					require.Contains(t, rec.Report.Warnings[0], "sealed segments were judged by")
					require.Equal(t, frame.SealedSegment, (<-found).Faults[0].Kind)
					_, err := l.Append(context.Background(), group("x"))
					require.ErrorIs(t, err, ErrCorrupt)
				default:
					require.ErrorIs(t, l.Serving(), ErrCorrupt)
				}
				mustClose(t, l)
			})
		}
	}
}

// TestAnAnchorInsideASealedSegmentIsCompared: a start that looks at the ends
// alone still reads the segment of which the projections know an event.
func TestAnAnchorInsideASealedSegmentIsCompared(t *testing.T) {
	mem, _ := segmented(t)
	l, _ := mustOpen(t, rotating(mem))
	e, err := l.At(context.Background(), 2)
	require.NoError(t, err)
	id := l.LogID()
	mustClose(t, l)
	for result, hash := range map[string][32]byte{frame.AnchorMatch: e.Hash, frame.AnchorMismatch: {1}} {
		o := rotating(mem)
		o.Projection = &frame.Anchor{LogID: id, Seq: 2, Hash: hash}
		l, rec := mustOpen(t, o)
		i := slices.IndexFunc(rec.Report.Anchors, func(a frame.AnchorResult) bool { return a.Level == frame.L2 })
		require.Equal(t, result, rec.Report.Anchors[i].Result)
		require.Equal(t, result == frame.AnchorMatch, l.Serving() == nil)
		mustClose(t, l)
	}
}
