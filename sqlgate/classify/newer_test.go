package classify

import (
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
	"writegate/fixtures/postgres"
)

type newerRow struct{ name, since, where, instead, example string }

func newerRows(t testing.TB) (rows []newerRow) {
	t.Helper()
	table, err := tsv(newerTSV, 5)
	require.NoError(t, err)
	for _, r := range table {
		rows = append(rows, newerRow{r[0], r[1], r[2], r[3], r[4]})
	}
	require.Greater(t, len(rows), 20)
	return rows
}

// namedIn gives the newer form that the refusal of a text names, or "".
func namedIn(t testing.TB, sql string) string {
	t.Helper()
	_, f := parseTree(sql)
	require.NotNil(t, f, sql)
	_, rest, ok := strings.Cut(f.Message, "This looks like ")
	name, _, _ := strings.Cut(rest, ", which came with")
	require.Equal(t, !ok, strings.HasSuffix(f.Message, " Correct it."), f.Message)
	return name
}

// A refusal for what a newer server understands says so, with the code and the
// place that it had anyway, from the parser child too.
func TestTheRefusalOfANewerFormNamesIt(t *testing.T) {
	child := byCPUAlone(newClassifier(t, Config{ParserMode: "child"}))
	for _, r := range newerRows(t) {
		_, here := parseTree(r.example)
		require.NotNil(t, here, r.example)
		require.Equal(t, fault.ParserError, here.Code)
		require.Contains(t, here.Message, "The parser of PostgreSQL 16 refuses the statement: syntax error ")
		require.Contains(t, here.Message, " This looks like "+r.name+", which came with PostgreSQL "+r.since+"; the gate reads the grammar of 16, whatever the server's. "+r.instead)
		require.NotNil(t, here.Details["position"], r.example)

		_, err := child.Classify(t.Context(), r.example)
		require.Equal(t, here.Message, fault.Of(err).Message)
	}
}

// Each place of each row is met by one of these, and whatever is around it
// makes no difference.
func TestNewerFormsAreKnownWhereverTheyStand(t *testing.T) {
	forms := map[string][]string{
		"MERGE with RETURNING": {
			"MERGE INTO t USING s ON t.a = s.a WHEN MATCHED THEN DELETE RETURNING *", "merge into t using s on t.a = s.a when matched and s.b then do nothing returning *",
			"WITH m AS (MERGE INTO t USING (VALUES (1)) s (a) ON t.a = s.a WHEN MATCHED THEN UPDATE SET b = f(s.b) RETURNING t.a) SELECT * FROM m",
			"EXPLAIN MERGE INTO ONLY t AS x USING s ON true WHEN NOT MATCHED THEN INSERT (a) VALUES (1) RETURNING x.a",
		},
		"WHEN NOT MATCHED BY SOURCE and BY TARGET": {
			"MERGE INTO t USING s ON t.a = s.a WHEN MATCHED THEN DELETE WHEN NOT MATCHED /* , */ BY\nSOURCE AND t.b THEN DELETE", "MERGE INTO t USING s ON t.a = s.a WHEN NOT MATCHED BY TARGET THEN DO NOTHING",
		},
		"JSON_TABLE": {
			"SELECT * FROM t, JSON_TABLE(t.b, '$' PASSING 1 AS x COLUMNS (a int)) j", "SELECT * FROM t LEFT JOIN LATERAL JSON_TABLE(f(t.b, 1), '$' AS p COLUMNS (a int)) j ON true",
			"SELECT * FROM t JOIN JSON_TABLE(t.b FORMAT JSON, '$' COLUMNS (a int)) j ON true", "SELECT (SELECT x FROM json_table(b, 'strict $' COLUMNS (x text)) j) FROM t",
		},
		"JSON_EXISTS with clauses": {
			"SELECT a FROM t WHERE JSON_EXISTS(b, '$.a' PASSING 1 AS x)", "SELECT json_exists(b, '$' ERROR ON ERROR) FROM t", "SELECT json_exists(b FORMAT JSON, '$') FROM t",
		},
		"JSON_VALUE with clauses": {
			"SELECT JSON_VALUE(b, '$.a' PASSING 1 AS x) FROM t", "SELECT upper(JSON_VALUE(b, '$.a' DEFAULT 'x' ON EMPTY)) FROM t", "SELECT JSON_VALUE(b, '$.a' NULL ON EMPTY ERROR ON ERROR) FROM t",
			"INSERT INTO t VALUES (JSON_VALUE($1, '$.a' RETURNING int))", "SELECT JSON_VALUE(b FORMAT JSON, '$') FROM t",
		},
		"JSON_QUERY with clauses": {
			"SELECT JSON_QUERY(b, '$' RETURNING text) FROM t", "SELECT JSON_QUERY(b, '$' EMPTY ARRAY ON EMPTY) FROM t", "SELECT JSON_QUERY(b, '$' EMPTY ON ERROR) FROM t",
			"SELECT JSON_QUERY(b, '$' WITHOUT ARRAY WRAPPER) FROM t", "SELECT JSON_QUERY(b, '$' KEEP QUOTES) FROM t", "SELECT JSON_QUERY(b FORMAT JSON, '$') FROM t",
		},
		"JSON() with clauses":                        {"SELECT JSON(b FORMAT JSON) FROM t", "SELECT JSON('{}' WITHOUT UNIQUE KEYS)"},
		"JSON_SERIALIZE with clauses":                {"SELECT JSON_SERIALIZE(b FORMAT JSON) FROM t"},
		"SET ACCESS METHOD DEFAULT":                  {"ALTER MATERIALIZED VIEW v SET ACCESS METHOD DEFAULT"},
		"SET STATISTICS DEFAULT":                     {"ALTER STATISTICS s SET STATISTICS DEFAULT"},
		"virtual generated columns":                  {"CREATE TABLE n (a int, b int GENERATED ALWAYS AS (a * 2), c int)", "ALTER TABLE t ADD c int GENERATED ALWAYS AS (a) VIRTUAL NOT NULL", "ALTER TABLE t ADD c int GENERATED ALWAYS AS (a)"},
		"WITHOUT OVERLAPS":                           {"ALTER TABLE t ADD UNIQUE (a, b WITHOUT OVERLAPS)", "ALTER TABLE t ADD UNIQUE NULLS DISTINCT (a, b WITHOUT OVERLAPS)", "ALTER TABLE t ADD CONSTRAINT c UNIQUE NULLS NOT DISTINCT (a, b WITHOUT OVERLAPS)"},
		"PERIOD in a foreign key":                    {"ALTER TABLE t ADD FOREIGN KEY (a, b) REFERENCES app.m (a, PERIOD b)"},
		"ENFORCED and NOT ENFORCED":                  {"CREATE TABLE n (a int CHECK (a > 0) ENFORCED, b int)", "ALTER TABLE t ALTER CONSTRAINT c NOT ENFORCED", "CREATE TABLE n (a int REFERENCES m NOT ENFORCED)", "CREATE TABLE n (a int REFERENCES m ENFORCED)", "ALTER TABLE t ADD c int REFERENCES m ENFORCED", "ALTER TABLE t ALTER CONSTRAINT c ENFORCED"},
		"RETURNING WITH (OLD AS ..., NEW AS ...)":    {"WITH x AS (DELETE FROM t RETURNING WITH (OLD AS o) o.a) SELECT * FROM x"},
		"INHERIT and NO INHERIT of ALTER CONSTRAINT": {"ALTER TABLE t ALTER CONSTRAINT c NO INHERIT"},
		"NOT NULL as a constraint of a table": {
			"CREATE TABLE n (NOT NULL a, a int)", "CREATE TABLE n (a int, NOT NULL a)", "CREATE TEMP TABLE n (CONSTRAINT c NOT NULL a, a int)", "ALTER TABLE t ADD NOT NULL a", "ALTER TABLE t ADD CONSTRAINT c NOT NULL a NOT VALID",
		},
		"NOT NULL NO INHERIT":                                 {"ALTER TABLE t ADD c int NOT NULL NO INHERIT"},
		"a NOT NULL constraint that is added to a domain":     {"ALTER DOMAIN d ADD NOT NULL"},
		"HASHES and MERGES of ALTER OPERATOR without a value": {"ALTER OPERATOR app.= (int, int) SET (RESTRICT = x, MERGES)"},
		"CLUSTER with options and without a table":            {"CLUSTER (VERBOSE);"},
		"DEFAULT as the value of an option of COPY":           {"COPY t FROM STDIN (FORMAT csv, LOG_VERBOSITY default, ENCODING 'x')"},
		"FORCE NULL * and FORCE NOT NULL * of COPY":           {"COPY t FROM STDIN CSV FORCE NOT NULL *"},
		"ONLY and * of VACUUM and ANALYZE":                    {"ANALYZE ONLY t (a)", "VACUUM (FULL) t *", "ANALYZE VERBOSE s, ONLY t"},
		"LARGE OBJECTS in ALTER DEFAULT PRIVILEGES":           {"ALTER DEFAULT PRIVILEGES FOR ROLE r REVOKE ALL ON LARGE OBJECTS FROM s"},
	}
	places := map[string]string{}
	for _, r := range newerRows(t) {
		texts := append(forms[r.name], r.example)
		delete(forms, r.name)
		for _, sql := range texts {
			require.Equal(t, r.name, namedIn(t, sql), sql)
			require.Equal(t, r.name, namedIn(t, " -- é\n"+strings.ToLower(sql)), sql)
		}
		for place := range strings.SplitSeq(r.where, "; ") {
			pattern, keys := readPlace(place)
			require.NotEmpty(t, keys, place)
			for _, sql := range texts {
				_, f := parseTree(sql)
				at, ok := f.Details["position"].(int)
				if !ok {
					at = len(sql)
				}
				left, right := tokensAround(sql, at)
				if pattern.MatchString(shapeOf(left) + "@" + shapeOf(right)) {
					places[place] = sql
				}
			}
			require.Contains(t, places, place, r.name)
		}
	}
	require.Empty(t, forms, "rows that are not in the table")
}

// What is only near to a newer form, and no server takes, is named by nobody.
func TestWhatOnlyLooksLikeANewerFormIsNotNamed(t *testing.T) {
	for _, sql := range []string{
		"SELECT a FROM t RETURNING a", "UPDATE t SET a = CASE WHEN matched THEN delete RETURNING a", "MERGE INTO t USING s ON t.a = s.a RETURNING *", "INSERT INTO t VALUES (1) RETURNING WITH",
		"SELECT a FROM t WHERE b NOT MATCHED BY SOURCE", "SELECT * FROM t ORDER BY SOURCE TARGET BY SOURCE", "DELETE FROM t WHEN NOT MATCHED BY SOURCE",
		`SELECT "json_value"(a, b RETURNING int)`, "SELECT app.json_value(a, b RETURNING int)", "SELECT json_values(a, b RETURNING int)", "SELECT json_value(a, b) RETURNING int", "SELECT json_value(f(a RETURNING int))",
		"SELECT json_value(a, b ERROR)", "SELECT json_query(a, b WITH x)", "SELECT json_table(a, b AS c)", "SELECT * FROM json_table(a, b || c COLUMNS (d int))", "SELECT * FROM json_table COLUMNS (a int)",
		"SELECT 'JSON_QUERY(' WITH WRAPPER", "SELECT /* JSON_QUERY( */ a WITH WRAPPER", "SELECT $$JSON_QUERY($$ a b KEEP QUOTES", "SELECT a LOCAL LOCAL", `SELECT a b "at" LOCAL`,
		"CREATE TABLE n (a int VIRTUAL)", "CREATE TABLE n (a int GENERATED ALWAYS AS IDENTITY VIRTUAL)", "CREATE TABLE n (a int GENERATED ALWAYS AS (b) STORE)", "CREATE TABLE n (a int GENERATED ALWAYS AS (b) 'x')",
		"ALTER TABLE t SET EXPRESSION AS (a)", "ALTER TABLE t SET ACCESS METHOD 1", "ALTER DOMAIN d ADD CHECK (VALUE > 0) NOT ENFORCED", "SELECT 1 ENFORCED ENFORCED", "SELECT NOT NULL NO INHERIT",
		"CREATE TABLE n (a int, PRIMARY KEY (a WITHOUT))", "CREATE TABLE n (a int, FOREIGN KEY (PERIOD a b))", "SELECT (a, PERIOD b c)", "VACUUM t, *", "SELECT ONLY t", "COPY t FROM STDIN (FORMAT csv DEFAULT DEFAULT)",
		"GRANT SELECT ON LARGE OBJECTS TO r", "CLUSTER (VERBOSE) t x", "ALTER OPERATOR = (int, int) SET (RESTRICT)", "CREATE VIEW v (a, NOT NULL b) AS SELECT 1", strings.Repeat(")", 100_000),
		"ALTER TABLE t ALTER CONSTRAINT c NOT VALID; " + strings.Repeat(")", 100_000),
	} {
		require.Empty(t, namedIn(t, sql), sql)
	}
}

// Keywords fold as PostgreSQL folds them, in ASCII alone.
func TestLettersThatOnlyFoldElsewhereMakeNoKeyword(t *testing.T) {
	require.Equal(t, "AT LOCAL", namedIn(t, "SELECT a aT lOcAl"))
	require.Empty(t, namedIn(t, "ALTER TABLE t ALTER conſtraint c INHERIT"))
}

// A row is true of the server: it takes the example, or stumbles in its parser.
func TestNewerFormsAreThoseOfOtherMajors(t *testing.T) {
	cfg, err := pgconn.ParseConfig(postgres.ForTest(t))
	require.NoError(t, err)
	conn := connect(t, cfg)
	major := conn.ParameterStatus("server_version")[:2]
	t.Logf("PostgreSQL %s", major)
	_, err = conn.Exec(t.Context(), "CREATE TABLE t (a text, b text); CREATE TABLE s (a text, b text)").ReadAll()
	require.NoError(t, err)
	for _, r := range newerRows(t) {
		_, err := conn.Prepare(t.Context(), "", r.example, nil)
		var refused *pgconn.PgError
		if err != nil {
			require.ErrorAs(t, err, &refused)
		}
		if major < r.since {
			require.NotNil(t, refused, "%s: %s", r.name, r.example)
			require.Equal(t, "42601", refused.Code, "%s: %v", r.example, err)
		} else {
			require.NoError(t, err, r.example)
		}
	}
}

// What the rows say to write instead is taken.
func TestWhatToWriteInsteadOfNewerFormsIsRead(t *testing.T) {
	for _, sql := range []string{
		"SELECT * FROM t, jsonb_path_query(t.b, '$[*]') j", "SELECT * FROM jsonb_to_recordset($1) AS x (a int)", "SELECT jsonb_path_exists(b, '$.a ? (@ > $x)', '{\"x\": 1}') FROM t",
		"SELECT coalesce(jsonb_path_query_first(b, '$.a', '{}') #>> '{}', 'x')::int FROM t", "SELECT jsonb_path_query_array(b, '$.a[*]') FROM t", "SELECT a::json FROM t WHERE a IS JSON WITH UNIQUE KEYS",
		"SELECT now() AT TIME ZONE current_setting('TimeZone')", "DELETE FROM t WHERE NOT EXISTS (SELECT FROM s WHERE s.a = t.a)", "UPDATE t SET a = 1 RETURNING old.a, new.a", "ALTER TABLE t ALTER COLUMN a SET STATISTICS -1",
		"ALTER TABLE t SET ACCESS METHOD heap", "ALTER DOMAIN d SET NOT NULL", "ALTER OPERATOR === (int, int) SET (HASHES = true, MERGES = true)", "CLUSTER VERBOSE", "COPY t FROM STDIN (FORMAT csv, FORCE_NULL *)",
		"CREATE TABLE n (a int, b int GENERATED ALWAYS AS (a * 2) STORED)", "CREATE TABLE n (id int, v daterange, EXCLUDE USING gist (id WITH =, v WITH &&))", "ALTER TABLE t ADD CHECK (a > 0) NOT VALID",
		"CREATE TABLE n (a int CHECK (a IS NOT NULL) NO INHERIT)", "ALTER TABLE t ALTER COLUMN a SET NOT NULL",
	} {
		_, f := parseTree(sql)
		require.Nil(t, f, sql)
	}
}

// docs/POLICY.md lists the rows, word by word.
func TestThePageListsTheNewerForms(t *testing.T) {
	page, err := os.ReadFile("../../docs/POLICY.md")
	require.NoError(t, err)
	var want strings.Builder
	want.WriteString("| what | since | instead |\n| --- | --- | --- |\n")
	for _, r := range newerRows(t) {
		want.WriteString(strings.ReplaceAll("| "+r.name+" | "+r.since+" | "+r.instead+" |\n", "*", `\*`))
	}
	require.Contains(t, string(page), "\n"+want.String()+"\n")
}
