package eventlog

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"time"

	"writegate/eventlog/event"
	"writegate/eventlog/frame"
)

// After follows a log from outside: it gives the events behind the end that a
// verification found, as their gate commits them, until ctx ends. It looks at the
// head file each time `every` has passed, goes no further than that says is
// durable, and writes nothing. Every event is checked against its hash and its
// predecessor; ErrCorrupt ends the iteration, as does an error of a read.
func After(ctx context.Context, fsys frame.FS, path string, report *frame.Report, every time.Duration) iter.Seq2[event.Envelope, error] {
	return func(yield func(event.Envelope, error) bool) {
		w, err := fsys.RealPath(path)
		if err != nil {
			yield(event.Envelope{}, err)
			return
		}
		o := &outsider{fsys: fsys, w: w, logID: report.Header.LogID, at: report.End}
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			more, err := o.look(ctx, yield)
			if err != nil && ctx.Err() == nil {
				yield(event.Envelope{}, err)
			}
			if err != nil || !more {
				_ = o.close() // it was opened for reading: there is nothing to lose
				return
			}
			select {
			case <-ctx.Done():
				_ = o.close()
				return
			case <-tick.C:
			}
		}
	}
}

// outsider is a reader that follows a log through its files.
type outsider struct {
	fsys  frame.FS
	w     string
	logID [16]byte
	at    frame.End
	file  frame.File // of the segment at.Segment; nil until it is needed
}

func (o *outsider) close() error {
	f := o.file
	if o.file = nil; f == nil {
		return nil
	}
	return f.Close()
}

// look gives what is new up to the head. more is false when the reader has enough.
func (o *outsider) look(ctx context.Context, yield func(event.Envelope, error) bool) (more bool, err error) {
	head, err := frame.ReadHead(o.fsys, o.w+frame.HeadSuffix)
	if errors.Is(err, frame.ErrNoHead) {
		return true, nil // half a slot is there for a moment
	}
	if err != nil {
		return false, err
	}
	if head.LogID != o.logID {
		return false, fmt.Errorf("%w: another log is at %s now", ErrOtherLog, o.w)
	}
	for head.Seq > o.at.Seq {
		if more, err := o.segment(ctx, head, yield); err != nil || !more {
			return false, err
		}
	}
	return true, nil
}

// segment gives the rest of the present segment up to the head, and steps to the
// next one when the head is there.
func (o *outsider) segment(ctx context.Context, head frame.Head, yield func(event.Envelope, error) bool) (more bool, err error) {
	if o.file == nil {
		if err := o.open(ctx); err != nil {
			return false, err
		}
	}
	end := int64(head.EndOff)
	if head.Segment != o.at.Segment {
		if end, err = o.file.Size(); err != nil {
			return false, err
		}
	}
	for p, err := range frame.Scan(ctx, o.file, o.at.Offset, end) {
		if err != nil {
			return false, readError(err)
		}
		if p.Seq != o.at.Seq+1 || p.PreviousHash != o.at.Hash || !p.Intact() {
			return false, fmt.Errorf("%w: event %d at offset %d of segment %d does not continue the chain", ErrCorrupt, o.at.Seq+1, p.Off, o.at.Segment)
		}
		e, err := envelope(&p.Frame)
		if err != nil {
			return false, err
		}
		o.at.Seq, o.at.Hash, o.at.Offset = p.Seq, p.Hash, p.Off+p.Size
		if !yield(e, nil) {
			return false, nil
		}
	}
	switch {
	case head.Segment > o.at.Segment:
		o.at.Segment, o.at.Offset = o.at.Segment+1, frame.HeaderSize
		return true, o.close()
	case head.Seq > o.at.Seq:
		return false, fmt.Errorf("%w: the head knows event %d, the log ends with %d", ErrCorrupt, head.Seq, o.at.Seq)
	}
	return true, nil
}

// open finds the present segment, sealed by now or not, while no rotation runs.
func (o *outsider) open(ctx context.Context) error {
	set, err := frame.Discover(ctx, o.fsys, o.w)
	if err != nil {
		return err
	}
	take := func(s *frame.Segment) {
		if s.File == nil || o.file != nil {
			return
		}
		if h, err := headerOf(s.File); err == nil && h.Segment == o.at.Segment {
			o.file, s.File = s.File, nil // this handle stays: the file may be renamed from now on
		}
	}
	for i := range set.Sealed {
		take(&set.Sealed[i])
	}
	take(&set.Active)
	if err := set.Close(); err != nil {
		return err
	}
	if o.file == nil {
		return fmt.Errorf("segment %d: %w", o.at.Segment, fs.ErrNotExist)
	}
	return nil
}
