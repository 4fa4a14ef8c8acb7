package terminal

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"writegate/eventlog/checkpoint"
	"writegate/eventlog/evidence"
	"writegate/eventlog/frame"
)

// What is no key is the path of a file, however long it is.
func TestAKeyIsReadFromAFileOfAnyName(t *testing.T) {
	t.Chdir(t.TempDir())
	private, err := checkpoint.NewPrivateKey()
	require.NoError(t, err)
	key := private.Public()
	text, err := key.PEM()
	require.NoError(t, err)
	for n := 1; n < 70; n++ {
		name := strings.Repeat("k", n)
		require.NoError(t, os.WriteFile(name, text, 0o600))
		found, err := Keys([]string{name})
		require.NoError(t, err, name)
		require.Equal(t, []checkpoint.PublicKey{key}, found, name)
		_, err = Keys([]string{strings.Repeat("x", n)})
		require.ErrorContains(t, err, "no such file", "it was misspelt")
	}
}

// A pipe that lies in memory, below /dev, is one like any other.
func TestAPipeIsNotReadWhereverItLies(t *testing.T) {
	dir, err := os.MkdirTemp("/dev/shm", "pipe")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	pipe := filepath.Join(dir, "1.note")
	require.NoError(t, unix.Mkfifo(pipe, 0o600))
	_, _, err = OpenFile(pipe)
	require.ErrorContains(t, err, "is not a regular file")

	from, to, err := os.Pipe()
	require.NoError(t, err)
	f, _, err := OpenFile("/dev/fd/" + strconv.Itoa(int(from.Fd()))) // what a shell names
	require.NoError(t, errors.Join(err, f.Close(), from.Close(), to.Close()))
}

// A receipt that convicts a log is read wherever it lies below the folder that was named.
func TestReceiptsOfAFolderAreAllRead(t *testing.T) {
	dir := t.TempDir()
	kept := filepath.Join(dir, "kept")
	require.NoError(t, os.MkdirAll(filepath.Join(kept, "client", "b"), 0o700))
	for file, text := range map[string]string{"kept/a.txt": "one\n", "kept/client/b/r.txt": "two\n", "elsewhere.txt": "three\n"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600))
	}
	require.NoError(t, os.Symlink(filepath.Join(dir, "elsewhere.txt"), filepath.Join(kept, "link.txt")))
	papers, err := Inputs{}.Receipts(kept)
	require.NoError(t, err)
	var texts []string
	for _, p := range papers {
		texts = append(texts, p.Text)
	}
	require.ElementsMatch(t, []string{"one", "two", "three"}, texts)
	require.NoError(t, os.Symlink(filepath.Join(dir, "gone.txt"), filepath.Join(kept, "dangling.txt")))
	require.NoError(t, os.Symlink(kept, filepath.Join(dir, "linked")))
	for _, folder := range []string{kept, filepath.Join(dir, "linked")} {
		papers, err = Inputs{}.Receipts(folder)
		require.NoError(t, err)
		require.Len(t, papers, 4, "what can't be read hides nothing")
		require.ErrorIs(t, papers[2].Err, fs.ErrNotExist, "and is said")
	}
}

func TestCheckpointsBesideALogThatCannotBeReadAreNoneThatAreNotThere(t *testing.T) {
	wal := filepath.Join(t.TempDir(), "audit.wal")
	beside, err := notesBeside(wal)
	require.NoError(t, err)
	require.Empty(t, beside)
	root := wal + frame.CheckpointsSuffix
	require.NoError(t, os.WriteFile(root, nil, 0o600))
	_, err = notesBeside(wal)
	require.ErrorContains(t, err, "can't all be read")
	require.NoError(t, os.Remove(root))
	elsewhere := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(elsewhere, "7.note"), nil, 0o600))
	require.NoError(t, os.Mkdir(root, 0o700))
	require.NoError(t, os.Symlink(elsewhere, filepath.Join(root, "000000")))
	beside, err = notesBeside(wal)
	require.NoError(t, err)
	require.Len(t, beside, 1, "through a link, as the gate reads them")
}

// What others have named in evidence can't paint over the verdict.
func TestAReportShowsWhatCouldSteerATerminal(t *testing.T) {
	var out strings.Builder
	const evil = "\x1b[2J\x1b[H\u009b1mx\u202ea\ufe0f\u3164\n  audit.wal: ok\nEverything was checked"
	r := frame.Report{Path: evil, Status: frame.Partial, LogID: "1", Origin: evil, Warnings: []string{evil}, NotExcluded: []string{evil},
		FaultsTotal: 1, Faults: []frame.Fault{{Kind: frame.UntrustedAnchor, Detail: evil}}, Signature: evidence.SignatureTrusted, SignedBy: evil}
	require.NoError(t, PrintReport(&out, r))
	require.NotContains(t, out.String(), "\x1b")
	require.NotContains(t, out.String(), "\u009b")
	require.NotContains(t, out.String(), "\u202e")
	require.NotContains(t, out.String(), "\n  audit.wal: ok")
	require.Contains(t, out.String(), `⟨U+001B⟩[2J`)
	require.Contains(t, out.String(), `a⟨U+FE0F⟩⟨U+3164⟩`)
}
