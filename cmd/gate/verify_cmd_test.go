package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/eventlog"
	"writegate/eventlog/event"
	"writegate/eventlog/frame"
)

// decidedOtherwise is the verdict and the differences of one run of `gate
// verify --decisions --json`.
func decidedOtherwise(t *testing.T, d gateDir, wantCode int, args ...string) (verdict map[string]any, found []map[string]any) {
	t.Helper()
	code, out, errs := d.command(t, append([]string{"verify", "--decisions", "--json"}, args...)...)
	require.Equal(t, wantCode, code, "%s\n%s", out, errs)
	for line := range strings.Lines(out) {
		var m map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &m), "%s", line)
		found = append(found, m)
	}
	require.NotEmpty(t, found)
	return found[len(found)-1], found[:len(found)-1]
}

// mixedRun leaves decisions of every kind behind, under two versions and with a
// way back.
func mixedRun(t *testing.T, g *testGate) (decisions int) {
	t.Helper()
	send := func(s statement) reply { decisions++; return g.query(t, s) }
	statements := []string{
		"SELECT id FROM orders WHERE id = 1", "UPDATE orders SET status = 'paid' WHERE id = 1", "DELETE FROM orders",
		"SELECT pg_read_file('x')", "DROP TABLE orders", "INSERT INTO orders VALUES (900, 1, 'new') ON CONFLICT DO NOTHING",
		"WITH d AS (DELETE FROM orders WHERE id = 2 RETURNING id) SELECT * FROM d", "DO $$ BEGIN END $$", "SELECT * FROM customers FOR UPDATE",
	}
	all := func() {
		for _, sql := range statements {
			send(ask(sql))
		}
	}
	all()
	waiting := send(ask("DELETE FROM orders WHERE id = 3"))
	id := waiting.text(t, "approval_id")
	require.NotEmpty(t, id, "%s", waiting.body)
	require.Equal(t, http.StatusOK, g.resolve(t, id, "approve").status)
	require.Equal(t, http.StatusOK, send(ask("DELETE FROM orders WHERE id = 3").with("approval_id", id)).status)
	hash := g.propose(t, sampleVersion(t, "1.1.0", "reason_code: write_without_filter", "reason_code: filter_missing"))
	require.Equal(t, http.StatusOK, g.operate(t, "/policy/activate", map[string]any{"expected_hash": hash}).status)
	all()
	require.Equal(t, http.StatusOK, g.operate(t, "/policy/rollback", map[string]any{}).status)
	all()
	return decisions
}

func TestEveryDecisionOfAMixedRunIsRecomputedFromTheLogAlone(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	n := mixedRun(t, g)
	verdict, found := decidedOtherwise(t, g.gateDir, exitOK)
	require.Empty(t, found)
	require.EqualValues(t, n, verdict["decisions"], "beside the running gate")
	require.Equal(t, true, verdict["all_equal"])
	require.Equal(t, 200, g.query(t, ask("SELECT 1")).status, "which goes on")

	g.end(t)
	require.NoError(t, os.RemoveAll(g.file("policies")))
	require.NoError(t, os.RemoveAll(g.file("approvals.db")))
	before := contents(t, g.path)
	verdict, found = decidedOtherwise(t, g.gateDir, exitOK)
	require.Empty(t, found)
	require.EqualValues(t, n+1, verdict["decisions"], "with nothing but the log")
	require.Equal(t, before, contents(t, g.path), "nothing is written")

	code, out, errs := g.command(t, "verify", "--decisions")
	require.Zero(t, code, errs)
	require.Contains(t, out, fmt.Sprintf("%d decision(s) recomputed, 0 differ, 0 could not be checked", n+1))
}

// rewritten is a new log with the events of d in which change was made: its
// chain is whole, and what it says is not what happened.
func rewritten(t *testing.T, d gateDir, change func(e *event.Envelope)) gateDir {
	t.Helper()
	forged := gateDir{path: t.TempDir(), database: d.database}
	log, _, err := eventlog.Open(t.Context(), eventlog.Options{Path: forged.file("audit.wal")})
	require.NoError(t, err)
	for _, e := range d.events(t) {
		change(&e)
		_, err := log.Append(t.Context(), eventlog.Group{Drafts: []event.Draft{e.Draft}})
		require.NoError(t, err)
	}
	require.NoError(t, log.Close(context.WithoutCancel(t.Context())))
	return forged
}

func TestADecisionThatWasRecordedOtherwiseIsNamed(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	require.Equal(t, 200, g.query(t, ask("SELECT 1")).status)
	require.Equal(t, 403, g.query(t, ask("DELETE FROM orders")).status)
	g.end(t)
	var at uint64
	allowed := func(e *event.Envelope) {
		if e.Type == event.TypeDecisionRecorded && e.Context.Decision == "BLOCK" {
			e.Context.Decision, at = "ALLOW", e.Seq
		}
	}
	forged := rewritten(t, g.gateDir, allowed)
	verdict, found := decidedOtherwise(t, forged, exitFailed)
	require.Len(t, found, 1)
	require.EqualValues(t, at, found[0]["seq"])
	require.Equal(t, "difference", found[0]["kind"])
	require.Equal(t, false, verdict["all_equal"])
	code, out, _ := forged.command(t, "verify", "--decisions")
	require.Equal(t, exitFailed, code)
	require.Contains(t, out, fmt.Sprintf("event %d: difference, shop-gate@1.0.0\n    decision: recorded ALLOW, recomputed BLOCK", at))

	_, found = decidedOtherwise(t, forged, exitOK, "--to-seq", fmt.Sprint(at-1))
	require.Empty(t, found, "outside the range")

	drifted := rewritten(t, g.gateDir, func(e *event.Envelope) {
		allowed(e)
		if e.Type == event.TypeStartup {
			var p event.Startup
			require.NoError(t, e.Parse(&p))
			p.Engine["classifier"] = "0.9"
			e.Payload = p.Fields()
		}
	})
	verdict, found = decidedOtherwise(t, drifted, exitFailed)
	require.Equal(t, "engine_drift", found[0]["kind"])
	require.Equal(t, true, verdict["engine_drift"])

	without := rewritten(t, g.gateDir, func(e *event.Envelope) {
		if e.Type == event.TypePolicyLoaded {
			var p event.PolicyLoaded
			require.NoError(t, e.Parse(&p))
			p.Document = nil
			e.Payload = p.Fields()
		}
	})
	verdict, found = decidedOtherwise(t, without, exitPartial)
	require.Len(t, found, 2)
	require.Equal(t, "unchecked", found[0]["kind"])
	require.Contains(t, found[0]["problem"], "does not hold the bytes")
	require.EqualValues(t, 0, verdict["decisions"])
}

func TestDecisionsOfADamagedOrShorterLogAreNotVouchedFor(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	require.Equal(t, 200, g.query(t, ask("SELECT 1")).status)
	d, last := crashCopy(t, g)
	verdict, _ := decidedOtherwise(t, d, exitPartial)
	require.Equal(t, "partial", verdict["chain"], "a torn tail")
	require.EqualValues(t, 1, verdict["decisions"])
	g.end(t)
	_, found := decidedOtherwise(t, g.gateDir, exitPartial, "--to-seq", fmt.Sprint(last+1000))
	require.Empty(t, found, "the log ends before")

	log, err := os.ReadFile(d.file("audit.wal"))
	require.NoError(t, err)
	second := bytes.Index(log[frame.HeaderSize+1:], log[frame.HeaderSize:frame.HeaderSize+4]) + frame.HeaderSize + 1
	log[second+200] ^= 1
	require.NoError(t, os.WriteFile(d.file("audit.wal"), log, 0o600))
	verdict, _ = decidedOtherwise(t, d, exitFailed)
	require.Equal(t, "corruption_detected", verdict["chain"])
	require.Equal(t, false, verdict["all_equal"])
}

func TestVerifySaysWhatItCanDo(t *testing.T) {
	d := gateDir{path: t.TempDir()}
	code, _, errs := d.command(t, "verify")
	require.Equal(t, exitUsage, code)
	require.Contains(t, errs, "gate verify --decisions")
	code, _, errs = d.command(t, "verify", "--decisions", "--from-seq", "9", "--to-seq", "3")
	require.Equal(t, exitUsage, code)
	require.Contains(t, errs, "--from-seq 9 is after --to-seq 3")
	code, _, errs = d.command(t, "verify", "--decisions")
	require.Equal(t, exitPartial, code, errs)
}
