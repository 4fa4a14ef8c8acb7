package classify

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
)

// talk gives a worker all its input at once and reads its replies.
func talk(t *testing.T, g greeting, requests ...string) []reply {
	t.Helper()
	var in, out bytes.Buffer
	require.NoError(t, writeJSON(&in, g))
	for _, r := range requests {
		require.NoError(t, writeFrame(&in, []byte(r)))
	}
	require.NoError(t, Worker(&in, &out))
	var first ready
	require.NoError(t, readJSON(&out, &first))
	require.Equal(t, threadStack(), first.Stack)
	replies := make([]reply, len(requests))
	for i := range replies {
		require.NoError(t, readJSON(&out, &replies[i]))
	}
	require.Zero(t, out.Len())
	return replies
}

func TestAWorkerAnswersEachRequestUntilItsInputEnds(t *testing.T) {
	replies := talk(t, greeting{SearchPath: "app", KeyColumns: []string{"key"}, MaxSQLBytes: 100},
		"\x10SELECT * FROM t -- x", "\x12DELETE FROM t WHERE key = 'a'", "\x10SELEC", "\x10", "\x10"+strings.Repeat("x", 101), "", "\x63SELECT 1")

	c, err := replies[0].result()
	require.NoError(t, err)
	require.Equal(t, []string{"app.t"}, c.TablesRead)
	require.Equal(t, "SELECT * FROM t", c.NormalizedSQL)
	require.Equal(t, 15, c.End)
	require.Equal(t, 16, c.Engine.ServerMajor)

	c, err = replies[1].result()
	require.NoError(t, err)
	require.Equal(t, 18, c.Engine.ServerMajor)
	require.Equal(t, []string{WhereKeyEquality}, c.Where)

	for i, code := range []fault.Code{fault.ParserError, fault.EmptySQL, fault.OversizedSQL, fault.Internal, fault.Internal} {
		_, err := replies[2+i].result()
		requireFault(t, err, code, "")
	}
	_, err = replies[6].result()
	require.ErrorContains(t, fault.Of(err).Unwrap(), "99", "the cause is for the gate's log")
	_, err = replies[4].result()
	require.Equal(t, map[string]any{"limit": "sql_bytes", "got": 101, "max": 100}, fault.Of(err).Details, "numbers are ints as in process")
}

func TestAWorkerRefusesWhatIsNoConversation(t *testing.T) {
	for name, in := range map[string]string{
		"nothing":        "",
		"half a length":  "\x00\x00",
		"half a body":    "\x00\x00\x00\x05ab",
		"no JSON":        "\x00\x00\x00\x02ab",
		"too long":       "\xff\xff\xff\xff",
		"request breaks": "\x00\x00\x00\x02{}\x00\x00\x00\x09x",
	} {
		require.Error(t, Worker(strings.NewReader(in), io.Discard), name)
	}
}

func FuzzWorker(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x02{}\x00\x00\x00\x09\x10SELECT 1"))
	f.Fuzz(func(t *testing.T, in []byte) {
		_ = Worker(bytes.NewReader(in), io.Discard)
	})
}
