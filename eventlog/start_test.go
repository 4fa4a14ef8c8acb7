package eventlog

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/frame"
	"writegate/eventlog/frame/frametest"
)

// closedLog makes a log of n batches of two events and gives its options.
func closedLog(t *testing.T, n int) (*frametest.Mem, Options) {
	t.Helper()
	mem := newMem(t)
	o := memOptions(mem)
	l, _ := mustOpen(t, o)
	for i := range n {
		mustAppend(t, l, fmt.Sprintf("%d/0", i), fmt.Sprintf("%d/1", i))
	}
	mustClose(t, l)
	return mem, o
}

// content gives every file and its bytes, but for the lock and the cache of names.
func content(t *testing.T, mem *frametest.Mem) map[string]string {
	t.Helper()
	out := map[string]string{}
	var walk func(dir string)
	walk = func(dir string) {
		names, err := mem.List(dir)
		require.NoError(t, err)
		for _, name := range names {
			full := path.Join(dir, name)
			if b, err := mem.ReadFile(full); err == nil {
				out[full] = string(b)
			} else {
				walk(full)
			}
		}
	}
	walk("/log")
	delete(out, testLog+frame.LockSuffix)
	return out
}

// mustRefuse opens a log that may only be read, tries to append, and checks
// that no byte of any file has changed.
func mustRefuse(t *testing.T, mem *frametest.Mem, o Options, want error) Recovery {
	t.Helper()
	before := content(t, mem)
	l, rec := mustOpen(t, o)
	require.ErrorIs(t, l.Serving(), want)
	require.False(t, l.Health().OK)
	for _, reserve := range []bool{false, true} {
		_, err := l.Append(context.Background(), Group{Drafts: group("x").Drafts, Reserve: reserve})
		require.ErrorIs(t, err, want)
	}
	_, err := l.Verify(context.Background())
	require.NoError(t, err, "it is up for reading")
	mustClose(t, l)
	require.Equal(t, before, content(t, mem))
	return rec
}

func TestAnEmptyFileWithoutATraceBecomesALog(t *testing.T) {
	mem := newMem(t)
	require.NoError(t, mem.WriteFile(testLog, nil))
	l, rec := mustOpen(t, memOptions(mem))
	require.True(t, rec.New)
	mustAppend(t, l, "a")
}

func TestAMissingLogWithATraceIsNotCreatedAnew(t *testing.T) {
	for name, leave := range map[string]func(*frametest.Mem, *Options) error{
		"head file": func(m *frametest.Mem, _ *Options) error {
			head := frame.Head{LogID: [16]byte{1}, Seq: 1, Counter: 1, Time: testTime}
			return m.WriteFile(testLog+frame.HeadSuffix, append(make([]byte, frame.SlotSize), head.Encode()...))
		},
		"sealed segment": func(m *frametest.Mem, _ *Options) error {
			return inFolder(m, frame.SegmentsSuffix, frame.SegmentName(0, 1, 2))
		},
		"quarantine": func(m *frametest.Mem, _ *Options) error { return inFolder(m, frame.QuarantineSuffix, "4-4096-0.bin") },
		"checkpoint": func(m *frametest.Mem, _ *Options) error { return inFolder(m, frame.CheckpointsSuffix, "000000") },
		"projections": func(_ *frametest.Mem, o *Options) error {
			o.Projection = &frame.Anchor{Seq: 1}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			mem := newMem(t)
			o := memOptions(mem)
			require.NoError(t, leave(mem, &o))
			rec := mustRefuse(t, mem, o, ErrCorrupt)
			require.False(t, rec.New)
			require.Equal(t, frame.Corruption, rec.Report.Status)
		})
	}
}

func inFolder(m *frametest.Mem, suffix, name string) error {
	if err := m.MkdirAll(testLog + suffix); err != nil {
		return err
	}
	return m.WriteFile(path.Join(testLog+suffix, name), []byte("x"))
}

func TestACleanLogIsServedWithoutTouchingItsBytes(t *testing.T) {
	mem, o := closedLog(t, 3)
	end := mustVerify(t, o, frame.OK).Head.EndOffset
	o.FS = frametest.Inject(mem, func(op frametest.Op) error {
		if op.Name == testLog && op.Off < end && (op.Kind == frametest.Pwrite || op.Kind == frametest.Cut) {
			t.Errorf("%s at %d", op.Kind, op.Off)
		}
		return nil
	})
	l, rec := mustOpen(t, o)
	require.True(t, rec.Clean)
	mustClose(t, l)
}

func TestTheCleanMarkIsGoneBeforeAnythingIsAppended(t *testing.T) {
	mem, o := closedLog(t, 1)
	mustOpen(t, o)
	_, rec := mustOpen(t, memOptions(mem.Crash(0, 1)))
	require.False(t, rec.Clean)
}

func TestATornTailUnderRefuseIsLeftToTheOperator(t *testing.T) {
	mem, known, _ := tornLog(t, tornTails["garbage"])
	o := memOptions(mem)
	o.OnTornTail = TornTailRefuse
	rec := mustRefuse(t, mem, o, ErrTornTail)
	require.Equal(t, frame.Partial, rec.Report.Status)
	known.reopen(t, memOptions(mem))
}

func TestGarbageAfterACleanMarkIsATornTailAllTheSame(t *testing.T) {
	mem, o := closedLog(t, 2)
	r := mustVerify(t, o, frame.OK)
	change(t, mem, r.Head.EndOffset+64, 0xff)
	l, rec := mustOpen(t, o)
	require.False(t, rec.Clean)
	require.Len(t, rec.Tails, 1)
	nameTails(t, l, rec)
	mustClose(t, l)
	mustVerify(t, o, frame.OK)
}

// change flips bits of one byte of W, as a fault of the medium does.
func change(t *testing.T, mem *frametest.Mem, off int64, mask byte) {
	t.Helper()
	f, err := mem.Open(testLog, frame.ReadWrite)
	require.NoError(t, err)
	b := make([]byte, 1)
	_, err = f.Pread(b, off)
	require.NoError(t, err)
	_, err = f.Pwrite([]byte{b[0] ^ mask}, off)
	require.NoError(t, err)
	require.NoError(t, f.Sync())
}

func TestACorruptLogIsUpForReadingUpToTheDamage(t *testing.T) {
	mem, o := closedLog(t, 3)
	l, _ := mustOpen(t, o)
	l.mu.Lock()
	from, to := int64(frame.HeaderSize), l.durable.Offset
	l.mu.Unlock()
	mustClose(t, l)
	for off := from; off < to; off += 61 { // every part of a frame in turn
		t.Run(fmt.Sprint(off), func(t *testing.T) {
			damaged := mem.Crash(100, 1)
			change(t, damaged, off, 1<<(off%8))
			o := memOptions(damaged)
			rec := mustRefuse(t, damaged, o, ErrCorrupt)
			require.Equal(t, frame.Corruption, rec.Report.Status)

			l, _ := mustOpen(t, o)
			var seen uint64
			var err error
			for e, rerr := range l.From(context.Background(), 1) {
				if err = rerr; err == nil {
					seen = e.Seq
				}
			}
			if seen < 6 && err == nil {
				require.Equal(t, seen, l.Head().Seq, "what can't be read is not passed over in silence")
			}
		})
	}
}

func TestAMissingHeadFileDoesNotStopTheStart(t *testing.T) {
	mem, o := closedLog(t, 2)
	require.NoError(t, mem.Remove(testLog+frame.HeadSuffix))
	l, rec := mustOpen(t, o)
	require.NoError(t, l.Serving())
	require.False(t, rec.Clean)
	require.NotEmpty(t, rec.Warnings)
	require.Equal(t, frame.AnchorMissing, rec.Anchors[0].Result)
	mustAppend(t, l, "a")
	mustClose(t, l)
	_, rec = mustOpen(t, o)
	require.True(t, rec.Clean)
	require.Equal(t, frame.AnchorMatch, rec.Anchors[0].Result)
}

func TestAnUnreadableHeadFileIsReplaced(t *testing.T) {
	mem, o := closedLog(t, 2)
	require.NoError(t, mem.WriteFile(testLog+frame.HeadSuffix, []byte("not a head")))
	l, _ := mustOpen(t, o)
	require.NoError(t, l.Serving())
	mustClose(t, l)
	_, rec := mustOpen(t, o)
	require.True(t, rec.Clean)
}

// TestWholeBatchesCutAreSeenByAnAnchor: the file alone looks fine.
func TestWholeBatchesCutAreSeenByAnAnchor(t *testing.T) {
	mem, o := closedLog(t, 3)
	l, _ := mustOpen(t, o)
	e, err := l.At(context.Background(), 5) // the last batch
	require.NoError(t, err)
	projection := &frame.Anchor{LogID: l.LogID(), Seq: 6, Hash: l.Head().Hash}
	before := &frame.Anchor{LogID: l.LogID(), Seq: 4, Hash: e.PreviousHash}
	other := &frame.Anchor{LogID: l.LogID(), Seq: 4, Hash: [32]byte{1}}
	to := l.Head().Offset
	mustClose(t, l)
	cut := cutAt(t, mem, startOf(t, mem, 5), to)

	mustRefuse(t, cut, memOptions(cut), ErrCorrupt) // L1
	require.NoError(t, cut.Remove(testLog+frame.HeadSuffix))
	require.NoError(t, cut.SyncDir("/log"))
	for _, c := range []struct {
		anchor *frame.Anchor
		result string
		want   error
	}{
		{projection, frame.AnchorBeyond, ErrCorrupt},
		{other, frame.AnchorMismatch, ErrCorrupt},
		{before, frame.AnchorMatch, nil},
	} {
		o := memOptions(cut.Crash(100, 1))
		o.Projection = c.anchor
		l, rec := mustOpen(t, o)
		require.Equal(t, c.want, errors.Unwrap(l.Serving()))
		i := slices.IndexFunc(rec.Report.Anchors, func(a frame.AnchorResult) bool { return a.Level == frame.L2 })
		require.Equal(t, c.result, rec.Report.Anchors[i].Result)
		mustClose(t, l)
	}
}

// startOf gives the offset of an event's frame.
func startOf(t *testing.T, mem *frametest.Mem, seq uint64) int64 {
	t.Helper()
	f, err := mem.Open(testLog, frame.ReadOnly)
	require.NoError(t, err)
	size, err := f.Size()
	require.NoError(t, err)
	for p, err := range frame.Scan(context.Background(), f, frame.HeaderSize, size) {
		require.NoError(t, err)
		if p.Seq == seq {
			return p.Off
		}
	}
	t.Fatalf("no event %d", seq)
	return 0
}

// cutAt gives a copy whose log is zero from an offset on.
func cutAt(t *testing.T, mem *frametest.Mem, off, to int64) *frametest.Mem {
	t.Helper()
	out := mem.Crash(100, 1)
	f, err := out.Open(testLog, frame.ReadWrite)
	require.NoError(t, err)
	_, err = f.Pwrite(make([]byte, to-off), off)
	require.NoError(t, err)
	require.NoError(t, f.Sync())
	return out
}

func TestFilesOfDifferentLogsAreNotMixed(t *testing.T) {
	mem, o := closedLog(t, 1)
	o.Projection = &frame.Anchor{LogID: [16]byte{9}, Seq: 1}
	_, _, err := Open(context.Background(), o)
	require.ErrorIs(t, err, ErrOtherLog)
	require.Equal(t, ExitUnsafe, ExitCode(err))

	stranger, _ := closedLog(t, 1)
	head, err := stranger.ReadFile(testLog + frame.HeadSuffix)
	require.NoError(t, err)
	require.NoError(t, mem.WriteFile(testLog+frame.HeadSuffix, head))
	_, _, err = Open(context.Background(), memOptions(mem))
	require.ErrorIs(t, err, ErrOtherLog)
	_, _, err = Open(context.Background(), memOptions(mem))
	require.ErrorIs(t, err, ErrOtherLog, "a refused open gives its locks back")
}

func TestALogThatCannotBeReadIsNotServed(t *testing.T) {
	mem, _ := closedLog(t, 2)
	for name, hook := range map[string]func(frametest.Op) error{
		"no permission": func(op frametest.Op) error {
			if op.Name == testLog && op.Kind == frametest.Open {
				return syscall.EACCES
			}
			return nil
		},
		"EIO behind the header": func(op frametest.Op) error {
			if op.Name == testLog && op.Kind == frametest.Pread && op.Off >= frame.HeaderSize {
				return syscall.EIO
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			l, _ := mustOpen(t, memOptions(frametest.Inject(mem, hook)))
			require.Error(t, l.Serving())
			_, err := l.Append(context.Background(), group("x"))
			require.ErrorIs(t, err, l.Serving())
			mustClose(t, l)
		})
	}
	mustVerify(t, memOptions(mem), frame.OK)
}

// onVolume is a file system that says it lies elsewhere.
type onVolume struct {
	frame.FS
	v frame.Volume
}

func (f onVolume) Volume(string) (frame.Volume, error) { return f.v, nil }

func TestTheVolumeIsJudged(t *testing.T) {
	o := memOptions(onVolume{newMem(t), frame.Volume{Kind: "nfs", Network: true}})
	_, _, err := Open(context.Background(), o)
	require.ErrorIs(t, err, ErrUnsafe)
	require.Equal(t, ExitUnsafe, ExitCode(err))
	o.AllowNetworkFS = true
	_, rec := mustOpen(t, o)
	require.Equal(t, "nfs", rec.Filesystem)
	require.NotEmpty(t, rec.Warnings)

	_, rec = mustOpen(t, memOptions(onVolume{newMem(t), frame.Volume{Kind: "overlay", Volatile: true}}))
	require.Contains(t, rec.Warnings[0], "overlay")
}

func TestOptionsOutOfTheirValuesAreRefused(t *testing.T) {
	for _, spoil := range []func(*Options){
		func(o *Options) { o.Path = "" },
		func(o *Options) { o.Fsync = "sometimes" },
		func(o *Options) { o.OnTornTail = "ignore" },
		func(o *Options) { o.VerifyOnStart = "never" },
		func(o *Options) { o.PreallocateBytes = -1 },
		func(o *Options) { o.Origin = string(make([]byte, 300)) },
	} {
		o := memOptions(newMem(t))
		spoil(&o)
		_, _, err := Open(context.Background(), o)
		require.ErrorIs(t, err, ErrInvalidOptions)
		require.Equal(t, ExitUnsafe, ExitCode(err))
	}
}

// TestTheClockDecidesNothing: an hour back, a year ahead.
func TestTheClockDecidesNothing(t *testing.T) {
	mem := newMem(t)
	moments := []time.Time{testTime, testTime.Add(-time.Hour), testTime.AddDate(1, 0, 0), testTime.Add(-24 * time.Hour)}
	o := memOptions(mem)
	for _, at := range moments {
		o.Now = func() time.Time { return at }
		l, rec := mustOpen(t, o)
		require.NoError(t, l.Serving())
		require.Empty(t, rec.Tails)
		d := draft("a", 1)
		d.Time = at
		_, err := l.Append(context.Background(), group("plain"))
		require.NoError(t, err)
		_, err = l.Append(context.Background(), Group{Drafts: append(group("x").Drafts, d)})
		require.NoError(t, err)
		mustClose(t, l)
	}
	l, _ := mustOpen(t, o)
	for i, at := range moments {
		e, err := l.At(context.Background(), uint64(3*i+3))
		require.NoError(t, err)
		require.Equal(t, at, e.Time, "the time is kept as it was seen")
	}
	mustClose(t, l)
	mustVerify(t, o, frame.OK)
}

func TestWithoutFsyncNothingIsPromised(t *testing.T) {
	mem := newMem(t)
	o := memOptions(mem)
	o.Fsync = FsyncOff
	l, rec := mustOpen(t, o)
	require.NotEmpty(t, rec.Warnings)
	mustAppend(t, l, "a")
	mustAppend(t, l, "b")
	for p, err := range l.frames(context.Background(), 1, l.Head()) {
		require.NoError(t, err)
		require.EqualValues(t, frame.HeaderSize, p.DurableOff)
	}
	head, err := frame.ReadHead(mem, testLog+frame.HeadSuffix)
	require.NoError(t, err)
	require.Zero(t, head.Seq, "the anchor does not outlive what it would speak of")
	mustClose(t, l)
	o.Fsync = FsyncRequired
	l, rec = mustOpen(t, o)
	require.True(t, rec.Clean)
	mustAppend(t, l, "c")
	mustAppend(t, l, "d")
	mustClose(t, l)
	o.Fsync = FsyncOff
	l, _ = mustOpen(t, o)
	mustAppend(t, l, "e")
	mustClose(t, l)
	mustVerify(t, o, frame.OK)
}
