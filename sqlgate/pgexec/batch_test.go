package pgexec

import (
	"bytes"
	"context"
	"io"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
)

// answered gives a conn whose server says just these bytes, whatever it is sent.
func answered(t testing.TB, said []byte) *conn {
	near, far := net.Pipe()
	t.Cleanup(func() { near.Close(); far.Close() })
	fe := pgproto3.NewFrontend(bytes.NewReader(said), io.Discard)
	fe.SetMaxBodyLen(1 << 20)
	return &conn{net: near, fe: fe, params: map[string]string{"TimeZone": "UTC"}}
}

// says encodes messages of a server.
func says(t testing.TB, messages ...pgproto3.BackendMessage) []byte {
	var said []byte
	for _, m := range messages {
		var err error
		said, err = m.Encode(said)
		require.NoError(t, err)
	}
	return said
}

var (
	fresh    = &pgproto3.CloseComplete{}
	parsed   = &pgproto3.ParseComplete{}
	bound    = &pgproto3.BindComplete{}
	oneCol   = &pgproto3.RowDescription{Fields: []pgproto3.FieldDescription{{Name: []byte("a"), DataTypeOID: 23}}}
	row      = &pgproto3.DataRow{Values: [][]byte{[]byte("1")}}
	selected = &pgproto3.CommandComplete{CommandTag: []byte("SELECT 1")}
	idle     = &pgproto3.ReadyForQuery{TxStatus: 'I'}
)

func TestAServerThatTalksOutOfTurnIsNotBelieved(t *testing.T) {
	for name, messages := range map[string][]pgproto3.BackendMessage{
		"nothing was answered":             {idle},
		"complete without parse":           {selected, idle},
		"parsed without a close":           {parsed, bound, oneCol, row, selected, idle},
		"closed twice":                     {fresh, fresh, parsed, bound, oneCol, row, selected, idle},
		"complete without bind":            {fresh, parsed, selected, idle},
		"complete without a description":   {fresh, parsed, bound, selected, idle},
		"a row without bind":               {fresh, parsed, row, selected, idle},
		"a row without a description":      {fresh, parsed, bound, row, selected, idle},
		"a row of two columns":             {fresh, parsed, bound, oneCol, &pgproto3.DataRow{Values: [][]byte{nil, nil}}, selected, idle},
		"bound twice":                      {fresh, parsed, bound, bound, oneCol, row, selected, idle},
		"described twice":                  {fresh, parsed, bound, oneCol, oneCol, row, selected, idle},
		"one answer too many":              {fresh, parsed, bound, oneCol, row, selected, selected, idle},
		"an answer behind an error":        {fresh, parsed, &pgproto3.ErrorResponse{Severity: "ERROR", Code: "22012"}, selected, idle},
		"COPY out":                         {fresh, parsed, bound, &pgproto3.CopyOutResponse{}, idle},
		"COPY in":                          {fresh, parsed, bound, &pgproto3.CopyInResponse{}, idle},
		"another login":                    {&pgproto3.AuthenticationOk{}, idle},
		"a FATAL error in mid-result":      {fresh, parsed, bound, oneCol, row, &pgproto3.ErrorResponse{Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: "57P01"}, idle},
		"the end of the connection":        {fresh, parsed, bound, oneCol, row, selected},
		"the end in the middle of a batch": {fresh, parsed, bound, oneCol},
	} {
		t.Run(name, func(t *testing.T) {
			c := answered(t, says(t, messages...))
			cmd := &command{sql: "SELECT 1", describe: true, sink: (&DB{cfg: Config{}.withDefaults()}).NewRows(0)}
			_, err := c.exchange(context.Background(), time.Now().Add(time.Minute), segment{cmd})
			require.Error(t, err)
			require.True(t, c.broken, "it is only good for closing")
		})
	}
	c := answered(t, says(t, fresh, parsed, bound, oneCol, row, selected, idle))
	cmd := &command{sql: "SELECT 1", describe: true}
	refused, err := c.exchange(context.Background(), time.Now().Add(time.Minute), segment{cmd})
	require.NoError(t, err)
	require.Nil(t, refused)
	require.Equal(t, "SELECT 1", cmd.tag)
	require.Equal(t, byte('I'), c.txStatus)
}

func TestAnErrorEndsItsBatchAlone(t *testing.T) {
	c := answered(t, says(t, fresh, parsed, &pgproto3.ErrorResponse{Severity: "ERROR", SeverityUnlocalized: "ERROR", Code: "42601"}, idle, fresh, parsed, bound, selected, idle))
	second := own("SELECT 1")
	refused, err := c.exchange(context.Background(), time.Now().Add(time.Minute), segment{own("nonsense")}, segment{second})
	require.NoError(t, err)
	require.Equal(t, "42601", refused.Code)
	require.Equal(t, "SELECT 1", second.tag)
	require.False(t, c.broken)
}

func TestAReportedPinThatChangesIsDrift(t *testing.T) {
	c := answered(t, says(t, fresh, parsed, bound, &pgproto3.ParameterStatus{Name: "TimeZone", Value: "UTC"}, &pgproto3.ParameterStatus{Name: "other", Value: "x"}, selected, idle))
	_, err := c.exchange(context.Background(), time.Now().Add(time.Minute), segment{own("SELECT 1")})
	require.NoError(t, err)
	require.Empty(t, c.drift)
	c = answered(t, says(t, fresh, parsed, bound, selected, &pgproto3.ParameterStatus{Name: "TimeZone", Value: "Asia/Tokyo"}, idle))
	_, err = c.exchange(context.Background(), time.Now().Add(time.Minute), segment{own("SELECT 1")})
	require.NoError(t, err)
	require.Equal(t, "TimeZone", c.drift)
}

// A server may say anything: it must neither crash the gate nor pass for one
// that finished the batch.
func FuzzAnswersOfAServer(f *testing.F) {
	f.Add(says(f, fresh, parsed, bound, oneCol, row, selected, idle))
	f.Add(says(f, fresh, parsed, &pgproto3.ErrorResponse{Severity: "ERROR", Code: "42601"}, idle))
	f.Add([]byte{'D', 0, 0, 0, 4})
	f.Fuzz(func(t *testing.T, said []byte) {
		c := answered(t, said)
		cmd := &command{sql: "SELECT 1", describe: true, byteCap: 1 << 16, sink: (&DB{cfg: Config{}.withDefaults()}).NewRows(0)}
		refused, err := c.exchange(context.Background(), time.Now().Add(time.Minute), segment{cmd})
		require.True(t, err == nil || c.broken)
		if err == nil && refused == nil {
			require.True(t, bytes.Contains(said, []byte{'C'}) || bytes.Contains(said, []byte{'s'}) || bytes.Contains(said, []byte{'I'}))
		}
	})
}

func TestACopyStatementOnlyCostsItsConnection(t *testing.T) {
	db, side := open(t)
	side.run("CREATE TABLE t (a int); INSERT INTO t VALUES (1)")
	for _, text := range []string{"COPY t TO STDOUT", "COPY t FROM STDIN"} {
		res, _, err := write(t, db, text, Limits{})
		require.Equal(t, fault.DBConnectionFailed, fault.CodeOf(err))
		require.Equal(t, OutcomeAborted, res.Outcome)
	}
	require.Equal(t, "1", side.ask("SELECT count(*) FROM t"))
	require.Zero(t, db.Stats().InUse)
}

// Classification keeps such texts away. If one came through, nothing could be
// said about what it did.
func TestAStatementThatEndsItsTransactionLeavesTheOutcomeUnknown(t *testing.T) {
	db, _ := open(t)
	for _, text := range []string{"COMMIT", "ROLLBACK"} {
		res, _, err := write(t, db, text, Limits{})
		require.Equal(t, fault.DBQueryTimeout, fault.CodeOf(err))
		require.Equal(t, Unknown, res.State)
		require.Nil(t, res.Settled)
	}
	require.Zero(t, db.Stats().InUse)
}

func TestAnEmptyStatementSucceeds(t *testing.T) {
	db, _ := open(t)
	require.Equal(t, "[]", mustRead(t, db, "/* nothing */"))
	require.Empty(t, mustWrite(t, db, "").CommandTag)
}
