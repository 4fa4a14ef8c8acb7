package eventlog

import (
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"

	"writegate/eventlog/event"
	"writegate/eventlog/frame"
)

// maxIndexFile bounds what is read of an index file, in bytes: points of some
// two thousand million events, or of two TiB.
const maxIndexFile = 64 << 20

// VouchWith names who knows the hash of each event from elsewhere than the
// segments: the projections. With that, a single event in a sealed segment of an
// earlier run is found through the index file. vouches may be called from any
// goroutine; false, for whatever reason, costs a scan of the segment.
func (l *Log) VouchWith(vouches func(seq uint64, eventHash [32]byte) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.vouches = vouches
}

// hinted looks for one event where the index file says that it is. Anybody may
// have written that file, and a client can have a frame of its own making stored
// inside a record, so neither a point nor what lies there is believed. What is
// given is an event whose hash somebody vouches for; in every other case ok is
// false, and the segment is read from its start, as if there were no file.
//
// Points of the file are further apart than those in memory: a segment of which
// more than its whole was read in this way is read from its start as well. read
// is how many bytes were looked through.
func (l *Log) hinted(ctx context.Context, seq uint64, head Head) (e event.Envelope, read int64, ok bool) {
	at := l.stretches(seq, head)
	if len(at) == 0 {
		return e, 0, false
	}
	s := at[0].s
	l.mu.Lock()
	vouches, skip := l.vouches, s.indexed || s == l.active || s.hinted > s.size
	l.mu.Unlock()
	if vouches == nil || skip {
		return e, 0, false
	}
	defer func() {
		l.mu.Lock()
		s.hinted += read
		l.mu.Unlock()
	}()
	file, err := l.reader(s)
	if err != nil {
		return e, 0, false
	}
	from, to := s.hints.span(seq, at[0].end)
	frames := 0
	for p, err := range frame.Scan(ctx, file, from, to) {
		frames++
		read = max(read, p.Off+p.Size-from) // p is zero with an error
		switch {
		case err != nil || p.Seq > seq || frames > indexFileEvery:
			return e, read, false
		case p.Seq < seq:
			continue
		case !p.Intact() || !vouches(seq, p.Hash):
			return e, read, false
		}
		e, err = envelope(&p.Frame)
		return e, read, err == nil
	}
	return e, read, false
}

// readHints takes what the index file says of sealed segments. A file that is
// missing, of another log or no index costs scans, and is written anew.
func (l *Log) readHints() {
	if l.o.IndexPath == "" {
		return
	}
	file, err := l.readIndexFile()
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err != nil {
		aside := fmt.Sprintf("%s.disagrees-%d", l.o.IndexPath, l.o.Now().UnixNano()) // it may be a file of somebody's
		l.o.Logger.Warn("what stands in the place of the index file is not the index of this log; it is moved aside, and the index is written anew",
			"moved_to", aside, "reason", err, "error", l.o.FS.Rename(l.o.IndexPath, aside))
		return
	}
	l.takeHints(&file)
}

func (l *Log) readIndexFile() (file indexFile, err error) {
	f, err := l.o.FS.Open(l.o.IndexPath, frame.ReadOnly)
	if err != nil {
		return file, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, err := f.Size()
	if err != nil {
		return file, err
	}
	if size > maxIndexFile {
		return file, fmt.Errorf("%d bytes are more than an index has", size)
	}
	b := make([]byte, size)
	if _, err := f.Pread(b, 0); err != nil && err != io.EOF {
		return file, err
	}
	if err := json.Unmarshal(b, &file); err != nil {
		return file, err
	}
	if file.Format != indexFormat || file.LogID != hex.EncodeToString(l.header.LogID[:]) {
		return file, fmt.Errorf("format %.40q, log %.40q", file.Format, file.LogID)
	}
	return file, nil
}

// takeHints keeps the points of sealed segments that a frame can begin at, in order.
func (l *Log) takeHints(file *indexFile) {
	sealed := map[int64]*segment{}
	for _, s := range l.segments {
		if s != l.active {
			sealed[int64(s.number)] = s
		}
	}
	for _, p := range file.Points {
		s, seq := sealed[p[1]], uint64(p[0])
		if s != nil && seq >= s.first && seq <= s.last && p[2] >= frame.HeaderSize && p[2] < s.size && p[2]%frame.Align == 0 {
			s.hints.points = append(s.hints.points, point{seq, p[2]})
		}
	}
	for _, s := range sealed {
		slices.SortStableFunc(s.hints.points, func(a, b point) int { return cmp.Compare(a.seq, b.seq) })
	}
}
