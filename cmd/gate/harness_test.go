package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/require"

	"writegate/commands/checkpoints"
	"writegate/eventlog"
	"writegate/eventlog/checkpoint"
	"writegate/eventlog/event"
	"writegate/eventlog/frame"
	"writegate/fixtures/postgres"
	"writegate/projections"
	"writegate/projections/projectionstest"
	"writegate/sqlgate"
	"writegate/sqlgate/policy"
	"writegate/sqlgate/policyfolder"
	"writegate/sqlgate/replay"
)

// operatorTestToken opens the operator endpoints of every gate of the tests.
const operatorTestToken = "an-operator-token-for-tests-only"

// startPatience bounds how long a test waits for a gate to be up: a bound for
// something that hangs, not a measurement.
const (
	startPatience = 60 * time.Second
	pollEvery     = 50 * time.Millisecond
)

// A gateDir is the folder of one gate, which outlives its runs.
type gateDir struct {
	path     string
	database string // URL of the database behind it
	signing  signingPair
	kept     *receiptBook // what its clients keep; nil where nobody does
}

// newGateDir makes a folder with the policy given (the sample policy when it is
// nil) and an empty database of the test's own.
func newGateDir(t testing.TB, document []byte) gateDir {
	t.Helper()
	d := gateDir{path: t.TempDir(), database: postgres.ForTest(t), signing: newSigningPair(t)}
	d.kept = newReceiptBook()
	if document == nil {
		document = policy.Sample()
	}
	require.NoError(t, policyfolder.Create(filepath.Join(d.path, "policies"), policyfolder.DefaultManifest, document))
	return d
}

func (d gateDir) file(name string) string { return filepath.Join(d.path, name) }

// patience are settings for a slow machine, on which clients queue for
// connections and statements take their time, which is no fault. A test about
// one of these limits sets it.
var patience = []string{
	"GATE_DB_ACQUIRE_TIMEOUT_MS=60000", "GATE_DB_CONNECT_TIMEOUT_MS=60000", "GATE_DB_QUERY_TIMEOUT_MS=60000", "GATE_DB_LOCK_TIMEOUT_MS=60000",
	"GATE_DB_IDLE_IN_TX_TIMEOUT_MS=60000",
}

// environ is the environment of a gate in this folder; extra settings win. It
// signs its evidence unless they say something about that.
func (d gateDir) environ(extra ...string) []string {
	environ := append([]string(nil), extra...)
	if _, said := lookUp(environ, "GATE_EVIDENCE_SIGNING_ENABLED"); !said && d.signing.private != "" {
		environ = append(environ, d.signing.environ()...)
	}
	for _, pair := range append([]string{
		"GATE_HTTP_LISTEN_ADDR=127.0.0.1:0",
		"GATE_DATABASE_URL=" + d.database,
		"GATE_TLS_UPSTREAM_MODE=disable",
		"GATE_OPERATOR_TOKEN=" + operatorTestToken,
		"GATE_POLICY_DIR=" + d.file("policies"),
		"GATE_AUDIT_WAL_PATH=" + d.file("audit.wal"),
		"GATE_AUDIT_LOG_PATH=" + d.file("audit.log"),
		"GATE_APPROVAL_DB_PATH=" + d.file("approvals.db"),
		"GATE_RATE_LIMIT_REQUESTS_PER_MINUTE=10000000",
		"GATE_RATE_LIMIT_BURST=10000000",
		"GATE_AUDIT_PREALLOCATE_BYTES=1048576",      // of the default of 16 MiB most gates of the tests use a hundredth, and it is written and read back by each
		"GATE_AUDIT_CHECKPOINT_EVERY_SECONDS=86400", // what the clock writes would stand between the events of a slow test
	}, patience...) {
		environ = withDefault(environ, pair)
	}
	return environ
}

// execute runs SQL at the database itself, beside the gate.
func (d gateDir) execute(t testing.TB, sql string) {
	t.Helper()
	postgres.ExecuteURL(t, d.database, sql)
}

// value asks the database itself for one value, as text.
func (d gateDir) value(t testing.TB, sql string) string {
	t.Helper()
	return postgres.QueryURL(t, d.database, sql)
}

// A testGate is a running gate in this process.
type testGate struct {
	gateDir
	base   string       // http://127.0.0.1:port
	wire   string       // host:port of the wire listener; "" where it is off
	client *http.Client // nil: the default one
	stop   context.CancelFunc
	ended  chan int
	output *lockedBuffer
	signs  bool // every answer that wrote events has a receipt
	// accused: its log is damaged, so what it leaves is not held against anything.
	accused bool
}

// lockedBuffer takes what the gate prints while the test reads it.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// startGate runs `gate serve` in this process until the test ends.
func startGate(t testing.TB, d gateDir, extra ...string) *testGate {
	t.Helper()
	return startGateWith(t, d, func(*app) {}, extra...)
}

// startGateWith is startGate with the hooks that set puts in.
func startGateWith(t testing.TB, d gateDir, set func(*app), extra ...string) *testGate {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	g := &testGate{gateDir: d, stop: cancel, ended: make(chan int, 1), output: &lockedBuffer{}}
	ready := make(chan string, 1)
	a := &app{streams: streams{strings.NewReader(""), g.output, g.output}, environ: d.environ(extra...), ready: func(addr string) { ready <- addr }, wireReady: func(addr string) { g.wire = addr }, courtesy: startPatience / 2}
	set(a)
	g.signs = signs(a.environ)
	d.kept.trust(a.environ)
	go func() { g.ended <- a.run(ctx, []string{"serve"}) }()
	select {
	case addr := <-ready:
		g.base = "http://" + addr
	case code := <-g.ended:
		t.Fatalf("the gate ended with %d:\n%s", code, g.output)
	case <-time.After(startPatience):
		t.Fatalf("the gate did not start:\n%s", g.output)
	}
	t.Cleanup(func() { g.end(t) })
	return g
}

// end stops the gate cleanly and then holds what it left behind against the
// log: the chain verifies, a rebuild gives what the live projections hold, and
// every decision comes out the same when it is made again.
func (g *testGate) end(t testing.TB) {
	t.Helper()
	if g.stop == nil {
		return
	}
	g.stop()
	g.stop = nil
	select {
	case code := <-g.ended:
		require.Zero(t, code, "the gate ended badly:\n%s", g.output)
	case <-time.After(startPatience):
		t.Fatalf("the gate did not end:\n%s", g.output)
	}
	if !g.accused {
		g.checkDisk(t)
	}
}

// checkDisk verifies the log, compares live with rebuilt projections, and makes
// all decisions again.
func (d gateDir) checkDisk(t testing.TB) {
	t.Helper()
	notes := checkpoints.New(checkpoints.Options{Folder: checkpoint.NewFolder(d.file("audit.wal" + frame.CheckpointsSuffix))})
	report, err := eventlog.Verify(context.WithoutCancel(t.Context()), eventlog.Options{Path: d.file("audit.wal"), Outside: notes.Papers})
	require.NoError(t, err)
	require.Equal(t, frame.OK, report.Status, "%+v", report.Faults)
	for _, a := range report.Anchors {
		require.Equal(t, frame.AnchorMatch, a.Result, "%+v", a)
	}
	log := d.openLog(t)
	defer func() { require.NoError(t, log.Close(context.Background())) }()
	d.kept.check(t, log)
	store, err := projections.Open(projections.Options{Dir: d.file("approvals.db")})
	require.NoError(t, err)
	defer func() { require.NoError(t, store.Close()) }()
	require.NoError(t, store.Connect(context.WithoutCancel(t.Context()), log))
	projectionstest.RebuildAndCompare(t, log, store)
	requireDecisionsEqual(t, log)
}

// requireDecisionsEqual decides everything in a log again, from the log alone.
// Only what was recorded under another version of the facts cannot be.
func requireDecisionsEqual(t testing.TB, log *eventlog.Log) {
	t.Helper()
	views, end := judgeViews(&settings{})
	defer end()
	v := replay.NewVerifier(sqlgate.EngineRecord(), views, 0, 0, func(d replay.Difference) {
		require.Contains(t, d.Problem, "its facts are", "recomputed otherwise: %+v", d)
	})
	ancestors, err := log.Ancestors(context.WithoutCancel(t.Context()))
	require.NoError(t, err)
	for _, a := range ancestors {
		for e, err := range a.Events(context.WithoutCancel(t.Context())) {
			require.NoError(t, err)
			require.NoError(t, v.Earlier(&e))
		}
	}
	for e, err := range log.From(context.WithoutCancel(t.Context()), 1) {
		require.NoError(t, err)
		require.NoError(t, v.Take(&e))
	}
}

func (d gateDir) openLog(t testing.TB) *eventlog.Log {
	t.Helper()
	log, _, err := eventlog.Open(context.WithoutCancel(t.Context()), eventlog.Options{Path: d.file("audit.wal")})
	require.NoError(t, err)
	return log
}

// events reads the whole log of a gate that does not run.
func (d gateDir) events(t testing.TB) []event.Envelope {
	t.Helper()
	log := d.openLog(t)
	defer func() { require.NoError(t, log.Close(context.Background())) }()
	var all []event.Envelope
	for e, err := range log.From(context.WithoutCancel(t.Context()), 1) {
		require.NoError(t, err)
		all = append(all, e)
	}
	return all
}

// A reply is an HTTP answer.
type reply struct {
	status int
	header http.Header
	body   []byte
}

// json decodes the body as an object.
func (r reply) json(t testing.TB) map[string]any {
	t.Helper()
	var m map[string]any
	require.NoError(t, json.Unmarshal(r.body, &m), "%s", r.body)
	return m
}

func (r reply) text(t testing.TB, field string) string {
	t.Helper()
	s, _ := r.json(t)[field].(string)
	return s
}

// A statement is the body of POST /query with the claims that tests share.
type statement map[string]any

func ask(sql string) statement {
	return statement{"actor": "ana", "app": "shop", "tenant": "acme", "role": "clerk", "host": "desk-1", "env": "prod", "sql": sql}
}

func (s statement) with(key string, value any) statement {
	c := statement{key: value}
	for k, v := range s {
		if k != key {
			c[k] = v
		}
	}
	return c
}

// query sends a statement; params are name=value pairs of the query string.
func (g *testGate) query(t testing.TB, s statement, params ...string) reply {
	t.Helper()
	body, err := json.Marshal(s)
	require.NoError(t, err)
	values := url.Values{}
	for _, p := range params {
		name, value, _ := strings.Cut(p, "=")
		values.Add(name, value)
	}
	return g.do(t, http.MethodPost, "/query?"+values.Encode(), body)
}

// do sends a request; headers are "Name: value".
func (g *testGate) do(t testing.TB, method, path string, body []byte, headers ...string) reply {
	t.Helper()
	r, err := g.try(method, path, body, headers...)
	require.NoError(t, err)
	return r
}

// try sends a request and holds what came back against docs/openapi.yaml.
func (g *testGate) try(method, path string, body []byte, headers ...string) (reply, error) {
	request, err := http.NewRequest(method, g.base+path, bytes.NewReader(body))
	if err != nil {
		return reply{}, err
	}
	if len(body) > 0 {
		request.Header.Set("Content-Type", "application/json")
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		request.Header.Set(name, value)
		if name == "Host" {
			request.Host = value
		}
	}
	response, err := cmp.Or(g.client, http.DefaultClient).Do(request)
	if err != nil {
		return reply{}, err
	}
	defer response.Body.Close()
	read, err := io.ReadAll(response.Body)
	if err != nil {
		return reply{}, err
	}
	r := reply{response.StatusCode, response.Header, read}
	if err := g.kept.keep(r, g.signs, bytes.Contains(body, []byte(`"latency"`))); err != nil {
		return r, fmt.Errorf("the answer to %s %s: %d %s: %w", method, path, r.status, r.body, err)
	}
	contract, err := openAPI()
	if err != nil {
		return r, err
	}
	return r, contract.holds(request, body, r)
}

func (g *testGate) get(t testing.TB, path string) reply {
	t.Helper()
	return g.do(t, http.MethodGet, path, nil)
}

// resolve answers an approval as the operator.
func (g *testGate) resolve(t testing.TB, id, decision string) reply {
	t.Helper()
	return g.do(t, http.MethodPost, "/approvals/"+id+"/resolve", fmt.Appendf(nil, `{"decision":%q,"note":"from a test"}`, decision),
		"X-GATE-Operator-Token: "+operatorTestToken)
}

// shopTables are the tables that the sample policy speaks of.
const shopTables = `
CREATE TABLE customers (id bigint PRIMARY KEY, name text NOT NULL, email text NOT NULL);
CREATE TABLE orders (id bigint PRIMARY KEY, customer_id bigint NOT NULL, status text NOT NULL);
CREATE TABLE order_items (order_id bigint NOT NULL REFERENCES orders ON DELETE CASCADE, line integer NOT NULL, PRIMARY KEY (order_id, line));
INSERT INTO customers VALUES (1, 'Ada', 'ada@example.com');
INSERT INTO orders SELECT n, 1, 'new' FROM generate_series(1, 100) AS n;
INSERT INTO order_items SELECT n, 1 FROM generate_series(1, 100) AS n`

// startShop is a gate with the sample policy in front of the sample tables.
func startShop(t testing.TB, extra ...string) *testGate {
	t.Helper()
	d := newGateDir(t, nil)
	d.execute(t, shopTables)
	return startGate(t, d, extra...)
}

// memoryStore is used where a test needs projections of its own.
func memoryStore(t testing.TB) *projections.Store {
	t.Helper()
	store, err := projections.Open(projections.Options{Dir: "store", FS: vfs.NewMem()})
	require.NoError(t, err)
	return store
}

func TestMain(m *testing.M) {
	playCrashRole()
	testscript.Main(m, map[string]func(){"gate": main}) // a process of that name is the program itself
}

// rawJSON is a field as it came.
type rawJSON = json.RawMessage

func unmarshal(t testing.TB, body []byte, v any) {
	t.Helper()
	require.NoError(t, json.Unmarshal(body, v), "%s", body)
}
