package eventlog

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"path/filepath"
	"slices"
	"time"

	"writegate/eventlog/frame"
)

// Distances of two points of the sparse index, in events and in bytes, of which the
// first that is reached makes a point: in memory, where a lookup reads no more than
// that in front of its event, and in the file.
const (
	indexEvery     = 64
	indexBytes     = 32 << 10
	indexFileEvery = 1024
	indexFileBytes = 1 << 20
)

const (
	indexFormat    = "gate.audit_index.v1"
	indexSaveEvery = time.Minute
)

// A point says where an event's frame begins.
type point struct {
	seq uint64
	off int64
}

// index finds an event without reading its segment from the start. In memory it
// holds what this process has read or written itself. The file is safe to delete
// and never believed: see hints.go.
type index struct{ points []point }

// note remembers the place of an event if it is one of the regular points, or far
// behind the last point.
func (x *index) note(seq uint64, off int64) {
	last := int64(frame.HeaderSize)
	if n := len(x.points); n > 0 {
		last = x.points[n-1].off
	}
	if seq%indexEvery == 1 || off-last >= indexBytes {
		x.points = append(x.points, point{seq, off})
	}
}

// split takes the points behind an event away and gives them, moved by a distance.
func (x *index) split(last uint64, by int64) (rest index) {
	n := x.after(last)
	for _, p := range x.points[n:] {
		rest.points = append(rest.points, point{p.seq, p.off + by})
	}
	x.points = x.points[:n]
	return rest
}

// cut forgets all points behind an event.
func (x *index) cut(last uint64) {
	x.points = x.points[:x.after(last)]
}

// after gives how many points lie at or before the event.
func (x *index) after(seq uint64) int {
	n, found := slices.BinarySearchFunc(x.points, seq, func(p point, seq uint64) int {
		switch {
		case p.seq < seq:
			return -1
		case p.seq > seq:
			return 1
		}
		return 0
	})
	if found {
		n++
	}
	return n
}

// span gives offsets between which the frame of an event lies, as far as the
// points know; end is the bound where none follows.
func (x *index) span(seq uint64, end int64) (from, to int64) {
	n := x.after(seq)
	from, to = frame.HeaderSize, end
	if n > 0 {
		from = x.points[n-1].off
	}
	if n < len(x.points) {
		to = x.points[n].off
	}
	return from, min(to, end)
}

// indexFile is the JSON form of the index.
type indexFile struct {
	Format   string           `json:"format"`
	LogID    string           `json:"log_id"`
	Segments []indexedSegment `json:"segments"`
	Points   [][3]int64       `json:"points"`
}

type indexedSegment struct {
	Segment  uint32 `json:"segment"`
	File     string `json:"file"`
	FirstSeq uint64 `json:"first_seq"`
	LastSeq  uint64 `json:"last_seq"`
}

// indexActive walks the active segment once, up to the durable head. Open has
// just verified these bytes; a file of points that anybody may have written is
// not believed in their place.
func (l *Log) indexActive(ctx context.Context) error {
	s := l.active
	s.indexed = true
	x, err := scanIndex(ctx, s.file, l.durable.Offset)
	s.index = x
	return err
}

// indexSealed walks a segment that an earlier run sealed. Its points are kept, so
// that it is read once.
func (l *Log) indexSealed(ctx context.Context, s *segment, end int64) error {
	l.indexing.Lock()
	defer l.indexing.Unlock()
	file, err := l.reader(s)
	if err != nil {
		return err
	}
	l.mu.Lock()
	done := s.indexed
	l.mu.Unlock()
	if done {
		return nil
	}
	x, err := scanIndex(ctx, file, end)
	if err != nil && ctx.Err() != nil {
		return err
	}
	// Damage is met again by who reads there: the points reach up to it.
	l.mu.Lock()
	defer l.mu.Unlock()
	s.index, s.indexed = x, true
	return nil
}

func scanIndex(ctx context.Context, f frame.File, end int64) (x index, err error) {
	for p, err := range frame.Scan(ctx, f, frame.HeaderSize, end) {
		if err != nil {
			return x, err
		}
		x.note(p.Seq, p.Off)
	}
	return x, nil
}

// keepIndexSaved writes the index file from time to time, after a rotation and
// at the end.
func (l *Log) keepIndexSaved() {
	tick := time.NewTicker(indexSaveEvery)
	defer tick.Stop()
	for stopped := false; !stopped; {
		select {
		case <-l.stop:
			stopped = true
		case <-l.saveIndexNow:
		case <-tick.C:
		}
		l.saveIndex()
	}
}

// saveIndex writes the index file: a temporary file, then a rename. It is not
// synced, because losing it costs one scan.
func (l *Log) saveIndex() {
	b, err := l.indexFile().bytes()
	if err == nil {
		err = replaceFile(l.o.FS, l.o.IndexPath, b, false)
	}
	if err != nil {
		l.o.Logger.Warn("the index file can't be written", "error", err)
	}
}

func (f *indexFile) bytes() ([]byte, error) {
	b, err := json.Marshal(f)
	return append(b, '\n'), err
}

// indexFile lists all segments and their points: those that this process has read
// or written, and of a segment that it has done neither with, those that the file
// had before.
func (l *Log) indexFile() *indexFile {
	l.mu.Lock()
	defer l.mu.Unlock()
	file := &indexFile{Format: indexFormat, LogID: hex.EncodeToString(l.header.LogID[:]), Points: [][3]int64{}}
	for _, s := range l.segments {
		name, last := filepath.Base(s.path), s.last
		if s == l.active {
			last = l.durable.Seq
		} else {
			name = filepath.Join(filepath.Base(filepath.Dir(s.path)), name)
		}
		file.Segments = append(file.Segments, indexedSegment{Segment: s.number, File: name, FirstSeq: s.first, LastSeq: last})
		points := s.index.points
		if !s.indexed && s != l.active {
			points = s.hints.points
		}
		before := int64(frame.HeaderSize)
		for _, p := range points {
			if (p.seq%indexFileEvery == 1 || p.off-before >= indexFileBytes) && p.seq <= last {
				file.Points = append(file.Points, [3]int64{int64(p.seq), int64(s.number), p.off})
				before = p.off
			}
		}
	}
	return file
}

// replaceFile puts b under a name, whole or not at all. durable also syncs the
// bytes and the name.
func replaceFile(fsys frame.FS, name string, b []byte, durable bool) error {
	if err := noLogBeside(fsys, name); err != nil {
		return err
	}
	var dir frame.Dir
	if durable {
		// Opened before the rename: an error of its write-back is told to
		// descriptors that were open then.
		var err error
		if dir, err = fsys.OpenDir(parent(name)); err != nil {
			return err
		}
		defer dir.Close()
	}
	f, err := fsys.Create(tempPath(name))
	if err != nil {
		return err
	}
	_, err = f.Pwrite(b, 0)
	if durable && err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := fsys.Rename(tempPath(name), name); err != nil {
		return err
	}
	if durable {
		return dir.Sync()
	}
	return nil
}
