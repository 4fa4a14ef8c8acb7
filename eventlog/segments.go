package eventlog

import (
	"cmp"
	"context"
	"path/filepath"
	"slices"
	"time"

	"writegate/eventlog/frame"
)

// A segment is one file of the log, as its owner knows it. The last one of
// Log.segments is the active one: its path is W, and what follows its end is
// told by the durable head.
type segment struct {
	number uint32
	first  uint64 // its first event

	// Of a sealed segment; Log.mu guards them, because sealing sets them.
	path string
	last uint64     // its last event
	size int64      // where its frames end, or a little behind
	info frame.Info // of its file when it was sealed, opened or last read anew; Log.structure guards it

	index   index // Log.mu guards it
	indexed bool  // the points reach through the whole segment; Log.mu guards it
	hints   index // what the index file says of a sealed segment; set by Open, never believed
	hinted  int64 // bytes that were read by the hints; Log.mu guards it

	file frame.File // the handle that readers share, nil until the first one; Log.reading guards it
}

// listSegments takes the files that a verification has found. A sealed file that
// cannot be opened is left out: readers meet the gap, and the report names it.
func (l *Log) listSegments(set *frame.Set) {
	l.segments = nil
	for _, s := range set.Sealed {
		if s.Err == nil {
			sealed := &segment{
				number: s.Number, first: s.First, last: s.Last, size: s.Size,
				path: filepath.Join(l.w+frame.SegmentsSuffix, s.Name),
			}
			l.remember(sealed)
			l.segments = append(l.segments, sealed)
		}
	}
}

// addActive makes the open file W the last segment of the list.
func (l *Log) addActive(read frame.File) {
	l.active = &segment{number: l.durable.Segment, first: 1, path: l.w, file: read}
	if n := len(l.segments); n > 0 {
		l.active.first = l.segments[n-1].last + 1
	}
	if h, err := headerOf(read); err == nil {
		l.active.number, l.active.first = h.Segment, h.FirstSeq
	}
	l.segments = append(l.segments, l.active)
}

// bornAt gives the time of the active segment's first event, or zero where it
// has none.
func (l *Log) bornAt() (time.Time, error) {
	if l.durable.Seq < l.active.first {
		return time.Time{}, nil
	}
	f, _, err := frame.ReadFrameAt(l.active.file, frame.HeaderSize, l.durable.Offset)
	if err != nil {
		return time.Time{}, err
	}
	e, err := envelope(&f)
	return e.Time, err
}

func headerOf(f frame.File) (frame.Header, error) {
	b := make([]byte, frame.HeaderSize)
	if _, err := f.Pread(b, 0); err != nil {
		return frame.Header{}, err
	}
	return frame.ParseHeader(b)
}

// A stretch is the part of a segment that a reader has to look at.
type stretch struct {
	s       *segment
	end     int64
	indexed bool
}

// stretches gives the segments from the one that holds an event up to a head.
func (l *Log) stretches(seq uint64, head Head) []stretch {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, found := slices.BinarySearchFunc(l.segments, seq, func(s *segment, seq uint64) int { return cmp.Compare(s.first, seq) })
	if !found && n > 0 {
		n--
	}
	var out []stretch
	for _, s := range l.segments[n:] {
		if s.number > head.Segment {
			break
		}
		end := s.size
		if s.number == head.Segment {
			end = head.Offset
		}
		out = append(out, stretch{s, end, s.indexed})
	}
	return out
}

// SegmentOf is the number of the segment that holds an event, or will hold it.
func (l *Log) SegmentOf(seq uint64) uint32 {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range slices.Backward(l.segments) {
		if s.first <= seq {
			return s.number
		}
	}
	return 0
}

// span gives offsets between which the frame of an event lies. A sealed segment
// of an earlier run is indexed when the first reader wants to begin inside it:
// read is the bytes of that.
func (l *Log) span(ctx context.Context, at stretch, seq uint64) (from, to, read int64, err error) {
	if seq <= at.s.first {
		return frame.HeaderSize, at.end, 0, nil
	}
	if !at.indexed {
		if err := l.indexSealed(ctx, at.s, at.end); err != nil {
			return 0, 0, 0, err
		}
		read = at.end
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	from, to = at.s.index.span(seq, at.end)
	return from, to, read, nil
}

// reader gives the shared handle of a segment, opening it for the first reader.
func (l *Log) reader(s *segment) (frame.File, error) {
	l.reading.Lock()
	defer l.reading.Unlock()
	if l.released {
		return nil, ErrClosed
	}
	if s.file == nil {
		f, err := l.o.FS.Open(s.path, frame.ReadOnly) // sealed: the name is for good
		if err != nil {
			return nil, err
		}
		s.file = f
	}
	return sharedFile{l: l, s: s}, nil
}

// sharedFile reads through a segment's handle and outlives it safely.
type sharedFile struct {
	frame.File // nil: only what follows is ever called
	l          *Log
	s          *segment
}

// Pread implements frame.File.
func (f sharedFile) Pread(b []byte, off int64) (int, error) {
	f.l.reading.RLock()
	defer f.l.reading.RUnlock()
	if f.l.released {
		return 0, ErrClosed
	}
	return f.s.file.Pread(b, off)
}

// NextData implements frame.File.
func (f sharedFile) NextData(off int64) int64 {
	f.l.reading.RLock()
	defer f.l.reading.RUnlock()
	if f.l.released {
		return off
	}
	return f.s.file.NextData(off)
}
