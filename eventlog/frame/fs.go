package frame

import (
	"context"
	"errors"
	"fmt"
)

// Errors that every FS reports in the same way. A missing file is
// io/fs.ErrNotExist, as everywhere in Go.
var (
	// ErrLocked says that another open file description holds the lock.
	ErrLocked = errors.New("locked by another process")
	// ErrNotRegular says that the name is a folder, a pipe or a device.
	ErrNotRegular = errors.New("not a regular file")
)

// A Mode says what an opened file may be used for.
type Mode int

// The two ways to open a file that exists.
const (
	ReadOnly Mode = iota
	ReadWrite
)

// FS is the file system as the log needs it: few calls, each with the promise
// that recovery reasons about. OS is the real one; frametest.Mem is Pebble's
// in-memory file system, which can lose what was not synced.
//
// Names are paths of the host; only the caller joins them.
type FS interface {
	// Open opens a regular file that exists. It never creates, never truncates
	// and never waits for the other end of a pipe.
	Open(name string, mode Mode) (File, error)
	// Create makes an empty file for reading and writing; what had the name
	// before is lost. The name is durable after a sync of the folder only.
	Create(name string) (File, error)
	// Rename moves a file over whatever has the new name, atomically for
	// processes. It is durable after a sync of the folder (of both, if two).
	Rename(from, to string) error
	// Remove removes a file or an empty folder.
	Remove(name string) error
	// List gives the names inside a folder, sorted.
	List(dir string) ([]string, error)
	// MkdirAll makes a folder and its parents; an existing one is no error.
	MkdirAll(dir string) error
	// OpenDir opens a folder for syncing. Open it before the rename that is to
	// be synced: an error of the folder's write-back is reported only to
	// descriptors that were open when it happened.
	OpenDir(dir string) (Dir, error)
	// Stat describes the file that has a name, symbolic links resolved, without
	// opening it.
	Stat(name string) (Info, error)
	// SyncDir opens, syncs and closes a folder.
	SyncDir(dir string) error
	// RealPath resolves symbolic links. The last element may be missing.
	RealPath(name string) (string, error)
	// OpenLock opens a file that carries lock ranges. ReadWrite creates it
	// where it is missing and allows exclusive locks; ReadOnly does neither.
	OpenLock(name string, mode Mode) (LockFile, error)
	// Volume names the kind of file system that holds the folder.
	Volume(dir string) (Volume, error)
}

// A File is one open regular file. All reads and writes are by position, so
// that readers and the one writer share nothing but bytes.
type File interface {
	// Pwrite writes b at off in exactly one system call. A write cut short is
	// an error and is never carried on, because nothing is known about a hole
	// in a log; only an interruption that wrote nothing is repeated.
	Pwrite(b []byte, off int64) (int, error)
	// Pread fills b from off. At the end of the file it gives what there was
	// and io.EOF, as io.ReaderAt does.
	Pread(b []byte, off int64) (int, error)
	// NextData gives the first offset from off on where the file may hold a byte that is
	// not zero: off itself where the file system does not tell, the end of the file where
	// there is none. It reads nothing.
	NextData(off int64) int64
	// Datasync makes the bytes durable, and the length if it changed. After an
	// error nothing is known about any byte since the last success.
	Datasync() error
	// Sync is Datasync and the rest of the file's metadata.
	Sync() error
	// Size is the length in bytes.
	Size() (int64, error)
	// Named tells whether name is a name of this very file: not when it was
	// removed, moved away, or another file was put in its place.
	Named(name string) (bool, error)
	// Cut sets the length to size.
	Cut(size int64) error
	// DropCache asks for clean pages to be read from the medium again. After a
	// failed sync in another process the cache may show bytes that no disk has.
	DropCache() error
	// Flock takes the advisory lock of the inode, exclusively and without
	// waiting; ErrLocked when another description has it. Close gives it back.
	Flock() error
	// Close releases the descriptor. Its error is news only to who wrote.
	Close() error
}

// An Info tells one file from another, and whether it was written since. Two of them
// can be compared with ==.
type Info struct {
	Dev, Ino uint64 // the very file
	Size     int64  // in bytes
	Written  int64  // when its bytes were last changed, in nanoseconds of the Unix time
}

// A Dir is an open folder.
type Dir interface {
	// Sync makes the names in the folder durable.
	Sync() error
	Close() error
}

// A LockKind is how a range is held.
type LockKind int

// Shared holders tolerate each other; an exclusive one is alone.
const (
	Shared LockKind = iota
	Exclusive
)

// Byte ranges of the lock file. Each is one byte long.
const (
	// WriterByte is held exclusively by the one writer while it lives.
	WriterByte int64 = 0
	// StructureByte is held exclusively during recovery and rotation, and
	// shared by a verifier while it lists and opens files.
	StructureByte int64 = 1
)

// A LockFile carries open-file-description locks: they belong to this open
// file and not to the process, so closing some other descriptor of the same
// file releases nothing (fcntl(2), F_OFD_SETLK).
type LockFile interface {
	// Lock takes one byte, waiting until ctx ends: then ErrLocked. With a ctx
	// that has ended already it tries once.
	Lock(ctx context.Context, off int64, kind LockKind) error
	// Unlock gives one byte back.
	Unlock(off int64) error
	// Held tells whether another description holds the byte exclusively. It
	// takes nothing, so it never stands in a writer's way.
	Held(off int64) (bool, error)
	// Named is File.Named of the file that carries the locks: who opens the name
	// of another one finds no byte of it taken.
	Named(name string) (bool, error)
	// Close gives all bytes back.
	Close() error
}

// A Volume describes the file system under a folder.
type Volume struct {
	// Kind is a short name ("ext4", "tmpfs", "nfs") or the magic number in hex.
	Kind string
	// Network is true where locks and syncs depend on another host.
	Network bool
	// Volatile is true where a restart of the host, or the removal of a
	// container's layer, takes the files away.
	Volatile bool
}

// An OpError names the call and the file of a failure.
type OpError struct {
	Op   string
	Name string
	Err  error
}

func (e *OpError) Error() string { return fmt.Sprintf("%s %s: %v", e.Op, e.Name, e.Err) }

// Unwrap gives the cause to errors.Is and errors.As.
func (e *OpError) Unwrap() error { return e.Err }
