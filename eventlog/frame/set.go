package frame

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Names of what belongs to the log at W, each appended to W.
const (
	SegmentsSuffix    = ".segments"
	LockSuffix        = ".lock"
	HeadSuffix        = ".head"
	NextSuffix        = ".next"
	QuarantineSuffix  = ".quarantine"
	CheckpointsSuffix = ".checkpoints"
	RetiredSuffix     = ".retired"
	RetiringName      = "begun.json" // in the folder of RetiredSuffix, while a log is on its way there
)

// lockPatience is how long a verifier waits for recovery or rotation to end.
const lockPatience = 10 * time.Second

// A Segment is one open file of a set. For a sealed one Number, First and Last
// are what its name says.
type Segment struct {
	Name   string
	File   File  // nil where it is missing or could not be opened
	Size   int64 // when it was opened
	Number uint32
	First  uint64
	Last   uint64
	Err    error // why it could not be opened
}

func (s *Segment) present() bool    { return s.File != nil && s.Size > 0 }
func (s *Segment) unreadable() bool { return s.Err != nil }

// A Set is the files of one log, opened at one moment, so that renaming or
// removing them later changes nothing for who reads them.
type Set struct {
	Path   string
	Sealed []Segment // by number
	Active Segment
	Head   *Head // nil where there is none that can be read
	// Whole is true where the path is a log's own place and not a lone file: a
	// folder of segments, a lock or a head file stands beside it.
	Whole bool
	// Live is true while a writer holds the log.
	Live bool
	// Limit is how far the active segment is judged; 0 is its size. A service
	// that verifies its own log sets its durable end, read after Discover.
	Limit int64
	// LockErr is why the structure lock could not be had; the list of files may
	// then be of two moments.
	LockErr error
	// Err is another reason why the set may be incomplete.
	Err error
	// Lost is true where nobody can tell where the path leads: no file of the log was looked for.
	Lost bool
	// Traces names files that only a log leaves behind.
	Traces []string

	// stirred tells whether a writer has come since the files were opened; nil
	// where there was one already, or where the caller vouches that none can.
	stirred func() bool
}

// limit is how far the active segment is judged. The head file never knows
// more than what is durable, so it may lengthen a limit but not shorten it.
func (s *Set) limit() int64 {
	switch {
	case s.Live && s.Head != nil:
		return s.headEnd()
	case s.Limit > 0:
		return s.Limit
	}
	return s.Active.Size
}

// headEnd is the live end: the head's, where it speaks of the active segment.
func (s *Set) headEnd() int64 {
	end := int64(HeaderSize)
	if h, err := headerOf(s.Active); err == nil && h.Segment <= s.Head.Segment {
		end = int64(min(s.Head.EndOff, 1<<62))
	}
	return max(end, s.Limit)
}

func headerOf(s Segment) (Header, error) { return readHeader(&part{Segment: s}) }

// Close closes the files.
func (s *Set) Close() error {
	var errs []error
	for _, seg := range append(slices.Clone(s.Sealed), s.Active) {
		if seg.File != nil {
			errs = append(errs, seg.File.Close())
		}
	}
	return errors.Join(errs...)
}

// Discover finds and opens the files of the log at w (symbolic links resolved)
// under the shared structure lock, so that no rotation runs between two names.
// It creates nothing: where there is no lock file that a gate could take there is no writer. Whatever
// can't be opened is noted in the set and judged by Verify; the error is not nil
// only where this process has no files left, or ctx has ended.
func Discover(ctx context.Context, fsys FS, w string) (Set, error) {
	real, err := fsys.RealPath(w)
	if err != nil {
		return Set{Path: w, Err: err, Lost: true}, exhaustion(err)
	}
	lock, err := fsys.OpenLock(real+LockSuffix, ReadOnly)
	switch {
	case noLock(err):
		return open(fsys, w, real)
	case err != nil:
		s, openErr := open(fsys, w, real)
		s.LockErr = err
		return s, errors.Join(exhaustion(err), openErr)
	}
	wait, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	lockErr := lock.Lock(wait, StructureByte, Shared)
	if ctx.Err() != nil {
		return Set{}, errors.Join(ctx.Err(), lock.Close())
	}
	live, heldErr := lock.Held(WriterByte)
	s, err := open(fsys, w, real)
	if lockErr = errors.Join(lockErr, heldErr, lock.Close()); err != nil {
		return s, err
	}
	s.Live = live && s.Active.present()
	s.LockErr = lockErr
	if s.Live && s.Head == nil {
		s.Limit = promised(s.Active)
	}
	if !s.Live {
		s.stirred = func() bool { return stirred(fsys, real, s.Head) }
	}
	return s, nil
}

// noLock tells, by why a lock file could not be opened, that no writer can hold it: there
// is none, or what has its name is no regular file. Another error leaves it open.
func noLock(err error) bool {
	for _, none := range []error{fs.ErrNotExist, ErrNotRegular, unix.ELOOP, unix.ENOTDIR, unix.ENAMETOOLONG, unix.ENXIO} {
		if errors.Is(err, none) {
			return true
		}
	}
	return false
}

// stirred tells whether a writer is there, or has been there since the head was
// known: each start of one writes the head anew before it takes an event.
func stirred(fsys FS, w string, known *Head) bool {
	lock, err := fsys.OpenLock(w+LockSuffix, ReadOnly)
	if err != nil {
		return false
	}
	held, _ := lock.Held(WriterByte) // where it can't be told, the head still can
	_ = lock.Close()                 // nothing was taken
	now, err := ReadHead(fsys, w+HeadSuffix)
	return held || err == nil && (known == nil || now.Counter != known.Counter)
}

// promised gives the end that the log itself knows to be synced: the newest
// durable_off of its readable beginning. It stands in for a head file beside a
// running writer, of which everything beyond may be half written.
func promised(s Segment) int64 {
	bound := int64(HeaderSize)
	w := &frameWindow{f: s.File, limit: s.Size}
	for off := bound; off < s.Size; {
		f, size, err := w.frame(off)
		if err != nil || !plausible(&f, off) {
			break
		}
		bound = int64(f.DurableOff)
		off += int64(size)
	}
	return bound
}

// DiscoverHeld is Discover for who holds the structure lock already, or knows
// that nobody writes. All of the active segment is judged.
func DiscoverHeld(fsys FS, w string) (Set, error) {
	real, err := fsys.RealPath(w)
	if err != nil {
		return Set{Path: w, Err: err, Lost: true}, exhaustion(err)
	}
	return open(fsys, w, real)
}

// ErrNoFiles says that the files of a log could not all be opened because this process, or
// the system, has too many open: nothing is known of the log, and nothing is said of it.
var ErrNoFiles = errors.New("the log was not judged: too many files are open; raise the limit of open files (ulimit -n, LimitNOFILE)")

// Exhausted tells an error about this process, or the system, from one about a file.
func Exhausted(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOMEM)
}

// exhaustion is ErrNoFiles where err is about this process and not about a file.
func exhaustion(err error) error {
	if Exhausted(err) {
		return fmt.Errorf("%w: %w", ErrNoFiles, err)
	}
	return nil
}

func open(fsys FS, shown, w string) (Set, error) {
	s := Set{Path: shown}
	// The head is read before the files: it then never knows more than they hold.
	h, err := ReadHead(fsys, w+HeadSuffix)
	if err == nil {
		s.Head = &h
	}
	exhausted := exhaustion(err)
	s.Active = openSegment(fsys, w)
	exhausted = cmp.Or(exhausted, exhaustion(s.traces(fsys, w)))
	names, err := fsys.List(w + SegmentsSuffix)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.Err = err
	}
	for _, name := range names {
		no, first, last, ok := ParseSegmentName(name)
		if !ok {
			continue
		}
		seg := openSegment(fsys, filepath.Join(w+SegmentsSuffix, name))
		seg.Number, seg.First, seg.Last = no, first, last
		if seg.File == nil && seg.Err == nil {
			seg.Err = fs.ErrNotExist
		}
		s.Sealed = append(s.Sealed, seg)
		if exhausted = cmp.Or(exhausted, exhaustion(seg.Err)); exhausted != nil {
			break
		}
	}
	if exhausted = cmp.Or(exhausted, exhaustion(s.Active.Err), exhaustion(s.Err)); exhausted != nil {
		return Set{Path: shown}, errors.Join(exhausted, s.Close())
	}
	slices.SortFunc(s.Sealed, func(a, b Segment) int {
		return cmp.Or(cmp.Compare(a.Number, b.Number), cmp.Compare(a.First, b.First), cmp.Compare(a.Last, b.Last))
	})
	return s, nil
}

// traces looks for what stands beside a log's own path. Its error is that of the folder;
// the file itself says why it can't be read.
func (s *Set) traces(fsys FS, w string) error {
	beside, err := fsys.List(filepath.Dir(w))
	if err != nil {
		return err
	}
	base := filepath.Base(w)
	for _, suffix := range []string{HeadSuffix, SegmentsSuffix, CheckpointsSuffix, QuarantineSuffix, RetiredSuffix, LockSuffix} {
		if !slices.Contains(beside, base+suffix) {
			continue
		}
		s.Whole = true
		if suffix == LockSuffix || s.emptyFolder(fsys, w+suffix, suffix) {
			continue // a lock alone is left by a start that created nothing
		}
		s.Traces = append(s.Traces, base+suffix)
	}
	return nil
}

func (s *Set) emptyFolder(fsys FS, dir, suffix string) bool {
	if suffix == HeadSuffix {
		return s.Head == nil
	}
	names, err := fsys.List(dir)
	return err == nil && len(names) == 0
}

func openSegment(fsys FS, name string) Segment {
	s := Segment{Name: filepath.Base(name)}
	f, err := fsys.Open(name, ReadOnly)
	if errors.Is(err, fs.ErrNotExist) {
		return s
	}
	if err == nil {
		s.File = f
		s.Size, err = f.Size()
	}
	s.Err = err
	return s
}

// MaxSealed is the highest number of a segment that can be sealed: names have six digits.
const MaxSealed = 999_999

// SegmentName is the file name of a sealed segment, up to MaxSealed.
func SegmentName(number uint32, first, last uint64) string {
	return fmt.Sprintf("%06d-%020d-%020d.wal", number, first, last)
}

// ParseSegmentName reads what SegmentName made, and nothing else: a file of another name
// is no segment.
func ParseSegmentName(name string) (number uint32, first, last uint64, ok bool) {
	fields := strings.Split(strings.TrimSuffix(name, ".wal"), "-")
	if len(fields) != 3 {
		return 0, 0, 0, false
	}
	n, err1 := strconv.ParseUint(fields[0], 10, 32)
	first, err2 := strconv.ParseUint(fields[1], 10, 64)
	last, err3 := strconv.ParseUint(fields[2], 10, 64)
	if err := errors.Join(err1, err2, err3); err != nil || n > MaxSealed || SegmentName(uint32(n), first, last) != name {
		return 0, 0, 0, false
	}
	return uint32(n), first, last, true
}
