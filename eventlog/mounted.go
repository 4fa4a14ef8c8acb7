package eventlog

import (
	"errors"
	"io"
	"path/filepath"

	"writegate/eventlog/frame"
)

// moveInside moves what is in a folder that can't be renamed, as the mount point of a
// volume can't, into a folder in it. To do it again moves what is left.
func (l *Log) moveInside(dir, name string) error {
	names, err := l.o.FS.List(dir)
	if err != nil {
		return err
	}
	into := filepath.Join(dir, name)
	for _, name := range names {
		if StaysInside(name) {
			continue
		}
		if err := l.o.FS.MkdirAll(into); err != nil {
			return err
		}
		to, err := l.untaken(filepath.Join(into, name))
		if err != nil {
			return err
		}
		if err := l.o.FS.Rename(filepath.Join(dir, name), to); err != nil {
			return err
		}
	}
	if there, err := l.exists(into); err != nil || !there {
		return err
	}
	return errors.Join(l.o.FS.SyncDir(into), l.o.FS.SyncDir(dir))
}

// copyAway empties a file that can't be renamed, once a copy of it is on the disk. One
// that was emptied before is left as it is.
func (l *Log) copyAway(from, to string) (err error) {
	f, err := l.o.FS.Open(from, frame.ReadWrite)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, err := f.Size()
	if err != nil || size == 0 {
		return err
	}
	if err := l.writeWhole(tempPath(to), func(copied frame.File) error {
		b := make([]byte, 1<<20)
		for off := int64(0); off < size; {
			n, err := f.Pread(b[:min(int64(len(b)), size-off)], off)
			if err != nil && err != io.EOF || n == 0 {
				return errors.Join(err, io.ErrUnexpectedEOF)
			}
			if _, err := copied.Pwrite(b[:n], off); err != nil {
				return err
			}
			off += int64(n)
		}
		return nil
	}); err != nil {
		return err
	}
	if err := l.o.FS.Rename(tempPath(to), to); err != nil {
		return err
	}
	if err := l.o.FS.SyncDir(parent(to)); err != nil {
		return err
	}
	if err := f.Cut(0); err != nil {
		return err
	}
	return f.Sync()
}
