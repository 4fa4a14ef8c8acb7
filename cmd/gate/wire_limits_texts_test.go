package main

import (
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
)

// limitPolicy lets a function that a write calls name the limit.
const limitPolicy = `
schema: gate.policy/v1
name: limits
version: 1.0.0
facts: facts/v1
rules:
  - { id: one, decision: REQUIRE_APPROVAL, reason_code: held, match: { functions: [abs] }, approval: { max_rows: 1 } }
  - { id: four, decision: REQUIRE_APPROVAL, reason_code: held, match: { functions: [sign] }, approval: { max_rows: 4 } }
  - { id: twelve, decision: REQUIRE_APPROVAL, reason_code: held, match: { functions: [ceil] }, approval: { max_rows: 12 } }
  - { id: all, decision: REQUIRE_APPROVAL, reason_code: held, match: { functions: [floor] } }
  - { id: code, decision: REQUIRE_APPROVAL, reason_code: held, match: { query_types: [DO] }, lifts: [opaque_code], approval: { max_rows: 4 } }
  - { id: anything, decision: ALLOW, reason_code: anything, match: { env: [prod] } }
`

var limitOf = map[string]int{"abs": 1, "sign": 4, "ceil": 12, "floor": 0} // 0 is none

// limitTables have all that changes rows besides what a text says: triggers at once and
// at the end, which run what they are given, cascades, partitions.
const limitTables = `
CREATE TABLE items (id int PRIMARY KEY, n int NOT NULL DEFAULT 0); CREATE TABLE notes (what text); CREATE TABLE tally (n int); CREATE TABLE victim (id int);
CREATE TABLE kids (item int REFERENCES items ON DELETE CASCADE ON UPDATE CASCADE, n int UNIQUE DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE parts (id int, k int) PARTITION BY RANGE (k); CREATE TABLE low PARTITION OF parts FOR VALUES FROM (0) TO (5); CREATE TABLE high PARTITION OF parts FOR VALUES FROM (5) TO (10);
CREATE TABLE scratch (id int); CREATE TABLE hook (way text); CREATE TABLE late (way text); CREATE SEQUENCE drawn;
CREATE FUNCTION noted() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO notes VALUES (TG_OP); RETURN NULL; END $$;
CREATE FUNCTION counted() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO tally SELECT generate_series(1, 2); RETURN NULL; END $$;
CREATE FUNCTION does() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN EXECUTE NEW.way; RETURN NULL; END $$;
CREATE FUNCTION moved(k int) RETURNS int LANGUAGE plpgsql AS $$ BEGIN UPDATE victim SET id = id WHERE id <= k; RETURN k; END $$;
CREATE FUNCTION undone(k int) RETURNS int LANGUAGE plpgsql AS $$ BEGIN PERFORM moved(k); RETURN 1/(k-k); EXCEPTION WHEN division_by_zero THEN RETURN 0; END $$;
CREATE TRIGGER noted AFTER UPDATE OR DELETE ON items FOR EACH ROW EXECUTE FUNCTION noted(); CREATE TRIGGER does AFTER INSERT ON hook FOR EACH ROW EXECUTE FUNCTION does();
CREATE CONSTRAINT TRIGGER counted AFTER INSERT ON kids DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION counted();
CREATE CONSTRAINT TRIGGER does AFTER INSERT ON late DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION does();
`

// limitRows are what each sequence begins with, whatever the one before it left.
const limitRows = `DROP TABLE IF EXISTS young, made; CREATE TABLE IF NOT EXISTS scratch (id int); TRUNCATE items, notes, tally, victim, kids, parts, scratch, hook, late; ALTER SEQUENCE drawn RESTART;
INSERT INTO items SELECT generate_series(1, 10); INSERT INTO kids SELECT g, g FROM generate_series(1, 5) AS g; INSERT INTO parts SELECT g, g FROM generate_series(0, 9) AS g;
INSERT INTO victim SELECT generate_series(1, 20); INSERT INTO scratch SELECT generate_series(1, 20)`

// limitWitness is what the second database has besides: each row that changes, in
// whatever way, draws a number, also where it is undone later.
const limitWitness = `
CREATE SEQUENCE witnessed; SELECT nextval('witnessed');
CREATE FUNCTION witness() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  IF TG_OP = 'TRUNCATE' THEN EXECUTE format('SELECT nextval(''witnessed'') FROM %I', TG_TABLE_NAME); ELSE PERFORM nextval('witnessed'); END IF; RETURN NULL; END $$;
CREATE FUNCTION watch() RETURNS event_trigger LANGUAGE plpgsql AS $$ DECLARE name regclass; BEGIN
  FOR name IN SELECT c.objid FROM pg_event_trigger_ddl_commands() AS c JOIN pg_class ON oid = c.objid AND relkind IN ('r', 'p') AND NOT relispartition AND relpersistence = 'p' LOOP
    EXECUTE format('CREATE OR REPLACE TRIGGER witness AFTER INSERT OR UPDATE OR DELETE ON %s FOR EACH ROW EXECUTE FUNCTION witness()', name);
    EXECUTE format('CREATE OR REPLACE TRIGGER witness_truncate BEFORE TRUNCATE ON %s EXECUTE FUNCTION witness()', name);
  END LOOP; END $$;
CREATE EVENT TRIGGER watch ON ddl_command_end WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION watch();
`

// limitLook tells how many rows changed so far, and whether there is a reason for which docs/POLICY.md
// calls them not countable: a table is held as TRUNCATE does, or is younger than the snapshot.
const limitLook = `SELECT concat((SELECT last_value FROM witnessed), ' ', bool_or(mode = 'AccessExclusiveLock' AND c.relpersistence IS DISTINCT FROM 't' OR mode = 'RowExclusiveLock' AND c.oid IS NULL AND pg_get_indexdef(relation) IS NULL))
 FROM pg_locks LEFT JOIN pg_class AS c ON c.oid = relation WHERE pid = pg_backend_pid() AND locktype = 'relation'`

// limitContent is all that a database holds.
const limitContent = `SELECT concat_ws(' | ', (SELECT string_agg(t::text, ' ' ORDER BY t::text) FROM items AS t), (SELECT string_agg(t::text, ' ' ORDER BY t::text) FROM kids AS t),
 (SELECT string_agg(t::text, ' ' ORDER BY t::text) FROM parts AS t), (SELECT string_agg(t::text, ' ' ORDER BY t::text) FROM notes AS t), (SELECT count(*) FROM tally), (SELECT count(*) FROM victim),
 (SELECT count(*) FROM hook), (SELECT count(*) FROM late), (SELECT string_agg(relname, ' ' ORDER BY relname) FROM pg_class WHERE relname IN ('made', 'scratch', 'young')),
 CASE WHEN to_regclass('scratch') IS NOT NULL THEN query_to_xml('SELECT string_agg(id::text, '' '' ORDER BY id) FROM scratch', false, true, '')::text END)`

// The texts of writes, behind the CTE that names their limit. K is a small number.
var (
	limitWrites = []string{
		"INSERT INTO items SELECT 20 + g FROM generate_series(1, K) AS g", "INSERT INTO items SELECT g FROM generate_series(9, 9 + K) AS g ON CONFLICT (id) DO UPDATE SET n = items.n + 1",
		"INSERT INTO items SELECT g FROM generate_series(8, 9 + K) AS g ON CONFLICT DO NOTHING", "UPDATE items SET n = n + 1 WHERE id <= K", "UPDATE items SET id = id + 100 WHERE id <= K",
		"DELETE FROM items WHERE id <= K RETURNING id", "DELETE FROM items WHERE id = 5 + K", "UPDATE victim SET id = id WHERE id <= K", "UPDATE scratch SET id = id WHERE id <= K", "DELETE FROM scratch WHERE id <= 2 * K",
		"MERGE INTO items USING generate_series(7, 9 + K) AS g ON id = g WHEN MATCHED AND id < 8 THEN UPDATE SET n = 9 WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT VALUES (g)",
		", d AS (DELETE FROM kids WHERE item <= K RETURNING item) INSERT INTO notes SELECT item FROM d", ", d AS (UPDATE victim SET id = id WHERE id <= K RETURNING 1) SELECT count(*) FROM d",
		", d AS (UPDATE victim SET id = id WHERE id <= K RETURNING 1), e AS (INSERT INTO scratch SELECT generate_series(1, K)) DELETE FROM items WHERE id = 10",
		"INSERT INTO kids SELECT 6, 100 + nextval('drawn') FROM generate_series(1, K)", "INSERT INTO kids SELECT 7, 200 + g FROM generate_series(1, K) AS g", "INSERT INTO kids VALUES (7, K)", "UPDATE kids SET n = n + 1",
		"UPDATE parts SET k = (k + K) % 10 WHERE id < K", "UPDATE parts SET k = 12 WHERE id = K", "INSERT INTO parts SELECT g, g FROM generate_series(10, 9 + K) AS g", "SELECT moved(K)", "SELECT undone(K)",
		"SELECT id FROM items WHERE id <= K FOR UPDATE", ", d AS (INSERT INTO work SELECT generate_series(1, 3 * K) RETURNING 1) UPDATE victim SET id = id WHERE id <= K", "INSERT INTO work SELECT generate_series(1, K)",
	}
	limitWays = []string{ // of triggers
		"UPDATE victim SET id = id WHERE id <= K", "UPDATE victim SET id = id WHERE id <= K", "UPDATE scratch SET id = id", "DELETE FROM items WHERE id = K", "TRUNCATE victim", "TRUNCATE scratch", "SELECT undone(K)",
		"INSERT INTO kids SELECT 8, 300 + nextval(''drawn'') FROM generate_series(1, K)", "INSERT INTO parts SELECT g, g FROM generate_series(10, 9 + K) AS g", "INSERT INTO late VALUES (''UPDATE victim SET id = id WHERE id <= K'')",
		"CREATE TEMPORARY TABLE IF NOT EXISTS work (id int); TRUNCATE work; UPDATE victim SET id = id WHERE id <= K",
	}
	limitOthers = []string{ // without a limit
		"TRUNCATE victim", "TRUNCATE scratch", "TRUNCATE items CASCADE", "LOCK TABLE victim", "LOCK TABLE scratch IN SHARE MODE", "DROP TABLE scratch", "CREATE TABLE made (id int)", "CREATE TEMPORARY TABLE work (id int)", "CREATE TEMPORARY TABLE work (id int)",
	}
	limitAsides = []string{ // of another session
		"DROP TABLE IF EXISTS scratch", "DROP TABLE IF EXISTS scratch", "CREATE TABLE IF NOT EXISTS scratch (id int)", "TRUNCATE victim; INSERT INTO victim SELECT generate_series(1, 20)", "UPDATE items SET n = n + 1 WHERE id = 3",
		"CREATE TABLE IF NOT EXISTS young PARTITION OF parts FOR VALUES FROM (10) TO (20)", "CREATE TABLE IF NOT EXISTS young PARTITION OF parts FOR VALUES FROM (10) TO (20)", "DROP TABLE IF EXISTS young",
	}
	limitCode = []string{
		"DO $$ BEGIN UPDATE victim SET id = id WHERE id <= K; END $$", "DO $$ BEGIN UPDATE victim SET id = id WHERE id <= K; TRUNCATE scratch; END $$", "DO $$ BEGIN PERFORM undone(K); END $$",
	}
)

// A limitOp is one thing that a sequence does.
type limitOp struct {
	kind      byte   // w: a write, s: what travels with the connection, and reads, a: what another session does, l: the client leaves
	sql       string // with $1 where it has a parameter
	parameter string
	approval  bool
	most      int    // rows that its approval allows; 0 is no limit
	joined    bool   // the next write is sent with it
	meanwhile string // what another session does when the gate has counted, and not yet sent it

	approved string // the approval of this run
	used     bool
}

func newLimitSequence(number int) (ops []*limitOp) {
	q := rand.New(rand.NewPCG(17, uint64(number)))
	one := func(of ...string) string { return of[q.IntN(len(of))] }
	add := func(kind byte, texts ...string) { ops = append(ops, &limitOp{kind: kind, sql: one(texts...)}) }
	block := false
	for range 4 + q.IntN(8) {
		switch n := q.IntN(100); {
		case !block && n < 60:
			block = true
			add('s', "BEGIN", "BEGIN", "BEGIN", "BEGIN ISOLATION LEVEL REPEATABLE READ", "BEGIN ISOLATION LEVEL SERIALIZABLE")
		case n < 12:
			add('a', limitAsides...)
		case block && n < 22:
			add('s', "SAVEPOINT a", "SAVEPOINT a", "SAVEPOINT b", "ROLLBACK TO a", "RELEASE a")
		case block && n < 32:
			add('s', "SAVEPOINT b")
			ops = append(ops, newLimitWrite(q, one))
			add('s', "ROLLBACK TO b")
		case n < 36:
			add('s', "SELECT count(*) FROM victim", "SELECT count(*) FROM kids", "SELECT 1/(count(*)-count(*)) FROM items", "COPY items TO STDOUT", "SET CONSTRAINTS ALL IMMEDIATE")
		case n < 42 && len(ops) > 0:
			if again := ops[q.IntN(len(ops))]; again.approval {
				ops = append(ops, again)
			}
		case n < 46:
			block = false
			add('s', "COMMIT", "COMMIT", "ROLLBACK")
		case n < 47:
			block = false
			add('l', "")
		default:
			ops = append(ops, newLimitWrite(q, one))
		}
	}
	add('s', "COMMIT")
	for _, op := range slices.Clone(ops) { // whose approval may be good for another time
		if op.approval && q.IntN(2) == 0 {
			ops = append(ops, op)
		}
	}
	return ops
}

var limitNumber = regexp.MustCompile(`\bK\b`)

func newLimitWrite(q *rand.Rand, one func(...string) string) *limitOp {
	op, k, call := &limitOp{kind: 'w'}, strconv.Itoa(1+q.IntN(5)), "0"
	if q.IntN(3) > 0 {
		call = one("abs", "abs", "sign", "sign", "ceil", "ceil", "floor")
		op.approval, op.most, call = true, limitOf[call], call+"(0)"
	}
	op.sql = one("", "", "", "", "", "", "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) ") + "WITH few AS (SELECT " + call + ") "
	switch n := q.IntN(20); {
	case n < 2:
		op = &limitOp{kind: 'w', sql: one(limitOthers...)}
	case n < 3:
		op = &limitOp{kind: 'w', sql: one(limitCode...), approval: true, most: 4}
	case n < 6:
		op.sql += "INSERT INTO hook VALUES ('" + one(limitWays...) + "')"
	case n < 9:
		op.sql += "INSERT INTO late VALUES ('" + one(limitWays...) + "')"
	default:
		if op.sql += one(limitWrites...); limitNumber.MatchString(op.sql) && q.IntN(4) == 0 {
			op.parameter, k = k, "$1::int"
		}
	}
	op.sql = limitNumber.ReplaceAllLiteralString(op.sql, k)
	if op.joined = q.IntN(6) == 0; !op.joined && q.IntN(5) == 0 {
		op.meanwhile = one(limitAsides...)
	}
	return op
}
