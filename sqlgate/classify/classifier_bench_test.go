package classify

import (
	"testing"
	"time"

	pg_query "github.com/pganalyze/pg_query_go/v5"
)

// corpusStatements are those of the corpus that are classified in process.
func corpusStatements(b *testing.B, c *Classifier) (list []string) {
	for _, sql := range benchStatements(b) {
		before := c.Stats().InProcess
		if _, err := c.Classify(b.Context(), sql); err == nil && c.Stats().InProcess > before {
			list = append(list, sql)
		}
	}
	return list
}

// perStatement turns the time of an operation over n statements into one's.
func perStatement(b *testing.B, n int) {
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/statement")
}

// BenchmarkClassify is the whole way of a statement in process, without a
// cache: guard, parse, fingerprint, walk, normalised text. One operation is the
// corpus once.
func BenchmarkClassify(b *testing.B) {
	c := newClassifier(b, Config{})
	list := corpusStatements(b, c)
	b.ReportAllocs()
	for b.Loop() {
		classifyAll(b, c, list)
	}
	perStatement(b, len(list))
}

func classifyAll(b *testing.B, c *Classifier, list []string) {
	for _, sql := range list {
		if _, err := c.Classify(b.Context(), sql); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkPgQueryParseAndFingerprint is what goal P6 divides by, over the same
// statements.
func BenchmarkPgQueryParseAndFingerprint(b *testing.B) {
	list := corpusStatements(b, newClassifier(b, Config{}))
	b.ReportAllocs()
	for b.Loop() {
		parseAll(b, list)
	}
	perStatement(b, len(list))
}

func parseAll(b *testing.B, list []string) {
	for _, sql := range list {
		_, err := pg_query.Parse(sql)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := pg_query.Fingerprint(sql); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkP6 measures the CPU time of both in turn, so that a busy machine
// does both the same harm, and reports goal P6 as ratio (at most 0.45).
func BenchmarkP6(b *testing.B) {
	c := newClassifier(b, Config{})
	list := corpusStatements(b, c)
	var ours, theirs time.Duration
	for b.Loop() {
		ours += cpuOf(func() { classifyAll(b, c, list) })
		theirs += cpuOf(func() { parseAll(b, list) })
	}
	b.ReportMetric(float64(ours)/float64(theirs), "ratio")
}

// BenchmarkChild is the way through the parser child.
func BenchmarkChild(b *testing.B) {
	c := newClassifier(b, Config{ParserMode: "child"})
	for name, sql := range map[string]string{"short": "SELECT 1", "IN list of 100,000": longText(100_000)} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := c.Classify(b.Context(), sql); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkHostileTexts is what the dearest texts of 256 KiB cost the parser child: goal Z2 is half a second.
func BenchmarkHostileTexts(b *testing.B) {
	c := byCPUAlone(newClassifier(b, Config{}))
	c.children.cpu = time.Minute
	for _, name := range []string{"values", "target list", "duplicate calls", "plus chain", "concatenation chain", "rows from", "judged again", "compared truths"} {
		b.Run(name, func(b *testing.B) {
			sql := hostileShapes[name].text(256 << 10)
			before := childCPU(b, c)
			for b.Loop() {
				_, _ = c.Classify(b.Context(), sql) // some are refused
			}
			b.ReportMetric(float64(childCPU(b, c)-before)/float64(b.N)/1e6, "ms-of-child/op")
		})
	}
}
