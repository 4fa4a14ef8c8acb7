package eventlog

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"path/filepath"

	"writegate/eventlog/event"
	"writegate/eventlog/frame"
)

// ErrAncestor says that a log follows another one whose files are not there, or
// are not what the later log says of them. What rests on both logs can't be
// made without them.
var ErrAncestor = errors.New("a log before this one is missing or damaged")

// An Ancestor is a log that ended before the one at hand began, as far as its
// successor vouches for it: the successor's first event names its id, its last
// event that counts, and that event's hash.
type Ancestor struct {
	LogID [16]byte
	Last  uint64 // 0: nothing of it could be saved
	Hash  [32]byte
	// Events gives the events 1 to Last, each checked against its hash and its
	// predecessor, and the last one against Hash. ErrAncestor ends the iteration.
	Events func(ctx context.Context) iter.Seq2[event.Envelope, error]
}

// Ancestors gives the logs before this one, the oldest first; none for a log
// that follows no other. See the function of the same name.
func (l *Log) Ancestors(ctx context.Context) ([]Ancestor, error) {
	return Ancestors(ctx, l.o.FS, l.w, l.From(ctx, 1))
}

// Ancestors reads from a log's first event which log it follows, and so on back
// to the first of all. path is W, and the files of ancestors lie in W.retired; or it
// is that of an ancestor, beside which those before it lie.
func Ancestors(ctx context.Context, fsys frame.FS, path string, events iter.Seq2[event.Envelope, error]) ([]Ancestor, error) {
	w, err := fsys.RealPath(path)
	if err != nil {
		return nil, err
	}
	w, _ = frame.RetiredFrom(w)
	var found []Ancestor
	p, err := predecessor(events)
	for err == nil && p != nil {
		for _, known := range found {
			if known.LogID == p.LogID {
				return nil, fmt.Errorf("%w: log %x is named as its own ancestor", ErrAncestor, p.LogID)
			}
		}
		a := Ancestor{LogID: p.LogID, Last: p.LastSeq, Hash: p.LastEventHash}
		a.Events = retired{fsys, RetiredLog(w, p.LogID), p}.events
		found = append([]Ancestor{a}, found...)
		p, err = predecessor(a.Events(ctx))
	}
	return found, err
}

// AncestorFaults reads the logs before one whole, and says of each that is missing, is
// damaged, or does not end as the log behind it names it, what is wrong; all of these
// are ErrAncestor. What came before a log whose first event can't be read is unknown; one
// of which nothing could be saved is no fault, since no start reads it. err is that of
// ctx, or of the events of the log itself.
func AncestorFaults(ctx context.Context, fsys frame.FS, path string, events iter.Seq2[event.Envelope, error]) ([]error, error) {
	_, faults, err := readAncestors(ctx, fsys, path, events)
	return faults, err
}

// readAncestors gives the logs before one, as far as they are named, with what is wrong with them.
func readAncestors(ctx context.Context, fsys frame.FS, path string, events iter.Seq2[event.Envelope, error]) (all []Ancestor, faults []error, err error) {
	all, err = Ancestors(ctx, fsys, path, events)
	if err != nil && (!errors.Is(err, ErrAncestor) || ctx.Err() != nil) {
		return nil, nil, errors.Join(err, ctx.Err())
	}
	named := err != nil // of the oldest that was found: its first event was asked for
	if named {
		faults = append(faults, err)
	}
	for i, a := range all {
		for _, err := range a.Events(ctx) {
			if ctx.Err() != nil {
				return nil, nil, ctx.Err()
			}
			if err != nil && (i > 0 || !named) {
				faults = append(faults, err)
			}
		}
	}
	return all, faults, nil
}

// WarnOfAncestors says in the report of a log, whose files are set, what AncestorFaults
// finds, and of which log nothing could be saved. The status speaks of the log alone.
func WarnOfAncestors(ctx context.Context, fsys frame.FS, set *frame.Set, r *frame.Report) error {
	if r.VerifiedTo == 0 {
		return nil
	}
	all, faults, err := readAncestors(ctx, fsys, set.Path, Vouched(ctx, set, r, 1))
	for _, a := range all {
		if a.Last == 0 {
			r.Warn(fmt.Sprintf("of log %x, which the next one follows, nothing could be saved: no start needs it, and what it and those before it knew is not in the projections", a.LogID))
		}
	}
	for _, fault := range faults {
		r.Warn(fault.Error() + "; a start that has to fold the log needs it")
	}
	return err
}

// predecessor reads the log before this one from its first event.
func predecessor(events iter.Seq2[event.Envelope, error]) (*event.Predecessor, error) {
	for e, err := range events {
		if err != nil || e.Type != event.TypeStartup {
			return nil, err
		}
		var s event.Startup
		if err := e.Parse(&s); err != nil {
			return nil, fmt.Errorf("event %d: %w", e.Seq, err)
		}
		return s.Predecessor, nil
	}
	return nil, nil
}

// Names inside a folder of W.retired, whatever W was called.
const (
	retiredJSONL = "audit.jsonl"
	retiredStore = "projections"
	RetiredAbout = "retired.json"
)

// RetiredLog is where the log with an id lies after another one took its place at w.
func RetiredLog(w string, id [16]byte) string {
	return frame.RetiredPath(w, id)
}

// RetiredJSONL is where the JSONL file of such a log lies.
func RetiredJSONL(w string, id [16]byte) string {
	return filepath.Join(filepath.Dir(RetiredLog(w, id)), retiredJSONL)
}

// retired reads a log that is not written any more.
type retired struct {
	fsys frame.FS
	path string
	says *event.Predecessor
}

func (r retired) events(ctx context.Context) iter.Seq2[event.Envelope, error] {
	return func(yield func(event.Envelope, error) bool) {
		if r.says.LastSeq == 0 {
			return
		}
		set, err := frame.Discover(ctx, r.fsys, r.path)
		if err == nil {
			err = r.read(ctx, &set, yield)
		}
		if err = errors.Join(err, set.Close()); err != nil {
			yield(event.Envelope{}, err)
		}
	}
}

func (r retired) read(ctx context.Context, set *frame.Set, yield func(event.Envelope, error) bool) error {
	for p, err := range set.UpTo(ctx, r.says.LogID, r.says.LastSeq, r.says.LastEventHash) {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return r.fault(err)
		}
		e, err := envelope(&p.Frame)
		if err != nil {
			return r.fault(fmt.Errorf("%s: %w", r.path, err))
		}
		if !yield(e, nil) {
			return nil
		}
	}
	return nil
}

func (r retired) fault(err error) error {
	return fmt.Errorf("%w: log %x: %w", ErrAncestor, r.says.LogID, err)
}
