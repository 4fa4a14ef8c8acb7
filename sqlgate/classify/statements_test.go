package classify

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A row of part 5: a statement, then type, class, run, signals and what else is
// worth saying, as words: f: flags, a: advice, w: tables written, r: tables read.
var statementRows = [][2]string{
	{`SELECT 1`, "SELECT read read_fence"},
	{`SELECT a INTO TEMP x FROM t`, "CREATE_TABLE_AS ddl transaction select_into f:temporary w:pg_temp.x r:public.t"},
	{`SELECT 1 INTO x UNION SELECT 2`, "CREATE_TABLE_AS ddl transaction select_into w:public.x"},
	{`EXPLAIN SELECT 1`, "EXPLAIN read read_fence f:explain"},
	{`EXPLAIN ANALYZE SELECT 1`, "EXPLAIN read transaction explain_analyze f:explain,explain_analyze"},
	{`EXPLAIN (ANALYZE 0) SELECT 1`, "EXPLAIN read read_fence f:explain"},
	{`EXPLAIN (ANALYZE off, ANALYZE) SELECT 1`, "EXPLAIN read transaction explain_analyze f:explain,explain_analyze"},
	{`EXPLAIN (ANALYZE no) SELECT 1`, "EXPLAIN read transaction explain_analyze f:explain,explain_analyze"},
	{`EXPLAIN ("ANALYZE") SELECT 1`, "EXPLAIN unknown transaction unknown_node f:explain"},
	{`EXPLAIN (surprise) SELECT 1`, "EXPLAIN unknown transaction unknown_node f:explain"},
	{`EXPLAIN EXECUTE p`, "EXPLAIN session transaction opaque_code f:explain"},
	{`SHOW ALL`, "SHOW read transaction secret_catalog_read"},
	{`SHOW data_directory`, "SHOW read transaction secret_catalog_read"},
	{`SHOW ssl_ca_file`, "SHOW read transaction secret_catalog_read"},
	{`SHOW "Primary_Conninfo"`, "SHOW read transaction secret_catalog_read"},
	{`SHOW search_path`, "SHOW read read_fence"},
	{`COPY t TO STDOUT`, "COPY_TO read none bulk_copy r:public.t"},
	{`COPY (SELECT 1) TO STDOUT WITH (FORMAT csv, HEADER)`, "COPY_TO read none bulk_copy"},
	{`COPY t (a, b) FROM STDIN`, "COPY_FROM write none bulk_copy w:public.t"},
	{`COPY t FROM '/x'`, "COPY_FROM write transaction bulk_copy,server_file_access w:public.t"},
	{`COPY t TO PROGRAM 'x'`, "COPY_TO write transaction bulk_copy,server_program r:public.t"},
	{`COPY t FROM STDIN WITH (surprise)`, "COPY_FROM unknown none bulk_copy,unknown_node w:public.t"},
	{`UPDATE t SET a = 1 WHERE id = 1`, "UPDATE write transaction w:public.t r:public.t"},
	{`DELETE FROM t WHERE a = b RETURNING *`, "DELETE write transaction f:returning w:public.t r:public.t"},
	{`MERGE INTO t USING s ON t.id = s.id WHEN MATCHED THEN DELETE`, "MERGE write transaction w:public.t r:public.s,public.t"},
	{`INSERT INTO t DEFAULT VALUES`, "INSERT write transaction w:public.t"},
	{`INSERT INTO pg_temp.t VALUES (DEFAULT) ON CONFLICT DO NOTHING`, "INSERT write transaction f:on_conflict w:pg_temp.t"},
	{`REFRESH MATERIALIZED VIEW m`, "REFRESH write transaction a:blocks_all w:public.m"},
	{`REFRESH MATERIALIZED VIEW CONCURRENTLY m`, "REFRESH write transaction f:concurrently a:blocks_writes w:public.m"},

	{`CREATE TABLE IF NOT EXISTS app.t (a int, LIKE s INCLUDING ALL)`, "CREATE ddl transaction f:if_exists w:app.t r:public.s"},
	{`CREATE TEMP SEQUENCE s INCREMENT BY -1`, "CREATE ddl transaction f:temporary w:pg_temp.s"},
	{`CREATE OR REPLACE VIEW v AS SELECT * FROM t`, "CREATE ddl transaction f:or_replace a:blocks_all w:public.v r:public.t"},
	{`CREATE STATISTICS s ON a, b FROM t`, "CREATE ddl transaction w:public.t"},
	{`CREATE TYPE ct AS (a int)`, "CREATE ddl transaction w:public.ct"},
	{`CREATE TYPE e AS ENUM ('a')`, "CREATE ddl transaction"},
	{`CREATE DOMAIN d AS int CHECK (VALUE > 0)`, "CREATE ddl transaction"},
	{`CREATE SCHEMA s CREATE TABLE t (a int) CREATE VIEW v AS SELECT 1`, "CREATE ddl transaction w:s.t,s.v"},
	{`CREATE SCHEMA s GRANT SELECT ON t TO PUBLIC`, "CREATE dcl transaction privilege_change w:public.t,s.t"},
	{`CREATE INDEX i ON t (lower(a))`, "CREATE ddl transaction a:blocks_writes w:public.t"},
	{`CREATE INDEX CONCURRENTLY i ON t (a)`, "CREATE ddl alone f:concurrently a:no_transaction w:public.t"},
	{`CREATE MATERIALIZED VIEW m AS SELECT * FROM t`, "CREATE_TABLE_AS ddl transaction w:public.m r:public.t"},
	{`CREATE TABLE x AS EXECUTE p`, "CREATE_TABLE_AS ddl transaction opaque_code w:public.x"},
	{`CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'select 1'`, "CREATE_FUNCTION ddl transaction opaque_code"},
	{`CREATE FUNCTION f() RETURNS int LANGUAGE c AS 'x', 'y'`, "CREATE_FUNCTION ddl transaction opaque_code,server_program"},
	{`CREATE FUNCTION f() RETURNS int LANGUAGE plpgsql SECURITY DEFINER AS ''`, "CREATE_FUNCTION ddl transaction opaque_code,privilege_change"},
	{`CREATE FUNCTION f() RETURNS int LANGUAGE plpgsql SECURITY INVOKER SET search_path = x AS ''`, "CREATE_FUNCTION ddl transaction opaque_code"},
	{`CREATE FUNCTION f() RETURNS int LANGUAGE plpgsql SET role = x AS ''`, "CREATE_FUNCTION ddl transaction identity_switch,opaque_code"},
	{`CREATE PROCEDURE p() BEGIN ATOMIC DELETE FROM t; SELECT * FROM s; END`, "CREATE_FUNCTION ddl transaction opaque_code,write_without_where w:public.t r:public.s,public.t"},
	{`CREATE FUNCTION f() RETURNS int RETURN (SELECT max(a) FROM t)`, "CREATE_FUNCTION ddl transaction opaque_code r:public.t"},
	{`CREATE TRIGGER g BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION app.f()`, "CREATE ddl transaction opaque_code a:blocks_writes w:public.t"},
	{`CREATE EVENT TRIGGER g ON ddl_command_end EXECUTE FUNCTION f()`, "CREATE ddl transaction opaque_code"},
	{`CREATE CAST (int AS text) WITHOUT FUNCTION`, "CREATE ddl transaction opaque_code"},
	{`CREATE CONVERSION c FOR 'UTF8' TO 'LATIN1' FROM f`, "CREATE ddl transaction opaque_code"},
	{`CREATE TRANSFORM FOR int LANGUAGE sql (FROM SQL WITH FUNCTION f(internal))`, "CREATE ddl transaction opaque_code"},
	{`CREATE OPERATOR CLASS o FOR TYPE int USING btree AS OPERATOR 1 <`, "CREATE ddl transaction opaque_code"},
	{`CREATE OPERATOR FAMILY o USING btree`, "CREATE ddl transaction opaque_code"},
	{`CREATE ACCESS METHOD a TYPE TABLE HANDLER h`, "CREATE ddl transaction opaque_code"},
	{`CREATE TYPE r AS RANGE (SUBTYPE = int)`, "CREATE ddl transaction opaque_code"},
	{`CREATE RULE r AS ON INSERT TO t DO ALSO DELETE FROM s`, "CREATE ddl transaction opaque_code,write_without_where a:blocks_all w:public.s,public.t r:public.s"},
	{`ALTER OPERATOR + (int, int) SET (RESTRICT = NONE)`, "ALTER ddl transaction opaque_code"},
	{`ALTER OPERATOR FAMILY o USING btree DROP OPERATOR 1 (int, int)`, "ALTER ddl transaction opaque_code"},
	{`CREATE AGGREGATE a (int) (SFUNC = int4pl, STYPE = int)`, "CREATE ddl transaction opaque_code,unknown_function"},
	{`CREATE AGGREGATE a (*) (SFUNC = f, STYPE = int)`, "CREATE ddl transaction opaque_code,unknown_function"},
	{`CREATE COLLATION c (PROVIDER = icu, LOCALE = 'de')`, "CREATE ddl transaction"},
	{`CREATE TEXT SEARCH DICTIONARY d (TEMPLATE = simple, STOPWORDS = english)`, "CREATE ddl transaction"},
	{`CREATE TEXT SEARCH CONFIGURATION c (COPY = english)`, "CREATE ddl transaction"},
	{`CREATE TEXT SEARCH TEMPLATE d (LEXIZE = f)`, "CREATE ddl transaction opaque_code,unknown_function"},
	{`CREATE LANGUAGE l HANDLER h`, "CREATE ddl transaction opaque_code,server_program"},
	{`CREATE EXTENSION e CASCADE`, "CREATE ddl transaction cascade,opaque_code f:cascade"},
	{`ALTER EXTENSION e UPDATE`, "ALTER ddl transaction opaque_code"},
	{`ALTER EXTENSION e ADD TABLE t`, "ALTER ddl transaction opaque_code w:public.t"},
	{`CREATE POLICY p ON t USING (owner = current_user)`, "CREATE ddl transaction privilege_change a:blocks_all w:public.t"},
	{`ALTER POLICY p ON t USING (true)`, "ALTER ddl transaction privilege_change a:blocks_all w:public.t"},
	{`ALTER FUNCTION f(int) SECURITY DEFINER`, "ALTER ddl transaction privilege_change"},
	{`ALTER EVENT TRIGGER g DISABLE`, "ALTER ddl transaction privilege_change"},
	{`CREATE FOREIGN DATA WRAPPER w`, "CREATE ddl transaction remote_access"},
	{`ALTER FOREIGN DATA WRAPPER w NO HANDLER`, "ALTER ddl transaction remote_access"},
	{`CREATE SERVER s FOREIGN DATA WRAPPER w`, "CREATE ddl transaction remote_access"},
	{`ALTER SERVER s OPTIONS (SET host 'x')`, "ALTER ddl transaction remote_access"},
	{`CREATE FOREIGN TABLE f (a int) SERVER s`, "CREATE ddl transaction remote_access w:public.f"},
	{`IMPORT FOREIGN SCHEMA r LIMIT TO (a, b) FROM SERVER s INTO l`, "CREATE ddl transaction remote_access w:l.a,l.b"},
	{`CREATE PUBLICATION p FOR TABLE t`, "CREATE ddl transaction remote_access r:public.t"},
	{`ALTER PUBLICATION p ADD TABLE t`, "ALTER ddl transaction remote_access r:public.t"},
	{`CREATE SUBSCRIPTION s CONNECTION 'x' PUBLICATION p`, "CREATE ddl alone remote_access a:no_transaction"},
	{`ALTER SUBSCRIPTION s DISABLE`, "ALTER ddl alone remote_access a:no_transaction"},
	{`DROP SUBSCRIPTION s`, "DROP ddl alone destructive_ddl,remote_access a:no_transaction"},
	{`CREATE USER MAPPING FOR x SERVER s`, "CREATE ddl transaction privilege_change,remote_access"},
	{`ALTER USER MAPPING FOR x SERVER s OPTIONS (SET password 'p')`, "ALTER ddl transaction privilege_change,remote_access"},
	{`DROP USER MAPPING IF EXISTS FOR x SERVER s`, "DROP ddl transaction destructive_ddl,privilege_change,remote_access f:if_exists"},
	{`CREATE DATABASE d`, "CREATE ddl alone a:no_transaction"},
	{`CREATE TABLESPACE s LOCATION '/x'`, "CREATE ddl alone server_file_access a:no_transaction"},

	{`ALTER TABLE t ADD COLUMN a int DEFAULT 1`, "ALTER ddl transaction a:blocks_all w:public.t"},
	{`ALTER TABLE t ADD COLUMN a int DEFAULT length('x')`, "ALTER ddl transaction a:blocks_all,rewrite w:public.t"},
	{`ALTER TABLE t ADD COLUMN a bigserial`, "ALTER ddl transaction a:blocks_all,rewrite w:public.t"},
	{`ALTER TABLE t ADD COLUMN a int GENERATED ALWAYS AS (b + 1) STORED`, "ALTER ddl transaction a:blocks_all,rewrite w:public.t"},
	{`ALTER TABLE t ADD COLUMN a int REFERENCES p`, "ALTER ddl transaction a:blocks_all,blocks_writes,scan w:public.p,public.t"},
	{`ALTER TABLE t ALTER a TYPE bigint`, "ALTER ddl transaction a:blocks_all,rewrite w:public.t"},
	{`ALTER TABLE t ALTER a SET NOT NULL`, "ALTER ddl transaction a:blocks_all,scan w:public.t"},
	{`ALTER TABLE t ADD CHECK (a > 0) NOT VALID`, "ALTER ddl transaction a:blocks_all w:public.t"},
	{`ALTER TABLE t ADD FOREIGN KEY (a) REFERENCES app.p`, "ALTER ddl transaction a:blocks_writes,scan w:app.p,public.t"},
	{`ALTER TABLE t ADD PRIMARY KEY (a)`, "ALTER ddl transaction a:blocks_all w:public.t"},
	{`ALTER TABLE t VALIDATE CONSTRAINT c`, "ALTER ddl transaction a:scan w:public.t"},
	{`ALTER TABLE IF EXISTS t DROP COLUMN a CASCADE`, "ALTER ddl transaction cascade,destructive_ddl f:cascade,if_exists a:blocks_all,breaks_clients w:?.*,public.t"},
	{`ALTER TABLE t DROP CONSTRAINT c`, "ALTER ddl transaction destructive_ddl a:blocks_all w:public.t"},
	{`ALTER TABLE t SET UNLOGGED`, "ALTER ddl transaction destructive_ddl a:blocks_all,rewrite w:public.t"},
	{`ALTER TABLE t DISABLE TRIGGER ALL`, "ALTER ddl transaction privilege_change a:blocks_writes w:public.t"},
	{`ALTER TABLE t ENABLE REPLICA RULE r`, "ALTER ddl transaction privilege_change a:blocks_all w:public.t"},
	{`ALTER TABLE t NO FORCE ROW LEVEL SECURITY`, "ALTER ddl transaction privilege_change a:blocks_all w:public.t"},
	{`ALTER TABLE t OWNER TO x`, "ALTER_OWNER dcl transaction privilege_change a:blocks_all w:public.t"},
	{`ALTER TABLE t ATTACH PARTITION p FOR VALUES IN (1)`, "ALTER ddl transaction a:blocks_partition,scan w:public.p,public.t"},
	{`ALTER TABLE t DETACH PARTITION p CONCURRENTLY`, "ALTER ddl alone f:concurrently a:blocks_partition,no_transaction w:public.p,public.t"},
	{`ALTER TABLE t INHERIT p`, "ALTER ddl transaction a:blocks_all w:public.p,public.t"},
	{`ALTER FOREIGN TABLE t ADD COLUMN a int`, "ALTER ddl transaction remote_access a:blocks_all w:public.t"},
	{`ALTER INDEX i SET (fillfactor = 50)`, "ALTER ddl transaction w:public.i"},
	{`ALTER SEQUENCE s RESTART`, "ALTER ddl transaction sequence_change a:blocks_writes w:public.s"},
	{`ALTER STATISTICS s SET STATISTICS 1`, "ALTER ddl transaction"},
	{`ALTER TABLE ALL IN TABLESPACE a SET TABLESPACE b`, "ALTER ddl transaction a:blocks_all w:?.*"},
	{`ALTER TABLE t RENAME TO u`, "ALTER ddl transaction a:blocks_all,breaks_clients w:public.t,public.u"},
	{`ALTER ROLE a RENAME TO b`, "ALTER_ROLE dcl transaction privilege_change a:breaks_clients"},
	{`ALTER TABLE t SET SCHEMA s`, "ALTER ddl transaction a:blocks_all w:public.t,s.t"},
	{`ALTER INDEX i DEPENDS ON EXTENSION e`, "ALTER ddl transaction a:blocks_all w:public.i"},
	{`ALTER TYPE t SET (STORAGE = plain)`, "ALTER ddl transaction w:public.t"},
	{`ALTER TYPE e ADD VALUE IF NOT EXISTS 'x'`, "ALTER ddl transaction f:if_exists w:public.e"},
	{`ALTER TYPE a.e RENAME VALUE 'x' TO 'y'`, "ALTER ddl transaction w:a.e"},
	{`ALTER TYPE a.e RENAME TO f`, "ALTER ddl transaction a:breaks_clients w:a.e"},
	{`ALTER DOMAIN a.d SET SCHEMA b`, "ALTER ddl transaction w:a.d"},
	{`ALTER DOMAIN a.d RENAME CONSTRAINT c TO e`, "ALTER ddl transaction a:breaks_clients w:a.d"},
	{`ALTER DOMAIN d DROP CONSTRAINT c`, "ALTER ddl transaction w:public.d"},
	{`ALTER COLLATION c REFRESH VERSION`, "ALTER ddl transaction"},
	{`ALTER TEXT SEARCH CONFIGURATION c ALTER MAPPING REPLACE a WITH b`, "ALTER ddl transaction"},
	{`ALTER TEXT SEARCH DICTIONARY d (stopwords = x)`, "ALTER ddl transaction"},
	{`ALTER TABLESPACE s SET (seq_page_cost = 1)`, "ALTER ddl transaction"},
	{`ALTER DATABASE d REFRESH COLLATION VERSION`, "ALTER ddl transaction"},
	{`ALTER DATABASE d WITH CONNECTION LIMIT 1`, "ALTER ddl transaction"},
	{`ALTER DATABASE d SET TABLESPACE s`, "ALTER ddl alone a:no_transaction w:?.*"},
	{`ALTER DATABASE d SET search_path = x`, "ALTER ddl transaction identity_switch,session_change"},
	{`ALTER DATABASE d SET work_mem = '1MB'`, "ALTER ddl transaction session_change"},
	{`DROP TABLE a, s.b`, "DROP ddl transaction destructive_ddl a:blocks_all w:public.a,s.b"},
	{`DROP INDEX CONCURRENTLY i`, "DROP ddl alone destructive_ddl f:concurrently a:no_transaction w:public.i"},
	{`DROP TRIGGER g ON s.t`, "DROP ddl transaction destructive_ddl,privilege_change a:blocks_all w:s.t"},
	{`DROP TYPE mood`, "DROP ddl transaction destructive_ddl"},
	{`DROP DATABASE d`, "DROP ddl alone destructive_ddl a:blocks_all,no_transaction w:?.*"},
	{`DROP TABLESPACE s`, "DROP ddl alone destructive_ddl a:no_transaction"},
	{`DROP OWNED BY x CASCADE`, "DROP ddl transaction cascade,destructive_ddl,privilege_change f:cascade a:blocks_all w:?.*"},
	{`TRUNCATE a, b`, "TRUNCATE ddl transaction destructive_ddl a:blocks_all w:public.a,public.b"},
	{`COMMENT ON COLUMN s.t.c IS 'x'`, "COMMENT ddl transaction w:s.t"},
	{`COMMENT ON CONSTRAINT c ON t IS 'x'`, "COMMENT ddl transaction w:public.t"},
	{`GRANT SELECT ON t TO x`, "GRANT dcl transaction privilege_change w:public.t"},
	{`REVOKE SELECT ON t FROM x CASCADE`, "REVOKE dcl transaction cascade,privilege_change f:cascade w:public.t"},
	{`REVOKE a FROM b`, "REVOKE dcl transaction privilege_change"},
	{`ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO x`, "ALTER_DEFAULT_PRIVILEGES dcl transaction privilege_change w:?.*"},
	{`CREATE USER u`, "CREATE_ROLE dcl transaction privilege_change"},
	{`ALTER ROLE u NOLOGIN`, "ALTER_ROLE dcl transaction privilege_change"},
	{`DROP ROLE u`, "DROP_ROLE dcl transaction privilege_change"},
	{`ALTER ROLE u SET work_mem = '1MB'`, "ALTER_ROLE dcl transaction privilege_change,session_change"},
	{`ALTER ROLE u SET statement_timeout = '5s'`, "ALTER_ROLE dcl transaction privilege_change,session_change"}, // the pins beat it
	{`ALTER ROLE u RESET ALL`, "ALTER_ROLE dcl transaction identity_switch,privilege_change,session_change"},
	{`REASSIGN OWNED BY a TO b`, "REASSIGN_OWNED dcl transaction privilege_change a:blocks_all w:?.*"},
	{`ALTER FUNCTION f() OWNER TO x`, "ALTER_OWNER dcl transaction privilege_change"},
	{`SECURITY LABEL ON TABLE t IS 'x'`, "SECURITY_LABEL dcl transaction privilege_change w:public.t"},

	{`START TRANSACTION READ ONLY`, "BEGIN tcl none transaction_control"},
	{`END`, "COMMIT tcl none transaction_control"},
	{`COMMIT PREPARED 'x'`, "COMMIT tcl none transaction_control"},
	{`ABORT`, "ROLLBACK tcl none transaction_control"},
	{`ROLLBACK TO s`, "ROLLBACK tcl none transaction_control"},
	{`ROLLBACK PREPARED 'x'`, "ROLLBACK tcl none transaction_control"},
	{`SAVEPOINT s`, "SAVEPOINT tcl none transaction_control"},
	{`RELEASE s`, "RELEASE tcl none transaction_control"},
	{`PREPARE TRANSACTION 'x'`, "PREPARE_TRANSACTION tcl none transaction_control"},
	{`SET work_mem = '1MB'`, "SET session none session_change"},
	{`SET LOCAL TIME ZONE 'UTC'`, "SET session none session_change"}, // never sent: the wire keeps it, POST /query refuses it
	{`SET NAMES 'x'`, "SET session none identity_switch,session_change"},
	{`SET SCHEMA 'x'`, "SET session none identity_switch,session_change"},
	{`SET ROLE x`, "SET session none identity_switch,session_change"},
	{`SET SESSION AUTHORIZATION x`, "SET session none identity_switch,session_change"},
	{`SET "Search_Path" = x`, "SET session none identity_switch,session_change"},
	{`SET TRANSACTION READ WRITE`, "SET session none identity_switch,session_change,transaction_control"},
	{`SET TRANSACTION ISOLATION LEVEL SERIALIZABLE`, "SET session none session_change,transaction_control"},
	{`SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY`, "SET session none identity_switch,session_change,transaction_control"},
	{`RESET work_mem`, "RESET session none session_change"},
	{`RESET ROLE`, "RESET session none identity_switch,session_change"},
	{`SET CONSTRAINTS ALL DEFERRED`, "SET session none session_change,transaction_control"},
	{`SET CONSTRAINTS a DEFERRED`, "SET session none session_change,transaction_control"},
	{`DISCARD PLANS`, "DISCARD session none session_change"},
	{`LISTEN c`, "LISTEN session none session_change"},
	{`UNLISTEN *`, "UNLISTEN session none session_change"},
	{`NOTIFY c`, "NOTIFY session transaction session_change"},
	{`PREPARE p AS DELETE FROM t`, "PREPARE session none session_change,write_without_where w:public.t r:public.t"},
	{`DEALLOCATE ALL`, "DEALLOCATE session none session_change"},
	{`DECLARE c CURSOR WITH HOLD FOR SELECT * FROM t`, "DECLARE session none session_change r:public.t"},
	{`CLOSE c`, "CLOSE session none session_change"},
	{`EXECUTE p (1)`, "EXECUTE session none opaque_code"},
	{`FETCH ALL FROM c`, "FETCH session none opaque_code"},
	{`MOVE c`, "FETCH session none opaque_code"},
	{`DO 'x'`, "DO procedural transaction opaque_code"},
	{`DO LANGUAGE plpython3u 'x'`, "DO procedural transaction opaque_code,server_program"},
	{`DO LANGUAGE "SQL" 'x'`, "DO procedural transaction opaque_code,server_program"},
	{`CALL p(1)`, "CALL procedural transaction opaque_code,unknown_function"},
	{`VACUUM (FULL, SKIP_LOCKED) t`, "VACUUM maintenance alone a:blocks_all,no_transaction,rewrite w:public.t"},
	{`VACUUM (FULL off) t`, "VACUUM maintenance alone a:no_transaction w:public.t"},
	{`VACUUM (surprise) t`, "VACUUM unknown alone unknown_node a:no_transaction w:public.t"},
	{`ANALYZE t (a)`, "ANALYZE maintenance transaction w:public.t"},
	{`REINDEX TABLE t`, "REINDEX maintenance transaction a:blocks_all w:public.t"},
	{`REINDEX INDEX CONCURRENTLY i`, "REINDEX maintenance alone f:concurrently a:no_transaction w:public.i"},
	{`REINDEX SCHEMA s`, "REINDEX maintenance alone a:blocks_all,no_transaction w:s.*"},
	{`CLUSTER t USING i`, "CLUSTER maintenance transaction a:blocks_all,rewrite w:public.t"},
	{`CLUSTER`, "CLUSTER maintenance alone a:blocks_all,no_transaction,rewrite w:?.*"},
	{`CHECKPOINT`, "CHECKPOINT maintenance transaction backend_control"},
	{`LOCK TABLE t`, "LOCK utility transaction row_locking a:blocks_all w:public.t"},
	{`LOAD 'x'`, "LOAD utility transaction server_program"},
	{`ALTER SYSTEM SET work_mem = '1MB'`, "ALTER_SYSTEM utility alone server_program a:no_transaction"},
}

func TestEachStatementKindIsWhatItsRowSays(t *testing.T) {
	tb := newTestTables(t, Config{})
	for _, row := range statementRows {
		c := mustClassify(t, tb, row[0])
		assert.Equal(t, row[1], describe(&c), "%s\n%+v", row[0], c.Signals)
		assert.Contains(t, c.QueryTypes, strings.Fields(row[1])[0])
		for _, s := range c.Signals {
			require.NotEmpty(t, s.Severity, s.Signal)
			require.LessOrEqual(t, s.At, len(row[0]))
		}
	}
}

// describe writes a classification as a row of statementRows.
func describe(c *Classification) string {
	words := []string{c.QueryType, c.Class, c.Run}
	for _, list := range []struct {
		mark  string
		words []string
	}{{"", c.RiskSignals}, {"f:", c.Flags}, {"a:", c.Advice}, {"w:", c.TablesWritten}, {"r:", c.TablesRead}} {
		if len(list.words) > 0 {
			words = append(words, list.mark+strings.Join(list.words, ","))
		}
	}
	return strings.Join(words, " ")
}

func TestTheRowsCoverEveryStatementKind(t *testing.T) {
	tb := newTestTables(t, Config{})
	seen := map[string]bool{}
	for _, row := range statementRows {
		p, f := parseTree(row[0])
		require.Nil(t, f)
		var tr tree
		tr.json = p.JSON
		new(treeReader).read(tb.schema, &tr)
		for _, e := range tr.entries {
			if e.msg != 0 && e.msg != listEntry {
				seen[tb.schema.messages[e.msg].name] = true
			}
		}
		p.release()
	}
	for name := range statements {
		require.True(t, seen[name], "no row for %s", name)
	}
}
