package classify

import (
	"fmt"
	"math"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
	"writegate/fixtures/hostile"
)

// bearable is how often a hostile text may cost what an ordinary one of the largest size
// costs on the same machine at the same time: the dearest shape costs 4 times as much where
// memory is slow to come by. A cost that grows with the square of the text is a hundred times that.
// What it is in milliseconds (goal Z2) BenchmarkHostileTexts tells.
const bearable = 10

// A shape makes hostile texts.
type shape struct{ hostile.Shape }

func (s shape) text(size int) string { return s.Text(size) }

// hostileShapes are all of them, by name.
var hostileShapes = func() map[string]shape {
	all := make(map[string]shape, len(hostile.Shapes))
	for name, s := range hostile.Shapes {
		all[name] = shape{s}
	}
	return all
}()

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
	one, giveBack := takeChild(t, c)
	defer giveBack()
	used, err := one.cpu()
	require.NoError(t, err)
	return used
}

// Goal Z2: an answer or a refusal, no process of ours dies and none is at work
// for half a second, in both lanes and at every size.
func TestNoTextStallsOrKillsAProcess(t *testing.T) {
	for mode, sizes := range map[string][]int{"auto": {1 << 10, 16 << 10, 256 << 10}, "child": {1 << 10, 16 << 10}} {
		c := byCPUAlone(newClassifier(t, Config{ParserMode: mode}))
		most := bearableCPU(t, c)
		for name, s := range hostileShapes {
			for _, size := range sizes {
				if raceDetector && size > 1<<10 {
					continue // its bookkeeping takes more CPU time than a text may
				}
				t.Run(fmt.Sprintf("%s/%s/%d", mode, name, size), func(t *testing.T) {
					requireBearable(t, c, most, s.text(size))
				})
			}
		}
	}
}

// Lists that are held against each other, name by name, must not cost their product.
// Each column meets two of the lists of FROM, and with CLASSIFY_WATCH_ROUNDS all.
func TestNoProductOfListsStallsAProcess(t *testing.T) {
	c := byCPUAlone(newClassifier(t, Config{}))
	most := bearableCPU(t, c)
	half := func(unit string) string { return strings.Repeat(unit, 7700/len(unit)) }
	meet := func(column, from int) bool { return (column+from)%3 == 0 || os.Getenv(watchRounds) != "" }
	for i, column := range []string{"x.a,", "a,", "*,", "x.*,", "pg_user.oid,", "passwd,", "(x).a,", "lower(a),", "x.oid = ANY(y.a),"} {
		for j, from := range []string{"pg_user x,", "pg_user,", "b,", "pg_user NATURAL JOIN pg_user,", "(SELECT 1) x,", "lower(1) x,"} {
			if !meet(i, j) {
				continue
			}
			requireBearable(t, c, most, "SELECT "+half(column)+"1 FROM "+half(from)+"pg_user x")
			requireBearable(t, c, most, "SELECT (SELECT "+half(column)+"1 FROM "+half(from)+"b) FROM "+strings.Repeat("pg_user x,", 70)+"pg_user x")
			third := half(column)[:len(half(column))/2/len(column)*len(column)]
			requireBearable(t, c, most, "SELECT "+strings.Repeat("(SELECT ", 100)+third+"1"+strings.Repeat(" FROM a,b,c)", 100)+" FROM "+strings.Repeat(from, 5000/len(from))+"pg_user")
		}
		requireBearable(t, c, most, "WITH "+half("w AS (SELECT 1),")+"v AS (SELECT 1) SELECT "+half(column)+"1 FROM w, pg_user x")
		requireBearable(t, c, most, "INSERT INTO t SELECT "+half(column)+"1 FROM pg_user x ON CONFLICT (id) DO UPDATE SET "+strings.TrimSuffix(half("a = x.a,"), ","))
		requireBearable(t, c, most, "SELECT a FROM pg_user x JOIN pg_user y USING ("+strings.TrimSuffix(half("a,"), ",")+") WHERE "+strings.Repeat("x.a = y.a AND ", 500)+"true")
	}
	for _, shape := range []struct{ open, inner, end string }{
		{"SELECT x.*, x.* FROM (", "SELECT 1 AS a", ") x"}, {"SELECT * FROM (", "SELECT 1 AS a", ") x, b"}, {"SELECT x.b FROM (SELECT y.a FROM (", "SELECT 1 AS a", ") y) x"},
		{"SELECT x.evil, (x).evil FROM (", "SELECT 1 AS a", ") x"}, {"WITH x AS (", "SELECT 1 AS a", ") SELECT x.evil, x.* FROM x"}, {"SELECT (x.a).evil FROM (SELECT x.a FROM (", "SELECT 1 AS a", ") x) x"},
		{"SELECT x.select FROM (SELECT (", "SELECT 1", ")) x"}, {"SELECT x.evil FROM (SELECT 1 AS a, ", "1", ") x JOIN LATERAL (SELECT x.a) y ON x.evil"},
	} {
		for _, n := range []int{20, 60, 200} {
			requireBearable(t, c, most, strings.Repeat(shape.open, n)+shape.inner+strings.Repeat(shape.end, n))
		}
	}
	for i, column := range []string{"x.evil,", "y.a,", "(x.a).b,", "(a).b,", "a.x.b,"} {
		for j, from := range []string{"(SELECT 1 AS a) x,", "(VALUES (1)) y,", "lower(1) y,", "LATERAL (SELECT x.evil) y,", "a JOIN b USING (c) AS y,"} {
			if meet(i, j) {
				requireBearable(t, c, most, "SELECT "+half(column)+"1 FROM "+half(from)+"pg_am x")
			}
		}
	}
	requireBearable(t, c, most, "UPDATE t SET a = 1 FROM "+half("(SELECT 1) y,")+"u WHERE "+half("u.a = 1 AND ")+"true")
	for _, n := range []int{20, 140} { // one name that many share, where the text is judged more than once
		from := "1 FROM orders o" + strings.Repeat(", f(1) x(b)", n)
		requireBearable(t, c, most, "SELECT (o.p).q, "+strings.Repeat("x.a,", 60_000)+from)
		requireBearable(t, c, most, "INSERT INTO t SELECT (o.p).q, "+strings.Repeat("x.a,", 60_000)+from+" ON CONFLICT (id) DO UPDATE SET a = 1")
	}
	_, err := c.Classify(t.Context(), "SELECT "+strings.Repeat("(SELECT ", 2)+half("x.a,")+"1"+strings.Repeat(" FROM "+strings.Repeat("b,", 70)+"b)", 2)+" FROM pg_user x")
	require.Equal(t, fault.ParserUnsupportedSyntax, fault.CodeOf(err))
	require.Equal(t, "walk_steps", fault.Of(err).Details["limit"])
}

// bearableCPU is what any text may cost, of this process or of its child.
func bearableCPU(t *testing.T, c *Classifier) time.Duration {
	t.Helper()
	c.children.cpu = time.Minute // a child that is ended for its time shows no cost
	ordinary := hostileShapes["values"].text(256 << 10)
	least := time.Duration(math.MaxInt64)
	for range 3 {
		before := childCPU(t, c)
		self := cpuOf(func() {
			_, err := c.Classify(t.Context(), ordinary)
			require.NoError(t, err)
		})
		least = min(least, self+childCPU(t, c)-before)
	}
	return bearable * least
}

// requireBearable classifies a text, three times at most: a neighbour on the
// machine adds to the CPU time that a text takes and never takes of it, so the
// least is what the text costs. No child dies of it.
func requireBearable(t *testing.T, c *Classifier, most time.Duration, sql string) {
	t.Helper()
	var self, used time.Duration
	for range 3 {
		stats := c.Stats()
		before := childCPU(t, c)
		self = cpuOf(func() {
			if got, err := c.Classify(t.Context(), sql); err == nil {
				require.NotEmpty(t, got.QueryType)
			}
		})
		used = childCPU(t, c) - before
		now := c.Stats()
		require.Equal(t, stats.Killed, now.Killed)
		require.Equal(t, stats.Restarts, now.Restarts)
		t.Logf("self %v child %v of %v", self, used, most)
		if used <= most && self <= most {
			return
		}
	}
	require.LessOrEqual(t, used, most)
	require.LessOrEqual(t, self, most)
}
