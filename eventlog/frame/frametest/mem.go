// Package frametest gives tests file systems that fail: Mem puts Pebble's
// crashable in-memory file system behind frame.FS, so that a log and a Pebble
// store can lose power at the same moment, and Inject puts faults and
// observation before the calls of any frame.FS, the real one included.
//
// Only tests import it.
package frametest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"path"
	"slices"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"writegate/eventlog/frame"
)

// Mem is frame.FS over Pebble's in-memory file system. What was not synced is
// lost by Crash, in blocks of 4 KiB. Names that were not synced by their folder
// are lost too. Locks live in Mem and so end with it, as a host's do.
type Mem struct {
	// VFS is the file system below, for handing to Pebble.
	VFS *vfs.MemFS

	mu     sync.Mutex
	nodes  map[string]*node
	inodes uint64 // how many nodes were made
	locks  map[string]*ranges
}

var _ frame.FS = (*Mem)(nil)

// NewMem makes an empty crashable file system.
func NewMem() *Mem { return Over(vfs.NewCrashableMem()) }

// Over puts a frame.FS before a file system of Pebble's.
func Over(under *vfs.MemFS) *Mem {
	return &Mem{VFS: under, nodes: map[string]*node{}, locks: map[string]*ranges{}}
}

// Crash gives the file system as a power cut at this moment may leave it: all
// that was synced, and each unsynced block or name with the given probability.
// The original goes on unharmed. Use it for the log and for Pebble alike.
func (m *Mem) Crash(percent int, seed uint64) *Mem {
	return Over(m.VFS.CrashClone(vfs.CrashCloneCfg{
		UnsyncedDataPercent: percent,
		RNG:                 rand.New(rand.NewPCG(seed, seed^0x9e3779b97f4a7c15)),
	}))
}

// node is one file by its present name. All handles of a name share it, because
// Cut has to exchange the file below: Pebble's has no truncate.
type node struct {
	name string
	ino  uint64
	file vfs.File
	cut  bool // exchanged since the last sync
	held *memFile
	// cache is what readers see after a sync that failed, while file is what
	// the medium has. A write goes to both, a sync to file alone.
	cache []byte
}

// readAt reads what a process sees.
func (n *node) readAt(b []byte, off int64) (int, error) {
	if n.cache == nil {
		return n.file.ReadAt(b, off)
	}
	return bytes.NewReader(n.cache).ReadAt(b, off)
}

func (n *node) size() (int64, error) {
	if n.cache != nil {
		return int64(len(n.cache)), nil
	}
	st, err := n.file.Stat()
	if err != nil {
		return 0, err
	}
	return st.Size(), nil
}

func (n *node) writeAt(b []byte, off int64) (int, error) {
	if n.cache != nil {
		if grow := off + int64(len(b)) - int64(len(n.cache)); grow > 0 {
			n.cache = append(n.cache, make([]byte, grow)...)
		}
		copy(n.cache[off:], b)
	}
	return n.file.WriteAt(slices.Clone(b), off)
}

// Open implements frame.FS.
func (m *Mem) Open(name string, mode frame.Mode) (frame.File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	name = path.Clean(name)
	n, err := m.node(name)
	if err != nil {
		return nil, err
	}
	return &memFile{m: m, n: n, mode: mode}, nil
}

func (m *Mem) node(name string) (*node, error) {
	if n := m.nodes[name]; n != nil {
		return n, nil
	}
	st, err := m.VFS.Stat(name)
	if err != nil {
		return nil, &frame.OpError{Op: "open", Name: name, Err: fs.ErrNotExist}
	}
	if st.IsDir() {
		return nil, &frame.OpError{Op: "open", Name: name, Err: frame.ErrNotRegular}
	}
	f, err := m.VFS.OpenReadWrite(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		return nil, err
	}
	m.inodes++
	m.nodes[name] = &node{name: name, ino: m.inodes, file: f}
	return m.nodes[name], nil
}

// Stat implements frame.FS. No time of a write is kept.
func (m *Mem) Stat(name string) (frame.Info, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.node(path.Clean(name))
	if err != nil {
		return frame.Info{}, err
	}
	size, err := n.size()
	return frame.Info{Ino: n.ino, Size: size}, err
}

// Create implements frame.FS.
func (m *Mem) Create(name string) (frame.File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	name = path.Clean(name)
	f, err := m.VFS.Create(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		return nil, err
	}
	m.inodes++
	n := &node{name: name, ino: m.inodes, file: f}
	m.nodes[name] = n
	return &memFile{m: m, n: n, mode: frame.ReadWrite}, nil
}

// Rename implements frame.FS. Pebble's in-memory rename removes the old name
// even where there is nothing to move, so that is looked at first.
func (m *Mem) Rename(from, to string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	from, to = path.Clean(from), path.Clean(to)
	if _, err := m.VFS.Stat(from); err != nil {
		return err
	}
	if err := m.VFS.Rename(from, to); err != nil {
		return err
	}
	delete(m.nodes, to)
	if n := m.nodes[from]; n != nil {
		delete(m.nodes, from)
		n.name, m.nodes[to] = to, n
	}
	return nil
}

// Remove implements frame.FS.
func (m *Mem) Remove(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	name = path.Clean(name)
	delete(m.nodes, name)
	return m.VFS.Remove(name)
}

// List implements frame.FS.
func (m *Mem) List(dir string) ([]string, error) {
	names, err := m.VFS.List(dir)
	slices.Sort(names)
	return names, err
}

// MkdirAll implements frame.FS.
func (m *Mem) MkdirAll(dir string) error { return m.VFS.MkdirAll(dir, 0o700) }

// OpenDir implements frame.FS.
func (m *Mem) OpenDir(dir string) (frame.Dir, error) {
	st, err := m.VFS.Stat(dir)
	if err != nil {
		return nil, err
	}
	if !st.IsDir() {
		return nil, &frame.OpError{Op: "open", Name: dir, Err: errors.New("not a folder")}
	}
	return m.VFS.OpenDir(dir)
}

// SyncDir implements frame.FS.
func (m *Mem) SyncDir(dir string) error {
	d, err := m.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// RealPath implements frame.FS: there are no links here.
func (m *Mem) RealPath(name string) (string, error) { return path.Clean(name), nil }

// Volume implements frame.FS.
func (m *Mem) Volume(string) (frame.Volume, error) {
	return frame.Volume{Kind: "memory"}, nil
}

// ReadFile gives a file's bytes.
func (m *Mem) ReadFile(name string) ([]byte, error) {
	f, err := m.Open(name, frame.ReadOnly)
	if err != nil {
		return nil, err
	}
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	b := make([]byte, size)
	if _, err := f.Pread(b, 0); err != nil && err != io.EOF {
		return nil, err
	}
	return b, f.Close()
}

// WriteFile makes a file with these bytes, synced with its name.
func (m *Mem) WriteFile(name string, b []byte) error {
	f, err := m.Create(name)
	if err != nil {
		return err
	}
	_, err = f.Pwrite(b, 0)
	return errors.Join(err, f.Sync(), f.Close(), m.SyncDir(path.Dir(name)))
}

// FailedSync makes the file behave as after an fdatasync that failed: its
// unsynced bytes can still be read, but they are marked clean, so that no later
// sync takes them to the medium. DropCache shows what the medium has; bytes
// written anew do reach it.
func (m *Mem) FailedSync(name string) error {
	name = path.Clean(name)
	seen, err := m.ReadFile(name)
	if err != nil {
		return err
	}
	medium, err := Over(m.VFS.CrashClone(vfs.CrashCloneCfg{})).ReadFile(name)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.nodes[name]
	if err := m.exchange(n, medium); err != nil {
		return err
	}
	n.cache = seen
	return errors.Join(n.file.Sync(), m.SyncDir(path.Dir(name)))
}

// memFile is one handle.
type memFile struct {
	m    *Mem
	n    *node
	mode frame.Mode
}

// Pwrite implements frame.File.
func (f *memFile) Pwrite(b []byte, off int64) (int, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if f.mode != frame.ReadWrite {
		return 0, &frame.OpError{Op: "pwrite", Name: f.n.name, Err: fs.ErrPermission}
	}
	return f.n.writeAt(b, off)
}

// Pread implements frame.File.
func (f *memFile) Pread(b []byte, off int64) (int, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if len(b) == 0 {
		return 0, nil
	}
	return f.n.readAt(b, off)
}

// NextData implements frame.File: it has no holes.
func (f *memFile) NextData(off int64) int64 { return off }

// Datasync implements frame.File.
func (f *memFile) Datasync() error { return f.Sync() }

// Sync implements frame.File. After Cut the folder is synced too, because the
// shortened file below is another one under the same name.
func (f *memFile) Sync() error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err := f.n.file.Sync(); err != nil {
		return err
	}
	if !f.n.cut {
		return nil
	}
	f.n.cut = false
	return f.m.SyncDir(path.Dir(f.n.name))
}

// Size implements frame.File.
func (f *memFile) Size() (int64, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	return f.n.size()
}

// Cut implements frame.File.
func (f *memFile) Cut(size int64) error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	b := make([]byte, size)
	if _, err := f.n.file.ReadAt(b, 0); err != nil && err != io.EOF {
		return err
	}
	if f.n.cache != nil {
		f.n.cache = slices.Clone(f.n.cache[:min(size, int64(len(f.n.cache)))])
	}
	f.n.cut = true
	return f.m.exchange(f.n, b)
}

// exchange puts another file with these bytes under the node's name, whole or
// not at all: shortening a file does no harm to what stays.
func (m *Mem) exchange(n *node, b []byte) error {
	if n == nil || m.nodes[n.name] != n {
		return errors.New("the file was removed or replaced")
	}
	file, err := m.VFS.Create(n.name+".cut", vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	old := n.file
	n.file = file
	_, err = file.WriteAt(b, 0)
	return errors.Join(err, file.Sync(), m.VFS.Rename(n.name+".cut", n.name), old.Close())
}

// Named implements frame.File.
func (f *memFile) Named(name string) (bool, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	return f.m.nodes[path.Clean(name)] == f.n, nil
}

// DropCache implements frame.File: after FailedSync it brings the medium's
// bytes back, otherwise it changes nothing.
func (f *memFile) DropCache() error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	f.n.cache = nil
	return nil
}

// Flock implements frame.File.
func (f *memFile) Flock() error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if f.n.held != nil && f.n.held != f {
		return &frame.OpError{Op: "flock", Name: f.n.name, Err: frame.ErrLocked}
	}
	f.n.held = f
	return nil
}

// Close implements frame.File. The file below stays open: the node is shared.
func (f *memFile) Close() error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if f.n.held == f {
		f.n.held = nil
	}
	return nil
}

// ranges are the lock bytes of one file: who holds which, and how.
type ranges struct {
	holders map[int64]map[*memLock]frame.LockKind
}

type memLock struct {
	m    *Mem
	name string
	r    *ranges
}

// OpenLock implements frame.FS.
func (m *Mem) OpenLock(name string, mode frame.Mode) (frame.LockFile, error) {
	name = path.Clean(name)
	if _, err := m.VFS.Stat(name); err != nil {
		if mode != frame.ReadWrite {
			return nil, &frame.OpError{Op: "open", Name: name, Err: fs.ErrNotExist}
		}
		if _, err := m.Create(name); err != nil {
			return nil, err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.locks[name] == nil {
		m.locks[name] = &ranges{holders: map[int64]map[*memLock]frame.LockKind{}}
	}
	return &memLock{m: m, name: name, r: m.locks[name]}, nil
}

// Lock implements frame.LockFile.
func (l *memLock) Lock(ctx context.Context, off int64, kind frame.LockKind) error {
	for !l.try(off, kind) {
		select {
		case <-ctx.Done():
			return &frame.OpError{Op: "lock", Name: l.name, Err: frame.ErrLocked}
		case <-time.After(time.Millisecond):
		}
	}
	return nil
}

func (l *memLock) try(off int64, kind frame.LockKind) bool {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	for who, as := range l.r.holders[off] {
		if who != l && (kind == frame.Exclusive || as == frame.Exclusive) {
			return false
		}
	}
	if l.r.holders[off] == nil {
		l.r.holders[off] = map[*memLock]frame.LockKind{}
	}
	l.r.holders[off][l] = kind
	return true
}

// Unlock implements frame.LockFile.
func (l *memLock) Unlock(off int64) error {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	delete(l.r.holders[off], l)
	return nil
}

// Held implements frame.LockFile.
func (l *memLock) Held(off int64) (bool, error) {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	for who, as := range l.r.holders[off] {
		if who != l && as == frame.Exclusive {
			return true, nil
		}
	}
	return false, nil
}

// Named implements frame.LockFile. The ranges belong to the name here.
func (l *memLock) Named(name string) (bool, error) {
	_, err := l.m.VFS.Stat(path.Clean(name))
	return err == nil && path.Clean(name) == l.name, nil
}

// Close implements frame.LockFile.
func (l *memLock) Close() error {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	for _, who := range l.r.holders {
		delete(who, l)
	}
	return nil
}
