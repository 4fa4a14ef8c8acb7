package projections_test

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"writegate/projections"
	"writegate/projections/projectionstest"
)

// A mounted file system has the store's folder as the mount point of a volume, which
// can't be renamed. After so many renames of what is in it, power is lost.
type mounted struct {
	vfs.FS
	err   error
	moves int // that are left; less than 0 is no end
}

var errPower = errors.New("the power is gone")

func (m *mounted) Rename(from, to string) error {
	if from == "store" {
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: m.err}
	}
	if strings.HasPrefix(to, "store/aside-") {
		if m.moves == 0 {
			return errPower
		}
		m.moves--
	}
	return m.FS.Rename(from, to)
}

// List has what a volume of ext4 has at its root.
func (m *mounted) List(dir string) ([]string, error) {
	if dir == "store" {
		if err := m.FS.MkdirAll("store/lost+found", 0o700); err != nil {
			return nil, err
		}
	}
	return m.FS.List(dir)
}

// mountedWorld has a store of some events in such a file system.
func mountedWorld(t *testing.T, cause error) (*world, *mounted) {
	m := &mounted{FS: vfs.NewMem(), err: cause, moves: -1}
	w := &world{t: t, fs: m, log: projectionstest.NewLog(), now: time.Unix(0, 1735689600000000000).UTC()}
	w.start()
	w.scenario(1, 20)
	w.stop()
	return w, m
}

func insideOf(t *testing.T, fs vfs.FS, dir string) []string {
	t.Helper()
	names, err := fs.List(dir)
	require.NoError(t, err)
	return names
}

// What is in a folder that can't be renamed is put aside inside of it, again and again.
func TestAStoreInAMountPointIsPutAsideInsideOfIt(t *testing.T) {
	for _, cause := range []error{syscall.EBUSY, syscall.EXDEV, syscall.EROFS, syscall.EACCES, syscall.EPERM} {
		w, m := mountedWorld(t, cause)
		want := insideOf(t, m, "store")
		for _, path := range []string{"store/aside-1", "store/aside-2"} {
			for _, name := range tables(t, m) {
				require.NoError(t, m.Remove(name))
			}
			store := reopened(t, m, w.log)
			aside, ok := store.Aside()
			require.True(t, ok, cause)
			require.Equal(t, path, aside.Path)
			require.NotContains(t, insideOf(t, m, "store"), "DAMAGED")
			require.Contains(t, insideOf(t, m, path), "DAMAGED")
			require.NotContains(t, insideOf(t, m, path), "lost+found")
			require.NotContains(t, insideOf(t, m, path), "aside-1")
			projectionstest.RebuildAndCompare(t, w.log, store)
			require.NoError(t, store.Close())
			again := reopened(t, m, w.log)
			_, ok = again.Aside()
			require.False(t, ok, "what lies inside is no part of the store")
			require.NoError(t, again.Close())
		}
		for _, name := range want {
			if !strings.HasSuffix(name, ".sst") && name != "lost+found" {
				require.Contains(t, insideOf(t, m, "store/aside-1"), name)
			}
		}
	}
}

// Wherever it ends on the way, no start takes what is left for a store, and the next one
// that comes to the end has all of it in one folder.
func TestAStoreThatIsPutAsideInsideIsNeverTakenForAStoreOnTheWay(t *testing.T) {
	for cut := 0; ; cut++ {
		w, m := mountedWorld(t, syscall.EBUSY)
		w.start()
		last, store := w.endedCleanly()
		m.moves = cut
		proof := errors.New("event is not what it was")
		fresh, err := store.PutAside(proof.Error())
		if err == nil {
			require.NoError(t, fresh.Close())
			require.Greater(t, cut, 4, "each file is a move")
			return
		}
		require.ErrorIs(t, err, errPower)
		left := insideOf(t, m, "store")
		require.Contains(t, left, "DAMAGED")
		left = append(left, insideOf(t, m, "store/aside-1")...)
		m.moves = 0
		_, err = projections.Open(projections.Options{Dir: "store", FS: m})
		require.ErrorIs(t, err, errPower, "a start that comes no further")
		m.moves = -1
		fresh = reopened(t, m, w.log)
		aside, ok := fresh.Aside()
		require.True(t, ok)
		require.Contains(t, aside.Reason, proof.Error())
		require.Equal(t, "store/aside-1", aside.Path)
		for _, name := range left {
			if name != "lost+found" && name != "aside-1" {
				require.Contains(t, insideOf(t, m, aside.Path), name, "%d", cut)
			}
		}
		require.Equal(t, last.Seq, fresh.Applied().Seq)
		projectionstest.RebuildAndCompare(t, w.log, fresh)
		require.NoError(t, fresh.Close())
	}
}

// A folder that somebody made under such a name is not written over.
func TestAFolderOfThatNameIsNotWrittenOver(t *testing.T) {
	w, m := mountedWorld(t, syscall.EBUSY)
	require.NoError(t, m.MkdirAll("store/aside-1", 0o700))
	for _, name := range tables(t, m) {
		f, err := m.Create("store/aside-1/"+m.PathBase(name), "test")
		require.NoError(t, err)
		require.NoError(t, f.Close())
		require.NoError(t, m.Remove(name))
	}
	require.NoError(t, m.FS.Rename("store/LOCK", "store/aside-1/LOCK"))
	f, err := m.Create("store/LOCK", "test")
	require.NoError(t, err)
	require.NoError(t, f.Close())
	store := reopened(t, m, w.log)
	aside, ok := store.Aside()
	require.True(t, ok)
	require.Equal(t, "store/aside-2", aside.Path)
	require.NoError(t, store.Close())
}

// A folder with nothing of a store's own in it is one that has got nowhere.
func TestAMountPointWithoutAStoreHasGotNowhere(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"lost+found", "aside-1", "aside-00ff"} {
		require.NoError(t, os.MkdirAll(dir+"/"+name, 0o700))
		applied, err := projections.Peek(dir)
		require.NoError(t, err)
		require.Zero(t, applied)
	}
	require.NoError(t, os.WriteFile(dir+"/000004.sst", []byte("x"), 0o600))
	_, err := projections.Peek(dir)
	require.Error(t, err, "something of a store is there, and can't be read")
}
