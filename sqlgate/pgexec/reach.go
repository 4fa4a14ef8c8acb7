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
	Table    string   `json:"table"`           // schema.table
	How      string   `json:"how"`             // named; cascade, set_null, set_default: with rows deleted; key_changed: with keys; emptied: by TRUNCATE ... CASCADE; view: behind one; rule: named by a rule of it; partition: of one, with triggers of its own; child: inherits from it
	From     string   `json:"from"`            // the table, or the view, that it is reached from; "" = named
	Rows     *int64   `json:"rows"`            // in all, by the server's last count, or its counters where much was changed since; nil = never counted
	Old      bool     `json:"old,omitempty"`   // much was changed since the server counted, so its estimates of the table are of other rows
	Bytes    int64    `json:"bytes"`           // of its rows, by the same count
	Triggers []string `json:"triggers"`        // what runs with it: triggers, rules, and functions of users' in defaults, checks, indexes and policies
	Moves    bool     `json:"moves,omitempty"` // rows may go to another partition: each that does is deleted and inserted
}

// A Reach is what a write reaches, by the catalogues.
type Reach struct {
	Tables []Reached `json:"tables"`
	More   int       `json:"more"` // tables beyond those that are listed
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

// mostReached is how many tables are listed.
const mostReached = 50

// reachSQL looks at catalogues alone, so nothing of a user's runs and no table is locked.
// Rows of partitions and of tables below go with those of the table above, whose keys and
// row triggers they have too: what is theirs alone is looked for there. A rule counts as
// a trigger, and so does a function of a user's that a default, a check, an index, a partition
// key or a policy calls, unless an extension brought it. Behind a view stands each table that
// it reads, unless a rule or a trigger does something instead: then what the rule names may
// be written. What a rule does, its stored form says (CmdType of nodes.h, the same in 15 to 18). An UPDATE of a partition key (131072) moves rows, so that row triggers of DELETE
// and INSERT fire; a generated column may change with any other. What is not named and has no
// trigger comes last, where the list is cut. Counts are old where more rows were changed since
// than there were, and no fewer are there; a load that its own session counts at once is counted twice by the server.
const reachSQL = `WITH RECURSIVE name AS (SELECT c.oid, pg_catalog.concat(n.nspname, '.', c.relname) AS said, c.reltuples, c.relpages, c.relkind OPERATOR(pg_catalog.=) 'p'::"char" AS parted
  FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace WHERE c.relkind OPERATOR(pg_catalog.=) ANY ('{r,p,v,m,f}'::"char"[])),
reached AS (
 SELECT name.oid, name.said, 'named'::pg_catalog.text AS how, ''::pg_catalog.text COLLATE pg_catalog."C" AS source, $2::pg_catalog.int4 OPERATOR(pg_catalog.|) CASE WHEN name.parted AND ($2 OPERATOR(pg_catalog.&) 16) OPERATOR(pg_catalog.<>) 0 AND EXISTS (
   SELECT FROM pg_catalog.pg_partitioned_table AS p LEFT JOIN pg_catalog.pg_attribute AS a ON a.attrelid OPERATOR(pg_catalog.=) p.partrelid AND a.attnum OPERATOR(pg_catalog.=) ANY (p.partattrs)
   WHERE pg_catalog.pg_partition_root(p.partrelid::pg_catalog.regclass)::pg_catalog.oid OPERATOR(pg_catalog.=) pg_catalog.pg_partition_root(name.oid::pg_catalog.regclass)::pg_catalog.oid AND (0::pg_catalog.int2 OPERATOR(pg_catalog.=) ANY (p.partattrs)
   OR pg_catalog.concat(name.said, '.', a.attname) OPERATOR(pg_catalog.=) ANY ($3) OR pg_catalog.concat(name.said, '.*') OPERATOR(pg_catalog.=) ANY ($3))) THEN 131072 ELSE 0 END AS events FROM name WHERE name.said OPERATOR(pg_catalog.=) ANY ($1)
 UNION SELECT name.oid, name.said, next.how, reached.said, next.events OPERATOR(pg_catalog.|) CASE WHEN name.parted AND next.how OPERATOR(pg_catalog.<>) ALL ('{partition,child}'::pg_catalog.text[]) AND (next.events OPERATOR(pg_catalog.&) 16) OPERATOR(pg_catalog.<>) 0 THEN 131072 ELSE 0 END FROM reached CROSS JOIN LATERAL (
  SELECT f.conrelid AS oid, CASE WHEN f.confdeltype OPERATOR(pg_catalog.=) 'c'::"char" THEN 'cascade' WHEN f.confdeltype OPERATOR(pg_catalog.=) 'n'::"char" THEN 'set_null' ELSE 'set_default' END AS how,
   CASE WHEN f.confdeltype OPERATOR(pg_catalog.=) 'c'::"char" THEN 8 ELSE 16 END AS events
   FROM pg_catalog.pg_constraint AS f WHERE f.confrelid OPERATOR(pg_catalog.=) reached.oid
   AND f.contype OPERATOR(pg_catalog.=) 'f'::"char" AND f.confdeltype OPERATOR(pg_catalog.=) ANY ('{c,n,d}'::"char"[]) AND (reached.events OPERATOR(pg_catalog.&) 8) OPERATOR(pg_catalog.<>) 0
   AND NOT EXISTS (SELECT FROM pg_catalog.pg_constraint AS above WHERE above.oid OPERATOR(pg_catalog.=) f.conparentid AND (above.confrelid OPERATOR(pg_catalog.=) f.confrelid OR reached.how OPERATOR(pg_catalog.=) ANY ('{partition,child}'::pg_catalog.text[])))
  UNION ALL SELECT f.conrelid, 'key_changed', 16
   FROM pg_catalog.pg_constraint AS f JOIN pg_catalog.pg_attribute AS a ON a.attrelid OPERATOR(pg_catalog.=) f.confrelid AND a.attnum OPERATOR(pg_catalog.=) ANY (f.confkey) WHERE f.confrelid OPERATOR(pg_catalog.=) reached.oid
   AND f.contype OPERATOR(pg_catalog.=) 'f'::"char" AND f.confupdtype OPERATOR(pg_catalog.=) ANY ('{c,n,d}'::"char"[]) AND (reached.events OPERATOR(pg_catalog.&) 16) OPERATOR(pg_catalog.<>) 0
   AND (pg_catalog.concat(reached.said, '.', a.attname) OPERATOR(pg_catalog.=) ANY ($3) OR a.attgenerated OPERATOR(pg_catalog.<>) ''::"char" OR pg_catalog.concat(reached.said, '.*') OPERATOR(pg_catalog.=) ANY ($3) OR reached.how OPERATOR(pg_catalog.=) ANY ('{view,partition,child,key_changed,set_null,set_default,rule}'::pg_catalog.text[]))
   AND NOT EXISTS (SELECT FROM pg_catalog.pg_constraint AS above WHERE above.oid OPERATOR(pg_catalog.=) f.conparentid AND (above.confrelid OPERATOR(pg_catalog.=) f.confrelid OR reached.how OPERATOR(pg_catalog.=) ANY ('{partition,child}'::pg_catalog.text[])))
  UNION ALL SELECT f.conrelid, 'emptied', reached.events FROM pg_catalog.pg_constraint AS f WHERE f.confrelid OPERATOR(pg_catalog.=) reached.oid AND f.conrelid OPERATOR(pg_catalog.<>) reached.oid
   AND f.contype OPERATOR(pg_catalog.=) 'f'::"char" AND (reached.events OPERATOR(pg_catalog.&) 65536) OPERATOR(pg_catalog.<>) 0
   AND NOT EXISTS (SELECT FROM pg_catalog.pg_constraint AS above WHERE above.oid OPERATOR(pg_catalog.=) f.conparentid AND (above.confrelid OPERATOR(pg_catalog.=) f.confrelid OR reached.how OPERATOR(pg_catalog.=) ANY ('{partition,child}'::pg_catalog.text[])))
  UNION ALL SELECT i.inhrelid, CASE WHEN c.relispartition THEN 'partition' ELSE 'child' END, CASE WHEN c.relispartition THEN reached.events ELSE reached.events OPERATOR(pg_catalog.&) 196664 END
   FROM pg_catalog.pg_inherits AS i JOIN pg_catalog.pg_class AS c ON c.oid OPERATOR(pg_catalog.=) i.inhrelid WHERE i.inhparent OPERATOR(pg_catalog.=) reached.oid AND (c.relispartition OR (reached.events OPERATOR(pg_catalog.&) 56) OPERATOR(pg_catalog.<>) 0)
  UNION ALL SELECT d.refobjid, 'rule', does.events FROM pg_catalog.pg_rewrite AS w JOIN pg_catalog.pg_depend AS d ON d.objid OPERATOR(pg_catalog.=) w.oid
   CROSS JOIN LATERAL (SELECT CASE WHEN pg_catalog.strpos(w.ev_action::pg_catalog.text, '{QUERY :commandType 2 ') OPERATOR(pg_catalog.>) 0 THEN 16 ELSE 0 END OPERATOR(pg_catalog.|) CASE WHEN pg_catalog.strpos(w.ev_action::pg_catalog.text, '{QUERY :commandType 3 ') OPERATOR(pg_catalog.>) 0 THEN 4 ELSE 0 END OPERATOR(pg_catalog.|) CASE WHEN pg_catalog.strpos(w.ev_action::pg_catalog.text, '{QUERY :commandType 4 ') OPERATOR(pg_catalog.>) 0 THEN 8 ELSE 0 END OPERATOR(pg_catalog.|) CASE WHEN pg_catalog.strpos(w.ev_action::pg_catalog.text, '{QUERY :commandType 5 ') OPERATOR(pg_catalog.>) 0 THEN 28 ELSE 0 END OPERATOR(pg_catalog.|) CASE WHEN pg_catalog.strpos(w.ev_action::pg_catalog.text, '{ONCONFLICTEXPR :action 2 ') OPERATOR(pg_catalog.>) 0 THEN 16 ELSE 0 END AS events) AS does
   WHERE w.ev_class OPERATOR(pg_catalog.=) reached.oid AND w.ev_enabled OPERATOR(pg_catalog.<>) ALL ('{D,R}'::"char"[]) AND (reached.events OPERATOR(pg_catalog.&) CASE w.ev_type WHEN '2'::"char" THEN 16 WHEN '3'::"char" THEN 4 WHEN '4'::"char" THEN 8 ELSE 0 END) OPERATOR(pg_catalog.<>) 0
   AND d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_rewrite'::pg_catalog.regclass::pg_catalog.oid AND d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_class'::pg_catalog.regclass::pg_catalog.oid
   AND d.refobjid OPERATOR(pg_catalog.<>) reached.oid AND reached.how OPERATOR(pg_catalog.<>) ALL ('{partition,child}'::pg_catalog.text[]) AND does.events OPERATOR(pg_catalog.<>) 0
  UNION ALL SELECT d.refobjid, 'view', through.events FROM pg_catalog.pg_rewrite AS w JOIN pg_catalog.pg_depend AS d ON d.objid OPERATOR(pg_catalog.=) w.oid
   JOIN pg_catalog.pg_class AS c ON c.oid OPERATOR(pg_catalog.=) w.ev_class AND c.relkind OPERATOR(pg_catalog.=) 'v'::"char"
   CROSS JOIN LATERAL (SELECT reached.events OPERATOR(pg_catalog.#) (reached.events OPERATOR(pg_catalog.&) COALESCE((SELECT pg_catalog.bit_or(instead.events) FROM (
     SELECT CASE u.ev_type WHEN '2'::"char" THEN 16 WHEN '3'::"char" THEN 4 WHEN '4'::"char" THEN 8 ELSE 0 END AS events FROM pg_catalog.pg_rewrite AS u
      WHERE u.ev_class OPERATOR(pg_catalog.=) c.oid AND u.is_instead AND u.ev_enabled OPERATOR(pg_catalog.<>) ALL ('{D,R}'::"char"[])
     UNION ALL SELECT t.tgtype::pg_catalog.int4 OPERATOR(pg_catalog.&) 28 FROM pg_catalog.pg_trigger AS t WHERE t.tgrelid OPERATOR(pg_catalog.=) c.oid AND t.tgenabled OPERATOR(pg_catalog.<>) ALL ('{D,R}'::"char"[])) AS instead), 0)) AS events) AS through
   WHERE (through.events OPERATOR(pg_catalog.&) 28) OPERATOR(pg_catalog.<>) 0 AND w.ev_class OPERATOR(pg_catalog.=) reached.oid AND w.ev_type OPERATOR(pg_catalog.=) '1'::"char" AND d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_rewrite'::pg_catalog.regclass::pg_catalog.oid
   AND d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_class'::pg_catalog.regclass::pg_catalog.oid AND d.refobjid OPERATOR(pg_catalog.<>) reached.oid) AS next
  JOIN name ON name.oid OPERATOR(pg_catalog.=) next.oid)
SELECT pg_catalog.json_build_object('tables', COALESCE(pg_catalog.json_agg(r.one ORDER BY r.place), '[]'::pg_catalog.json), 'more', COALESCE(pg_catalog.max(r.all) OPERATOR(pg_catalog.-) pg_catalog.count(*), 0::pg_catalog.int8))::pg_catalog.text FROM (
 SELECT pg_catalog.row_number() OVER listed AS place, pg_catalog.count(*) OVER () AS all, pg_catalog.json_build_object('table', r.said, 'how', r.how, 'from', r.source,
  'rows', counted.rows, 'old', counted.old,
  'bytes', GREATEST(name.relpages, 0)::pg_catalog.int8 OPERATOR(pg_catalog.*) pg_catalog.current_setting('block_size')::pg_catalog.int8,
  'triggers', COALESCE(fired.list, '[]'::pg_catalog.json), 'moves', (r.events OPERATOR(pg_catalog.&) 131072) OPERATOR(pg_catalog.<>) 0) AS one
 FROM reached AS r JOIN name ON name.oid OPERATOR(pg_catalog.=) r.oid
 CROSS JOIN LATERAL (SELECT pg_catalog.pg_stat_get_live_tuples(r.oid) AS live, name.reltuples OPERATOR(pg_catalog.>=) 0::pg_catalog.float4 AND pg_catalog.pg_stat_get_live_tuples(r.oid)::pg_catalog.float8 OPERATOR(pg_catalog.>=) name.reltuples::pg_catalog.float8 AND pg_catalog.pg_stat_get_mod_since_analyze(r.oid)::pg_catalog.float8 OPERATOR(pg_catalog.>) (50::pg_catalog.float8 OPERATOR(pg_catalog.+) (name.reltuples::pg_catalog.float8 OPERATOR(pg_catalog.*) 1.1::pg_catalog.float8)) AS old) AS now
 CROSS JOIN LATERAL (SELECT CASE WHEN now.old AND now.live OPERATOR(pg_catalog.>) 0::pg_catalog.int8 THEN now.live WHEN name.reltuples OPERATOR(pg_catalog.>=) 0::pg_catalog.float4 THEN name.reltuples::pg_catalog.int8 END AS rows, now.old) AS counted
 CROSS JOIN LATERAL (SELECT pg_catalog.json_agg(x.said ORDER BY x.said COLLATE pg_catalog."C") AS list FROM (
  SELECT pg_catalog.concat(t.tgname, CASE WHEN t.tgqual IS NOT NULL THEN ' (where its WHEN holds)' END, ', which calls ', n.nspname, '.', p.proname) AS said
   FROM pg_catalog.pg_trigger AS t JOIN pg_catalog.pg_proc AS p ON p.oid OPERATOR(pg_catalog.=) t.tgfoid JOIN pg_catalog.pg_namespace AS n ON n.oid OPERATOR(pg_catalog.=) p.pronamespace
   WHERE t.tgrelid OPERATOR(pg_catalog.=) r.oid AND NOT t.tgisinternal AND t.tgenabled OPERATOR(pg_catalog.<>) ALL ('{D,R}'::"char"[])
   AND ((t.tgtype::pg_catalog.int4 OPERATOR(pg_catalog.&) r.events) OPERATOR(pg_catalog.<>) 0 OR (r.events OPERATOR(pg_catalog.&) 131072) OPERATOR(pg_catalog.<>) 0
    AND (t.tgtype::pg_catalog.int4 OPERATOR(pg_catalog.&) 12) OPERATOR(pg_catalog.<>) 0 AND (t.tgtype::pg_catalog.int4 OPERATOR(pg_catalog.&) 1) OPERATOR(pg_catalog.=) 1)
   AND (r.how OPERATOR(pg_catalog.<>) ALL ('{named,key_changed,set_null,set_default}'::pg_catalog.text[]) OR pg_catalog.cardinality(t.tgattr::pg_catalog.int2[]) OPERATOR(pg_catalog.=) 0 OR (t.tgtype::pg_catalog.int4 OPERATOR(pg_catalog.&) r.events OPERATOR(pg_catalog.&) 12) OPERATOR(pg_catalog.<>) 0 OR pg_catalog.concat(r.said, '.*') OPERATOR(pg_catalog.=) ANY ($3)
    OR EXISTS (SELECT FROM pg_catalog.pg_attribute AS a WHERE a.attrelid OPERATOR(pg_catalog.=) r.oid AND a.attnum OPERATOR(pg_catalog.=) ANY (t.tgattr) AND (a.attgenerated OPERATOR(pg_catalog.<>) ''::"char"
     OR r.how OPERATOR(pg_catalog.=) 'named' AND pg_catalog.concat(r.said, '.', a.attname) OPERATOR(pg_catalog.=) ANY ($3)
     OR r.how OPERATOR(pg_catalog.<>) 'named' AND EXISTS (SELECT FROM pg_catalog.pg_constraint AS f WHERE f.conrelid OPERATOR(pg_catalog.=) r.oid AND f.contype OPERATOR(pg_catalog.=) 'f'::"char" AND a.attnum OPERATOR(pg_catalog.=) ANY (f.conkey)))))
   AND (r.how OPERATOR(pg_catalog.<>) ALL ('{partition,child}'::pg_catalog.text[]) OR t.tgparentid OPERATOR(pg_catalog.=) 0::pg_catalog.oid AND (t.tgtype::pg_catalog.int4 OPERATOR(pg_catalog.&) 33) OPERATOR(pg_catalog.<>) 0)
  UNION ALL SELECT pg_catalog.concat('the rule ', w.rulename, CASE WHEN NOT w.is_instead THEN ', which has statements of its own' WHEN pg_catalog.starts_with(w.ev_action::pg_catalog.text, '({QUERY :commandType 7 ') THEN ', which does nothing instead' ELSE ', whose statements run instead' END)
   FROM pg_catalog.pg_rewrite AS w WHERE w.ev_class OPERATOR(pg_catalog.=) r.oid AND w.ev_enabled OPERATOR(pg_catalog.<>) ALL ('{D,R}'::"char"[]) AND r.how OPERATOR(pg_catalog.<>) ALL ('{partition,child}'::pg_catalog.text[])
   AND (r.events OPERATOR(pg_catalog.&) CASE w.ev_type WHEN '2'::"char" THEN 16 WHEN '3'::"char" THEN 4 WHEN '4'::"char" THEN 8 ELSE 0 END) OPERATOR(pg_catalog.<>) 0
  UNION ALL SELECT pg_catalog.concat(code.what, ', which calls ', n.nspname, '.', p.proname) FROM (
   SELECT 'pg_catalog.pg_attrdef'::pg_catalog.regclass::pg_catalog.oid AS classid, d.oid AS objid, pg_catalog.concat('the default of ', a.attname) AS what
    FROM pg_catalog.pg_attrdef AS d JOIN pg_catalog.pg_attribute AS a ON a.attrelid OPERATOR(pg_catalog.=) d.adrelid AND a.attnum OPERATOR(pg_catalog.=) d.adnum WHERE d.adrelid OPERATOR(pg_catalog.=) r.oid AND r.how OPERATOR(pg_catalog.<>) ALL ('{partition,child}'::pg_catalog.text[])
    AND ((r.events OPERATOR(pg_catalog.&) 4) OPERATOR(pg_catalog.<>) 0 OR r.how OPERATOR(pg_catalog.=) 'set_default' OR a.attgenerated OPERATOR(pg_catalog.<>) ''::"char" AND (r.events OPERATOR(pg_catalog.&) 16) OPERATOR(pg_catalog.<>) 0)
   UNION ALL SELECT 'pg_catalog.pg_constraint'::pg_catalog.regclass, k.oid, pg_catalog.concat('the check ', k.conname) FROM pg_catalog.pg_constraint AS k
    WHERE k.conrelid OPERATOR(pg_catalog.=) r.oid AND (r.events OPERATOR(pg_catalog.&) 20) OPERATOR(pg_catalog.<>) 0 AND (r.how OPERATOR(pg_catalog.<>) ALL ('{partition,child}'::pg_catalog.text[]) OR k.conislocal)
   UNION ALL SELECT 'pg_catalog.pg_constraint'::pg_catalog.regclass, k.oid, pg_catalog.concat('the domain of ', a.attname) FROM pg_catalog.pg_attribute AS a JOIN pg_catalog.pg_type AS t ON t.oid OPERATOR(pg_catalog.=) a.atttypid
    LEFT JOIN pg_catalog.pg_type AS u ON u.oid OPERATOR(pg_catalog.=) ANY (ARRAY[t.typelem, t.typbasetype]) AND u.oid OPERATOR(pg_catalog.>=) 16384::pg_catalog.oid
    JOIN pg_catalog.pg_constraint AS k ON k.contypid OPERATOR(pg_catalog.=) ANY (ARRAY[t.oid, u.oid, u.typelem, u.typbasetype]) AND k.contypid OPERATOR(pg_catalog.<>) 0::pg_catalog.oid
    WHERE a.attrelid OPERATOR(pg_catalog.=) r.oid AND a.attnum OPERATOR(pg_catalog.>) 0 AND a.atttypid OPERATOR(pg_catalog.>=) 16384::pg_catalog.oid AND (r.events OPERATOR(pg_catalog.&) 20) OPERATOR(pg_catalog.<>) 0 AND r.how OPERATOR(pg_catalog.<>) ALL ('{partition,child}'::pg_catalog.text[])
   UNION ALL SELECT 'pg_catalog.pg_class'::pg_catalog.regclass, i.indexrelid, pg_catalog.concat('the index ', c.relname) FROM pg_catalog.pg_index AS i JOIN pg_catalog.pg_class AS c ON c.oid OPERATOR(pg_catalog.=) i.indexrelid
    WHERE i.indrelid OPERATOR(pg_catalog.=) r.oid AND (r.events OPERATOR(pg_catalog.&) 20) OPERATOR(pg_catalog.<>) 0 AND (r.how OPERATOR(pg_catalog.<>) ALL ('{partition,child}'::pg_catalog.text[]) OR NOT c.relispartition)
   UNION ALL SELECT 'pg_catalog.pg_class'::pg_catalog.regclass, r.oid, 'the partition key' WHERE (r.events OPERATOR(pg_catalog.&) 20) OPERATOR(pg_catalog.<>) 0
   UNION ALL SELECT 'pg_catalog.pg_policy'::pg_catalog.regclass, y.oid, pg_catalog.concat('the policy ', y.polname) FROM pg_catalog.pg_policy AS y JOIN pg_catalog.pg_class AS c ON c.oid OPERATOR(pg_catalog.=) y.polrelid
    WHERE y.polrelid OPERATOR(pg_catalog.=) r.oid AND c.relrowsecurity AND r.how OPERATOR(pg_catalog.=) ANY ('{named,view}'::pg_catalog.text[])) AS code
   JOIN pg_catalog.pg_depend AS d ON d.classid OPERATOR(pg_catalog.=) code.classid AND d.objid OPERATOR(pg_catalog.=) code.objid AND d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass::pg_catalog.oid
   JOIN pg_catalog.pg_proc AS p ON p.oid OPERATOR(pg_catalog.=) d.refobjid JOIN pg_catalog.pg_namespace AS n ON n.oid OPERATOR(pg_catalog.=) p.pronamespace
   WHERE p.oid OPERATOR(pg_catalog.>=) 16384::pg_catalog.oid AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend AS e WHERE e.classid OPERATOR(pg_catalog.=) d.refclassid AND e.objid OPERATOR(pg_catalog.=) p.oid AND e.deptype OPERATOR(pg_catalog.=) 'e'::"char")) AS x) AS fired
 WHERE r.how OPERATOR(pg_catalog.<>) 'partition' OR fired.list IS NOT NULL
 WINDOW listed AS (ORDER BY CASE WHEN r.how OPERATOR(pg_catalog.=) 'named' THEN 0 WHEN fired.list IS NOT NULL THEN 1 ELSE 2 END, counted.rows DESC NULLS FIRST, r.said, r.source, r.how)
 ORDER BY place LIMIT $4) AS r`

// Reach says which tables a write reaches that names some, writes columns and fires
// triggers of events, with foreign keys that delete or change rows elsewhere; it gives the
// connection back. nil is that the server did not say in time.
func (r *Reading) Reach(ctx context.Context, named, columns []string, events int) (reach *Reach) {
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
	look.oids = []uint32{oidTextArray, oidInt4, oidTextArray, oidInt4}
	look.params = [][]byte{[]byte(textArray(named)), []byte(strconv.Itoa(events)), []byte(textArray(columns)), []byte(strconv.Itoa(mostReached))}
	refused, err := l.exchange(ctx, deadline, segment{own("BEGIN READ ONLY"), own(setTime("statement_timeout", db.cfg.PlanTime)), own(setTime("lock_timeout", planLockTime)), look})
	if err != nil || refused != nil || json.Unmarshal([]byte(found.text(0)), &reach) != nil {
		return nil
	}
	return reach
}
