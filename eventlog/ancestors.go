package eventlog

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"path/filepath"
	"strings"

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
	if all := filepath.Dir(filepath.Dir(w)); filepath.Base(w) == retiredLog && strings.HasSuffix(all, frame.RetiredSuffix) {
		w = strings.TrimSuffix(all, frame.RetiredSuffix)
	}
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
// are ErrAncestor. What came before a log whose first event can't be read is unknown. err
// is that of ctx, or of the events of the log itself.
func AncestorFaults(ctx context.Context, fsys frame.FS, path string, events iter.Seq2[event.Envelope, error]) (faults []error, err error) {
	all, err := Ancestors(ctx, fsys, path, events)
	if err != nil && (!errors.Is(err, ErrAncestor) || ctx.Err() != nil) {
		return nil, errors.Join(err, ctx.Err())
	}
	named := err != nil // of the oldest that was found: its first event was asked for
	if named {
		faults = append(faults, err)
	}
	for i, a := range all {
		for _, err := range a.Events(ctx) {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			if err != nil && (i > 0 || !named) {
				faults = append(faults, err)
			}
		}
	}
	return faults, nil
}

// WarnOfAncestors says in the report of a log, whose files are set, what AncestorFaults
// finds. The status speaks of the log alone.
func WarnOfAncestors(ctx context.Context, fsys frame.FS, set *frame.Set, r *frame.Report) error {
	if r.VerifiedTo == 0 {
		return nil
	}
	faults, err := AncestorFaults(ctx, fsys, set.Path, Vouched(ctx, set, r, 1))
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
	retiredLog   = "audit.wal"
	retiredJSONL = "audit.jsonl"
	retiredStore = "projections"
	RetiredAbout = "retired.json"
)

// RetiredLog is where the log with an id lies after another one took its place at w.
func RetiredLog(w string, id [16]byte) string {
	return filepath.Join(w+frame.RetiredSuffix, hex.EncodeToString(id[:]), retiredLog)
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
			err = r.read(ctx, &set, func(e event.Envelope) bool { return yield(e, nil) })
		}
		if err = errors.Join(err, set.Close()); err != nil {
			yield(event.Envelope{}, err)
		}
	}
}

// read judges while it reads: every hash and link up to the hash that the
// successor names. What follows behind that is of no interest.
func (r retired) read(ctx context.Context, set *frame.Set, take func(event.Envelope) bool) error {
	h, err := set.Genesis()
	if err != nil && set.Active.File == nil && len(set.Sealed) == 0 {
		return r.fault("the folder %s is missing: %w", filepath.Dir(r.path), fs.ErrNotExist)
	}
	if err != nil {
		return r.fault("%s: %w", r.path, err)
	}
	if h.LogID != r.says.LogID {
		return r.fault("%s is log %x", r.path, h.LogID)
	}
	at := Head{Hash: h.Hash}
	for p, err := range set.Frames(ctx, r.says.LastSeq) {
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			return r.fault("%s after event %d: %w", r.path, at.Seq, err)
		case p.Seq != at.Seq+1 || p.PreviousHash != at.Hash || !p.Intact():
			return r.fault("%s: event %d does not continue the chain", r.path, at.Seq+1)
		}
		at.Seq, at.Hash = p.Seq, p.Hash
		e, err := envelope(&p.Frame)
		if err != nil {
			return r.fault("%s: %w", r.path, err)
		}
		if at.Seq == r.says.LastSeq && at.Hash != r.says.LastEventHash {
			return r.fault("%s: event %d has the hash %x, its successor says %x", r.path, at.Seq, at.Hash, r.says.LastEventHash)
		}
		if !take(e) {
			return nil
		}
	}
	if at.Seq != r.says.LastSeq {
		return r.fault("%s ends with event %d, its successor goes on from event %d", r.path, at.Seq, r.says.LastSeq)
	}
	return nil
}

func (r retired) fault(format string, args ...any) error {
	return fmt.Errorf("%w: log %x: %w", ErrAncestor, r.says.LogID, fmt.Errorf(format, args...))
}
