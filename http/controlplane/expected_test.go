package controlplane

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What is expected of a statement counts where its text says less.
func TestWhatIsExpectedIsSaidWhereTheTextSaysLess(t *testing.T) {
	rows := int64(100)
	for _, c := range []struct {
		queryType, where string
		rows             int64
		want             string
	}{
		{"DELETE", "key_equality", 1, ""},
		{"DELETE", "key_equality", 90, "More than one row"},
		{"INSERT", "key_equality", 90, ""},
		{"UPDATE", "present", 99, ""},
		{"UPDATE", "present", 100, "Every row"},
		{"DELETE", "none", 100, ""}, // which its signal says
	} {
		a := approval{Classification: classification{QueryType: c.queryType, Class: "write", Where: []string{c.where}, TablesWritten: []string{"public.t"}},
			Impact: &plan{Node: "Delete", Rows: c.rows, Tables: []reached{{Table: "public.t", How: "named", Rows: &rows}}}}
		row := (&Server{now: time.Now}).rows([]approval{a})
		said := ""
		for _, m := range expected(&row[0]) {
			said += m.Name
		}
		require.Equal(t, c.want, said, c)
		require.True(t, said == "" || row[0].Risk == "high", c)
	}
	require.Equal(t, "about 100 rows", sizeOf(reached{Rows: &rows, Bytes: -8192}))
}
