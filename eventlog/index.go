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

// Distances of two points of the sparse index, in events: in memory, where a
// lookup reads at most so many frames, and in the file.
const (
	indexEvery     = 64
	indexFileEvery = 1024
)

const (
	indexFormat    = "gate.audit_index.v1"
	indexSaveEvery = time.Minute
)

// A point says where an event's frame begins.
type point struct {
	seq     uint64
	segment uint32
	off     int64
}

// index finds an event without reading the log from its start. In memory it
// holds what this process has read or written itself. The file it writes is for
// others and a hint alone: safe to delete, and never believed at open.
type index struct{ points []point }

// note remembers the place of an event if it is one of the regular points.
func (x *index) note(seq uint64, segment uint32, off int64) {
	if seq%indexEvery == 1 {
		x.points = append(x.points, point{seq, segment, off})
	}
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

// save writes the index file: a temporary file, then a rename. It is not
// synced, because losing it costs one scan.
func (x *index) save(o *Options, w string, logID [16]byte, head Head) error {
	file := indexFile{
		Format:   indexFormat,
		LogID:    hex.EncodeToString(logID[:]),
		Segments: []indexedSegment{{Segment: head.Segment, File: filepath.Base(w), FirstSeq: 1, LastSeq: head.Seq}},
		Points:   [][3]int64{},
	}
	for _, p := range x.points {
		if p.seq%indexFileEvery == 1 && p.seq <= head.Seq {
			file.Points = append(file.Points, [3]int64{int64(p.seq), int64(p.segment), p.off})
		}
	}
	b, err := json.Marshal(file)
	if err != nil {
		return err
	}
	return replaceFile(o.FS, o.IndexPath, append(b, '\n'), false)
}

// buildIndex walks the active segment once, up to the durable head. Open has
// just verified these bytes; a file of points that anybody may have written is
// not believed in their place.
func (l *Log) buildIndex(ctx context.Context, end Head) error {
	for p, err := range frame.Scan(ctx, l.readFile, frame.HeaderSize, end.Offset) {
		if err != nil {
			return err
		}
		l.index.note(p.Seq, end.Segment, p.Off)
	}
	return nil
}

// keepIndexSaved writes the index file from time to time and at the end.
func (l *Log) keepIndexSaved() {
	tick := time.NewTicker(indexSaveEvery)
	defer tick.Stop()
	for stopped := false; !stopped; {
		select {
		case <-l.stop:
			stopped = true
		case <-tick.C:
		}
		l.saveIndex()
	}
}

func (l *Log) saveIndex() {
	l.mu.Lock()
	points, head := index{slices.Clone(l.index.points)}, l.durable
	l.mu.Unlock()
	if err := points.save(&l.o, l.w, l.header.LogID, head); err != nil {
		l.o.Logger.Warn("the index file can't be written", "error", err)
	}
}

// replaceFile puts b under a name, whole or not at all. durable also syncs the
// bytes and the name.
func replaceFile(fsys frame.FS, name string, b []byte, durable bool) error {
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
