package fence

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/sqlgate/pgexec"
)

func TestTheFileOfAFenceIsOfOneLogAndIsReadStrictly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.wal"+Suffix)
	id := [16]byte{1}
	none, err := readTaking(path, id)
	require.NoError(t, err)
	require.Zero(t, none)

	want := taking{logID: id, from: pgexec.FenceMark{Epoch: 3, Nonce: [16]byte{4}}, to: pgexec.FenceMark{Epoch: 4, Nonce: newNonce()}, reason: "why"}
	require.NoError(t, want.write(path))
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	got, err := readTaking(path, id)
	require.NoError(t, err)
	require.Equal(t, want, got)
	require.NoFileExists(t, path+".tmp")
	other, err := readTaking(path, [16]byte{2})
	require.NoError(t, err)
	require.Zero(t, other, "the file of a log before this one")

	whole, err := os.ReadFile(path)
	require.NoError(t, err)
	for _, text := range []string{"", "{}", string(whole[:len(whole)/2]), `{"format":"gate.log_fence.v1","log_id":"01"}`} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		_, err := readTaking(path, id)
		require.ErrorContains(t, err, "gate log fence take", "%q", text)
	}
}

// What a start may rest on: see the constants.
func TestWhoeverTakesOverAFenceWaitsLongerThanItsHolderWrites(t *testing.T) {
	require.Less(t, Every+Answer, Limit, "an answer that is lost, and the next one")
	require.Less(t, Limit, Wait)
}
