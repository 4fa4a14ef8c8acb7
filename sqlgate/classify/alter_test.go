package classify

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	pg_query "github.com/pganalyze/pg_query_go/v5"
	"github.com/stretchr/testify/require"
)

// Every command that ALTER TABLE has in the grammar, and the signals that it raises. Each
// was looked at by itself: what gives data away, hides it from row security or reaches
// another server has one, however the table is called.
var alterCommands = map[string]string{
	"ADD COLUMN a int":                              "",
	"ALTER a SET DEFAULT 1":                         "",
	"ALTER a DROP NOT NULL":                         "",
	"ALTER a SET NOT NULL":                          "",
	"ALTER a DROP EXPRESSION":                       "",
	"ALTER a SET STATISTICS 1":                      "",
	"ALTER a SET (n_distinct = 1)":                  "",
	"ALTER a RESET (n_distinct)":                    "",
	"ALTER a SET STORAGE MAIN":                      "",
	"ALTER a SET COMPRESSION pglz":                  "",
	"DROP COLUMN a":                                 "destructive_ddl",
	"ADD CHECK (a > 0)":                             "",
	"ALTER CONSTRAINT c DEFERRABLE":                 "",
	"VALIDATE CONSTRAINT c":                         "",
	"DROP CONSTRAINT c":                             "destructive_ddl",
	"ALTER a TYPE bigint":                           "",
	"ALTER a TYPE bigint USING a::text::bigint":     "",
	"ALTER a TYPE text USING 'x'":                   "destructive_ddl",
	"ALTER a TYPE text USING b::text":               "destructive_ddl",
	"ALTER a TYPE text USING t.a":                   "destructive_ddl",
	"ALTER a OPTIONS (SET column_name 'b')":         "remote_access",
	"OPTIONS (SET table_name 'salaries')":           "remote_access",
	"OWNER TO x":                                    "privilege_change",
	"CLUSTER ON i":                                  "",
	"SET WITHOUT CLUSTER":                           "",
	"SET LOGGED":                                    "",
	"SET UNLOGGED":                                  "destructive_ddl",
	"SET WITHOUT OIDS":                              "",
	"SET ACCESS METHOD heap":                        "",
	"SET TABLESPACE s":                              "",
	"SET (fillfactor = 50)":                         "",
	"RESET (fillfactor)":                            "",
	"SET (security_invoker = true)":                 "privilege_change",
	"SET (fillfactor = 50, security_barrier = off)": "privilege_change",
	"RESET (security_invoker)":                      "privilege_change",
	"ENABLE TRIGGER g":                              "privilege_change",
	"ENABLE ALWAYS TRIGGER g":                       "privilege_change",
	"ENABLE REPLICA TRIGGER g":                      "privilege_change",
	"ENABLE TRIGGER ALL":                            "privilege_change",
	"ENABLE TRIGGER USER":                           "privilege_change",
	"DISABLE TRIGGER g":                             "privilege_change",
	"DISABLE TRIGGER ALL":                           "privilege_change",
	"DISABLE TRIGGER USER":                          "privilege_change",
	"ENABLE RULE r":                                 "privilege_change",
	"ENABLE ALWAYS RULE r":                          "privilege_change",
	"ENABLE REPLICA RULE r":                         "privilege_change",
	"DISABLE RULE r":                                "privilege_change",
	"INHERIT p":                                     "",
	"NO INHERIT p":                                  "",
	"OF y":                                          "unknown_function",
	"NOT OF":                                        "",
	"REPLICA IDENTITY FULL":                         "",
	"ENABLE ROW LEVEL SECURITY":                     "privilege_change",
	"DISABLE ROW LEVEL SECURITY":                    "privilege_change",
	"FORCE ROW LEVEL SECURITY":                      "privilege_change",
	"NO FORCE ROW LEVEL SECURITY":                   "privilege_change",
	"ATTACH PARTITION p DEFAULT":                    "",
	"DETACH PARTITION p":                            "",
	"DETACH PARTITION p FINALIZE":                   "",
	"ALTER a ADD GENERATED ALWAYS AS IDENTITY":      "",
	"ALTER a SET GENERATED ALWAYS":                  "",
	"ALTER a RESTART WITH 1":                        "sequence_change",
	"ALTER a DROP IDENTITY":                         "",
}

// madeByTheServer are commands that no text has: the server makes them of others.
var madeByTheServer = []string{"AT_AddColumnToView", "AT_AddIndex", "AT_AddIndexConstraint", "AT_CheckNotNull", "AT_CookedColumnDefault", "AT_ReAddComment", "AT_ReAddConstraint",
	"AT_ReAddDomainConstraint", "AT_ReAddIndex", "AT_ReAddStatistics", "AT_ReplaceRelOptions"}

func TestEveryCommandOfAlterTableIsJudged(t *testing.T) {
	tb := newTestTables(t, Config{})
	seen := map[string]bool{}
	for command, want := range alterCommands {
		for _, kind := range []string{"TABLE", "FOREIGN TABLE", "VIEW", "MATERIALIZED VIEW", "INDEX"} {
			sql := "ALTER " + kind + " t " + command
			tree, err := pg_query.ParseToJSON(sql)
			if err != nil {
				require.NotEqual(t, "TABLE", kind, command)
				continue
			}
			for _, m := range regexp.MustCompile(`"subtype":"(AT_\w+)"`).FindAllStringSubmatch(tree, -1) {
				seen[m[1]] = true
			}
			raised := map[string]bool{want: want != ""}
			if kind == "FOREIGN TABLE" {
				raised["remote_access"] = true
			}
			maps.DeleteFunc(raised, func(_ string, is bool) bool { return !is })
			require.ElementsMatch(t, slices.Collect(maps.Keys(raised)), mustClassify(t, tb, sql).RiskSignals, sql)
		}
	}
	for _, command := range pg_query.AlterTableType_name {
		if command != "ALTER_TABLE_TYPE_UNDEFINED" {
			require.NotEqual(t, slices.Contains(madeByTheServer, command), seen[command], command)
		}
	}
}

func TestWhatMovesAForeignTableOrTakesRowSecurityAway(t *testing.T) {
	tb := newTestTables(t, Config{})
	for sql, want := range map[string]string{
		"ALTER FOREIGN TABLE f RENAME TO wages":                                    "remote_access",
		"ALTER FOREIGN TABLE f RENAME COLUMN a TO b":                               "remote_access",
		"ALTER FOREIGN TABLE f SET SCHEMA other":                                   "remote_access",
		"ALTER SERVER s RENAME TO other":                                           "remote_access",
		"ALTER FOREIGN DATA WRAPPER w RENAME TO other":                             "remote_access",
		"ALTER TABLE t RENAME COLUMN a TO b":                                       "",
		"DROP POLICY p ON t":                                                       "destructive_ddl,privilege_change",
		"DROP TRIGGER g ON t":                                                      "destructive_ddl,privilege_change",
		"DROP RULE r ON t":                                                         "destructive_ddl,privilege_change",
		"DROP EVENT TRIGGER g":                                                     "destructive_ddl,privilege_change",
		"DROP TABLE t":                                                             "destructive_ddl",
		"CREATE VIEW v WITH (security_invoker = true) AS SELECT 1":                 "",
		"CREATE VIEW v WITH (security_invoker, security_barrier = on) AS SELECT 1": "",
		"CREATE OR REPLACE VIEW v WITH (security_invoker = false) AS SELECT 1":     "privilege_change",
		"CREATE OR REPLACE VIEW v WITH (security_barrier = off) AS SELECT 1":       "privilege_change",
		"REFRESH MATERIALIZED VIEW m":                                              "",
		"REFRESH MATERIALIZED VIEW m WITH NO DATA":                                 "destructive_ddl",
		"ALTER SEQUENCE s INCREMENT 2":                                             "",
		"CREATE SEQUENCE s START 2":                                                "",
	} {
		require.Equal(t, want, strings.Join(mustClassify(t, tb, sql).RiskSignals, ","), sql)
	}
}
