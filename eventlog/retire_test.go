package eventlog

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
	"writegate/eventlog/frame"
	"writegate/eventlog/frame/frametest"
)

// successor is what a test accepts a loss with.
var successor = Successor{Reason: "the disk was exchanged", Mode: "enforce", Store: "/log/approvals.db", Start: event.Startup{
	Version: "1", Profile: "development", Fsync: "required", VerifyOnStart: "active", OnTornTail: "record", Engine: map[string]string{},
}}

// aLog makes a log of three segments and 30 events, with a JSONL file and a
// folder in the place of the projections.
func aLog(t *testing.T, o Options) [16]byte { return aLogOf(t, o, frame.HeaderSize+1200) }

// aLogOf has segments of so many bytes; 0 = one file.
func aLogOf(t *testing.T, o Options, bytes int64) [16]byte {
	t.Helper()
	small := o
	small.SegmentBytes = bytes
	l, _ := mustOpen(t, small)
	for i := range 29 {
		mustAppend(t, l, fmt.Sprint("n", i))
		settled(l)
	}
	require.Equal(t, bytes > 0, l.Head().Segment > 1, "there are sealed segments")
	mustClose(t, l)
	l, _ = mustOpen(t, o)
	mustAppend(t, l, "n29")
	id := l.LogID()
	mustClose(t, l)
	require.NoError(t, o.FS.MkdirAll(successor.Store))
	require.NoError(t, o.FS.SyncDir("/log"))
	return id
}

func retireOptions(fs frame.FS) Options {
	o := memOptions(fs)
	o.JSONLPath = "/log/audit.log"
	return o
}

// ancestorsOf reads what a log says of those before it, with all their events.
func ancestorsOf(t *testing.T, o Options) (all []Ancestor, names [][]string) {
	t.Helper()
	o.JSONLPath = ""
	l, _ := mustOpen(t, o)
	all, err := l.Ancestors(t.Context())
	require.NoError(t, err)
	for _, a := range all {
		var steps []string
		for e, err := range a.Events(t.Context()) {
			require.NoError(t, err)
			if e.Type == event.TypeHealthFail {
				steps = append(steps, stepOf(t, e))
			}
		}
		names = append(names, steps)
	}
	mustClose(t, l)
	return all, names
}

func TestARetiredLogIsKeptWholeAndNamedByTheOneThatFollows(t *testing.T) {
	mem := newMem(t)
	o := retireOptions(mem)
	id := aLog(t, o)
	r, err := Retire(t.Context(), o, successor)
	require.NoError(t, err)
	require.EqualValues(t, 30, r.Last)
	require.Zero(t, r.Lost())
	require.NotEqual(t, id, r.NewLogID)

	mustVerify(t, o, frame.OK)
	kept := o
	kept.Path = RetiredLog(testLog, id)
	report := mustVerify(t, kept, frame.OK)
	require.EqualValues(t, 30, report.LastSeq, "the old log verifies where it is now")
	names, err := mem.List(r.Folder)
	require.NoError(t, err)
	require.Equal(t, []string{"audit.jsonl", "audit.wal", "audit.wal.head", "audit.wal.segments", "projections", "retired.json"}, names)
	names, err = mem.List("/log")
	require.NoError(t, err)
	require.Equal(t, []string{"audit.wal", "audit.wal.head", "audit.wal.lock", "audit.wal.retired"}, names)

	l, rec := mustOpen(t, o)
	require.True(t, rec.Clean)
	require.Equal(t, r.NewLogID, l.LogID())
	e, err := l.At(context.Background(), 1)
	require.NoError(t, err)
	var p event.Startup
	require.NoError(t, e.Parse(&p))
	require.Equal(t, event.Predecessor{LogID: id, LastSeq: 30, LastEventHash: r.Hash, Reason: successor.Reason}, *p.Predecessor)
	mustClose(t, l)
}

func TestLogsBeforeALogAreReadBackToTheFirst(t *testing.T) {
	mem := newMem(t)
	o := retireOptions(mem)
	first := aLog(t, o)
	_, err := Retire(t.Context(), o, successor)
	require.NoError(t, err)
	l, _ := mustOpen(t, o)
	second := l.LogID()
	mustAppend(t, l, "between")
	mustClose(t, l)
	r, err := Retire(t.Context(), o, successor)
	require.NoError(t, err)
	require.EqualValues(t, 2, r.Last)

	all, names := ancestorsOf(t, o)
	require.Equal(t, [][16]byte{first, second}, [][16]byte{all[0].LogID, all[1].LogID})
	require.Equal(t, [][]string{numbered("n", 30), {"between"}}, names)
}

// TestOfADamagedLogWhatVerifiesIsCarriedOver, up to a batch's end, and what is
// lost is counted by whatever knows of it.
func TestOfADamagedLogWhatVerifiesIsCarriedOver(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(t *testing.T, mem *frametest.Mem)
		last  int
		lost  uint64
	}{
		"a flipped bit in a sealed segment": {func(t *testing.T, mem *frametest.Mem) {
			flip(t, mem, sealedPath(t, mem, 1), frame.HeaderSize+50)
		}, -1, 0},
		"the active file is gone": {func(t *testing.T, mem *frametest.Mem) { require.NoError(t, mem.Remove(testLog)) }, -1, 0},
		"the header of the first segment": {func(t *testing.T, mem *frametest.Mem) {
			flip(t, mem, sealedPath(t, mem, 0), 20)
		}, 0, 30},
		"the head alone is left": {func(t *testing.T, mem *frametest.Mem) {
			require.NoError(t, mem.Remove(testLog))
			for _, s := range sealedPaths(t, mem) {
				require.NoError(t, mem.Remove(s))
			}
		}, 0, 30},
	} {
		t.Run(name, func(t *testing.T) {
			mem := newMem(t)
			o := retireOptions(mem)
			id := aLog(t, o)
			c.spoil(t, mem)
			full := o
			full.VerifyOnStart = VerifyFull
			l, _ := mustOpen(t, full)
			require.ErrorIs(t, l.Serving(), ErrCorrupt)
			mustClose(t, l)
			told, err := JudgeForRetirement(t.Context(), o)
			require.NoError(t, err)
			require.Equal(t, id, told.LogID)
			require.EqualValues(t, 30, told.Known)
			r, err := Retire(t.Context(), o, successor)
			require.NoError(t, err)
			require.Equal(t, told.Last, r.Last)
			require.Equal(t, told.Hash, r.Hash)
			if c.last == 0 {
				require.Zero(t, r.Last)
			} else {
				require.Positive(t, r.Last)
				require.Less(t, r.Last, uint64(30))
			}
			require.Equal(t, 30-r.Last, r.Lost())
			l, rec := mustOpen(t, o)
			require.NoError(t, l.Serving())
			require.True(t, rec.Clean)
			mustAppend(t, l, "on")
			mustClose(t, l)
			_, names := ancestorsOf(t, o)
			require.Len(t, names[0], int(r.Last))
		})
	}
}

// TestNothingIsCarriedOverThatAnAnchorContradicts: where before its event the log was
// written anew nobody knows.
func TestNothingIsCarriedOverThatAnAnchorContradicts(t *testing.T) {
	mem := newMem(t)
	o := retireOptions(mem)
	id := aLog(t, o)
	o.Projection = &frame.Anchor{LogID: id, Seq: 12, Hash: [32]byte{1}}
	r, err := JudgeForRetirement(t.Context(), o)
	require.NoError(t, err)
	require.Zero(t, r.Last)
	require.EqualValues(t, 30, r.Lost())
	o.Projection = &frame.Anchor{LogID: id, Seq: 40, Hash: [32]byte{1}}
	r, err = JudgeForRetirement(t.Context(), o)
	require.NoError(t, err)
	require.EqualValues(t, 30, r.Last)
	require.EqualValues(t, 10, r.Lost(), "the projections know of ten more")
	require.Equal(t, frame.Corruption, r.Report.Status)

	o.Projection = nil
	head, err := frame.ReadHead(mem, testLog+frame.HeadSuffix)
	require.NoError(t, err)
	for _, id := range [][16]byte{id, {1}} {
		head.EventHash, head.LogID = [32]byte{1}, id
		head.Counter++
		slots := make([]byte, 2*frame.SlotSize)
		copy(slots[frame.Slot(head.Counter):], head.Encode())
		require.NoError(t, mem.WriteFile(testLog+frame.HeadSuffix, slots))
		r, err = JudgeForRetirement(t.Context(), o)
		require.NoError(t, err)
		require.Zero(t, r.Last, "the head file is an anchor as well")
	}
}

// TestWhatIsKnownOutsideBoundsWhatIsCarriedOver: up to the last checkpoint that
// agrees where one does not, and what one knows more of is lost.
func TestWhatIsKnownOutsideBoundsWhatIsCarriedOver(t *testing.T) {
	mem := newMem(t)
	o := retireOptions(mem)
	aLog(t, o)
	l, _ := mustOpen(t, o)
	hashes := map[uint64][32]byte{}
	for e, err := range l.From(t.Context(), 1) {
		require.NoError(t, err)
		hashes[e.Seq] = e.Hash
	}
	id := l.LogID()
	mustClose(t, l)
	at := func(level frame.Level, seq uint64) frame.Anchor {
		return frame.Anchor{Level: level, LogID: id, Seq: seq, Hash: hashes[seq]}
	}
	agrees, own := at(frame.L4, 5), at(frame.L4, 9)
	own.SelfAsserted = true
	other := func(level frame.Level, seq uint64) frame.Anchor {
		return frame.Anchor{Level: level, LogID: id, Seq: seq}
	}
	for name, c := range map[string]struct {
		anchors     []frame.Anchor
		last, known uint64
		status      frame.Status
	}{
		"all agree":              {[]frame.Anchor{agrees}, 30, 30, frame.OK},
		"one knows more":         {[]frame.Anchor{agrees, {Level: frame.L4, Seq: 41, NoHash: true}}, 30, 41, frame.Corruption},
		"one knows other events": {[]frame.Anchor{agrees, {Level: frame.L4, Seq: 20}}, 5, 30, frame.Corruption},
		"none agrees":            {[]frame.Anchor{{Level: frame.L4, Seq: 20}, {Level: frame.L4, Seq: 50}}, 0, 50, frame.Corruption},
		"what lies nearer":       {[]frame.Anchor{agrees, own, at(frame.L2, 12), at(frame.L1, 15), other(frame.L4, 20)}, 5, 30, frame.Corruption},
		"the projections":        {[]frame.Anchor{agrees, own, at(frame.L1, 15), other(frame.L2, 20)}, 5, 30, frame.Corruption},
		"only the projections":   {[]frame.Anchor{own, at(frame.L1, 15), other(frame.L2, 20)}, 0, 30, frame.Corruption},
		"the head file":          {[]frame.Anchor{own, other(frame.L1, 20)}, 9, 30, frame.Corruption},
		"one that lies further":  {[]frame.Anchor{other(frame.L1, 12), at(frame.L2, 15)}, 15, 30, frame.Corruption},
		"two that contradict":    {[]frame.Anchor{agrees, own, other(frame.L1, 12), at(frame.L2, 15), other(frame.L4, 20)}, 5, 30, frame.Corruption},
		"of an unknown key":      {[]frame.Anchor{{Level: frame.L4, Seq: 41, Untrusted: true}}, 30, 30, frame.OK},
	} {
		t.Run(name, func(t *testing.T) {
			o := o
			o.Outside = func(bool) (Outside, error) { return outside{anchors: c.anchors}, nil }
			r, err := JudgeForRetirement(t.Context(), o)
			require.NoError(t, err)
			require.Equal(t, []any{c.last, c.known, c.status}, []any{r.Last, r.Known, r.Report.Status})
			require.Contains(t, r.Report.Warnings, "a warning")
		})
	}
}

func sealedPaths(t *testing.T, mem *frametest.Mem) (paths []string) {
	t.Helper()
	names, err := mem.List(testLog + frame.SegmentsSuffix)
	require.NoError(t, err)
	for _, n := range names {
		paths = append(paths, filepath.Join(testLog+frame.SegmentsSuffix, n))
	}
	return paths
}

func sealedPath(t *testing.T, mem *frametest.Mem, n int) string {
	t.Helper()
	return sealedPaths(t, mem)[n]
}

func flip(t *testing.T, mem *frametest.Mem, name string, at int) {
	t.Helper()
	b, err := mem.ReadFile(name)
	require.NoError(t, err)
	b[at] ^= 1
	require.NoError(t, mem.WriteFile(name, b))
}

func TestARetirementIsRefusedWhereItMakesNoSense(t *testing.T) {
	mem := newMem(t)
	o := retireOptions(mem)
	_, err := Retire(t.Context(), o, successor)
	require.ErrorIs(t, err, ErrNoLog)
	l, _ := mustOpen(t, o)
	mustAppend(t, l, "n")
	_, err = Retire(t.Context(), o, successor)
	require.ErrorIs(t, err, ErrLocked)
	_, err = JudgeForRetirement(t.Context(), o)
	require.ErrorIs(t, err, ErrLocked)
	mustClose(t, l)
}

// stopped is how a call of a test's disk fails.
var stopped = errors.New("stopped by the test")

// TestARetirementMayBeCutShortAtAnyCall: the process ends before any call, or the
// power goes there; no gate starts on what is left, unless nothing was begun or
// all was done, and the same command completes it with the same outcome.
func TestARetirementMayBeCutShortAtAnyCall(t *testing.T) {
	for _, power := range []bool{false, true} {
		for stop := 1; ; stop++ {
			mem := newMem(t)
			o := retireOptions(mem)
			id := aLogOf(t, o, int64(stop%2)*(frame.HeaderSize+1200))
			calls := 0
			cut := o
			cut.FS = frametest.Inject(mem, func(frametest.Op) error {
				if calls++; calls >= stop {
					return stopped
				}
				return nil
			})
			_, err := Retire(context.Background(), cut, successor)
			if err == nil {
				require.Greater(t, stop, 50, "all calls were stopped at")
				break
			}
			if power {
				mem = mem.Crash(50, uint64(stop))
				o.FS = mem
			} else {
				mem = frametest.Over(mem.VFS) // locks end with their process
				o.FS = mem
			}
			completeRetirement(t, o, id, stop)
		}
	}
}

func completeRetirement(t *testing.T, o Options, id [16]byte, stop int) {
	t.Helper()
	readable := o
	readable.JSONLPath = ""
	l, rec, err := Open(context.Background(), readable)
	switch {
	case errors.Is(err, ErrRetiring):
		require.Equal(t, ExitUnsafe, ExitCode(err))
		r, err := Retire(context.Background(), o, Successor{Reason: "another one", Start: successor.Start, Store: successor.Store})
		require.NoError(t, err, "call %d", stop)
		require.True(t, r.Begun)
		require.Equal(t, successor.Reason, r.Reason, "what was begun is completed as it was begun")
	case err == nil && l.LogID() == id:
		require.NoError(t, l.Serving(), "call %d", stop)
		mustClose(t, l)
		_, err := Retire(context.Background(), o, successor)
		require.NoError(t, err, "call %d", stop)
	default:
		require.NoError(t, err, "call %d", stop)
		require.False(t, rec.New, "call %d: a gate would have begun a log that names no predecessor", stop)
		mustClose(t, l)
	}
	all, names := ancestorsOf(t, o)
	require.Len(t, all, 1, "call %d", stop)
	require.Equal(t, id, all[0].LogID)
	require.Equal(t, numbered("n", 30), names[0], "call %d", stop)
}

func TestALogDoesNotGoOnWithoutTheFilesOfTheOneBefore(t *testing.T) {
	dir := t.TempDir()
	o := memOptions(frame.OS{})
	o.Path = filepath.Join(dir, "audit.wal")
	l, _ := mustOpen(t, o)
	mustAppend(t, l, numbered("n", 8)...)
	id := l.LogID()
	mustClose(t, l)
	r, err := Retire(t.Context(), o, Successor{Reason: "r", Start: successor.Start})
	require.NoError(t, err)
	l, _ = mustOpen(t, o)
	path := RetiredLog(o.Path, id)
	whole, err := os.ReadFile(path)
	require.NoError(t, err)
	verified := func(by func() (frame.Report, error)) []string {
		t.Helper()
		report, err := by()
		require.NoError(t, err)
		require.Equal(t, frame.OK, report.Status)
		return ofAncestors(report)
	}
	running := func() (frame.Report, error) { return l.Verify(t.Context()) }
	outside := func() (frame.Report, error) { return Verify(t.Context(), o) }
	require.Empty(t, verified(running))
	require.Empty(t, verified(outside))
	fails := func(says string) {
		t.Helper()
		_, err := eventsBefore(t, l)
		require.ErrorIs(t, err, ErrAncestor)
		require.ErrorContains(t, err, says)
		require.ErrorContains(t, err, hex.EncodeToString(id[:]))
		for _, warnings := range [][]string{verified(running), verified(outside)} {
			require.Len(t, warnings, 1)
			require.Contains(t, warnings[0], err.Error())
		}
	}
	changed := func(at int) {
		t.Helper()
		b := append([]byte(nil), whole...)
		b[at] ^= 1
		require.NoError(t, os.WriteFile(path, b, 0o600))
	}
	n, err := eventsBefore(t, l)
	require.NoError(t, err)
	require.Equal(t, 8, n)
	changed(frame.HeaderSize + 60)
	fails(path)
	changed(20)
	fails(path)
	require.NoError(t, os.WriteFile(path, whole[:frame.HeaderSize+300], 0o600))
	fails(path)
	require.NoError(t, os.RemoveAll(r.Folder))
	fails("the folder " + r.Folder + " is missing")
	mustClose(t, l)
	before, err := os.ReadFile(o.Path)
	require.NoError(t, err)
	_, err = JudgeForRetirement(t.Context(), o)
	require.ErrorIs(t, err, ErrAncestor)
	_, err = Retire(t.Context(), o, Successor{Reason: "r", Start: successor.Start})
	require.ErrorIs(t, err, ErrAncestor, "the log behind it could not be folded either")
	after, err := os.ReadFile(o.Path)
	require.NoError(t, err)
	require.Equal(t, before, after)
	require.NoDirExists(t, r.Folder)
}

// ofAncestors are the warnings of a report that tell of logs before its own.
func ofAncestors(r frame.Report) []string {
	return slices.DeleteFunc(slices.Clone(r.Warnings), func(w string) bool { return !strings.HasPrefix(w, ErrAncestor.Error()) })
}

// TestEachLogBeforeALogIsLookedAt: one that is at fault hides no other, as far as the
// chain of names goes.
func TestEachLogBeforeALogIsLookedAt(t *testing.T) {
	dir := t.TempDir()
	o := memOptions(frame.OS{})
	o.Path = filepath.Join(dir, "audit.wal")
	l, _ := mustOpen(t, o)
	mustAppend(t, l, numbered("n", 8)...)
	var folders []string
	var ends []int // of what is written, without the zeros behind it
	for range 3 {
		ends = append(ends, int(l.Head().Offset))
		mustClose(t, l)
		r, err := Retire(t.Context(), o, Successor{Reason: "r", Start: successor.Start})
		require.NoError(t, err)
		folders = append(folders, r.Folder)
		l, _ = mustOpen(t, o)
		mustAppend(t, l, numbered("n", 8)...)
	}
	mustClose(t, l)
	spoil := func(n, at int) {
		path := filepath.Join(folders[n], frame.RetiredLog)
		b, err := os.ReadFile(path)
		require.NoError(t, err)
		b[at] ^= 1
		require.NoError(t, os.WriteFile(path, b, 0o600))
	}
	named := func() (names []int) {
		report, err := Verify(t.Context(), o)
		require.NoError(t, err)
		for _, w := range ofAncestors(report) {
			names = append(names, slices.IndexFunc(folders, func(f string) bool { return strings.Contains(w, f) }))
		}
		return names
	}
	require.Empty(t, named())
	own := o
	own.Path = filepath.Join(folders[2], frame.RetiredLog)
	report, err := Verify(t.Context(), own)
	require.NoError(t, err)
	require.Empty(t, ofAncestors(report), "those before a log that was put aside lie beside it")
	spoil(0, frame.HeaderSize+60)
	report, err = Verify(t.Context(), own)
	require.NoError(t, err)
	require.Len(t, ofAncestors(report), 1)
	spoil(0, frame.HeaderSize+60) // flips it back
	spoil(2, ends[2]-60)          // in its last event
	require.Equal(t, []int{2}, named())
	spoil(0, frame.HeaderSize+60)
	require.Equal(t, []int{0, 2}, named())
	require.NoError(t, os.Truncate(filepath.Join(folders[1], frame.RetiredLog), int64(ends[1]-60)))
	require.Equal(t, []int{0, 1, 2}, named())
	require.NoError(t, os.RemoveAll(folders[1]))
	require.Equal(t, []int{1, 2}, named(), "nothing tells what came before it")
}

// Of a log of which nothing could be saved no start reads anything, whatever became of
// its files. So it keeps nobody from the next new log, and a verification says what is true.
func TestALogOfWhichNothingCouldBeSavedIsNotNeeded(t *testing.T) {
	mem := newMem(t)
	o := retireOptions(mem)
	id := aLog(t, o)
	flip(t, mem, sealedPath(t, mem, 0), 20)
	r, err := Retire(t.Context(), o, successor)
	require.NoError(t, err)
	require.Zero(t, r.Last)
	l, _ := mustOpen(t, o)
	mustAppend(t, l, "on")
	says := func(verify func() (frame.Report, error)) {
		t.Helper()
		report, err := verify()
		require.NoError(t, err)
		require.Equal(t, frame.OK, report.Status)
		require.Empty(t, ofAncestors(report))
		require.Contains(t, report.Warnings, fmt.Sprintf("of log %x, which the next one follows, nothing could be saved: no start needs it, and what it and those before it knew is not in the projections", id))
	}
	says(func() (frame.Report, error) { return l.Verify(t.Context()) })
	mustClose(t, l)
	says(func() (frame.Report, error) { return Verify(t.Context(), o) })

	second, err := Retire(t.Context(), o, successor)
	require.NoError(t, err)
	require.EqualValues(t, 2, second.Last)
	all, names := ancestorsOf(t, o)
	require.Equal(t, [][16]byte{id, second.LogID}, [][16]byte{all[0].LogID, all[1].LogID})
	require.Equal(t, [][]string{nil, {"on"}}, names)
	says(func() (frame.Report, error) { return Verify(t.Context(), o) })
}

// eventsBefore reads all events of all logs before l.
func eventsBefore(t *testing.T, l *Log) (n int, err error) {
	t.Helper()
	all, err := l.Ancestors(t.Context())
	for _, a := range all {
		for _, err := range a.Events(t.Context()) {
			if err != nil {
				return n, err
			}
			n++
		}
	}
	return n, err
}

// TestWhatLiesOnAnotherVolumeIsRetiredWhereItIs, because it can't be renamed across.
func TestWhatLiesOnAnotherVolumeIsRetiredWhereItIs(t *testing.T) {
	mem := newMem(t)
	o := retireOptions(mem)
	id := aLog(t, o)
	require.NoError(t, mem.MkdirAll("/elsewhere/store"))
	far := successor
	far.Store = "/elsewhere/store"
	once := o
	once.FS = otherVolume{mem}
	_, err := Retire(t.Context(), once, far)
	require.NoError(t, err)
	names, err := mem.List("/elsewhere")
	require.NoError(t, err)
	require.Equal(t, []string{"store.retired-" + hex.EncodeToString(id[:])}, names)
	_, err = mem.List(filepath.Join(testLog+frame.RetiredSuffix, hex.EncodeToString(id[:]), "projections"))
	require.ErrorIs(t, err, fs.ErrNotExist)
}

// otherVolume is a disk on which /elsewhere is another volume.
type otherVolume struct{ frame.FS }

func (v otherVolume) Rename(from, to string) error {
	if filepath.Dir(from) == "/elsewhere" && filepath.Dir(to) != "/elsewhere" {
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: syscall.EXDEV}
	}
	return v.FS.Rename(from, to)
}

// TestARetiredLogDoesNotSayThatNothingFollowsIt, wherever its files are copied to.
func TestARetiredLogDoesNotSayThatNothingFollowsIt(t *testing.T) {
	mem := newMem(t)
	o := retireOptions(mem)
	id := aLog(t, o)
	head, err := frame.ReadHead(mem, testLog+frame.HeadSuffix)
	require.NoError(t, err)
	require.True(t, head.Clean)
	_, err = Retire(t.Context(), o, successor)
	require.NoError(t, err)
	retired, err := frame.ReadHead(mem, RetiredLog(testLog, id)+frame.HeadSuffix)
	require.NoError(t, err)
	head.Clean, head.Counter = false, head.Counter+1
	require.Equal(t, head, retired)
	head, err = frame.ReadHead(mem, testLog+frame.HeadSuffix)
	require.NoError(t, err)
	require.True(t, head.Clean, "the new log's own")
}

// Links to the JSONL file and the store stay, and what they name stays on its volume or
// goes with the log: in the log's folder a link would lead nowhere.
func TestLinksOfAPlaceStay(t *testing.T) {
	home := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(home, "data"), 0o700))
	require.NoError(t, os.MkdirAll(filepath.Join(home, "volume/store"), 0o700))
	o := Options{FS: frame.OS{}, Path: filepath.Join(home, "data/audit.wal"), JSONLPath: filepath.Join(home, "data/audit.log"), Origin: "test"}
	with := successor
	with.Store = filepath.Join(home, "data/approvals.db")
	require.NoError(t, os.Symlink("../volume/lines", o.JSONLPath))
	require.NoError(t, os.Symlink("../volume/store", with.Store))
	for life := range 2 {
		l, _ := mustOpen(t, o)
		mustAppend(t, l, fmt.Sprint("n", life))
		id := l.LogID()
		mustClose(t, l)
		require.NoError(t, os.WriteFile(filepath.Join(with.Store, "CURRENT"), []byte("a store"), 0o600))
		lines, err := os.ReadFile(o.JSONLPath)
		require.NoError(t, err)
		require.NotEmpty(t, lines)

		_, err = Retire(t.Context(), o, with)
		require.NoError(t, err)
		for _, link := range []string{o.JSONLPath, with.Store} {
			_, err := os.Readlink(link)
			require.NoError(t, err, "it is the operator's, and stays")
		}
		folder := filepath.Dir(RetiredLog(o.Path, id))
		kept, err := os.ReadFile(filepath.Join(folder, retiredJSONL))
		require.NoError(t, err)
		require.Equal(t, lines, kept)
		require.NoFileExists(t, filepath.Join(with.Store, "CURRENT"))
		require.FileExists(t, filepath.Join(with.Store, AsidePrefix+hex.EncodeToString(id[:]), "CURRENT"))
		require.NoError(t, filepath.WalkDir(folder, func(path string, e fs.DirEntry, err error) error {
			require.NotEqual(t, fs.ModeSymlink, e.Type(), path)
			return err
		}))
	}

	require.NoError(t, os.Remove(with.Store)) // one that leads to no folder at all is no obstacle
	require.NoError(t, os.Symlink("../gone/store", with.Store))
	_, err := Retire(t.Context(), o, with)
	require.NoError(t, err)
}
