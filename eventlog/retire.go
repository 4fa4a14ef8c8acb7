package eventlog

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"path/filepath"
	"slices"
	"time"

	"writegate/eventlog/event"
	"writegate/eventlog/frame"
)

// ErrNoLog says that there is no log to retire: an ordinary start begins one.
var ErrNoLog = errors.New("there is no log")

// ErrRetiring says that a retirement was begun and not finished.
var ErrRetiring = errors.New("the log is being retired")

// Retiring is what is known of a log that gives its place to another one.
type Retiring struct {
	LogID    [16]byte
	Last     uint64 // the last event that is carried over
	Hash     [32]byte
	Known    uint64 // the last event that anything on this host knows of
	Begun    bool   // an earlier attempt decided this, and went part of the way
	Reason   string // that attempt's
	Report   frame.Report
	NewLogID [16]byte // set by Retire
	Folder   string   // where the files are, or will be
}

// Lost is how many events are known of and not carried over.
func (r *Retiring) Lost() uint64 { return r.Known - min(r.Last, r.Known) }

// A Successor is how the new log begins.
type Successor struct {
	Reason string        // why a loss is accepted
	Start  event.Startup // the new log's first event; Retire names the predecessor in it
	Mode   string
	Store  string // folder of the projections, which are the old log's; "" = none
}

// JudgeForRetirement says what Retire would carry over, and changes nothing. Errors:
// ErrNoLog, ErrLocked, or those of the file system.
func JudgeForRetirement(ctx context.Context, o Options) (Retiring, error) {
	l, err := lockForRetirement(o)
	if err != nil {
		return Retiring{}, err
	}
	r, err := l.retirement(ctx, "")
	return r.Retiring, errors.Join(err, l.release())
}

// Retire moves the log at o.Path, with all that belongs to it, to W.retired and
// begins a new one that names it in its first event (design/eventlog.md part 11). An
// old chain is never continued: it would fork wherever somebody kept its end.
//
// Nothing is destroyed, and each step can be repeated: what is to be carried over
// is decided once and written down first, and until the last step is done no
// gate starts here. Errors: ErrNoLog, ErrLocked, or those of the file system.
func Retire(ctx context.Context, o Options, s Successor) (_ Retiring, err error) {
	l, err := lockForRetirement(o)
	if err != nil {
		return Retiring{}, err
	}
	defer func() { err = errors.Join(err, l.release()) }()
	r, err := l.retirement(ctx, s.Store)
	if err != nil {
		return r.Retiring, err
	}
	for _, m := range r.moves { // of a plan: whoever can put one there moves nothing else by it
		if !slices.Contains(l.belongings(s.Store), m) {
			return r.Retiring, fmt.Errorf("%s is to move %s to %s, which is no place of this log under the settings of now: run it under those with which the retirement was begun; where none was, remove the file", l.planPath(), m.From, m.To)
		}
	}
	if !r.Begun {
		r.Reason = s.Reason
		if err := l.writePlan(&r); err != nil {
			return r.Retiring, err
		}
	}
	if err := l.moveAway(&r); err != nil {
		return r.Retiring, err
	}
	if err := l.beginSuccessor(ctx, &r, &s); err != nil {
		return r.Retiring, err
	}
	return r.Retiring, l.endPlan(&r)
}

// PutBehind writes down that the log of r, a copy whose files lie where RetiredLog
// says, gives its place to another one. Retire carries that out, and until it has, no
// gate starts. The caller keeps gates away meanwhile. Errors: those of the file system.
func PutBehind(o Options, r Retiring) error {
	o, err := o.withDefaults()
	if err != nil {
		return err
	}
	l := newLog(o)
	var rec Recovery
	if err := l.locate(&rec); err != nil {
		return err
	}
	r.Folder = filepath.Dir(RetiredLog(l.w, r.LogID))
	return l.writePlan(&retirement{Retiring: r})
}

// lockForRetirement keeps gates away.
func lockForRetirement(o Options) (*Log, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	l := newLog(o)
	var rec Recovery
	if err := l.locate(&rec); err != nil {
		return nil, err
	}
	if err := l.lockWriter(); err != nil {
		return nil, errors.Join(err, l.release())
	}
	// A gate whose lock file was removed has the log itself locked.
	if l.file, err = o.FS.Open(l.w, frame.ReadWrite); err != nil {
		l.file = nil // the judge says why
		return l, nil
	}
	if err := lockError(l.file.Flock(), l.w); err != nil {
		return nil, errors.Join(err, l.release())
	}
	return l, nil
}

// A retirement is a Retiring and the files that it is about.
type retirement struct {
	Retiring
	moves []move
}

// A move is one file or folder on its way.
type move struct {
	From string `json:"from"`
	To   string `json:"to"` // inside of the folder
}

// retirement takes up the decision of an earlier attempt, or comes to one. As long as
// the log is still in its place the decision is made again, and has to be the same:
// whoever can put a plan there should not say by it what is carried over.
func (l *Log) retirement(ctx context.Context, store string) (retirement, error) {
	begun, err := l.readPlan()
	if err != nil {
		return begun, err
	}
	if begun.Begun {
		if gone, err := l.anyGone(&begun); err != nil || gone {
			return begun, err
		}
	}
	r, err := l.decide(ctx, store)
	if err != nil || !begun.Begun {
		return r, err
	}
	if begun.LogID != r.LogID || begun.Last != r.Last || begun.Hash != r.Hash {
		return r, fmt.Errorf("%s would carry over the events of log %x up to %d with the hash %x; judged now it is log %x up to %d with the hash %x: find out who wrote the file, then remove it and begin anew; nothing was changed",
			l.planPath(), begun.LogID, begun.Last, begun.Hash, r.LogID, r.Last, r.Hash)
	}
	begun.Known, begun.Report = max(begun.Known, r.Known), r.Report
	return begun, nil
}

// anyGone tells whether the log or its sealed segments have left their place by an earlier
// attempt; what lies there may be the log that follows it.
func (l *Log) anyGone(r *retirement) (bool, error) {
	set, err := frame.DiscoverHeld(l.o.FS, l.w)
	if err != nil {
		return false, err
	}
	there := false
	if set.Active.File != nil {
		h, err := headerOf(set.Active.File)
		there = err == nil && h.LogID == r.LogID
	}
	if err := set.Close(); err != nil || !there {
		return !there, err
	}
	return l.exists(filepath.Join(r.Folder, frame.RetiredLog+frame.SegmentsSuffix))
}

// decide judges the log in its place.
func (l *Log) decide(ctx context.Context, store string) (r retirement, err error) {
	known, err := l.outside(true)
	if err != nil {
		return r, err
	}
	set, err := frame.DiscoverHeld(l.o.FS, l.w)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, set.Close()) }()
	if err := unopened(&set); err != nil {
		return r, err // what can't be opened today may be read tomorrow: nothing is decided about it
	}
	if r.LogID = l.idOf(&set); r.LogID == [16]byte{} {
		return r, fmt.Errorf("%w at %s, or nothing there tells which one it was", ErrNoLog, l.w)
	}
	if p := l.o.Projection; p != nil && p.LogID != r.LogID {
		return r, fmt.Errorf("%w: %s is of log %x, the projections are of %x and would be taken from it: name this log's own, or move them away; nothing was changed", ErrOtherLog, l.w, r.LogID, p.LogID)
	}
	if r.Report, err = l.judgeSet(ctx, set, known, false); err != nil {
		return r, err
	}
	r.Folder = filepath.Dir(RetiredLog(l.w, r.LogID))
	if err := r.judge(ctx, &set, l.o.Projection); err != nil {
		return r, err
	}
	if err := l.ancestorsOf(ctx, &set, &r); err != nil {
		return r, err
	}
	r.moves, err = l.movesOf(store)
	return r, err
}

// ancestorsOf refuses to put a log before another one where that one could not start:
// a log that it follows is missing or damaged.
func (l *Log) ancestorsOf(ctx context.Context, set *frame.Set, r *retirement) error {
	if r.Last == 0 {
		return nil // nothing names one
	}
	faults, err := AncestorFaults(ctx, l.o.FS, l.w, vouched(ctx, set, r.Last, 1))
	if err = errors.Join(err, errors.Join(faults...)); err != nil {
		err = fmt.Errorf("a start behind it would need a log that it follows; put its folder back first, nothing was changed: %w", err)
	}
	return err
}

// unopened is why some file of a set could not be opened.
func unopened(set *frame.Set) error {
	errs := []error{set.Err, set.Active.Err}
	for _, s := range set.Sealed {
		errs = append(errs, s.Err)
	}
	return errors.Join(errs...)
}

// idOf asks the headers first, then what else knows the log.
func (l *Log) idOf(set *frame.Set) (id [16]byte) {
	for _, s := range append(slices.Clone(set.Sealed), set.Active) {
		if s.File == nil {
			continue
		}
		if h, err := headerOf(s.File); err == nil {
			return h.LogID
		}
	}
	switch {
	case set.Head != nil:
		return set.Head.LogID
	case l.o.Projection != nil:
		return l.o.Projection.LogID
	}
	return id
}

// judge finds the last batch that nothing speaks against.
func (r *retirement) judge(ctx context.Context, set *frame.Set, projection *frame.Anchor) error {
	limit := min(r.Report.VerifiedTo, agreed(&r.Report))
	r.Known = r.Report.LastSeq
	if set.Head != nil && set.Head.LogID == r.LogID {
		r.Known = max(r.Known, set.Head.Seq)
	}
	if projection != nil {
		r.Known = max(r.Known, projection.Seq)
	}
	for _, a := range r.Report.Anchors {
		if a.Result != frame.AnchorUntrusted {
			r.Known = max(r.Known, a.Seq)
		}
	}
	for f, err := range set.Frames(ctx, limit) {
		if err != nil {
			return err
		}
		if f.BatchLeft == 0 && f.Seq <= limit {
			r.Last, r.Hash = f.Seq, f.Hash
		}
	}
	r.Known = max(r.Known, r.Last)
	return nil
}

// agreed is how far a log may be believed that an anchor contradicts: up to the last
// event for which one agrees that is kept further away, or as far away and knew it
// before. Where behind that it was written anew nobody knows.
func agreed(r *frame.Report) uint64 {
	limit := uint64(math.MaxUint64)
	for _, against := range r.Anchors {
		if against.Result != frame.AnchorMismatch {
			continue
		}
		believed := uint64(0)
		for _, a := range r.Anchors {
			further := distance(a) - distance(against)
			if a.Result == frame.AnchorMatch && (further > 0 || further == 0 && a.Seq < against.Seq) {
				believed = max(believed, a.Seq)
			}
		}
		limit = min(limit, believed)
	}
	return limit
}

// distance orders anchors by what it takes to make one that agrees with a log that was
// written anew: the head file lies beside the log, a key that only the log names may be
// the forger's own, and the projections may lie on another volume.
func distance(a frame.AnchorResult) int {
	switch {
	case a.Level == frame.L1:
		return 1
	case a.SelfAsserted:
		return 2
	case a.Level == frame.L2:
		return 3
	}
	return 4
}

// belongings are all files and folders that a log may have.
func (l *Log) belongings(store string) (all []move) {
	for _, suffix := range []string{frame.NextSuffix, frame.SegmentsSuffix, "", frame.CheckpointsSuffix, frame.QuarantineSuffix, frame.HeadSuffix} {
		all = append(all, move{l.w + suffix, frame.RetiredLog + suffix})
	}
	for _, m := range []move{{l.o.JSONLPath, retiredJSONL}, {store, retiredStore}} {
		if m.From != "" {
			all = append(all, m)
		}
	}
	return all
}

// movesOf lists what is there of the log.
func (l *Log) movesOf(store string) (moves []move, err error) {
	for _, m := range l.belongings(store) {
		there, err := l.exists(m.From)
		if err != nil {
			return nil, err
		}
		if there {
			moves = append(moves, m)
		}
	}
	return moves, nil
}

// exists tells whether something has a name.
func (l *Log) exists(path string) (bool, error) {
	names, err := l.o.FS.List(parent(path))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return slices.Contains(names, filepath.Base(path)), err
}

// planPath is where a retirement that was begun stands until it is done.
func (l *Log) planPath() string { return filepath.Join(l.w+frame.RetiredSuffix, frame.RetiringName) }

// plan is the JSON form of a retirement: first under planPath, at the end beside
// the files.
type plan struct {
	Format        string `json:"format"`
	LogID         string `json:"log_id"`
	LastSeq       uint64 `json:"last_seq"`
	LastEventHash string `json:"last_event_hash"`
	KnownSeq      uint64 `json:"known_seq"`
	Status        string `json:"status"` // of the log when it was judged
	Reason        string `json:"reason"`
	BegunAt       string `json:"begun_at"`
	Moves         []move `json:"moves"`
}

const planFormat = "gate.retired.v1"

// writePlan is the point from which on the retirement is carried through.
func (l *Log) writePlan(r *retirement) error {
	b, err := json.MarshalIndent(plan{
		Format: planFormat, LogID: hex.EncodeToString(r.LogID[:]), LastSeq: r.Last, LastEventHash: hex.EncodeToString(r.Hash[:]),
		KnownSeq: r.Known, Status: string(r.Report.Status), Reason: r.Reason, BegunAt: l.o.Now().UTC().Format(time.RFC3339Nano), Moves: r.moves,
	}, "", "  ")
	if err != nil {
		return err
	}
	if err := l.o.FS.MkdirAll(r.Folder); err != nil {
		return err
	}
	for _, dir := range []string{parent(l.w), parent(r.Folder)} {
		if err := l.o.FS.SyncDir(dir); err != nil {
			return err
		}
	}
	return replaceFile(l.o.FS, l.planPath(), append(b, '\n'), true)
}

// readPlan gives what an earlier attempt decided; Begun is false without one.
func (l *Log) readPlan() (r retirement, err error) {
	if there, err := l.exists(l.planPath()); err != nil || !there {
		return r, err
	}
	b, err := readAll(l.o.FS, l.planPath())
	if err != nil {
		return r, err
	}
	var p plan
	strict := json.NewDecoder(bytes.NewReader(b))
	strict.DisallowUnknownFields()
	err = strict.Decode(&p)
	id, err1 := hex.DecodeString(p.LogID)
	hash, err2 := hex.DecodeString(p.LastEventHash)
	if err = errors.Join(err, err1, err2); err != nil || p.Format != planFormat || len(id) != len(r.LogID) || len(hash) != len(r.Hash) {
		return r, fmt.Errorf("%s is not what a retirement writes: %w", l.planPath(), cmp.Or(err, fs.ErrInvalid))
	}
	copy(r.LogID[:], id)
	copy(r.Hash[:], hash)
	r.Last, r.Known, r.Reason, r.moves, r.Begun = p.LastSeq, p.KnownSeq, p.Reason, p.Moves, true
	r.Folder = filepath.Dir(RetiredLog(l.w, r.LogID))
	return r, nil
}

// readAll reads a small file.
func readAll(fsys frame.FS, name string) ([]byte, error) {
	f, err := fsys.Open(name, frame.ReadOnly)
	if err != nil {
		return nil, err
	}
	size, err := f.Size()
	b := make([]byte, min(size, 1<<20))
	if err == nil {
		_, err = f.Pread(b, 0)
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return b, errors.Join(err, f.Close())
}

// moveAway moves what has not been moved yet. The new names are made durable
// before the old ones are gone for good.
func (l *Log) moveAway(r *retirement) error {
	folders := []string{r.Folder}
	for _, m := range r.moves {
		from, err := l.linked(m)
		if errors.Is(err, fs.ErrNotExist) {
			continue // a link to where nothing is
		}
		if err == nil {
			err = l.moveOne(from, m, r)
		}
		if err != nil {
			return err
		}
		if dir := parent(from); !slices.Contains(folders, dir) {
			folders = append(folders, dir)
		}
	}
	for _, dir := range folders {
		if err := l.o.FS.SyncDir(dir); err != nil {
			return err
		}
	}
	return nil
}

// linked is where the store or the JSONL file lies that a move is of. A link to it stays,
// so that the next one lies on the same volume; where it was moved to it would lead
// nowhere. The log's own place has no link in it by now.
func (l *Log) linked(m move) (string, error) {
	if m.To != retiredStore && m.To != retiredJSONL {
		return m.From, nil
	}
	return l.o.FS.RealPath(m.From)
}

// moveOne moves what lies at from, and what an earlier attempt has not moved. A disk that
// does not take a rename as one step may have both names after a power cut; then both are
// kept.
func (l *Log) moveOne(from string, m move, r *retirement) error {
	left, err := l.exists(from)
	if err != nil || !left || l.succeeded(m, r) {
		return err
	}
	to, err := l.untaken(filepath.Join(r.Folder, m.To))
	if err != nil {
		return err
	}
	id := hex.EncodeToString(r.LogID[:])
	if dir, err := l.o.FS.RealPath(parent(m.From)); m.To == retiredStore && (err != nil || filepath.Join(dir, filepath.Base(m.From)) != from) {
		return l.moveInside(from, AsidePrefix+id) // no store is made behind a link that leads nowhere
	}
	err = l.o.FS.Rename(from, to)
	if CannotMove(err) { // it is not of the log's volume: it stays on its own
		err = l.o.FS.Rename(from, from+".retired-"+id)
	}
	switch {
	case CannotMove(err) && m.To == retiredStore:
		err = l.moveInside(from, AsidePrefix+id)
	case CannotMove(err) && m.To == retiredJSONL:
		err = l.copyAway(from, to)
	}
	return err
}

// untaken gives the first name of to, to.2, to.3 ... that nothing has.
func (l *Log) untaken(to string) (string, error) {
	for name, n := to, 2; ; n++ {
		taken, err := l.exists(name)
		if err != nil || !taken {
			return name, err
		}
		name = fmt.Sprintf("%s.%d", to, n)
	}
}

// succeeded tells whether a place is the new log's by now. It has nothing but its
// file and its head until gates start again.
func (l *Log) succeeded(m move, r *retirement) bool {
	switch m.From {
	case l.w:
		f, err := l.o.FS.Open(l.w, frame.ReadOnly)
		if err != nil {
			return false
		}
		defer f.Close()
		h, err := headerOf(f)
		return err == nil && h.LogID != r.LogID
	case l.w + frame.HeadSuffix:
		h, err := frame.ReadHead(l.o.FS, m.From)
		return err == nil && h.LogID != r.LogID
	}
	return false
}

// beginSuffix is the new log's name until it is whole: a header and its first event.
const beginSuffix = ".begin"

// beginSuccessor makes the new log under a name of its own and then puts it in
// the old one's place. The head file goes first: with it, and without the log, a
// start would see damage; the other way round it would see nothing wrong.
func (l *Log) beginSuccessor(ctx context.Context, r *retirement, s *Successor) (err error) {
	temp := l.w + beginSuffix
	for _, suffix := range []string{"", frame.HeadSuffix, frame.LockSuffix} {
		if err := l.o.FS.Remove(temp + suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	begun, err := l.successor(ctx, r)
	if err != nil || begun {
		return err
	}
	if r.NewLogID, err = l.writeSuccessor(ctx, temp, r, s); err != nil {
		return err
	}
	if err := l.o.FS.Rename(temp+frame.HeadSuffix, l.w+frame.HeadSuffix); err != nil {
		return err
	}
	if err := l.o.FS.Rename(temp, l.w); err != nil {
		return err
	}
	if err := l.o.FS.Remove(temp + frame.LockSuffix); err != nil {
		return err
	}
	return l.o.FS.SyncDir(parent(l.w))
}

// successor tells whether the new log is in its place already, and that it is
// the one that was to be.
func (l *Log) successor(ctx context.Context, r *retirement) (begun bool, err error) {
	if begun, err = l.exists(l.w); err != nil || !begun {
		return false, err
	}
	set, err := frame.DiscoverHeld(l.o.FS, l.w)
	if err != nil {
		return false, err
	}
	h, err := set.Genesis()
	if err == nil {
		r.NewLogID = h.LogID
		var p *event.Predecessor
		if p, err = predecessor(framesOf(ctx, &set)); err == nil && (p == nil || p.LogID != r.LogID || p.LastSeq != r.Last || p.LastEventHash != r.Hash) {
			err = fmt.Errorf("it does not follow log %x", r.LogID)
		}
	}
	if err = errors.Join(err, set.Close()); err != nil {
		return false, fmt.Errorf("%s is in the place of the new log: %w", l.w, err)
	}
	return true, nil
}

// writeSuccessor makes a log whose first event names the one before it.
func (l *Log) writeSuccessor(ctx context.Context, path string, r *retirement, s *Successor) (id [16]byte, err error) {
	o := l.o
	o.Path, o.JSONLPath, o.IndexPath, o.Projection, o.Outside, o.PreallocateBytes = path, "", "", nil, nil, 0
	next, err := Create(ctx, o)
	if err != nil {
		return id, err
	}
	start := s.Start
	start.SigningVKey = next.Header().Signer
	start.Predecessor = &event.Predecessor{LogID: r.LogID, LastSeq: r.Last, LastEventHash: r.Hash, Reason: r.Reason}
	_, err = next.Append(ctx, Group{Drafts: []event.Draft{
		event.New(l.o.Now(), event.Context{Actor: "system", Operation: "begin_log", Mode: s.Mode}, &start),
	}})
	return next.LogID(), errors.Join(err, next.Close(ctx))
}

// endPlan puts the plan beside the files it is about; from then on gates start. The old
// log does not say any more that nothing follows it, wherever it is copied.
func (l *Log) endPlan(r *retirement) error {
	if err := frame.MarkHead(l.o.FS, filepath.Join(r.Folder, frame.RetiredLog+frame.HeadSuffix), false); err != nil {
		return err
	}
	if err := l.o.FS.Rename(l.planPath(), filepath.Join(r.Folder, RetiredAbout)); err != nil {
		return err
	}
	for _, dir := range []string{r.Folder, parent(r.Folder)} {
		if err := l.o.FS.SyncDir(dir); err != nil {
			return err
		}
	}
	return nil
}
