package classify

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
)

// newClassifier makes a classifier that ends with the test.
func newClassifier(t testing.TB, cfg Config) *Classifier {
	t.Helper()
	if cfg.ServerMajor == 0 {
		cfg.ServerMajor = 16
	}
	c, err := New(cfg)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

// byCPUAlone lets requests take their time on a machine that is busy with
// other work: only CPU time ends them.
func byCPUAlone(c *Classifier) *Classifier {
	c.children.wall = time.Minute
	return c
}

// requireFault asks for a refusal with a code and a limit ("" = none).
func requireFault(t *testing.T, err error, code fault.Code, limit string) {
	t.Helper()
	f, ok := fault.As(err)
	require.True(t, ok, "%v", err)
	require.Equal(t, code, f.Code, f.Error())
	if limit != "" {
		require.Equal(t, limit, f.Details["limit"], f.Error())
	}
}

func TestConfigIsChecked(t *testing.T) {
	for name, cfg := range map[string]Config{
		"size":     {MaxSQLBytes: 512<<10 + 1},
		"mode":     {ParserMode: "thread"},
		"children": {Children: 9},
		"cache":    {CacheEntries: 4097},
		"major":    {ServerMajor: 14},
	} {
		_, err := New(cfg)
		require.Error(t, err, name)
	}
}

func TestShortTextsStayInTheProcessAndOthersGoToTheChild(t *testing.T) {
	c := byCPUAlone(newClassifier(t, Config{}))
	for _, s := range []struct {
		name, sql string
		child     bool
	}{
		{"short", "SELECT 1", false},
		{"16 KiB", "SELECT '" + strings.Repeat("x", 16<<10-9) + "'", false},
		{"a byte more", "SELECT '" + strings.Repeat("x", 16<<10-8) + "'", true},
		{"bound of 1000", "SELECT 1" + strings.Repeat("+1", 1000), false},
		{"bound of 1001", "SELECT 1" + strings.Repeat("+1", 1001), true},
	} {
		before := c.Stats()
		got, err := c.Classify(t.Context(), s.sql)
		require.NoError(t, err, s.name)
		require.True(t, got.SafeRead, s.name)
		after := c.Stats()
		require.Equal(t, s.child, after.Child == before.Child+1, s.name)
		require.Equal(t, s.child, after.InProcess == before.InProcess, s.name)
	}
}

func TestBothLanesAnswerTheSame(t *testing.T) {
	here := byCPUAlone(newClassifier(t, Config{KeyColumns: []string{"key"}}))
	there := byCPUAlone(newClassifier(t, Config{KeyColumns: []string{"key"}, ParserMode: "child"}))
	texts := append([]string{"DELETE FROM t WHERE key = 1", "SELECT 1; SELECT 2", "SELEC", "", "SELECT 'a", "SELECT ((1)", "SELECT a\u202eb", "SELECT 1 IS" + strings.Repeat("/*", 40)}, ordinary...)
	for _, a := range attacks(t) {
		texts = append(texts, a.SQL)
	}
	for _, sql := range texts {
		requireSameAnswer(t, here, there, sql)
	}
	require.Zero(t, there.Stats().InProcess)
	require.Zero(t, there.Stats().Restarts)
}

// requireSameAnswer asks two classifiers for the same bytes.
func requireSameAnswer(t *testing.T, one, other *Classifier, sql string) {
	t.Helper()
	a, errA := one.Classify(t.Context(), sql)
	b, errB := other.Classify(t.Context(), sql)
	if errA != nil {
		fa, fb := fault.Of(errA), fault.Of(errB)
		require.Equal(t, fa.Code, fb.Code, sql)
		require.Equal(t, fa.Message, fb.Message, sql)
		require.Equal(t, fa.Details, fb.Details, sql)
		return
	}
	require.NoError(t, errB, sql)
	require.Equal(t, a, b, sql)
	require.NotEmpty(t, a.NormalizedSQL)
	ja, err := json.Marshal(a)
	require.NoError(t, err)
	jb, err := json.Marshal(b)
	require.NoError(t, err)
	require.Equal(t, string(ja), string(jb), sql)
}

func FuzzBothLanesAnswerTheSame(f *testing.F) {
	for _, sql := range ordinary {
		f.Add(sql)
	}
	here, there := newClassifier(f, Config{}), newClassifier(f, Config{ParserMode: "child"})
	f.Fuzz(func(t *testing.T, sql string) { requireSameAnswer(t, here, there, sql) })
}

func TestManyGoroutinesAndTwoChildren(t *testing.T) {
	c := byCPUAlone(newClassifier(t, Config{Children: 2, CacheEntries: 8}))
	long := "SELECT 1 WHERE 1 IN (" + strings.Repeat("1,", 9000) + "1)"
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			for j := range 10 {
				sql := ordinary[(i+j)%len(ordinary)]
				if j == i {
					sql = long
				}
				if _, err := c.Classify(context.Background(), sql); err != nil {
					t.Errorf("%.40s: %v", sql, err)
				}
				if j == 5 {
					_ = c.SetServerMajor(15 + i%4)
				}
			}
		})
	}
	group.Wait()
	require.EqualValues(t, 8, c.Stats().Child)
	require.Zero(t, c.Stats().Restarts)
}

func TestTheServerVersionCountsFromWhenItIsKnown(t *testing.T) {
	c := newClassifier(t, Config{CacheEntries: 10})
	const sql = "SELECT uuidv7()" // a function of 18
	_, err := c.Classify(t.Context(), sql)
	require.NoError(t, err)
	got, err := c.Classify(t.Context(), sql) // from the cache
	require.NoError(t, err)
	require.Equal(t, 16, got.Engine.ServerMajor)
	require.Equal(t, []string{SignalUnknownFunction}, got.RiskSignals)

	require.NoError(t, c.SetServerMajor(18))
	got, err = c.Classify(t.Context(), sql)
	require.NoError(t, err)
	require.Equal(t, 18, got.Engine.ServerMajor)
	require.Equal(t, []string{SignalVolatileFunction}, got.RiskSignals)
	require.Error(t, c.SetServerMajor(19))
}

func TestTheChildKnowsTheServerVersionOfEachRequest(t *testing.T) {
	c := byCPUAlone(newClassifier(t, Config{ParserMode: "child"}))
	for _, major := range []int{15, 18, 0, 16} {
		require.NoError(t, c.SetServerMajor(major))
		got, err := c.Classify(t.Context(), "SELECT 1")
		require.NoError(t, err)
		require.Equal(t, major, got.Engine.ServerMajor)
	}
}

func TestACancelledContextStopsBeforeTheParser(t *testing.T) {
	c := newClassifier(t, Config{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := c.Classify(ctx, "SELECT 1")
	require.ErrorIs(t, err, context.Canceled)

	for range len(c.parses.free) {
		_, err := c.parses.take(t.Context(), "", time.Minute)
		require.NoError(t, err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_, err = c.Classify(ctx, "SELECT 1")
	require.ErrorIs(t, err, context.DeadlineExceeded, "every place for a parse is taken")
}

func TestAFaultOfTheWalkIsARefusal(t *testing.T) {
	s, f := guard("SELECT 1", defaultMaxSQL)
	require.Nil(t, f)
	_, err := classifyHere(nil, "SELECT 1", &s)
	requireFault(t, err, fault.Internal, "")
}

func TestRefusalsOfTheGuardAreCounted(t *testing.T) {
	c := newClassifier(t, Config{MaxSQLBytes: 20})
	for sql, code := range map[string]fault.Code{
		"":                          fault.EmptySQL,
		"SELECT '":                  fault.ParserError,
		strings.Repeat("SELECT", 9): fault.OversizedSQL,
	} {
		_, err := c.Classify(t.Context(), sql)
		requireFault(t, err, code, "")
	}
	_, err := c.Classify(t.Context(), "SELECT 1; SELECT 2")
	requireFault(t, err, fault.MultiStatementRejected, "")
	require.Equal(t, ParserStats{InProcess: 1, Refused: 3}, c.Stats())
}
