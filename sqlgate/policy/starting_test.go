package policy

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAFirstPolicyNamesWhatIsThereAndNothingElse(t *testing.T) {
	writes := func(table string) Facts {
		return Facts{QueryType: "DELETE", QueryTypes: []string{"DELETE"}, Class: "write", TablesWritten: []string{table}, Where: []string{"present"}}
	}
	hostile := []string{"x\n  - id: all", "x\", \"*.*", "*", "a.b", "x # y", "", "$tables", "x\u202e", "'; DROP", strings.Repeat("x", 64), "{{ .Name }}"}
	tables := []StartingTable{{Schema: "billing", Name: "fines", Key: []string{"fine_id"}}, {Schema: "public", Name: "Bücher", Key: []string{"a\nrules: []", "b"}, Column: "x\ny"}}
	for _, name := range hostile {
		tables = append(tables, StartingTable{Schema: "public", Name: name}, StartingTable{Schema: name, Name: "t"})
	}
	document, named, err := StartingFor("Shop 7\nname: x", tables)
	require.NoError(t, err)
	require.Equal(t, 2, named)
	p, report := Load(document, Options{})
	require.NotNil(t, p, "%+v", report.Findings)
	require.Empty(t, report.Findings)
	require.Equal(t, "shop-7-name-x-gate@1.0.0", p.Version())
	require.Len(t, p.rules, 3)
	for table, want := range map[string]Decision{"public.Bücher": RequireApproval, "billing.fines": RequireApproval, "public.fines": Block, "billing.Bücher": Block, "public.*": Block, "?.*": Block, "public.x": Block, "a.b": Block, "*.t": Block} {
		f := writes(table)
		require.Equal(t, want, p.Decide(&f).Decision, table)
	}
	all := writes("public.Bücher")
	all.Where = []string{"none"}
	require.Equal(t, Block, p.Decide(&all).Decision)

	many := make([]StartingTable, mostStartingTables+1)
	for i := range many {
		many[i] = StartingTable{Schema: "public", Name: fmt.Sprintf("t%d", i)}
	}
	document, _, err = StartingFor("9", many)
	require.NoError(t, err)
	p, report = Load(document, Options{})
	require.NotNil(t, p, "%+v", report.Findings)
	require.Equal(t, "first-gate@1.0.0", p.Version())
	f := writes("public.t3")
	require.Equal(t, RequireApproval, p.Decide(&f).Decision)
	f = writes("audit.t3")
	require.Equal(t, Block, p.Decide(&f).Decision)

	_, _, err = StartingFor("shop", []StartingTable{{Schema: "public", Name: "*"}})
	require.ErrorContains(t, err, "no table")
}
