package eventlog

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"
	"time"

	"writegate/eventlog/event"
	"writegate/eventlog/frame"
)

// Recovery is what Open found and did; the service writes it into
// log_tail_recovered and startup.
type Recovery struct {
	New   bool // the log was created
	Clean bool // the last run closed the log
	// Tails are the discarded tails that no event names yet. Where there are
	// any, log_tail_recovered has to be the first event that is appended.
	Tails      []event.Tail
	Report     frame.Report
	Filesystem string // kind of the volume
	Anchors    []event.Anchor
	Warnings   []string // sentences for the startup event and the operational log
}

func (r *Recovery) warn(format string, args ...any) {
	r.Warnings = append(r.Warnings, fmt.Sprintf(format, args...))
}

// Open opens the log at o.Path for its one writer, creating it when there is no
// trace of one, and deals with what the last run left (design/eventlog.md part 8).
//
// A log that must not be written (corruption, a torn tail under refuse, bytes
// that can't be read) is opened for reading: Serving says why, Append refuses.
//
// Errors: ErrInvalidOptions, ErrUnsafe, ErrOtherLog, ErrLocked (see ExitCode),
// or the error of a call that a log can't be opened without.
func Open(ctx context.Context, o Options) (_ *Log, rec Recovery, err error) {
	o, err = o.withDefaults()
	if err != nil {
		return nil, rec, err
	}
	l := newLog(o)
	defer func() {
		if err != nil {
			err = errors.Join(err, l.release())
		}
	}()
	if err = l.place(&rec); err != nil {
		return nil, rec, err
	}
	for _, derived := range []string{o.JSONLPath, o.IndexPath} {
		if derived == "" {
			continue
		}
		if err = noLog(o.FS, derived); errors.Is(err, ErrInvalidOptions) {
			return nil, rec, err
		}
	}
	if err = l.lockWriter(); err != nil {
		return nil, rec, err
	}
	if err = l.createIfNew(&rec); err != nil {
		return nil, rec, err
	}
	if err = l.finishRotation(ctx, &rec); err != nil {
		return nil, rec, err
	}
	if err = l.judge(ctx, &rec); err != nil {
		return nil, rec, err
	}
	if l.unserved == nil {
		if err = l.prepare(ctx, &rec); err != nil {
			return nil, rec, err
		}
	}
	l.readHints()
	l.start()
	return l, rec, nil
}

// Create opens a log that must not exist yet.
func Create(ctx context.Context, o Options) (*Log, error) {
	l, rec, err := Open(ctx, o)
	if err == nil && !rec.New {
		return nil, errors.Join(fmt.Errorf("%s: %w", o.Path, fs.ErrExist), l.Close(ctx))
	}
	return l, err
}

func newLog(o Options) *Log {
	l := &Log{
		o: o, opened: time.Now(), filling: new(batch),
		spaceWanted: make(chan struct{}, 1), saveIndexNow: make(chan struct{}, 1), fatal: make(chan error, 1),
		flushed: make(chan struct{}), stop: make(chan struct{}),
	}
	l.work.L = &l.mu
	return l
}

// place finds where the log is to be, which must not be given up just now.
func (l *Log) place(rec *Recovery) error {
	if err := l.locate(rec); err != nil {
		return err
	}
	begun, err := l.exists(l.planPath())
	if err != nil {
		return fmt.Errorf("%w: what lies beside %s: %w", ErrUnsafe, l.w, err)
	}
	if begun {
		return fmt.Errorf("%w: %w at %s: `gate log new` did not come to its end; run it again", ErrUnsafe, ErrRetiring, l.w)
	}
	return nil
}

// locate resolves the path and judges the volume.
func (l *Log) locate(rec *Recovery) (err error) {
	if err = l.o.FS.MkdirAll(parent(l.o.Path)); err != nil {
		return err
	}
	if l.w, err = l.o.FS.RealPath(l.o.Path); err != nil {
		return err
	}
	if w, behind := frame.RetiredFrom(l.w); behind {
		return fmt.Errorf("%w: %s is a log that another one follows, %s: nothing is written to it any more; name that one", ErrUnsafe, l.w, w)
	}
	v, err := l.o.FS.Volume(parent(l.w))
	if err != nil {
		return err
	}
	rec.Filesystem = v.Kind
	l.keepsInodes = !v.Network && v.Kind != "fuse"
	if v.Network && !l.o.AllowNetworkFS {
		return fmt.Errorf("%w: %s lies on %s, where neither locks nor syncs can be relied on", ErrUnsafe, l.w, v.Kind)
	}
	if v.Network || v.Volatile {
		rec.warn("the log lies on %s: it is only as durable as that", v.Kind)
	}
	if l.o.Fsync == FsyncOff {
		rec.warn("GATE_AUDIT_FSYNC=off: nothing in the log is durable")
	}
	return nil
}

// lockWriter takes the writer's byte of the lock file, at once or not at all.
func (l *Log) lockWriter() (err error) {
	if l.lock, err = l.o.FS.OpenLock(l.w+frame.LockSuffix, frame.ReadWrite); err != nil {
		return err
	}
	return lockError(l.lock.Lock(expired, frame.WriterByte, frame.Exclusive), l.w)
}

// expired makes a lock try once.
var expired = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

func lockError(err error, name string) error {
	if errors.Is(err, frame.ErrLocked) {
		return fmt.Errorf("%w: %s: %w", ErrLocked, name, err)
	}
	return err
}

// createIfNew makes the log when there is neither a file nor a trace of one. A
// trace without a file is judged like any other damage.
func (l *Log) createIfNew(rec *Recovery) error {
	set, err := frame.DiscoverHeld(l.o.FS, l.w)
	if err != nil {
		return err
	}
	absent := set.Active.Err == nil && set.Active.Size == 0
	trace := set.Err != nil || len(set.Sealed) > 0 || len(set.Traces) > 0 || l.o.Projection != nil
	if err := set.Close(); err != nil || !absent || trace {
		return err
	}
	rec.New = true
	return l.create()
}

// create writes the header of segment 0 under a temporary name, syncs it and
// renames it, so that half a header never exists.
func (l *Log) create() error {
	h := frame.Header{CreatedNS: l.o.Now().UnixNano(), FirstSeq: 1, Origin: l.o.Origin}
	if _, err := io.ReadFull(l.o.Rand, h.LogID[:]); err != nil {
		return err
	}
	if _, err := io.ReadFull(l.o.Rand, h.Nonce[:]); err != nil {
		return err
	}
	if h.Origin == "" {
		h.Origin = "gate/" + hex.EncodeToString(h.LogID[:])
	}
	if key := l.o.SigningKey; key != nil {
		vkey, err := key.Public().VKey(h.Origin)
		if err != nil {
			return fmt.Errorf("%w: Origin %.40q: %w", ErrInvalidOptions, h.Origin, err)
		}
		h.Signer = vkey
	}
	b, err := h.Encode()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidOptions, err)
	}
	l.o.Step("open.before_create")
	if err := replaceFile(l.o.FS, l.w, b, true); err != nil {
		return err
	}
	l.o.Step("open.after_create")
	return nil
}

// judge opens the file, compares the ids of what belongs together and verifies.
// It leaves in l.unserved why the log can't be written.
func (l *Log) judge(ctx context.Context, rec *Recovery) error {
	head, headErr := frame.ReadHead(l.o.FS, l.w+frame.HeadSuffix)
	read, err := l.openFiles()
	if err != nil {
		return err
	}
	if l.file != nil {
		if err := lockError(l.file.Flock(), l.w); err != nil {
			return err
		}
		if err := l.sameLog(head, headErr); err != nil {
			return err
		}
	}
	if headErr != nil && !rec.New {
		rec.warn("the head file can't be used as an anchor: %v", headErr)
	}
	rec.Clean = rec.New || headErr == nil && head.Clean
	if l.file != nil && !rec.Clean {
		// After a failed sync the cache may show what the disk never got.
		if err := l.file.DropCache(); err != nil {
			return err
		}
	}
	report, err := l.judgeFiles(ctx)
	if err != nil {
		return err
	}
	rec.Report = report
	for _, a := range report.Anchors {
		rec.Anchors = append(rec.Anchors, event.Anchor{Level: string(a.Level), Result: a.Result, Seq: a.Seq})
	}
	rec.Clean = rec.Clean && report.Status == frame.OK && (rec.New || head.Seq == report.End.Seq)
	l.unserved = l.verdict(report)
	l.writable = l.unserved == nil
	l.header = report.Header
	l.durable = headOf(report, l.o.Now())
	if report.Status == frame.Corruption {
		l.sound = soundIn(&report)
	}
	if read != nil {
		l.addActive(read)
	}
	if l.unserved != nil && read != nil {
		l.o.Logger.Error("the log is opened for reading alone", "reason", l.unserved)
		if err := l.indexActive(ctx); err != nil { // readers will meet it where it is
			l.o.Logger.Warn("the log can't be read to its end", "error", err)
		}
	}
	return nil
}

// judgeFiles verifies what is there. Sealed segments were synced before they were
// sealed and are not written any more, so a start with `active` looks at the ends
// of each, and reads them while it serves.
func (l *Log) judgeFiles(ctx context.Context) (frame.Report, error) {
	known, err := l.outside(l.o.VerifyOnStart == VerifyFull)
	if err != nil {
		return frame.Report{}, err
	}
	set, err := l.discover()
	if err != nil {
		return frame.Report{}, err
	}
	l.listSegments(&set)
	l.skimmed = l.o.VerifyOnStart == VerifyActive && len(set.Sealed) > 0
	r, err := l.judgeSet(ctx, set, known, l.skimmed)
	return r, errors.Join(err, set.Close())
}

// openFiles opens W for the writer and for readers. A file that can't be opened
// is left for the verification to name.
func (l *Log) openFiles() (read frame.File, err error) {
	f, err := l.o.FS.Open(l.w, frame.ReadWrite)
	if err != nil {
		l.o.Logger.Error("the log can't be opened for writing", "error", err)
		return nil, nil
	}
	l.file = f
	return l.o.FS.Open(l.w, frame.ReadOnly)
}

// sameLog compares the ids of header, head file and projections.
func (l *Log) sameLog(head frame.Head, headErr error) error {
	b := make([]byte, frame.HeaderSize)
	if _, err := l.file.Pread(b, 0); err != nil && err != io.EOF {
		return nil // the verification names it
	}
	h, err := frame.ParseHeader(b)
	if err != nil {
		return nil // likewise
	}
	if headErr == nil && head.LogID != h.LogID {
		return fmt.Errorf("%w: %s is of log %x, the head file of %x", ErrOtherLog, l.w, h.LogID, head.LogID)
	}
	if p := l.o.Projection; p != nil && p.LogID != h.LogID && p.LogID != [16]byte{} {
		return fmt.Errorf("%w: %s is of log %x, the projections are of %x", ErrOtherLog, l.w, h.LogID, p.LogID)
	}
	return nil
}

// verdict turns a report into the reason why the log is not served, or nil.
func (l *Log) verdict(r frame.Report) error {
	switch {
	case r.Status == frame.Corruption:
		return fmt.Errorf("%w: %s", ErrCorrupt, describe(r))
	case l.file == nil:
		return fmt.Errorf("%w: %s", ErrUnreadable, describe(r))
	case r.Status == frame.OK:
		return nil
	}
	for _, f := range r.Faults {
		if f.Kind != frame.TornTail && f.Kind != frame.IncompleteBatch {
			return fmt.Errorf("%w: %s", ErrUnreadable, describe(r))
		}
	}
	if l.o.OnTornTail == TornTailRefuse {
		return fmt.Errorf("%w: %s", ErrTornTail, describe(r))
	}
	return nil
}

// describe puts the first fault of a report into words.
func describe(r frame.Report) string {
	if len(r.Faults) == 0 {
		return string(r.Status)
	}
	f := r.Faults[0]
	for _, g := range r.Faults { // what corrupts says more than what is merely partial
		if g.Kind != frame.TornTail && g.Kind != frame.IncompleteBatch {
			f = g
			break
		}
	}
	return fmt.Sprintf("%s at segment %d, offset %d, seq %d: %s (%d faults)", f.Kind, f.Segment, f.Offset, f.Seq, f.Detail, r.FaultsTotal)
}

func headOf(r frame.Report, now time.Time) Head {
	return Head{Seq: r.End.Seq, Hash: r.End.Hash, Segment: r.End.Segment, Offset: r.End.Offset, Time: now}
}

// prepare makes a judged log ready for its first batch: the tail is dealt with
// and the last batch made sure of, then the clean mark goes. In that order, since
// the head file must never know of a batch that only the page cache has.
func (l *Log) prepare(ctx context.Context, rec *Recovery) (err error) {
	last, err := frame.ReadHead(l.o.FS, l.w+frame.HeadSuffix)
	if err != nil {
		last = frame.Head{} // a new head file begins
	}
	if err := l.recover(ctx, rec); err != nil {
		return err
	}
	if l.head, err = openHead(&l.o, l.w, l.header.LogID, last); err != nil {
		return err
	}
	if err := l.head.writeSynced(l.durable, false); err != nil {
		return err
	}
	l.o.Step("open.after_unclean")
	if err := l.indexActive(ctx); err != nil {
		return err
	}
	if rec.Tails, err = l.unnamedTails(ctx); err != nil {
		return err
	}
	size, err := l.file.Size()
	if err != nil {
		return err
	}
	l.allocated = max(size, l.durable.Offset)
	if l.born, err = l.bornAt(); err != nil {
		return err
	}
	l.promised = max(rec.Report.End.DurableOff, frame.HeaderSize)
	l.filling.reset(l.durable.Offset, l.durable.Seq, l.durable.Hash)
	if l.o.PreallocateBytes > 0 {
		l.zeroFile, err = l.o.FS.Open(l.w, frame.ReadWrite)
	}
	return err
}

// noLog refuses to write over, cut or remove a file that begins as an event log:
// settings of two gates, or of one, may name places whose temporary names collide.
func noLog(fsys frame.FS, path string) error {
	b, err := begins(fsys, path)
	if err == nil && frame.BeginsLog(b) {
		err = fmt.Errorf("%w: %s is an event log, and something else would be written in its place", ErrInvalidOptions, path)
	}
	return err
}

// begins gives the bytes at the beginning of a file; none where there is no file.
func begins(fsys frame.FS, path string) ([]byte, error) {
	f, err := fsys.Open(path, frame.ReadOnly)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	b := make([]byte, frame.HeaderSize)
	n, err := f.Pread(b, 0)
	if err == io.EOF {
		err = nil
	}
	return b[:n], errors.Join(err, f.Close())
}

// noLogBeside is noLog for a name and for the one under which its new content is
// made. There a creation that was cut short may have left a header, and no event.
func noLogBeside(fsys frame.FS, name string) error {
	if err := noLog(fsys, name); err != nil {
		return err
	}
	temp := tempPath(name)
	f, err := fsys.Open(temp, frame.ReadOnly)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	size, err := f.Size()
	if err = errors.Join(err, f.Close()); err != nil || size <= frame.HeaderSize {
		return err
	}
	return noLog(fsys, temp)
}

// noOtherLog is noLog for a name that only a segment of this log may have.
func (l *Log) noOtherLog(path string) error {
	b, err := begins(l.o.FS, path)
	if err != nil {
		return err
	}
	if h, err := frame.ParseHeader(b); err == nil && h.LogID != l.header.LogID {
		return fmt.Errorf("%w: %s is another event log (%x), and a segment of this one would be written in its place", ErrInvalidOptions, path, h.LogID)
	}
	return nil
}

// start runs the goroutines of a log that may be written.
func (l *Log) start() {
	if l.unserved != nil {
		close(l.flushed)
		return
	}
	go l.flush()
	run := func(wg *sync.WaitGroup, f func()) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			f()
		}()
	}
	run(&l.helpers, l.watch)
	run(&l.helpers, func() { l.head.keepSynced(l.stop) })
	run(&l.helpers, l.keepPlace)
	if l.o.PreallocateBytes > 0 {
		l.askForSpace()
		run(&l.helpers, l.preallocate)
	}
	if l.o.IndexPath != "" {
		run(&l.helpers, l.keepIndexSaved)
	}
	if l.o.JSONLPath != "" {
		run(&l.jsonl, l.keepJSONL)
	}
	if l.skimmed {
		_, _ = l.startVerify() // it fails only while the log is closing
	}
}
