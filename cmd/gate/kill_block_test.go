package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// transacting is the life whose clients hold transactions open on the wire.
const transacting = "while blocks are open"

// A blockRows are the rows of one errand of such a client: two that stand or fall
// together, and one that is undone by a savepoint.
type blockRows struct{ first, undone, last string }

func (e *errand) blockRows() blockRows {
	return blockRows{e.value + ".first", e.value + ".undone", e.value + ".last"}
}

// transact runs one transaction: a block with a savepoint, one that is rolled
// back, or two statements between two Syncs.
func (b *book) transact(t testing.TB, v *victim, e *errand) (answered bool) {
	rows := e.blockRows()
	batch, undo := e.number%4 == 3, e.number%4 == 1
	b.know(func() {
		b.fates[rows.first], b.fates[rows.last] = &fate{never: undo}, &fate{never: undo}
		b.fates[rows.undone] = &fate{never: true}
		for _, row := range []string{rows.first, rows.undone, rows.last} {
			b.texts[sha256.Sum256([]byte(insertText(row)))] = row
		}
	})
	err := b.converse(v, rows, batch, undo)
	if err != nil {
		var refused *pgconn.PgError
		if errors.As(err, &refused) {
			assert.Contains(t, []string{"57P01", "57P03", "58000"}, refused.Code, "%v", err) // it was asked to end
		}
		b.know(func() { b.unanswered++ })
		return false
	}
	b.know(func() { b.fates[rows.first].must, b.fates[rows.last].must = !undo, !undo })
	return true
}

func insertText(row string) string { return "INSERT INTO ledger (v) VALUES ('" + row + "')" }

// converse says it; nil means that the end of the transaction was answered.
func (b *book) converse(v *victim, rows blockRows, batch, undo bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), startPatience)
	defer cancel()
	c, err := pgconn.Connect(ctx, "postgres://ana@"+v.wire+"/"+b.database+"?sslmode=disable&gate.app=shop")
	if err != nil {
		return err
	}
	defer c.Close(ctx)
	if _, err := c.Prepare(ctx, "", "SELECT count(*) FROM ledger WHERE v = $1", nil); err != nil { // it has the server describe it
		return err
	}
	if batch {
		both := &pgconn.Batch{}
		both.ExecParams(insertText(rows.first), nil, nil, nil, nil)
		both.ExecParams(insertText(rows.last), nil, nil, nil, nil)
		return c.ExecBatch(ctx, both).Close()
	}
	end := "COMMIT"
	if undo {
		end = "ROLLBACK"
	}
	for _, sql := range []string{"BEGIN", insertText(rows.first), "SAVEPOINT s", insertText(rows.undone), "SELECT count(*) FROM ledger",
		"ROLLBACK TO s", "RELEASE s", insertText(rows.last), end} {
		if err := c.Exec(ctx, sql).Close(); err != nil {
			return err
		}
	}
	return nil
}

// checkBlocks: what stands or falls together does.
func (b *book) checkBlocks(t testing.TB, present map[string]bool) {
	t.Helper()
	for value := range b.fates {
		rows := (&errand{value: value}).blockRows()
		if b.fates[rows.first] != nil {
			require.Equal(t, present[rows.first], present[rows.last], "%s was applied in part", value)
		}
	}
}

// of is the run among those of one transaction that is about a row.
func (b *book) of(runs []*run, value string) *run {
	i := slices.IndexFunc(runs, func(r *run) bool { return b.about(r) == value })
	if i < 0 {
		return nil
	}
	return runs[i]
}

// about is the row that a run is about: by its request where the client named
// that, and on the wire by its text.
func (b *book) about(r *run) string {
	if value, ok := b.sent[r.request]; ok {
		return value
	}
	return b.texts[r.sql]
}

// undoneByClient are the reasons of failures that clients ask for.
func undoneByClient(reason string) bool {
	return reason == "rolled_back" || reason == "rolled_back_to_savepoint"
}
