package pgexec

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// Bounds of an estimate, beside Config.PlanTime. It is a courtesy: nobody may wait
// for it, or on it.
const (
	planLockTime  = 100 * time.Millisecond
	mostPlanBytes = 1 << 20
)

// A PlanRequest is a statement whose plan is asked for, with every name in it.
type PlanRequest struct {
	SQL       string   // SELECT, INSERT, UPDATE, DELETE or MERGE, without parameters
	Relations []string // schema.table, all that it names
	Words     []string // every identifier and keyword of the text
	Operators []string // every operator of the text
}

// A Plan is what the server expects of a statement. Rows are those that it gives
// or changes.
type Plan struct {
	Node        string  `json:"node"`
	Rows        int64   `json:"rows"`
	StartupCost float64 `json:"startup_cost"`
	TotalCost   float64 `json:"total_cost"`
	Parts       int     `json:"parts,omitempty"` // partitions that a write looks for its rows in, of which each counts for one at least
}

// impliedOperators are those that the grammar writes for a client: comparisons of
// IN, BETWEEN, CASE, ORDER BY and DISTINCT, and LIKE with its kin.
var impliedOperators = []string{"=", "<>", "<", ">", "<=", ">=", "~", "!~", "~*", "!~*", "~~", "!~~", "~~*", "!~~*", "||", "+", "-"}

// harmlessSQL answers why the plan of a statement must not be asked for, "" where
// nothing of a user's can run while it is planned (design/execution-and-wire.md
// part 6). Plain EXPLAIN runs code: constants are folded, and checks, defaults,
// index expressions and the like are looked at. So nothing that the text names
// may be anything but built in, and its relations have to be plain tables with
// nothing of a user's behind them: nor may their parents, whose partition keys bound
// their rows, and so what else is below those. Pinned objects have no entries in pg_depend,
// so any entry there that leads to code is a user's. Row types may bear names of the text, as
// each table of another schema does: a text that means one by it has a signal.
const harmlessSQL = `WITH RECURSIVE named AS (
 SELECT c.oid FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
  WHERE pg_catalog.concat(n.nspname, '.', c.relname) OPERATOR(pg_catalog.=) ANY ($1)),
rel AS (SELECT named.oid FROM named UNION SELECT CASE WHEN i.inhparent OPERATOR(pg_catalog.=) rel.oid THEN i.inhrelid ELSE i.inhparent END
  FROM pg_catalog.pg_inherits AS i JOIN rel ON i.inhparent OPERATOR(pg_catalog.=) rel.oid OR i.inhrelid OPERATOR(pg_catalog.=) rel.oid),
own AS (SELECT 'pg_catalog.pg_class'::pg_catalog.regclass::pg_catalog.oid AS classid, rel.oid AS objid FROM rel
 UNION ALL SELECT 'pg_catalog.pg_class'::pg_catalog.regclass, x.indexrelid FROM pg_catalog.pg_index AS x JOIN rel ON x.indrelid OPERATOR(pg_catalog.=) rel.oid
 UNION ALL SELECT 'pg_catalog.pg_constraint'::pg_catalog.regclass, x.oid FROM pg_catalog.pg_constraint AS x JOIN rel ON x.conrelid OPERATOR(pg_catalog.=) rel.oid
 UNION ALL SELECT 'pg_catalog.pg_attrdef'::pg_catalog.regclass, x.oid FROM pg_catalog.pg_attrdef AS x JOIN rel ON x.adrelid OPERATOR(pg_catalog.=) rel.oid
 UNION ALL SELECT 'pg_catalog.pg_statistic_ext'::pg_catalog.regclass, x.oid FROM pg_catalog.pg_statistic_ext AS x JOIN rel ON x.stxrelid OPERATOR(pg_catalog.=) rel.oid)
SELECT CASE
 WHEN (SELECT pg_catalog.count(*) FROM named) OPERATOR(pg_catalog.<) pg_catalog.cardinality($1) THEN 'a relation is not there'
 WHEN EXISTS (SELECT FROM rel JOIN pg_catalog.pg_class AS c ON c.oid OPERATOR(pg_catalog.=) rel.oid
  WHERE c.relkind OPERATOR(pg_catalog.<>) ALL ('{r,p}'::"char"[]) OR c.relrowsecurity OR c.relhasrules) THEN 'a relation is no plain table'
 WHEN EXISTS (SELECT FROM pg_catalog.pg_attribute AS a JOIN rel ON a.attrelid OPERATOR(pg_catalog.=) rel.oid
  WHERE a.attnum OPERATOR(pg_catalog.>) 0 AND NOT a.attisdropped AND a.atttypid OPERATOR(pg_catalog.>=) 16384::pg_catalog.oid) THEN 'a column has a type that is not built in'
 WHEN EXISTS (SELECT FROM pg_catalog.pg_depend AS d JOIN own ON d.classid OPERATOR(pg_catalog.=) own.classid AND d.objid OPERATOR(pg_catalog.=) own.objid
  WHERE d.refclassid OPERATOR(pg_catalog.=) ANY (ARRAY['pg_catalog.pg_proc', 'pg_catalog.pg_operator', 'pg_catalog.pg_type', 'pg_catalog.pg_opclass', 'pg_catalog.pg_opfamily', 'pg_catalog.pg_am']::pg_catalog.regclass[]::pg_catalog.oid[]))
  THEN 'a relation uses code that is not built in'
 WHEN EXISTS (SELECT FROM pg_catalog.pg_proc AS p WHERE p.oid OPERATOR(pg_catalog.>=) 16384::pg_catalog.oid AND p.proname::pg_catalog.text OPERATOR(pg_catalog.=) ANY ($2)) THEN 'a function that is not built in bears a name of the text'
 WHEN EXISTS (SELECT FROM pg_catalog.pg_operator AS o WHERE o.oid OPERATOR(pg_catalog.>=) 16384::pg_catalog.oid AND o.oprname::pg_catalog.text OPERATOR(pg_catalog.=) ANY ($3)) THEN 'an operator that is not built in bears a name of the text'
 WHEN EXISTS (SELECT FROM pg_catalog.pg_type AS t WHERE t.oid OPERATOR(pg_catalog.>=) 16384::pg_catalog.oid AND t.typname::pg_catalog.text OPERATOR(pg_catalog.=) ANY ($2) AND t.typtype OPERATOR(pg_catalog.<>) 'c'::"char") THEN 'a type that is not built in bears a name of the text'
 WHEN EXISTS (SELECT FROM pg_catalog.pg_cast AS c WHERE c.oid OPERATOR(pg_catalog.>=) 16384::pg_catalog.oid) THEN 'the database has casts that are not built in'
 ELSE '' END`

// BeginPlan takes a connection for EstimatePlan, the writer's where the statement
// writes. It sends nothing of the client's. major is what the statement was classified
// for.
func (db *DB) BeginPlan(ctx context.Context, write bool, major int) (r *Reading, omitted string) {
	ctx, cancel := context.WithTimeout(ctx, 2*db.cfg.PlanTime)
	defer cancel()
	p := db.reader
	if write {
		p = db.writer
	}
	l, err := p.acquire(ctx)
	if err != nil {
		return nil, "the database gave no connection in time"
	}
	if l.reads(ctx, Meaning{Major: major}) != nil {
		l.release()
		return nil, "the database is of another major than the statement was read for"
	}
	return &Reading{db: db, lease: l}, ""
}

// EstimatePlan asks the server for a statement's plan where that provably runs no
// code of a user's, and says otherwise why it does not; it gives the connection back.
// The statement is never executed, and nothing of it is kept. What is looked at and
// what is planned stand in one transaction; somebody who changes definitions at that
// very moment can still have it meet the new ones.
func (r *Reading) EstimatePlan(ctx context.Context, p PlanRequest) (plan *Plan, omitted string) {
	defer r.Release()
	db, l := r.db, r.lease
	patience := 2 * db.cfg.PlanTime // for both answers
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if l.cleanFirst() != nil {
		return nil, "the connection to the database was lost"
	}
	l.dirty = true // whatever became of it, the next use looks first
	deadline := time.Now().Add(patience)
	defer func() {
		if !l.broken {
			l.rollback(deadline.Add(rollbackWait))
		}
	}()
	check, why := query(harmlessSQL)
	check.nameLists(p.Relations, p.Words, p.Operators)
	begin := segment{own("BEGIN READ ONLY"), own(setTime("statement_timeout", db.cfg.PlanTime)), own(setTime("lock_timeout", planLockTime)), check}
	if refused, err := l.exchange(ctx, deadline, begin); err != nil || refused != nil {
		return nil, "the database did not say in time whether the plan is harmless"
	}
	if len(why.values) != 1 || why.text(0) != "" {
		return nil, why.text(0)
	}
	explain, found := query("EXPLAIN (FORMAT JSON) " + p.SQL)
	explain.byteCap = mostPlanBytes
	l.ran = true
	refused, err := l.exchange(ctx, deadline, segment{explain})
	switch {
	case err != nil:
		return nil, "the database did not plan the statement in time"
	case refused != nil:
		return nil, planRefused + " (SQLSTATE " + refused.Code + ")"
	}
	if plan, err = parsePlan(found.text(0)); err != nil {
		return nil, "the database's plan could not be read"
	}
	return plan, ""
}

// planRefused begins the reason of EstimatePlan where the server would not plan the statement,
// and so would hardly run it.
const planRefused = "the database refused to plan the statement"

const oidTextArray = 1009

// nameLists binds the names of a text to a query about them; the operators are
// those too that the grammar implies.
func (cmd *command) nameLists(relations, words, operators []string) {
	for _, list := range [][]string{relations, words, slices.Concat(impliedOperators, operators)} {
		cmd.oids, cmd.params = append(cmd.oids, oidTextArray), append(cmd.params, []byte(textArray(list)))
	}
}

func setTime(name string, d time.Duration) string {
	return "SET LOCAL " + name + " = " + millis(d)
}

// parsePlan reads a plan. What its writes change, those of WITH too, is what the plans
// below them give.
func parsePlan(text string) (*Plan, error) {
	type node struct {
		Type    string  `json:"Node Type"`
		Kind    string  `json:"Operation"`
		Parent  string  `json:"Parent Relationship"`
		Rows    float64 `json:"Plan Rows"`
		Startup float64 `json:"Startup Cost"`
		Total   float64 `json:"Total Cost"`
		Plans   []node  `json:"Plans"`
	}
	var plans []struct{ Plan node }
	if err := json.Unmarshal([]byte(text), &plans); err != nil || len(plans) != 1 {
		return nil, fmt.Errorf("a plan of %d parts: %w", len(plans), err)
	}
	top := plans[0].Plan
	p := &Plan{Node: top.Type, Rows: int64(top.Rows), StartupCost: top.Startup, TotalCost: top.Total}
	var changed float64
	writes := false
	var walk func(node)
	walk = func(n node) {
		for _, below := range n.Plans {
			if n.Type == "ModifyTable" && below.Parent == "Outer" { // others are subqueries, which come first
				changed, writes = changed+below.Rows, true
				if below.Type == "Append" {
					p.Parts += len(below.Plans)
				}
			}
			walk(below)
		}
	}
	if walk(top); writes {
		p.Rows = int64(changed)
	}
	if top.Type == "ModifyTable" {
		p.Node = top.Kind
	}
	return p, nil
}
