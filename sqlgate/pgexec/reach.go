package pgexec

import (
	"context"
	"encoding/json"
	"strconv"
	"time"
)

// A Reached is a table that a write reaches: one that it names, or one whose rows hang
// on those by a foreign key that takes them along.
type Reached struct {
	Table    string   `json:"table"`    // schema.table
	How      string   `json:"how"`      // named, cascade, set_null or set_default
	From     string   `json:"from"`     // the table whose deleted rows take them along; "" = named
	Rows     *int64   `json:"rows"`     // in all, by the server's last count; nil = never counted
	Bytes    int64    `json:"bytes"`    // of its rows, by the same count
	Triggers []string `json:"triggers"` // that fire, with the function that each calls
}

// Events of triggers (pg_trigger.tgtype).
const (
	TriggersInsert   = 1 << 2
	TriggersDelete   = 1 << 3
	TriggersUpdate   = 1 << 4
	TriggersTruncate = 1 << 5
)

// reachSQL looks at catalogues alone, so nothing of a user's runs and no table is locked.
const reachSQL = `WITH RECURSIVE name AS (SELECT c.oid, pg_catalog.concat(n.nspname, '.', c.relname) AS said, c.reltuples, c.relpages
  FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace WHERE c.relkind OPERATOR(pg_catalog.=) ANY ('{r,p,v,m,f}'::"char"[])),
reached AS (
 SELECT name.oid, name.said, 'named'::pg_catalog.text AS how, ''::pg_catalog.text COLLATE pg_catalog."C" AS source, $2::pg_catalog.int4 AS events FROM name WHERE name.said OPERATOR(pg_catalog.=) ANY ($1)
 UNION SELECT name.oid, name.said, CASE WHEN f.confdeltype OPERATOR(pg_catalog.=) 'c'::"char" THEN 'cascade' WHEN f.confdeltype OPERATOR(pg_catalog.=) 'n'::"char" THEN 'set_null' ELSE 'set_default' END,
  reached.said, CASE WHEN f.confdeltype OPERATOR(pg_catalog.=) 'c'::"char" THEN 8 ELSE 16 END
  FROM reached JOIN pg_catalog.pg_constraint AS f ON f.confrelid OPERATOR(pg_catalog.=) reached.oid JOIN name ON name.oid OPERATOR(pg_catalog.=) f.conrelid
  WHERE f.contype OPERATOR(pg_catalog.=) 'f'::"char" AND f.confdeltype OPERATOR(pg_catalog.=) ANY ('{c,n,d}'::"char"[]) AND (reached.events OPERATOR(pg_catalog.&) 8) OPERATOR(pg_catalog.<>) 0)
SELECT COALESCE(pg_catalog.json_agg(pg_catalog.json_build_object('table', r.said, 'how', r.how, 'from', r.source,
  'rows', CASE WHEN name.reltuples OPERATOR(pg_catalog.>=) 0::pg_catalog.float4 THEN name.reltuples::pg_catalog.int8 END,
  'bytes', name.relpages::pg_catalog.int8 OPERATOR(pg_catalog.*) pg_catalog.current_setting('block_size')::pg_catalog.int8,
  'triggers', COALESCE((SELECT pg_catalog.json_agg(pg_catalog.concat(t.tgname, ', which calls ', n.nspname, '.', p.proname))
   FROM pg_catalog.pg_trigger AS t JOIN pg_catalog.pg_proc AS p ON p.oid OPERATOR(pg_catalog.=) t.tgfoid JOIN pg_catalog.pg_namespace AS n ON n.oid OPERATOR(pg_catalog.=) p.pronamespace
   WHERE t.tgrelid OPERATOR(pg_catalog.=) r.oid AND NOT t.tgisinternal AND t.tgenabled OPERATOR(pg_catalog.<>) 'D'::"char"
   AND (t.tgtype::pg_catalog.int4 OPERATOR(pg_catalog.&) r.events) OPERATOR(pg_catalog.<>) 0), '[]'::pg_catalog.json)))
 , '[]'::pg_catalog.json)::pg_catalog.text
 FROM (SELECT * FROM reached LIMIT 50) AS r JOIN name ON name.oid OPERATOR(pg_catalog.=) r.oid`

// Reach says which tables a write reaches that names some and fires triggers of events,
// with foreign keys that delete or change rows elsewhere where it deletes; it gives the
// connection back. nil is that the server did not say in time.
func (r *Reading) Reach(ctx context.Context, named []string, events int) (tables []Reached) {
	defer r.Release()
	db, l := r.db, r.lease
	ctx, cancel := context.WithTimeout(ctx, 2*db.cfg.PlanTime)
	defer cancel()
	if l.cleanFirst() != nil {
		return nil
	}
	l.dirty = true
	deadline := time.Now().Add(2 * db.cfg.PlanTime)
	defer func() {
		if !l.broken {
			l.rollback(deadline.Add(rollbackWait))
		}
	}()
	look, found := query(reachSQL)
	look.oids, look.params = []uint32{oidTextArray, oidInt4}, [][]byte{[]byte(textArray(named)), []byte(strconv.Itoa(events))}
	refused, err := l.exchange(ctx, deadline, segment{own("BEGIN READ ONLY"), own(setTime("statement_timeout", db.cfg.PlanTime)), own(setTime("lock_timeout", planLockTime)), look})
	if err != nil || refused != nil || json.Unmarshal([]byte(found.text(0)), &tables) != nil {
		return nil
	}
	return tables
}
