package eventlog

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"writegate/eventlog/event"
	"writegate/eventlog/frame"
)

// Rebuilt says what became of a file that was written anew from the log.
type Rebuilt struct {
	Path  string // links resolved
	Aside string // where the file is now that was there before; "" where there was none
}

// RebuildJSONL writes the JSONL projection anew: every durable event from 1 on,
// byte for byte what a log that keeps the file writes. The new file is whole and
// synced before the old one, whatever it holds, moves to the first free name
// PATH.aside-N; until then an error, or the end of ctx, leaves the old one where
// it is. progress is called with the last event that was taken; nil is nobody.
//
// It is for a log that was opened without a JSONLPath, since two writers would
// spoil the file. Errors: ErrInvalidOptions, ErrCorrupt, ErrClosed, those of ctx
// and of the file system.
func (l *Log) RebuildJSONL(ctx context.Context, path string, progress func(seq uint64)) (Rebuilt, error) {
	if path == "" || l.o.JSONLPath != "" {
		return Rebuilt{}, fmt.Errorf("%w: a JSONL file is rebuilt at %q, and kept at %q", ErrInvalidOptions, path, l.o.JSONLPath)
	}
	return l.replaceAside(path, func(f frame.File) error {
		w := &jsonlWriter{l: l, file: f, next: 1}
		for e, err := range l.From(ctx, 1) {
			if err == nil {
				err = w.add([]event.Envelope{e})
			}
			if err != nil {
				return err
			}
			tell(progress, e.Seq)
		}
		return w.flush()
	})
}

// RebuildIndex writes the sparse index anew, with the points of all segments. It
// reads the whole log and checks the chain on the way. The rest is as for
// RebuildJSONL; the log was opened without an IndexPath.
func (l *Log) RebuildIndex(ctx context.Context, path string, progress func(seq uint64)) (Rebuilt, error) {
	if path == "" || l.o.IndexPath != "" {
		return Rebuilt{}, fmt.Errorf("%w: an index is rebuilt at %q, and kept at %q", ErrInvalidOptions, path, l.o.IndexPath)
	}
	if err := l.indexAll(ctx, progress); err != nil {
		return Rebuilt{}, err
	}
	b, err := l.indexFile().bytes()
	if err != nil {
		return Rebuilt{}, err
	}
	return l.replaceAside(path, func(f frame.File) error {
		_, err := f.Pwrite(b, 0)
		return err
	})
}

// indexAll finds the points of all segments up to the durable head.
func (l *Log) indexAll(ctx context.Context, progress func(seq uint64)) error {
	head := l.Head()
	segments := l.stretches(1, head)
	points := make([]index, len(segments))
	at := -1
	for p, err := range l.frames(ctx, 1, head) {
		if err != nil {
			return err
		}
		if p.Off == frame.HeaderSize {
			at++
		}
		points[at].note(p.Seq, p.Off)
		tell(progress, p.Seq)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, s := range segments {
		if !s.s.indexed { // the active one is kept as it grows
			s.s.index, s.s.indexed = points[i], true
		}
	}
	return nil
}

func tell(progress func(seq uint64), seq uint64) {
	if progress != nil {
		progress(seq)
	}
}

// replaceAside makes a file under a temporary name and, when it is whole and
// synced, moves what is at path aside and the new one there. A crash between the
// two moves leaves none at path, which the next start makes good.
func (l *Log) replaceAside(path string, write func(frame.File) error) (r Rebuilt, err error) {
	if r.Path, err = l.o.FS.RealPath(path); err != nil {
		return r, err
	}
	if err := noLogBeside(l.o.FS, r.Path); err != nil {
		return r, err
	}
	aside, err := l.freeName(r.Path)
	if err != nil {
		return r, err
	}
	dir, err := l.o.FS.OpenDir(parent(r.Path))
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	if err := l.writeWhole(tempPath(r.Path), write); err != nil {
		return r, err
	}
	if aside != "" {
		if err := l.o.FS.Rename(r.Path, aside); err != nil {
			return r, err
		}
		r.Aside = aside
	}
	if err := l.o.FS.Rename(tempPath(r.Path), r.Path); err != nil {
		return r, err
	}
	return r, dir.Sync()
}

// freeName is where a file can move to; "" is that there is none to move. What is
// no regular file is an error: it is not ours to move.
func (l *Log) freeName(path string) (string, error) {
	f, err := l.o.FS.Open(path, frame.ReadOnly)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	if err := f.Close(); err != nil {
		return "", err
	}
	names, err := l.o.FS.List(parent(path))
	if err != nil {
		return "", err
	}
	for n := 1; ; n++ {
		if aside := fmt.Sprintf("%s.aside-%d", path, n); !slices.Contains(names, filepath.Base(aside)) {
			return aside, nil
		}
	}
}

// writeWhole makes a file, whole and on the disk, or none.
func (l *Log) writeWhole(path string, write func(frame.File) error) error {
	f, err := l.o.FS.Create(path)
	if err != nil {
		return err
	}
	if err = write(f); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, l.o.FS.Remove(path))
	}
	return nil
}
