package classify

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// maxTextCPU is goal Z2: what one text within the limits may cost.
const maxTextCPU = 500 * time.Millisecond

// A shape makes texts that are hard on a lexer, a parser or a walk: before,
// then unit again and again up to a size, then after.
type shape struct{ before, unit, after string }

var hostileShapes = map[string]shape{
	"plus chain":              {"SELECT 1", "+1", ""},
	"concatenation chain":     {"SELECT a", "||a", ""},
	"cast chain":              {"SELECT 1", "::int", ""},
	"is null chain":           {"SELECT 1", " IS NULL", ""},
	"isnull chain":            {"SELECT 1", " ISNULL", ""},
	"collate chain":           {"SELECT a", ` COLLATE "C"`, ""},
	"at time zone chain":      {"SELECT a", " AT TIME ZONE b", ""},
	"like chain":              {"SELECT a", " LIKE b ESCAPE c", ""},
	"between chain":           {"SELECT a", " BETWEEN 1 AND 2 IS NULL", ""},
	"in chain":                {"SELECT a", " IN (1) IS NULL", ""},
	"not chain":               {"SELECT ", "NOT ", "a"},
	"minus chain":             {"SELECT ", "- ", "a"},
	"subscript chain":         {"SELECT a", "[1]", ""},
	"field chain":             {"SELECT a", ".b", ""},
	"composite field chain":   {"SELECT (a)", ".b", ""},
	"operator() chain":        {"SELECT a", " OPERATOR(pg_catalog.+) a", ""},
	"any chain":               {"SELECT a", " = ANY(b) IS TRUE", ""},
	"case chain":              {"SELECT ", "CASE WHEN a THEN b ELSE ", "c"},
	"open case":               {"SELECT ", "CASE ", ""},
	"union chain":             {"SELECT 1", " UNION SELECT 1", ""},
	"except chain":            {"SELECT 1", " EXCEPT ALL SELECT 1", ""},
	"union of lists":          {"SELECT 1,2", " UNION SELECT 1,2", ""},
	"join chain":              {"SELECT * FROM a", " JOIN a ON b", ""},
	"natural join chain":      {"SELECT * FROM a", " NATURAL JOIN a", ""},
	"open joins":              {"SELECT * FROM a", " JOIN b", ""},
	"routine in routine":      {"", "CREATE FUNCTION f() RETURNS int BEGIN ATOMIC ", "SELECT 1"},
	"brackets":                {"SELECT ", "(", "1"},
	"balanced brackets":       {"SELECT 1", " + (1)", ""},
	"calls":                   {"SELECT ", "f(", "1"},
	"arrays":                  {"SELECT ", "ARRAY[", "1"},
	"subselects":              {"", "SELECT (", ""},
	"from subselects":         {"", "SELECT * FROM (", ""},
	"with in with":            {"", "WITH a AS (", ""},
	"with list":               {"WITH a AS (SELECT 1)", ", a AS (SELECT 1)", " SELECT 1"},
	"and list":                {"SELECT 1 WHERE a = 1", " AND a = 1", ""},
	"or list":                 {"SELECT 1 WHERE a = 1", " OR a <> 1", ""},
	"and or list":             {"SELECT 1 WHERE a", " AND b OR c", ""},
	"in list":                 {"SELECT 1 WHERE a IN (1", ",1", ")"},
	"target list":             {"SELECT a", ",a", ""},
	"duplicate calls":         {"SELECT f(a)", ",f(a)", ""},
	"distinct calls":          {"SELECT now()", ",lower(a,b)", " FROM a"},
	"values":                  {"VALUES (1)", ",(1)", ""},
	"from list":               {"SELECT * FROM a", ",b", ""},
	"case whens":              {"SELECT CASE", " WHEN 1 THEN 2", " END"},
	"rows from":               {"SELECT * FROM ROWS FROM (f()", ",f()", ") x"},
	"order by":                {"SELECT 1 ORDER BY 1", ",1 DESC", ""},
	"set list":                {"UPDATE t SET a=1", ",a=1", " WHERE id = 1"},
	"columns":                 {"CREATE TABLE t (a int", ",a int", ")"},
	"where of writes":         {"UPDATE t SET a=1 WHERE 1=1", " AND 1=1", ""},
	"nested comments":         {"", "/*", ""},
	"closed nested comments":  {"SELECT 1 /*/*/*", "*/ /*", ""},
	"joined comments":         {"SELECT 1", "/**/", ""},
	"separate comments":       {"SELECT 1", "/**/ ", ""},
	"line comments":           {"SELECT 1", "--\n", ""},
	"line comment of dashes":  {"SELECT 1 ", "--", ""},
	"plus run":                {"SELECT ", "+", "1"},
	"at run":                  {"SELECT ", "@", "1"},
	"minus run":               {"SELECT 1 ", "-", "\n"},
	"operator runs":           {"SELECT 1", " +++++++++++++++++++++++++++++++++++++++++++++++++++++++++++++++ 1", ""},
	"times comment run":       {"SELECT 1", "*/", ""},
	"slash run":               {"SELECT 1", "/", "1"},
	"stars in a comment":      {"SELECT 1 /", "*", "/"},
	"half comments":           {"SELECT 1 /*", "/*/", ""},
	"quotes":                  {"SELECT '", "''", "'"},
	"open quotes":             {"SELECT ", "'", ""},
	"joined literals":         {"SELECT 'a'", "\n'a'", ""},
	"literals and blanks":     {"SELECT 'a'", ", 'a'\n\n\n\n\n", ""},
	"escapes":                 {"SELECT E'", `\x41`, "'"},
	"unicode escapes":         {"SELECT U&'", `\0041`, "'"},
	"uescape":                 {"SELECT U&'a'", ", U&'a' UESCAPE '!'", ""},
	"dollars":                 {"SELECT ", "$", ""},
	"dollar tags":             {"SELECT ", "$a", ""},
	"open dollar quotes":      {"SELECT $x$", "$x", ""},
	"dollar quotes":           {"SELECT $$$$", ",$$$$", ""},
	"double quotes":           {`SELECT "a`, `""`, `"`},
	"digits":                  {"SELECT 1", "1", ""},
	"underscored digits":      {"SELECT 1", "_1", ""},
	"dots":                    {"SELECT ", ".", ""},
	"exponents":               {"SELECT 1", "e", ""},
	"parameters":              {"SELECT $1", "+$1", ""},
	"long name":               {"SELECT ", "a", ""},
	"long name above ascii":   {"SELECT ", "ä", ""},
	"mixed alphabets":         {"SELECT a", ",aи", ""},
	"bidirectional controls":  {"SELECT '", "\u202e", "'"},
	"invisible characters":    {"SELECT a", "\u200b", ""},
	"blanks":                  {"SELECT", " ", "1"},
	"semicolons":              {"SELECT 1", ";", ""},
	"statements":              {"SELECT 1", ";SELECT 1", ""},
	"open brackets of an if":  {"SELECT f(", "a,(", ""},
	"grouping sets":           {"SELECT 1 GROUP BY ", "CUBE(", "a"},
	"window":                  {"SELECT ", "sum(", "1) OVER ("},
	"lateral":                 {"SELECT * FROM a", ", LATERAL f(a) x", ""},
	"row comparison":          {"SELECT ", "ROW(", "1"},
	"alter table":             {"ALTER TABLE t DROP a", ", DROP a", ""},
	"grants":                  {"GRANT SELECT ON t TO a", ", a", ""},
	"explain":                 {"EXPLAIN (a", ", b", ") SELECT 1"},
	"do items":                {"DO 'a'", " 'a'", ""},
	"type modifiers":          {"SELECT a::numeric(1", ",1", ")"},
	"array bounds":            {"SELECT a::int", "[]", ""},
	"interval typed literals": {"SELECT interval '1'", ", interval '1' day", ""},
}

func (s shape) text(size int) string {
	n := (size - len(s.before) - len(s.after)) / len(s.unit)
	return s.before + strings.Repeat(s.unit, n) + s.after
}

// cpuOf measures the CPU time that a function takes of this process.
func cpuOf(f func()) time.Duration {
	before := selfCPU()
	f()
	return selfCPU() - before
}

func selfCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// childCPU reads the clock of the only child, which is idle.
func childCPU(t testing.TB, c *Classifier) time.Duration {
	place := <-c.children.free
	defer func() { c.children.free <- place }()
	require.NotNil(t, place.child, "no child could be started")
	used, err := place.child.cpu()
	require.NoError(t, err)
	return used
}

// Goal Z2: an answer or a refusal, no process of ours dies and none is at work
// for half a second, in both lanes and at every size.
func TestNoTextStallsOrKillsAProcess(t *testing.T) {
	for mode, sizes := range map[string][]int{"auto": {1 << 10, 16 << 10, 256 << 10}, "child": {1 << 10, 16 << 10}} {
		c := byCPUAlone(newClassifier(t, Config{ParserMode: mode}))
		for name, s := range hostileShapes {
			for _, size := range sizes {
				if raceDetector && size > 1<<10 {
					continue // its bookkeeping takes more CPU time than a text may
				}
				t.Run(fmt.Sprintf("%s/%s/%d", mode, name, size), func(t *testing.T) {
					requireBearable(t, c, s.text(size))
				})
			}
		}
		require.Zero(t, c.Stats().Killed)
		require.Zero(t, c.Stats().Restarts)
	}
}

func requireBearable(t *testing.T, c *Classifier, sql string) {
	before := childCPU(t, c)
	self := cpuOf(func() {
		if got, err := c.Classify(t.Context(), sql); err == nil {
			require.NotEmpty(t, got.QueryType)
		}
	})
	used := childCPU(t, c) - before
	t.Logf("self %v child %v", self, used)
	require.LessOrEqual(t, used, maxTextCPU)
	require.LessOrEqual(t, self, maxTextCPU)
}
