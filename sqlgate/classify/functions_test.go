package classify

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCallsRaiseWhatTheyDo(t *testing.T) {
	tb := newTestTables(t, Config{})
	for call, want := range map[string]string{
		"now()": "", "pg_catalog.now()": "", `"now"()`: "", "lab.pg_catalog.now()": "", "NOW()": "", "count(*)": "", "repeat('x', 9)": "",
		`"Now"()`: SignalUnknownFunction, "public.now()": SignalUnknownFunction, "information_schema._pg_char_max_length(1,2)": "",
		"pg_catalog.nothing()": SignalUnknownFunction,
		"random()":             SignalVolatileFunction, "gen_random_uuid()": SignalVolatileFunction, "pg_relation_size('t')": SignalVolatileFunction,
		"setval('s', 1)": SignalSequenceChange, "pg_advisory_lock(1)": SignalAdvisoryLock, "pg_sleep_for('1s')": SignalDelayFunction,
		"setseed(1)": SignalSessionChange, "pg_export_snapshot()": SignalSessionChange, "pg_notify('a', 'b')": SignalSessionChange,
		"pg_get_functiondef(1)": SignalSecretCatalogRead, "pg_input_is_valid('1', 'int')": SignalUnknownFunction,
		"pg_read_file('x')": SignalServerFileAccess, "lo_import('x')": SignalServerFileAccess, "pg_ls_dir('.')": SignalServerFileAccess,
		"pg_terminate_backend(1)": SignalBackendControl, "pg_switch_wal()": SignalBackendControl, "pg_stat_reset()": SignalBackendControl,
		"pg_drop_replication_slot('x')": SignalBackendControl, "brin_summarize_new_values('i')": SignalBackendControl,
		"pg_import_system_collations('x')": SignalBackendControl + "," + SignalSystemCatalogWrite,
		"query_to_xml('', true, true, '')": SignalSQLExecutingFunction, "ts_stat('')": SignalSQLExecutingFunction,
		"plpgsql_call_handler()":            SignalOpaqueCode,
		"set_config('work_mem', 'x', true)": SignalSessionChange, "set_config('Role', 'x', true)": SignalIdentitySwitch + "," + SignalSessionChange,
		"set_config('app.tenant', $1, true)": SignalSessionChange, "set_config('timezone.app', 'x', true)": SignalSessionChange,
		"set_config('application_name', 'x', false)": SignalSessionChange, "set_config('TIMEZONE', 'UTC', true)": SignalIdentitySwitch + "," + SignalSessionChange,
		`set_config(U&'Time\005Aone', 'UTC', true)`:                   SignalIdentitySwitch + "," + SignalSessionChange,
		"pg_catalog.set_config('statement_timeout'::text, '0', true)": SignalIdentitySwitch + "," + SignalSessionChange, "set_config('synchronous_commit' COLLATE \"C\", 'off', true)": SignalIdentitySwitch + "," + SignalSessionChange,
		"set_config($1, 'x', true)":                             SignalIdentitySwitch + "," + SignalSessionChange,
		"set_config('jit', 'off', false)":                       SignalSessionChange,
		"set_config('jit', 'on', false)":                        SignalIdentitySwitch + "," + SignalSessionChange,
		"set_config('plpgsql.check_asserts', 'off', true)":      SignalIdentitySwitch + "," + SignalSessionChange,
		"set_config('PostGIS.gdal_enabled_drivers', 'x', true)": SignalIdentitySwitch + "," + SignalSessionChange,
		"set_config('work' || '_mem', 'x', true)":               SignalIdentitySwitch + "," + SignalSessionChange,
		"current_setting('work_mem')":                           "", "current_setting('work_mem'::text)": "", "current_setting('DATA_directory')": SignalSecretCatalogRead,
		"current_setting(x)": SignalSecretCatalogRead, "current_setting(VARIADIC ARRAY['a'])": SignalSecretCatalogRead,
		"current_setting('a'::app.text)":        SignalSecretCatalogRead + "," + SignalUnknownFunction,
		"('config_file'::text).current_setting": SignalSecretCatalogRead,
		"dblink('a', 'b')":                      SignalRemoteAccess + "," + SignalUnknownFunction, "ext.dblink_exec('a')": SignalRemoteAccess + "," + SignalUnknownFunction,
		"crosstab('a')": SignalSQLExecutingFunction + "," + SignalUnknownFunction, "pg_file_unlink('a')": SignalServerFileAccess + "," + SignalUnknownFunction,
		"get_raw_page('t', 0)": SignalServerFileAccess + "," + SignalUnknownFunction, "similarity('a', 'b')": SignalUnknownFunction,
		"pg_stat_statements_reset()": SignalBackendControl + "," + SignalUnknownFunction, "uuid_generate_v4()": SignalUnknownFunction + "," + SignalVolatileFunction,
	} {
		c := mustClassify(t, tb, "SELECT "+call+" FROM t")
		require.Equal(t, want, strings.Join(c.RiskSignals, ","), call)
		require.Equal(t, want == "", c.SafeRead, call)
		require.Equal(t, want == "" || want == SignalSecretCatalogRead, c.Class == ClassRead, call)
	}
}

func TestAColumnThatIsACallCounts(t *testing.T) {
	tb := newTestTables(t, Config{})
	for sql, want := range map[string]string{
		"SELECT x.pg_read_file FROM unnest(ARRAY['/etc/passwd']) x":  SignalServerFileAccess,
		"SELECT ('/etc/passwd'::text).pg_read_file":                  SignalServerFileAccess,
		"SELECT (a[1]).pg_read_file FROM t":                          SignalServerFileAccess,
		"SELECT (r).a.lo_import FROM t":                              SignalServerFileAccess + "," + SignalUnknownFunction, // no read, so a counts as a call
		"SELECT s.t.nextval FROM s.t":                                SignalSequenceChange,
		"SELECT x.pg_sleep FROM generate_series(1, 2) x":             SignalDelayFunction,
		"SELECT x.dblink_exec FROM unnest(ARRAY['a']) x":             SignalRemoteAccess + "," + SignalUnknownFunction,
		"SELECT 1 FROM t ORDER BY t.pg_terminate_backend":            SignalBackendControl,
		"SELECT x.pg_get_functiondef FROM (SELECT 1::oid) y(x)":      SignalSecretCatalogRead,
		"SELECT pg_read_file FROM t":                                 "", // one name is a column
		"SELECT t.random, t.lower, t.*, (t).*, a[1], (b).c.d FROM t": "",
		"INSERT INTO t (pg_read_file) VALUES (1)":                    "",
	} {
		require.Equal(t, want, strings.Join(mustClassify(t, tb, sql).RiskSignals, ","), sql)
	}
}

func TestOperatorsTypesAndSamplesThatAreNotBuiltInAreUnknownFunctions(t *testing.T) {
	tb := newTestTables(t, Config{})
	for sql, name := range map[string]string{
		"SELECT 1 OPERATOR(app.+) 2": "app.+", "SELECT a <-> b <#> c FROM t": "public.<#>", "SELECT a === ANY (b) FROM t": "public.===",
		"SELECT 1 FROM t WHERE (a, b) OPERATOR(app.<) (SELECT 1, 2)": "app.<", "SELECT a FROM t ORDER BY a USING OPERATOR(app.>)": "app.>",
		"SELECT a FROM t ORDER BY a USING ~<~~": "public.~<~~", "SELECT 1 WHERE a OPERATOR(app.=) ALL (SELECT 1)": "app.=",
		"SELECT 'x'::mood": "public.mood", "SELECT CAST(a AS app.int4) FROM t": "app.int4", "SELECT evil 'x'": "public.evil",
		"SELECT * FROM json_to_record('{}') AS (a mood)": "public.mood", "SELECT '{}'::app.t[]": "app.t",
		"SELECT JSON_OBJECT('a': 1 RETURNING mood)": "public.mood", "SELECT * FROM json_to_record('{}') AS (b int, a mood)": "public.mood",
		"SELECT 1 FROM t TABLESAMPLE app.system (1)": "app.system", "SELECT 1 FROM t TABLESAMPLE system_time (1)": "public.system_time",
		"SELECT ''::hstore": "public.hstore", "SELECT json_populate_record(o, '{}') FROM o": "record_in", "SELECT * FROM jsonb_populate_recordset($1, '[]')": "record_in",
		"SELECT json_populate_record(NULL::o, '{}')": "public.o",
	} {
		c := mustClassify(t, tb, sql)
		require.Contains(t, c.Functions, name, sql)
		require.Equal(t, []string{SignalUnknownFunction}, c.RiskSignals, sql)
		require.Equal(t, ClassWrite, c.Class)
	}
	for _, sql := range []string{
		"SELECT 1::int, '1'::pg_catalog.int4, 'a'::text[], '{}'::_text, 'x'::\"char\", 1::bigint, ''::jsonb, 'pg_class'::regclass, 'x'::varchar(3), '1 day'::interval day, 'a'::name",
		"SELECT 1 OPERATOR(pg_catalog.+) 2, 1 + 2, a || b, a @> b, a -> 'x', a @@ b, NOT a, a !~~ b, a <-> b FROM t TABLESAMPLE pg_catalog.system (1)",
		"SELECT * FROM json_populate_recordset(NULL::pg_am, '[]')", "SELECT * FROM jsonb_populate_record(NULL::record, '{}') AS x(a int)",
	} {
		require.True(t, mustClassify(t, tb, sql).SafeRead, sql)
	}
}

func TestWhatIsBuiltInDependsOnTheVersion(t *testing.T) {
	for _, c := range []struct {
		major int
		sql   string
		safe  bool
	}{
		{15, "SELECT array_sample(a, 1) FROM t", false}, {18, "SELECT casefold('x')", true}, {17, "SELECT casefold('x')", false},
		{0, "SELECT casefold('x')", false}, {0, "SELECT lower('x')", true}, {16, "SELECT any_value(a) FROM t", true}, {15, "SELECT any_value(a) FROM t", false},
		{16, "SELECT t.uuidv7 FROM t", true}, {18, "SELECT t.uuidv7 FROM t", false}, {0, "SELECT t.uuidv7 FROM t", false},
	} {
		tb, err := newTables(Config{ServerMajor: c.major})
		require.NoError(t, err)
		require.Equal(t, c.safe, mustClassify(t, tb, c.sql).SafeRead, "%d: %s", c.major, c.sql)
	}
	_, err := newTables(Config{ServerMajor: 14})
	require.Error(t, err)
}

// ICU 72 reads at address 0 where one of its allocations fails, as it opens a collation or
// folds by it; no text tells the collation of a column or of the database.
func TestACollationOfICUIsNoSafeRead(t *testing.T) {
	tb := newTestTables(t, Config{})
	for _, sql := range []string{`SELECT a FROM t ORDER BY a COLLATE "de-x-icu"`, `SELECT lower(a COLLATE pg_catalog."und-x-icu") FROM t`, `SELECT 1 FROM t WHERE a < 'b' COLLATE unicode`, `SELECT * FROM unnest(ARRAY['a' COLLATE "tr-TR-x-icu"])`,
		`SELECT upper(a) FROM jsonb_to_record('{"a":"b"}') AS x(a text COLLATE "und-x-icu")`, `SELECT 1 FROM ROWS FROM (json_to_recordset('[]') AS (a int, b text COLLATE pg_catalog.unicode)) AS r ORDER BY r.b`} {
		c := mustClassify(t, tb, sql)
		require.Equal(t, []any{[]string{SignalDelayFunction}, false, ClassWrite}, []any{c.RiskSignals, c.SafeRead, c.Class}, sql)
	}
	for _, sql := range []string{`SELECT a FROM t ORDER BY a COLLATE "C"`, `SELECT a COLLATE pg_catalog."default" FROM t`, `SELECT a COLLATE "en_US.utf8", b COLLATE german FROM t`} {
		require.True(t, mustClassify(t, tb, sql).SafeRead, sql)
	}
	for _, sql := range []string{`CREATE TABLE t (a text COLLATE "de-x-icu")`, `ALTER TABLE t ADD COLUMN a text COLLATE "de-x-icu"`} {
		require.NotContains(t, mustClassify(t, tb, sql).RiskSignals, SignalDelayFunction, "it is opened when it is used")
	}
}

func TestEveryVerdictOfTheTablesIsMapped(t *testing.T) {
	rows, err := tsv(functionsTSV, 7)
	require.NoError(t, err)
	count := map[string]int{}
	for _, r := range rows {
		f := newFunction(r[0], r[1], r[2])
		count[r[1]]++
		if r[1] == "safe" {
			require.Empty(t, f.signals, r[0])
			continue
		}
		reason, _, _ := strings.Cut(r[2], ":")
		require.True(t, len(f.signals) > 0 || reason == "setting_change", r[0])
		if r[1] == "forbidden" {
			require.NotContains(t, f.signals, SignalUnknownFunction, "%s: no signal for reason %s", r[0], r[2])
		}
		for _, s := range f.signals {
			require.NotEmpty(t, severities[s])
		}
	}
	require.Equal(t, map[string]int{"safe": 1964, "strict": 703, "forbidden": 144}, count)
	require.Len(t, severities, 29)
}

func TestTheEngineBlockNamesTheTables(t *testing.T) {
	c := mustClassify(t, newTestTables(t, Config{ServerMajor: 17}), "SELECT 1")
	require.Equal(t, Engine{PgQuery: "v5.1.0", Grammar: 160001, Tables: tablesHash(), ServerMajor: 17}, c.Engine)
	require.Len(t, c.Engine.Tables, 12)
	require.Equal(t, "1.0", c.ClassificationVersion)
}

func TestTheFingerprintOfADeepTreeIsItsText(t *testing.T) {
	tb := newTestTables(t, Config{})
	deep := func(f string) Classification { return mustClassify(t, tb, "SELECT "+f+"(x)"+strings.Repeat("+1", 100)) }
	a, b := deep("lower"), deep("pg_read_file")
	require.Regexp(t, "^x[0-9a-f]{16}$", a.Fingerprint)
	require.NotEqual(t, a.Fingerprint, b.Fingerprint)
	require.GreaterOrEqual(t, a.Depth, fingerprintDepth)
	require.Regexp(t, "^[0-9a-f]{16}$", mustClassify(t, tb, "SELECT lower(x)").Fingerprint)
}

// The functions of an operator class, and of an operator that EXCLUDE names, run for each
// row from then on.
func TestOperatorClassesAndOperatorsThatAreDefinedWithAreFacts(t *testing.T) {
	tb := newTestTables(t, Config{})
	for sql, want := range map[string][]string{
		"CREATE INDEX i ON t (a text_pattern_ops, b pg_catalog.int4_ops DESC)":     {},
		"CREATE INDEX i ON t USING gin (a jsonb_path_ops)":                         {},
		"CREATE INDEX i ON t (a my_ops)":                                           {"public.my_ops"},
		"CREATE INDEX i ON t USING gist (a int4_ops)":                              {"public.int4_ops"}, // btree and hash have one
		"CREATE INDEX i ON t (a public.text_ops)":                                  {"public.text_ops"},
		"CREATE TABLE t (a int, EXCLUDE USING gist (a evil.o WITH =, b WITH &&))":  {"evil.o"},
		"ALTER TABLE t ADD EXCLUDE USING btree (a int4_ops WITH OPERATOR(evil.=))": {"evil.="},
		"CREATE TABLE t (a int) PARTITION BY RANGE (a int4_ops)":                   {},
		"CREATE TABLE t (a int) PARTITION BY RANGE (a int4_minmax_ops)":            {"public.int4_minmax_ops"},
		"CREATE TABLE t (a int) PARTITION BY HASH (a evil.o)":                      {"evil.o"},
		"CREATE INDEX i ON t USING evil (a)":                                       {"public.evil"},
		"CREATE INDEX i ON t USING brin (a)":                                       {},
		"CREATE TABLE t (a int) USING evil":                                        {"public.evil"},
		"CREATE TABLE t (a int) USING heap":                                        {},
		"CREATE TABLE t USING evil AS SELECT 1 AS a":                               {"public.evil"},
		"CREATE MATERIALIZED VIEW m USING evil AS SELECT 1 AS a":                   {"public.evil"},
		"ALTER TABLE t SET ACCESS METHOD evil":                                     {"public.evil"},
		"ALTER TABLE t ADD EXCLUDE USING evil (a WITH =)":                          {"public.evil"},
		"INSERT INTO t VALUES (1) ON CONFLICT (a public.citext_ops) DO NOTHING":    {},
	} {
		c, f := classifyText(tb, sql)
		require.Nil(t, f, sql)
		require.Equal(t, want, append([]string{}, c.Functions...), sql)
		require.Equal(t, len(want) > 0, slices.Contains(c.RiskSignals, SignalUnknownFunction), sql)
	}
}
