package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
)

// pgxModes are the five ways in which pgx sends a query.
var pgxModes = map[string]pgx.QueryExecMode{
	"cache_statement": pgx.QueryExecModeCacheStatement,
	"cache_describe":  pgx.QueryExecModeCacheDescribe,
	"describe_exec":   pgx.QueryExecModeDescribeExec,
	"exec":            pgx.QueryExecModeExec,
	"simple_protocol": pgx.QueryExecModeSimpleProtocol,
}

// pgxClient goes through the common list in one mode.
func pgxClient(mode pgx.QueryExecMode) clientRun {
	return func(t *testing.T, c *clientNotes) {
		ctx, cancel := context.WithTimeout(t.Context(), clientPatience)
		defer cancel()
		p := &pgxRun{t: t, ctx: ctx, clientNotes: c, mode: mode}
		p.connect()
		defer func() { require.NoError(t, p.conn.Close(context.WithoutCancel(ctx))) }()
		p.reads()
		p.writes()
		p.blocks()
		p.pipeline()
		p.cancels()
		if c.gated() {
			p.refusals()
		}
		require.NoError(t, p.conn.Close(ctx))
		p.connect()
		p.query("reconnect", "SELECT id, name, price, note FROM items WHERE id > 1 ORDER BY id")
	}
}

type pgxRun struct {
	*clientNotes
	t    *testing.T
	ctx  context.Context
	mode pgx.QueryExecMode
	conn *pgx.Conn
}

func (p *pgxRun) connect() {
	config, err := pgx.ParseConfig(p.url)
	require.NoError(p.t, err)
	config.TLSConfig, config.Fallbacks = nil, nil
	config.DefaultQueryExecMode = p.mode
	p.conn, err = pgx.ConnectConfig(p.ctx, config)
	require.NoError(p.t, err)
}

// query notes every value of a result as Go prints it, or the error.
func (p *pgxRun) query(item, sql string, args ...any) {
	rows, err := p.conn.Query(p.ctx, sql, args...)
	if err != nil {
		p.saw(item, "%s", complaint(err))
		return
	}
	defer rows.Close()
	for rows.Next() {
		values, err := rows.Values()
		require.NoError(p.t, err, item)
		p.saw(item, "%s raw %q", plainly(values), rows.RawValues())
	}
	p.saw(item, "%s %s", rows.CommandTag(), complaint(rows.Err()))
}

// manyRows reads a result of many messages, and notes what it adds up to.
func (p *pgxRun) manyRows() {
	rows, err := p.conn.Query(p.ctx, "SELECT n, md5(n::text) FROM generate_series(1, 9000) AS n")
	require.NoError(p.t, err)
	sum := sha256.New()
	for rows.Next() {
		for _, v := range rows.RawValues() {
			sum.Write(v)
		}
	}
	p.saw("many rows", "%s %x %s", rows.CommandTag(), sum.Sum(nil), complaint(rows.Err()))
}

// plainly prints values with their types, but for what is an address.
func plainly(values []any) string {
	all := make([]string, len(values))
	for i, v := range values {
		all[i] = fmt.Sprintf("%T %v", v, v)
	}
	return strings.Join(all, ", ")
}

// complaint is an error as a client can see it, without the server's source lines.
func complaint(err error) string {
	var e *pgconn.PgError
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &e):
		return fmt.Sprintf("%s %s %q detail %q position %d constraint %q", e.Severity, e.Code, e.Message, e.Detail, e.Position, e.ConstraintName)
	default:
		return err.Error()
	}
}

func (p *pgxRun) exec(item, sql string, args ...any) {
	tag, err := p.conn.Exec(p.ctx, sql, args...)
	p.saw(item, "%s %s", tag, complaint(err))
}

func (p *pgxRun) reads() {
	p.query("read", "SELECT id, name, price, note FROM items ORDER BY id")
	p.query("no rows", "SELECT id FROM items WHERE id = 99")
	p.query("parameters", "SELECT $1::int4 + 1, $2::text, $3::text, $4::int8[], $5::bool, $6::timestamptz",
		41, "it's ü", nil, []int64{1, 2}, true, time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC))
	p.query("types", `SELECT 1::int2, 2::int8, 1.5::float4, 'NaN'::float8, 12.340::numeric, '\x00ff'::bytea, '2026-11-21'::date, '1 day 2h'::interval,
 '6f9619ff-8b86-d011-b42d-00c04fc964ff'::uuid, '{"a": [1, null]}'::jsonb, '{"b":1}'::json, '10.0.0.0/8'::inet, '{a,NULL,"b c"}'::text[], '[1,5)'::int4range, ROW(1,'x')`)
	p.manyRows()
	p.query("error while reading", "SELECT 10 / (3 - n) FROM generate_series(1, 5) AS n")
	p.query("unknown column", "SELECT nothing FROM items")
	p.query("wrong syntax", "SELEC 1")
	for range 7 {
		p.query("again and again", "SELECT name FROM items WHERE id = $1", 2)
	}
}

func (p *pgxRun) writes() {
	p.exec("insert", "INSERT INTO items VALUES ($1, $2, $3, $4)", 10, "ten", "10.50", nil)
	p.query("returning", "INSERT INTO items VALUES ($1, $2) RETURNING id, price", 11, "eleven")
	p.exec("update", "UPDATE items SET note = $1 WHERE id = $2", "changed", 10)
	p.exec("duplicate", "INSERT INTO items VALUES ($1, $2)", 10, "again")
	p.exec("missing value", "INSERT INTO items VALUES ($1, NULL)", 12)
	p.query("usable after", "SELECT note FROM items WHERE id = $1", 10)
}

func (p *pgxRun) blocks() {
	p.block("committed", func(tx pgx.Tx) error {
		if _, err := tx.Exec(p.ctx, "INSERT INTO items VALUES ($1, 'kept')", 20); err != nil {
			return err
		}
		return tx.QueryRow(p.ctx, "SELECT name FROM items WHERE id = $1", 20).Scan(new(string))
	})
	p.block("rolled back", func(tx pgx.Tx) error {
		_, err := tx.Exec(p.ctx, "INSERT INTO items VALUES ($1, 'undone')", 21)
		return errors.Join(err, errors.New("changed my mind"))
	})
	p.block("failed", func(tx pgx.Tx) error {
		_, first := tx.Exec(p.ctx, "SELECT 1/0")
		_, then := tx.Exec(p.ctx, "SELECT 1")
		p.saw("in a failed block", "%s, %c", complaint(then), p.conn.PgConn().TxStatus())
		return first
	})
	p.block("nested", func(tx pgx.Tx) error {
		inner := pgx.BeginFunc(p.ctx, tx, func(tx pgx.Tx) error {
			_, err := tx.Exec(p.ctx, "INSERT INTO items VALUES ($1, 'undone')", 22)
			return errors.Join(err, errors.New("only this"))
		})
		_, err := tx.Exec(p.ctx, "INSERT INTO items VALUES ($1, $2)", 23, inner.Error())
		return err
	})
	tx, err := p.conn.BeginTx(p.ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	require.NoError(p.t, err)
	var isolation string
	require.NoError(p.t, tx.QueryRow(p.ctx, "SHOW transaction_isolation").Scan(&isolation))
	p.saw("read only block", "%s %s", isolation, complaint(tx.Commit(p.ctx)))
	p.query("after the blocks", "SELECT id, name FROM items WHERE id >= 20 ORDER BY id")
}

func (p *pgxRun) block(item string, do func(pgx.Tx) error) {
	err := pgx.BeginFunc(p.ctx, p.conn, do)
	p.saw("block "+item, "%s, then %c", complaint(err), p.conn.PgConn().TxStatus())
}

// pipeline sends several statements before it reads an answer. In the simple
// protocol pgx sends a batch as one text of several statements.
func (p *pgxRun) pipeline() {
	if p.mode == pgx.QueryExecModeSimpleProtocol {
		if p.gated() {
			err := p.batch(30, 31)
			p.told("several statements in one text", "%s", complaint(err))
		}
		return
	}
	p.saw("batch", "%s", complaint(p.batch(30, 31)))
	p.saw("batch with an error", "%s", complaint(p.batch(32, 30)))
	p.query("after the batches", "SELECT id FROM items WHERE id >= 30 ORDER BY id")
}

func (p *pgxRun) batch(ids ...int) error {
	b := &pgx.Batch{}
	for _, id := range ids {
		b.Queue("INSERT INTO items VALUES ($1, 'batch')", id)
	}
	b.Queue("SELECT count(*) FROM items")
	return p.conn.SendBatch(p.ctx, b).Close()
}

// cancels ends a statement as psql's Ctrl-C does.
func (p *pgxRun) cancels() {
	failed := make(chan error, 1)
	go func() {
		_, err := p.conn.PgConn().Exec(p.ctx, "SELECT pg_sleep(61)").ReadAll()
		failed <- err
	}()
	p.sleeps(p.t)
	require.NoError(p.t, p.conn.PgConn().CancelRequest(p.ctx))
	p.saw("cancel", "%s", complaint(<-failed))
	p.query("after the cancel", "SELECT 'usable'")
}

// refusals are what only a gate says.
func (p *pgxRun) refusals() {
	p.tell("blocked", "DELETE FROM items")
	p.tell("too many rows", "SELECT n FROM generate_series(1, 10001) AS n")
	_, err := p.conn.CopyFrom(p.ctx, pgx.Identifier{"items"}, []string{"id", "name"}, pgx.CopyFromRows([][]any{{40, "copied"}}))
	p.told("copy", "%s", code(err))
	p.tell("listen", "LISTEN channel")
	_, err = p.conn.Exec(p.ctx, "DELETE FROM items WHERE id = $1", 1)
	p.told("held", "%s", code(err))
	var held *pgconn.PgError
	require.ErrorAs(p.t, err, &held)
	approval := approvalIn(held.Detail)
	_, err = p.conn.Exec(p.ctx, "SET gate.approval_id = '"+approval+"'")
	p.told("not approved yet", "%s", code(err))
	p.tell("still held", "DELETE FROM items WHERE id = $1", 1)
	p.resolve(approval)
	p.tell("approved for another row", "/* gate.approval_id="+approval+" */ DELETE FROM items WHERE id = $1", 2)
	p.tell("approved", "/* gate.approval_id="+approval+" */ DELETE FROM items WHERE id = $1", 1)
	p.tell("approved and used", "/* gate.approval_id="+approval+" */ DELETE FROM items WHERE id = $1", 1)
	p.tell("usable", "SELECT 1")
}

func (p *pgxRun) tell(item, sql string, args ...any) {
	tag, err := p.conn.Exec(p.ctx, sql, args...)
	p.told(item, "%s %s", tag, code(err))
}

// code is the SQLSTATE of an error.
func code(err error) string {
	var e *pgconn.PgError
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &e):
		return e.Code
	default:
		return err.Error()
	}
}
