package controlplane

import (
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/sqlgate/policy"
)

// What a card fills in is taken by the gate, and covers what did the same with other values:
// neither more rows, columns or tables, nor what calls something.
func TestAConditionIsFilledInFromWhatAStatementDoes(t *testing.T) {
	t.Parallel()
	shown := classification{Class: "write", QueryType: "UPDATE", QueryTypes: []string{"UPDATE"}, TablesWritten: []string{"public.orders"},
		ColumnsWritten: []string{"public.orders.status", "public.orders.note"}, TablesRead: []string{"public.orders"}, Functions: []string{"now"}, Where: []string{"key_equality"}}
	text := grantCondition(&shown)
	condition, faults := policy.CompileGrant(text)
	require.Empty(t, faults, text)
	facts := func(change func(*policy.Facts)) *policy.Facts {
		f := policy.Facts{QueryType: "UPDATE", QueryTypes: []string{"UPDATE"}, Class: "write", TablesWritten: []string{"public.orders"}, ColumnsWritten: []string{"public.orders.status", "public.orders.note"},
			TablesRead: []string{"public.orders"}, Functions: []string{"now"}, Where: []string{"key_equality"}}
		change(&f)
		return &f
	}
	require.True(t, condition.Covers(facts(func(*policy.Facts) {})))
	for name, change := range map[string]func(*policy.Facts){
		"every row":         func(f *policy.Facts) { f.Where = []string{"none"} },
		"another table":     func(f *policy.Facts) { f.TablesWritten = append(f.TablesWritten, "public.customers") },
		"a nameless table":  func(f *policy.Facts) { f.TablesWritten = []string{"?.*"} },
		"no table":          func(f *policy.Facts) { f.TablesWritten = nil },
		"another column":    func(f *policy.Facts) { f.ColumnsWritten = []string{"public.orders.total"} },
		"all columns":       func(f *policy.Facts) { f.ColumnsWritten = []string{"public.orders.*"} },
		"what else it read": func(f *policy.Facts) { f.TablesRead = []string{"public.secrets"} },
		"another call":      func(f *policy.Facts) { f.Functions = []string{"now", "public.fire"} },
		"another verb":      func(f *policy.Facts) { f.QueryTypes = []string{"UPDATE", "DELETE"} },
		"another class":     func(f *policy.Facts) { f.Class = "ddl" },
		"a risk":            func(f *policy.Facts) { f.RiskSignals = []string{"unknown_function"} },
	} {
		require.False(t, condition.Covers(facts(change)), name)
	}
	for name, change := range map[string]func(*classification){
		"a risk":             func(c *classification) { c.RiskSignals = []string{"data_modifying_cte"} },
		"a definition":       func(c *classification) { c.Class = "ddl" },
		"no table":           func(c *classification) { c.TablesWritten = nil },
		"a nameless table":   func(c *classification) { c.TablesWritten = []string{"?.*"} },
		"a name with quotes": func(c *classification) { c.TablesWritten = []string{`public."] || true || x in ["`} },
		"too many":           func(c *classification) { c.ColumnsWritten = make([]string, mostOffered+1) },
	} {
		one := shown
		change(&one)
		require.Empty(t, grantCondition(&one), name)
	}
}
