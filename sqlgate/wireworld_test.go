package sqlgate

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"writegate/commands"
	"writegate/commands/fault"
	"writegate/eventlog"
	"writegate/eventlog/event"
	"writegate/eventlog/frame"
	"writegate/eventlog/frame/frametest"
	"writegate/fixtures/postgres"
	"writegate/projections"
	"writegate/projections/projectionstest"
	"writegate/sqlgate/classify"
	"writegate/sqlgate/pgexec"
	"writegate/sqlgate/policyfolder"
	"writegate/sqlgate/replay"
)

// wirePolicy allows what the tests write, asks a person about DELETE, and blocks
// TRUNCATE.
const wirePolicy = `schema: gate.policy/v1
name: wire
version: 1.0.0
facts: facts/v1
description: For the tests of the wire.
rules:
  - id: no-truncate
    decision: BLOCK
    reason_code: no_truncate
    match: { query_types: [TRUNCATE] }
    message: Tables are not emptied.
    remedy: Delete rows by key.
  - id: deletes
    decision: REQUIRE_APPROVAL
    reason_code: delete_needs_approval
    match: { query_types: [DELETE] }
    message: Deleting waits for an approval.
  - id: writes
    decision: ALLOW
    reason_code: test_write
    match: { query_types_only: [INSERT, UPDATE, CREATE, SELECT, CREATE_TABLE_AS, VACUUM, MERGE, LOCK] }
tests:
  - { name: an insert, sql: "INSERT INTO t VALUES (1)", expect: { decision: ALLOW } }
`

// A wireWorld is a gate with a database behind it and nothing in front: its
// wires are called as the listener calls them.
type wireWorld struct {
	*Gate
	t     testing.TB
	log   *eventlog.Log
	store *projections.Store
	url   string
	stops sync.Map    // step -> what happens there
	full  atomic.Bool // the log's volume has no space left
}

// newWireWorld starts a gate before an empty database of the test's own; set
// changes its options.
func newWireWorld(t testing.TB, set func(*Options)) *wireWorld {
	t.Helper()
	return newWireWorldAt(t, postgres.ForTest(t), "", set)
}

// newWireWorldAt has the gate reach the database by another address, where
// something stands in between.
func newWireWorldAt(t testing.TB, url, through string, set func(*Options)) *wireWorld {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	w := &wireWorld{t: t, url: url}
	postgres.ExecuteURL(t, w.url, "CREATE TABLE t (id int PRIMARY KEY, v text)")
	var err error
	volume := frametest.Inject(frame.OS{}, func(op frametest.Op) error {
		if op.Kind == frametest.Pwrite && w.full.Load() {
			return syscall.ENOSPC
		}
		return nil
	})
	w.log, _, err = eventlog.Open(ctx, eventlog.Options{Path: filepath.Join(t.TempDir(), "audit.wal"), FS: volume})
	require.NoError(t, err)
	w.store, err = projections.Open(projections.Options{Dir: "store", FS: vfs.NewMem()})
	require.NoError(t, err)
	require.NoError(t, w.store.Connect(ctx, w.log))
	running, end := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() { _ = w.store.Run(running, w.log); close(ended) }()
	cmds, err := commands.New(commands.Options{Log: w.log, Store: w.store})
	require.NoError(t, err)
	classifier, err := classify.New(classify.Config{SearchPath: "public", MaxSQLBytes: 1 << 19})
	require.NoError(t, err)
	database, err := pgexec.Open(pgexec.Config{URL: cmp.Or(through, url), SearchPath: "public", PoolMax: 4, TLS: pgexec.TLSConfig{Mode: "disable"}, PlanTime: time.Minute,
		OnServerMajor: func(major int) { _ = classifier.SetServerMajor(major) }}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	dir := filepath.Join(t.TempDir(), "policies")
	require.NoError(t, policyfolder.Create(dir, policyfolder.DefaultManifest, []byte(wirePolicy)))
	options := Options{Classifier: classifier, Database: database, Commands: cmds, Store: w.store, Mode: ModeEnforce, Events: w.log.From, SQLText: SQLTextNormalized,
		MaxSQLBytes: 1 << 19, QueryTimeout: 5 * time.Second, ResultRows: 10_000, ResultBytes: 16 << 20,
		Policies: PolicySource{Dir: dir, Manifest: policyfolder.DefaultManifest, DefaultTTL: 300}, StatusOf: func(fault.Code) int { return 500 },
		Wire: WireOptions{MaxBlocks: 4, BlockTime: 30 * time.Second, BlockIdle: 10 * time.Second, SearchPath: "public", LockTimeout: 3 * time.Second},
		Step: w.step, MaxSessions: 10}
	if set != nil {
		set(&options)
	}
	w.Gate, err = New(options)
	require.NoError(t, err)
	require.NoError(t, cmds.Start(ctx, commands.Startup{Mode: options.Mode, Event: event.Startup{Version: "0", Engine: EngineRecord()}}))
	w.RunChain(ctx, nil)
	require.Nil(t, w.Chain().Failure())
	t.Cleanup(func() {
		database.Close()
		classifier.Close()
		w.check()
		if err := w.log.Close(ctx); !w.full.Load() {
			require.NoError(t, err)
		}
		end()
		<-ended
		require.NoError(t, w.store.Close())
	})
	return w
}

// check holds what the log tells: a rebuild gives the live projections, every
// decision comes out the same again, and nothing ran without a dispatch.
func (w *wireWorld) check() {
	w.t.Helper()
	projectionstest.RebuildAndCompare(w.t, w.log, w.store)
	views := func(cfg classify.Config) (func(string) (classify.Classification, error), error) {
		c, err := classify.New(cfg)
		if err != nil {
			return nil, err
		}
		w.t.Cleanup(c.Close)
		return func(sql string) (classify.Classification, error) { return c.Classify(context.Background(), sql) }, nil
	}
	v := replay.NewVerifier(EngineRecord(), views, 0, 0, func(d replay.Difference) {
		w.t.Errorf("a decision is recomputed otherwise: %+v", d)
	})
	for _, e := range w.events() {
		require.NoError(w.t, v.Take(&e))
	}
}

func (w *wireWorld) step(name string) {
	if f, ok := w.stops.Load(name); ok {
		f.(func())()
	}
}

func (w *wireWorld) events() (list []event.Envelope) {
	w.t.Helper()
	for e, err := range w.log.From(context.Background(), 1) {
		require.NoError(w.t, err)
		list = append(list, e)
	}
	return list
}

// value asks the database itself.
func (w *wireWorld) value(sql string) string {
	w.t.Helper()
	return postgres.QueryURL(w.t, w.url, sql)
}

// activate makes another policy the one in force.
func (w *wireWorld) activate(document string) {
	w.t.Helper()
	made, err := w.CreateCandidate(context.Background(), []byte(document), "", "ops")
	require.NoError(w.t, err)
	_, err = w.ChangePolicy(context.Background(), PolicyChangeRequest{PolicyVersion: made.PolicyVersion, ExpectedHash: made.Hash, Reason: "another", By: "ops"})
	require.NoError(w.t, err)
}

// asked are the parameters that the approval shows which a refusal asked for.
func (w *wireWorld) asked(refusal error) []string {
	w.t.Helper()
	var held *WireRefusal
	require.ErrorAs(w.t, refusal, &held)
	view := w.store.View()
	a, found, err := view.Approval(held.Answer.ApprovalID)
	require.NoError(w.t, errors.Join(err, view.Close()))
	require.True(w.t, found)
	return a.Parameters
}

// approve answers the approval that a refusal asked for.
func (w *wireWorld) approve(id string) {
	w.t.Helper()
	_, err := w.Commands.ResolveApproval(context.Background(), commands.ResolveApproval{ID: id, Decision: "approve", By: "test"})
	require.NoError(w.t, err)
}

// A wireClient drives one Wire.
type wireClient struct {
	*Wire
	w *wireWorld
	t testing.TB
}

// wire opens a connection that ends with the test.
func (w *wireWorld) wire(settings ...[2]string) *wireClient {
	w.t.Helper()
	return w.wireOf("192.0.2.1", settings...)
}

// wireOf is wire for a client by its name.
func (w *wireWorld) wireOf(client string, settings ...[2]string) *wireClient {
	w.t.Helper()
	return w.wireFor(WireLogin{Client: client, Settings: settings})
}

// wireFor is wire for a login, whose claims and name of the connection it fills in.
func (w *wireWorld) wireFor(l WireLogin) *wireClient {
	w.t.Helper()
	l.Claims, l.ConnectionID = Claims{Actor: "ann", App: "test", Tenant: "t1", Role: "ann", Host: "127.0.0.1", Env: "prod"}, "wir_test"
	c := &wireClient{w: w, t: w.t}
	var err error
	c.Wire, err = w.OpenWire(l)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { c.Close(context.WithoutCancel(w.t.Context())) })
	return c
}

// A rowsSink keeps a result as text.
type rowsSink struct {
	columns []pgexec.Field
	asked   bool
	rows    []string
}

func (r *rowsSink) Fields(columns []pgexec.Field) error {
	r.columns, r.asked = columns, true
	return nil
}

func (r *rowsSink) Row(values [][]byte) error {
	texts := make([]string, len(values))
	for i, v := range values {
		if texts[i] = string(v); v == nil {
			texts[i] = "NULL"
		}
	}
	r.rows = append(r.rows, strings.Join(texts, "|"))
	return nil
}

// query is a Query message that succeeds: its tag and its rows.
func (c *wireClient) query(sql string) (string, []string) {
	c.t.Helper()
	var out rowsSink
	done, err := c.Query(c.t.Context(), sql, &out)
	require.NoError(c.t, err, sql)
	return done.Tag, out.rows
}

// refused is a Query message that fails.
func (c *wireClient) refused(sql string) error {
	c.t.Helper()
	_, err := c.Query(c.t.Context(), sql, &rowsSink{})
	require.Error(c.t, err, sql)
	return err
}

// state is the SQLSTATE of a WireError, or the code of a fault, or the decision.
func state(err error) string {
	switch e := err.(type) {
	case *WireError:
		return e.SQLState
	case *WireRefusal:
		return string(e.Answer.Result.Decision)
	case *fault.Fault:
		if s, ok := e.Details["sqlstate"].(string); ok {
			return s
		}
		return string(e.Code)
	}
	return "no error of a wire"
}

// execute runs parse, bind and execute of an unnamed statement with text parameters.
func (c *wireClient) execute(last bool, sql string, params ...string) (WireDone, []string, error) {
	c.t.Helper()
	if err := c.Parse(c.t.Context(), "", sql, nil); err != nil {
		return WireDone{}, nil, err
	}
	values := make([][]byte, len(params))
	for i, p := range params {
		values[i] = []byte(p)
	}
	if err := c.Bind("", "", nil, values, nil); err != nil {
		return WireDone{}, nil, err
	}
	var out rowsSink
	done, err := c.Execute(c.t.Context(), "", 0, last, &out)
	return done, out.rows, err
}

// ran is execute that succeeds, with more to come.
func (c *wireClient) ran(sql string, params ...string) string {
	c.t.Helper()
	done, _, err := c.execute(false, sql, params...)
	require.NoError(c.t, err, sql)
	return done.Tag
}

func (c *wireClient) sync() {
	c.t.Helper()
	require.NoError(c.t, c.Sync(c.t.Context()))
}

// trail is what the log says of executions: type and reason, in order.
func (w *wireWorld) trail() (list []string) {
	w.t.Helper()
	for _, e := range w.events() {
		switch e.Type {
		case event.TypeExecutionDispatched, event.TypeExecutionSuccess, event.TypeExecutionFailure, event.TypeExecutionStateUnknown, event.TypeExecutionOutcomeResolved:
			line := e.Context.Operation + " " + strings.TrimPrefix(string(e.Type), "execution_")
			if e.Context.ReasonCode != "" {
				line += " " + e.Context.ReasonCode
			}
			list = append(list, line)
		}
	}
	return list
}

// postgresExecute runs SQL at the database itself.
func postgresExecute(w *wireWorld, sql string) {
	w.t.Helper()
	postgres.ExecuteURL(w.t, w.url, sql)
}
