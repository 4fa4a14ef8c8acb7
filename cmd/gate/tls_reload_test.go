package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What is written in its place, with its size and its time as before, is another file all
// the same: two verifiers of a password have one size.
func TestAFileThatIsWrittenInPlaceHasAnotherStamp(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "users")
	require.NoError(t, os.WriteFile(path, []byte("old"), 0o600))
	info, err := os.Stat(path)
	require.NoError(t, err)
	before := stampsOf([]string{path})
	require.Equal(t, before, stampsOf([]string{path}))
	require.Eventually(t, func() bool { // the kernel's clock of files is a coarse one
		require.NoError(t, os.WriteFile(path, []byte("new"), 0o600))
		require.NoError(t, os.Chtimes(path, time.Time{}, info.ModTime()))
		return stampsOf([]string{path})[0] != before[0]
	}, 10*time.Second, 5*time.Millisecond)
}
