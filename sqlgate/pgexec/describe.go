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
	Types  Types    // what those of them are called that are no PlainType
	Fields []Field  // nil: it returns no rows
}

// Describe has the server parse a statement and say what its parameters and its
// columns are, and gives the connection back. Evidence of the decision was made durable
// before. It runs nothing of the statement, but parsing evaluates constants and so may
// run code: it happens in a READ ONLY transaction that is rolled back, and the
// connection is discarded and looked at before its next use. types are those of
// the parameters; 0 or absent: the server infers. Plain types that it was judged by are compared before.
func (r *Reading) Describe(ctx context.Context, sql string, types []uint32, definitions *Definitions) (Description, error) {
	defer r.Release()
	db, l := r.db, r.lease
	if err := l.cleanFirst(); err != nil {
		return Description{}, connectFault(err)
	}
	cmd := describing(sql, types, definitions)
	deadline := db.deadline(db.bound(r.d.Limits))
	before, _ := l.comparing(cmd)
	ran := db.run(ctx, l, "", deadline, cmd, slices.Concat(r.beginning(), before, segment{cmd, own("ROLLBACK")}))
	l.dirty = true
	if ran.refused != nil && ran.err == nil { // the server skipped our ROLLBACK with the rest
		l.rollback(time.Now().Add(rollbackWait))
	}
	d, err := db.describedAs(ran)
	if err == nil {
		d.Types, err = l.typesNamed(ctx, deadline, d.Params)
	}
	return d, err
}

// beginning opens a transaction under what the connection of its client has set.
func (r *Reading) beginning() segment {
	return append(segment{own("BEGIN READ ONLY")}, set("LOCAL", r.d.Settings)...)
}

// A ParseRequest is a statement that is to be described only where parsing it
// provably runs no code of a user's, with every name in it.
type ParseRequest struct {
	SQL       string
	Types     []uint32 // of the parameters, all built in
	Relations []string // schema.table, all that it names
	Words     []string // every identifier and keyword of the text
	Operators []string // every operator of the text
}

// harmlessParseSQL answers why a statement must not be parsed, "" where no code of
// a user's can run by it. What parsing evaluates are the string constants of the
// text: they become values of the types that their places have, by the input
// functions of these, and those of composites, ranges and arrays run the checks of
// domains inside. So no place that the text can name may have such a type; enums
// and arrays of them are read by the server's own code.
const harmlessParseSQL = `WITH named AS (
 SELECT c.oid FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
  WHERE pg_catalog.concat(n.nspname, '.', c.relname) OPERATOR(pg_catalog.=) ANY ($1)),
odd AS (SELECT t.oid, t.typname, t.typrelid FROM pg_catalog.pg_type AS t LEFT JOIN pg_catalog.pg_type AS e ON e.oid OPERATOR(pg_catalog.=) t.typelem
   AND t.typsubscript OPERATOR(pg_catalog.=) 'pg_catalog.array_subscript_handler'::pg_catalog.regproc AND t.typlen OPERATOR(pg_catalog.=) -1
  WHERE COALESCE(e.oid, t.oid) OPERATOR(pg_catalog.>=) 16384::pg_catalog.oid AND COALESCE(e.typtype, t.typtype) OPERATOR(pg_catalog.<>) 'e'::"char")
SELECT CASE
 WHEN (SELECT pg_catalog.count(*) FROM named) OPERATOR(pg_catalog.<) pg_catalog.cardinality($1) THEN 'a relation is not there'
 WHEN EXISTS (SELECT FROM pg_catalog.pg_attribute AS a JOIN named ON a.attrelid OPERATOR(pg_catalog.=) named.oid JOIN odd ON odd.oid OPERATOR(pg_catalog.=) a.atttypid) THEN 'a column has a type that is not built in'
 WHEN EXISTS (SELECT FROM pg_catalog.pg_proc AS p JOIN odd ON odd.oid OPERATOR(pg_catalog.=) p.prorettype
   OR odd.oid OPERATOR(pg_catalog.=) ANY (COALESCE(p.proallargtypes, p.proargtypes::pg_catalog.oid[])) WHERE p.proname::pg_catalog.text OPERATOR(pg_catalog.=) ANY ($2)) THEN 'a function that bears a name of the text has a type that is not built in'
 WHEN EXISTS (SELECT FROM pg_catalog.pg_operator AS o JOIN odd ON odd.oid OPERATOR(pg_catalog.=) ANY (ARRAY[o.oprleft, o.oprright, o.oprresult])
  WHERE o.oprname::pg_catalog.text OPERATOR(pg_catalog.=) ANY ($3)) THEN 'an operator of the text takes a type that is not built in'
 WHEN EXISTS (SELECT FROM odd WHERE odd.typrelid OPERATOR(pg_catalog.=) 0::pg_catalog.oid AND odd.typname::pg_catalog.text OPERATOR(pg_catalog.=) ANY ($2)) THEN 'a type that is not built in bears a name of the text'
 ELSE '' END`

// DescribeHarmless is Describe for a statement that nobody allowed yet: why says
// what keeps it from being parsed, and is empty where it was. What is looked at and
// what is parsed stand in one transaction.
func (r *Reading) DescribeHarmless(ctx context.Context, p ParseRequest) (d Description, why string, err error) {
	defer r.Release()
	db, l := r.db, r.lease
	if err := l.cleanFirst(); err != nil {
		return d, "", connectFault(err)
	}
	l.dirty = true
	deadline := db.deadline(db.bound(r.d.Limits))
	check, found := query(harmlessParseSQL)
	check.nameLists(p.Relations, p.Words, p.Operators)
	ran := db.run(ctx, l, "", deadline, check, append(r.beginning(), check))
	_, f, ok := db.outcomeOf(ran, BasisReadOnly)
	cmd := describing(p.SQL, p.Types, nil)
	if ok && len(found.values) == 1 && found.text(0) == "" {
		ran = db.run(ctx, l, "", deadline, cmd, segment{cmd})
		if d, f = db.describedAs(ran); f == nil {
			d.Types, f = l.typesNamed(ctx, deadline, d.Params)
		}
	}
	if ran.err == nil && !l.broken {
		l.rollback(time.Now().Add(rollbackWait))
	}
	return d, found.text(0), f
}

// Describe is as that of a Reading, inside the block: of what only its transaction
// sees, too. An error fails the block.
func (b *Block) Describe(ctx context.Context, o BeginOptions, sql string, types []uint32, definitions *Definitions) (Description, error) {
	if err := b.usable(); err != nil {
		return Description{}, err
	}
	o.Limits = b.db.bound(o.Limits)
	l, cmd, fence := b.lease, describing(sql, types, definitions), b.newFence(o)
	before, _ := l.comparing(cmd)
	r := b.db.run(ctx, l, "", b.db.deadline(o.Limits), cmd, slices.Concat(fence.before, before, segment{cmd}, fence.behind))
	b.unfence(r, fence)
	d, err := b.db.describedAs(r)
	if err == nil {
		d.Types, err = l.typesNamed(context.WithoutCancel(ctx), time.Now().Add(b.db.cfg.ConnectTimeout), d.Params)
		err = b.asked(err)
	}
	if err == nil && l.drift != "" {
		err = driftFault(l.drift)
	}
	if err != nil {
		_, err = b.fail(r, aborted(ReasonDBError, BasisReadOnly), err)
	}
	return d, err
}

func describing(sql string, types []uint32, definitions *Definitions) *command {
	cmd := &command{sql: sql, oids: types, only: new(description)}
	if definitions != nil && len(definitions.Types) > 0 { // parsing runs nothing else of what they tell
		cmd.definitions = definitions
	}
	return cmd
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
			r.next()
			return nil
		}
	case *pgproto3.NoData:
		if state == wantsColumns {
			r.next()
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
	// What is shown is what later statements set, so it has to be taken as well: of a
	// time zone with seconds the server shows a name that it refuses.
	show, shown := query("SELECT pg_catalog.set_config($1, pg_catalog.set_config($1, $2, true), true)")
	show.oids, show.params = []uint32{25, 25}, [][]byte{[]byte(name), []byte(value)}
	l, err := db.reader.acquire(ctx)
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
