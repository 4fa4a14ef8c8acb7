package main

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/frame"
	"writegate/fixtures/postgres"
	"writegate/projections"
)

// A brokenLife is a gate's folder whose log is damaged in its middle, as a copy
// of a running one, and what was so before the damage.
type brokenLife struct {
	gateDir
	waiting, approved string // approvals
	held              statement
	running           string // an execution that had no result
	last              uint64 // before the damage
	events            uint64 // there were
	log               string // id
}

// undisturbed has a statement that waits for a lock go on waiting, and an outcome
// that nobody knows stay so until somebody asks.
var undisturbed = append([]string{"GATE_DB_LOCK_TIMEOUT_MS=60000", "GATE_OUTCOME_CHECK_INTERVAL_SECONDS=0"}, patience...)

// breakLog makes such a folder: behind a statement that is running, other
// events are written, and a bit of one of those flips.
func breakLog(t *testing.T) brokenLife {
	t.Helper()
	g := startGate(t, newNotes(t), undisturbed...)
	b := brokenLife{held: insertHeld("approved before the damage")}
	b.waiting = g.hold(t, insertHeld("waits"))
	b.approved = g.approved(t, b.held)
	require.Equal(t, http.StatusOK, g.query(t, insertOpen("kept"), "idempotency_key=kept").status)
	release := postgres.HoldURL(t, g.database, "LOCK TABLE open_notes")
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		_, _ = g.tryQuery(insertOpen("in flight"), "idempotency_key=in-flight")
	}()
	require.Eventually(t, func() bool {
		var page struct {
			Items []struct {
				ID string `json:"execution_id"`
			}
		}
		unmarshal(t, g.get(t, "/executions?execution_state=dispatched").body, &page)
		if len(page.Items) == 1 {
			b.running = page.Items[0].ID
		}
		return b.running != ""
	}, startPatience, pollEvery)
	b.last = g.head(t)
	for range 8 {
		g.query(t, ask("SELECT 1"))
	}
	b.gateDir, b.events = crashCopy(t, g)
	require.NoError(t, os.CopyFS(b.file("policies"), os.DirFS(g.file("policies"))))
	release()
	<-answered

	content := mustRead(t, b.file("audit.wal"))
	at, header := placeOf(t, b.gateDir, b.last+3)
	b.log = hex.EncodeToString(header.LogID[:])
	content[at+120] ^= 1
	require.NoError(t, os.WriteFile(b.file("audit.wal"), content, 0o600))
	return b
}

// placeOf finds where an event's frame begins.
func placeOf(t *testing.T, d gateDir, seq uint64) (int64, frame.Header) {
	t.Helper()
	set, err := frame.Discover(t.Context(), frame.OS{}, d.file("audit.wal"))
	require.NoError(t, err)
	defer set.Close()
	h, err := set.Genesis()
	require.NoError(t, err)
	for f, err := range set.Frames(t.Context(), seq) {
		require.NoError(t, err)
		if f.Seq == seq {
			return f.Off, h
		}
	}
	t.Fatalf("there is no event %d", seq)
	return 0, h
}

// TestADamagedLogGivesItsPlaceToOneThatGoesOn is the operator's way, step by step
// as docs/OPERATIONS.md has it.
func TestADamagedLogGivesItsPlaceToOneThatGoesOn(t *testing.T) {
	t.Parallel()
	b := breakLog(t)
	g := startGate(t, b.gateDir, undisturbed...)
	requireFault(t, g.query(t, ask("SELECT 1")), http.StatusServiceUnavailable, "audit_corruption_detected")
	code, _, errs := b.command(t, "log", "new", "--accept-loss", "a bad disk")
	require.Equal(t, exitLocked, code)
	require.Contains(t, errs, "stop it first")
	g.endDamaged(t)

	before := contents(t, b.path)
	code, out, errs := b.command(t, "log", "new")
	require.Zero(t, code, errs)
	require.Contains(t, out, "corruption_detected")
	require.Contains(t, out, "Nothing was changed")
	require.Equal(t, before, contents(t, b.path))
	code, _, errs = b.command(t, "log", "new", "--accept-loss", " ")
	require.Equal(t, exitUsage, code, errs)

	code, out, errs = b.command(t, "log", "new", "--accept-loss", "a bad disk", "--json")
	require.Zero(t, code, errs)
	var r retiredResult
	require.NoError(t, json.Unmarshal([]byte(out), &r))
	require.Equal(t, b.log, r.LogID)
	require.GreaterOrEqual(t, r.LastSeq, b.last)
	require.Equal(t, b.events, r.KnownSeq)
	require.Equal(t, b.events-r.LastSeq, r.Lost)

	g = startGate(t, b.gateDir, undisturbed...)
	b.goesOn(t, g, r)
	g.end(t) // a rebuild gives what the live projections hold, and all decisions come out the same
	b.commandsAgree(t)
	b.rebuildNeedsTheOldFiles(t, r.Folder)
}

// goesOn: everything from before the damage is there, and the gate serves.
func (b *brokenLife) goesOn(t *testing.T, g *testGate, r retiredResult) {
	t.Helper()
	require.Equal(t, http.StatusOK, g.get(t, "/health").status)
	require.Equal(t, []any{"expired", true}, pick(g.record(t, b.waiting), "status", "withdrawn"))
	refused := requireFault(t, g.query(t, b.held.with("approval_id", b.approved)), http.StatusGone, "approval_expired")
	require.Equal(t, "log_loss", refused["reason"], "what was lost may be its use")
	require.Equal(t, "1", b.rowsOf(t, "open_notes", "kept"))
	require.Equal(t, http.StatusOK, g.query(t, insertOpen("kept"), "idempotency_key=kept").status, "a key answers what it answered")
	require.Equal(t, "1", b.rowsOf(t, "open_notes", "kept"))
	requireFault(t, g.resolve(t, b.waiting, "reject"), http.StatusGone, "approval_expired")

	x := g.get(t, "/executions/"+b.running).json(t)
	require.Equal(t, "unknown", x["execution_state"])
	require.Len(t, x["event_seqs"], 1)
	require.Len(t, x["earlier_events"], 1)
	require.Equal(t, r.LogID, x["earlier_events"].([]any)[0].(map[string]any)["log_id"])

	first := g.get(t, "/audit?order=asc&limit=1").json(t)["items"].([]any)[0].(map[string]any)
	require.Equal(t, "startup", first["event_type"])
	p := first["payload"].(map[string]any)["predecessor"].(map[string]any)
	require.Equal(t, "a bad disk", p["reason"])
	require.EqualValues(t, r.LastSeq, p["last_seq"])
	status := g.get(t, "/policy/status").json(t)
	require.EqualValues(t, 0, status["activated_seq"], "it was activated in the old log")
	require.Equal(t, true, status["manifest"].(map[string]any)["matches"])
}

// commandsAgree: what reads the log from outside knows the one before it as well.
func (b *brokenLife) commandsAgree(t *testing.T) {
	t.Helper()
	for _, args := range [][]string{
		{"log", "verify"}, {"verify", "--decisions"}, {"log", "digest"}, {"log", "rebuild"}, {"policy", "rebuild", "--json"},
	} {
		code, out, errs := b.command(t, args...)
		require.Zero(t, code, "%v: %s%s", args, out, errs)
	}
	require.NoError(t, os.RemoveAll(b.file("policies")))
	code, _, errs := b.command(t, "policy", "rebuild", "--yes")
	require.Zero(t, code, errs)
	code, out, errs := b.command(t, "log", "verify", filepath.Join(b.file("audit.wal.retired"), b.log, "audit.wal"))
	require.Equal(t, exitFailed, code, "the old log is as damaged as it was: %s%s", out, errs)
}

// rebuildNeedsTheOldFiles: nothing is folded from half of what happened.
func (b *brokenLife) rebuildNeedsTheOldFiles(t *testing.T, folder string) {
	t.Helper()
	require.NoError(t, os.Rename(folder, b.file("elsewhere")))
	code, _, errs := b.command(t, "log", "rebuild")
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, folder)
	require.NoError(t, os.Rename(b.file("approvals.db"), b.file("approvals.aside")))
	code, _, errs = b.command(t, "serve")
	require.Equal(t, exitConfigured, code)
	require.Contains(t, errs, folder)
	require.NoError(t, os.Rename(b.file("elsewhere"), folder))
	g := startGate(t, b.gateDir, undisturbed...)
	require.Equal(t, true, g.record(t, b.waiting)["withdrawn"])
	g.end(t)
}

// What is done and can't be told was no mistake of the command line.
func TestAnOutputThatCanNotBeWrittenIsNoMistakeOfTheCaller(t *testing.T) {
	t.Parallel()
	b := breakLog(t)
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	require.NoError(t, err)
	defer full.Close()
	copied := filepath.Join(t.TempDir(), "backup")
	for _, args := range [][]string{{"version"}, {"log", "new"}, {"log", "new", "--accept-loss", "a bad disk"}, {"log", "backup", copied}, {"log", "backup", copied + "2", "--json"}, {"log", "rebuild"}} {
		var errs bytes.Buffer
		a := &app{streams: streams{strings.NewReader(""), full, &errs}, environ: b.environ()}
		require.Equal(t, exitUntold, a.run(t.Context(), args), "%q: %s", args, errs.String())
		require.Contains(t, errs.String(), "output could not be written", args)
		require.NotContains(t, errs.String(), "--help", args)
	}
	for _, folder := range []string{copied, copied + "2"} {
		_, err := os.Stat(filepath.Join(folder, "backup.json"))
		require.NoError(t, err)
	}
	g := startGate(t, b.gateDir, undisturbed...)
	g.end(t)
}

// TestABackupHasTheLogsBeforeTheLog, because a start on the restored one folds them.
func TestABackupHasTheLogsBeforeTheLog(t *testing.T) {
	t.Parallel()
	b := breakLog(t)
	for i := range 2 { // a second one follows the first
		code, _, errs := b.command(t, "log", "new", "--accept-loss", fmt.Sprint("loss ", i))
		require.Zero(t, code, errs)
		g := startGate(t, b.gateDir, undisturbed...)
		require.Equal(t, http.StatusOK, g.query(t, insertOpen(fmt.Sprint("after loss ", i))).status)
		g.end(t)
	}
	g := startGate(t, b.gateDir, undisturbed...)
	last := g.head(t)
	before := g.answers(t, last)
	g.end(t)
	copied := filepath.Join(t.TempDir(), "backup")
	code, _, errs := b.command(t, "log", "backup", copied)
	require.Zero(t, code, errs)
	code, _, errs = b.command(t, "log", "restore", copied, "--old-log", b.moveAway(t))
	require.Zero(t, code, errs)
	g = startGate(t, b.gateDir, undisturbed...)
	require.Equal(t, before, g.answers(t, last))
	require.Equal(t, "expired", g.record(t, b.waiting)["status"])
	g.end(t)
}

// TestARestoreThatIsOlderThanWhatIsKnownBeginsANewLog: the store of the
// projections was saved, the log was not, and its backup, put back by hand, is older.
func TestARestoreThatIsOlderThanWhatIsKnownBeginsANewLog(t *testing.T) {
	t.Parallel()
	d := newNotes(t)
	g := startGate(t, d, patience...)
	id := g.hold(t, insertHeld("before the backup"))
	copied := filepath.Join(t.TempDir(), "backup")
	code, _, errs := d.command(t, "log", "backup", copied)
	require.Zero(t, code, errs)
	later := g.hold(t, insertHeld("after the backup"))
	g.end(t)
	require.NoError(t, os.Rename(d.file("approvals.db"), d.file("saved")))
	d.destroy(t)
	require.NoError(t, os.CopyFS(d.path, os.DirFS(filepath.Join(copied, "log"))))
	require.NoError(t, os.CopyFS(d.file("policies"), os.DirFS(filepath.Join(copied, "policies"))))
	require.NoError(t, os.Rename(d.file("saved"), d.file("approvals.db")))

	g = startGate(t, d, patience...)
	require.Equal(t, http.StatusServiceUnavailable, g.get(t, "/health").status)
	g.endDamaged(t)
	code, out, errs := d.command(t, "log", "new", "--accept-loss", "the newest backup is all there is")
	require.Zero(t, code, errs)
	require.Regexp(t, `events \d+ to \d+, \d+ in all, are lost`, out)
	g = startGate(t, d, patience...)
	require.Equal(t, "expired", g.record(t, id)["status"])
	require.Equal(t, http.StatusNotFound, g.get(t, "/approvals/"+later).status)
	g.end(t)
}

func TestANewLogIsNotBegunWhereThereIsNone(t *testing.T) {
	t.Parallel()
	d := newNotes(t)
	code, _, errs := d.command(t, "log", "new", "--accept-loss", "none")
	require.Equal(t, exitPartial, code)
	require.Contains(t, errs, "there is no log")
	require.NoFileExists(t, d.file("audit.wal"))
}

// TestAGateDoesNotStartWhileALogIsHalfPutAway: nobody could tell what it would begin with.
func TestAGateDoesNotStartWhileALogIsHalfPutAway(t *testing.T) {
	t.Parallel()
	b := breakLog(t)
	half := b.file("audit.wal.retired/begun.json")
	require.NoError(t, os.MkdirAll(filepath.Dir(half), 0o700))
	require.NoError(t, os.WriteFile(half, []byte("{}"), 0o600))
	code, _, errs := b.command(t, "serve")
	require.Equal(t, exitConfigured, code)
	require.Contains(t, errs, "run it again")
	code, _, errs = b.command(t, "log", "new", "--accept-loss", "r")
	require.Equal(t, exitPartial, code)
	require.Contains(t, errs, "not what a retirement writes")

	require.NoError(t, os.Remove(half))
	code, out, errs := b.command(t, "log", "new", "--json")
	require.Equal(t, exitOK, code, errs)
	var judged retiredResult
	unmarshal(t, []byte(out), &judged)
	valuable := filepath.Join(t.TempDir(), "valuable")
	require.NoError(t, os.WriteFile(valuable, []byte("key"), 0o600))
	for _, c := range []struct {
		from, to string
		last     uint64
		says     string
	}{
		{valuable, "audit.wal", judged.LastSeq, "no place of this log"},
		{b.file("audit.wal"), "../../elsewhere", judged.LastSeq, "no place of this log"},
		{b.file("audit.wal"), "audit.wal", judged.LastSeq - 1, "judged now it is"},
	} {
		plan := fmt.Sprintf(`{"format":"gate.retired.v1","log_id":%q,"last_seq":%d,"last_event_hash":%q,"known_seq":1,"status":"ok","reason":"r","begun_at":"2026-01-01T00:00:00Z","moves":[{"from":%q,"to":%q}]}`,
			judged.LogID, c.last, judged.LastEventHash, c.from, c.to)
		require.NoError(t, os.WriteFile(half, []byte(plan), 0o600))
		before := contents(t, b.path)
		code, _, errs = b.command(t, "log", "new", "--accept-loss", "r")
		require.Equal(t, exitPartial, code, errs)
		require.Contains(t, errs, c.says)
		require.FileExists(t, valuable)
		require.Equal(t, before, contents(t, b.path))
	}

	// A plan that names sealed segments, of which there are none, has moved nothing.
	var moves []string
	for _, suffix := range []string{".segments", "", ".head"} {
		moves = append(moves, fmt.Sprintf(`{"from":%q,"to":%q}`, b.file("audit.wal"+suffix), "audit.wal"+suffix))
	}
	require.NoError(t, os.WriteFile(half, fmt.Appendf(nil, `{"format":"gate.retired.v1","log_id":%q,"last_seq":%d,"last_event_hash":%q,"known_seq":1,"status":"ok","reason":"r","begun_at":"2026-01-01T00:00:00Z","moves":[%s]}`,
		judged.LogID, judged.LastSeq-1, judged.LastEventHash, strings.Join(moves, ",")), 0o600))
	code, _, errs = b.command(t, "log", "new", "--accept-loss", "r")
	require.Equal(t, exitPartial, code, errs)
	require.Contains(t, errs, "judged now it is")
}

// A log that another one follows is held against it, whoever asks and however.
func TestARetiredLogThatWasCutIsFoundByTheAPIToo(t *testing.T) {
	t.Parallel()
	d := newNotes(t)
	startGate(t, d, undisturbed...).end(t)
	code, out, errs := d.command(t, "log", "new", "--accept-loss", "r", "--json")
	require.Equal(t, exitOK, code, errs)
	var done retiredResult
	unmarshal(t, []byte(out), &done)
	old := filepath.Join(done.Folder, "audit.wal")
	g := startGate(t, d, append(undisturbed[:len(undisturbed):len(undisturbed)], "GATE_AUDIT_VERIFY_DIRS="+done.Folder)...)
	verify := func() string {
		r := g.post(t, "/audit/verify", fmt.Sprintf(`{"audit_file":%q}`, old))
		require.Equal(t, http.StatusOK, r.status, "%s", r.body)
		return r.text(t, "status")
	}
	require.Equal(t, "ok", verify())
	log, err := os.ReadFile(old)
	require.NoError(t, err)
	first, size, err := frame.ParseFrame(log[frame.HeaderSize:])
	require.NoError(t, err)
	require.EqualValues(t, 1, first.Seq)
	require.NoError(t, os.WriteFile(old, log[:frame.HeaderSize+size], 0o600))
	require.NoError(t, os.Remove(old+frame.HeadSuffix))
	require.Equal(t, "partial", verify(), "of what nobody has signed, either of the two may have been changed")
	bundle := filepath.Join(t.TempDir(), "bundle.json")
	var said bytes.Buffer
	require.NoError(t, os.RemoveAll(old+frame.CheckpointsSuffix)) // one of them accuses
	require.Equal(t, exitPartial, Run(t.Context(), []string{"evidence", "export", bundle}, streams{strings.NewReader(""), &said, &said}, d.environ("GATE_AUDIT_WAL_PATH="+old)), said.String())
	require.Contains(t, said.String(), "the log that follows it")
	require.NoFileExists(t, bundle)
	require.NoError(t, os.WriteFile(old, log, 0o600))
	require.Zero(t, Run(t.Context(), []string{"evidence", "export", bundle}, streams{strings.NewReader(""), &said, &said}, d.environ("GATE_AUDIT_WAL_PATH="+old)), said.String())
	g.end(t)
}

// What a killed command left of the store that it counted in is removed by the next such
// command and by the next start; one that is in use, and what others named alike, is not.
func TestTheStoreThatAKilledCommandCountedInIsRemoved(t *testing.T) {
	t.Parallel()
	d := newNotes(t)
	startGate(t, d).end(t)
	left := func() (names []string) {
		names, err := filepath.Glob(d.file("approvals.db.counted*"))
		require.NoError(t, err)
		return names
	}
	used, mine := d.file("approvals.db.counted-17"), d.file("approvals.db.counted-in-may")
	for _, dir := range []string{used, mine} {
		require.NoError(t, os.Mkdir(dir, 0o700))
	}
	held, err := holdFolder(used)
	require.NoError(t, err)
	defer func() { require.NoError(t, held.Close()) }()
	kill := func() {
		t.Helper()
		store, err := projections.Open(projections.Options{Dir: d.file("approvals.db.counted-4242")})
		require.NoError(t, err)
		require.NoError(t, store.Close())
		require.Len(t, left(), 3)
	}

	kill()
	code, _, errs := d.command(t, "log", "new", "--accept-loss", "a test")
	require.Zero(t, code, errs)
	require.Equal(t, []string{used, mine}, left())
	kill()
	startGate(t, d).end(t)
	require.Equal(t, []string{used, mine}, left())
}
