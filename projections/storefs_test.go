package projections_test

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"writegate/projections"
	"writegate/projections/projectionstest"
)

// A flakyFolder is a file system where the sync of a folder fails.
type flakyFolder struct {
	vfs.FS
	failing, syncs atomic.Int64 // which sync of a folder fails (-1: each), and how many there were
}

func (f *flakyFolder) OpenDir(name string) (vfs.File, error) {
	dir, err := f.FS.OpenDir(name)
	return &flakyDir{dir, f}, err
}

type flakyDir struct {
	vfs.File
	fs *flakyFolder
}

func (d *flakyDir) Sync() error {
	if n, failing := d.fs.syncs.Add(1), d.fs.failing.Load(); failing < 0 || n == failing {
		return syscall.EIO
	}
	return d.File.Sync()
}

// A store whose folder can't be synced once ends the service as any other failure of its
// disk does, and does not take the process with it.
func TestAFolderThatCannotBeSyncedIsAnError(t *testing.T) {
	failed := 0
	for n := int64(1); ; n++ {
		disk := &flakyFolder{FS: vfs.NewMem()}
		disk.failing.Store(n)
		o := projections.Options{Dir: "store", FS: disk, FlushEvery: time.Millisecond}
		store, err := projections.Open(o)
		if err != nil {
			require.ErrorIs(t, err, syscall.EIO)
			failed++
			continue
		}
		if disk.syncs.Load() < n { // it comes later, or never
			require.NoError(t, store.Close())
			break
		}
		require.NoError(t, store.Close())
	}
	require.Positive(t, failed)

	disk := &flakyFolder{FS: vfs.NewMem()}
	w := &world{t: t, fs: disk, log: projectionstest.NewLog(), now: time.Unix(0, 1735689600000000000).UTC()}
	store, err := projections.Open(projections.Options{Dir: "store", FS: disk, FlushEvery: time.Millisecond})
	require.NoError(t, err)
	require.NoError(t, store.Connect(t.Context(), w.log))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w.store, w.ran = store, make(chan error, 1)
	go func() { w.ran <- store.Run(ctx, w.log) }()
	w.scenario(1, 20)
	disk.failing.Store(-1)
	more := &stream{now: w.now, r: rand.New(rand.NewPCG(2, 1))}
	w.log.Append(t, more.batch()...)
	select {
	case err := <-store.Fatal():
		require.ErrorIs(t, err, syscall.EIO)
	case <-time.After(time.Minute):
		t.Fatal("the store goes on")
	}
}
