# operators and casts
SELECT 1 OPERATOR(public.=) 1
SELECT a OPERATOR("PG_CATALOG".=) b FROM t
SELECT NOT a OPERATOR(app.@@) b FROM t
SELECT OPERATOR(app.-) a FROM t
SELECT a IN (1, 2) AND b OPERATOR(evil.||) c FROM t
SELECT a = ANY (ARRAY[b OPERATOR(x.+) 1]) FROM t
SELECT 1 WHERE (1, 2) OPERATOR(app.=) (SELECT 1, 2)
SELECT a FROM t ORDER BY a USING OPERATOR(app.<)
SELECT array_agg(a ORDER BY a USING OPERATOR(app.<)) FROM t
SELECT sum(a) OVER (ORDER BY a USING OPERATOR(app.<)) FROM t
SELECT 'x'::app.secret
SELECT CAST('x' AS secret)
SELECT secret 'x'
SELECT app.secret 'x'
SELECT 'x'::secret[]
SELECT '{}'::json::app.row
SELECT NULL::users
SELECT ROW(1, 2)::users
SELECT json_populate_record(NULL::users, '{}')
SELECT * FROM json_to_record('{}') AS x(a app.secret)
SELECT * FROM ROWS FROM (json_to_record('{}') AS (a int, b evil)) x
SELECT * FROM XMLTABLE('/' PASSING '<a/>' COLUMNS a evil)
SELECT * FROM XMLTABLE('/' PASSING '<a/>' COLUMNS a int DEFAULT evil())
SELECT * FROM XMLTABLE(XMLNAMESPACES(evil() AS x), '/' PASSING '<a/>' COLUMNS a int)
SELECT * FROM XMLTABLE(evil() PASSING '<a/>' COLUMNS a int)
SELECT XMLSERIALIZE(CONTENT '<a/>' AS evil)
SELECT JSON_OBJECT('a': evil())
SELECT JSON_ARRAY(SELECT evil())
SELECT JSON_ARRAYAGG(a ORDER BY evil()) FROM t
SELECT JSON_OBJECTAGG(k: v RETURNING evil) FROM t
SELECT JSON_ARRAY(1 RETURNING evil)
SELECT 'a' COLLATE "C" || evil()
SELECT (evil()).*
SELECT (evil()).a.b
SELECT (ARRAY[1])[evil()]
SELECT (ARRAY[1])[evil():]
SELECT ARRAY[evil()]
SELECT ROW(evil())
SELECT (SELECT evil())
SELECT EXISTS (SELECT evil())
SELECT CASE WHEN false THEN evil() END
SELECT CASE evil() WHEN 1 THEN 2 END
SELECT COALESCE(1, evil())
SELECT GREATEST(1, evil())
SELECT NULLIF(1, evil())
SELECT 1 IS DISTINCT FROM evil()
SELECT 1 BETWEEN 0 AND evil()
SELECT evil() IS TRUE
SELECT 'a' LIKE 'b' ESCAPE evil()
SELECT 'a' SIMILAR TO evil()
SELECT now() AT TIME ZONE evil()
SELECT extract(year FROM evil())
SELECT overlay('a' PLACING evil() FROM 1)
SELECT position(evil() IN 'a')
SELECT trim(evil() FROM 'a')
SELECT substring('a' SIMILAR evil() ESCAPE '#')
SELECT normalize(evil(), NFC)
SELECT count(*) FILTER (WHERE evil()) FROM t
SELECT sum(a) OVER (PARTITION BY evil()) FROM t
SELECT sum(a) OVER (ROWS evil() PRECEDING) FROM t
SELECT sum(a) OVER w FROM t WINDOW w AS (ORDER BY evil())
SELECT percentile_cont(evil()) WITHIN GROUP (ORDER BY a) FROM t
SELECT lower(VARIADIC evil())
SELECT lower(x => evil())
SELECT DISTINCT ON (evil()) a FROM t
SELECT 1 GROUP BY GROUPING SETS ((evil()))
SELECT 1 GROUP BY ROLLUP (evil())
SELECT 1 HAVING evil()
SELECT 1 LIMIT evil()
SELECT 1 OFFSET evil()
SELECT 1 FETCH FIRST (evil()) ROWS ONLY
SELECT * FROM evil()
SELECT * FROM evil() WITH ORDINALITY
SELECT * FROM t, LATERAL evil(t.a)
SELECT * FROM ROWS FROM (generate_series(1, 2), evil())
SELECT * FROM generate_series(1, evil())
SELECT * FROM a JOIN b ON evil()
SELECT * FROM t TABLESAMPLE system (evil())
SELECT * FROM t TABLESAMPLE system (1) REPEATABLE (evil())
SELECT * FROM t TABLESAMPLE app.system (1)
SELECT * FROM t TABLESAMPLE tsm_system_rows (1)
VALUES (1), (evil())
TABLE pg_authid
WITH x AS (SELECT evil()) SELECT 1
WITH x AS MATERIALIZED (SELECT evil()) TABLE x
WITH RECURSIVE x(a) AS (SELECT 1 UNION ALL SELECT evil() FROM x) SELECT 1
WITH RECURSIVE x(a) AS (SELECT 1 UNION ALL SELECT a FROM x) SEARCH DEPTH FIRST BY a SET o CYCLE a SET c TO evil() DEFAULT 'a' USING p SELECT 1 FROM x
SELECT 1 UNION SELECT evil()
SELECT 1 EXCEPT (VALUES (evil()))
# hidden writes
WITH x AS (INSERT INTO t VALUES (1) RETURNING *) SELECT * FROM x
WITH x AS (UPDATE t SET a = 1 WHERE id = 1 RETURNING *) SELECT 1
WITH x AS (DELETE FROM t) SELECT 1
SELECT * FROM (WITH x AS (DELETE FROM t RETURNING a) SELECT * FROM x) y
WITH a AS (WITH b AS (DELETE FROM t RETURNING 1) SELECT 1) SELECT 1
SELECT 1 WHERE EXISTS (WITH x AS (DELETE FROM t RETURNING 1) SELECT 1)
SELECT * INTO t2 FROM t
SELECT 1 INTO TEMP t2
SELECT 1 INTO UNLOGGED TABLE t2
(SELECT 1 INTO t2) UNION SELECT 2
SELECT 1 INTO t2 UNION SELECT 2
WITH x AS (SELECT 1) SELECT * INTO t2 FROM x
EXPLAIN SELECT 1 INTO t2
EXPLAIN ANALYZE SELECT 1 INTO t2
EXPLAIN CREATE TABLE t2 AS SELECT 1
EXPLAIN (ANALYZE) SELECT 1
EXPLAIN (ANALYZE true) SELECT 1
EXPLAIN (ANALYZE 1) SELECT 1
EXPLAIN (ANALYZE off, ANALYZE on) SELECT 1
EXPLAIN (ANALYZE on, ANALYZE off) SELECT 1
EXPLAIN ("analyze") SELECT 1
EXPLAIN ("ANALYZE") SELECT 1
EXPLAIN (ANALYZE 'of') SELECT 1
EXPLAIN (ANALYZE 0.0) SELECT 1
EXPLAIN (evil) SELECT 1
EXPLAIN ANALYZE VERBOSE SELECT 1
EXPLAIN INSERT INTO t VALUES (1)
EXPLAIN UPDATE t SET a = 1
EXPLAIN DELETE FROM t
EXPLAIN MERGE INTO t USING s ON t.a = s.a WHEN MATCHED THEN DELETE
EXPLAIN DECLARE c CURSOR FOR SELECT 1
EXPLAIN EXECUTE p
EXPLAIN REFRESH MATERIALIZED VIEW m
EXPLAIN SELECT evil()
EXPLAIN SELECT * FROM t FOR UPDATE
SELECT * FROM t FOR UPDATE
SELECT * FROM t FOR NO KEY UPDATE NOWAIT
SELECT * FROM t FOR SHARE OF t
SELECT * FROM t FOR KEY SHARE SKIP LOCKED
SELECT * FROM (SELECT * FROM t FOR UPDATE) x
WITH x AS (SELECT * FROM t FOR UPDATE) SELECT * FROM x
SELECT (SELECT a FROM t FOR SHARE)
SELECT * FROM t WHERE a IN (SELECT b FROM s FOR UPDATE)
VALUES (1) FOR UPDATE
# built-ins
SELECT nextval('s')
SELECT pg_catalog.nextval('s')
SELECT "nextval"('s')
SELECT NEXTVAL('s')
SELECT currval('s'), setval('s', 1)
SELECT lastval(), nextval('s')
SELECT x.nextval FROM (SELECT 's'::regclass) AS y(x)
SELECT ('s'::regclass).nextval
SELECT (ARRAY['s'::regclass])[1].nextval
SELECT (x).nextval FROM (SELECT 's'::regclass AS x) y
SELECT y.x.nextval FROM y
SELECT a.pg_sleep FROM (SELECT 1.0::float8 AS a) q
SELECT q.a FROM (SELECT 1.0::float8 AS a) q ORDER BY q.pg_sleep
SELECT set_config('role', 'postgres', false)
SELECT set_config('x.y', 'z', true)
SELECT pg_advisory_lock(1)
SELECT pg_advisory_xact_lock_shared(1, 2)
SELECT pg_try_advisory_lock(1)
SELECT pg_advisory_unlock_all()
SELECT lo_create(0)
SELECT lo_from_bytea(0, 'x')
SELECT lo_put(1, 0, 'x')
SELECT lo_open(1, 131072)
SELECT lowrite(0, 'x')
SELECT lo_export(1, '/tmp/x')
SELECT pg_read_file('/etc/passwd')
SELECT pg_read_binary_file('/etc/passwd')
SELECT pg_stat_file('/etc/passwd')
SELECT * FROM pg_ls_dir('.')
SELECT * FROM pg_ls_waldir()
SELECT * FROM pg_ls_logdir()
SELECT pg_tablespace_databases(g::oid) FROM generate_series(100000, 600000) g
SELECT (99999::oid).pg_tablespace_databases
SELECT timestamptypmodin(ARRAY[(6 + g)::text]::cstring[]) FROM generate_series(1, 9) g
SELECT intervaltypmodin('{32767,9}')
SELECT pg_current_logfile()
SELECT pg_hba_file_rules()
SELECT pg_terminate_backend(1)
SELECT pg_cancel_backend(1)
SELECT pg_reload_conf()
SELECT pg_rotate_logfile()
SELECT pg_switch_wal()
SELECT pg_create_restore_point('x')
SELECT pg_logical_emit_message(false, 'a', 'b')
SELECT pg_create_logical_replication_slot('a', 'b')
SELECT * FROM pg_logical_slot_get_changes('a', NULL, NULL)
SELECT pg_replication_origin_create('x')
SELECT pg_replication_origin_session_setup('x')
SELECT pg_export_snapshot()
SELECT pg_notify('a', 'b')
SELECT txid_current()
SELECT pg_current_xact_id()
SELECT query_to_xml('SELECT nextval(''s'')', true, true, '')
SELECT query_to_xml_and_xmlschema('SELECT 1', true, true, '')
SELECT cursor_to_xml('c', 1, true, true, '')
SELECT table_to_xml('t', true, true, '')
SELECT schema_to_xml('public', true, true, '')
SELECT database_to_xml(true, true, '')
SELECT ts_stat('SELECT evil()')
SELECT ts_rewrite('a'::tsquery, 'SELECT evil(), 1')
SELECT pg_input_is_valid('1', 'evil')
SELECT pg_input_error_info('1', 'evil')
SELECT array_in('{1}', 1, -1)
SELECT record_in('(1)', 1, -1)
SELECT domain_in('1', 1, -1)
SELECT pg_stat_reset()
SELECT pg_stat_reset_shared('bgwriter')
SELECT pg_stat_reset_single_table_counters(1)
SELECT brin_summarize_new_values('i')
SELECT gin_clean_pending_list('i')
SELECT pg_import_system_collations('pg_catalog')
SELECT pg_extension_config_dump('t', '')
SELECT pg_nextoid('pg_class', 'oid', 'pg_class_oid_index')
SELECT binary_upgrade_set_record_init_privs(true)
SELECT pg_promote()
SELECT pg_wal_replay_pause()
SELECT pg_backup_start('x')
SELECT pg_log_backend_memory_contexts(1)
SELECT setseed(0.5)
SELECT random()
SELECT pg_sleep_until(now())
SELECT currtid2('t', '(0,1)')
SELECT pg_snapshot_xip(pg_current_snapshot()), pg_current_xact_id()
SELECT has_table_privilege('t', 'SELECT'), dblink('x', 'y')
SELECT plpgsql_inline_handler(NULL)
SELECT ts_lexize('evil', 'x'), evil()
SELECT suppress_redundant_updates_trigger()
SELECT "RI_FKey_cascade_del"()
SELECT unique_key_recheck()
SELECT fmgr_sql_validator(1)
SELECT currval('s'), public.currval('s')
# names that only look built in
SELECT public.lower('x')
SELECT "LOWER"('x')
SELECT "lower "('x')
SELECT "pg_catalog "."lower"('x')
SELECT "Pg_Catalog".lower('x')
SELECT db.public.lower('x')
SELECT a.b.c.lower('x')
SELECT information_schema.lower('x')
SELECT lower('a', 'b')
SELECT upper(evil => 'a')
SELECT pg_table_size(oid), count(1,2) FROM pg_class WHERE relname='pg_class'
SELECT count() FROM t
SELECT first_value(a) FROM t
SELECT lower(DISTINCT a) FROM t
SELECT abs(a) OVER () FROM t
SELECT percentile_disc(0.5, a) FROM t
SELECT rank(1) FROM t
SELECT max(a) WITHIN GROUP (ORDER BY a) FROM t
SELECT make_interval(lustra => 1)
SELECT int4range(x => '[1,2]')
SELECT * FROM generate_series(1)
SELECT jsonb_strip_nulls(a, 'x', true) FROM t
SELECT a FROM t WHERE max(a) = 'x'
SELECT * FROM max('a'::varchar)
SELECT a FROM t GROUP BY first_value(a) OVER ()
SELECT @> a FROM t
SELECT a |/ b FROM t
SELECT pg_temp.lower('x')
SELECT pg_toast.lower('x')
SELECT U&"\006c\006f\0077\0065\0072\0078"('x')
SELECT U&"n\0065xtval"('s')
SELECT U&"!006eextval" UESCAPE '!' ('s')
SELECT lower/**/.evil('x')
SELECT evil.lower FROM evil('x') evil, evil2()
SELECT lоwer('x')
SELECT '1'::serial
SELECT CAST('1' AS bigserial)
SELECT "smallserial" '1'
SELECT '{1}'::serial8[]
SELECT serial('1')
SELECT '1'::pg_catalog.serial
SELECT '1'::pg_catalog.integer
SELECT '1'::"integer"
SELECT '1'::"Int4"
SELECT '1'::"double precision"
SELECT '1'::"timestamp with time zone"
SELECT * FROM json_to_record('{"a": 1}') AS x(a serial2)
SELECT * FROM XMLTABLE('/a' PASSING '<a/>' COLUMNS a bigserial)
SELECT xmlserialize(CONTENT '<a/>' AS serial)
SELECT "coalesce"(1, 2)
SELECT pg_catalog."coalesce"(1, 2)
SELECT "xmlelement"('a')
SELECT "greatest"(1, 2), "nullif"(1, 2)
SELECT "json_array"(1, 2)
SELECT "grouping"(a) FROM t
SELECT "cast"(a), "row"(a), "exists"(a) FROM t
SELECT json(a) FROM t
SELECT json_value(a, b) FROM t
SELECT json_query(a, b), json_exists(a, b), json_scalar(a), json_serialize(a) FROM t
SELECT merge_action()
SELECT * FROM json_table(a, b)
# settings and sessions
SHOW ALL
SHOW config_file
SHOW data_directory
SHOW hba_file
SHOW primary_conninfo
SHOW ssl_key_file
SHOW shared_preload_libraries
SHOW archive_command
SELECT current_setting('config_file')
SELECT current_setting(a) FROM t
SELECT current_setting('data' || '_directory')
SELECT ('ssl_key_file'::text).current_setting
SET search_path = evil
SET LOCAL role = postgres
SET SESSION AUTHORIZATION postgres
RESET ALL
DISCARD TEMP
BEGIN
START TRANSACTION READ ONLY
COMMIT AND CHAIN
PREPARE TRANSACTION 'x'
LISTEN a
UNLISTEN *
NOTIFY a, 'b'
PREPARE p AS SELECT 1
EXECUTE p
EXECUTE p(evil())
DEALLOCATE ALL
DECLARE c CURSOR FOR SELECT 1
DECLARE c SCROLL CURSOR WITH HOLD FOR SELECT 1
FETCH ALL FROM c
MOVE 1 FROM c
CLOSE c
LOCK TABLE t
LOCK t IN ACCESS SHARE MODE
# copy
COPY t TO STDOUT
COPY (SELECT 1) TO STDOUT
COPY (SELECT evil()) TO STDOUT
COPY (DELETE FROM t RETURNING *) TO STDOUT
COPY t TO '/tmp/x'
COPY t FROM '/tmp/x'
COPY t TO PROGRAM 'id'
COPY t FROM PROGRAM 'id'
COPY t FROM STDIN
COPY (SELECT 1) TO PROGRAM 'sh'
# definitions, labels, maintenance
SECURITY LABEL ON TABLE t IS 'x'
COMMENT ON TABLE t IS 'x'
GRANT SELECT ON t TO PUBLIC
CREATE TABLE x (a int)
CREATE TEMP VIEW v AS SELECT 1
CREATE TABLE x AS TABLE t
CREATE TABLE x AS EXECUTE p
CREATE MATERIALIZED VIEW m AS SELECT 1
REFRESH MATERIALIZED VIEW m
CREATE RULE r AS ON SELECT TO t DO INSTEAD SELECT 1
CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'
CREATE OPERATOR === (LEFTARG = int, RIGHTARG = int, FUNCTION = evil)
CREATE CAST (int AS text) WITH FUNCTION evil(int)
CREATE DOMAIN d AS int CHECK (evil(VALUE))
DO $$ BEGIN END $$
DO LANGUAGE plperlu 'x'
CALL p()
VACUUM t
ANALYZE
ANALYZE t
REINDEX TABLE t
CLUSTER t
CHECKPOINT
LOAD 'x'
ALTER SYSTEM SET x = 1
ALTER TABLE t ALTER a SET STATISTICS 1
IMPORT FOREIGN SCHEMA a FROM SERVER b INTO c
DELETE FROM t WHERE CURRENT OF c
UPDATE t SET a = 1 WHERE CURRENT OF c
# secrets
SELECT * FROM pg_authid
SELECT * FROM PG_CATALOG.PG_SHADOW
SELECT rolpassword FROM "pg_authid" a
SELECT a.rolpassword FROM pg_catalog.pg_authid AS a JOIN t ON true
SELECT * FROM ONLY pg_authid
SELECT * FROM (TABLE pg_shadow) x
SELECT EXISTS (SELECT FROM pg_user_mapping WHERE umoptions IS NOT NULL)
SELECT * FROM db.pg_catalog.pg_authid
WITH pg_authid AS (SELECT * FROM pg_authid) SELECT * FROM pg_authid
WITH x AS (SELECT 1) SELECT * FROM pg_stat_activity, x
SELECT * FROM pg_largeobject
SELECT * FROM pg_stats
SELECT * FROM pg_statistic
SELECT * FROM pg_hba_file_rules
SELECT * FROM pg_file_settings
SELECT * FROM information_schema.user_mapping_options
SELECT usename FROM pg_stat_get_activity(NULL)
SELECT * FROM pg_show_all_settings()
SELECT * FROM pg_show_all_file_settings()
SELECT * FROM pg_prepared_statement()
SELECT * FROM pg_cursor()
SELECT * FROM pg_lock_status()
SELECT pg_stat_get_backend_activity(1)
SELECT 1 FROM pg_stat_statements
SELECT 1 FROM ext.pg_stat_statements
SELECT pg_options_to_table(umoptions) FROM pg_user_mappings
# a name behind a dot that is no column
SELECT ('x'::text).evil
SELECT (ARRAY[1])[1].evil
SELECT x.evil FROM generate_series(1, 2) x
SELECT x.evil FROM (SELECT 1) x
WITH x AS (SELECT 1) SELECT x.evil FROM x
SELECT c.evil FROM pg_am c
SELECT (x.*).evil FROM generate_series(1, 2) x(evil)
# a table that is no fact, and the operator class of its key
SELECT satisfies_hash_partition('hp'::regclass, 2, 0, 5)
# a row of a table, whose columns' types read what the text gives
SELECT json_populate_record(o, '{"d": "evil"}') FROM o
SELECT * FROM o, jsonb_populate_recordset(o, '[{"d": "evil"}]')
SELECT json_populate_record(from_json := '{"d": "evil"}', base := o) FROM o
SELECT jsonb_populate_record(o::record, '{"d": "evil"}') FROM o
SELECT jsonb_populate_record((SELECT o FROM o), '{"d": "evil"}')
