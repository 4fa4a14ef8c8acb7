package sqlgate

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
)

// What a portal keeps is counted as it lies in memory: a NULL has no bytes, and
// takes some.
func TestNullsCountAgainstWhatPortalsKeep(t *testing.T) {
	w := newWireWorld(t, func(o *Options) { o.ResultBytes = 1 << 20 })
	ctx := t.Context()
	c := w.wire()
	nulls := strings.Repeat("NULL,", 1599) + "NULL"
	require.NoError(t, c.Parse(ctx, "", "SELECT "+nulls+" FROM generate_series(1, 1000)", nil))
	require.NoError(t, c.Bind("", "", nil, nil, nil))
	_, err := c.Execute(ctx, "", 1, false, &rowsSink{})
	require.Equal(t, fault.ResultTooLarge, fault.CodeOf(err), "the first portal too")
	c.sync()

	require.NoError(t, c.Parse(ctx, "s", "SELECT $20000::text", nil))
	params, bound := make([][]byte, 20_000), 0
	for ; bound < wirePortals; bound++ {
		if err = c.Bind(fmt.Sprint(bound), "s", nil, params, nil); err != nil {
			break
		}
	}
	require.Equal(t, fault.ResultTooLarge, fault.CodeOf(err))
	require.Less(t, bound, 4)
	c.sync()

	require.NoError(t, c.Parse(ctx, "", "SELECT i, NULL, 'x' FROM generate_series(1, 3) AS i", nil))
	require.NoError(t, c.Bind("", "", nil, nil, nil))
	var out rowsSink
	for range 3 {
		_, err = c.Execute(ctx, "", 1, false, &out)
		require.NoError(t, err)
	}
	require.Equal(t, []string{"1|NULL|x", "2|NULL|x", "3|NULL|x"}, out.rows)
	require.NoError(t, c.Parse(ctx, "", "SELECT FROM generate_series(1, 3)", nil))
	require.NoError(t, c.Bind("", "", nil, nil, nil))
	out = rowsSink{}
	done, err := c.Execute(ctx, "", 2, false, &out)
	require.NoError(t, err)
	require.True(t, done.Suspended)
	require.Len(t, out.rows, 2, "rows without columns are rows")
	c.sync()
}

// A Parse names no more types than its text can need, and what is kept of them is
// counted as the text is.
func TestTypesOfAParseAreBounded(t *testing.T) {
	w := newWireWorld(t, nil)
	c := w.wire()
	unknown := make([]uint32, 2000)
	for i := range unknown {
		unknown[i] = 3_000_000_000 + uint32(i)
	}
	for sql, types := range map[string][]uint32{"SELECT $1": slices.Repeat([]uint32{23}, 1001), "SELECT $2000": unknown} {
		require.Equal(t, string(fault.SessionLimitExceeded), state(c.Parse(t.Context(), "s", sql, types)), sql)
		c.sync()
	}
	require.NoError(t, c.Parse(t.Context(), "", "SELECT $65535::int", slices.Repeat([]uint32{23}, 65_535)), "as many as the text has")
	kept := 0
	for ; kept < wireStatements; kept++ {
		if c.Parse(t.Context(), fmt.Sprint(kept), "SELECT $1000::int", unknown[:1000]) != nil {
			break
		}
	}
	require.Less(t, kept, 20)
	c.sync()
	for i := range kept {
		c.CloseStatement(fmt.Sprint(i))
	}
	c.CloseStatement("")
	require.Zero(t, c.bytes)
}
