package pgwire

import (
	"cmp"
	"context"
	"crypto/x509"
	"encoding/asn1"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"writegate/sqlgate"
	"writegate/sqlgate/pgexec"
	"writegate/sqlgate/scram"
)

// failureDelay stands before the answer to a login that failed, whatever the reason.
const failureDelay = time.Second

// live is a connection from its first byte to its last.
func (c *conn) live(ctx context.Context) error {
	most := c.server.o.AuthTimeout
	if c.cancelOnly {
		most = min(most, cancelTime)
	}
	if err := c.raw.SetDeadline(time.Now().Add(most)); err != nil || c.stopped.Load() {
		return err
	}
	p, err := c.firstPacket(ctx)
	if err != nil {
		return err
	}
	if p.code == codeCancel {
		if key, ok := parseCancel(p); ok {
			c.server.cancels.request(ctx, key, c.addr, c.inClear())
		}
		return nil
	}
	if c.cancelOnly {
		return tooMany()
	}
	in, err := c.enter(ctx, p)
	if err != nil {
		return err
	}
	if err := c.open(ctx, in); err != nil {
		return err
	}
	return c.converse(pgexec.ForClient(ctx, c.server.o.Holder(c.client)))
}

// errHandshake is a TLS handshake that failed.
var errHandshake = errors.New("TLS handshake")

// loginFailed tells a login that was refused. A client that went away by itself,
// as psql does to ask for a password, was not; nor was one that this service can't
// serve now, or has no room for, or whose seat went to another.
func (c *conn) loginFailed(err error, f *failure) {
	l := LoginFailure{Client: c.addr.String(), User: strings.ToValidUTF8(c.claimed[:min(len(c.claimed), maxClaimed)], "?")}
	switch {
	case c.displaced.Load():
		return
	case f == nil && errors.Is(err, errHandshake):
		l.Cause = LoginHandshake
	case f == nil:
		return
	default:
		if l.SQLState = f.response.Code; l.SQLState == stateTooMany || strings.HasPrefix(l.SQLState, "57") || strings.HasPrefix(l.SQLState, "XX") {
			return
		}
		l.Cause = cmp.Or(f.refused, LoginStartup)
	}
	c.server.o.OnLoginFailed(l)
}

// firstPacket takes the client through its requests for encryption to the first
// packet that is none. Each kind of request is granted once, and none inside TLS.
func (c *conn) firstPacket(ctx context.Context) (packet, error) {
	p, err := c.directTLS(ctx)
	askedTLS, askedGSS := false, false
	for ; err == nil; p, err = readPacket(c.net) {
		switch {
		case p.code == codeSSL && c.tls == nil && len(p.rest) == 0 && !askedTLS:
			askedTLS = true
			err = c.grantTLS(ctx)
		case p.code == codeGSS && c.tls == nil && len(p.rest) == 0 && !askedGSS:
			askedGSS = true
			_, err = c.net.Write([]byte{'N'})
		default:
			return p, c.allowed(p)
		}
		if err != nil {
			return packet{}, err
		}
	}
	return packet{}, err
}

// directTLS reads the first packet, in TLS where the client begins with that.
func (c *conn) directTLS(ctx context.Context) (packet, error) {
	var head [4]byte
	if _, err := io.ReadFull(c.raw, head[:1]); err != nil {
		return packet{}, err
	}
	if head[0] != firstOfTLS {
		if _, err := io.ReadFull(c.raw, head[1:]); err != nil {
			return packet{}, err
		}
		return readPacketBody(c.raw, head)
	}
	if c.server.o.TLSMode == TLSOff {
		return packet{}, errGarbage
	}
	if err := c.handshake(ctx, head[:1]); err != nil {
		return packet{}, err
	}
	if c.tls.NegotiatedProtocol != alpn {
		return packet{}, errors.New("a direct TLS connection without ALPN")
	}
	return readPacket(c.net)
}

func (c *conn) grantTLS(ctx context.Context) error {
	if c.server.o.TLSMode == TLSOff {
		_, err := c.net.Write([]byte{'N'})
		return err
	}
	if _, err := c.net.Write([]byte{'S'}); err != nil {
		return err
	}
	return c.handshake(ctx, nil)
}

// allowed refuses what must not come in clear, and what is no greeting.
func (c *conn) allowed(p packet) error {
	if p.code>>16 != 3 && p.code != codeCancel {
		return fatalf("0A000", "unsupported frontend protocol %d.%d: the gate speaks 3.0 to 3.2", p.code>>16, p.code&0xffff)
	}
	if p.code != codeCancel && c.inClear() {
		return fatalf("28000", "the gate takes connections over TLS alone").hint("Connect with sslmode=require or stricter.").login(LoginCleartext)
	}
	return nil
}

// inClear reports whether TLS is required and this is none.
func (c *conn) inClear() bool { return c.server.o.TLSMode == TLSRequire && c.tls == nil }

// enter reads the greeting and has the client prove who it is.
func (c *conn) enter(ctx context.Context, p packet) (*introduction, error) {
	g, err := parseGreeting(p)
	if err != nil {
		return nil, err
	}
	if err := c.server.admit(c); err != nil {
		return nil, err
	}
	in, err := introduce(g)
	if err != nil {
		return nil, err
	}
	c.version, c.claimed = g.version, in.user
	if g.negotiate {
		if err := c.out.send(&pgproto3.NegotiateProtocolVersion{NewestMinorProtocol: g.version, UnrecognizedOptions: g.unknown}); err != nil {
			return nil, err
		}
	}
	if err := c.authenticate(ctx, in.user); err != nil {
		return nil, err
	}
	if in.database != c.server.o.Database {
		return nil, fatalf("3D000", "the database %s is not behind this gate", quote(in.database))
	}
	return in, nil
}

// commonNames are all of a certificate's subject. Software differs in which of several
// counts, so one with several is nobody's.
func commonNames(leaf *x509.Certificate) (names []string) {
	for _, attribute := range leaf.Subject.Names {
		if name, ok := attribute.Value.(string); ok && attribute.Type.Equal(asn1.ObjectIdentifier{2, 5, 4, 3}) {
			names = append(names, name)
		}
	}
	return names
}

// authenticate has the client prove who it is. An agent shows its token whatever all others
// have to show: without it its rules would not bind it.
func (c *conn) authenticate(ctx context.Context, user string) error {
	agent := c.server.o.AgentVerifiers != nil && sqlgate.AgentID(user)
	switch c.server.o.Auth {
	case AuthTrust:
		if !agent {
			return c.out.send(&pgproto3.AuthenticationOk{})
		}
	case AuthCert:
		if leaf := c.verifiedLeaf(); leaf == nil || !slices.Equal(commonNames(leaf), []string{user}) {
			c.server.log.Warn("a login failed", "user", user, "client", c.addr.String(), "cause", "no client certificate whose only common name that is")
			return fatalf("28000", "certificate authentication failed for user %s", quote(user)).login(LoginCertificate)
		}
		if !agent {
			return c.out.send(&pgproto3.AuthenticationOk{})
		}
	}
	err := c.scram(ctx, user, agent)
	if !errors.Is(err, errScram) {
		return err
	}
	select {
	case <-time.After(failureDelay):
	case <-ctx.Done():
	}
	c.server.log.Warn("a login failed", "user", user, "client", c.addr.String(), "cause", err.Error())
	f := fatalf("28P01", "password authentication failed for user %s", quote(user)).login(LoginPassword)
	f.cause = err
	if agent { // whichever of these it was: whether there is such an agent is not told
		f.response.Hint = agentHint
	}
	return f
}

// agentHint is what everybody is told who fails to log in by the id of an agent.
const agentHint = "The password of an agent is one of its live tokens that have the scope gate:query. Where GET /v1/agents/{id}/tokens says wire_login false of such a one, it is older than logins by tokens: make a new one."

// scram is the exchange of RFC 5802 inside of PostgreSQL's messages.
func (c *conn) scram(ctx context.Context, user string, agent bool) error {
	var users *userList // nil where passwords are asked of agents alone
	if c.server.o.Users != nil {
		users = c.server.o.Users.current.Load()
	}
	var binding []byte
	if c.tls != nil {
		binding = endPoint(c.leaf)
	}
	var v scram.Verifier
	var known bool
	var tokens []sqlgate.AgentVerifier // of an agent, of which any may be the password
	if !agent {
		v, known = users.find(user)
	} else {
		var err error
		if tokens, err = c.server.o.AgentVerifiers(ctx, user); err != nil {
			return fatal(err)
		}
		if v, known = c.nobody(users, user), len(tokens) > 0; known {
			v = tokens[0].Verifier
		}
	}
	x := newScram(v, known, binding)
	for i := 1; i < len(tokens); i++ {
		x.others = append(x.others, tokens[i].Verifier)
	}
	body, err := c.ask(&pgproto3.AuthenticationSASL{AuthMechanisms: x.mechanisms()})
	if err != nil {
		return err
	}
	chosen, rest, ok := cutString(body)
	if !ok || len(rest) < 4 || int64(int32(binary.BigEndian.Uint32(rest))) != int64(len(rest)-4) {
		return scramError("the form of the first answer")
	}
	challenge, err := x.begin(chosen, rest[4:])
	if err != nil {
		return err
	}
	if body, err = c.ask(&pgproto3.AuthenticationSASLContinue{Data: challenge}); err != nil {
		return err
	}
	proof, err := x.finish(body)
	if err != nil {
		return err
	}
	if agent {
		if c.agent, err = c.server.o.AgentNow(ctx, tokens[x.fits].Agent); err != nil {
			f := fatal(err)
			if f.response.Code == stateToken {
				f.refused = LoginToken
			}
			return f
		}
	} else {
		c.users, c.storedKey = users, x.verifier.StoredKey
	}
	if err := c.out.send(&pgproto3.AuthenticationSASLFinal{Data: proof}); err != nil {
		return err
	}
	return c.out.send(&pgproto3.AuthenticationOk{})
}

// nobody is what the id of an agent without a verifier looks like: as that of one that has.
func (c *conn) nobody(users *userList, agentID string) scram.Verifier {
	salt := scram.MAC(c.server.secret, agentID)
	if users != nil {
		_, salt = users.stranger(agentID)
	}
	return scram.Verifier{Iterations: scram.Iterations, Salt: salt[:scram.SaltLen]}
}

// maxAnswer is the longest answer to a challenge that is read.
const maxAnswer = 4 << 10

// ask sends a challenge and reads the answer to it, and nothing else: a message
// of another type before the login is done ends the connection.
func (c *conn) ask(challenge pgproto3.BackendMessage) ([]byte, error) {
	if err := c.out.send(challenge); err != nil {
		return nil, err
	}
	if err := c.out.flush(); err != nil {
		return nil, err
	}
	var head [5]byte
	if _, err := io.ReadFull(c.net, head[:]); err != nil {
		return nil, err
	}
	if head[0] != typePassword {
		return nil, fatalf("08P01", "expected SASL response, got message type %d", head[0])
	}
	length := binary.BigEndian.Uint32(head[1:])
	if length < 4 || length > maxAnswer {
		return nil, fatalf("08P01", "invalid message length %d", int32(length))
	}
	body := make([]byte, length-4)
	_, err := io.ReadFull(c.net, body)
	return body, err
}

// open makes the Wire of a client that is who it says it is, and tells the
// client what it has to know of the session.
func (c *conn) open(ctx context.Context, in *introduction) error {
	version, err := c.server.o.ServerVersion(ctx)
	if err != nil {
		return fatal(err)
	}
	c.client = c.tlsSubject()
	if c.client == "" {
		c.client = c.addr.String()
	}
	c.login = sqlgate.WireLogin{
		Client:     c.server.o.Holder(c.client),
		Claims:     in.sqlClaims(c.addr.String(), c.server.o.DefaultEnv),
		TLSSubject: c.tlsSubject(), ConnectionID: c.id, Settings: in.settings,
		Stands: c.stands, Agent: c.agent, Stopping: c.server.told,
	}
	if c.users != nil {
		c.login.User = in.user
	}
	wire, err := c.server.o.Open(c.login)
	if err != nil {
		return fatal(err)
	}
	c.wire = wire
	c.key = c.server.cancels.add(c)
	if err := c.server.welcome(c); err != nil { // first, so that whoever was told that it is in finds itself counted
		return err
	}
	if err := c.welcome(version, in.user); err != nil {
		return err
	}
	return c.raw.SetDeadline(time.Time{})
}

// welcome sends what PostgreSQL sends behind a login.
func (c *conn) welcome(version, user string) error {
	parameters := append([][2]string{
		{"server_version", version}, {"server_encoding", "UTF8"}, {"integer_datetimes", "on"}, {"in_hot_standby", "off"},
		{"is_superuser", "off"}, {"session_authorization", user}, {"IntervalStyle", "postgres"},
	}, c.wire.Parameters()...)
	for _, p := range parameters {
		if err := c.out.send(&pgproto3.ParameterStatus{Name: p[0], Value: p[1]}); err != nil {
			return err
		}
	}
	if err := c.out.send(&pgproto3.BackendKeyData{ProcessID: c.key.pid, SecretKey: c.key.secret}); err != nil {
		return err
	}
	if err := c.out.send(&pgproto3.ReadyForQuery{TxStatus: c.wire.Status()}); err != nil {
		return err
	}
	return c.out.flush()
}
