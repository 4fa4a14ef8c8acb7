package policyfolder

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/sqlgate/policy"
)

func TestWriteLeavesFilesWithTheRightBytesAlone(t *testing.T) {
	dir := written(t)
	name := filepath.Join(dir, "core-write-gate@1.0.0.yaml")
	before, err := os.Stat(name)
	require.NoError(t, err)
	state := twoVersions()
	state.Seq = 9
	state.Versions = append(state.Versions, Version{"core-write-gate@1.2.0", StatusCandidate, document("1.2.0")})
	require.NoError(t, Write(dir, DefaultManifest, state))
	after, err := os.Stat(name)
	require.NoError(t, err)
	require.True(t, os.SameFile(before, after), "the file was written anew")
	standing, findings, err := Compare(dir, DefaultManifest, state)
	require.NoError(t, err)
	require.Empty(t, findings)
	require.Equal(t, Agrees, standing)
}

func TestWriteNeverOverwritesWhatItDoesNotKnow(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, dir string){
		"other bytes":    func(t *testing.T, dir string) { put(t, dir, "core-write-gate@1.0.0.yaml", []byte("mine")) },
		"a strange file": func(t *testing.T, dir string) { put(t, dir, "core-write-gate@3.0.0.yaml", document("3.0.0")) },
		"a link": func(t *testing.T, dir string) {
			require.NoError(t, os.Remove(filepath.Join(dir, "core-write-gate@1.0.0.yaml")))
			require.NoError(t, os.Symlink("/etc/hostname", filepath.Join(dir, "core-write-gate@1.0.0.yaml")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := written(t)
			spoil(t, dir)
			manifest := get(t, dir, DefaultManifest)
			state := twoVersions()
			state.Seq, state.Versions = 9, append(state.Versions, Version{"core-write-gate@1.2.0", StatusCandidate, document("1.2.0")})
			require.ErrorContains(t, Write(dir, DefaultManifest, state), "move it away")
			require.Equal(t, manifest, get(t, dir, DefaultManifest))
			require.NoFileExists(t, filepath.Join(dir, "core-write-gate@1.2.0.yaml"), "nothing is written before all is looked at")
		})
	}
}

func TestWriteRefusesAStateThatDoesNotHoldTogether(t *testing.T) {
	for name, spoil := range map[string]func(s *State){
		"two active":        func(s *State) { s.Versions[0].Status = StatusActive },
		"another active":    func(s *State) { s.Active = "core-write-gate@1.0.0" },
		"unknown status":    func(s *State) { s.Versions[0].Status = "live" },
		"a path":            func(s *State) { s.Versions[0].PolicyVersion = "../x@1.0.0" },
		"no version":        func(s *State) { s.Versions[0].PolicyVersion = "core-write-gate" },
		"nothing is active": func(s *State) { s.Active = "" },
	} {
		state := twoVersions()
		spoil(&state)
		dir := filepath.Join(t.TempDir(), "policies")
		require.Error(t, Write(dir, DefaultManifest, state), name)
		require.NoDirExists(t, dir, name)
	}
}

// A Write may end after any of its steps; the next start must see either the
// old folder, the new one, or one that is behind and that Write brings up.
func TestACrashAtAnyStepOfWriteIsBroughtUp(t *testing.T) {
	old, next := twoVersions(), twoVersions()
	next.Seq = 9
	next.Versions = append(next.Versions, Version{"core-write-gate@1.2.0", StatusCandidate, document("1.2.0")},
		Version{"core-write-gate@1.3.0", StatusRejected, document("1.3.0")})
	steps := []struct {
		name string
		do   func(t *testing.T, dir string)
	}{
		{"before the first file", func(*testing.T, string) {}},
		{"in the middle of a file", func(t *testing.T, dir string) {
			put(t, dir, ".tmp-core-write-gate@1.2.0.yaml", document("1.2.0")[:100])
		}},
		{"after a whole temporary file", func(t *testing.T, dir string) { put(t, dir, ".tmp-core-write-gate@1.2.0.yaml", document("1.2.0")) }},
		{"after the first file", func(t *testing.T, dir string) { put(t, dir, "core-write-gate@1.2.0.yaml", document("1.2.0")) }},
		{"after all files", func(t *testing.T, dir string) {
			put(t, dir, "core-write-gate@1.2.0.yaml", document("1.2.0"))
			put(t, dir, "core-write-gate@1.3.0.yaml", document("1.3.0"))
			put(t, dir, ".tmp-manifest.json", []byte("{"))
		}},
	}
	for _, step := range steps {
		t.Run(step.name, func(t *testing.T) {
			dir := written(t)
			step.do(t, dir)
			standing, findings, err := Compare(dir, DefaultManifest, next)
			require.NoError(t, err)
			require.Equal(t, Behind, standing, "%v", findings)
			require.Empty(t, findings)
			require.NoError(t, Write(dir, DefaultManifest, next))
			standing, findings, err = Compare(dir, DefaultManifest, next)
			require.NoError(t, err)
			require.Equal(t, Agrees, standing, "%v", findings)
			left, err := filepath.Glob(filepath.Join(dir, ".tmp-*"))
			require.NoError(t, err)
			require.Empty(t, left)
		})
	}
	t.Run("of the very first write", func(t *testing.T) {
		dir := t.TempDir()
		put(t, dir, "core-write-gate@1.0.0.yaml", document("1.0.0"))
		standing, _, err := Compare(dir, DefaultManifest, old)
		require.NoError(t, err)
		require.Equal(t, Behind, standing)
	})
}

func TestHowTheFolderStandsToTheLog(t *testing.T) {
	standing, _, err := Compare(filepath.Join(t.TempDir(), "none"), DefaultManifest, twoVersions())
	require.NoError(t, err)
	require.Equal(t, Absent, standing)
	standing, _, err = Compare(t.TempDir(), DefaultManifest, twoVersions())
	require.NoError(t, err)
	require.Equal(t, Absent, standing)

	for name, c := range map[string]struct {
		change func(s *State)
		want   Standing
	}{
		"the same": {func(*State) {}, Agrees},
		"an activation later": {func(s *State) {
			s.Seq, s.Active = 8, "core-write-gate@1.0.0"
			s.Versions[0].Status, s.Versions[1].Status = StatusActive, StatusArchived
		}, Behind},
		"the log is behind":         {func(s *State) { s.Seq = 6 }, Differs},
		"another status, same seq":  {func(s *State) { s.Versions[0].Status = StatusRejected }, Differs},
		"a version the log has not": {func(s *State) { s.Versions = s.Versions[1:] }, Differs},
		"a version more, same seq": {func(s *State) {
			s.Versions = append(s.Versions, Version{"core-write-gate@1.2.0", StatusCandidate, document("1.2.0")})
		}, Differs},
		"other bytes in the log": {func(s *State) { s.Versions[0].Document = []byte("x") }, Differs},
		"other bytes, later":     {func(s *State) { s.Seq, s.Versions[0].Document = 8, []byte("x") }, Differs},
		"unknown version, later": {func(s *State) { s.Seq, s.Versions = 8, s.Versions[1:] }, Differs},
	} {
		t.Run(name, func(t *testing.T) {
			dir := written(t)
			state := twoVersions()
			c.change(&state)
			standing, findings, err := Compare(dir, DefaultManifest, state)
			require.NoError(t, err)
			require.Equal(t, c.want, standing, "%v", findings)
			require.Equal(t, c.want == Differs, len(findings) > 0, "a difference is told, nothing else is")
		})
	}
}

func TestInit(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "deep", "policies")
	require.NoError(t, Init(dir, DefaultManifest, ""))
	folder, findings, err := Read(dir, DefaultManifest)
	require.NoError(t, err)
	require.Empty(t, findings)
	version, doc, ok := folder.Active()
	require.True(t, ok)
	require.Equal(t, "core-write-gate@1.0.0", version)
	require.Equal(t, policy.Starting(""), doc)
	require.Zero(t, folder.Manifest.Seq)

	require.ErrorContains(t, Init(dir, DefaultManifest, ""), "already")
	require.Error(t, Init(t.TempDir(), DefaultManifest, "No Name"))

	dir = t.TempDir()
	require.NoError(t, Create(dir, "other.json", policy.Sample()))
	folder, _, err = Read(dir, "other.json")
	require.NoError(t, err)
	require.Equal(t, "shop-gate@1.0.0", folder.Manifest.Active)
}

func TestBuildManifest(t *testing.T) {
	t.Run("one file becomes active", func(t *testing.T) {
		dir := t.TempDir()
		put(t, dir, "core-write-gate@1.0.0.yaml", document("1.0.0"))
		m, err := BuildManifest(dir, DefaultManifest)
		require.NoError(t, err)
		require.NoError(t, WriteManifest(dir, DefaultManifest, m))
		folder, findings, err := Read(dir, DefaultManifest)
		require.NoError(t, err)
		require.Empty(t, findings)
		require.Equal(t, "core-write-gate@1.0.0", folder.Manifest.Active)
	})
	t.Run("a new file beside others is a candidate", func(t *testing.T) {
		dir := written(t)
		put(t, dir, "core-write-gate@1.2.0.yaml", document("1.2.0"))
		put(t, dir, "corpus/more.yaml", []byte(corpusText))
		m, err := BuildManifest(dir, DefaultManifest)
		require.NoError(t, err)
		require.Equal(t, uint64(7), m.Seq)
		require.Equal(t, "core-write-gate@1.1.0", m.Active)
		require.Equal(t, []string{StatusArchived, StatusActive, StatusCandidate}, []string{m.Files[0].Status, m.Files[1].Status, m.Files[2].Status})
		require.NoError(t, WriteManifest(dir, DefaultManifest, m))
		_, findings, err := Read(dir, DefaultManifest)
		require.NoError(t, err)
		require.Empty(t, findings)
	})
	t.Run("of several new files none is chosen", func(t *testing.T) {
		dir := t.TempDir()
		put(t, dir, "core-write-gate@1.0.0.yaml", document("1.0.0"))
		put(t, dir, "core-write-gate@1.1.0.yaml", document("1.1.0"))
		m, err := BuildManifest(dir, DefaultManifest)
		require.NoError(t, err)
		require.Empty(t, m.Active)
	})
	t.Run("a bad name and a link are refused", func(t *testing.T) {
		dir := t.TempDir()
		put(t, dir, "policy.yaml", document("1.0.0"))
		_, err := BuildManifest(dir, DefaultManifest)
		require.ErrorContains(t, err, "name@major.minor.patch")
		dir = t.TempDir()
		require.NoError(t, os.Symlink("/etc/hostname", filepath.Join(dir, "a@1.0.0.yaml")))
		_, err = BuildManifest(dir, DefaultManifest)
		require.ErrorContains(t, err, "symbolic link")
	})
}
