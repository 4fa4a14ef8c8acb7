package controlplane

import (
	"fmt"
	"strings"
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
		{"UPDATE", "present", 90, ""},
		{"UPDATE", "present", 91, "Nearly every row"},
		{"UPDATE", "present", 100, "Every row"},
		{"DELETE", "none", 100, ""}, // which its signal says
	} {
		a := approval{Classification: classification{QueryType: c.queryType, QueryTypes: []string{c.queryType}, Class: "write", Where: []string{c.where}, TablesWritten: []string{"public.t"}},
			Impact: &plan{Node: "Delete", Rows: c.rows, Tables: []reached{{Table: "public.t", How: "named", Rows: &rows}}}}
		row := (&Server{now: time.Now}).rows([]approval{a})
		said := ""
		for _, m := range expected(&row[0]) {
			said += m.Name
		}
		require.Equal(t, c.want, said, c)
		require.True(t, said == "" || row[0].Risk == "high", c)
	}
	for _, c := range []struct {
		types []string
		read  []string
		rows  int64
		want  string
	}{
		{[]string{"INSERT", "UPDATE"}, nil, 100, "Perhaps every row: PostgreSQL expects 100 rows, as many as public.t has."},
		{[]string{"INSERT"}, nil, 100, ""},
		{[]string{"INSERT"}, []string{"public.u"}, 20_000, "Many rows: PostgreSQL expects " + thousands(20_000) + " rows."},
		{[]string{"UPDATE"}, []string{"public.u"}, 100, "More than one row: PostgreSQL expects 100 rows, as many as public.t has, counting what it is joined with, so that fewer may change, though the condition gives one value: the column is called like a key, and may be none."},
		{[]string{"MERGE", "DELETE"}, []string{"public.u"}, 60, ""},
	} {
		a := approval{Classification: classification{QueryType: c.types[0], QueryTypes: c.types, Class: "write", Where: []string{"key_equality"}, TablesWritten: []string{"public.t"}, TablesRead: append([]string{"public.t"}, c.read...)},
			Impact: &plan{Node: "Update", Rows: c.rows, Tables: []reached{{Table: "public.t", How: "named", Rows: &rows}}}}
		row := (&Server{now: time.Now}).rows([]approval{a})
		said := ""
		for _, m := range expected(&row[0]) {
			said += m.Name + ": " + m.Words
		}
		require.Equal(t, c.want, said, c)
		require.True(t, said == "" || row[0].Risk == "high", c)
	}
	require.Equal(t, "about 100 rows", sizeOf(reached{Rows: &rows, Bytes: -8192}))
}

// Averages count over all levels of foreign keys, and say nothing of rows that hang on
// others of their own table.
func TestRowsOfAllLevelsCount(t *testing.T) {
	n := func(n int64) *int64 { return &n }
	p := &plan{Node: "Delete", Rows: 2, Tables: []reached{{Table: "l1", How: "named", Rows: n(10)}, {Table: "l3", How: "cascade", From: "l2", Rows: n(2000)}, {Table: "l2", How: "cascade", From: "l1", Rows: n(10)},
		{Table: "l2", How: "cascade", From: "l2", Rows: n(10)}, {Table: "l1", How: "set_null", From: "l3", Rows: n(10)}}}
	require.Equal(t, 402.0, p.taken())
	require.Zero(t, p.each(p.Tables[3]))
	require.Equal(t, "l2", p.ofItself())
	most := int64(500)
	row := (&Server{now: time.Now}).rows([]approval{{Classification: classification{QueryType: "DELETE", QueryTypes: []string{"DELETE"}, Class: "write", Where: []string{"key_equality"}, TablesWritten: []string{"l1"}}, MaxRows: &most, Impact: p}})
	require.Contains(t, fmt.Sprint(dangers(&row[0], nil)), "how many go in all is not known")
}

func TestAPrecedentHasAsManyValues(t *testing.T) {
	c := classification{QueryType: "DELETE", QueryTypes: []string{"DELETE"}, Class: "write", TablesWritten: []string{"public.t"}}
	v := approvalView{approvalRow: approvalRow{approval: approval{Classification: c, SQL: "DELETE FROM t WHERE id IN (1, 2, 3)"}, Effect: effect(&c, "")}}
	require.True(t, v.like(&c, "DELETE FROM t WHERE id IN (4, 5, 'x')"))
	require.False(t, v.like(&c, "DELETE FROM t WHERE id = 4"))
}

// What names no table was looked at by nobody.
func TestAWriteOfTablesWithoutNamesWasNotLookedAt(t *testing.T) {
	for omitted, want := range map[string]string{"": "it names none of the tables that it writes", "the database did not say in time": "the database did not say in time"} {
		r := approvalRow{approval: approval{Classification: classification{Class: "write", TablesWritten: []string{"?.*"}}, Impact: &plan{Omitted: omitted}}}
		require.Equal(t, want, r.unlooked())
	}
}

// Of a change that reaches every row there is one number on its card, with one word.
func TestEveryRowHasOneNumber(t *testing.T) {
	counted, most := int64(200), int64(20)
	for where, want := range map[string]string{"none": "150", "tautology": "200"} {
		a := approval{Classification: classification{QueryType: "DELETE", QueryTypes: []string{"DELETE"}, Class: "write", Where: []string{where}, TablesWritten: []string{"public.t"}}, MaxRows: &most, OverLimit: true,
			Impact: &plan{Node: "Delete", Rows: 150, Tables: []reached{{Table: "public.t", How: "named", Rows: &counted}}}}
		row := (&Server{now: time.Now}).rows([]approval{a})[0]
		require.Contains(t, row.estimated(), "Every row, about "+want+" (Delete")
		require.Equal(t, "It changes every row of public.t, about "+want+", and over 20 nothing is changed.", expected(&row)[0].Words)
	}
}

// What statistics can't know is said to be a guess.
func TestWhatPostgreSQLOnlyGuessesIsSaid(t *testing.T) {
	for sql, guessed := range map[string]bool{
		"DELETE FROM t WHERE d->>'s' = 'open'": true, "DELETE FROM t WHERE lower(email) LIKE 'x%'": true, "DELETE FROM t WHERE a - b = 10": true, "DELETE FROM t WHERE CASE WHEN id = 5 THEN 1 ELSE 0 END = 0": true,
		"DELETE FROM t WHERE ctid = ANY (ARRAY(SELECT ctid FROM t))": true, "DELETE FROM t WHERE id IN (SELECT g FROM generate_series(1, 9) AS g)": true, "DELETE FROM t WHERE status = 'paid' AND n IN (1, 2, 3)": false,
		"DELETE FROM t WHERE at < now() AND n BETWEEN 1 AND 5 -- lower(x)": false, "UPDATE t SET n = n + 1 WHERE status = 'a-b'": false,
	} {
		r := approvalRow{approval: approval{SQL: sql, Classification: classification{QueryType: "DELETE", QueryTypes: []string{"DELETE"}, Class: "write", Where: []string{"present"}, TablesWritten: []string{"public.t"}},
			Impact: &plan{Node: "Delete", Rows: 5, Tables: []reached{{Table: "public.t", How: "named"}}}}}
		require.Equal(t, guessed, r.guess() != "", sql)
		require.Equal(t, guessed, strings.Contains(fmt.Sprint(expected(&r)), "only guesses"), sql)
	}
	for sql, guessed := range map[string]bool{
		"INSERT INTO t SELECT generate_series(1, 100)": true, "INSERT INTO t SELECT * FROM unnest(ARRAY[1])": true, "INSERT INTO t SELECT lower(a) FROM u WHERE b = 1": false,
		"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i FROM n) INSERT INTO t SELECT i FROM n": true,
	} {
		r := approvalRow{approval: approval{SQL: sql, Classification: classification{QueryType: "INSERT", QueryTypes: []string{"INSERT"}, Class: "write", TablesWritten: []string{"public.t"}}}}
		require.Equal(t, guessed, r.guess() != "", sql)
	}
}

// Rows that go with others may take rows of the first table along.
func TestACascadeThatComesBack(t *testing.T) {
	n := func(n int64) *int64 { return &n }
	p := &plan{Node: "Delete", Rows: 1, Tables: []reached{{Table: "a", How: "named", Rows: n(400)}, {Table: "b", How: "cascade", From: "a", Rows: n(400)}, {Table: "c", How: "cascade", From: "b", Rows: n(1)}, {Table: "a", How: "cascade", From: "c", Rows: n(400)}}}
	require.NotEmpty(t, p.ofItself())
	row := (&Server{now: time.Now}).rows([]approval{{Classification: classification{QueryType: "DELETE", QueryTypes: []string{"DELETE"}, Class: "write", Where: []string{"key_equality"}, TablesWritten: []string{"a"}}, Impact: p}})
	require.Contains(t, fmt.Sprint(expected(&row[0])), "how many go in all is not known")
	p.Tables = p.Tables[:3]
	require.Empty(t, p.ofItself())
}

// A row that is found by its key lies in one partition, of which PostgreSQL counts each.
func TestAKeyOfAPartitionedTableIsOneRow(t *testing.T) {
	for parts, many := range map[int64]bool{0: true, 12: false, 11: true} {
		r := approvalRow{approval: approval{Classification: classification{QueryType: "UPDATE", Where: []string{"key_equality"}}, Impact: &plan{Node: "Update", Rows: 12, Parts: parts}}}
		require.Equal(t, many, r.manyByKey(), parts)
	}
}
