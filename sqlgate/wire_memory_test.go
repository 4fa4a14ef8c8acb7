package sqlgate

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
	"writegate/sqlgate/pgexec"
)

// What a connection holds is bounded as it lies in memory: a NULL, a type, a column
// and a classification take room, whatever bytes there are of values.

func TestRowsOfNullsCountFromTheFirstPortalOn(t *testing.T) {
	c := newWireWorld(t, func(o *Options) { o.ResultBytes = 64 << 10 }).wire()
	ctx := t.Context()
	open := func(portal string, columns, rows int) error {
		sql := "SELECT NULL" + strings.Repeat(",NULL", columns-1) + fmt.Sprintf(" FROM generate_series(1, %d)", rows)
		require.NoError(t, c.Parse(ctx, "", sql, nil))
		require.NoError(t, c.Bind(portal, "", nil, nil, nil))
		_, err := c.Execute(ctx, portal, 1, false, &rowsSink{})
		return err
	}
	require.Equal(t, "result_too_large", state(open("a", 100, 200)))
	c.sync()
	require.NoError(t, open("a", 100, 100))
	require.Equal(t, "result_too_large", state(open("b", 100, 60)), "beside another one")
	c.sync()
	var out rowsSink
	_, err := c.Query(ctx, "SELECT NULL"+strings.Repeat(",NULL", 99)+" FROM generate_series(1, 200)", &out)
	require.Equal(t, "result_too_large", state(err), "what is handed on may have to wait for its client")
}

func TestNullsAndRowsWithoutColumnsAreFetchedInSlices(t *testing.T) {
	c := newWireWorld(t, nil).wire()
	ctx := t.Context()
	require.NoError(t, c.Parse(ctx, "", "SELECT i, NULL, '' FROM generate_series(1, 3) AS i", nil))
	require.NoError(t, c.Bind("", "", nil, nil, nil))
	var out rowsSink
	for range 3 {
		_, err := c.Execute(ctx, "", 1, false, &out)
		require.NoError(t, err)
	}
	require.Equal(t, []string{"1|NULL|", "2|NULL|", "3|NULL|"}, out.rows)
	require.NoError(t, c.Parse(ctx, "", "SELECT FROM generate_series(1, 3)", nil))
	require.NoError(t, c.Bind("", "", nil, nil, nil))
	out = rowsSink{}
	done, err := c.Execute(ctx, "", 2, false, &out)
	require.NoError(t, err)
	require.True(t, done.Suspended)
	require.Len(t, out.rows, 2)
	c.sync()
}

func TestParametersFormatsAndColumnsCount(t *testing.T) {
	for name, c := range map[string]struct {
		sql     string
		params  [][]byte
		formats []int16
		runs    bool
	}{
		"NULLs":   {"SELECT $65535", make([][]byte, math.MaxUint16), nil, false},
		"formats": {"SELECT 1", nil, make([]int16, math.MaxUint16), false},
		"columns": {"SELECT 1" + strings.Repeat(",2", 1599), nil, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWireWorld(t, func(o *Options) { o.ResultBytes = 1 << 20 }).wire()
			require.NoError(t, w.Parse(t.Context(), "s", c.sql, nil))
			var err error
			for i := 0; err == nil && i < wirePortals; i++ {
				if err = w.Bind(fmt.Sprint("p", i), "s", nil, c.params, c.formats); err == nil && c.runs {
					_, err = w.Execute(t.Context(), fmt.Sprint("p", i), 1, false, &rowsSink{})
				}
			}
			require.Equal(t, "result_too_large", state(err))
			w.sync()
		})
	}
}

// A portal keeps its statement, also where that has no name any more.
func TestStatementsThatOnlyPortalsKeepCount(t *testing.T) {
	w := newWireWorld(t, func(o *Options) { o.ResultBytes = 1 << 20 }).wire()
	var err error
	for i := 0; err == nil && i < wirePortals; i++ {
		require.NoError(t, w.Parse(t.Context(), "", "SELECT '"+strings.Repeat("x", 200_000)+"'", nil))
		err = w.Bind(fmt.Sprint("p", i), "", nil, nil, nil)
	}
	require.Equal(t, "result_too_large", state(err))
	w.sync()
	require.NoError(t, w.Parse(t.Context(), "s", "SELECT '"+strings.Repeat("x", 200_000)+"'", nil))
	for i := range wirePortals {
		require.NoError(t, w.Bind(fmt.Sprint("p", i), "s", nil, nil, nil), "one statement counts once")
	}
	w.sync()
}

// The numbers of types that a Parse names are as many as a message holds.
func TestPreparedStatementsCountWithTheirTypesAndDescriptions(t *testing.T) {
	w := newWireWorld(t, nil)
	unknown, known := make([]uint32, math.MaxUint16), make([]uint32, math.MaxUint16)
	for i := range unknown {
		unknown[i], known[i] = 3_000_000_000+uint32(i), 23
	}
	full := func(c *wireClient, prepare func(name string) error) {
		var err error
		for i := 0; err == nil && i < wireStatements; i++ {
			err = prepare(fmt.Sprint("s", i))
		}
		require.Equal(t, "session_limit_exceeded", state(err))
		c.sync()
		for _, st := range c.statements {
			st.evidence = nil // it leads to the policy
		}
		require.Less(t, inMemory(c.statements), int64(wireStatementBytes+wireStatementBytes/8))
	}
	c := w.wire()
	for _, name := range []string{"s", ""} {
		for sql, types := range map[string][]uint32{"SELECT $1": known[:1001], "SELECT $2000": unknown[:2000], "SELECT $65535": unknown} {
			require.Equal(t, "session_limit_exceeded", state(c.Parse(t.Context(), name, sql, types)), sql)
			c.sync()
		}
	}
	require.NoError(t, c.Parse(t.Context(), "", "SELECT $1", unknown[:1000]))
	full(c, func(name string) error { return c.Parse(t.Context(), name, "SELECT $65535", known) })
	c = w.wire()
	full(c, func(name string) error {
		if err := c.Parse(t.Context(), name, "SELECT "+strings.Repeat("1 AS "+strings.Repeat("x", 60)+",", 1500)+"1", nil); err != nil {
			return err
		}
		_, _, err := c.DescribeStatement(t.Context(), name)
		return err
	})
}

// What is kept of a text that is gone is a copy: a part of it would keep all of it.
func TestWhatIsKeptOfATextIsACopy(t *testing.T) {
	c := newWireWorld(t, nil).wire()
	within := func(part, text string) bool {
		at := uintptr(unsafe.Pointer(unsafe.StringData(part)))
		begin := uintptr(unsafe.Pointer(unsafe.StringData(text)))
		return begin <= at && at < begin+uintptr(len(text))
	}
	long := "/* " + strings.Repeat("x", 1000) + " */ "
	prepare, savepoint := long+"PREPARE kept AS SELECT 1", long+"SAVEPOINT kept"
	c.query(prepare)
	for name, st := range c.statements {
		require.False(t, within(name, prepare) || within(st.sql, prepare) || within(st.classification.NormalizedSQL, prepare))
	}
	c.query("BEGIN")
	c.query(savepoint)
	require.False(t, within(c.unit.savepoints[0].name, savepoint))
	require.True(t, within(savepoint[len(long):], savepoint))
}

func TestInMemoryIsWhatAValueTakes(t *testing.T) {
	type leaf struct {
		text string
		list []int16
	}
	for want, v := range map[int64]any{
		16 + 5:         "abcde",
		24 + 3*24 + 4:  [][]byte{nil, []byte("abcd"), {}},
		24 + 6:         make([]int16, 1, 3),
		40 + 2:         leaf{text: "ab"},
		8 + 40 + 1 + 8: &leaf{text: "a", list: make([]int16, 4)},
		8 + 2*(4+16+16) + 3: map[uint32]string{
			1: "a", 2: "bc",
		},
		0: nil,
	} {
		require.Equal(t, want, inMemory(v), "%v", v)
	}
	require.Greater(t, inMemory([]pgexec.Field{{Label: "a"}}), int64(25))
}

// Each connection has its bounds, and a client many connections: they have one more.
func TestConnectionsOfAClientShareWhatOneMayHold(t *testing.T) {
	w := newWireWorld(t, nil)
	w.wireShares.each = 1 << 20
	text := "SELECT '" + strings.Repeat("x", 100_000) + "'"
	fill := func(client string) (conns []*wireClient) {
		for range 20 {
			c := w.wireOf(client)
			conns = append(conns, c)
			if err := c.Parse(t.Context(), "s", text, nil); err != nil {
				require.Equal(t, "client_bytes", fault.Of(err).Details["limit"])
				c.sync()
				return conns
			}
		}
		t.Fatal("nothing was refused")
		return nil
	}
	first := fill("192.0.2.1")
	require.Greater(t, len(first), 2)
	require.LessOrEqual(t, w.wireShares.of["192.0.2.1"], w.wireShares.each)

	other := w.wireOf("192.0.2.2")
	require.NoError(t, other.Parse(t.Context(), "s", text, nil), "others have their own")
	require.NoError(t, other.Bind("p", "s", nil, nil, nil))

	last := first[len(first)-1]
	first[0].CloseStatement("s")
	first[0].sync()
	require.NoError(t, last.Parse(t.Context(), "s", text, nil), "what is forgotten counts no more")

	// A result that a portal keeps counts while it comes.
	require.NoError(t, other.Parse(t.Context(), "rows", "SELECT repeat('y', 1000) FROM generate_series(1, 3000)", nil))
	require.NoError(t, other.Bind("rows", "rows", nil, nil, nil))
	_, err := other.Execute(t.Context(), "rows", 1, false, new(rowsSink))
	require.Equal(t, "session_limit_exceeded", state(err))
	require.Equal(t, "client_bytes", fault.Of(err).Details["limit"])
	other.sync()
	require.LessOrEqual(t, w.wireShares.of["192.0.2.2"], w.wireShares.each)
	next := w.wireOf("192.0.2.2")
	require.NoError(t, next.Parse(t.Context(), "s", "SELECT 1", nil), "what was not kept counts no more")
	next.sync()

	for _, c := range append(first, other, next) {
		c.Close(t.Context())
	}
	require.Empty(t, w.wireShares.of)
	require.Zero(t, w.wireShares.all)
}

// What a client does not read is its own: however many connections it has, answers
// wait for it in its share, and a further row ends the statement, which leaves nothing.
func TestAnswersThatWaitForTheirClientCountForIt(t *testing.T) {
	w := newWireWorld(t, nil)
	w.wireShares.each = 1 << 20
	slow, other := w.wireOf("192.0.2.1"), w.wireOf("192.0.2.1")
	require.NoError(t, slow.Unread(1<<10))
	require.Empty(t, w.wireShares.of, "so much lies in any socket")
	require.NoError(t, slow.Unread(1<<20-1))
	require.EqualValues(t, 1<<20-leastResult, w.wireShares.of["192.0.2.1"])
	require.Equal(t, "session_limit_exceeded", state(other.Unread(200_000)))
	require.NoError(t, w.wireOf("192.0.2.2").Unread(200_000), "others have their own")

	sink := &unreadSink{wire: other.Wire}
	_, err := other.Query(t.Context(), "INSERT INTO t SELECT i, repeat('y', 1000) FROM generate_series(1, 200) AS i RETURNING v", sink)
	require.Equal(t, "session_limit_exceeded", state(err))
	require.Equal(t, "client_bytes", fault.Of(err).Details["limit"])
	_, left := other.query("SELECT count(*) FROM t")
	require.Equal(t, []string{"0"}, left, "the row that had no room took the statement with it")
	require.Positive(t, sink.waits)

	slow.Close(t.Context())
	require.NoError(t, other.Unread(0))
	sink.waits = 0
	_, err = other.Query(t.Context(), "SELECT repeat('y', 1000) FROM generate_series(1, 200)", sink)
	require.NoError(t, err)
	require.Positive(t, w.wireShares.of["192.0.2.1"])
	require.NoError(t, other.Unread(0))
	require.Zero(t, w.wireShares.of["192.0.2.1"])
}

// An unreadSink is a listener whose client reads nothing.
type unreadSink struct {
	wire  *Wire
	waits int64
}

func (*unreadSink) Fields([]pgexec.Field) error { return nil }

func (s *unreadSink) Row(values [][]byte) error {
	s.waits += bytesOf(values)
	return s.wire.Unread(s.waits)
}
