package projections

import (
	"errors"
	"io"
	"io/fs"
	"os"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Files of the store are for the service's own account alone: they hold the rows
// that are kept for idempotency keys, and exact SQL.
const (
	filePerm = 0o600
	dirPerm  = 0o700
)

// privateFS is the operating system's file system, with files and folders that
// nobody else may read from the moment they exist. Pebble asks for 0666 and 0755
// and leaves the rest to the umask.
type privateFS struct{ vfs.FS }

// Unwrap implements vfs.FS.
func (p privateFS) Unwrap() vfs.FS { return p.FS }

// Create implements vfs.FS. A file that is there is removed first, as vfs.Default
// does: the new one must not be another name's file.
func (p privateFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	for {
		err := make0600(name)
		if err == nil {
			return p.FS.OpenReadWrite(name, category)
		}
		if !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
}

// OpenReadWrite implements vfs.FS.
func (p privateFS) OpenReadWrite(name string, category vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	if err := make0600(name); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	return p.FS.OpenReadWrite(name, category, o...)
}

// Lock implements vfs.FS.
func (p privateFS) Lock(name string) (io.Closer, error) {
	if err := make0600(name); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	return p.FS.Lock(name)
}

// MkdirAll implements vfs.FS.
func (p privateFS) MkdirAll(dir string, _ os.FileMode) error { return p.FS.MkdirAll(dir, dirPerm) }

// make0600 makes an empty file. One that is there is not even opened: to close it
// again would give up its lock.
func make0600(name string) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, filePerm)
	if err != nil {
		return err
	}
	return f.Close()
}

// unlocked gives each lock back at once, for who only looks.
type unlocked struct{ vfs.FS }

// Unwrap implements vfs.FS.
func (u unlocked) Unwrap() vfs.FS { return u.FS }

// Lock implements vfs.FS.
func (u unlocked) Lock(name string) (io.Closer, error) {
	lock, err := u.FS.Lock(name)
	if err != nil {
		return nil, err
	}
	return io.NopCloser(nil), lock.Close()
}
