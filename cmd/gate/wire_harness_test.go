package main

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/url"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"
)

// wireSettings open the wire listener of a gate to everybody on this machine.
var wireSettings = []string{"GATE_PGWIRE_ENABLED=true", "GATE_PGWIRE_LAB_MODE=true", "GATE_PGWIRE_LISTEN_ADDR=127.0.0.1:0"}

// startWire is a gate with the sample policy in front of the sample tables, and
// with the wire listener.
func startWire(t testing.TB, extra ...string) *testGate {
	t.Helper()
	return startShop(t, append(wireSettings[:len(wireSettings):len(wireSettings)], extra...)...)
}

// wireURL is how a client names the gate; parameters are name=value.
func (g *testGate) wireURL(t testing.TB, parameters ...string) string {
	t.Helper()
	u := url.URL{Scheme: "postgres", User: url.User("ana"), Host: g.wire, Path: g.databaseName(t)}
	values := url.Values{"sslmode": {"disable"}, "gate.app": {"shop"}, "gate.tenant": {"acme"}, "gate.role": {"clerk"}}
	for _, p := range parameters {
		name, value := cutPair(p)
		values.Set(name, value)
	}
	u.RawQuery = values.Encode()
	return u.String()
}

func cutPair(pair string) (name, value string) {
	for i := range len(pair) {
		if pair[i] == '=' {
			return pair[:i], pair[i+1:]
		}
	}
	return pair, ""
}

func (d gateDir) databaseName(t testing.TB) string {
	t.Helper()
	config, err := pgconn.ParseConfig(d.database)
	require.NoError(t, err)
	return config.Database
}

// connect logs in with the driver's own code.
func (g *testGate) connect(t testing.TB, parameters ...string) *pgconn.PgConn {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startPatience)
	defer cancel()
	c, err := pgconn.Connect(ctx, g.wireURL(t, parameters...))
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close(context.Background()) }) // the test may have closed it
	return c
}

// A rawWire is a client that sends bytes.
type rawWire struct {
	net.Conn
	t   testing.TB
	key []byte // of a CancelRequest: pid and secret
}

// rawWire logs in and reads up to ReadyForQuery.
func (g *testGate) rawWire(t testing.TB, parameters ...string) *rawWire {
	t.Helper()
	w := g.dialWire(t)
	m := pgproto3.StartupMessage{ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: map[string]string{
		"user": "ana", "database": g.databaseName(t), "gate.app": "shop", "gate.tenant": "acme", "gate.role": "clerk",
	}}
	for _, p := range parameters {
		name, value := cutPair(p)
		m.Parameters[name] = value
	}
	packet, err := m.Encode(nil)
	require.NoError(t, err)
	w.write(packet)
	for _, m := range w.ready() {
		if k, ok := m.(*pgproto3.BackendKeyData); ok {
			w.key = append(binary.BigEndian.AppendUint32(nil, k.ProcessID), k.SecretKey...)
		}
	}
	require.NotEmpty(t, w.key)
	return w
}

// dialWire is a connection that has said nothing yet.
func (g *testGate) dialWire(t testing.TB) *rawWire {
	t.Helper()
	c, err := net.Dial("tcp", g.wire)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return &rawWire{Conn: c, t: t}
}

// write and next have their own time each, however long the test takes between
// them.
func (w *rawWire) write(b []byte) {
	w.t.Helper()
	require.NoError(w.t, w.SetWriteDeadline(time.Now().Add(startPatience)))
	_, err := w.Write(b)
	require.NoError(w.t, err)
}

// send sends messages in one write.
func (w *rawWire) send(messages ...pgproto3.FrontendMessage) {
	w.t.Helper()
	var b []byte
	for _, m := range messages {
		var err error
		b, err = m.Encode(b)
		require.NoError(w.t, err)
	}
	w.write(b)
}

// next reads one message; nil is the end of the connection.
func (w *rawWire) next() pgproto3.BackendMessage {
	w.t.Helper()
	require.NoError(w.t, w.SetReadDeadline(time.Now().Add(startPatience)))
	var head [5]byte
	if _, err := io.ReadFull(w, head[:]); err != nil {
		require.ErrorIs(w.t, err, io.EOF)
		return nil
	}
	body := make([]byte, binary.BigEndian.Uint32(head[1:])-4)
	_, err := io.ReadFull(w, body)
	require.NoError(w.t, err)
	m := backendMessage(head[0], body)
	require.NotNil(w.t, m, "a message of type %q", head[0])
	require.NoError(w.t, m.Decode(body))
	return m
}

func backendMessage(kind byte, body []byte) pgproto3.BackendMessage {
	switch kind {
	case 'R':
		return new(pgproto3.AuthenticationOk)
	case '1':
		return new(pgproto3.ParseComplete)
	case '2':
		return new(pgproto3.BindComplete)
	case '3':
		return new(pgproto3.CloseComplete)
	case 'C':
		return new(pgproto3.CommandComplete)
	case 'D':
		return new(pgproto3.DataRow)
	case 'E':
		return new(pgproto3.ErrorResponse)
	case 'I':
		return new(pgproto3.EmptyQueryResponse)
	case 'K':
		return new(pgproto3.BackendKeyData)
	case 'N':
		return new(pgproto3.NoticeResponse)
	case 'S':
		return new(pgproto3.ParameterStatus)
	case 'T':
		return new(pgproto3.RowDescription)
	case 'Z':
		return new(pgproto3.ReadyForQuery)
	case 'n':
		return new(pgproto3.NoData)
	case 's':
		return new(pgproto3.PortalSuspended)
	case 't':
		return new(pgproto3.ParameterDescription)
	case 'v':
		return new(pgproto3.NegotiateProtocolVersion)
	}
	return nil
}

// ready reads up to ReadyForQuery, or to the end.
func (w *rawWire) ready() []pgproto3.BackendMessage {
	w.t.Helper()
	var all []pgproto3.BackendMessage
	for {
		m := w.next()
		if m == nil {
			return all
		}
		all = append(all, m)
		if _, done := m.(*pgproto3.ReadyForQuery); done {
			return all
		}
	}
}

// ask sends messages and tells what came up to ReadyForQuery.
func (w *rawWire) ask(messages ...pgproto3.FrontendMessage) []string {
	w.t.Helper()
	w.send(messages...)
	return inWords(w.ready())
}

// inWords puts messages into words: their types, and what is in those that matter.
func inWords(messages []pgproto3.BackendMessage) []string {
	var words []string
	for _, m := range messages {
		switch m := m.(type) {
		case *pgproto3.ErrorResponse:
			words = append(words, m.Severity+" "+m.Code)
		case *pgproto3.NoticeResponse:
			words = append(words, m.Severity+" "+m.Code)
		case *pgproto3.CommandComplete:
			words = append(words, string(m.CommandTag))
		case *pgproto3.ReadyForQuery:
			words = append(words, "ready "+string(m.TxStatus))
		case *pgproto3.DataRow:
			row := "row"
			for _, v := range m.Values {
				row += " " + string(v)
			}
			words = append(words, row)
		case *pgproto3.ParameterStatus:
			words = append(words, m.Name+"="+m.Value)
		case *pgproto3.ParseComplete:
			words = append(words, "parsed")
		case *pgproto3.BindComplete:
			words = append(words, "bound")
		case *pgproto3.CloseComplete:
			words = append(words, "closed")
		case *pgproto3.RowDescription:
			words = append(words, "columns")
		case *pgproto3.NoData:
			words = append(words, "no data")
		case *pgproto3.PortalSuspended:
			words = append(words, "suspended")
		case *pgproto3.EmptyQueryResponse:
			words = append(words, "empty")
		case *pgproto3.ParameterDescription:
			words = append(words, "parameters")
		}
	}
	return words
}
