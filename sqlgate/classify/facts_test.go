package classify

import (
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
)

// newTestTables makes the tables the vectors are written for.
func newTestTables(t testing.TB, cfg Config) *tables {
	t.Helper()
	if cfg.ServerMajor == 0 {
		cfg.ServerMajor = 16
	}
	tb, err := newTables(cfg)
	require.NoError(t, err)
	return tb
}

// classifyText runs a text through guard, parser and walk in this process.
func classifyText(tb *tables, sql string) (Classification, *fault.Fault) {
	s, f := guard(sql, 1<<18)
	if f != nil {
		return Classification{}, f
	}
	p, f := parseTree(sql)
	if f != nil {
		return Classification{}, f
	}
	defer p.release()
	return tb.facts(p, sql, &s)
}

// mustClassify classifies a text that is one good statement.
func mustClassify(t testing.TB, tb *tables, sql string) Classification {
	t.Helper()
	c, f := classifyText(tb, sql)
	require.Nil(t, f, "%s", sql)
	return c
}
