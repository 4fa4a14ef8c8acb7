package pgwire

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"

	"writegate/sqlgate"
)

// patience bounds what must happen soon: a bound for something that hangs, not a
// measurement.
const patience = time.Minute

// behindTheDoor is what the Open of these servers answers: the client got
// through its login, and no gate is behind it. Conversations with a gate are
// tested where there is one, in cmd/gate.
var behindTheDoor = &sqlgate.WireError{SQLState: "57P03", Message: "no gate is behind this door", Fatal: true}

// A door is a running listener.
type door struct {
	*Server
	t *testing.T

	mu        sync.Mutex
	logins    []sqlgate.WireLogin
	evidence  []string
	incidents []Incident
}

// openDoor starts a listener that trusts everybody, unless change says otherwise.
func openDoor(t *testing.T, change func(*Options)) *door {
	t.Helper()
	d := &door{t: t}
	o := Options{
		Addr: "127.0.0.1:0", Logger: slog.New(slog.DiscardHandler), Database: "shop", DefaultEnv: "prod", Auth: AuthTrust, TLSMode: TLSOff,
		MaxConnections: 100, MaxPerAddress: 50, MaxUnauthenticated: 32, MaxBatchItems: 64, MaxMessageBytes: 1 << 20,
		AuthTimeout: patience, IdleTimeout: patience, WriteTimeout: patience, TxMax: patience, TxIdle: patience, Drain: patience, Grace: time.Second,
		ServerVersion: func(context.Context) (string, error) { return "15.14", nil },
		Open:          d.open,
		Holder:        func(client string) string { return client },
		Allow:         func(string) (time.Duration, bool) { return 0, true },
		AllowText:     func(string, int) (time.Duration, bool) { return 0, true },
		OnIncident:    func(Incident) {},
		OnLoginFailed: func(LoginFailure) {},
		Cancels:       d,
	}
	if change != nil {
		change(&o)
	}
	server, err := Listen(o)
	require.NoError(t, err)
	d.Server = server
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		_, err := server.Serve(ctx)
		ended <- err
	}()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
		require.Empty(t, server.conns, "a connection was left over")
		require.Zero(t, server.seats.strangers.count+server.seats.cancels.count+server.seats.loggedIn)
		require.Empty(t, server.seats.strangers.of)
		require.Empty(t, server.seats.cancels.of)
		require.Empty(t, server.seats.perAddress)
		require.Empty(t, server.cancels.keys)
	})
	return d
}

func (d *door) open(l sqlgate.WireLogin) (Wire, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.logins = append(d.logins, l)
	return nil, behindTheDoor
}

func (d *door) Received(context.Context, CancelRequest) error { return d.write("received", 1) }

func (d *door) Forwarded(context.Context, CancelRequest, string) error {
	return d.write("forwarded", 1)
}

func (d *door) Unsent(context.Context, CancelRequest, string) error { return d.write("unsent", 1) }

func (d *door) Rejected(_ context.Context, _ CancelRequest, cause string, count int) error {
	return d.write(cause, count)
}

func (d *door) write(what string, count int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for range count {
		d.evidence = append(d.evidence, what)
	}
	return nil
}

func (d *door) written() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]string(nil), d.evidence...)
}

func (d *door) lastLogin() sqlgate.WireLogin {
	d.mu.Lock()
	defer d.mu.Unlock()
	require.NotEmpty(d.t, d.logins)
	return d.logins[len(d.logins)-1]
}

// dial is a bare connection to the listener.
func (d *door) dial() net.Conn {
	d.t.Helper()
	c, err := net.Dial("tcp", d.Addr().String())
	require.NoError(d.t, err)
	d.t.Cleanup(func() { c.Close() })
	require.NoError(d.t, c.SetDeadline(time.Now().Add(patience)))
	return c
}

// send writes bytes and gives back everything that comes until the end.
func (d *door) send(b []byte) []byte {
	d.t.Helper()
	c := d.dial()
	_, err := c.Write(b)
	require.NoError(d.t, err)
	return readAll(d.t, c)
}

// readAll reads to the end, which the other side must come to by itself.
func readAll(t *testing.T, c net.Conn) []byte {
	t.Helper()
	got, err := io.ReadAll(c)
	var e net.Error
	require.False(t, errors.As(err, &e) && e.Timeout(), "the connection was not closed")
	return got
}

// login tries to log in with the driver's own code and gives the error that ends
// it; behindTheDoor is success.
func (d *door) login(settings string, secure *tls.Config) *pgconn.PgError {
	d.t.Helper()
	_, port, err := net.SplitHostPort(d.Addr().String())
	require.NoError(d.t, err)
	return d.loginAt(port, settings, secure)
}

func (d *door) loginAt(port, settings string, secure *tls.Config) *pgconn.PgError {
	d.t.Helper()
	config, err := pgconn.ParseConfig("host=127.0.0.1 port=" + port + " sslmode=disable " + settings)
	require.NoError(d.t, err)
	config.TLSConfig, config.Fallbacks = secure, nil
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := pgconn.ConnectConfig(ctx, config)
	if err == nil {
		require.NoError(d.t, c.Close(ctx))
		d.t.Fatal("the login went through a closed door")
	}
	var e *pgconn.PgError
	if !errors.As(err, &e) {
		return &pgconn.PgError{Message: err.Error()}
	}
	return e
}

// usersFile is a users file with one user.
func usersFile(t *testing.T, lines ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "users")
	require.NoError(t, os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o600))
	return path
}

func hashed(t *testing.T, user, password string) string {
	t.Helper()
	line, err := HashPassword(user, password)
	require.NoError(t, err)
	return line
}

// greet is a StartupMessage of version 3.0.
func greet(parameters ...string) []byte { return greetAs(version30, parameters...) }

func greetAs(version uint32, parameters ...string) []byte {
	body := binary.BigEndian.AppendUint32(nil, version)
	for _, p := range parameters {
		body = append(append(body, p...), 0)
	}
	return startupPacket(append(body, 0))
}

func startupPacket(body []byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body)+4)), body...)
}

func request(code uint32, rest ...byte) []byte {
	return startupPacket(append(binary.BigEndian.AppendUint32(nil, code), rest...))
}

// firstError reads the ErrorResponse in what a server sent.
func firstError(t *testing.T, sent []byte) pgproto3.ErrorResponse {
	t.Helper()
	for len(sent) >= 5 {
		n := int(binary.BigEndian.Uint32(sent[1:])) + 1
		require.GreaterOrEqual(t, len(sent), n)
		if sent[0] == 'E' {
			var e pgproto3.ErrorResponse
			require.NoError(t, e.Decode(sent[5:n]))
			return e
		}
		sent = sent[n:]
	}
	t.Fatalf("no ErrorResponse in %q", sent)
	return pgproto3.ErrorResponse{}
}
