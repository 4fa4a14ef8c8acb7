package controlplane

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"writegate/eventlog/event"
)

func TestTheStateOfTheGateIsNotPrettierThanItIs(t *testing.T) {
	for _, c := range []struct {
		name string
		gate *health
		mock bool
		want guardState
	}{
		{"enforcing", &health{Status: "ok", Mode: "enforce"}, false, guardState{"Enforcing", "good"}},
		{"asking about every write", &health{Status: "ok", Mode: "approval_first"}, false, guardState{"Enforcing", "good"}},
		{"shadow", &health{Status: "ok", Mode: "shadow"}, false, guardState{"NOT ENFORCING", "bad"}},
		{"bypass", &health{Status: "ok", Mode: "emergency_bypass"}, false, guardState{"BYPASS until", "bad"}},
		{"a damaged log", &health{Status: "non-ok", Mode: "enforce", StartupChain: []step{{Step: "audit_log_continuity", Status: "failed"}}}, false, guardState{"Refusing everything", "bad"}},
		{"a start that failed", &health{Status: "non-ok", Mode: "enforce"}, false, guardState{"Refusing everything", "warn"}},
		{"a start that failed, in shadow mode", &health{Status: "non-ok", Mode: "shadow"}, false, guardState{"Refusing everything", "warn"}},
		{"out of reach", nil, false, guardState{"No answer", "bad"}},
		{"invented", &health{Status: "ok", Mode: "enforce"}, true, guardState{"Mock", "calm"}},
	} {
		require.Equal(t, c.want, guarding(c.gate, c.mock), c.name)
	}
}

func TestAnEstimateIsSaidInWords(t *testing.T) {
	var a approval
	require.NoError(t, json.Unmarshal([]byte(`{"impact":{"node":"Delete","rows":12500,"startup_cost":0,"total_cost":355.25}}`), &a))
	require.Equal(t, "PostgreSQL expects "+thousands(12500)+" rows (Delete, cost 355). It planned the statement and did not run it.", estimate(a.Impact))
	require.Contains(t, estimate(&plan{Node: "Update", Rows: 1, TotalCost: 8}), "expects 1 row (Update, cost 8)")
	require.NoError(t, json.Unmarshal([]byte(`{"impact":null}`), &a))
	require.Empty(t, estimate(a.Impact))
	require.Equal(t, "None: the statement has parameters.", estimate(&plan{Unplanned: "the statement has parameters"}))
}

// The sentence says of a statement with several parts, or that reaches many tables, what
// its facts tell, and no more.
func TestTheSentenceSaysNoMoreThanTheFactsTell(t *testing.T) {
	r := approvalRow{Effect: "Delete from, update public.customers, public.orders"}
	r.Classification = classification{Class: "write", Where: []string{"key_equality", "none"}, TablesWritten: []string{"public.customers", "public.orders"}, TablesRead: []string{"public.customers", "hr.salaries"}}
	require.Equal(t, "delete from, update public.customers, public.orders (at least one part touches every row), reading hr.salaries", deed(&r))
	r.Classification.Where = []string{"key_equality", "present"}
	require.Contains(t, deed(&r), "(at least one part touches all rows that its condition finds)")
	r.Classification.Where = []string{"key_equality"}
	require.Contains(t, deed(&r), "(rows whose id, or other key column, has a given value)")

	r.Impact = &plan{}
	for n := range 30 {
		r.Impact.Tables = append(r.Impact.Tables, reached{Table: fmt.Sprint("t", n), How: "cascade", From: "public.orders", Triggers: []string{"g, which calls f"}})
	}
	require.Contains(t, deed(&r), " and, by cascade, from t0, t1, t2 and 27 more, reading")
	list := dangers(&r, nil)
	require.Contains(t, fmt.Sprint(list), "Rows of t0 (never counted), t1 (never counted), t2 (never counted) and 27 more that belong to those deleted from public.orders.")
	require.Contains(t, fmt.Sprint(list), "A write of t2 fires g, which calls f. 27 more fire. They may write elsewhere.")
	require.Len(t, approvalView{approvalRow: r}.Reaches(), 60, "all of them stand further down")

	r = approvalRow{approval: approval{Classification: classification{Class: "ddl", QueryType: "DROP"}, Impact: &plan{Tables: []reached{{Table: "public.orders", How: "view", From: "public.v"}}}}, Effect: "Drop view public.v"}
	require.NotContains(t, fmt.Sprint(dangers(&r, nil)), "Writes through a view", "which does not write what is behind it")
}

func TestWhatIsWrittenToBeMisreadIsHighRisk(t *testing.T) {
	plain := classification{QueryType: "DELETE", Class: "write", TablesWritten: []string{"public.orders"}, Where: []string{"key_equality"}}
	require.Equal(t, "ordinary", riskWord(risk(&plain)))
	confusable := plain
	confusable.RiskSignals = []string{"confusable_text"}
	require.Equal(t, "high", riskWord(risk(&confusable)))
	require.Equal(t, "Delete from public.orders", effect(&plain, ""))
	written := classification{QueryType: "SELECT", QueryTypes: []string{"DELETE", "SELECT"}, TablesWritten: []string{"public.orders"}, TablesRead: []string{"public.orders"}}
	require.Equal(t, "Delete from public.orders", effect(&written, ""), "a CTE that writes under a SELECT")
	written = classification{QueryType: "INSERT", QueryTypes: []string{"DELETE", "INSERT"}, TablesWritten: []string{"public.hist", "public.orders"}}
	require.Equal(t, "Insert into, delete from public.hist, public.orders", effect(&written, ""))
	written = classification{QueryType: "EXPLAIN", QueryTypes: []string{"EXPLAIN", "UPDATE"}, TablesWritten: []string{"public.orders"}}
	require.Equal(t, "Explain, update public.orders", effect(&written, ""), "EXPLAIN ANALYZE runs it")
	taken := classification{QueryType: "CREATE_TABLE_AS", TablesWritten: []string{"public.stolen"}}
	require.Equal(t, "Create table public.stolen", effect(&taken, "SELECT * INTO stolen FROM t"))
	require.Equal(t, "Create materialized view public.stolen", effect(&taken, "CREATE MATERIALIZED VIEW stolen AS SELECT 1"))
}

func TestAChangeOfTheSchemaIsNamedByWhatItChanges(t *testing.T) {
	for text, want := range map[string]string{
		"CREATE INDEX i ON orders (status)":                                      "Create index i on public.orders",
		"/* CREATE TABLE */ create\n unique index CONCURRENTLY i ON orders (id)": "Create unique index i on public.orders",
		"CREATE TABLE orders (id int)":                                           "Create table public.orders",
		"CREATE TEMP TABLE orders (id int)":                                      "Create table public.orders",
		"CREATE OR REPLACE TRIGGER g AFTER DELETE ON orders":                     "Create trigger g on public.orders",
		"CREATE CONSTRAINT TRIGGER g AFTER DELETE ON orders":                     "Create constraint trigger g on public.orders",
		"CREATE POLICY p ON orders":                                              "Create policy p on public.orders",
		"ALTER TABLE orders ADD c int":                                           "Alter table public.orders: add c int",
		"ALTER TRIGGER g ON orders RENAME TO h":                                  "Rename trigger g on public.orders to h",
		"DROP TABLE IF EXISTS orders":                                            "Drop table public.orders",
		"DROP MATERIALIZED VIEW orders":                                          "Drop materialized view public.orders",
		"DROP INDEX orders":                                                      "Drop index public.orders",
	} {
		c := classification{QueryType: strings.ToUpper(strings.Fields(bareText(text))[0]), Class: "ddl", TablesWritten: []string{"public.orders"}}
		require.Equal(t, want, effect(&c, text), text)
	}
	require.Equal(t, "Delete from public.orders", effect(&classification{QueryType: "DELETE", TablesWritten: []string{"public.orders"}}, "CREATE INDEX i ON t"), "the classifier knows what it is")
}

// A query that is held for what it calls is none of which it is known that it only reads.
func TestAQueryThatCallsIsNoRead(t *testing.T) {
	raised := func(signals ...string) (list []signal) {
		for i := 0; i < len(signals); i += 2 {
			list = append(list, signal{Signal: signals[i], Subject: signals[i+1]})
		}
		return list
	}
	for want, c := range map[string]classification{
		"Call app.purge, which may change anything":                                       {QueryType: "SELECT", Class: "write", Signals: raised("unknown_function", "app.purge")},
		"Call app.a, app.b, which may change anything, and read public.t":                 {QueryType: "SELECT", Class: "write", TablesRead: []string{"public.t"}, Signals: raised("unknown_function", "app.a", "unknown_function", "app.b", "unknown_function", "app.a")},
		"Call nextval, which moves a sequence, and read public.t":                         {QueryType: "SELECT", Class: "write", TablesRead: []string{"public.t"}, Signals: raised("sequence_change", "nextval")},
		"Call public.dblink, which may change anything":                                   {QueryType: "SELECT", Class: "write", Signals: raised("remote_access", "public.dblink", "unknown_function", "public.dblink")},
		"Call app.f, which may change anything, and setval, which moves a sequence":       {QueryType: "SELECT", Class: "write", Signals: raised("sequence_change", "setval", "unknown_function", "app.f")},
		"Call lo_unlink, which reads or changes large objects":                            {QueryType: "SELECT", Class: "write", Signals: raised("server_file_access", "lo_unlink")},
		"Call lo_export, which reads or writes files of the database server":              {QueryType: "SELECT", Class: "write", Signals: raised("server_file_access", "lo_export")},
		"Call pg_advisory_lock, which takes or gives back a lock of its own":              {QueryType: "SELECT", Class: "write", Signals: raised("advisory_lock", "pg_advisory_lock")},
		"Call query_to_xml, which runs SQL given to it as text":                           {QueryType: "SELECT", Class: "write", Signals: raised("sql_executing_function", "query_to_xml")},
		`Call "app.safe, read", which may change anything`:                                {QueryType: "SELECT", Class: "write", Signals: raised("unknown_function", "app.safe, read")},
		"Call app.purge, which may change anything, and pg_sleep, which waits on purpose": {QueryType: "CALL", Class: "procedural", Signals: raised("opaque_code", "", "unknown_function", "app.purge", "delay_function", "pg_sleep")},
		"Explain, calling app.purge, which may change anything":                           {QueryType: "EXPLAIN", Class: "write", Flags: []string{"explain", "explain_analyze"}, Signals: raised("explain_analyze", "", "unknown_function", "app.purge")},
		"Explain public.t, perhaps calling app.purge, which may change anything":          {QueryType: "EXPLAIN", Class: "write", Flags: []string{"explain"}, TablesRead: []string{"public.t"}, Signals: raised("unknown_function", "app.purge")},
		"Copy out of, calling app.purge, which may change anything":                       {QueryType: "COPY_TO", Class: "write", Signals: raised("bulk_copy", "", "unknown_function", "app.purge")},
		"Delete from public.t, calling app.purge, which may change anything":              {QueryType: "SELECT", QueryTypes: []string{"DELETE", "SELECT"}, TablesWritten: []string{"public.t"}, Class: "write", Signals: raised("data_modifying_cte", "", "unknown_function", "app.purge")},
		"Update public.t":        {QueryType: "UPDATE", QueryTypes: []string{"UPDATE"}, TablesWritten: []string{"public.t"}, Class: "write", Signals: raised("unknown_function", "app.f")},
		"Lock and read public.t": {QueryType: "SELECT", Class: "write", TablesRead: []string{"public.t"}, Signals: raised("row_locking", "")},
		"Do what the gate does not know, and read public.t": {QueryType: "SELECT", Class: "unknown", TablesRead: []string{"public.t"}, Signals: raised("unknown_node", "X")},
		"Read public.t":       {QueryType: "SELECT", Class: "read", TablesRead: []string{"public.t"}, Functions: []string{"lower"}},
		"Run a block of code": {QueryType: "DO", Class: "procedural", Signals: raised("opaque_code", "")},
	} {
		for _, s := range c.Signals {
			c.RiskSignals = append(c.RiskSignals, s.Signal)
			if s.Subject != "" {
				c.Functions = append(c.Functions, s.Subject)
			}
		}
		require.Equal(t, want, effect(&c, ""))
	}
}

// A list of signals that is full hides none that changes what a statement is.
func TestACallBehindAFullListOfSignalsIsSaid(t *testing.T) {
	c := classification{QueryType: "SELECT", Class: "write", Functions: []string{"app.purge", "nextval"}, RiskSignals: []string{"sequence_change", "unknown_function"},
		Signals: slices.Repeat([]signal{{Signal: "sequence_change", Subject: "nextval"}}, mostSignals)}
	require.Equal(t, "Call what is not listed, which may change anything, and nextval, which moves a sequence", effect(&c, ""))
	require.Equal(t, "high", riskWord(risk(&c)))
	require.Equal(t, "unknown_function high", meanings(&c)[0].Name+" "+meanings(&c)[0].Severity)
}

// A card says whom a change keeps out of which tables, and one that others wait for is not
// ordinary.
func TestACardSaysWhomAChangeKeepsOut(t *testing.T) {
	for _, c := range []struct {
		sql            string
		tables, advice []string
		want           []string
	}{
		{"VACUUM FULL orders", []string{"public.orders"}, []string{"blocks_all", "rewrite"}, []string{adviceWords["rewrite"], "Nobody can read or write public.orders while it runs, and it queues behind whoever uses it now."}},
		{"ALTER TABLE orders DISABLE TRIGGER ALL", []string{"public.orders"}, []string{"blocks_writes"}, []string{"Nobody can write public.orders while it runs; reads go on."}},
		{"ALTER TABLE a ADD FOREIGN KEY (b) REFERENCES b", []string{"public.a", "public.b"}, []string{"blocks_writes", "scan"}, []string{adviceWords["scan"], "Nobody can write public.a, public.b while it runs; reads go on."}},
		{"ALTER TABLE a ADD b int REFERENCES b", []string{"public.a", "public.b"}, []string{"blocks_all", "blocks_writes"}, []string{"Nobody can read or write at least one of public.a, public.b while it runs, nor write the others, and it queues behind whoever uses them now."}},
		{"ALTER TABLE a ADD b int REFERENCES a", []string{"public.a"}, []string{"blocks_all", "blocks_writes"}, []string{"Nobody can read or write public.a while it runs, and it queues behind whoever uses it now."}},
		{"ALTER TABLE a ATTACH PARTITION b DEFAULT", []string{"public.a", "public.b"}, []string{"blocks_partition"}, []string{"Nobody can read or write the partition while it runs; the table that it belongs to stays in use."}},
		{"ALTER DOMAIN d SET NOT NULL", []string{"public.d"}, []string{"blocks_writes"}, []string{"Nobody can write the tables that have columns of public.d while it runs; reads go on."}},
		{"ALTER SEQUENCE s RESTART", []string{"public.s"}, []string{"blocks_writes"}, []string{"Nobody can take numbers from public.s while it runs."}},
		{"VACUUM orders", []string{"public.orders"}, nil, nil},
	} {
		of := classification{Class: "maintenance", TablesWritten: c.tables, Advice: c.advice}
		require.Equal(t, c.want, advice(&of, c.sql), c.sql)
		require.Equal(t, c.want == nil, riskWord(risk(&of)) == "ordinary", c.sql)
	}
}

func TestAClaimThatIsWrittenToBeMisreadIsMarked(t *testing.T) {
	for text, marked := range map[string]string{
		"support-agent": "", "Анна": "", "Zoë Müller": "", "Işıl": "", "田中": "",
		"supp\u043ert-agent": "\u043e", "\u0430\u0440\u0435": "\u0430\u0440\u0435", "\uff41na": "\uff41", "an\u200ba": "U+200B", "\u202eana": "U+202E", "a\u00a0b": "U+00A0",
		"ana” asks to read; 7 were approved. “eve": "”“", `a"b`: `"`, "O'Brien": "",
	} {
		var marks strings.Builder
		v := viewClaim(text)
		for _, p := range v.Pieces {
			if p.Kind == "mark" {
				marks.WriteString(p.Text)
			}
		}
		require.Equal(t, marked == "", len(v.Warnings) == 0, text)
		require.Equal(t, marked, marks.String(), text)
	}
}

func TestChangesOfAPolicyAreSaidWithoutJSON(t *testing.T) {
	for raw, want := range map[string]string{
		`"BLOCK"`: "BLOCK", `100`: "100", `true`: "true", `null`: "", `{"max_rows":null,"ttl_seconds":null}`: "",
		`{"max_rows":50,"ttl_seconds":900}`: "max rows 50, ttl seconds 900", `["a","b"]`: "a, b",
	} {
		var v fieldValue
		require.NoError(t, json.Unmarshal([]byte(raw), &v))
		require.Equal(t, want, string(v), raw)
	}
	require.Error(t, new(fieldValue).UnmarshalJSON([]byte("{")))
}

func TestSideBySideLeavesOutTheNamesOfTheFilesAndNothingElse(t *testing.T) {
	text := "diff a b\n--- a\n+++ b\n@@ -1,4 +1,4 @@\n same\n-old\n+new\n--- a line of a document that begins with dashes\n+++ and one with plus signs\n"
	require.Equal(t, []diffLine{
		{"@@ -1,4 +1,4 @@", "", "gap"}, {"same", "same", "same"}, {"old", "new", "changed"},
		{"-- a line of a document that begins with dashes", "++ and one with plus signs", "changed"},
	}, sideBySide(text))
}

// Readings of the counters come from two places and may overtake one another.
func TestDecisionsAreCountedOnceWhoeverReads(t *testing.T) {
	now := time.Date(2026, 3, 1, 9, 0, 30, 0, time.UTC)
	s := newSamples(func() time.Time { return now })
	s.filled = true
	read := func(uptime, total int64) {
		s.add(stats{UptimeSeconds: uptime, RequestsTotal: total, Decisions: map[string]int64{"ALLOW": total}})
	}
	allowed := func() (n int64) {
		for _, m := range s.hour() {
			n += m.Allow
		}
		return n
	}
	read(100, 1000)
	require.Zero(t, allowed(), "what was before is not of this minute")
	read(101, 1010)
	read(101, 1005) // asked before, answered after
	read(100, 1010) // a second that ended in between
	read(102, 1012)
	require.EqualValues(t, 12, allowed())

	now = now.Add(time.Minute) // the gate is started anew and counts from zero
	read(3, 4)
	require.EqualValues(t, 16, allowed())
	now = now.Add(time.Hour) // the clock of this machine is put forward; the gate's counters go on
	read(8, 9)
	require.EqualValues(t, 5, s.hour()[chartMinutes-1].Allow)
}

func TestAxesHaveRoundNumbersAndAUnit(t *testing.T) {
	labels := func(top float64, unit string) (list []string) {
		for _, tick := range steps(top, unit) {
			list = append(list, tick.Label)
		}
		return list
	}
	require.Equal(t, []string{"0", "1"}, labels(1, ""))
	require.Equal(t, []string{"0", "20", "40", "60"}, labels(66, ""))
	require.Equal(t, []string{"0", "500", "1000", "1500 ms"}, labels(1550, " ms"))
	require.Equal(t, []string{"0", "10 k", "20 k"}, labels(21_000, ""))
	require.Equal(t, []string{"0", "1 M", "2 M"}, labels(2_900_000, ""))
	require.Equal(t, "−15 min", agoTicks(60, 15, "min")[0].Label)
	require.InDelta(t, 44, agoTicks(60, 15, "min")[0].Value, 0, "fifteen minutes before the last one")
}

// An event type without words shows as its name, and one that the script does not
// listen for changes no page.
func TestEveryEventTypeHasWordsAndRefreshesPages(t *testing.T) {
	script, err := os.ReadFile(filepath.Join("assets", "app.js"))
	require.NoError(t, err)
	_, rest, ok := strings.Cut(string(script), "const kinds = [")
	require.True(t, ok)
	list, _, ok := strings.Cut(rest, "];")
	require.True(t, ok)
	var followed, types []string
	for _, m := range regexp.MustCompile(`"(\w+)"`).FindAllStringSubmatch(list, -1) {
		followed = append(followed, m[1])
	}
	for _, s := range event.Types() {
		types = append(types, string(s.Type))
	}
	require.ElementsMatch(t, types, slices.Collect(maps.Keys(eventWords)))
	require.ElementsMatch(t, types, followed)
	live := 0
	pages, err := filepath.Glob("page_*.go")
	require.NoError(t, err)
	for _, page := range pages {
		source, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, m := range regexp.MustCompile(`p\.Live(?:Shown)?(?:, p\.Body)? = "([^"]+)"`).FindAllStringSubmatch(string(source), -1) {
			live++
			if m[1] != "*" {
				require.Subset(t, types, strings.Fields(m[1]), page)
			}
		}
	}
	require.GreaterOrEqual(t, live, 10)
}

// Why an execution did not succeed is said in words.
func TestEveryReasonOfAnExecutionHasWords(t *testing.T) {
	sources, err := filepath.Glob(filepath.Join("..", "..", "sqlgate", "pgexec", "*.go"))
	require.NoError(t, err)
	var reasons []string
	for _, file := range sources {
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, m := range regexp.MustCompile(`(?m)^\s+Reason\w+\s+= "(\w+)"`).FindAllStringSubmatch(string(source), -1) {
			reasons = append(reasons, m[1])
		}
	}
	require.Contains(t, reasons, "transaction_overtime")
	require.ElementsMatch(t, reasons, slices.Collect(maps.Keys(reasonWords)))
}

// Whatever a rule of the policies' page asks for stands in its words: also what any_of
// and unless hold.
func TestEveryValueOfARuleStandsInItsWords(t *testing.T) {
	page, err := os.ReadFile("../../docs/POLICY.md")
	require.NoError(t, err)
	excepted, either := 0, 0
	for _, block := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		var document struct {
			Rules []struct {
				ID            string
				Match, Unless map[string]any
			}
		}
		require.NoError(t, yaml.Unmarshal([]byte(block[1]), &document))
		words := rulesOf(block[1])
		require.Len(t, words, len(document.Rules))
		for i, rule := range document.Rules {
			requireWords(t, rule.Match, strings.Join(words[i].When, ", and "), rule.ID)
			requireWords(t, rule.Unless, strings.Join(words[i].Unless, ", and "), rule.ID)
			excepted += len(rule.Unless)
			if rule.Match["any_of"] != nil {
				either++
			}
		}
	}
	require.Positive(t, excepted)
	require.Positive(t, either)
}

// What fits every statement, or allows no row, is said too.
func TestWhatARuleAsksNothingOfStandsInItsWords(t *testing.T) {
	rules := rulesOf(`rules:
  - {id: never, decision: BLOCK, match: {query_types: [DROP]}, unless: {}}
  - {id: any, decision: BLOCK, match: {any_of: [{query_types: [DROP]}, {}]}}
  - {id: plain, decision: BLOCK, match: {}}
  - {id: none, decision: ALLOW, match: {tables_written_only: [], columns_written_only: [], actor: []}}
`)
	require.ElementsMatch(t, []string{"it writes nothing", "it writes no column", "the actor says it is nothing"}, rules[3].When)
	require.Equal(t, []string{anyStatement}, rules[0].Unless)
	require.Equal(t, []string{"one of these holds: the statement is DROP; or " + anyStatement}, rules[1].When)
	require.Empty(t, append(rules[2].When, rules[2].Unless...))
	p := startPlane(t, nil)
	for document, words := range map[string]string{"approval: {max_rows: 0}": "At most 0 rows.", "approval: {max_rows: 50}": "At most 50 rows.", "approval: {max_rows: 010}": "At most 10 rows.", "approval: {ttl_seconds: 60}": ""} {
		var page strings.Builder
		require.NoError(t, p.server.views.pages["policies"].ExecuteTemplate(&page, "rules", rulesOf("rules: [{id: r, decision: REQUIRE_APPROVAL, match: {}, "+document+"}]")))
		require.Contains(t, page.String(), words)
		require.Equal(t, words == "", !strings.Contains(page.String(), "At most"))
	}
}

func requireWords(t *testing.T, value any, words, id string) {
	switch value := value.(type) {
	case map[string]any:
		for _, v := range value {
			requireWords(t, v, words, id)
		}
	case []any:
		for _, v := range value {
			requireWords(t, v, words, id)
		}
	default:
		text := strings.TrimPrefix(fmt.Sprint(value), "$")
		if w, ok := conditionWords[text]; ok {
			text = w
		}
		require.Contains(t, strings.ReplaceAll(words, "_", " "), strings.ReplaceAll(text, "_", " "), id)
	}
}

// Names of the gate's own are written as people write them.
func TestNamesOfTheGateAreWrittenAsPeopleDo(t *testing.T) {
	row := approvalRow{approval: approval{Classification: classification{QueryType: "SELECT", RiskSignals: []string{"data_modifying_cte", "destructive_ddl", "sql_executing_function"},
		Signals: []signal{{"destructive_ddl", "high", "?.*"}}}}}
	var names []string
	for _, m := range dangers(&row, nil) {
		names = append(names, m.Name+" "+m.Subjects)
	}
	require.Equal(t, []string{"Destructive DDL what it does not name", "Data-modifying CTE ", "SQL-executing function "}, names)
	require.Equal(t, "all of tables that it does not name, public.orders.id", columnWords([]string{"?.*.*", "public.orders.id"}))
	one := 1
	require.Equal(t, "1", countOf(&one))
}
