package frame

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Between fork and exec a child shares every open file with its parent, locks
// included. A lock that was closed in that moment must be free all the same,
// or the next start is told that another process holds the log.
func TestAClosedLockIsFreeWhoeverSharesTheFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "log.lock")
	first, err := OS{}.OpenLock(name, ReadWrite)
	require.NoError(t, err)
	require.NoError(t, first.Lock(t.Context(), 0, Exclusive))
	require.NoError(t, first.Lock(t.Context(), 1, Shared))
	child, err := unix.Dup(first.(osLock).fd)
	require.NoError(t, err)
	defer unix.Close(child)
	require.NoError(t, first.Close())

	second, err := OS{}.OpenLock(name, ReadWrite)
	require.NoError(t, err)
	defer func() { require.NoError(t, second.Close()) }()
	for _, off := range []int64{0, 1} {
		held, err := second.Held(off)
		require.NoError(t, err)
		require.False(t, held)
	}

	locked, err := OS{}.Open(name, ReadWrite)
	require.NoError(t, err)
	require.NoError(t, locked.Flock())
	child, err = unix.Dup(locked.(*osFile).fd)
	require.NoError(t, err)
	defer unix.Close(child)
	require.NoError(t, locked.Close())
	again, err := OS{}.Open(name, ReadWrite)
	require.NoError(t, err)
	defer func() { require.NoError(t, again.Close()) }()
	require.NoError(t, again.Flock())
}
