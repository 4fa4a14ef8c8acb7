package controlplane

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The first sentence of a change names what it is about: of rights what is given on what to
// whom, of an object its kind and its name.
func TestTheSentenceOfAChangeNamesItsObject(t *testing.T) {
	for _, c := range []struct {
		queryType, class, text, want string
		written                      []string
		flags                        []string
	}{
		{"GRANT", "dcl", "GRANT SELECT, Insert (a, b) ON app.t, app.u TO bob, PUBLIC WITH GRANT OPTION", "Grant select, insert(a, b) on app.t, app.u to bob, everybody (public), with grant option", []string{"app.t", "app.u"}, nil},
		{"GRANT", "dcl", "grant /* TO eve */ ALL ON ALL TABLES IN SCHEMA app TO bob", "Grant all on all tables in schema app to bob", []string{"app.*"}, nil},
		{"GRANT", "dcl", "GRANT admin, ops TO bob", "Grant membership of admin, ops to bob", nil, nil},
		{"GRANT", "dcl", "GRANT EXECUTE ON FUNCTION app.f(int, text) TO bob", "Grant execute on function app.f(int, text) to bob", nil, nil},
		{"GRANT", "dcl", `GRANT SELECT ON "to bob" TO "Eve on x"`, `Grant select on "to bob" to "Eve on x"`, []string{"public.to bob"}, nil},
		{"GRANT", "dcl", "GRANT SELECT ON a, b, c, d, e TO bob", "Grant select on a, b, c and 2 more to bob", nil, nil},
		{"REVOKE", "dcl", "REVOKE GRANT OPTION FOR SELECT ON t FROM bob CASCADE", "Revoke grant option for select on t from bob, and from whom they gave it", []string{"public.t"}, []string{"cascade"}},
		{"REVOKE", "dcl", "REVOKE ADMIN OPTION FOR ops FROM bob", "Revoke admin option for ops from bob", nil, nil},
		{"ALTER_ROLE", "dcl", "ALTER ROLE bob SUPERUSER PASSWORD 'x'", "Alter role bob: superuser password '...'", nil, nil},
		{"ALTER_ROLE", "dcl", "ALTER ROLE ALL SET work_mem = '1GB'", "Alter role all set work_mem = '...'", nil, nil},
		{"CREATE_ROLE", "dcl", "CREATE ROLE eve LOGIN", "Create role eve: login", nil, nil},
		{"DROP_ROLE", "dcl", "DROP ROLE IF EXISTS bob, eve", "Drop role bob, eve", nil, nil},
		{"CREATE_FUNCTION", "ddl", "CREATE OR REPLACE FUNCTION app.f(a int DEFAULT 1, b text) RETURNS int LANGUAGE sql AS $$ SELECT 1; $$", "Create function app.f(a int default 1, b text)", nil, nil},
		{"CREATE", "ddl", "CREATE EXTENSION IF NOT EXISTS hstore", "Create extension hstore", nil, nil},
		{"CREATE", "ddl", "CREATE SCHEMA S", "Create schema s", nil, nil},
		{"CREATE", "ddl", "CREATE SCHEMA AUTHORIZATION bob", "Create schema authorization bob", nil, nil},
		{"CREATE", "ddl", "CREATE INDEX CONCURRENTLY i ON orders (id)", "Create index i on public.orders", []string{"public.orders"}, nil},
		{"CREATE", "ddl", "CREATE TRIGGER g AFTER UPDATE OF a OR DELETE ON orders EXECUTE FUNCTION f()", "Create trigger g on public.orders", []string{"public.orders"}, nil},
		{"CREATE", "ddl", "CREATE RULE r AS ON DELETE TO ruled DO INSTEAD DELETE FROM victims", "Create rule r on public.ruled", []string{"public.ruled", "public.victims"}, nil},
		{"CREATE", "ddl", "CREATE USER MAPPING FOR bob SERVER s OPTIONS (password 'x')", "Create user mapping for bob server s options(password '...')", nil, nil},
		{"CREATE", "ddl", `CREATE SCHEMA U&"d\0061t"`, "Create schema (which, its text says, and this sentence can't tell)", nil, nil},
		{"DROP", "ddl", "DROP FUNCTION app.f(int), g CASCADE", "Drop function app.f(int), g and what hangs on them", []string{"?.*"}, []string{"cascade"}},
		{"DROP", "ddl", "DROP SCHEMA app CASCADE", "Drop schema app and what hangs on it", []string{"?.*", "app.*"}, []string{"cascade"}},
		{"DROP", "ddl", "DROP SCHEMA app", "Drop schema app", []string{"app.*"}, nil},
		{"DROP", "ddl", "DROP TRIGGER g ON orders", "Drop trigger g on public.orders", []string{"public.orders"}, nil},
		{"DROP", "ddl", "DROP OWNED BY bob", "Drop owned by bob", []string{"?.*"}, nil},
		{"DROP", "ddl", "DROP OPERATOR app.<> (int, int)", "Drop operator app.<> (int, int)", nil, nil},
		{"DROP", "ddl", `DROP TABLE "a; asks to read"`, `Drop table "a; asks to read"`, []string{"public.a; asks to read"}, nil},
		{"TRUNCATE", "ddl", "TRUNCATE a, b CASCADE", "Empty public.a, public.b and what hangs on them", []string{"?.*", "public.a", "public.b"}, []string{"cascade"}},
		{"ALTER", "ddl", "ALTER TABLE IF EXISTS ONLY app.flags RENAME TO flag", "Rename table app.flags to flag", []string{"app.flag", "app.flags"}, nil},
		{"ALTER", "ddl", "ALTER TABLE flags RENAME a TO b", "Rename column a of table app.flags to b", []string{"app.flags"}, nil},
		{"ALTER", "ddl", "ALTER TABLE flags RENAME CONSTRAINT a TO b", "Rename constraint a of table app.flags to b", []string{"app.flags"}, nil},
		{"ALTER", "ddl", "ALTER TABLE t SET SCHEMA a", "Move table t to schema a", []string{"a.t", "public.t"}, nil},
		{"ALTER_OWNER", "dcl", "ALTER TABLE t OWNER TO x", "Give table public.t to x as its owner", []string{"public.t"}, nil},
		{"ALTER", "ddl", "ALTER TABLE t ADD COLUMN a int, DROP b CASCADE", "Alter table public.t: add column a int, drop b cascade", []string{"?.*", "public.t"}, []string{"cascade"}},
		{"ALTER", "ddl", "ALTER TABLE t ALTER c TYPE numeric(20, 2) USING c::numeric", "Alter table public.t: alter c type numeric(20, 2) using c::numeric", []string{"public.t"}, nil},
		{"ALTER", "ddl", "ALTER TABLE t DETACH PARTITION t1 CONCURRENTLY", "Take partition public.t1 out of table public.t", []string{"public.t", "public.t1"}, nil},
		{"ALTER", "ddl", "ALTER TABLE ALL IN TABLESPACE a SET TABLESPACE b", "Alter table all in tablespace a set tablespace b", []string{"?.*"}, nil},
		{"ALTER_DEFAULT_PRIVILEGES", "dcl", "ALTER DEFAULT PRIVILEGES IN SCHEMA app GRANT SELECT ON TABLES TO bob", "Alter default privileges in schema app grant select on tables to bob", []string{"app.*"}, nil},
		{"REASSIGN_OWNED", "dcl", "REASSIGN OWNED BY bob TO eve", "Reassign owned by bob to eve", []string{"?.*"}, nil},
		{"COMMENT", "ddl", "COMMENT ON TABLE t IS 'x is y'", "Comment on table t", []string{"public.t"}, nil},
		{"DO", "procedural", "DO $$ BEGIN END $$", "Run a block of code", nil, nil},
		{"DROP", "ddl", "CREATE TABLE t (id int)", "Drop public.t", []string{"public.t"}, nil}, // the classifier knows what it is
	} {
		assert.Equal(t, c.want, effect(&classification{QueryType: c.queryType, QueryTypes: []string{c.queryType}, Class: c.class, TablesWritten: c.written, Flags: c.flags}, c.text), c.text)
	}
	require.LessOrEqual(t, len(repeated(strings.Fields(strings.Repeat("word ", 100)))), mostSaid+len("…"))
}

// What goes with a change and stands nowhere in it is said above it, and makes it high risk.
func TestWhatGoesWithAChangeIsSaid(t *testing.T) {
	privilege := []signal{{"privilege_change", "high", ""}}
	for _, c := range []struct {
		text        string
		signals     []signal
		flags       []string
		class       string
		says, never string
	}{
		{"ALTER TABLE t DISABLE TRIGGER ALL", privilege, nil, "ddl", "Triggers and foreign keys off", "who may do what"},
		{"ALTER TABLE t DISABLE TRIGGER USER", privilege, nil, "ddl", "Foreign keys are still checked", "who may do what"},
		{"ALTER TABLE t DISABLE TRIGGER g", privilege, nil, "ddl", "The trigger g does not run at a write of public.t", "who may do what"},
		{"ALTER TABLE t DISABLE TRIGGER g, DISABLE ROW LEVEL SECURITY", privilege, nil, "ddl", "who may do what", "nothing"},
		{"ALTER TABLE t DETACH PARTITION t1", nil, nil, "ddl", "Queries of public.t find the rows of public.t1 no more", "privilege"},
		{"DROP TABLE t CASCADE", []signal{{"cascade", "medium", ""}}, []string{"cascade"}, "ddl", "What hangs on it goes with it", "Cascades: it also"},
		{"TRUNCATE t CASCADE", []signal{{"cascade", "medium", ""}}, []string{"cascade"}, "ddl", "Which, is not known here", "views"},
		{"REVOKE SELECT ON t FROM bob CASCADE", []signal{{"cascade", "medium", ""}}, []string{"cascade"}, "dcl", "loses it, too", "views"},
	} {
		class := classification{QueryType: strings.Fields(c.text)[0], Class: c.class, Flags: c.flags, Signals: c.signals, TablesWritten: []string{"public.t", "public.t1"}}
		for _, s := range c.signals {
			class.RiskSignals = append(class.RiskSignals, s.Signal)
		}
		row := (&Server{now: time.Now}).rows([]approval{{SQL: c.text, Classification: class}})[0]
		said := fmt.Sprint(dangers(&row, nil))
		require.Contains(t, said, c.says, c.text)
		require.NotContains(t, said, c.never, c.text)
		require.Equal(t, "high", row.Risk, c.text)
		require.Equal(t, "high", dangers(&row, nil)[0].Severity)
	}
	n := int64(5)
	row := approvalRow{approval: approval{SQL: "TRUNCATE t CASCADE", Classification: classification{QueryType: "TRUNCATE", Class: "ddl", Flags: []string{"cascade"}, TablesWritten: []string{"?.*", "public.t"}},
		Impact: &plan{Tables: []reached{{Table: "public.t", How: "named", Rows: &n}, {Table: "public.u", How: "emptied", From: "public.t", Rows: &n}}}}}
	row.Effect = effect(&row.Classification, row.SQL)
	require.Empty(t, row.cascades(), "the catalogues named it")
	require.Equal(t, "empty public.t and what hangs on it: public.u", deed(&row))
}

// What replaces something, or silences a trigger, says so.
func TestWhatIsReplacedOrSilencedIsSaid(t *testing.T) {
	for text, want := range map[string]string{
		"CREATE OR REPLACE VIEW v AS SELECT 1": "Replaces what is there", "CREATE VIEW v AS SELECT 1": "",
		"ALTER TABLE t ENABLE REPLICA TRIGGER x": "Trigger off", "ALTER TABLE t ENABLE TRIGGER x": "",
	} {
		list, _ := changeDangers(&classification{Class: "ddl", TablesWritten: []string{"public.t"}}, text)
		said := ""
		for _, m := range list {
			said += m.Name
		}
		require.Equal(t, want, said, text)
	}
}
