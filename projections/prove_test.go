package projections_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
	"writegate/projections"
	"writegate/projections/projectionstest"
)

// endedCleanly ends the run as a gate does, and gives the last event and the store,
// opened and not connected.
func (w *world) endedCleanly() (event.Envelope, *projections.Store) {
	w.t.Helper()
	seq, digest, err := w.store.Digest(w.t.Context())
	require.NoError(w.t, err)
	last := w.do(event.Context{}, &event.Shutdown{Reason: "stopped", Digest: digest, DigestSeq: seq, DigestProjectors: projections.ProjectorVersion})
	w.stop()
	store, err := projections.Open(projections.Options{Dir: "store", FS: w.fs})
	require.NoError(w.t, err)
	return last, store
}

// What a clean end left is proven by its last event, wherever the run ended in a
// block of the index; the event that completes one is told apart.
func TestAStoreIsProvenByTheLastEventOfACleanEnd(t *testing.T) {
	w := newWorld(t)
	w.scenario(3, 100)
	for _, rest := range []int{7, 511, 0, 1} { // of the last event's number
		for (w.log.Len()+1)%512 != rest {
			w.do(event.Context{}, &event.Startup{})
		}
		last, store := w.endedCleanly()
		proven, err := store.Prove(t.Context(), &last)
		require.NoError(t, err)
		require.Equal(t, rest != 0, proven, "event %d", last.Seq)
		require.NoError(t, store.Close())
		w.start()
	}
}

// A record that somebody wrote, in a store whose position is untouched.
func TestAStoreThatWasChangedIsNotProven(t *testing.T) {
	for what, change := range map[string]func(t *testing.T, db *pebble.DB, key, value []byte) error{
		"a bit of a value": func(t *testing.T, db *pebble.DB, key, value []byte) error {
			value[len(value)-1] ^= 1
			return db.Set(key, value, pebble.Sync)
		},
		"a record that is gone": func(t *testing.T, db *pebble.DB, key, _ []byte) error { return db.Delete(key, pebble.Sync) },
		"another record": func(t *testing.T, db *pebble.DB, key, value []byte) error {
			return db.Set(append(key, 'x'), value, pebble.Sync)
		},
	} {
		w := newWorld(t)
		w.created("apr_1", time.Hour)
		last, store := w.endedCleanly()
		require.NoError(t, store.Close())
		db, err := pebble.Open("store", &pebble.Options{FS: w.fs, FormatMajorVersion: pebble.FormatNewest})
		require.NoError(t, err)
		it, err := db.NewIter(nil)
		require.NoError(t, err)
		changed := false
		for ok := it.First(); ok && !changed; ok = it.Next() {
			if key := it.Key(); len(key) > 6 && string(key[1:]) == "ap/apr_1" {
				require.NoError(t, change(t, db, append([]byte{}, key...), append([]byte{}, it.Value()...)))
				changed = true
			}
		}
		require.True(t, changed)
		require.NoError(t, it.Close())
		require.NoError(t, db.Close())

		store, err = projections.Open(projections.Options{Dir: "store", FS: w.fs})
		require.NoError(t, err)
		_, err = store.Prove(t.Context(), &last)
		require.ErrorIs(t, err, projections.ErrUnproven, what)
		fresh, err := store.PutAside(err.Error())
		require.NoError(t, err)
		aside, ok := fresh.Aside()
		require.True(t, ok)
		require.NoError(t, fresh.Connect(t.Context(), w.log))
		v := fresh.View()
		a, found, err := v.Approval("apr_1")
		require.NoError(t, err)
		require.True(t, found)
		require.Equal(t, projections.ApprovalPending, a.State)
		require.NoError(t, v.Close())
		require.NoError(t, fresh.Close())
		_, err = w.fs.Stat(aside.Path)
		require.NoError(t, err, "it is kept")
	}
}

// Without a clean end, or of another event, there is nothing to hold a store against.
func TestAStoreWithNothingToHoldItAgainstIsNotProven(t *testing.T) {
	w := newWorld(t)
	w.created("apr_1", time.Hour)
	killed := w.created("apr_2", time.Hour)
	w.stop()
	store, err := projections.Open(projections.Options{Dir: "store", FS: w.fs})
	require.NoError(t, err)
	proven, err := store.Prove(t.Context(), &killed)
	require.NoError(t, err)
	require.False(t, proven)
	require.NoError(t, store.Close())
	w.start()
	last, store := w.endedCleanly()
	require.NoError(t, store.Close())
	other, err := projections.Open(projections.Options{Dir: "other", FS: vfs.NewMem()})
	require.NoError(t, err)
	proven, err = other.Prove(t.Context(), &last)
	require.NoError(t, err)
	require.False(t, proven)
	require.NoError(t, other.Close())
}

// A pipe in the place of the store's folder is not waited for either, and is nothing of
// the gate's that could be put aside.
func TestAStoreThatIsNoFolderIsRefused(t *testing.T) {
	pipe, file := filepath.Join(t.TempDir(), "pipe"), filepath.Join(t.TempDir(), "file")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	require.NoError(t, os.WriteFile(file, []byte("somebody's"), 0o600))
	for _, dir := range []string{pipe, file} {
		for name, call := range map[string]func() error{
			"open": func() error { _, err := projections.Open(projections.Options{Dir: dir}); return err },
			"peek": func() error { _, err := projections.Peek(dir); return err },
			"rebuild": func() error {
				_, err := projections.RebuildOffline(t.Context(), projections.Options{Dir: dir}, projectionstest.NewLog())
				return err
			},
		} {
			said := make(chan error, 1)
			go func() { said <- call() }()
			select {
			case err := <-said:
				require.ErrorIs(t, err, syscall.ENOTDIR, "%s %s", name, dir)
			case <-time.After(time.Minute):
				t.Fatalf("%s of %s waits for the other end of a pipe", name, dir)
			}
		}
		entries, err := os.ReadDir(filepath.Dir(dir))
		require.NoError(t, err)
		require.Len(t, entries, 1)
	}
}

// A pipe in the store's folder is not waited for: the folder is put aside.
func TestAStoreWithAPipeInItIsPutAside(t *testing.T) {
	for _, name := range []string{"DAMAGED", "OPTIONS-000003", "marker.manifest.000001.MANIFEST-000001"} {
		dir := filepath.Join(t.TempDir(), "store")
		require.NoError(t, os.Mkdir(dir, 0o700))
		require.NoError(t, syscall.Mkfifo(filepath.Join(dir, name), 0o600))
		store, err := projections.Open(projections.Options{Dir: dir})
		require.NoError(t, err)
		aside, ok := store.Aside()
		require.True(t, ok)
		require.Contains(t, aside.Reason, "regular file")
		require.NoError(t, store.Close())
	}
}
