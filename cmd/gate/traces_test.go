package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
	"writegate/eventlog/frame"
	"writegate/eventlog/frame/frametest"
	"writegate/sqlgate/pgwire"
)

// eventsOf are the events of a type, the newest first, as GET /audit shows them.
func (g *testGate) eventsOf(t testing.TB, kind event.Type) []map[string]any {
	t.Helper()
	r := g.get(t, "/audit?event_type="+string(kind))
	require.Equal(t, http.StatusOK, r.status, "%s", r.body)
	var page struct {
		Items []map[string]any `json:"items"`
	}
	unmarshal(t, r.body, &page)
	return page.Items
}

// Every bundle that leaves is in the log before it does: which events, why, for
// whom, and the digest of its bytes.
func TestAnExportOfEvidenceIsAnEvent(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	g.busy(t)
	anonymous := g.do(t, http.MethodPost, "/audit/evidence", []byte(`{"start_seq":2,"end_seq":5,"reason":"yearly audit"}`))
	require.Equal(t, http.StatusOK, anonymous.status, "%s", anonymous.body)
	operator := g.do(t, http.MethodPost, "/audit/evidence", []byte(`{"start_seq":2,"end_seq":2}`), "Authorization: Bearer "+operatorTestToken)
	require.Equal(t, http.StatusOK, operator.status, "%s", operator.body)

	events := g.eventsOf(t, event.TypeEvidenceExported)
	require.Len(t, events, 2)
	for i, want := range []struct {
		bundle      reply
		actor       string
		first, last float64
		reason      any
		bytes       int // an operator's bundle may hold what is withheld, whose length nobody else is told
	}{{operator, "operator", 2, 2, nil, 1 << 20}, {anonymous, "127.0.0.1", 2, 5, "yearly audit", len(anonymous.body)}} {
		digest := sha256.Sum256(want.bundle.body)
		require.Equal(t, []any{want.actor, "export_evidence", "sha256:" + hex.EncodeToString(digest[:])}, pick(events[i], "actor", "operation", "evidence_bundle"))
		payload := events[i]["payload"].(map[string]any)
		require.Equal(t, []any{want.first, want.last, want.reason, float64(want.bytes), "127.0.0.1"}, pick(payload, "first_seq", "last_seq", "reason", "bytes", "client"))
		require.True(t, strings.HasPrefix(payload["signed_by"].(string), "ed25519:"))
		require.NotEmpty(t, want.bundle.header.Get("X-Gate-Receipt"), "the trace has its receipt")
	}
}

// A bundle whose trace cannot be written does not leave.
func TestNoBundleLeavesWithoutItsTrace(t *testing.T) {
	t.Parallel()
	d := newErrorDir(t)
	var full atomic.Bool
	fs := frametest.Inject(frame.OS{}, func(op frametest.Op) error {
		if full.Load() && op.Kind == frametest.Datasync && strings.HasSuffix(op.Name, "audit.wal") {
			return syscall.EIO
		}
		return nil
	})
	g := startGateWith(t, d, func(a *app) { a.logFS = fs })
	require.Equal(t, http.StatusOK, g.query(t, ask("SELECT 1")).status)
	full.Store(true)
	r := g.post(t, "/audit/evidence", `{"start_seq":1,"end_seq":2}`)
	requireFault(t, r, http.StatusServiceUnavailable, "audit_unavailable")
	require.NotContains(t, string(r.body), "gate.evidence_bundle.v1")
	require.Equal(t, exitFatal, <-g.ended)
	g.stop()
	g.stop = nil
}

// Exports count against the client's rate, as statements do: each one is an
// event, and a client must not fill the log with them.
func TestExportsCountAgainstTheRate(t *testing.T) {
	t.Parallel()
	g := startShop(t, "GATE_RATE_LIMIT_REQUESTS_PER_MINUTE=1", "GATE_RATE_LIMIT_BURST=3")
	for range 3 {
		require.Equal(t, http.StatusOK, g.post(t, "/audit/evidence", `{"start_seq":1,"end_seq":1}`).status)
	}
	r := g.post(t, "/audit/evidence", `{"start_seq":1,"end_seq":1}`)
	requireFault(t, r, http.StatusTooManyRequests, "rate_limit_exceeded")
	require.NotEmpty(t, r.header.Get("Retry-After"))
	require.Len(t, g.eventsOf(t, event.TypeEvidenceExported), 3)
}

// fallback_reason says where no rule made the decision.
func TestADecisionThatFellBackSaysWhy(t *testing.T) {
	t.Parallel()
	of := func(g *testGate) any { return g.eventsOf(t, event.TypeDecisionRecorded)[0]["fallback_reason"] }
	g := startShop(t)
	for sql, want := range map[string]any{
		"INSERT INTO other_notes VALUES (1)":             "default_deny",
		"DELETE FROM orders":                             nil, // the floor's own rule
		"SELECT 1":                                       nil,
		"UPDATE orders SET status = 'paid' WHERE id = 1": nil,
		"DELETE FROM order_items WHERE order_id = 2":     nil,
	} {
		g.query(t, ask(sql))
		require.Equal(t, want, of(g), sql)
	}
	careful := startShop(t, "GATE_MODE=approval_first")
	careful.query(t, ask("UPDATE orders SET status = 'paid' WHERE id = 1"))
	require.Equal(t, "approval_first_mode", of(careful))
	careful.query(t, ask("SELECT 1"))
	require.Nil(t, of(careful))
	careful.end(t)
	code, out, errs := careful.command(t, "verify", "--decisions")
	require.Zero(t, code, "recorded decisions are recomputed as before: %s%s", out, errs)
}

// A login that the wire listener refused is an event: at once the first time,
// then counted. It tells nobody which users there are.
func TestARefusedLoginOnTheWireIsAnEvent(t *testing.T) {
	t.Parallel()
	d := newGateDir(t, nil)
	line, err := pgwire.HashPassword("ana", "the right one")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(d.file("users"), []byte(line+"\n"), 0o600))
	g := startGate(t, d, append(wireSettings, "GATE_PGWIRE_USERS_FILE="+d.file("users"))...)
	login := func(user, password string, parameters ...string) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), startPatience)
		defer cancel()
		c, err := pgconn.Connect(ctx, strings.Replace(g.wireURL(t, parameters...), "ana@", user+":"+password+"@", 1))
		if err == nil {
			require.NoError(t, c.Close(ctx))
			return ""
		}
		return err.Error()
	}
	const guess = "a-guess-of-mine"
	known, unknown := login("ana", guess), login("eve", guess)
	require.Contains(t, known, "28P01")
	events := g.eventsOf(t, event.TypeWireLoginFailed)
	require.Len(t, events, 1, "the second is counted")
	require.Equal(t, map[string]any{"cause": "password", "client": "127.0.0.1", "count": 1.0, "sqlstate": "28P01", "user": "ana"}, events[0]["payload"])
	answer := func(said, user string) string { // the two differ in the name that the client gave, and in nothing else
		_, after, _ := strings.Cut(said, "FATAL")
		return strings.ReplaceAll(after, strconv.Quote(user), "NAME")
	}
	require.NotEmpty(t, answer(known, "ana"))
	require.Equal(t, answer(known, "ana"), answer(unknown, "eve"))
	require.Empty(t, login("ana", "the%20right%20one"), "whoever knows the password gets in, and is no incident")
	require.Contains(t, login("ana", guess, "search_path=elsewhere"), "28P01")
	g.end(t)
	var counted int
	for _, e := range g.events(t) {
		if e.Type == event.TypeWireLoginFailed {
			var p event.WireLoginFailed
			require.NoError(t, e.Parse(&p))
			counted += p.Count
		}
	}
	require.Equal(t, 3, counted, "none is forgotten")
	log, err := os.ReadFile(g.file("audit.log"))
	require.NoError(t, err)
	require.NotContains(t, string(log), guess)
	require.NotContains(t, g.output.String(), guess)
}

// What else keeps a client out leaves its trace too, under its own cause.
func TestEveryWayToBeRefusedOnTheWireHasItsCause(t *testing.T) {
	t.Parallel()
	for cause, connect := range map[string]func(t *testing.T) *testGate{
		pgwire.LoginCertificate: func(t *testing.T) *testGate {
			g := startTLSGate(t, time.Hour, append(wireSettings, "GATE_PGWIRE_AUTH=cert")...)
			_, err := g.wireAs(t, "eve", "ana")
			require.ErrorContains(t, err, "28000")
			return g.testGate
		},
		pgwire.LoginCleartext: func(t *testing.T) *testGate {
			g := startTLSGate(t, time.Hour, append(wireSettings, "GATE_PGWIRE_AUTH=cert")...)
			_, err := pgconn.Connect(context.Background(), g.wireURL(t))
			require.ErrorContains(t, err, "28000")
			return g.testGate
		},
		pgwire.LoginHandshake: func(t *testing.T) *testGate {
			g := startTLSGate(t, time.Hour, append(wireSettings, "GATE_PGWIRE_AUTH=cert")...)
			g.clients = g.servers // an authority that signs no clients here
			_, err := g.wireAs(t, "ana", "ana")
			require.Error(t, err)
			return g.testGate
		},
		pgwire.LoginStartup: func(t *testing.T) *testGate {
			g := startWire(t)
			_, err := pgconn.Connect(context.Background(), strings.Replace(g.wireURL(t), g.databaseName(t)+"?", "elsewhere?", 1))
			require.ErrorContains(t, err, "3D000")
			return g
		},
	} {
		t.Run(cause, func(t *testing.T) {
			g := connect(t)
			g.end(t) // what is noticed beside the client's own error is written by then
			for _, e := range g.events(t) {
				if e.Type == event.TypeWireLoginFailed {
					var p event.WireLoginFailed
					require.NoError(t, e.Parse(&p))
					require.Equal(t, cause, p.Cause)
					require.Equal(t, "127.0.0.1", p.Client)
					return
				}
			}
			t.Fatal("it left no trace")
		})
	}
}
