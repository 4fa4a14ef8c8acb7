package catalog_test

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/sqlgate/catalog"
	"writegate/sqlgate/classify"
)

// What the look-ups of one statement cost, beside its classification.
func BenchmarkResolve(b *testing.B) {
	s := newServer(b, shop)
	s.run("DROP OPERATOR <> (int, text); DROP FUNCTION upper(int)")
	snapshot := s.snapshot()
	for name, sql := range map[string]string{
		"plain-read":  "SELECT id, note FROM plain WHERE id = 1",
		"plain-write": "UPDATE plain SET note = 'x' WHERE id = 1",
		"view":        "SELECT * FROM behind",
		"cascade":     "DELETE FROM customers WHERE id = 1",
	} {
		c, err := s.classifier.Classify(b.Context(), sql)
		require.NoError(b, err)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				snapshot.Resolve(&c, nil, false, []string{"id"}, nil)
			}
		})
		b.Run(name+"/classify", func(b *testing.B) {
			for b.Loop() {
				_, _ = s.classifier.Classify(b.Context(), sql)
			}
		})
	}
}

// How long a large schema takes, and what is kept of it: 20,000 relations, of which a quarter
// are views, and 50,000 functions.
func BenchmarkSnapshotOfALargeSchema(b *testing.B) {
	s := newServer(b, "")
	for part := range 50 {
		s.run(fmt.Sprintf(`DO $$ BEGIN FOR i IN %d..%d LOOP
			EXECUTE format('CREATE TABLE t%%s (id int PRIMARY KEY, parent int, a text, b numeric DEFAULT 1, c timestamptz DEFAULT now(), CHECK (id > 0))', i);
			IF i %% 3 = 0 THEN EXECUTE format('CREATE VIEW v%%s AS SELECT x.id, x.a, y.b FROM t%%s AS x JOIN t%%s AS y ON y.id = x.parent WHERE x.c < now()', i, i, i - 1); END IF;
		END LOOP; END $$`, part*300+1, part*300+300))
		s.run(fmt.Sprintf(`DO $$ BEGIN FOR i IN %d..%d LOOP EXECUTE format('CREATE FUNCTION f%%s(int, text) RETURNS int LANGUAGE sql AS ''SELECT $1''', i); END LOOP; END $$`, part*1000, part*1000+999))
	}
	s.run("ANALYZE")
	var snapshot *catalog.Snapshot
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for b.Loop() {
		snapshot = s.snapshot()
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/1e6, "MB-kept")
	b.ReportMetric(float64(snapshot.Relations()), "relations")
	b.ReportMetric(float64(len(snapshot.Packed()))/1e6, "MB-packed")
	found, _ := snapshot.Resolve(&classify.Classification{TablesRead: []string{"public.v3"}}, nil, false, nil, nil)
	require.NotNil(b, found)
}
