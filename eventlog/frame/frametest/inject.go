package frametest

import (
	"context"
	"errors"

	"writegate/eventlog/frame"
)

// A Kind names a call of frame.FS or frame.File.
type Kind string

// The calls that a hook sees.
const (
	Open     Kind = "open"
	Create   Kind = "create"
	Rename   Kind = "rename"
	Remove   Kind = "remove"
	List     Kind = "list"
	MkdirAll Kind = "mkdirall"
	SyncDir  Kind = "syncdir"
	OpenLock Kind = "openlock"
	Lock     Kind = "lock"
	Pwrite   Kind = "pwrite"
	Pread    Kind = "pread"
	Datasync Kind = "datasync"
	Sync     Kind = "sync"
	Cut      Kind = "cut"
)

// An Op is one call about to happen. Off and Len are those of a read or write;
// a rename is named by its source.
type Op struct {
	Kind Kind
	Name string
	Off  int64
	Len  int
}

// Inject puts hook before every call of under. An error of the hook is the
// call's answer and the call does not happen, with one exception: Short lets a
// write put its first bytes down. The hook may also just look, or take a crash
// clone: it runs before the call and holds no lock.
func Inject(under frame.FS, hook func(Op) error) frame.FS { return &faulty{under, hook} }

// Short is the answer of a hook that lets a write put down its first N bytes.
type Short struct {
	N   int
	Err error
}

func (s Short) Error() string { return "short write: " + s.Err.Error() }

// Unwrap gives the cause to errors.Is.
func (s Short) Unwrap() error { return s.Err }

type faulty struct {
	frame.FS
	hook func(Op) error
}

func (f *faulty) Open(name string, mode frame.Mode) (frame.File, error) {
	if err := f.hook(Op{Kind: Open, Name: name}); err != nil {
		return nil, err
	}
	return f.wrap(name)(f.FS.Open(name, mode))
}

func (f *faulty) Create(name string) (frame.File, error) {
	if err := f.hook(Op{Kind: Create, Name: name}); err != nil {
		return nil, err
	}
	return f.wrap(name)(f.FS.Create(name))
}

func (f *faulty) wrap(name string) func(frame.File, error) (frame.File, error) {
	return func(file frame.File, err error) (frame.File, error) {
		if err != nil {
			return nil, err
		}
		return &faultyFile{file, name, f.hook}, nil
	}
}

func (f *faulty) Rename(from, to string) error {
	if err := f.hook(Op{Kind: Rename, Name: from}); err != nil {
		return err
	}
	return f.FS.Rename(from, to)
}

func (f *faulty) Remove(name string) error {
	if err := f.hook(Op{Kind: Remove, Name: name}); err != nil {
		return err
	}
	return f.FS.Remove(name)
}

func (f *faulty) List(dir string) ([]string, error) {
	if err := f.hook(Op{Kind: List, Name: dir}); err != nil {
		return nil, err
	}
	return f.FS.List(dir)
}

func (f *faulty) MkdirAll(dir string) error {
	if err := f.hook(Op{Kind: MkdirAll, Name: dir}); err != nil {
		return err
	}
	return f.FS.MkdirAll(dir)
}

func (f *faulty) SyncDir(dir string) error {
	if err := f.hook(Op{Kind: SyncDir, Name: dir}); err != nil {
		return err
	}
	return f.FS.SyncDir(dir)
}

func (f *faulty) OpenDir(dir string) (frame.Dir, error) {
	if err := f.hook(Op{Kind: Open, Name: dir}); err != nil {
		return nil, err
	}
	d, err := f.FS.OpenDir(dir)
	if err != nil {
		return nil, err
	}
	return &faultyDir{d, dir, f.hook}, nil
}

func (f *faulty) OpenLock(name string, mode frame.Mode) (frame.LockFile, error) {
	if err := f.hook(Op{Kind: OpenLock, Name: name}); err != nil {
		return nil, err
	}
	l, err := f.FS.OpenLock(name, mode)
	if err != nil {
		return nil, err
	}
	return &faultyLock{l, name, f.hook}, nil
}

type faultyDir struct {
	frame.Dir
	name string
	hook func(Op) error
}

func (d *faultyDir) Sync() error {
	if err := d.hook(Op{Kind: SyncDir, Name: d.name}); err != nil {
		return err
	}
	return d.Dir.Sync()
}

type faultyLock struct {
	frame.LockFile
	name string
	hook func(Op) error
}

func (l *faultyLock) Lock(ctx context.Context, off int64, kind frame.LockKind) error {
	if err := l.hook(Op{Kind: Lock, Name: l.name, Off: off, Len: 1}); err != nil {
		return err
	}
	return l.LockFile.Lock(ctx, off, kind)
}

type faultyFile struct {
	frame.File
	name string
	hook func(Op) error
}

func (f *faultyFile) Pwrite(b []byte, off int64) (int, error) {
	err := f.hook(Op{Kind: Pwrite, Name: f.name, Off: off, Len: len(b)})
	if err == nil {
		return f.File.Pwrite(b, off)
	}
	var short Short
	if !errors.As(err, &short) {
		return 0, err
	}
	n, werr := f.File.Pwrite(b[:min(short.N, len(b))], off)
	return n, errors.Join(err, werr)
}

func (f *faultyFile) Pread(b []byte, off int64) (int, error) {
	if err := f.hook(Op{Kind: Pread, Name: f.name, Off: off, Len: len(b)}); err != nil {
		return 0, err
	}
	return f.File.Pread(b, off)
}

func (f *faultyFile) Datasync() error {
	if err := f.hook(Op{Kind: Datasync, Name: f.name}); err != nil {
		return err
	}
	return f.File.Datasync()
}

func (f *faultyFile) Sync() error {
	if err := f.hook(Op{Kind: Sync, Name: f.name}); err != nil {
		return err
	}
	return f.File.Sync()
}

func (f *faultyFile) Cut(size int64) error {
	if err := f.hook(Op{Kind: Cut, Name: f.name, Off: size}); err != nil {
		return err
	}
	return f.File.Cut(size)
}
