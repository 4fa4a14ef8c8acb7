package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"writegate/eventlog"
	"writegate/eventlog/backup"
	"writegate/eventlog/event"
	"writegate/eventlog/frame"
	"writegate/projections"
	"writegate/projections/projectionstest"
)

// smallSegments are of the least size there is, so that a test has several.
const smallSegments = "GATE_AUDIT_SEGMENT_BYTES=1048576"

// writers is how many clients there are while a backup is made; RESTORE_WRITERS
// asks for more than the ordinary run has.
func writers(t *testing.T) int {
	t.Helper()
	text := os.Getenv("RESTORE_WRITERS")
	if text == "" {
		return 4
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err, "RESTORE_WRITERS")
	return n
}

// load sends statements until stop is closed: reads, writes, and held ones that
// are approved, rejected or left, with texts that fill segments.
func (g *testGate) load(t *testing.T, stop <-chan struct{}) *sync.WaitGroup {
	var clients sync.WaitGroup
	for c := range writers(t) {
		clients.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				note := fmt.Sprintf("%d.%d", c, i)
				g.query(t, ask("SELECT 1"))
				g.query(t, insertOpen(note))
				held := insertHeld(note + strings.Repeat(" and more", 8000))
				id := g.hold(t, held)
				switch i % 3 {
				case 0:
					g.resolve(t, id, "approve")
					g.query(t, held.with("approval_id", id))
				case 1:
					g.resolve(t, id, "reject")
				}
			}
		})
	}
	return &clients
}

// sealed counts the sealed segments of the folder's log.
func (d gateDir) sealed(t testing.TB) int {
	t.Helper()
	names, err := filepath.Glob(d.file("audit.wal") + frame.SegmentsSuffix + "/*.wal")
	require.NoError(t, err)
	return len(names)
}

// destroy removes everything that a backup holds.
func (d gateDir) destroy(t testing.TB) {
	t.Helper()
	for _, name := range []string{"audit.*", "approvals.db*", "policies", "audit_index*"} {
		found, err := filepath.Glob(d.file(name))
		require.NoError(t, err)
		for _, path := range found {
			require.NoError(t, os.RemoveAll(path))
		}
	}
}

// TestABackupUnderLoadBringsBackTheLogAndAllItMeans: the gate goes on, loses all
// its files, and what is restored is the log up to the backup's head and exactly
// the projections of that; a new log goes on from there.
func TestABackupUnderLoadBringsBackTheLogAndAllItMeans(t *testing.T) {
	t.Parallel()
	d := newNotes(t)
	g := startGate(t, d, append([]string{smallSegments}, patience...)...)
	stop := make(chan struct{})
	clients := g.load(t, stop)
	require.Eventually(t, func() bool { return d.sealed(t) >= 2 }, startPatience, tick)
	copied := filepath.Join(t.TempDir(), "backup")
	code, out, errs := d.command(t, "log", "backup", copied, "--json")
	require.Zero(t, code, errs)
	var m backup.Manifest
	require.NoError(t, json.Unmarshal([]byte(out), &m))
	require.True(t, m.Running)
	sealedThen := d.sealed(t)
	require.Eventually(t, func() bool { return d.sealed(t) > sealedThen }, startPatience, tick, "the gate goes on")
	close(stop)
	clients.Wait()
	g.end(t)
	want, events := d.foldedUpTo(t, m.LastSeq)

	d.destroy(t)
	code, out, errs = d.command(t, "log", "restore", copied)
	require.Zero(t, code, errs)
	require.Contains(t, out, fmt.Sprintf("up to event %d", m.LastSeq))
	old := gateDir{path: t.TempDir()}
	require.NoError(t, os.CopyFS(old.path, os.DirFS(d.restored(t))))
	got, restored := old.foldedUpTo(t, 1<<62)
	require.Equal(t, want, got)
	require.Equal(t, events, restored)

	d.kept = newReceiptBook() // receipts of what came after the backup are of a history that was given up
	g = startGate(t, d, append([]string{smallSegments}, patience...)...)
	require.Equal(t, http.StatusOK, g.query(t, ask("SELECT 2")).status)
	g.end(t)
}

const tick = 20 * time.Millisecond

// foldedUpTo folds the log on disk up to an event and gives the digest of the
// projections and all events as JSON.
func (d gateDir) foldedUpTo(t testing.TB, last uint64) (digest [32]byte, events []string) {
	t.Helper()
	log := d.openLog(t)
	defer func() { require.NoError(t, log.Close(context.Background())) }()
	store, err := projections.Open(projections.Options{Dir: "folded", FS: vfs.NewMem()})
	require.NoError(t, err)
	require.NoError(t, store.Connect(t.Context(), beginning{log, last}))
	defer func() { require.NoError(t, store.Close()) }()
	for e, err := range (beginning{log, last}).From(t.Context(), 1) {
		require.NoError(t, err)
		events = append(events, string(event.AppendJSON(nil, &e)))
	}
	return projectionstest.DigestOf(t, store), events
}

// beginning is a log that ends earlier.
type beginning struct {
	projections.Source
	last uint64
}

func (b beginning) Head() eventlog.Head { return eventlog.Head{Seq: min(b.last, b.Source.Head().Seq)} }

func (b beginning) From(ctx context.Context, seq uint64) iter.Seq2[event.Envelope, error] {
	return func(yield func(event.Envelope, error) bool) {
		for e, err := range b.Source.From(ctx, seq) {
			if err == nil && e.Seq > b.last || !yield(e, err) {
				return
			}
		}
	}
}

// auditUpTo reads all events up to one from the API, page by page.
func (g *testGate) auditUpTo(t testing.TB, last uint64) (events []string) {
	t.Helper()
	path := fmt.Sprintf("/audit?order=asc&limit=200&to_seq=%d", last)
	for cursor := ""; ; {
		r := g.get(t, path+cursor)
		require.Equal(t, http.StatusOK, r.status, "%s", r.body)
		var page struct {
			Items []json.RawMessage `json:"items"`
			Next  string            `json:"next_cursor"`
		}
		unmarshal(t, r.body, &page)
		for _, item := range page.Items {
			events = append(events, string(item))
		}
		if page.Next == "" {
			return events
		}
		cursor = "&cursor=" + page.Next
	}
}

// bundleUpTo is the evidence of the last thousand events before one, that one
// included, as a digest. What is of the moment at which it was asked for is left
// out: when, the newest checkpoint then, the proofs against that, and the signature.
func (g *testGate) bundleUpTo(t testing.TB, last uint64) string {
	t.Helper()
	r := g.post(t, "/audit/evidence", fmt.Sprintf(`{"start_seq":%d,"end_seq":%d,"reason":"a drill"}`, max(last, 1000)-999, last))
	require.Equal(t, http.StatusOK, r.status, "%.300s", r.body)
	var bundle map[string]json.RawMessage
	unmarshal(t, r.body, &bundle)
	for _, key := range []string{"created_at", "checkpoint", "inclusion_proofs", "signature"} {
		delete(bundle, key)
	}
	b, err := json.Marshal(bundle)
	require.NoError(t, err)
	return fmt.Sprintf("%x", sha256.Sum256(b))
}

// TestEverythingAnswersAsBeforeAfterARestore: a gate that was stopped, backed up,
// moved away and restored whole gives the same bytes for every approval, execution and
// policy version, and for every event.
func TestEverythingAnswersAsBeforeAfterARestore(t *testing.T) {
	t.Parallel()
	d := newNotes(t)
	settings := append([]string{smallSegments, "GATE_APPROVAL_DEFAULT_TTL_SECONDS=86400"}, patience...)
	g := startGate(t, d, settings...)
	stop := make(chan struct{})
	clients := g.load(t, stop)
	require.Eventually(t, func() bool { return d.sealed(t) >= 1 }, startPatience, tick)
	close(stop)
	clients.Wait()
	last := uint64(len(g.auditUpTo(t, 1<<62)))
	before := g.answers(t, last)
	g.end(t)

	copied := filepath.Join(t.TempDir(), "backup")
	code, out, errs := d.command(t, "log", "backup", copied)
	require.Zero(t, code, errs)
	require.Contains(t, out, "The projections are not in it")
	code, _, errs = d.command(t, "log", "restore", copied)
	require.Equal(t, exitPartial, code, "nothing is overwritten")
	require.Contains(t, errs, "not empty")
	code, _, errs = d.command(t, "log", "restore", copied, "--old-log", d.moveAway(t))
	require.Zero(t, code, errs)

	g = startGate(t, d, settings...)
	require.Equal(t, before, g.answers(t, last))
	require.NotContains(t, g.output.String(), "put aside", "the restored store is used as it is")
	g.end(t)
}

// answers are the bodies of all that the API tells about what happened.
func (g *testGate) answers(t testing.TB, last uint64) map[string]string {
	t.Helper()
	all := map[string]string{"/audit": strings.Join(g.auditUpTo(t, last), "\n"), "/audit/evidence": g.bundleUpTo(t, last)}
	for _, path := range []string{"/approvals", "/executions", "/policy/versions"} {
		for cursor := ""; ; {
			r := g.get(t, path+"?limit=200"+cursor)
			require.Equal(t, http.StatusOK, r.status, "%s", r.body)
			all[path+cursor] = string(r.body)
			var page struct {
				Next string `json:"next_cursor"`
			}
			unmarshal(t, r.body, &page)
			if page.Next == "" {
				break
			}
			cursor = "&cursor=" + page.Next
		}
	}
	return all
}

func TestABackupOfADamagedLogIsRefused(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	require.Equal(t, 200, g.query(t, ask("SELECT 1")).status)
	d, _ := crashCopy(t, g)
	log := spoilFirstEvent(t, d)
	code, _, errs := d.command(t, "log", "backup", d.file("copy"))
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "does not verify")
	require.NoDirExists(t, d.file("copy"))
	code, _, errs = d.command(t, "log", "restore", d.file("copy"))
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "not a whole backup")
	require.True(t, bytes.Equal(log, mustRead(t, d.file("audit.wal"))))
}

// spoilFirstEvent changes one bit of the log and gives its bytes.
func spoilFirstEvent(t testing.TB, d gateDir) []byte {
	t.Helper()
	log := mustRead(t, d.file("audit.wal"))
	log[frame.HeaderSize+60] ^= 1
	require.NoError(t, os.WriteFile(d.file("audit.wal"), log, 0o600))
	return log
}

func mustRead(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	return b
}

// A backup goes to none of the gate's own places: the next start would take it for
// policies, segments or checkpoints, and the next backup would copy it along.
func TestABackupIsNotInThePlacesThatItCopies(t *testing.T) {
	t.Parallel()
	d := newGateDir(t, nil)
	startGate(t, d).end(t)
	for _, place := range []string{"policies/bk", "policies", "audit.wal.segments", "audit.wal.segments/bk", "audit.wal.quarantine", "audit.wal.retired/x",
		"audit.wal.checkpoints/bk", "approvals.db/bk", "audit.wal", "audit.log"} {
		for _, command := range []string{"backup", "restore"} {
			code, _, errs := d.command(t, "log", command, d.file(place))
			require.Equal(t, exitPartial, code, "%s %s: %s", command, place, errs)
			require.Contains(t, errs, "a place of the gate's own", place)
		}
	}
	code, _, errs := d.command(t, "evidence", "export", d.file("policies/bundle.json"))
	require.Equal(t, exitPartial, code, errs)
	require.Contains(t, errs, "a place of the gate's own")
	require.NoError(t, os.Symlink(d.file("policies"), d.file("linked")))
	code, _, errs = d.command(t, "log", "backup", d.file("linked/bk"))
	require.Equal(t, exitPartial, code, errs)
	require.NoDirExists(t, d.file("policies/bk"))
	code, _, errs = d.command(t, "log", "backup", d.file("beside"))
	require.Equal(t, exitOK, code, errs)
	startGate(t, d).end(t)
}
