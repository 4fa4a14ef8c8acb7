package policyfolder

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/sqlgate/policy"
)

func stateOf(n int) State {
	s := State{Seq: uint64(10 * n), Active: fmt.Sprintf("p@1.0.%d", n-1)}
	for i := range n {
		status := StatusArchived
		if i == n-1 {
			status = StatusActive
		}
		s.Versions = append(s.Versions, Version{PolicyVersion: fmt.Sprintf("p@1.0.%d", i), Status: status, Document: fmt.Appendf(nil, "document %d", i)})
	}
	return s
}

// everything is each regular file and link below dir with what it holds.
func everything(t *testing.T, dir string) map[string]string {
	found := map[string]string{}
	require.NoError(t, filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		switch {
		case err != nil:
			return err
		case info.Mode()&os.ModeSymlink != 0:
			target, err := os.Readlink(path)
			found[path] = "-> " + target
			return err
		case info.Mode().IsRegular():
			data, err := os.ReadFile(path)
			found[path] = string(data)
			return err
		}
		return nil
	}))
	return found
}

// damages are what people and accidents do to a folder.
var damages = map[string]func(t *testing.T, dir string){
	"a changed byte": func(t *testing.T, dir string) { lay(t, dir, "p@1.0.1.yaml", "document x") },
	"a missing version": func(t *testing.T, dir string) {
		require.NoError(t, os.RemoveAll(filepath.Join(dir, "p@1.0.0.yaml")))
	},
	"a strange file":         func(t *testing.T, dir string) { lay(t, dir, "notes.txt", "mine") },
	"a version of one's own": func(t *testing.T, dir string) { lay(t, dir, "q@1.0.0.yaml", "mine too") },
	"a strange folder":       func(t *testing.T, dir string) { lay(t, dir, "drafts/deep/x.yaml", "a draft") },
	"a link for a version": func(t *testing.T, dir string) {
		require.NoError(t, os.RemoveAll(filepath.Join(dir, "p@1.0.2.yaml")))
		require.NoError(t, os.Symlink("p@1.0.1.yaml", filepath.Join(dir, "p@1.0.2.yaml")))
	},
	"no manifest": func(t *testing.T, dir string) {
		require.NoError(t, os.RemoveAll(filepath.Join(dir, DefaultManifest)))
	},
	"another manifest": func(t *testing.T, dir string) {
		lay(t, dir, DefaultManifest, `{"schema":"gate.manifest/v1","seq":99}`)
	},
	"a broken manifest":     func(t *testing.T, dir string) { lay(t, dir, DefaultManifest, "{") },
	"a corpus of one's own": func(t *testing.T, dir string) { lay(t, dir, "corpus/mine.yaml", ownCorpus) },
	"a linked corpus": func(t *testing.T, dir string) {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, CorpusDir), 0o755))
		_ = os.Symlink("/nowhere", filepath.Join(dir, CorpusDir, "link.yaml"))
	},
	"no folder at all": func(t *testing.T, dir string) { require.NoError(t, os.RemoveAll(dir)) },
}

const ownCorpus = "schema: gate.corpus/v1\ncases:\n  - { name: one, sql: SELECT 1, expect: { decision: ALLOW } }\n"

func lay(t *testing.T, dir, name, text string) {
	path := filepath.Join(dir, name)
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
}

func TestAFolderIsRebuiltWhateverWasDoneToItAndNothingIsLost(t *testing.T) {
	done := [][]string{
		{}, {"a changed byte", "a strange folder", "a broken manifest"}, {"a link for a version", "no manifest", "a strange file"},
		{"a missing version", "a linked corpus", "a corpus of one's own", "another manifest"},
	}
	for name := range damages {
		done = append(done, []string{name})
	}
	for _, names := range done {
		t.Run(strings.Join(names, ", "), func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "policies")
			require.NoError(t, Write(dir, DefaultManifest, stateOf(3)))
			for _, name := range names {
				damages[name](t, dir)
			}
			requireRebuilt(t, dir, stateOf(3))
		})
	}
}

func requireRebuilt(t *testing.T, dir string, state State) {
	t.Helper()
	before := everything(t, filepath.Dir(dir))
	plan, err := Plan(dir, DefaultManifest, state)
	require.NoError(t, err)
	require.Equal(t, before, everything(t, filepath.Dir(dir)), "a plan writes nothing")

	aside, err := Aside(dir, time.Unix(0, 0))
	require.NoError(t, err)
	require.NoError(t, Rebuild(dir, DefaultManifest, state, aside))
	standing, findings, err := Compare(dir, DefaultManifest, state)
	require.NoError(t, err)
	require.Equal(t, Agrees, standing, "%v", findings)
	left, err := Plan(dir, DefaultManifest, state)
	require.NoError(t, err)
	require.Empty(t, left)

	after := everything(t, filepath.Dir(dir))
	if len(plan) == 0 {
		require.Equal(t, before, after, "there was nothing to do")
	}
	for path, text := range before {
		rel, err := filepath.Rel(dir, path)
		require.NoError(t, err)
		require.True(t, after[path] == text || after[filepath.Join(aside, rel)] == text, "%s is lost", rel)
	}
}

func TestAPlanSaysWhatItDoesAndWhy(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "policies")
	state := stateOf(2)
	require.NoError(t, Write(dir, DefaultManifest, state))
	plan, err := Plan(dir, DefaultManifest, state)
	require.NoError(t, err)
	require.Empty(t, plan)
	lay(t, dir, "notes.txt", "mine")
	lay(t, dir, "p@1.0.0.yaml", "other")
	plan, err = Plan(dir, DefaultManifest, stateOf(3))
	require.NoError(t, err)
	var lines []string
	for _, c := range plan {
		lines = append(lines, c.Action+" "+c.Path+": "+c.Why)
	}
	require.Equal(t, []string{
		"move notes.txt: the log does not know it",
		"move p@1.0.0.yaml: its bytes have the hash " + policy.Digest([]byte("other")) + ", those of the log " + policy.Digest([]byte("document 0")),
		"write p@1.0.0.yaml: the bytes of the log",
		"write p@1.0.2.yaml: the log has it, the folder not",
		`move manifest.json: it reflects event 20 with "p@1.0.1" active`,
		`write manifest.json: the log: event 30 with "p@1.0.2" active`,
	}, lines)
}

func TestWhatWasMovedBeforeIsNotOverwritten(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "policies")
	state := stateOf(1)
	require.NoError(t, Write(dir, DefaultManifest, state))
	lay(t, dir, "notes.txt", "mine")
	aside, err := Aside(dir, time.Unix(0, 0))
	require.NoError(t, err)
	require.True(t, strings.HasSuffix(aside, "policies.replaced-19700101T000000Z"))
	require.NoError(t, os.Mkdir(aside, 0o755))
	require.ErrorIs(t, Rebuild(dir, DefaultManifest, state, aside), os.ErrExist)
	require.Equal(t, "mine", everything(t, dir)[filepath.Join(dir, "notes.txt")])
}
