package policyfolder

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/sqlgate/policy"
)

func document(version string) []byte {
	return []byte(strings.Replace(string(policy.Starting("")), "version: 1.0.0", "version: "+version, 1))
}

// twoVersions is a log with an archived and an active version.
func twoVersions() State {
	return State{Seq: 7, Active: "core-write-gate@1.1.0", Versions: []Version{
		{"core-write-gate@1.0.0", StatusArchived, document("1.0.0")},
		{"core-write-gate@1.1.0", StatusActive, document("1.1.0")},
	}}
}

const corpusText = "schema: gate.corpus/v1\ncases:\n  - { name: n, sql: SELECT 1, expect: { decision: ALLOW } }\n"

// written is a folder that holds twoVersions and a corpus.
func written(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "policies")
	require.NoError(t, os.MkdirAll(filepath.Join(dir, CorpusDir), 0o755))
	put(t, dir, "corpus/ours.yaml", []byte(corpusText))
	require.NoError(t, Write(dir, DefaultManifest, twoVersions()))
	return dir
}

func put(t *testing.T, dir, name string, data []byte) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(dir, name), data, 0o644))
}

func get(t *testing.T, dir, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, name))
	require.NoError(t, err)
	return data
}

// editManifest rewrites the manifest by way of plain JSON, as a person might.
func editManifest(t *testing.T, dir string, edit func(m map[string]any)) {
	t.Helper()
	var m map[string]any
	require.NoError(t, json.Unmarshal(get(t, dir, DefaultManifest), &m))
	edit(m)
	data, err := json.Marshal(m)
	require.NoError(t, err)
	put(t, dir, DefaultManifest, data)
}

func firstFile(m map[string]any) map[string]any {
	return m["files"].([]any)[0].(map[string]any)
}

func TestWhatIsWrittenIsRead(t *testing.T) {
	dir := written(t)
	folder, findings, err := Read(dir, DefaultManifest)
	require.NoError(t, err)
	require.Empty(t, findings)
	require.Equal(t, uint64(7), folder.Manifest.Seq)
	version, active, ok := folder.Active()
	require.True(t, ok)
	require.Equal(t, "core-write-gate@1.1.0", version)
	require.Equal(t, document("1.1.0"), active)
	require.Equal(t, document("1.0.0"), folder.Documents["core-write-gate@1.0.0"])
	require.Len(t, folder.Corpora, 1)
	require.Equal(t, "corpus/ours.yaml", folder.Corpora[0].Name)
	require.Len(t, folder.Corpora[0].Cases, 1)
	require.Equal(t, policy.Digest([]byte(corpusText)), folder.Corpora[0].SHA256)
}

func TestTheManifestHasTheShapeOfTheDesignPage(t *testing.T) {
	dir := written(t)
	var m map[string]any
	require.NoError(t, json.Unmarshal(get(t, dir, DefaultManifest), &m))
	doc := document("1.0.0")
	require.Equal(t, "gate.manifest/v1", m["schema"])
	require.Equal(t, map[string]any{
		"path": "core-write-gate@1.0.0.yaml", "policy_version": "core-write-gate@1.0.0", "status": "archived",
		"sha256": policy.Digest(doc), "bytes": float64(len(doc)),
	}, firstFile(m))
	require.Equal(t, []any{map[string]any{"path": "corpus/ours.yaml", "sha256": policy.Digest([]byte(corpusText)), "bytes": float64(len(corpusText))}}, m["corpus"])
}

func TestWhatDiffersIsFound(t *testing.T) {
	const file = "core-write-gate@1.0.0.yaml"
	link := func(target, name string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			require.NoError(t, os.RemoveAll(filepath.Join(dir, name)))
			require.NoError(t, os.Symlink(target, filepath.Join(dir, name)))
		}
	}
	manifest := func(edit func(map[string]any)) func(*testing.T, string) {
		return func(t *testing.T, dir string) { editManifest(t, dir, edit) }
	}
	for _, c := range []struct {
		name  string
		spoil func(t *testing.T, dir string)
		code  string
		tells string
	}{
		{"a flipped byte", func(t *testing.T, dir string) {
			data := get(t, dir, file)
			data[len(data)/2] ^= 1
			put(t, dir, file, data)
		}, integrityMismatch, "bring the bytes back"},
		{"a byte more", func(t *testing.T, dir string) { put(t, dir, file, append(get(t, dir, file), '\n')) }, integrityMismatch, "bring the bytes back"},
		{"an empty file", func(t *testing.T, dir string) { put(t, dir, file, nil) }, integrityMismatch, "0 bytes"},
		{"a missing file", func(t *testing.T, dir string) { require.NoError(t, os.Remove(filepath.Join(dir, file))) }, fileSetMismatch, "not in the folder"},
		{"an unlisted file", func(t *testing.T, dir string) { put(t, dir, "core-write-gate@9.0.0.yaml", document("9.0.0")) }, fileSetMismatch, "not in the manifest"},
		{"a stray file", func(t *testing.T, dir string) { put(t, dir, "notes.txt", nil) }, fileSetMismatch, "notes.txt"},
		{"a stray folder", func(t *testing.T, dir string) { require.NoError(t, os.Mkdir(filepath.Join(dir, "old"), 0o755)) }, fileSetMismatch, "old"},
		{"a link to the right bytes", func(t *testing.T, dir string) {
			require.NoError(t, os.Rename(filepath.Join(dir, file), filepath.Join(dir, ".hidden")))
			require.NoError(t, os.Symlink(".hidden", filepath.Join(dir, file)))
		}, fileSetMismatch, "symbolic link"},
		{"a link out of the folder", link("/etc/hostname", file), fileSetMismatch, "symbolic link"},
		{"a folder with the name of a file", func(t *testing.T, dir string) {
			require.NoError(t, os.Remove(filepath.Join(dir, file)))
			require.NoError(t, os.Mkdir(filepath.Join(dir, file), 0o755))
		}, fileSetMismatch, "a folder"},
		{"a linked manifest", link("/etc/hostname", DefaultManifest), fileSetMismatch, "symbolic link"},
		{"a linked corpus folder", link("/etc", CorpusDir), fileSetMismatch, "symbolic link"},
		{"a linked corpus", link("/etc/hostname", "corpus/ours.yaml"), fileSetMismatch, "symbolic link"},
		{"a manifest that is no JSON", func(t *testing.T, dir string) { put(t, dir, DefaultManifest, []byte("{")) }, integrityMismatch, "cannot be read"},
		{"an empty manifest", func(t *testing.T, dir string) { put(t, dir, DefaultManifest, nil) }, integrityMismatch, "cannot be read"},
		{"more after the manifest", func(t *testing.T, dir string) {
			put(t, dir, DefaultManifest, append(get(t, dir, DefaultManifest), "{}"...))
		}, integrityMismatch, "more after"},
		{"a doubled key", func(t *testing.T, dir string) {
			put(t, dir, DefaultManifest, []byte(strings.Replace(string(get(t, dir, DefaultManifest)), `"seq"`, `"seq": 9, "seq"`, 1)))
		}, integrityMismatch, "twice"},
		{"an unknown key", manifest(func(m map[string]any) { m["note"] = "x" }), integrityMismatch, "note"},
		{"another schema", manifest(func(m map[string]any) { m["schema"] = "gate.manifest/v2" }), integrityMismatch, "schema"},
		{"another active version", manifest(func(m map[string]any) { m["active"] = "core-write-gate@1.0.0" }), integrityMismatch, "one and the same"},
		{"two active versions", manifest(func(m map[string]any) { firstFile(m)["status"] = "active" }), integrityMismatch, "one and the same"},
		{"no active version", manifest(func(m map[string]any) {
			m["active"] = ""
			m["files"].([]any)[1].(map[string]any)["status"] = "archived"
		}), fileSetMismatch, "no version is active"},
		{"an unknown status", manifest(func(m map[string]any) { firstFile(m)["status"] = "live" }), integrityMismatch, "known are"},
		{"a version that is not the file's", manifest(func(m map[string]any) { firstFile(m)["policy_version"] = "core-write-gate@1.2.0" }), integrityMismatch, "one name"},
		{"a wrong length", manifest(func(m map[string]any) { firstFile(m)["bytes"] = 1 }), integrityMismatch, "1 bytes"},
		{"a wrong hash", manifest(func(m map[string]any) { firstFile(m)["sha256"] = policy.Digest(nil) }), integrityMismatch, "hash"},
		{"a file listed twice", manifest(func(m map[string]any) { m["files"] = append(m["files"].([]any), firstFile(m)) }), integrityMismatch, "twice"},
		{"a path that leads out", manifest(func(m map[string]any) { firstFile(m)["path"] = "../core-write-gate@1.0.0.yaml" }), fileSetMismatch, "directly in the folder"},
		{"a bad name", manifest(func(m map[string]any) { firstFile(m)["path"] = "Core@1.0.yaml" }), fileSetMismatch, "name@major.minor.patch"},
		{"a corpus that does not parse", func(t *testing.T, dir string) { put(t, dir, "corpus/ours.yaml", []byte("cases: x")) }, "PV104", "corpus/ours.yaml"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := written(t)
			c.spoil(t, dir)
			_, findings, err := Read(dir, DefaultManifest)
			require.NoError(t, err)
			var texts []string
			found := false
			for _, f := range findings {
				texts = append(texts, f.String())
				found = found || (f.Code == c.code && f.Severity == policy.SeverityError && strings.Contains(f.Message, c.tells))
			}
			require.True(t, found, "%s", strings.Join(texts, "\n"))

			standing, _, err := Compare(dir, DefaultManifest, twoVersions())
			require.NoError(t, err)
			require.Equal(t, Differs, standing)
		})
	}
}

func TestAChangedCorpusIsAWarning(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, dir string){
		"more cases": func(t *testing.T, dir string) {
			put(t, dir, "corpus/ours.yaml", []byte(corpusText+"  - { name: m, sql: SELECT 2, expect: { decision: ALLOW } }\n"))
		},
		"another file":   func(t *testing.T, dir string) { put(t, dir, "corpus/more.yaml", []byte(corpusText)) },
		"a file less":    func(t *testing.T, dir string) { require.NoError(t, os.Remove(filepath.Join(dir, "corpus/ours.yaml"))) },
		"no folder":      func(t *testing.T, dir string) { require.NoError(t, os.RemoveAll(filepath.Join(dir, CorpusDir))) },
		"no corpus file": func(t *testing.T, dir string) { put(t, dir, "corpus/README.md", nil) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := written(t)
			change(t, dir)
			_, findings, err := Read(dir, DefaultManifest)
			require.NoError(t, err)
			require.Len(t, findings, 1)
			require.Equal(t, corpusChanged, findings[0].Code)
			require.Equal(t, policy.SeverityWarning, findings[0].Severity)
		})
	}
}

func TestNamesWithADotAreIgnored(t *testing.T) {
	dir := written(t)
	put(t, dir, ".gitignore", nil)
	put(t, dir, ".tmp-core-write-gate@1.2.0.yaml", []byte("half a docum"))
	require.NoError(t, os.Mkdir(filepath.Join(dir, ".git"), 0o755))
	_, findings, err := Read(dir, DefaultManifest)
	require.NoError(t, err)
	require.Empty(t, findings)
}

func TestThereIsNothingToRead(t *testing.T) {
	_, _, err := Read(filepath.Join(t.TempDir(), "none"), DefaultManifest)
	require.ErrorIs(t, err, ErrNoManifest)
	_, _, err = Read(t.TempDir(), DefaultManifest)
	require.ErrorIs(t, err, ErrNoManifest)
	require.ErrorContains(t, err, "gate policy init")
	for _, name := range []string{"", "../manifest.json", "a/b.json", ".manifest", "manifest.yaml", "corpus"} {
		_, _, err = Read(t.TempDir(), name)
		require.ErrorContains(t, err, "plain file name", name)
	}
}
