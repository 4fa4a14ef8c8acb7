package classify

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestACTEHidesATableOnlyWhereTheServerLetsIt(t *testing.T) {
	tb := newTestTables(t, Config{})
	for sql, want := range map[string]string{
		"WITH x AS (SELECT * FROM x) SELECT * FROM x":                              "public.x",
		"WITH x AS (SELECT 1), y AS (SELECT * FROM x) SELECT * FROM y":             "",
		"WITH y AS (SELECT * FROM x), x AS (SELECT 1) SELECT * FROM y":             "public.x",
		"WITH RECURSIVE y AS (SELECT * FROM x), x AS (SELECT 1) SELECT * FROM y":   "",
		"WITH RECURSIVE x AS (SELECT 1 UNION ALL SELECT * FROM x) SELECT * FROM x": "",
		"WITH x AS (SELECT 1) SELECT * FROM public.x":                              "public.x",
		"SELECT * FROM x WHERE a IN (WITH x AS (SELECT 1) SELECT * FROM x)":        "public.x",
		"SELECT * FROM (WITH x AS (SELECT 1) SELECT * FROM x) q, x":                "public.x",
		"WITH x AS (SELECT 1) SELECT * FROM (SELECT * FROM x) q UNION TABLE x":     "",
		"(WITH x AS (SELECT 1) SELECT * FROM x) UNION TABLE x":                     "public.x",
		"WITH x AS (SELECT 1) SELECT (SELECT a FROM y WHERE y.a IN (TABLE x))":     "public.y",
		"WITH x AS (WITH y AS (SELECT 1) SELECT * FROM y) SELECT * FROM x, y":      "public.y",
		"WITH x AS (SELECT 1) SELECT * FROM lab.public.x":                          "public.x",
		"SELECT * FROM ONLY a, b.c, LATERAL (SELECT * FROM d) e NATURAL JOIN f":    "b.c,public.a,public.d,public.f",
		"SELECT * FROM pg_class, information_schema.tables, pg_class_not":          "information_schema.tables,pg_catalog.pg_class,public.pg_class_not",
		`SELECT * FROM "T", T`: "public.T,public.t",
	} {
		c := mustClassify(t, tb, sql)
		require.Equal(t, want, strings.Join(c.TablesRead, ","), sql)
		require.True(t, c.SafeRead, "%s %v", sql, c.Signals)
	}
}

func TestACTEIsNeverATarget(t *testing.T) {
	tb := newTestTables(t, Config{})
	for _, sql := range []string{
		"WITH x AS (SELECT 1) DELETE FROM x WHERE a = 1", "WITH x AS (SELECT 1) UPDATE x SET a = 1 WHERE b = 2",
		"WITH x AS (SELECT 1) INSERT INTO x SELECT * FROM x", "WITH x AS (SELECT 1) MERGE INTO x USING x y ON x.a = y.a WHEN MATCHED THEN DELETE",
	} {
		require.Equal(t, []string{"public.x"}, mustClassify(t, tb, sql).TablesWritten, sql)
	}
}

func TestColumnsWritten(t *testing.T) {
	tb := newTestTables(t, Config{})
	for sql, want := range map[string]string{
		"INSERT INTO t (a, b) VALUES (1, 2)": "public.t.a,public.t.b",
		"INSERT INTO t VALUES (1, 2)":        "public.t.*",
		"INSERT INTO t (a) VALUES (1) ON CONFLICT (a) DO UPDATE SET c = 1, (d, e) = (1, 2)": "public.t.a,public.t.c,public.t.d,public.t.e",
		"UPDATE s.t SET a.b = 1, c[1] = 2 WHERE id = 1":                                     "s.t.a,s.t.c",
		"DELETE FROM t":            "public.t.*",
		"COPY t (a, b) FROM STDIN": "public.t.a,public.t.b",
		"COPY t FROM STDIN":        "public.t.*",
		"TRUNCATE t":               "public.t.*",
		"MERGE INTO t USING s ON t.a = s.a WHEN MATCHED THEN UPDATE SET b = 1 WHEN NOT MATCHED THEN INSERT (c) VALUES (1)": "public.t.b,public.t.c",
		"MERGE INTO t USING s ON t.a = s.a WHEN MATCHED THEN DO NOTHING":                                                   "public.t.*",
		"SELECT 1 INTO n": "public.n.*",
	} {
		require.Equal(t, want, strings.Join(mustClassify(t, tb, sql).ColumnsWritten, ","), sql)
	}
}

func TestSecretRelationsAreSeenByEveryName(t *testing.T) {
	tb := newTestTables(t, Config{})
	for _, sql := range []string{
		"SELECT * FROM pg_authid", "SELECT * FROM pg_catalog.pg_authid", "TABLE pg_stat_activity", "SELECT 1 FROM ext.pg_stat_statements",
		"SELECT 1 FROM pg_stat_statements", "SELECT * FROM information_schema.user_mapping_options", `SELECT * FROM "pg_shadow" x`,
		"SELECT * FROM (SELECT * FROM pg_settings) s", "SELECT * FROM lab.pg_catalog.pg_user_mapping",
	} {
		c := mustClassify(t, tb, sql)
		require.Equal(t, []string{SignalSecretCatalogRead}, c.RiskSignals, sql)
		require.Equal(t, ClassRead, c.Class, "reading secrets changes nothing")
		require.Equal(t, RunTransaction, c.Run)
	}
}

func TestWritesToTheSystemsRelations(t *testing.T) {
	tb := newTestTables(t, Config{})
	c := mustClassify(t, tb, "UPDATE pg_settings SET setting = 'x' WHERE name = 'role'")
	require.Subset(t, c.RiskSignals, []string{SignalSystemCatalogWrite, SignalSessionChange, SignalIdentitySwitch})
	for _, sql := range []string{"DELETE FROM pg_class WHERE oid = 1", "DROP TABLE information_schema.x", "INSERT INTO pg_toast.pg_toast_1 VALUES (1)"} {
		require.Contains(t, mustClassify(t, tb, sql).RiskSignals, SignalSystemCatalogWrite, sql)
	}
}

func TestAListOfFactsThatIsTooLongIsCutAndSaysSo(t *testing.T) {
	tb := newTestTables(t, Config{})
	var tables []string
	for i := range 300 {
		tables = append(tables, fmt.Sprintf("t%03d", i))
	}
	c := mustClassify(t, tb, "SELECT 1 FROM "+strings.Join(tables, " UNION ALL SELECT 1 FROM "))
	require.Len(t, c.TablesRead, 256)
	require.Equal(t, "public.t255", c.TablesRead[255])
	require.Equal(t, []string{SignalOversizedFacts}, c.RiskSignals)
	require.False(t, c.SafeRead)
	c = mustClassify(t, tb, "SELECT 1 FROM "+strings.Join(tables[:256], " UNION ALL SELECT 1 FROM "))
	require.True(t, c.SafeRead)
}

func TestSignalsAreTheFirstOfTheText(t *testing.T) {
	tb := newTestTables(t, Config{})
	c := mustClassify(t, tb, "SELECT "+strings.Repeat("evil(), ", 100)+"1")
	require.Len(t, c.Signals, 32)
	for i, s := range c.Signals {
		require.Equal(t, Signal{SignalUnknownFunction, SeverityHigh, "public.evil", 7 + 8*i}, s)
	}
}

func TestTheSearchPathNamesUnqualifiedTables(t *testing.T) {
	tb := newTestTables(t, Config{SearchPath: "app"})
	c := mustClassify(t, tb, "SELECT f(1) FROM t, pg_class")
	require.Equal(t, []string{"app.t", "pg_catalog.pg_class"}, c.TablesRead)
	require.Equal(t, []string{"app.f"}, c.Functions)
	for _, path := range []string{"a, b", `"$user"`} {
		_, err := newTables(Config{SearchPath: path})
		require.ErrorContains(t, err, "one schema")
	}
}
