package projections

import "github.com/cockroachdb/pebble/v2/vfs"

// folderSyncs is the file system that Pebble gets. Where a folder can't be synced Pebble
// panics by itself, in a goroutine of its own, and would take the process with it; giveUp
// is called instead, and does not return. Pebble compares file systems, so it is a pointer.
type folderSyncs struct {
	vfs.FS
	giveUp func(format string, args ...any)
}

// Unwrap implements vfs.FS.
func (f *folderSyncs) Unwrap() vfs.FS { return f.FS }

// OpenDir implements vfs.FS.
func (f *folderSyncs) OpenDir(name string) (vfs.File, error) {
	dir, err := f.FS.OpenDir(name)
	if err != nil {
		return nil, err
	}
	return &syncedFolder{dir, name, f.giveUp}, nil
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
