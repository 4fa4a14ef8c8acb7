package pgexec

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"writegate/commands/fault"
)

// A Description is what the server knows of a statement that it has parsed.
type Description struct {
	Params []uint32 // types of its parameters
	Fields []Field  // nil: it returns no rows
}

// Describe has a reader parse a statement and say what its parameters and its
// columns are. It runs nothing of it, but parsing folds constants and so may run
// code: it happens in a READ ONLY transaction that is rolled back, and the
// connection is discarded and looked at before its next use. types are those of
// the parameters; 0 or absent: the server infers.
func (db *DB) Describe(ctx context.Context, sql string, types []uint32) (Description, error) {
	l, err := db.leaseReader(ctx)
	if err != nil {
		return Description{}, err
	}
	defer l.release()
	cmd := describing(sql, types)
	r := db.run(ctx, l, "", db.deadline(db.bound(Limits{})), cmd, segment{own("BEGIN READ ONLY"), cmd, own("ROLLBACK")})
	l.dirty = true
	if r.refused != nil && r.err == nil { // the server skipped our ROLLBACK with the rest
		l.rollback(time.Now().Add(rollbackWait))
	}
	return db.describedAs(r)
}

// Describe is as that of the DB, inside the block: of what only its transaction
// sees, too. An error fails the block.
func (b *Block) Describe(ctx context.Context, sql string, types []uint32) (Description, error) {
	if err := b.usable(); err != nil {
		return Description{}, err
	}
	l, cmd := b.lease, describing(sql, types)
	batch := append(b.fence(), cmd)
	batch = append(batch, unfence()...)
	r := b.db.run(ctx, l, "", b.db.deadline(b.db.bound(Limits{})), cmd, batch)
	d, err := b.db.describedAs(r)
	if err == nil && l.drift != "" {
		err = driftFault(l.drift)
	}
	if err != nil {
		_, err = b.fail(r, aborted(ReasonDBError, BasisReadOnly), err)
	}
	return d, err
}

func describing(sql string, types []uint32) *command {
	return &command{sql: sql, oids: types, only: new(description)}
}

func (db *DB) describedAs(r *ran) (Description, error) {
	if _, f, ok := db.outcomeOf(r, BasisReadOnly); !ok {
		return Description{}, f
	}
	return r.cmd.only.Description, nil
}

// A description is how far the answers to Parse and Describe have come.
type description struct {
	Description
	state int
}

// States of a description, by the message that comes next.
const (
	wantsParse = iota
	wantsParams
	wantsColumns
)

// described takes the answers about a statement that does not run.
func (r *segmentReader) described(d *description, msg pgproto3.BackendMessage) error {
	state := d.state
	d.state++
	switch m := msg.(type) {
	case *pgproto3.ParseComplete:
		if state == wantsParse {
			return nil
		}
	case *pgproto3.ParameterDescription:
		if state == wantsParams {
			d.Params = slices.Clone(m.ParameterOIDs)
			return nil
		}
	case *pgproto3.RowDescription:
		if state == wantsColumns {
			d.Fields = columnsOf(m.Fields)
			r.at++
			return nil
		}
	case *pgproto3.NoData:
		if state == wantsColumns {
			r.at++
			return nil
		}
	}
	return fmt.Errorf("%w: %T out of turn", errProtocol, msg)
}

// Setting asks the server whether a session may take a value for one of the
// names of Settings, and returns the value as the server shows it.
func (db *DB) Setting(ctx context.Context, name, value string) (string, error) {
	if !slices.Contains(ownSettings, name) {
		return "", fault.New(fault.Internal, "The setting is none that a session may have.").With("setting", name)
	}
	show, shown := query("SELECT pg_catalog.set_config($1, $2, true)")
	show.oids, show.params = []uint32{25, 25}, [][]byte{[]byte(name), []byte(value)}
	l, err := db.leaseReader(ctx)
	if err != nil {
		return "", err
	}
	defer l.release()
	r := db.run(ctx, l, "", db.deadline(db.bound(Limits{})), show, segment{own("BEGIN READ ONLY"), show, own("ROLLBACK")})
	if r.refused != nil && r.err == nil {
		l.rollback(time.Now().Add(rollbackWait))
		l.dirty = true
	}
	if _, f, ok := db.outcomeOf(r, BasisReadOnly); !ok {
		return "", f
	}
	return shown.text(0), nil
}
