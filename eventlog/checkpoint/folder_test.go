package checkpoint_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"writegate/eventlog/checkpoint"
)

func TestAFolderKeepsNotesBySize(t *testing.T) {
	h := newHost(t, history(1, 30))
	keys := checkpoint.Keys{Log: []checkpoint.PublicKey{h.signer.Public()}}
	path := filepath.Join(t.TempDir(), "audit.wal.checkpoints")
	f := checkpoint.NewFolder(path)
	list, err := f.List()
	require.NoError(t, err)
	require.Empty(t, list, "there is no folder yet")
	newest, err := f.Newest(keys)
	require.NoError(t, err)
	require.Nil(t, newest)

	for _, at := range []struct {
		segment uint32
		size    uint64
	}{{0, 1}, {0, 9}, {1, 10}, {12, 30}} {
		require.NoError(t, f.Store(at.segment, h.note(t, at.size)))
	}
	require.FileExists(t, filepath.Join(path, "000012", "00000000000000000030.note"))
	list, err = f.List()
	require.NoError(t, err)
	var sizes []uint64
	for _, s := range list {
		n, err := s.Open(keys)
		require.NoError(t, err)
		require.True(t, n.Trusted)
		require.Equal(t, s.Size, n.Size)
		sizes = append(sizes, n.Size)
	}
	require.Equal(t, []uint64{1, 9, 10, 30}, sizes)
	newest, err = f.Newest(keys)
	require.NoError(t, err)
	require.Equal(t, uint64(30), newest.Size)
	_, err = h.signer.Sign(h.with(t, history(1, 29)).m, 29, &newest.Checkpoint)
	require.ErrorIs(t, err, checkpoint.ErrBeyondEnd)
}

func TestAStoredNoteOnlyGainsSignatures(t *testing.T) {
	key := goldenKey(t)
	f := checkpoint.NewFolder(t.TempDir())
	keys := checkpoint.Keys{Log: []checkpoint.PublicKey{key.Public()}, Witnesses: []string{goldenWitness}}
	signed, err := checkpoint.Open([]byte(goldenNote), keys)
	require.NoError(t, err)
	cosigned, err := checkpoint.Open([]byte(goldenNote+goldenCosignature), keys)
	require.NoError(t, err)

	require.NoError(t, f.Store(0, signed))
	require.NoError(t, f.Store(0, signed), "the same again")
	require.NoError(t, f.Store(0, cosigned))
	require.ErrorContains(t, f.Store(0, signed), "would be lost")
	other := newSigner(t, origin, key)
	_, m := grow(t, history(9, 1))
	forged, err := other.Sign(m, 1, nil)
	require.NoError(t, err)
	require.ErrorIs(t, f.Store(0, forged), checkpoint.ErrRewritten)

	newest, err := f.Newest(keys)
	require.NoError(t, err)
	require.Equal(t, goldenNote+goldenCosignature, string(newest.Raw))
	require.Len(t, newest.Cosignatures, 1)
}

func TestTheNewestNoteIsFoundInAnyFolder(t *testing.T) {
	h := newHost(t, history(1, 9))
	f := checkpoint.NewFolder(t.TempDir())
	require.NoError(t, f.Store(7, h.note(t, 3)))
	require.NoError(t, f.Store(0, h.note(t, 9)))
	require.NoError(t, f.Store(3, h.note(t, 5)))
	newest, err := f.Newest(checkpoint.Keys{Log: []checkpoint.PublicKey{h.signer.Public()}})
	require.NoError(t, err)
	require.Equal(t, uint64(9), newest.Size)
}

func TestFilesThatAreNoNotesArePassedOver(t *testing.T) {
	h := newHost(t, history(1, 3))
	path := t.TempDir()
	f := checkpoint.NewFolder(path)
	require.NoError(t, f.Store(0, h.note(t, 3)))
	for _, name := range []string{"readme", "00000000000000000004.note.new", "4.note", "0000000000000000000x.note", "99999999999999999999.note", "18446744073709551615.note"} {
		require.NoError(t, os.WriteFile(filepath.Join(path, "000000", name), []byte("x"), 0o600))
	}
	require.NoError(t, os.Mkdir(filepath.Join(path, "lost+found"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(path, "000001"), nil, 0o600))
	list, err := f.List()
	require.NoError(t, err)
	require.Len(t, list, 1)
}

func TestANewestNoteThatCanNotBeReadIsNotPassedOver(t *testing.T) {
	h, stranger := newHost(t, history(1, 9)), newHost(t, history(1, 9))
	keys := checkpoint.Keys{Log: []checkpoint.PublicKey{h.signer.Public()}}
	path := t.TempDir()
	f := checkpoint.NewFolder(path)
	require.NoError(t, f.Store(0, h.note(t, 5)))
	require.NoError(t, f.Store(0, stranger.note(t, 9)))
	newest, err := f.Newest(keys)
	require.NoError(t, err)
	require.Equal(t, uint64(5), newest.Size, "a stranger's note vouches for nothing")

	file := filepath.Join(path, "000000", "00000000000000000007.note")
	for name, test := range map[string]struct {
		content []byte
		want    error
	}{
		"empty":          {nil, checkpoint.ErrMalformed},
		"another size":   {h.note(t, 6).Raw, checkpoint.ErrMalformed},
		"a changed root": {bytes.Replace(h.note(t, 7).Raw, h.note(t, 7).Raw[15:20], []byte("AAAAA"), 1), checkpoint.ErrSignature},
		"too large":      {make([]byte, 1<<20), checkpoint.ErrMalformed},
	} {
		require.NoError(t, os.WriteFile(file, test.content, 0o600))
		_, err = f.Newest(keys)
		require.ErrorIs(t, err, test.want, name)
		require.ErrorContains(t, err, file, name)
	}
	require.NoError(t, os.WriteFile(file, make([]byte, 1<<20), 0o600))
	require.ErrorIs(t, f.Store(0, h.note(t, 7)), checkpoint.ErrMalformed, "and it is not written over")
	require.NoError(t, os.Remove(file))
	require.NoError(t, unix.Mkfifo(file, 0o600))
	_, err = f.Newest(keys)
	require.ErrorIs(t, err, checkpoint.ErrMalformed, "nobody waits for a pipe")
}
