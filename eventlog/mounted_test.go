package eventlog

import (
	"encoding/hex"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/frame"
	"writegate/eventlog/frame/frametest"
)

// pinned is a disk on which some names are mount points: they can't be renamed, while
// what is in them can.
func pinned(under frame.FS, cause error, names ...string) frame.FS {
	return frametest.Inject(under, func(op frametest.Op) error {
		if op.Kind == frametest.Rename && slices.Contains(names, op.Name) {
			return &os.LinkError{Op: "rename", Old: op.Name, Err: cause}
		}
		return nil
	})
}

// mountedStore puts files into the store's folder, as they lie on a volume of its own.
func mountedStore(t *testing.T, mem *frametest.Mem) {
	t.Helper()
	for _, name := range []string{"lost+found", "aside-1", "loading"} {
		require.NoError(t, mem.MkdirAll(filepath.Join(successor.Store, name)))
	}
	require.NoError(t, mem.SyncDir(successor.Store))
	for _, name := range []string{"CURRENT", "000004.sst", "LOCK"} {
		require.NoError(t, mem.WriteFile(filepath.Join(successor.Store, name), []byte(name)))
	}
}

// retiredInPlace holds a place of a store, and of a JSONL file, that could not be renamed
// against what is to be found there behind a retirement.
func retiredInPlace(t *testing.T, mem *frametest.Mem, o Options, id [16]byte, jsonl []byte) {
	t.Helper()
	inside := AsidePrefix + hex.EncodeToString(id[:])
	names, err := mem.List(successor.Store)
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"lost+found", "aside-1", inside}, names)
	names, err = mem.List(filepath.Join(successor.Store, inside))
	require.NoError(t, err)
	for i, name := range names { // a disk may have both names after a power cut: both are kept
		names[i] = strings.TrimSuffix(name, ".2")
	}
	names = slices.Compact(names)
	require.ElementsMatch(t, []string{"CURRENT", "000004.sst", "LOCK", "loading"}, names)
	left, err := mem.ReadFile(o.JSONLPath)
	require.NoError(t, err)
	require.Empty(t, left)
	names, err = mem.List(filepath.Dir(RetiredLog(testLog, id)))
	require.NoError(t, err)
	copies := 0
	for _, name := range names {
		if !strings.HasPrefix(name, retiredJSONL) || strings.HasSuffix(name, ".tmp") {
			continue
		}
		b, err := mem.ReadFile(filepath.Join(filepath.Dir(RetiredLog(testLog, id)), name))
		require.NoError(t, err)
		require.Equal(t, jsonl, b)
		copies++
	}
	require.Positive(t, copies)
	_, before := ancestorsOf(t, o)
	require.Len(t, before, 1)
	l, _ := mustOpen(t, o)
	mustClose(t, l)
	b, err := mem.ReadFile(o.JSONLPath)
	require.NoError(t, err)
	require.NotEmpty(t, b, "the new log's lines are written there")
}

// The store's folder and the JSONL file may be mount points: what is in them moves.
func TestWhatIsInAMountPointIsRetiredOutOfIt(t *testing.T) {
	for _, cause := range []error{syscall.EBUSY, syscall.EXDEV, syscall.EROFS, syscall.EACCES, syscall.EPERM} {
		mem := newMem(t)
		o := retireOptions(mem)
		id := aLog(t, o)
		mountedStore(t, mem)
		jsonl, err := mem.ReadFile(o.JSONLPath)
		require.NoError(t, err)
		require.NotEmpty(t, jsonl)
		once := o
		once.FS = pinned(mem, cause, successor.Store, o.JSONLPath)
		_, err = Retire(t.Context(), once, successor)
		require.NoError(t, err)
		retiredInPlace(t, mem, o, id, jsonl)
	}
}

// Wherever the power goes, the command leads on when it is run again.
func TestARetirementOutOfAMountPointIsRepeated(t *testing.T) {
	for cut := 0; ; cut++ {
		mem := newMem(t)
		o := retireOptions(mem)
		id := aLog(t, o)
		mountedStore(t, mem)
		jsonl, err := mem.ReadFile(o.JSONLPath)
		require.NoError(t, err)
		require.NoError(t, mem.WriteFile(o.JSONLPath, jsonl)) // synced
		left := cut
		broken := o
		broken.FS = frametest.Inject(pinned(mem, syscall.EBUSY, successor.Store, o.JSONLPath), func(op frametest.Op) error {
			switch op.Kind {
			case frametest.Rename, frametest.Pwrite, frametest.Sync, frametest.SyncDir, frametest.MkdirAll, frametest.Cut, frametest.Create:
				if left == 0 {
					return stopped
				}
				left--
			}
			return nil
		})
		_, err = Retire(t.Context(), broken, successor)
		if err == nil {
			require.Greater(t, cut, 20)
			return
		}
		require.ErrorIs(t, err, stopped)
		mem = mem.Crash(50, uint64(cut))
		o.FS = mem
		again := o
		again.FS = pinned(mem, syscall.EBUSY, successor.Store, o.JSONLPath)
		_, err = Retire(t.Context(), again, successor)
		require.NoError(t, err, "%d", cut)
		retiredInPlace(t, mem, o, id, jsonl)
	}
}
