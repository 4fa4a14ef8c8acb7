package frame_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"writegate/eventlog/frame"
	"writegate/eventlog/frame/frametest"
)

const w = "/log/audit.wal"

// store puts a log of four segments with its head file on a file system.
func store(t testing.TB) (*frametest.Mem, []*sample) {
	m, segs := frametest.NewMem(), chainOf(t)
	require.NoError(t, m.MkdirAll(w+frame.SegmentsSuffix))
	for _, s := range segs[:3] {
		name := frame.SegmentName(s.header.Segment, s.header.FirstSeq, s.lastSeq())
		require.NoError(t, m.WriteFile(filepath.Join(w+frame.SegmentsSuffix, name), s.bytes))
	}
	require.NoError(t, m.WriteFile(filepath.Join(w+frame.SegmentsSuffix, "README"), []byte("not a segment")))
	require.NoError(t, m.WriteFile(w, segs[3].bytes))
	writeHead(t, m, segs[3], 1)
	return m, segs
}

// writeHead writes the head that knows the segment up to the batch.
func writeHead(t testing.TB, m *frametest.Mem, s *sample, batch int) {
	h := frame.Head{LogID: s.header.LogID, Seq: s.anchor(frame.L1, batch).Seq, EventHash: s.last[batch], Segment: s.header.Segment,
		EndOff: uint64(s.ends[batch]), Time: time.Unix(1767225600, 0), Counter: 2}
	require.NoError(t, m.WriteFile(w+frame.HeadSuffix, h.Encode()))
}

func discover(t testing.TB, fsys frame.FS) frame.Set {
	s, err := frame.Discover(context.Background(), fsys, w)
	require.NoError(t, err)
	return s
}

func TestDiscoverFindsEverythingBesideTheFile(t *testing.T) {
	m, _ := store(t)
	s := discover(t, m)
	assert.Len(t, s.Sealed, 3)
	assert.True(t, s.Whole)
	assert.False(t, s.Live)
	r := verify(t, s)
	assert.Equal(t, frame.OK, r.Status, explain(r))
	assert.Equal(t, uint64(15), r.EventCount)
	assert.Equal(t, frame.L1, r.AnchorLevel)
	assert.Equal(t, []string{"removal of whole batches after 2026-01-01T00:00:00.000000000Z would not show",
		"all events may be others than were written: hashes can be computed anew, and every anchor is on this host"}, r.NotExcluded)
	require.NoError(t, s.Close())
	names, err := m.List("/log")
	require.NoError(t, err)
	assert.Equal(t, []string{"audit.wal", "audit.wal.head", "audit.wal.segments"}, names, "a verifier creates nothing")
}

func TestRunningWriterIsJudgedUpToItsHead(t *testing.T) {
	m, segs := store(t)
	lock, err := m.OpenLock(w+frame.LockSuffix, frame.ReadWrite)
	require.NoError(t, err)
	require.NoError(t, lock.Lock(context.Background(), frame.WriterByte, frame.Exclusive))
	active := segs[3]
	half := active.encode(t, 400, 400, 400)
	require.NoError(t, m.WriteFile(w, append(clone(active.bytes), half[:700]...)))

	s := discover(t, m)
	assert.True(t, s.Live)
	r := verify(t, s)
	assert.Equal(t, frame.OK, r.Status, "what lies beyond the head is being written: %s", explain(r))
	assert.Contains(t, r.Warnings[0], "judged up to its durable head")

	// The head knows a segment that was sealed since: nothing of the new one is
	// known to be durable.
	writeHead(t, m, segs[2], 1)
	r = verify(t, discover(t, m))
	assert.Equal(t, frame.OK, r.Status, explain(r))
	assert.Equal(t, uint64(12), r.LastSeq)

	// Without a head the log's own promise stands in for it.
	require.NoError(t, m.Remove(w+frame.HeadSuffix))
	r = verify(t, discover(t, m))
	assert.Equal(t, frame.OK, r.Status, explain(r))
	assert.Equal(t, uint64(15), r.LastSeq, "the batch being written says that all before it was synced")
	assert.Equal(t, frame.AnchorMissing, r.Anchors[0].Result)

	// When the writer is gone, the same bytes are a torn tail.
	require.NoError(t, lock.Close())
	r = verify(t, discover(t, m))
	assert.Equal(t, []frame.Kind{frame.TornTail}, kinds(r), explain(r))
}

// TestAWriterThatComesWhileItIsJudgedIsToldFromACrash: nobody held the log when
// its files were opened, and somebody writes into their spare space before they
// have been read.
func TestAWriterThatComesWhileItIsJudgedIsToldFromACrash(t *testing.T) {
	m, segs := store(t)
	lock, err := m.OpenLock(w+frame.LockSuffix, frame.ReadWrite)
	require.NoError(t, err)
	active := segs[3]
	end := int64(len(active.bytes))
	require.NoError(t, m.WriteFile(w, append(clone(active.bytes), make([]byte, 4096)...)))
	s := discover(t, m)
	assert.False(t, s.Live)
	assert.Equal(t, frame.OK, verify(t, s).Status)

	require.NoError(t, lock.Lock(context.Background(), frame.WriterByte, frame.Exclusive))
	file, err := m.Open(w, frame.ReadWrite)
	require.NoError(t, err)
	_, err = file.Pwrite(active.encode(t, 400, 400, 400)[:700], end)
	require.NoError(t, err)
	r := verify(t, s)
	assert.Equal(t, frame.OK, r.Status, explain(r))
	assert.Equal(t, uint64(15), r.LastSeq)
	assert.Contains(t, r.Warnings[0], "judged up to its durable head")

	// It was there and is gone: its head tells.
	require.NoError(t, lock.Close())
	assert.Equal(t, []frame.Kind{frame.TornTail}, kinds(verify(t, s)), "there is no sign of a writer")
	head := *s.Head
	head.Counter++
	require.NoError(t, m.WriteFile(w+frame.HeadSuffix, head.Encode()))
	r = verify(t, s)
	assert.Equal(t, frame.OK, r.Status, explain(r))
	require.NoError(t, s.Close())
	require.NoError(t, file.Close())
}

func TestStructureLockThatCanNotBeHadMakesItPartial(t *testing.T) {
	m, _ := store(t)
	lock, err := m.OpenLock(w+frame.LockSuffix, frame.ReadWrite)
	require.NoError(t, err)
	require.NoError(t, lock.Lock(context.Background(), frame.StructureByte, frame.Exclusive))
	refused := frametest.Inject(m, func(op frametest.Op) error {
		if op.Kind == frametest.Lock {
			return &frame.OpError{Op: "lock", Name: op.Name, Err: frame.ErrLocked}
		}
		return nil
	})
	r := verify(t, discover(t, refused))
	assert.Equal(t, []frame.Kind{frame.NoReadLock}, kinds(r), explain(r))
	assert.Equal(t, frame.Partial, r.Status)
	assert.Equal(t, frame.CheckLock, r.Faults[0].Check)

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = frame.Discover(ctx, m, w)
	assert.ErrorIs(t, err, context.Canceled)

	held, err := frame.DiscoverHeld(m, w)
	require.NoError(t, err)
	assert.Equal(t, frame.OK, verify(t, held).Status, "who holds the lock does not wait for itself")
}

func TestMissingLogDependsOnWhatWasLeftBehind(t *testing.T) {
	m := frametest.NewMem()
	require.NoError(t, m.MkdirAll("/log"))
	r := verify(t, discover(t, m))
	assert.Equal(t, []frame.Kind{frame.MissingLog}, kinds(r))
	assert.Equal(t, frame.Partial, r.Status)

	for _, empty := range []string{frame.LockSuffix, frame.HeadSuffix} {
		require.NoError(t, m.WriteFile(w+empty, nil))
	}
	require.NoError(t, m.MkdirAll(w+frame.SegmentsSuffix))
	require.NoError(t, m.WriteFile(w, nil))
	r = verify(t, discover(t, m))
	assert.Equal(t, frame.Partial, r.Status, "a start that created nothing: %s", explain(r))

	// Something that projections or a receipt remember.
	r = verify(t, discover(t, m), frame.Anchor{Level: frame.L2, Seq: 3})
	assert.Equal(t, []frame.Kind{frame.MissingLog, frame.AnchorBeyondEnd}, kinds(r), explain(r))
	assert.Equal(t, frame.Corruption, r.Status)

	for _, left := range []string{frame.QuarantineSuffix, frame.CheckpointsSuffix} {
		m := frametest.NewMem()
		require.NoError(t, m.MkdirAll(w+left))
		require.NoError(t, m.WriteFile(w+left+"/something", []byte("x")))
		r = verify(t, discover(t, m))
		assert.Equal(t, frame.Corruption, r.Status, "%s: %s", left, explain(r))
	}

	m, _ = store(t)
	require.NoError(t, m.Remove(w))
	require.NoError(t, m.Remove(w+frame.HeadSuffix))
	r = verify(t, discover(t, m))
	assert.Equal(t, frame.Partial, r.Status, "a rotation that was cut short: %s", explain(r))
}

func TestFilesThatCanNotBeOpened(t *testing.T) {
	m, _ := store(t)
	denied := func(part string, errno error) frame.FS {
		return frametest.Inject(m, func(op frametest.Op) error {
			if (op.Kind == frametest.Open || op.Kind == frametest.List) && filepath.Base(op.Name) == part {
				return &frame.OpError{Op: "open", Name: op.Name, Err: errno}
			}
			return nil
		})
	}
	sealed := frame.SegmentName(1, 7, 9)
	for name, c := range map[string]struct {
		part string
		errs error
		kind frame.Kind
		want frame.Status
	}{
		"active, no permission": {"audit.wal", unix.EACCES, frame.Unreadable, frame.Partial},
		"sealed, no permission": {sealed, unix.EACCES, frame.Unreadable, frame.Partial},
		"sealed, loop of links": {sealed, unix.ELOOP, frame.Unreadable, frame.Partial},
		"sealed, medium":        {sealed, unix.EIO, frame.Unreadable, frame.Partial},
		"sealed, a part a file": {sealed, unix.ENOTDIR, frame.Unreadable, frame.Partial},
		"folder, no permission": {"audit.wal.segments", unix.EACCES, frame.Unreadable, frame.Partial},
	} {
		r := verify(t, discover(t, denied(c.part, c.errs)))
		assert.Equal(t, c.want, r.Status, "%s: %s", name, explain(r))
		assert.Equal(t, c.kind, r.Faults[0].Kind, "%s: %s", name, explain(r))
	}

	r := verify(t, discover(t, denied("audit.wal.head", unix.EIO)))
	assert.Equal(t, frame.OK, r.Status, "a head file is an anchor and not the log")
	assert.NotEmpty(t, r.Warnings)
}

// A process that has no files left knows nothing of a log, and says nothing of it.
func TestNoLogIsJudgedWithoutFilesToOpenIt(t *testing.T) {
	m, _ := store(t)
	opened := 0
	for left := 0; ; left++ {
		opened = 0
		short := frametest.Inject(m, func(op frametest.Op) error {
			if op.Kind != frametest.Open && op.Kind != frametest.List {
				return nil
			}
			if opened++; opened > left {
				return &frame.OpError{Op: "open", Name: op.Name, Err: unix.EMFILE}
			}
			return nil
		})
		set, err := frame.Discover(t.Context(), short, w)
		if err == nil {
			require.LessOrEqual(t, opened, left)
			require.NoError(t, set.Close())
			break
		}
		require.ErrorIs(t, err, frame.ErrNoFiles, "after %d", left)
	}
	require.Greater(t, opened, 5)
}

func TestNewerReadableSlotOfTheHeadWins(t *testing.T) {
	m := frametest.NewMem()
	h := frame.Head{Seq: 4, Counter: 4}
	newer := frame.Head{Seq: 5, Counter: 5}
	file := append(h.Encode(), newer.Encode()...)
	read := func(b []byte) (frame.Head, error) {
		require.NoError(t, m.WriteFile("/h", b))
		return frame.ReadHead(m, "/h")
	}
	got, err := read(file)
	require.NoError(t, err)
	assert.Equal(t, uint64(5), got.Seq)

	got, err = read(file[:frame.SlotSize])
	require.NoError(t, err)
	assert.Equal(t, uint64(4), got.Seq)

	for bit := range 100 * 8 { // a torn or damaged slot leaves the other one
		got, err = read(flip(file, frame.SlotSize*8+bit))
		require.NoError(t, err)
		require.Equal(t, uint64(4), got.Seq, "bit %d", bit)
	}
	_, err = read(make([]byte, 100))
	assert.ErrorIs(t, err, frame.ErrNoHead)
	_, err = read(nil)
	assert.ErrorIs(t, err, frame.ErrNoHead)
	_, err = frame.ReadHead(m, "/none")
	assert.ErrorIs(t, err, fs.ErrNotExist)
}

// TestAHeadThatIsBeingWrittenIsReadAgain: the other slot may be older than what
// the writer has said before.
func TestAHeadThatIsBeingWrittenIsReadAgain(t *testing.T) {
	m := frametest.NewMem()
	old, next := frame.Head{Seq: 4, Counter: 4}, frame.Head{Seq: 7, Counter: 7, EventHash: [32]byte(bytes.Repeat([]byte{7}, 32))}
	half := append(old.Encode(), next.Encode()...)
	clear(half[frame.SlotSize+50:])
	require.NoError(t, m.WriteFile("/h", half))
	writer, err := m.Open("/h", frame.ReadWrite)
	require.NoError(t, err)
	reads := 0
	fs := frametest.Inject(m, func(op frametest.Op) error {
		if op.Kind != frametest.Pread {
			return nil
		}
		slot := next.Encode()
		if reads++; reads < 3 {
			clear(slot[50+reads:]) // it is still being written
		}
		_, err := writer.Pwrite(slot, frame.SlotSize)
		return err
	})
	got, err := frame.ReadHead(fs, "/h")
	require.NoError(t, err)
	assert.Equal(t, uint64(7), got.Seq)
	assert.Equal(t, 3, reads)
	require.NoError(t, writer.Close())
}

func TestVerifyReadsARealFolder(t *testing.T) {
	segs := chainOf(t)
	path := filepath.Join(t.TempDir(), "audit.wal")
	require.NoError(t, os.Mkdir(path+frame.SegmentsSuffix, 0o700))
	for _, s := range segs[:3] {
		name := frame.SegmentName(s.header.Segment, s.header.FirstSeq, s.lastSeq())
		require.NoError(t, os.WriteFile(filepath.Join(path+frame.SegmentsSuffix, name), s.bytes, 0o600))
	}
	require.NoError(t, os.WriteFile(path, segs[3].bytes, 0o600))
	link := filepath.Join(t.TempDir(), "link.wal")
	require.NoError(t, os.Symlink(path, link))

	for _, name := range []string{path, link} {
		s, err := frame.Discover(context.Background(), frame.OS{}, name)
		require.NoError(t, err)
		r := verify(t, s)
		require.Equal(t, frame.OK, r.Status, explain(r))
		assert.Equal(t, uint64(15), r.EventCount)
		require.NoError(t, s.Close())
	}

	// Fault list 32: the file is cut and removed under the verifier.
	s, err := frame.Discover(context.Background(), frame.OS{}, path)
	require.NoError(t, err)
	require.NoError(t, errors.Join(os.Truncate(path, segs[3].frames[1].Off+9), os.Remove(path)))
	r := verify(t, s)
	assert.Equal(t, frame.Partial, r.Status, explain(r))
	require.NoError(t, s.Close())
}
