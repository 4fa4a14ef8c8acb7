package classify

import "testing"

// benchStatements are the statements of the corpus that parse as one.
func benchStatements(b testing.TB) []string {
	tb := newTestTables(b, Config{})
	var all []string
	for _, a := range attacks(b) {
		if _, f := classifyText(tb, a.SQL); f == nil {
			all = append(all, a.SQL)
		}
	}
	return append(all, ordinaryReads...)
}

// BenchmarkWalk is the walk alone, over the trees of the same statements.
func BenchmarkWalk(b *testing.B) {
	tb := newTestTables(b, Config{})
	all := benchStatements(b)
	trees, scans := make([]parsed, len(all)), make([]scan, len(all))
	for i, sql := range all {
		scans[i], _ = guard(sql, 1<<18)
		trees[i], _ = parseTree(sql)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		k := i % len(all)
		if _, f := tb.facts(trees[k], all[k], &scans[k]); f != nil {
			b.Fatal(f)
		}
	}
}
