package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"testing"
	"time"

	"github.com/lib/pq"
	"github.com/stretchr/testify/require"
)

// pqClient is lib/pq under database/sql; with binary it sends parameters as bytes.
func pqClient(binary bool) clientRun {
	return func(t *testing.T, c *clientNotes) {
		ctx, cancel := context.WithTimeout(t.Context(), clientPatience)
		defer cancel()
		p := &pqRun{t: t, ctx: ctx, clientNotes: c, binary: binary}
		p.connect()
		defer func() { require.NoError(t, p.db.Close()) }()
		p.reads()
		p.writes()
		p.blocks()
		p.cancels()
		if c.gated() {
			p.refusals()
		}
		require.NoError(t, p.db.Close())
		p.connect()
		p.query("reconnect", "SELECT id, name, price, note FROM items WHERE id > 1 ORDER BY id")
	}
}

type pqRun struct {
	*clientNotes
	t      *testing.T
	ctx    context.Context
	binary bool
	db     *sql.DB
}

// connect opens a pool of one connection.
func (p *pqRun) connect() {
	u, err := url.Parse(p.url)
	require.NoError(p.t, err)
	u.RawQuery = "sslmode=disable"
	if p.binary {
		u.RawQuery += "&binary_parameters=yes"
	}
	connector, err := pq.NewConnector(u.String())
	require.NoError(p.t, err)
	p.db = sql.OpenDB(connector)
	p.db.SetMaxOpenConns(1)
}

func (p *pqRun) query(item, text string, args ...any) {
	rows, err := p.db.QueryContext(p.ctx, text, args...)
	if err != nil {
		p.saw(item, "%s", pqComplaint(err))
		return
	}
	defer func() { require.NoError(p.t, rows.Close()) }()
	columns, err := rows.ColumnTypes()
	require.NoError(p.t, err)
	for rows.Next() {
		values, into := make([]any, len(columns)), make([]any, len(columns))
		for i := range values {
			into[i] = &values[i]
		}
		require.NoError(p.t, rows.Scan(into...), item)
		for i, v := range values {
			if b, ok := v.([]byte); ok {
				values[i] = string(b)
			}
			p.saw(item, "%s %s: %T %v", columns[i].Name(), columns[i].DatabaseTypeName(), values[i], values[i])
		}
	}
	p.saw(item, "%s", pqComplaint(rows.Err()))
}

func pqComplaint(err error) string {
	var e *pq.Error
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &e):
		return fmt.Sprintf("%s %s %q detail %q position %q constraint %q", e.Severity, e.Code, e.Message, e.Detail, e.Position, e.Constraint)
	default:
		return err.Error()
	}
}

func (p *pqRun) exec(item, text string, args ...any) {
	result, err := p.db.ExecContext(p.ctx, text, args...)
	if err != nil {
		p.saw(item, "%s", pqComplaint(err))
		return
	}
	n, err := result.RowsAffected()
	p.saw(item, "%d rows %s", n, pqComplaint(err))
}

func (p *pqRun) reads() {
	p.query("read", "SELECT id, name, price, note FROM items ORDER BY id")
	p.query("parameters", "SELECT $1::int4 + 1, $2::text, $3::text, $4::int8[], $5::bool, $6::timestamptz, $7::bytea",
		41, "it's ü", nil, pq.Array([]int64{1, 2}), true, time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC), []byte{0, 255})
	p.query("types", `SELECT 1::int2, 2::int8, 1.5::float4, 'NaN'::float8, 12.340::numeric, '\x00ff'::bytea, '2026-11-21'::date, '1 day 2h'::interval,
 '6f9619ff-8b86-d011-b42d-00c04fc964ff'::uuid, '{"a": [1, null]}'::jsonb, '10.0.0.0/8'::inet, '{a,NULL,"b c"}'::text[], '[1,5)'::int4range`)
	p.query("many rows", "SELECT n, md5(n::text) FROM generate_series(1, 100) AS n")
	p.query("unknown column", "SELECT nothing FROM items WHERE id = $1", 1)
	p.query("wrong syntax", "SELEC 1")
	statement, err := p.db.PrepareContext(p.ctx, "SELECT name FROM items WHERE id = $1")
	require.NoError(p.t, err)
	defer func() { require.NoError(p.t, statement.Close()) }()
	for id := range 7 {
		var name string
		p.saw("prepared", "%d %s %s", id, pqComplaint(statement.QueryRowContext(p.ctx, id).Scan(&name)), name)
	}
}

func (p *pqRun) writes() {
	p.exec("insert", "INSERT INTO items VALUES ($1, $2, $3, $4)", 10, "ten", "10.50", nil)
	p.query("returning", "INSERT INTO items VALUES ($1, $2) RETURNING id, price", 11, "eleven")
	p.exec("update", "UPDATE items SET note = $1 WHERE id = $2", "changed", 10)
	p.exec("duplicate", "INSERT INTO items VALUES ($1, $2)", 10, "again")
	p.query("usable after", "SELECT note FROM items WHERE id = $1", 10)
}

func (p *pqRun) blocks() {
	p.block("committed", nil, "INSERT INTO items VALUES (20, 'kept')")
	p.block("rolled back", errors.New("changed my mind"), "INSERT INTO items VALUES (21, 'undone')")
	p.block("failed", nil, "SELECT 1/0", "SELECT 1")
	p.block("with a savepoint", nil, "INSERT INTO items VALUES (22, 'kept')", "SAVEPOINT s", "INSERT INTO items VALUES (22, 'twice')", "ROLLBACK TO s", "INSERT INTO items VALUES (23, 'kept')")
	p.query("after the blocks", "SELECT id, name FROM items WHERE id >= 20 ORDER BY id")
}

func (p *pqRun) block(item string, then error, statements ...string) {
	tx, err := p.db.BeginTx(p.ctx, nil)
	require.NoError(p.t, err)
	for _, text := range statements {
		_, err := tx.ExecContext(p.ctx, text)
		p.saw("block "+item, "%s", pqComplaint(err))
	}
	if then != nil {
		p.saw("block "+item, "%s", pqComplaint(tx.Rollback()))
		return
	}
	p.saw("block "+item, "%s", pqComplaint(tx.Commit()))
}

// cancels ends a statement by its context, which lib/pq does by a CancelRequest.
func (p *pqRun) cancels() {
	ctx, cancel := context.WithCancel(p.ctx)
	defer cancel()
	failed := make(chan error, 1)
	go func() {
		_, err := p.db.ExecContext(ctx, "SELECT pg_sleep(61)")
		failed <- err
	}()
	p.sleeps(p.t)
	cancel()
	p.saw("cancel", "%s", pqComplaint(<-failed))
	p.query("after the cancel", "SELECT 'usable'")
}

// refusals are what only a gate says.
func (p *pqRun) refusals() {
	p.tell("blocked", "DELETE FROM items")
	p.tell("too many rows", "SELECT n FROM generate_series(1, 10001) AS n")
	p.tell("several statements in one text", "SELECT 1; SELECT 2")
	p.tell("listen", "LISTEN channel")
	tx, err := p.db.BeginTx(p.ctx, nil)
	require.NoError(p.t, err)
	_, err = tx.PrepareContext(p.ctx, pq.CopyIn("items", "id", "name"))
	p.told("copy", "%s", pqCode(err))
	require.NoError(p.t, tx.Rollback())
	_, err = p.db.ExecContext(p.ctx, "DELETE FROM items WHERE id = $1", 1)
	p.told("held", "%s", pqCode(err))
	var held *pq.Error
	require.ErrorAs(p.t, err, &held)
	approval := approvalIn(held.Detail)
	p.resolve(approval)
	p.tell("approved for another row", "/* gate.approval_id="+approval+" */ DELETE FROM items WHERE id = $1", 2)
	p.tell("approved", "/* gate.approval_id="+approval+" */ DELETE FROM items WHERE id = $1", 1)
	p.tell("approved and used", "/* gate.approval_id="+approval+" */ DELETE FROM items WHERE id = $1", 1)
	p.tell("usable", "SELECT 1")
}

func (p *pqRun) tell(item, text string, args ...any) {
	_, err := p.db.ExecContext(p.ctx, text, args...)
	p.told(item, "%s", pqCode(err))
}

func pqCode(err error) string {
	var e *pq.Error
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &e):
		return string(e.Code)
	default:
		return err.Error()
	}
}
