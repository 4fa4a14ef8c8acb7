package projections

import "github.com/cockroachdb/pebble/v2/vfs"

// storeFS is the file system that Pebble gets. Where a folder can't be synced Pebble
// panics by itself, in a goroutine of its own, and would take the process with it: the
// store gives up instead, which does not return. A table that can't be written Pebble tries
// again at once, and for as long as that lasts: the next one is made after a while.
// Pebble compares file systems, so it is a pointer.
type storeFS struct {
	vfs.FS
	store *Store
}

// Unwrap implements vfs.FS.
func (f *storeFS) Unwrap() vfs.FS { return f.FS }

// Create implements vfs.FS.
func (f *storeFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f.store.pause()
	return f.FS.Create(name, category)
}

// OpenDir implements vfs.FS.
func (f *storeFS) OpenDir(name string) (vfs.File, error) {
	dir, err := f.FS.OpenDir(name)
	if err != nil {
		return nil, err
	}
	return &syncedFolder{dir, name, (&logger{store: f.store}).Fatalf}, nil
}

type syncedFolder struct {
	vfs.File
	name   string
	giveUp func(format string, args ...any)
}

// Sync implements vfs.File.
func (d *syncedFolder) Sync() error {
	err := d.File.Sync()
	if err != nil {
		d.giveUp("sync of the folder %s: %w", d.name, err)
	}
	return err
}
