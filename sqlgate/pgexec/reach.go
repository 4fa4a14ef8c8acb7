package pgexec

import (
	"context"
	"encoding/json"
	"strconv"
	"time"
)

// A Reached is a table that a write reaches: one that it names, one whose rows hang on
// those by a foreign key that takes them along, one behind a view, or a partition.
type Reached struct {
	Table    string   `json:"table"`    // schema.table
	How      string   `json:"how"`      // named; cascade, set_null, set_default: with rows deleted; key_changed: with keys; emptied: by TRUNCATE ... CASCADE; view: behind one; partition: of one, with triggers of its own
	From     string   `json:"from"`     // the table, or the view, that it is reached from; "" = named
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

// TruncateCascades says, beside TriggersTruncate, that what refers to the tables is emptied too.
const TruncateCascades = 1 << 16 // no bit of pg_trigger.tgtype, which is an int2

// reachSQL looks at catalogues alone, so nothing of a user's runs and no table is locked.
// Rows of partitions and of tables below go with those of the table above, whose keys and
// row triggers they have too: what is theirs alone is looked for there. A rule counts as
// a trigger, and behind a view stands each table that it reads.
const reachSQL = `WITH RECURSIVE name AS (SELECT c.oid, pg_catalog.concat(n.nspname, '.', c.relname) AS said, c.reltuples, c.relpages
  FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace WHERE c.relkind OPERATOR(pg_catalog.=) ANY ('{r,p,v,m,f}'::"char"[])),
reached AS (
 SELECT name.oid, name.said, 'named'::pg_catalog.text AS how, ''::pg_catalog.text COLLATE pg_catalog."C" AS source, $2::pg_catalog.int4 AS events FROM name WHERE name.said OPERATOR(pg_catalog.=) ANY ($1)
 UNION SELECT name.oid, name.said, next.how, reached.said, next.events FROM reached CROSS JOIN LATERAL (
  SELECT f.conrelid AS oid, CASE WHEN f.confdeltype OPERATOR(pg_catalog.=) 'c'::"char" THEN 'cascade' WHEN f.confdeltype OPERATOR(pg_catalog.=) 'n'::"char" THEN 'set_null' ELSE 'set_default' END AS how,
   CASE WHEN f.confdeltype OPERATOR(pg_catalog.=) 'c'::"char" THEN 8 ELSE 16 END AS events
   FROM pg_catalog.pg_constraint AS f WHERE f.confrelid OPERATOR(pg_catalog.=) reached.oid
   AND f.contype OPERATOR(pg_catalog.=) 'f'::"char" AND f.confdeltype OPERATOR(pg_catalog.=) ANY ('{c,n,d}'::"char"[]) AND (reached.events OPERATOR(pg_catalog.&) 8) OPERATOR(pg_catalog.<>) 0
   AND NOT EXISTS (SELECT FROM pg_catalog.pg_constraint AS above WHERE above.oid OPERATOR(pg_catalog.=) f.conparentid AND (above.confrelid OPERATOR(pg_catalog.=) f.confrelid OR reached.how OPERATOR(pg_catalog.=) 'partition'))
  UNION ALL SELECT f.conrelid, 'key_changed', 16
   FROM pg_catalog.pg_constraint AS f JOIN pg_catalog.pg_attribute AS a ON a.attrelid OPERATOR(pg_catalog.=) f.confrelid AND a.attnum OPERATOR(pg_catalog.=) ANY (f.confkey) WHERE f.confrelid OPERATOR(pg_catalog.=) reached.oid
   AND f.contype OPERATOR(pg_catalog.=) 'f'::"char" AND f.confupdtype OPERATOR(pg_catalog.=) ANY ('{c,n,d}'::"char"[]) AND (reached.events OPERATOR(pg_catalog.&) 16) OPERATOR(pg_catalog.<>) 0
   AND (pg_catalog.concat(reached.said, '.', a.attname) OPERATOR(pg_catalog.=) ANY ($3) OR pg_catalog.concat(reached.said, '.*') OPERATOR(pg_catalog.=) ANY ($3) OR reached.how OPERATOR(pg_catalog.=) ANY ('{view,partition,key_changed,set_null,set_default}'::pg_catalog.text[]))
   AND NOT EXISTS (SELECT FROM pg_catalog.pg_constraint AS above WHERE above.oid OPERATOR(pg_catalog.=) f.conparentid AND (above.confrelid OPERATOR(pg_catalog.=) f.confrelid OR reached.how OPERATOR(pg_catalog.=) 'partition'))
  UNION ALL SELECT f.conrelid, 'emptied', reached.events FROM pg_catalog.pg_constraint AS f WHERE f.confrelid OPERATOR(pg_catalog.=) reached.oid AND f.conrelid OPERATOR(pg_catalog.<>) reached.oid
   AND f.contype OPERATOR(pg_catalog.=) 'f'::"char" AND (reached.events OPERATOR(pg_catalog.&) 65536) OPERATOR(pg_catalog.<>) 0
   AND NOT EXISTS (SELECT FROM pg_catalog.pg_constraint AS above WHERE above.oid OPERATOR(pg_catalog.=) f.conparentid AND (above.confrelid OPERATOR(pg_catalog.=) f.confrelid OR reached.how OPERATOR(pg_catalog.=) 'partition'))
  UNION ALL SELECT i.inhrelid, 'partition', reached.events FROM pg_catalog.pg_inherits AS i WHERE i.inhparent OPERATOR(pg_catalog.=) reached.oid
  UNION ALL SELECT d.refobjid, 'view', reached.events FROM pg_catalog.pg_rewrite AS w JOIN pg_catalog.pg_depend AS d ON d.objid OPERATOR(pg_catalog.=) w.oid
   WHERE w.ev_class OPERATOR(pg_catalog.=) reached.oid AND w.ev_type OPERATOR(pg_catalog.=) '1'::"char" AND d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_rewrite'::pg_catalog.regclass::pg_catalog.oid
   AND d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_class'::pg_catalog.regclass::pg_catalog.oid AND d.refobjid OPERATOR(pg_catalog.<>) reached.oid) AS next
  JOIN name ON name.oid OPERATOR(pg_catalog.=) next.oid)
SELECT COALESCE(pg_catalog.json_agg(r.one), '[]'::pg_catalog.json)::pg_catalog.text FROM (
 SELECT pg_catalog.json_build_object('table', r.said, 'how', r.how, 'from', r.source,
  'rows', CASE WHEN name.reltuples OPERATOR(pg_catalog.>=) 0::pg_catalog.float4 THEN name.reltuples::pg_catalog.int8 END,
  'bytes', GREATEST(name.relpages, 0)::pg_catalog.int8 OPERATOR(pg_catalog.*) pg_catalog.current_setting('block_size')::pg_catalog.int8,
  'triggers', COALESCE(fired.list, '[]'::pg_catalog.json)) AS one
 FROM reached AS r JOIN name ON name.oid OPERATOR(pg_catalog.=) r.oid CROSS JOIN LATERAL (SELECT pg_catalog.json_agg(x.said) AS list FROM (
  SELECT pg_catalog.concat(t.tgname, ', which calls ', n.nspname, '.', p.proname) AS said
   FROM pg_catalog.pg_trigger AS t JOIN pg_catalog.pg_proc AS p ON p.oid OPERATOR(pg_catalog.=) t.tgfoid JOIN pg_catalog.pg_namespace AS n ON n.oid OPERATOR(pg_catalog.=) p.pronamespace
   WHERE t.tgrelid OPERATOR(pg_catalog.=) r.oid AND NOT t.tgisinternal AND t.tgenabled OPERATOR(pg_catalog.<>) 'D'::"char"
   AND (t.tgtype::pg_catalog.int4 OPERATOR(pg_catalog.&) r.events) OPERATOR(pg_catalog.<>) 0
   AND (r.how OPERATOR(pg_catalog.<>) 'partition' OR t.tgparentid OPERATOR(pg_catalog.=) 0::pg_catalog.oid AND (t.tgtype::pg_catalog.int4 OPERATOR(pg_catalog.&) 33) OPERATOR(pg_catalog.<>) 0)
  UNION ALL SELECT pg_catalog.concat('the rule ', w.rulename, ', which has statements of its own')
   FROM pg_catalog.pg_rewrite AS w WHERE w.ev_class OPERATOR(pg_catalog.=) r.oid AND w.ev_enabled OPERATOR(pg_catalog.<>) 'D'::"char" AND r.how OPERATOR(pg_catalog.<>) 'partition'
   AND (r.events OPERATOR(pg_catalog.&) CASE w.ev_type WHEN '2'::"char" THEN 16 WHEN '3'::"char" THEN 4 WHEN '4'::"char" THEN 8 ELSE 0 END) OPERATOR(pg_catalog.<>) 0) AS x) AS fired
 WHERE r.how OPERATOR(pg_catalog.<>) 'partition' OR fired.list IS NOT NULL LIMIT 50) AS r`

// Reach says which tables a write reaches that names some, writes columns and fires
// triggers of events, with foreign keys that delete or change rows elsewhere; it gives the
// connection back. nil is that the server did not say in time.
func (r *Reading) Reach(ctx context.Context, named, columns []string, events int) (tables []Reached) {
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
	look.oids, look.params = []uint32{oidTextArray, oidInt4, oidTextArray}, [][]byte{[]byte(textArray(named)), []byte(strconv.Itoa(events)), []byte(textArray(columns))}
	refused, err := l.exchange(ctx, deadline, segment{own("BEGIN READ ONLY"), own(setTime("statement_timeout", db.cfg.PlanTime)), own(setTime("lock_timeout", planLockTime)), look})
	if err != nil || refused != nil || json.Unmarshal([]byte(found.text(0)), &tables) != nil {
		return nil
	}
	return tables
}
