package frame_test

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"writegate/eventlog/frame"
	"writegate/eventlog/frame/frametest"
)

// eachFS runs a test on the host's file system and on the one in memory: they
// must agree in everything that the log stands on.
func eachFS(t *testing.T, test func(t *testing.T, fsys frame.FS, dir string)) {
	t.Run("os", func(t *testing.T) { test(t, frame.OS{}, t.TempDir()) })
	t.Run("memory", func(t *testing.T) {
		m := frametest.NewMem()
		require.NoError(t, m.MkdirAll("/log"))
		test(t, m, "/log")
	})
	t.Run("memory behind hooks", func(t *testing.T) {
		m := frametest.NewMem()
		require.NoError(t, m.MkdirAll("/log"))
		test(t, frametest.Inject(m, func(frametest.Op) error { return nil }), "/log")
	})
}

func TestFileReadsBackWhatWasWritten(t *testing.T) {
	eachFS(t, func(t *testing.T, fsys frame.FS, dir string) {
		name := filepath.Join(dir, "f")
		_, err := fsys.Open(name, frame.ReadOnly)
		require.ErrorIs(t, err, fs.ErrNotExist)

		f, err := fsys.Create(name)
		require.NoError(t, err)
		n, err := f.Pwrite([]byte("hello"), 10)
		require.NoError(t, err)
		assert.Equal(t, 5, n)
		require.NoError(t, f.Datasync())
		size, err := f.Size()
		require.NoError(t, err)
		assert.Equal(t, int64(15), size)

		b := make([]byte, 8)
		n, err = f.Pread(b, 9)
		assert.Equal(t, 6, n)
		assert.Equal(t, io.EOF, err, "the end of the file is io.EOF and not an error around it")
		assert.Equal(t, "\x00hello", string(b[:n]))
		_, err = f.Pread(b[:2], 10)
		assert.NoError(t, err)

		require.NoError(t, f.Cut(12))
		require.NoError(t, f.Sync())
		size, err = f.Size()
		require.NoError(t, err)
		assert.Equal(t, int64(12), size)
		require.NoError(t, f.DropCache())
		require.NoError(t, f.Close())

		r, err := fsys.Open(name, frame.ReadOnly)
		require.NoError(t, err)
		_, err = r.Pwrite([]byte("x"), 0)
		assert.Error(t, err, "opened for reading")
		require.NoError(t, r.Close())

		w, err := fsys.Open(name, frame.ReadWrite)
		require.NoError(t, err)
		_, err = w.Pwrite([]byte("x"), 0)
		require.NoError(t, err)
		require.NoError(t, w.Close())

		_, err = fsys.Open(dir, frame.ReadOnly)
		assert.ErrorIs(t, err, frame.ErrNotRegular)
	})
}

func TestNamesMoveAndVanish(t *testing.T) {
	eachFS(t, func(t *testing.T, fsys frame.FS, dir string) {
		sub := filepath.Join(dir, "b", "c")
		require.NoError(t, fsys.MkdirAll(sub))
		require.NoError(t, fsys.MkdirAll(sub), "an existing folder is no error")
		for _, name := range []string{"z", "a"} {
			f, err := fsys.Create(filepath.Join(sub, name))
			require.NoError(t, err)
			_, err = f.Pwrite([]byte(name), 0)
			require.NoError(t, err)
			require.NoError(t, f.Close())
		}
		names, err := fsys.List(sub)
		require.NoError(t, err)
		assert.Equal(t, []string{"a", "z"}, names)

		held, err := fsys.Open(filepath.Join(sub, "z"), frame.ReadOnly)
		require.NoError(t, err)
		require.NoError(t, fsys.Rename(filepath.Join(sub, "a"), filepath.Join(sub, "z")))
		require.NoError(t, fsys.SyncDir(sub))
		b := make([]byte, 1)
		_, err = held.Pread(b, 0)
		require.NoError(t, err)
		assert.Equal(t, "z", string(b), "an open file is not the one that took its name")
		moved, err := fsys.Open(filepath.Join(sub, "z"), frame.ReadOnly)
		require.NoError(t, err)
		_, err = moved.Pread(b, 0)
		require.NoError(t, err)
		assert.Equal(t, "a", string(b))
		require.NoError(t, errors.Join(held.Close(), moved.Close()))

		assert.ErrorIs(t, fsys.Rename(filepath.Join(sub, "none"), filepath.Join(sub, "z")), fs.ErrNotExist)
		require.NoError(t, fsys.Remove(filepath.Join(sub, "z")))
		assert.ErrorIs(t, fsys.Remove(filepath.Join(sub, "z")), fs.ErrNotExist)
		_, err = fsys.List(filepath.Join(dir, "none"))
		assert.ErrorIs(t, err, fs.ErrNotExist)

		d, err := fsys.OpenDir(sub)
		require.NoError(t, err)
		require.NoError(t, errors.Join(d.Sync(), d.Close()))
		assert.ErrorIs(t, fsys.SyncDir(filepath.Join(dir, "none")), fs.ErrNotExist)
	})
}

func TestLockRangesBelongToTheOpenFile(t *testing.T) {
	eachFS(t, func(t *testing.T, fsys frame.FS, dir string) {
		name := filepath.Join(dir, "w.lock")
		_, err := fsys.OpenLock(name, frame.ReadOnly)
		require.ErrorIs(t, err, fs.ErrNotExist, "a reader creates nothing")

		writer, err := fsys.OpenLock(name, frame.ReadWrite)
		require.NoError(t, err)
		reader, err := fsys.OpenLock(name, frame.ReadOnly)
		require.NoError(t, err)
		other, err := fsys.OpenLock(name, frame.ReadWrite)
		require.NoError(t, err)
		ctx := context.Background()
		once, cancel := context.WithCancel(ctx)
		cancel()

		require.NoError(t, writer.Lock(ctx, frame.WriterByte, frame.Exclusive))
		assert.ErrorIs(t, other.Lock(once, frame.WriterByte, frame.Exclusive), frame.ErrLocked)
		requireHeld(t, reader, frame.WriterByte, true)
		requireHeld(t, writer, frame.WriterByte, false, "one's own lock is in nobody's way")

		require.NoError(t, reader.Lock(ctx, frame.StructureByte, frame.Shared), "the bytes are independent")
		requireHeld(t, other, frame.StructureByte, false, "shared is not exclusive")
		require.NoError(t, other.Lock(ctx, frame.StructureByte, frame.Shared))
		assert.ErrorIs(t, writer.Lock(once, frame.StructureByte, frame.Exclusive), frame.ErrLocked)
		require.NoError(t, reader.Unlock(frame.StructureByte))
		require.NoError(t, other.Close(), "closing gives back")

		// Closing some other descriptor of the file releases nothing.
		stranger, err := fsys.Open(name, frame.ReadOnly)
		require.NoError(t, err)
		require.NoError(t, stranger.Close())
		requireHeld(t, reader, frame.WriterByte, true)
		require.NoError(t, writer.Lock(ctx, frame.StructureByte, frame.Exclusive))

		// Who waits gets it when it is given back.
		got := make(chan error, 1)
		go func() { got <- reader.Lock(ctx, frame.StructureByte, frame.Shared) }()
		require.NoError(t, writer.Unlock(frame.StructureByte))
		require.NoError(t, <-got)
		require.NoError(t, errors.Join(reader.Close(), writer.Close()))
	})
}

func requireHeld(t *testing.T, l frame.LockFile, off int64, want bool, why ...any) {
	got, err := l.Held(off)
	require.NoError(t, err)
	require.Equal(t, want, got, why...)
}

func TestFlockIsOfTheInodeAndNotOfThePath(t *testing.T) {
	eachFS(t, func(t *testing.T, fsys frame.FS, dir string) {
		name := filepath.Join(dir, "w")
		f, err := fsys.Create(name)
		require.NoError(t, err)
		require.NoError(t, f.Flock())
		second, err := fsys.Open(name, frame.ReadWrite)
		require.NoError(t, err)
		assert.ErrorIs(t, second.Flock(), frame.ErrLocked)
		require.NoError(t, fsys.Rename(name, name+".moved"))
		third, err := fsys.Open(name+".moved", frame.ReadWrite)
		require.NoError(t, err)
		assert.ErrorIs(t, third.Flock(), frame.ErrLocked)
		require.NoError(t, f.Close())
		require.NoError(t, third.Flock())
		require.NoError(t, errors.Join(second.Close(), third.Close()))
	})
}

func TestLockWaitsNoLongerThanAsked(t *testing.T) {
	eachFS(t, func(t *testing.T, fsys frame.FS, dir string) {
		name := filepath.Join(dir, "w.lock")
		a, err := fsys.OpenLock(name, frame.ReadWrite)
		require.NoError(t, err)
		b, err := fsys.OpenLock(name, frame.ReadWrite)
		require.NoError(t, err)
		require.NoError(t, a.Lock(context.Background(), 0, frame.Exclusive))
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		defer cancel()
		assert.ErrorIs(t, b.Lock(ctx, 0, frame.Exclusive), frame.ErrLocked)
		require.NoError(t, errors.Join(a.Close(), b.Close()))
	})
}

func TestShortWriteIsAnErrorAndIsNotCarriedOn(t *testing.T) {
	m := frametest.NewMem()
	calls := 0
	fsys := frametest.Inject(m, func(op frametest.Op) error {
		if op.Kind == frametest.Pwrite {
			calls++
			return frametest.Short{N: 3, Err: unix.ENOSPC}
		}
		return nil
	})
	f, err := fsys.Create("/w")
	require.NoError(t, err)
	n, err := f.Pwrite([]byte("abcdef"), 0)
	assert.Equal(t, 3, n)
	assert.ErrorIs(t, err, unix.ENOSPC)
	assert.Equal(t, 1, calls)
	b, err := m.ReadFile("/w")
	require.NoError(t, err)
	assert.Equal(t, "abc", string(b))
}

// The host's own short write: the file size limit of the process stands in for
// a full disk. It is put back before anything else is written.
func TestHostShortWriteIsAnError(t *testing.T) {
	var old unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_FSIZE, &old))
	f, err := frame.OS{}.Create(filepath.Join(t.TempDir(), "w"))
	require.NoError(t, err)
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 4096, Max: old.Max}))
	n, err := f.Pwrite(make([]byte, 6000), 0)
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_FSIZE, &old))
	assert.Equal(t, 4096, n)
	assert.ErrorIs(t, err, io.ErrShortWrite)
	require.NoError(t, f.Close())
}

func TestPipeIsRefusedAndDoesNotHang(t *testing.T) {
	name := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, unix.Mkfifo(name, 0o600))
	_, err := frame.OS{}.Open(name, frame.ReadOnly)
	assert.ErrorIs(t, err, frame.ErrNotRegular)
}

func TestRealPathFollowsLinksAndAllowsAMissingFile(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	require.NoError(t, os.Symlink(dir, filepath.Join(dir, "link")))
	require.NoError(t, os.Symlink("missing", filepath.Join(dir, "relative")))
	require.NoError(t, os.Symlink(filepath.Join(dir, "link", "relative"), filepath.Join(dir, "absolute")))
	for _, name := range []string{"missing", "link/missing", "relative", "link/relative", "absolute"} {
		got, err := frame.OS{}.RealPath(filepath.Join(dir, name))
		require.NoError(t, err)
		assert.Equal(t, filepath.Join(dir, "missing"), got)
	}
	_, err = frame.OS{}.RealPath(filepath.Join(dir, "no", "folder"))
	assert.ErrorIs(t, err, fs.ErrNotExist)
}

func TestVolumeIsNamed(t *testing.T) {
	v, err := frame.OS{}.Volume("/proc")
	require.NoError(t, err)
	assert.Equal(t, frame.Volume{Kind: "0x9fa0"}, v, "a kind without a name is its magic number")
	_, err = frame.OS{}.Volume(filepath.Join(t.TempDir(), "none"))
	assert.ErrorIs(t, err, fs.ErrNotExist)
}

func TestPowerCutTakesWhatWasNotSynced(t *testing.T) {
	m := frametest.NewMem()
	require.NoError(t, m.WriteFile("/w", []byte("synced....")))
	f, err := m.Open("/w", frame.ReadWrite)
	require.NoError(t, err)
	_, err = f.Pwrite([]byte("unsynced"), 0)
	require.NoError(t, err)
	_, err = m.Create("/new")
	require.NoError(t, err)

	after := m.Crash(0, 1)
	b, err := after.ReadFile("/w")
	require.NoError(t, err)
	assert.Equal(t, "synced....", string(b))
	_, err = after.Open("/new", frame.ReadOnly)
	assert.ErrorIs(t, err, fs.ErrNotExist, "its name was not synced")

	b, err = m.Crash(100, 1).ReadFile("/w")
	require.NoError(t, err)
	assert.Equal(t, "unsynced..", string(b))

	require.NoError(t, f.Cut(3))
	b, err = m.Crash(0, 1).ReadFile("/w")
	require.NoError(t, err)
	assert.Equal(t, "synced....", string(b), "a length is synced like bytes")
	require.NoError(t, f.Sync())
	b, err = m.Crash(0, 1).ReadFile("/w")
	require.NoError(t, err)
	assert.Equal(t, "uns", string(b))
}

func TestFailedSyncShowsTheMediumOnceTheCacheIsDropped(t *testing.T) {
	m := frametest.NewMem()
	require.NoError(t, m.WriteFile("/w", []byte("medium")))
	f, err := m.Open("/w", frame.ReadWrite)
	require.NoError(t, err)
	_, err = f.Pwrite([]byte("cached"), 0)
	require.NoError(t, err)
	require.NoError(t, m.FailedSync("/w"))

	b, err := m.ReadFile("/w")
	require.NoError(t, err)
	assert.Equal(t, "cached", string(b), "even to the next process")
	require.NoError(t, f.DropCache())
	b, err = m.ReadFile("/w")
	require.NoError(t, err)
	assert.Equal(t, "medium", string(b))
}

func TestSyncAfterAFailedSyncTakesOnlyWhatIsWrittenAnew(t *testing.T) {
	m := frametest.NewMem()
	require.NoError(t, m.WriteFile("/w", []byte("0123456789")))
	f, err := m.Open("/w", frame.ReadWrite)
	require.NoError(t, err)
	_, err = f.Pwrite([]byte("LOST"), 0)
	require.NoError(t, err)
	require.NoError(t, m.FailedSync("/w"))
	_, err = f.Pwrite([]byte("ANEW"), 6)
	require.NoError(t, err)
	require.NoError(t, f.Datasync())

	b, err := m.ReadFile("/w")
	require.NoError(t, err)
	assert.Equal(t, "LOST45ANEW", string(b))
	b, err = m.Crash(0, 1).ReadFile("/w")
	require.NoError(t, err)
	assert.Equal(t, "012345ANEW", string(b))
}
