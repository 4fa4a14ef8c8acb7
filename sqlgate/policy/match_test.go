package policy

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestPatterns(t *testing.T) {
	for _, c := range []struct {
		variable, pattern, value string
		any, all                 bool
	}{
		{"tables_written", "public.t", "public.t", true, true},
		{"tables_written", "public.t", "public.T", false, false},
		{"tables_written", "public.*", "public.t", true, true},
		{"tables_written", "public.*", "publicx.t", false, false},
		{"tables_written", "p*c.t_*", "public.t_1", true, true},
		{"tables_written", "*.t", "public.t", true, true},
		{"tables_written", "*.*", "public.t", true, true},
		// What the classifier could not resolve lies inside every schema for
		// a rule that restricts and inside none for a rule that allows.
		{"tables_written", "audit.*", "?.t", true, false},
		{"tables_written", "audit.log", "?.log", true, false},
		{"tables_written", "audit.log", "?.t", false, false},
		{"tables_written", "?.t", "?.t", true, false},
		{"tables_written", "*.*", "?.t", true, false},
		// All tables of a schema hold the one that is asked for.
		{"tables_written", "public.t", "public.*", true, false},
		{"tables_written", "public.t*", "public.*", true, false},
		{"tables_written", "public.*", "public.*", true, true},
		{"tables_written", "*.*", "public.*", true, true},
		{"tables_written", "*.t", "public.*", true, false},
		{"tables_written", "audit.t", "public.*", false, false},
		{"tables_written", "a.*", "a.b.*", true, false},
		{"tables_written", "*.t", "a.b.*", true, false},
		{"tables_written", "audit.t", "a.b.*", false, false},
		// Those of the whole database hold every one but the server's own.
		{"tables_written", "public.t", "?.*", true, false},
		{"tables_written", "*.*", "?.*", true, false},
		{"tables_written", "?.*", "?.*", true, false},
		{"tables_written", "pg_catalog.*", "?.*", false, false},
		{"tables_written", "pg_toast.t", "?.*", false, false},
		{"tables_written", "pg_catalog.t", "?.t", true, false},
		{"tables_written", "pg_cat*.*", "?.*", true, false},
		{"columns_written", "public.t.a", "public.*.*", true, false},
		{"columns_written", "public.*.*", "public.*.*", true, true},
		{"columns_written", "public.t.*", "public.*.*", true, false},
		{"columns_written", "audit.t.a", "public.*.*", false, false},
		{"columns_written", "public.t.a", "?.*.*", true, false},
		{"columns_written", "*.*.*", "?.*.*", true, false},
		{"columns_written", "pg_catalog.t.a", "?.*.*", false, false},
		{"columns_written", "*.t.a", "a.b.*.*", true, false},
		{"columns_written", "audit.t.a", "a.b.*.*", false, false},
		{"functions", "app.f", "app.*", true, false},
		{"tables_written", "audit.log", "log", true, false},
		{"tables_written", "audit.log", "t", false, false},
		// A dot inside a quoted name hides where the schema ends.
		{"tables_written", "public.*", "public.a.b", true, false},
		{"tables_written", "*.b", "public.a.b", true, false},
		{"tables_written", "audit.*", "public.a.b", false, false},
		{"tables_written", "public.*", "?.a.b", true, false},
		{"columns_written", "public.t.a", "public.t.a", true, true},
		{"columns_written", "public.t.a", "public.t.b", false, false},
		{"columns_written", "public.*.a", "public.t.a", true, true},
		// All columns of a table hold the one that is asked for.
		{"columns_written", "public.t.a", "public.t.*", true, false},
		{"columns_written", "public.t.*", "public.t.*", true, true},
		{"columns_written", "public.t.a", "public.u.*", false, false},
		{"columns_written", "public.*.secret", "public.a.b.*", true, false},
		{"columns_written", "audit.t.a", "?.t.a", true, false},
		// Built-ins stand alone.
		{"functions", "now", "now", true, true},
		{"functions", "now", "public.now", false, false},
		{"functions", "*", "now", true, true},
		{"functions", "*", "app.f", false, false},
		{"functions", "app.*", "app.f", true, true},
		{"functions", "app.*", "app.<->", true, true},
		{"functions", "*.f", "f", false, false},
		{"functions", "app.f", "?.f", true, false},
		{"functions", "app.*", "app.x.f", true, false},
		// A claim is one segment, dots and all.
		{"app", "agent-*", "agent-billing", true, true},
		{"app", "agent-*", "xagent-b", false, false},
		{"host", "*.example.com", "db.eu.example.com", true, true},
		{"tls_subject", "CN=migrator,O=core", "CN=migrator,O=core", true, true},
		{"tls_subject", "CN=migrator,O=core", "CN=migrator,O=cores", false, false},
		{"actor", "*", "", true, true},
		{"actor", "", "", true, true},
		{"actor", "a*b*c", "abbc", true, true},
		{"actor", "a*a", "a", false, false},
		{"actor", "*ab*", "xxaby", true, true},
		{"actor", "a.b", "axb", false, false},
	} {
		t.Run(c.variable+" "+c.pattern+" "+c.value, func(t *testing.T) {
			v := variableByName[c.variable]
			set := newPatternSet(v, []string{c.pattern})
			plain := v.isPlain(c.value)
			require.Equal(t, c.any, set.any(c.value, plain), "any")
			require.Equal(t, c.all, set.all(c.value, plain), "all")
			require.Equal(t, c.any, set.any(c.value, false), "any, looked at closely")
			require.Equal(t, c.all, set.all(c.value, false), "all, looked at closely")

			many := []string{c.pattern}
			for i := range manyLiterals {
				many = append(many, c.pattern+strconv.Itoa(i))
			}
			set = newPatternSet(v, many)
			require.Equal(t, c.any, set.any(c.value, plain), "any of many")
			require.Equal(t, c.all, set.all(c.value, plain), "all of many")
		})
	}
}

func TestAllOfACutListIsNeverKnown(t *testing.T) {
	p := load(t, document("id: r, decision: ALLOW, reason_code: r_r, match: {class: [write], tables_written_only: [public.*]}, lifts: [oversized_facts]"))
	full := make([]string, maxListFacts)
	for i := range full {
		full[i] = fmt.Sprintf("public.t%03d", i)
	}
	require.Equal(t, Allow, p.Decide(&Facts{Class: "write", QueryTypes: []string{"INSERT"}, TablesWritten: full}).Decision, "256 tables are a whole list")
	cut := Facts{Class: "write", QueryTypes: []string{"INSERT"}, TablesWritten: full, RiskSignals: []string{"oversized_facts"}}
	require.Equal(t, Block, p.Decide(&cut).Decision, "what was cut off could be anywhere")
	other := Facts{Class: "write", QueryTypes: []string{"INSERT"}, TablesWritten: full[:2], ColumnsWritten: full, RiskSignals: []string{"oversized_facts"}}
	require.Equal(t, Allow, p.Decide(&other).Decision, "the list that was cut is another one")
}

func TestNamesOutsideTheVocabularyBreakOnlyKeys(t *testing.T) {
	p := load(t, document("id: r, decision: ALLOW, reason_code: r_r, match: {class: [write], query_types_only: [INSERT]}"))
	require.Equal(t, Allow, p.Decide(&Facts{Class: "write", QueryTypes: []string{"INSERT"}}).Decision)
	require.Equal(t, Block, p.Decide(&Facts{Class: "write", QueryTypes: []string{"INSERT", "NOVEL"}}).Decision)
}

// The translation of native checks to CEL, by which both are compared. It is
// written from the design page and shares no code with the matchers.

func celOf(m *matcher) string {
	all := celOfGroup(m.all)
	if !m.hasAnyOf {
		return all
	}
	groups := []string{"false"}
	for _, g := range m.anyOf {
		groups = append(groups, celOfGroup(g))
	}
	return "(" + all + ") && (" + strings.Join(groups, " || ") + ")"
}

func celOfGroup(g group) string {
	parts := []string{"true"}
	for i := range g {
		parts = append(parts, "("+celOfCheck(&g[i])+")")
	}
	return strings.Join(parts, " && ")
}

func celOfCheck(c *check) string {
	name := c.v.name
	switch {
	case c.v.kind == kindBool:
		return fmt.Sprintf("%s == %v", name, c.want)
	case c.v.kind == kindEnum || c.v.kind == kindExact:
		return name + " in " + celList(c.values)
	case c.v.kind == kindEnumList && c.only:
		return name + ".all(x, x in " + celList(c.values) + ")"
	case c.v.kind == kindEnumList:
		return name + ".exists(x, x in " + celList(c.values) + ")"
	case c.v.kind == kindText:
		return celMatches(name, c.values, func(p string) string { return textRegex(p) })
	case c.only:
		return name + ".all(x, " + celMatches("x", c.values, func(p string) string { return certainRegex(p) }) + ")" +
			" && !(size(" + name + ") >= 256 && 'oversized_facts' in risk_signals)"
	default:
		return name + ".exists(x, " + celMatches("x", c.values, func(p string) string { return possibleRegex(p, c.v) }) + ")"
	}
}

func celList(values []string) string {
	quoted := make([]string, len(values))
	for i, v := range values {
		quoted[i] = strconv.Quote(v)
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

func celMatches(x string, patterns []string, regex func(string) string) string {
	parts := []string{"false"}
	for _, p := range patterns {
		parts = append(parts, x+".matches("+strconv.Quote("(?s)^("+regex(p)+")$")+")")
	}
	return strings.Join(parts, " || ")
}

func textRegex(p string) string {
	return strings.ReplaceAll(regexp.QuoteMeta(p), `\*`, `.*`)
}

func segmentRegex(p string) string {
	return strings.ReplaceAll(regexp.QuoteMeta(p), `\*`, `[^.]*`)
}

// certainRegex: every segment is known, none but the last may be unresolved.
func certainRegex(p string) string {
	segments := strings.Split(p, ".")
	for i, s := range segments {
		s = segmentRegex(s)
		if i < len(segments)-1 {
			// RE2 has no negative look-ahead: a segment that is not "?".
			switch segments[i] {
			case "*":
				s = `(|[^.?][^.]*|\?[^.]+)`
			case "?":
				s = `[^\x00-\x{10FFFF}]`
			}
		}
		segments[i] = s
	}
	return strings.Join(segments, `\.`)
}

// possibleRegex: as above, or some segment is not known.
func possibleRegex(p string, v *variable) string {
	segments := strings.Split(p, ".")
	regexes := make([]string, len(segments))
	for i, s := range segments {
		regexes[i] = segmentRegex(s)
		if i < len(segments)-1 {
			regexes[i] = `(` + regexes[i] + `|\?)`
		}
		if i > 0 {
			regexes[i] = `(` + regexes[i] + `|\*)`
		}
	}
	if segments[0] == "pg_catalog" { // all tables of all schemas are not the server's own
		own := append([]string{`pg_catalog`}, regexes[1:]...)
		unresolved := append([]string{`\?`, segmentRegex(segments[1])}, regexes[2:]...)
		return strings.Join(own, `\.`) + `|` + strings.Join(unresolved, `\.`)
	}
	return strings.Join(regexes, `\.`)
}

// Small alphabets make hits likely.
var (
	drawnSchemas  = []string{"a", "b", "?"}
	drawnTables   = []string{"t", "u", "tu", "*"}
	drawnColumns  = []string{"x", "y", "*"}
	drawnPatterns = map[string][]string{
		"tables_read": {"a.t", "a.*", "*.t", "b.u", "*.*", "a.t*", "b.*u"}, "tables_written": {"a.t", "a.*", "*.t", "b.u", "*.*", "b.t*", "pg_catalog.t"},
		"columns_written": {"a.t.x", "a.*.*", "*.t.y", "b.u.*", "*.*.x", "pg_catalog.t.x"}, "functions": {"f", "g*", "*", "a.f", "b.*", "*.g"},
		"actor": {"ana", "a*", "*", ""}, "app": {"agent-*", "shop", "*p"}, "tenant": {"x"}, "role": {"dba", "d*"}, "host": {"h.*", "*.h"},
		"tls_subject": {"CN=a,O=b", "CN=*"}, "agent_id": {"agt_1", "agt_*", ""}, "fingerprint": {"f1", "sieve"}, "session_id": {"s1", ""},
	}
)

func anyCheck(t *rapid.T) check {
	v := rapid.SampledFrom(variables).Draw(t, "variable")
	c := check{kind: v.kind, v: v, only: v.isList() && rapid.Bool().Draw(t, "only")}
	if v.kind == kindBool {
		c.want = rapid.Bool().Draw(t, "want")
		return c
	}
	from := drawnPatterns[v.name]
	if v.words != nil {
		from = v.words.names
	}
	c.values = rapid.SliceOfN(rapid.SampledFrom(from), 0, 3).Draw(t, "values")
	switch v.kind {
	case kindEnum, kindEnumList:
		c.bits = v.words.set(c.values)
	case kindExact:
		c.exact = c.values
	default:
		c.patterns = newPatternSet(v, c.values)
	}
	return c
}

func anyMatcher(t *rapid.T) *matcher {
	m := &matcher{all: rapid.SliceOfN(rapid.Custom(anyCheck), 0, 3).Draw(t, "all")}
	if m.hasAnyOf = rapid.Bool().Draw(t, "any_of"); m.hasAnyOf {
		n := rapid.IntRange(0, 2).Draw(t, "groups")
		for range n {
			m.anyOf = append(m.anyOf, rapid.SliceOfN(rapid.Custom(anyCheck), 0, 2).Draw(t, "group"))
		}
	}
	return m
}

func drawnFacts(t *rapid.T) *Facts {
	words := func(v *vocabulary) []string {
		l := rapid.SliceOfN(rapid.SampledFrom(v.names), 0, 3).Draw(t, "words")
		slices.Sort(l)
		return slices.Compact(l)
	}
	names := func(parts ...[]string) []string {
		return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) string {
			var segments []string
			for i, p := range parts {
				segment := rapid.SampledFrom(p).Draw(t, "segment")
				if i > 0 && segments[i-1] == unnamed { // of tables without names there is no column with one
					segment = unnamed
				}
				segments = append(segments, segment)
			}
			return strings.Join(segments, ".")
		}), 0, 3).Draw(t, "names")
	}
	text := func(values ...string) string { return rapid.SampledFrom(values).Draw(t, "text") }
	f := &Facts{
		QueryType: text(queryTypes.names...), QueryTypes: append(words(queryTypes), "SELECT"), Class: text(classes.names...),
		TablesRead: names(drawnSchemas, drawnTables), TablesWritten: names(drawnSchemas, drawnTables),
		ColumnsWritten: names(drawnSchemas, drawnTables, drawnColumns),
		Functions:      append(names([]string{"f", "g", "g1"}), names([]string{"a", "b", "?"}, []string{"f", "g"})...),
		RiskSignals:    words(signals), Flags: words(flags), Where: words(wheres), Fingerprint: text("f1", "sieve", "f3"),
		Actor: text("ana", "bob", ""), App: text("agent-1", "shop"), Tenant: text("x", "y"), Role: text("dba", "dev"), Host: text("h.x", "x.h"),
		Env: text(envs.names...), TLSSubject: text("", "CN=a,O=b"), AgentID: text("", "agt_1"), AgentToolsVerified: rapid.Bool().Draw(t, "tools"),
		Mode: text(modes.names...), Approved: rapid.Bool().Draw(t, "approved"), SessionID: text("", "s1"), Channel: text(append([]string{""}, channels.names...)...),
	}
	f.SafeRead = f.Class == "read" && len(f.RiskSignals) == 0
	return f
}

func TestNativeMatchersEqualTheirCELTranslation(t *testing.T) {
	// The bounds of a when are for documents; the translation may be larger.
	options := []cel.EnvOption{}
	for _, v := range variables {
		options = append(options, cel.Variable(v.name, v.celType()))
	}
	env, err := cel.NewEnv(options...)
	require.NoError(t, err)
	hits := 0
	rapid.Check(t, func(t *rapid.T) {
		m := anyMatcher(t)
		expression := celOf(m)
		compiled, issues := env.Compile(expression)
		if issues.Err() != nil {
			t.Fatalf("%s: %v", expression, issues.Err())
		}
		program, err := env.Program(compiled)
		if err != nil {
			t.Fatal(err)
		}
		m.prepare()
		// The index is asked for the last rule of several words of rules, all
		// of which have keys of their own.
		indexed := *m
		indexed.prepare()
		beside := make([]*matcher, rapid.SampledFrom([]int{0, 1, 63, 64, 130}).Draw(t, "beside"))
		for i := range beside {
			beside[i] = &matcher{quickAll: rapid.SliceOfN(rapid.Custom(anyCheck), 0, 2).Draw(t, "other")}
		}
		x := newIndex(append(beside, &indexed))
		for range 8 {
			f := drawnFacts(t)
			e := evaluate(f)
			place := len(beside)
			native := x.candidates(e)[place/64]&(1<<(place%64)) != 0 && indexed.holds(e)
			if whole := m.holds(e); whole != native {
				t.Fatalf("with the index %v, without %v: %s", native, whole, expression)
			}
			translated, _, err := program.Eval(e)
			e.done()
			if err != nil || (translated == types.True) != native {
				t.Fatalf("native %v, CEL %v (%v)\n%s\n%+v", native, translated, err, expression, *f)
			}
			if native {
				hits++
			}
		}
	})
	require.Greater(t, hits, 50, "too few draws match for the test to mean anything")
}

func TestManyRulesAreToldApart(t *testing.T) {
	var rules []string
	for i := range 200 {
		rules = append(rules, fmt.Sprintf("id: r%d, decision: BLOCK, reason_code: r_r, match: {class: [write], tables_written: [\"app.t%d\", \"s%d.*\"], tenant: [\"x%d\", \"all\"]}", i, i, i, i))
	}
	p := load(t, document(rules...))
	for i := range 200 {
		name := fmt.Sprintf("r%d", i)
		byTable := Facts{Class: "write", QueryTypes: []string{"INSERT"}, TablesWritten: []string{"other.x", fmt.Sprintf("app.t%d", i)}, Tenant: "all"}
		require.Equal(t, []string{name}, p.Decide(&byTable).Matched)
		bySchema := Facts{Class: "write", QueryTypes: []string{"INSERT"}, TablesWritten: []string{fmt.Sprintf("s%d.any", i)}, Tenant: fmt.Sprintf("x%d", i)}
		require.Equal(t, []string{name}, p.Decide(&bySchema).Matched)
	}
	unknown := Facts{Class: "write", QueryTypes: []string{"INSERT"}, TablesWritten: []string{"?.t7", "?.other"}, Tenant: "all"}
	require.Len(t, p.Decide(&unknown).Matched, 200, "a table of an unknown schema lies inside every schema")
}
