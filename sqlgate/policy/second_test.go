package policy

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// A secondRule says what docs/POLICY.md says of a rule, with loops alone: no bits, no
// index, no compiled patterns. What it gives is held against what decides.
type secondRule struct {
	id            string
	decision      Decision
	match, unless map[string][]string
	anyOf, butAny []map[string][]string
}

// fits tells of one pattern and one name whether they may mean the same table (may), and
// whether the pattern covers all that the name stands for (all).
func fits(pattern, name string) (may, all bool) {
	ps, pt, _ := strings.Cut(pattern, ".")
	ns, nt, _ := strings.Cut(name, ".")
	segment := func(p, n string) bool {
		if head, tail, star := strings.Cut(p, "*"); star {
			return len(n) >= len(head)+len(tail) && strings.HasPrefix(n, head) && strings.HasSuffix(n, tail)
		}
		return p == n
	}
	switch {
	case ns == "?":
		return ps != "pg_catalog", false // the server's own schemas are not meant
	case nt == "*":
		return segment(ps, ns), segment(ps, ns) && pt == "*"
	}
	may = segment(ps, ns) && segment(pt, nt)
	return may, may
}

// holds joins keys by AND and the values of a key by OR. exception is the unless of a rule
// that restricts: what a name only may mean is not enough there.
func holds(keys map[string][]string, f *Facts, exception bool) bool {
	lists := map[string][]string{"query_types": f.QueryTypes, "tables_written": f.TablesWritten, "tables_read": f.TablesRead, "where": f.Where, "functions": f.Functions}
	for key, values := range keys {
		list, isList := lists[strings.TrimSuffix(key, "_only")]
		if !isList {
			if value := map[string]string{"class": f.Class, "app": f.App}[key]; !slices.Contains(values, value) {
				return false
			}
			continue
		}
		found := 0
		for _, name := range list {
			may, all := slices.Contains(values, name), slices.Contains(values, name)
			if strings.HasPrefix(key, "tables") {
				may, all = false, false
				for _, pattern := range values {
					m, a := fits(pattern, name)
					may, all = may || m, all || a
				}
			}
			if all || may && !exception && !strings.HasSuffix(key, "_only") {
				found++
			}
		}
		if only := strings.HasSuffix(key, "_only"); only && found < len(list) || !only && found == 0 {
			return false
		}
	}
	return true
}

func holdsWith(keys map[string][]string, anyOf []map[string][]string, f *Facts, exception bool) bool {
	return holds(keys, f, exception) && (anyOf == nil || slices.ContainsFunc(anyOf, func(g map[string][]string) bool { return holds(g, f, exception) }))
}

func (r *secondRule) matches(f *Facts) bool {
	return holdsWith(r.match, r.anyOf, f, false) && (r.unless == nil || !holdsWith(r.unless, r.butAny, f, r.decision != Allow))
}

func (r *secondRule) String() string {
	write := func(keys map[string][]string, anyOf []map[string][]string) string {
		var groups []string
		text := func(keys map[string][]string) string {
			var parts []string
			for key, values := range keys {
				parts = append(parts, fmt.Sprintf("%s: ['%s']", key, strings.Join(values, "', '")))
			}
			return strings.Join(parts, ", ")
		}
		for _, g := range anyOf {
			groups = append(groups, "{"+text(g)+"}")
		}
		all := text(keys)
		if anyOf != nil {
			all = strings.TrimPrefix(all+", any_of: ["+strings.Join(groups, ", ")+"]", ", ")
		}
		return "{" + all + "}"
	}
	text := fmt.Sprintf("id: %s, decision: %s, reason_code: a_rule, match: %s", r.id, r.decision, write(r.match, r.anyOf))
	if r.unless != nil {
		text += ", unless: " + write(r.unless, r.butAny)
	}
	return text
}

func TestASecondEvaluatorOfThePageAgrees(t *testing.T) {
	values := map[string][]string{
		"query_types": {"SELECT", "UPDATE", "DELETE", "TRUNCATE"}, "class": {"write", "ddl"}, "app": {"shop", "cms"}, "where": {"none", "present", "key_equality"}, "functions": {"now", "lower"},
		"tables_written": {"a.t", "a.u", "a.*", "a.t*", "b.t", "*.t", "*.*", "pg_catalog.*"}, "tables_read": {"a.t", "a.*", "*.*"},
	}
	plain := []string{"query_types", "class", "app", "where", "functions", "tables_written", "tables_read"}
	only := []string{"query_types", "where", "functions", "tables_written", "tables_read"}
	allowed, excepted := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		keys := func(label string, decision Decision, exception bool, least, most int) map[string][]string {
			m := map[string][]string{}
			for range rapid.IntRange(least, most).Draw(t, label) {
				key := rapid.SampledFrom(plain).Draw(t, "key")
				suffix := ""
				if lists := slices.Contains(only, key); lists && (decision == Allow && !exception || rapid.Bool().Draw(t, "only")) { // an ALLOW asks for all (PV222)
					suffix = "_only"
				}
				m[key+suffix] = rapid.SliceOfNDistinct(rapid.SampledFrom(values[key]), 1, 2, rapid.ID).Draw(t, "values")
			}
			return m
		}
		var rules []*secondRule
		var texts []string
		for i := range rapid.IntRange(1, 4).Draw(t, "rules") {
			r := &secondRule{id: fmt.Sprintf("r%d", i), decision: rapid.SampledFrom([]Decision{Allow, Block, RequireApproval}).Draw(t, "decision")}
			r.match = keys("match", r.decision, false, 0, 2)
			if rapid.Bool().Draw(t, "any") {
				r.anyOf = []map[string][]string{keys("one", r.decision, false, 1, 2), keys("other", r.decision, false, 1, 2)}
			}
			if rapid.Bool().Draw(t, "excepted") {
				r.unless = keys("unless", r.decision, true, 1, 2)
				if rapid.Bool().Draw(t, "but any") {
					r.butAny = []map[string][]string{keys("one", r.decision, true, 1, 1), keys("other", r.decision, true, 1, 1)}
				}
			}
			rules, texts = append(rules, r), append(texts, r.String())
		}
		p, report := Load([]byte(document(texts...)), Options{})
		require.NotNil(t, p, "%v\n%s", report.Err(), document(texts...))
		for range 20 {
			names := func(from ...string) []string {
				return rapid.SliceOfNDistinct(rapid.SampledFrom(from), 0, 3, rapid.ID).Draw(t, "names")
			}
			f := &Facts{
				Class: rapid.SampledFrom(values["class"]).Draw(t, "class"), App: rapid.SampledFrom(values["app"]).Draw(t, "app"), Mode: ModeEnforce, Env: "prod",
				QueryTypes: names(values["query_types"]...), Where: names(values["where"]...), Functions: names(values["functions"]...),
				TablesWritten: names("a.t", "a.u", "b.t", "b.tt", "a.*", "b.*", "?.*", "pg_catalog.pg_class"), TablesRead: names("a.t", "b.t", "a.*", "?.*"),
			}
			var want []string
			for _, r := range rules {
				if r.matches(f) {
					want = append(want, r.id)
					if r.decision == Allow {
						allowed++
					}
				} else if holdsWith(r.match, r.anyOf, f, false) {
					excepted++
				}
			}
			got := slices.Clone(p.Decide(f).Matched)
			slices.Sort(got)
			require.Equal(t, want, got, "%s\n%+v", document(texts...), f)
		}
	})
	require.Positive(t, allowed)
	require.Positive(t, excepted)
}
