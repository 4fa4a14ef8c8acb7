package classify

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Ways to read rolconfig, which is a secret column of a view that everybody
// reads for the names of roles, and the like of other relations.
var secretReads = []string{
	// by its name
	"SELECT rolconfig FROM pg_roles",
	"SELECT rolname, RolConfig FROM pg_roles",
	`SELECT "rolconfig" FROM pg_catalog.pg_roles`,
	"SELECT r.rolconfig FROM pg_roles r",
	"SELECT r.rolconfig FROM db.pg_catalog.pg_roles AS r",
	"SELECT pg_roles.rolconfig FROM pg_roles",
	"SELECT pg_catalog.pg_roles.rolconfig FROM pg_catalog.pg_roles",
	// with its schema in front it is the relation's, whatever else is called so
	"SELECT (SELECT pg_catalog.pg_roles.rolconfig FROM (SELECT 1) AS pg_roles) FROM pg_catalog.pg_roles",
	"SELECT (SELECT db.pg_catalog.pg_roles.rolconfig FROM t AS pg_roles) FROM pg_catalog.pg_roles",
	"SELECT (SELECT (pg_catalog.pg_roles.*)::text FROM (SELECT 1) AS pg_roles) FROM pg_catalog.pg_roles",
	"SELECT (SELECT x FROM (SELECT pg_catalog.pg_roles.* FROM (SELECT 1) AS pg_roles) x) FROM pg_catalog.pg_roles",
	"SELECT 1 FROM pg_catalog.pg_roles JOIN LATERAL (SELECT pg_catalog.pg_roles.rolconfig AS s FROM (SELECT 1) AS pg_roles) l ON l.s IS NULL",
	"SELECT rolname FROM pg_roles WHERE 'work_mem=1MB' = ANY (rolconfig)",
	"SELECT rolname FROM pg_roles ORDER BY rolconfig",
	"SELECT count(*) FROM pg_roles GROUP BY rolconfig",
	"SELECT count(*) FILTER (WHERE rolconfig IS NOT NULL) FROM pg_roles",
	"SELECT rolname, rank() OVER (ORDER BY rolconfig) FROM pg_roles",
	"SELECT DISTINCT ON (rolconfig) rolname FROM pg_roles",
	"SELECT u FROM pg_roles r, unnest(r.rolconfig) u",
	"SELECT u FROM pg_roles r, LATERAL (SELECT rolconfig) x(u)",
	"SELECT 1 FROM t WHERE EXISTS (SELECT 1 FROM pg_roles WHERE rolconfig[1] LIKE 'a%')",
	"SELECT (SELECT rolconfig FROM pg_roles LIMIT 1)",
	"SELECT ARRAY(SELECT rolconfig FROM pg_roles)",
	"SELECT (SELECT r.rolconfig) FROM pg_roles r",
	"SELECT (SELECT max(x) FROM (SELECT r.rolconfig AS x) y) FROM pg_roles r",
	"SELECT rolname FROM pg_roles JOIN t ON t.a = rolconfig",
	"SELECT rolname FROM t JOIN pg_roles r ON r.rolconfig = t.a",
	"SELECT rolname FROM pg_roles JOIN t USING (rolconfig)",
	"SELECT rolname FROM pg_roles JOIN t USING (oid, rolconfig) AS u",
	"SELECT x.a FROM (t CROSS JOIN pg_roles) JOIN x USING (rolconfig)",
	"VALUES ((SELECT rolconfig FROM pg_roles LIMIT 1))",
	"SELECT a FROM t UNION ALL SELECT rolconfig FROM pg_roles",
	"WITH c AS (SELECT rolconfig AS x FROM pg_roles) SELECT x FROM c",
	"WITH c(x) AS (SELECT rolconfig FROM pg_roles) SELECT x FROM c",
	"EXPLAIN SELECT rolconfig FROM pg_roles",
	// as one of all columns
	"SELECT * FROM pg_roles",
	"TABLE pg_roles",
	"TABLE pg_catalog.pg_roles",
	"SELECT * FROM ONLY pg_roles",
	"SELECT * FROM pg_roles TABLESAMPLE system (10)",
	"SELECT r.* FROM pg_roles r, t",
	"SELECT pg_roles.* FROM pg_roles",
	"SELECT pg_catalog.pg_roles.* FROM pg_catalog.pg_roles",
	"SELECT * FROM t, pg_roles",
	"SELECT * FROM t LEFT JOIN (x CROSS JOIN pg_roles) ON true",
	"SELECT j.* FROM (t CROSS JOIN pg_roles) AS j",
	"SELECT x FROM (SELECT * FROM pg_roles) AS s(a, b, c, d, e, f, g, h, i, j, k, x)",
	"SELECT x.a FROM (TABLE pg_roles) AS x(a)",
	"WITH c AS (TABLE pg_roles) SELECT a FROM c",
	"WITH c(a, b) AS (SELECT * FROM pg_roles) SELECT b FROM c",
	"WITH RECURSIVE c AS (SELECT * FROM pg_roles UNION SELECT * FROM c) SELECT 1 FROM c",
	"(SELECT * FROM t) EXCEPT (SELECT * FROM pg_roles)",
	"SELECT (SELECT ROW(r.*)) FROM pg_roles r",
	"SELECT 1 FROM pg_roles r WHERE (r.*) IS NOT NULL",
	"SELECT EXISTS (SELECT * FROM pg_roles INTERSECT TABLE t)",
	"SELECT a IN (SELECT * FROM pg_user) FROM t",
	// as the whole row
	"SELECT r FROM pg_roles r",
	"SELECT pg_roles FROM pg_roles",
	"SELECT r::text FROM pg_roles r",
	"SELECT row_to_json(r) FROM pg_roles r",
	"SELECT to_jsonb(r) ->> 'rolname' FROM pg_roles r",
	"SELECT json_agg(r) FROM pg_roles AS r",
	"SELECT count(r) FROM pg_roles r",
	"SELECT (r).rolconfig FROM pg_roles r",
	"SELECT (r).* FROM pg_roles r",
	"SELECT (pg_roles).rolconfig FROM pg_roles",
	"SELECT (ARRAY(SELECT r FROM pg_roles r))[1]",
	"SELECT r.row_to_json FROM pg_roles r",
	"SELECT r.to_jsonb FROM pg_roles r",
	"SELECT rolconfig(r) FROM pg_roles r",
	"SELECT r = s FROM pg_roles r, pg_user s",
	"SELECT rolname FROM pg_roles r ORDER BY r",
	"SELECT 1 FROM pg_roles r, t WHERE t.r IN (SELECT r)",
	"SELECT (SELECT x FROM (SELECT r) AS y(x)) FROM pg_roles r",
	"SELECT j FROM (pg_roles CROSS JOIN t) AS j",
	// by another name
	"SELECT l FROM pg_roles AS r(a, b, c, d, e, f, g, h, i, j, k, l)",
	"SELECT r.l FROM pg_roles r(a, b, c, d, e, f, g, h, i, j, k, l)",
	"SELECT j.a FROM (pg_roles CROSS JOIN t) AS j(a)",
	"SELECT a FROM ((x CROSS JOIN pg_roles) JOIN t ON true) AS j(a)",
	"SELECT j.row_to_json FROM (pg_roles CROSS JOIN t) AS j",
	"SELECT oid FROM pg_roles NATURAL JOIN t",
	"SELECT 1 FROM t NATURAL LEFT JOIN (x CROSS JOIN pg_roles)",
	// where another relation of the same name does not hide it
	"SELECT (SELECT r.rolconfig FROM (t AS r CROSS JOIN x) AS j) FROM pg_roles r",
	"SELECT (SELECT s.x FROM t r, (SELECT r.rolconfig AS x) s) FROM pg_roles r",
	"SELECT (WITH c AS (SELECT r.rolconfig AS x) SELECT max(x) FROM c, t AS r) FROM pg_roles r",
	"SELECT (SELECT 1 FROM t AS r LIMIT (SELECT length(r.rolconfig::text))) FROM pg_roles r",
	"SELECT (SELECT r.rolconfig FROM t JOIN x AS q ON true) FROM pg_roles r",
	// statements that change something
	"INSERT INTO t TABLE pg_roles",
	"CREATE TABLE x AS SELECT * FROM pg_roles",
	"CREATE VIEW v AS SELECT rolconfig FROM pg_roles",
	"SELECT * INTO x FROM pg_roles",
	"UPDATE t SET a = rolconfig FROM pg_roles WHERE t.id = 1",
	"UPDATE t SET a = 1 FROM pg_roles r WHERE t.id = 1 RETURNING *",
	"DELETE FROM t USING pg_roles r WHERE t.id = 1 RETURNING r",
	"MERGE INTO t USING pg_roles r ON t.a = r.rolname WHEN NOT MATCHED THEN INSERT VALUES (r.rolconfig)",
	"INSERT INTO pg_proc (proname) VALUES ('x') RETURNING prosrc",
	"UPDATE pg_proc SET proname = 'x' WHERE oid = 1 RETURNING *",
	"UPDATE pg_proc SET proname = 'x' WHERE oid = 1 RETURNING old.prosrc",
	"DELETE FROM pg_proc WHERE prosrc LIKE '%x%'",
	"COPY pg_roles TO STDOUT",
	"COPY pg_roles (rolname, rolconfig) TO STDOUT",
	"COPY (TABLE pg_roles) TO STDOUT",
	"PREPARE p AS SELECT rolconfig FROM pg_roles",
	"DECLARE c CURSOR FOR TABLE pg_roles",
	// the same of others
	"SELECT useconfig FROM pg_user",
	"SELECT prosrc FROM pg_proc WHERE proname = 'f'",
	"SELECT p.prosqlbody::text FROM pg_proc p",
	"SELECT proconfig, probin FROM pg_proc",
	"SELECT pg_get_expr(prosqlbody, 0) FROM pg_proc",
	"SELECT routine_definition FROM information_schema.routines",
	"SELECT * FROM information_schema.routines",
	"SELECT subconninfo FROM pg_subscription",
	"SELECT srvoptions FROM pg_foreign_server",
	"SELECT * FROM pg_foreign_data_wrapper",
	"SELECT option_value FROM information_schema.column_options",
	"SELECT attmissingval FROM pg_attribute",
	"SELECT pg_options_to_table(umoptions) FROM pg_user_mappings",
	"SELECT setting FROM pg_settings WHERE name = 'data_directory'",
	"SELECT name FROM pg_settings WHERE reset_val LIKE '/%'",
	// what is no table of anybody's decision
	"SELECT 1 FROM pg_toast.pg_toast_1255",
	"SELECT * FROM pg_toast.pg_toast_2619_index",
	`SELECT chunk_data FROM "pg_toast"."pg_toast_16384" x`,
	"SELECT 1 FROM pg_toast_temp_3.pg_toast_16384",
	"SELECT 1 FROM pg_catalog.pg_brand_new",
	"SELECT a FROM information_schema.brand_new",
	"SELECT c.brand_new FROM pg_class c",
	"SELECT c.my_function FROM pg_class c",
	"SELECT count(*) FROM pg_authid",
	"SELECT 1 FROM pg_aios",
	"SELECT 1 FROM pg_catalog.pg_shmem_allocations_numa",
	// settings
	"SHOW unix_socket_directories", "SHOW dynamic_library_path", "SHOW log_filename", "SHOW LOG_FileName", "SHOW listen_addresses", "SHOW port",
	"SHOW log_directory", "SHOW jit_provider", "SHOW restore_command", "SHOW synchronous_standby_names", "SHOW extension_control_path",
	"SHOW app.jwt_secret", `SHOW "app"."jwt_secret"`, "SHOW brand_new", "SHOW ALL",
	"SELECT current_setting('dynamic_library_path')", "SELECT current_setting('Unix_Socket_Directories', true)",
	"SELECT current_setting('app.jwt_secret')", "SELECT current_setting('app.jwt_secret', true)", "SELECT current_setting('brand_new')",
	"SELECT pg_catalog.current_setting('log_filename'::text)", "SELECT current_setting($1)", "SELECT current_setting(name) FROM pg_settings",
	"SELECT current_setting('all')",
	"SELECT set_config('app.jwt_secret', NULL, false)", "SELECT set_config('data_directory', (SELECT a FROM t), true)",
	// functions
	"SELECT pg_show_all_settings()", "SELECT pg_tablespace_location(1663)", "SELECT oid.pg_tablespace_location FROM t oid",
	"SELECT inet_server_addr(), inet_server_port()", "SELECT pg_get_functiondef(1)", "SELECT pg_get_function_sqlbody(1)",
}

func TestSecretColumnsAreSeenInEveryForm(t *testing.T) {
	for _, major := range []int{0, 15, 16, 17, 18} {
		tb, err := newTables(Config{ServerMajor: major})
		require.NoError(t, err)
		for _, sql := range secretReads {
			if major < 18 && major > 0 && strings.Contains(sql, "pg_aios") {
				continue // a name that users may have there
			}
			c := mustClassify(t, tb, sql)
			require.False(t, c.SafeRead, "%d: %s", major, sql)
			require.Contains(t, c.RiskSignals, SignalSecretCatalogRead, "%d: %s", major, sql)
		}
	}
}

// Reads of the same relations that reach no secret column, as psql, drivers and
// frameworks send them.
var openReads = []string{
	"SELECT rolname FROM pg_roles",
	"SELECT r.rolname, r.rolpassword FROM pg_catalog.pg_roles r WHERE r.rolname = $1 ORDER BY r.oid",
	"SELECT count(*) FROM pg_roles WHERE rolsuper",
	"SELECT 1 FROM pg_roles, t",
	"SELECT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'x')",
	"SELECT x.* FROM (SELECT rolname, oid FROM pg_roles) x",
	"SELECT * FROM (SELECT rolname FROM pg_roles) x JOIN t ON true",
	"SELECT * FROM t WHERE owner IN (SELECT rolname FROM pg_roles)",
	"SELECT t.*, r.rolname FROM t JOIN pg_roles r ON r.oid = t.owner",
	"WITH c(a) AS (SELECT rolname FROM pg_roles) SELECT * FROM c",
	"WITH pg_roles AS (SELECT 1 AS rolconfig) SELECT * FROM pg_roles",
	"SELECT * FROM public.pg_roles",
	"SELECT rolname FROM pg_roles JOIN t USING (oid)",
	"SELECT rolname AS name FROM pg_roles UNION SELECT rolconfig FROM t",
	"SELECT t.rolconfig FROM t, pg_roles",
	"SELECT (SELECT r.rolconfig FROM t r) FROM pg_roles r",
	"SELECT (SELECT 1 FROM t AS r WHERE r.whatever = 1) FROM pg_roles r",
	"SELECT (SELECT max(r.rolconfig) FROM generate_series(1, 2) AS r(rolconfig)) FROM pg_roles r",
	"SELECT usename FROM pg_user",
	"SELECT proname, pg_get_function_arguments(oid), pg_get_function_result(oid), prokind FROM pg_proc",
	"SELECT p.oid, p.xmin, p.tableoid::regclass FROM pg_proc p",
	"SELECT a.*, b.proname FROM t a JOIN pg_proc b ON b.oid = a.f",
	"SELECT routine_name, routine_type, data_type FROM information_schema.routines WHERE specific_schema = 'public'",
	"SELECT srvname, srvowner FROM pg_foreign_server",
	"SELECT n.nspname, c.relname, s.srvname FROM pg_foreign_table ft JOIN pg_class c ON c.oid = ft.ftrelid JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_foreign_server s ON s.oid = ft.ftserver",
	"SELECT subname, subenabled, subpublications FROM pg_subscription",
	"SELECT um.srvname, um.usename FROM pg_user_mappings um",
	"SELECT lower(name) FROM pg_settings WHERE context <> 'internal' ORDER BY 1",
	"SELECT * FROM pg_class", "SELECT c FROM pg_class c", "SELECT * FROM pg_views", "SELECT * FROM pg_indexes NATURAL JOIN pg_tables",
	"SELECT c.a FROM pg_class AS c(a)", "SELECT * FROM pg_stat_user_tables", "SELECT * FROM pg_database d", "SELECT * FROM information_schema.columns",
	"SELECT a.attname, a.attoptions FROM pg_attribute a",
	"SHOW TimeZone", "SHOW TIME ZONE", "SHOW TRANSACTION ISOLATION LEVEL", "SHOW SESSION AUTHORIZATION", "SHOW is_superuser", "SHOW server_version",
	"SHOW search_path", "SHOW work_mem", "SHOW lc_collate", "SELECT current_setting('SERVER_VERSION_NUM')::int, current_setting('role', true)",
	"SELECT current_setting('server_version_num'), current_setting('crdb_version', true)",
}

func TestReadsThatReachNoSecretColumnAreSafe(t *testing.T) {
	for _, major := range []int{0, 15, 16, 17, 18} {
		tb, err := newTables(Config{ServerMajor: major})
		require.NoError(t, err)
		for _, sql := range openReads {
			c := mustClassify(t, tb, sql)
			require.True(t, c.SafeRead, "%d: %s: %v", major, sql, c.Signals)
		}
	}
}

// A setting's value that is given is no secret: this is how applications say for
// whom they ask.
func TestSettingAValueTellsNothing(t *testing.T) {
	tb := newTestTables(t, Config{})
	for _, sql := range []string{
		"SELECT set_config('app.tenant', '42', true)", "SELECT set_config('app.tenant', $1, true)", "SELECT set_config('app.tenant', $1::text, true)",
		"SELECT set_config('work_mem', NULL, true)", "SET app.tenant = '42'", "RESET app.tenant",
	} {
		require.NotContains(t, mustClassify(t, tb, sql).RiskSignals, SignalSecretCatalogRead, sql)
	}
}

// What was a secret by its ending or its beginning still is one.
func TestNoSettingWasOpenedByTheTable(t *testing.T) {
	rows, err := tsv(settingsTSV, 4)
	require.NoError(t, err)
	require.Greater(t, len(rows), 400)
	for _, r := range rows {
		secret := strings.HasPrefix(r[0], "ssl_") || strings.HasPrefix(r[0], "krb_") || strings.HasPrefix(r[0], "primary_")
		for _, suffix := range []string{"_file", "_directory", "_command", "_conninfo", "_libraries", "_library"} {
			secret = secret || strings.HasSuffix(r[0], suffix)
		}
		if secret {
			require.Equal(t, verdictSecret, r[1], r[0])
		}
	}
}

// Both tables name each thing once, in order, with a verdict, a reason and its versions.
func TestTheTablesOfSecretsAreWhole(t *testing.T) {
	for table, width := range map[string]int{catalogTSV: 5, settingsTSV: 4} {
		rows, err := tsv(table, width)
		require.NoError(t, err)
		seen := map[string]bool{}
		for _, r := range rows {
			name := strings.Join(r[:width-3], ".")
			require.False(t, seen[name], name)
			seen[name] = true
			require.Contains(t, []string{verdictSafe, verdictSecret}, r[width-3], name)
			kind, text, ok := strings.Cut(r[width-2], ": ")
			require.True(t, ok && kind != "" && text != "", name)
			if kind == "absent" { // of no server, which TestSecretsOnAServer asks
				require.Equal(t, [2]string{settingsTSV, ""}, [2]string{table, r[width-1]}, name)
				continue
			}
			_, err := parseVersions(r[width-1])
			require.NoError(t, err, name)
		}
	}
}
