package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/eventlog"
	"writegate/eventlog/backup"
	"writegate/eventlog/event"
	"writegate/eventlog/frame"
	"writegate/fixtures/witness/witnesstest"
)

// forge writes the log at wal anew under its id: the same events, one of which says
// another actor, and nobody's signature. With an ancestor the first event names an
// invented log of the same origin as the one before it.
func forge(t *testing.T, wal string, ancestor bool) {
	t.Helper()
	set, err := frame.Discover(t.Context(), frame.OS{}, wal)
	require.NoError(t, err)
	h, err := set.Genesis()
	require.NoError(t, err)
	var drafts []event.Draft
	for f, err := range set.Frames(t.Context(), 1<<62) {
		require.NoError(t, err)
		d, err := event.Decode(f.Record)
		require.NoError(t, err)
		drafts = append(drafts, d)
	}
	require.NoError(t, set.Close())
	write := func(to string, id [16]byte, drafts ...event.Draft) (hash [32]byte) {
		log, err := eventlog.Create(t.Context(), eventlog.Options{Path: to, Origin: h.Origin, Rand: io.MultiReader(bytes.NewReader(id[:]), rand.Reader)})
		require.NoError(t, err)
		for _, d := range drafts {
			_, err := log.Append(t.Context(), eventlog.Group{Drafts: []event.Draft{d}})
			require.NoError(t, err)
		}
		hash = log.Head().Hash
		require.NoError(t, log.Close(context.Background()))
		return hash
	}
	drafts[2].Context.Actor = "somebody"
	if ancestor {
		id := [16]byte{0xaa}
		old := eventlog.RetiredLog(wal, id)
		require.NoError(t, os.MkdirAll(filepath.Dir(old), 0o700))
		apart := filepath.Join(t.TempDir(), "older.wal") // nothing is written where it is to lie
		hash := write(apart, id, drafts[0])
		for _, suffix := range []string{"", frame.HeadSuffix} {
			require.NoError(t, os.WriteFile(old+suffix, mustRead(t, apart+suffix), 0o600))
		}
		var start event.Startup
		require.NoError(t, drafts[0].Parse(&start))
		start.Predecessor = &event.Predecessor{LogID: id, LastSeq: 1, LastEventHash: hash}
		drafts[0].Payload = start.Fields()
	}
	to := filepath.Join(t.TempDir(), "forged.wal")
	write(to, h.LogID, drafts...)
	for _, suffix := range []string{"", frame.HeadSuffix} {
		require.NoError(t, os.WriteFile(wal+suffix, mustRead(t, to+suffix), 0o600))
	}
}

// forgeBackup does the same in a backup and makes its manifest fit; the files that
// begin with without are taken out.
func forgeBackup(t *testing.T, dir string, ancestor bool, without ...string) {
	t.Helper()
	forge(t, filepath.Join(dir, "log/audit.wal"), ancestor)
	path := filepath.Join(dir, backup.ManifestName)
	var m backup.Manifest
	unmarshal(t, mustRead(t, path), &m)
	m.Files = slices.DeleteFunc(m.Files, func(f backup.File) bool {
		out := slices.ContainsFunc(without, func(prefix string) bool { return strings.HasPrefix(f.Path, prefix) })
		if out {
			require.NoError(t, os.Remove(filepath.Join(dir, f.Path)))
		}
		return out
	})
	require.NoError(t, filepath.WalkDir(filepath.Join(dir, "log/audit.wal"+frame.RetiredSuffix), func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil // there is none
		}
		name, err := filepath.Rel(dir, path)
		m.Files = append(m.Files, backup.File{Path: name})
		return err
	}))
	for i := range m.Files {
		content := mustRead(t, filepath.Join(dir, m.Files[i].Path))
		sum := sha256.Sum256(content)
		m.Files[i].Bytes, m.Files[i].SHA256 = int64(len(content)), hex.EncodeToString(sum[:])
	}
	set, err := frame.Discover(t.Context(), frame.OS{}, filepath.Join(dir, "log/audit.wal"))
	require.NoError(t, err)
	r, err := frame.Verify(t.Context(), set, frame.Options{})
	require.NoError(t, err)
	require.NoError(t, set.Close())
	require.Equal(t, m.LastSeq, r.End.Seq)
	m.LastEventHash = hex.EncodeToString(r.End.Hash[:])
	b, err := json.Marshal(m)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, b, 0o600))
}

// copyOf copies a backup.
func copyOf(t *testing.T, dir string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "backup")
	require.NoError(t, os.CopyFS(to, os.DirFS(dir)))
	return to
}

// TestARestoreHoldsTheBackupAgainstNotesAndWitnesses before anything is copied.
func TestARestoreHoldsTheBackupAgainstNotesAndWitnesses(t *testing.T) {
	t.Parallel()
	v := newVouchedGate(t)
	w := witnesstest.Start(t, t.TempDir(), v.vkey)
	g := startGate(t, v.gateDir, v.settings(w)...)
	require.Equal(t, http.StatusOK, g.query(t, ask("SELECT 1")).status)
	g.end(t)
	early, late := filepath.Join(t.TempDir(), "early"), filepath.Join(t.TempDir(), "late")
	run := func(settings []string, args ...string) (int, string) {
		return runGate(t, v.environ(settings...), args...)
	}
	asked, unasked := v.settings(w), v.settings()
	code, output := run(asked, "log", "backup", early)
	require.Zero(t, code, output)
	g = startGate(t, v.gateDir, v.settings(w)...)
	require.Equal(t, http.StatusOK, g.query(t, ask("SELECT 2")).status)
	g.end(t)
	code, output = run(asked, "log", "backup", late)
	require.Zero(t, code, output)
	before := v.copyTo(t, t.TempDir())
	g = startGate(t, v.gateDir, unasked...)
	g.end(t)
	unseen := filepath.Join(t.TempDir(), "unseen")
	code, output = run(unasked, "log", "backup", unseen)
	require.Zero(t, code, output)
	for _, dir := range []string{unseen, late} { // asking about the first tells the witness nothing new
		v.destroy(t)
		code, output = run(asked, "log", "restore", dir)
		require.Zero(t, code, output)
		require.NotContains(t, output, "witness")
	}
	v.replaceBy(t, before)
	old := v.moveAway(t)
	untouched := func() {
		t.Helper()
		found, err := filepath.Glob(v.file("audit.wal*"))
		require.NoError(t, err)
		require.Empty(t, slices.DeleteFunc(found, func(path string) bool { return strings.HasSuffix(path, frame.LockSuffix) }))
	}

	another := append(v.settings(w), "GATE_AUDIT_ORIGIN=gate.example/shop-2")
	forged := copyOf(t, late)
	forgeBackup(t, forged, false, "log/audit.wal.checkpoints", "audit.jsonl")
	for _, args := range [][]string{{}, {"--old-log", old}} {
		code, output = run(another, append([]string{"log", "restore", forged}, args...)...)
		require.Equal(t, exitFailed, code, output)
		untouched()
	}
	code, output = run(another, "log", "restore", forged)
	require.Equal(t, exitFailed, code, output)
	require.Contains(t, output, "history_rewritten")
	require.Contains(t, output, "witness "+w.URL)

	invented := copyOf(t, late)
	forgeBackup(t, invented, true, "log/audit.wal.checkpoints", "audit.jsonl")
	code, output = run(another, "log", "restore", invented)
	require.Equal(t, exitFailed, code, "what it says of a log before it proves nothing: %s", output)
	require.Contains(t, output, "history_rewritten")
	untouched()

	noted := copyOf(t, late)
	forgeBackup(t, noted, false, "audit.jsonl")
	code, output = run(unasked, "log", "restore", noted)
	require.Equal(t, exitFailed, code, "its own notes contradict it: %s", output)
	require.Contains(t, output, "history_rewritten")
	untouched()

	code, output = run(another, "log", "restore", early, "--old-log", early+"/log/audit.wal")
	require.Equal(t, exitFailed, code, output)
	untouched()
	code, output = run(another, "log", "restore", early)
	require.Zero(t, code, "what a witness knows more of is what a restore is about: %s", output)
	require.Contains(t, output, "witness "+w.URL+" knows event")
	code, output = run(asked, "serve")
	require.Equal(t, exitConfigured, code, "the witness would be asked about a log that it does not know: %s", output)
	require.Contains(t, output, "it is not the log that the witnesses know")
	g = startGate(t, v.gateDir, unasked...)
	require.Equal(t, http.StatusOK, g.query(t, ask("SELECT 3")).status)
	g.end(t)

	v.destroy(t)
	w.Stop(t)
	code, output = run(asked, "log", "restore", late, "--old-log", old)
	require.Zero(t, code, output)
	require.Contains(t, output, "the witness "+w.URL+" gave no cosignature")
	v.destroy(t)
	code, output = run(unasked, "log", "restore", forged)
	require.Zero(t, code, "nobody is left who knows better: %s", output)
	require.Contains(t, output, "is signed by nobody")
}

// TestALogIsRetiredAndBackedUpAsItsNotesSay: a log that was written anew, and one that
// was cut, with the genuine notes beside them.
func TestALogIsRetiredAndBackedUpAsItsNotesSay(t *testing.T) {
	t.Parallel()
	v := newVouchedGate(t)
	w := witnesstest.Start(t, t.TempDir(), v.vkey)
	g := startGate(t, v.gateDir, v.settings(w)...)
	g.end(t)
	earlier := v.copyTo(t, t.TempDir())
	first := uint64(len(v.events(t)))
	g = startGate(t, v.gateDir, v.settings(w)...)
	require.Equal(t, http.StatusOK, g.query(t, ask("SELECT 1")).status)
	g.end(t)
	whole := v.copyTo(t, t.TempDir())
	last := uint64(len(v.events(t)))
	for name, c := range map[string]struct {
		spoil func()
		kind  string
		last  uint64
	}{
		"written anew": {func() { forge(t, v.file("audit.wal"), false) }, "history_rewritten", 0},
		"cut": {func() {
			for _, suffix := range []string{"", frame.HeadSuffix} {
				require.NoError(t, os.WriteFile(v.file("audit.wal"+suffix), mustRead(t, earlier.file("audit.wal"+suffix)), 0o600))
			}
		}, "anchor_beyond_end", first},
		"cut, without notes": {func() {
			v.replaceBy(t, earlier)
		}, "anchor_beyond_end", first},
	} {
		v.replaceBy(t, whole)
		require.NoError(t, os.RemoveAll(v.file("approvals.db")))
		c.spoil()
		settings := v.settings()
		if strings.Contains(name, "without") {
			settings = v.settings(w)
		}
		run := func(args ...string) (int, string) { return runGate(t, v.environ(settings...), args...) }
		code, output := run("log", "new")
		require.Zero(t, code, output)
		require.Contains(t, output, c.kind, name)
		code, output = run("log", "new", "--json")
		require.Zero(t, code, output)
		var r retiredResult
		require.NoError(t, json.Unmarshal([]byte(output[:strings.LastIndex(output, "}")+1]), &r), output)
		require.Equal(t, []any{"corruption_detected", c.last, last}, []any{r.Status, r.LastSeq, r.KnownSeq}, name)
		require.Equal(t, c.kind, string(r.Faults[0].Kind), name)
		if strings.Contains(name, "without") {
			continue // a backup asks no witness
		}
		code, output = run("log", "backup", filepath.Join(t.TempDir(), "bk"))
		require.Equal(t, exitFailed, code, output)
		require.Contains(t, output, c.kind, name)
		for _, args := range [][]string{
			{"log", "verify"}, {"log", "dump"}, {"log", "tail"}, {"log", "digest"}, {"log", "rebuild"}, {"verify", "--decisions"},
			{"evidence", "export", filepath.Join(t.TempDir(), "bundle.json")}, {"policy", "rebuild"},
		} {
			code, output = run(args...)
			require.Equal(t, exitFailed, code, "%s, %v: %s", name, args, output)
			require.NotContains(t, output, "panic", "%s, %v", name, args)
		}
	}

	v.replaceBy(t, whole)
	to := filepath.Join(t.TempDir(), "bk")
	code, output := runGate(t, v.environ(v.settings()...), "log", "backup", to)
	require.Zero(t, code, output)
	v.destroy(t)
	cut := earlier.copyTo(t, t.TempDir())
	require.NoError(t, os.CopyFS(cut.file("more"), os.DirFS(whole.file("audit.wal.checkpoints"))))
	require.NoError(t, os.RemoveAll(cut.file("audit.wal.checkpoints")))
	require.NoError(t, os.Rename(cut.file("more"), cut.file("audit.wal.checkpoints")))
	code, output = runGate(t, v.environ(v.settings()...), "log", "restore", to, "--old-log", cut.file("audit.wal"))
	require.Equal(t, exitFailed, code, output)
	require.Contains(t, output, "knows event", "the old log's own notes")
}

// TestALogUnderTheOriginOfTheOneBeforeItIsRetiredWhole: what a witness knows is of that one.
func TestALogUnderTheOriginOfTheOneBeforeItIsRetiredWhole(t *testing.T) {
	t.Parallel()
	v := newVouchedGate(t)
	w := witnesstest.Start(t, t.TempDir(), v.vkey)
	g := startGate(t, v.gateDir, v.settings(w)...)
	g.end(t)
	run := func(args ...string) (int, string) { return runGate(t, v.environ(v.settings(w)...), args...) }
	code, output := run("log", "new", "--accept-loss", "the origin was forgotten")
	require.Zero(t, code, output)
	code, output = run("log", "new")
	require.Zero(t, code, output)
	require.Contains(t, output, "event 1 is carried over")
	require.Contains(t, output, "which are those of log")
}
