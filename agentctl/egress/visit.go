package egress

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

// Limits of a visit.
const (
	MaxBodyBytes   = 1 << 20
	maxHeaderBytes = 64 << 10
	maxRedirects   = 3
)

// A Credential is one header that goes to the first host alone.
type Credential struct{ Header, Value string }

// A Connection is the first one that a visit made.
type Connection struct {
	Address     string    // IP address, without the port
	TLSNotAfter time.Time // end of the server's certificate; zero without TLS
}

// A Visit is one use of the guard, for one tool: its own connections, one
// deadline, and a record of what went wrong. Client is safe for concurrent use.
type Visit struct {
	guard      *Guard
	first      origin
	credential Credential
	transport  *http.Transport
	ctx        context.Context
	cancel     context.CancelFunc

	mu         sync.Mutex
	connection *Connection
	refusal    *Refusal
}

// Visit begins a visit of target, which ParseURL gave. ctx bounds all of it;
// Close ends it.
func (g *Guard) Visit(ctx context.Context, target *url.URL, credential Credential) *Visit {
	v := &Visit{guard: g, first: originOf(target), credential: credential}
	v.ctx, v.cancel = context.WithCancel(ctx)
	v.transport = &http.Transport{
		DialContext:            v.dialPlain,
		DialTLSContext:         v.dialTLS,
		DisableCompression:     true, // what is not decompressed cannot grow
		MaxResponseHeaderBytes: maxHeaderBytes,
		MaxIdleConnsPerHost:    2,
	}
	return v
}

// Client goes where the guard lets it, until the visit ends.
func (v *Visit) Client() *http.Client {
	return &http.Client{Transport: v, CheckRedirect: v.judgeRedirect}
}

// Close ends the visit and all of its connections.
func (v *Visit) Close() {
	v.cancel()
	v.transport.CloseIdleConnections()
}

// Connection is the first connection of the visit, nil when there was none.
func (v *Visit) Connection() *Connection {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.connection
}

// Refusal is the last thing that went wrong on the way, nil when nothing did.
func (v *Visit) Refusal() *Refusal {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.refusal
}

// Forget drops the refusal: what went wrong was made good by a later answer.
func (v *Visit) Forget() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.refusal = nil
}

// RoundTrip sends one request of the visit (http.RoundTripper).
func (v *Visit) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(req.Context())
	// The visit's end is the end of each of its requests, also of those that were
	// begun with a context of their own.
	stop := context.AfterFunc(v.ctx, cancel)
	release := func() { stop(); cancel() }

	resp, err := v.transport.RoundTrip(v.dress(req.Clone(ctx)))
	if err != nil {
		release()
		return nil, v.note(err, req.Response != nil)
	}
	resp.Body = &cappedBody{visit: v, body: resp.Body, left: MaxBodyBytes, release: release}
	if err := readableLocation(resp); err != nil {
		return nil, errors.Join(v.note(err, true), resp.Body.Close())
	}
	return resp, nil
}

// readableLocation sees the Location of a redirect before http.Client does,
// whose error would quote it.
func readableLocation(resp *http.Response) error {
	if resp.StatusCode/100 != 3 || resp.Header.Get("Location") == "" {
		return nil
	}
	if _, err := resp.Location(); err != nil {
		return refuse(RedirectBlocked, "The server redirects to a URL that cannot be read.")
	}
	return nil
}

// dress puts on what the other side may see. The request is a clone.
func (v *Visit) dress(req *http.Request) *http.Request {
	req.Header.Del("Referer") // the URL before a redirect is nobody else's business
	req.Header.Set("User-Agent", "gate-tool-verification")
	req.Header.Set("Accept-Encoding", "identity")
	if v.credential.Header != "" {
		req.Header.Del(v.credential.Header)
		if v.stayedHome(req) {
			req.Header.Set(v.credential.Header, v.credential.Value)
		}
	}
	return req
}

// stayedHome reports whether this request and all that redirected to it are for
// the first host. A host that was visited on the way could otherwise choose what
// is asked there with the credential.
func (v *Visit) stayedHome(req *http.Request) bool {
	for req != nil {
		if originOf(req.URL) != v.first {
			return false
		}
		if req.Response == nil {
			return true
		}
		req = req.Response.Request
	}
	return false
}

// judgeRedirect is http.Client.CheckRedirect.
func (v *Visit) judgeRedirect(req *http.Request, via []*http.Request) error {
	if len(via) > maxRedirects {
		return v.note(refuse(RedirectBlocked, "The server redirects more than %d times.", maxRedirects), true)
	}
	if req.URL.Scheme != "https" {
		return v.note(refuse(RedirectBlocked, "The server redirects to a URL that is not https."), true)
	}
	if _, err := v.guard.ParseURL(req.URL.String()); err != nil {
		return v.note(err, true)
	}
	return nil
}

// note records what went wrong, as the refusal that it gives back.
func (v *Visit) note(err error, redirected bool) *Refusal {
	r := v.classify(err)
	if redirected && (r.Code == URLForbidden || r.Code == Blocked) {
		r = refuse(RedirectBlocked, "The server redirects to where tools may not be. %s", r.Why)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.refusal = r
	return r
}

func (v *Visit) classify(err error) *Refusal {
	if r, ok := asRefusal(err); ok {
		return r
	}
	var timeout net.Error
	switch {
	case v.ctx.Err() != nil, errors.As(err, &timeout) && timeout.Timeout():
		return refuse(Timeout, "The deadline came before the answer.")
	case strings.Contains(err.Error(), "response headers exceeded"):
		return refuse(ResponseTooLarge, "The headers of the answer are larger than %d bytes.", maxHeaderBytes)
	}
	return refuse(ProtocolError, "The server ended the exchange or did not answer in HTTP.")
}

func (v *Visit) dialPlain(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := v.dial(ctx, network, address, true)
	if err != nil {
		return nil, err
	}
	v.made(conn, time.Time{})
	return conn, nil
}

func (v *Visit) dialTLS(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := v.dial(ctx, network, address, false)
	if err != nil {
		return nil, err
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	// HTTP/2 is not offered: its connections can serve several hosts, and one
	// connection here is for one judged host.
	secure := tls.Client(conn, &tls.Config{ServerName: host, RootCAs: v.guard.roots, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}})
	if err := secure.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(v.refuseTLS(err), conn.Close())
	}
	v.made(conn, secure.ConnectionState().PeerCertificates[0].NotAfter)
	return secure, nil
}

func (v *Visit) refuseTLS(err error) error {
	var timeout net.Error
	if v.ctx.Err() != nil || errors.As(err, &timeout) && timeout.Timeout() {
		return err
	}
	var cert *tls.CertificateVerificationError
	if errors.As(err, &cert) {
		return refuse(TLSFailed, "The server's certificate is not valid for this host.")
	}
	return refuse(TLSFailed, "The TLS handshake failed.")
}

func (v *Visit) dial(ctx context.Context, network, address string, plain bool) (net.Conn, error) {
	deadline, _ := v.ctx.Deadline()
	dialer := net.Dialer{Resolver: v.guard.resolver, Control: v.guard.control(plain), Deadline: deadline}
	conn, err := dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, v.refuseDial(err)
	}
	// The connection itself ends at the deadline, whatever is done with it.
	if err := conn.SetDeadline(deadline); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

func (v *Visit) refuseDial(err error) error {
	if r, ok := asRefusal(err); ok {
		return r
	}
	var timeout net.Error
	if v.ctx.Err() != nil || errors.As(err, &timeout) && timeout.Timeout() {
		return err
	}
	var dns *net.DNSError
	if errors.As(err, &dns) {
		return refuse(DNSFailed, "The host's name has no address.")
	}
	return refuse(ConnectFailed, "Nobody answers at the host's address and port.")
}

// made keeps the first connection.
func (v *Visit) made(conn net.Conn, notAfter time.Time) {
	host, _, err := net.SplitHostPort(conn.RemoteAddr().String())
	if err != nil {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.connection == nil {
		v.connection = &Connection{Address: host, TLSNotAfter: notAfter}
	}
}

// A cappedBody ends at MaxBodyBytes, with a refusal if there is more.
type cappedBody struct {
	visit   *Visit
	body    io.ReadCloser
	left    int
	release func()
	failed  error
}

func (b *cappedBody) Read(p []byte) (int, error) {
	if b.failed != nil {
		return 0, b.failed
	}
	// One byte more than is left tells a body that is too large from one that
	// just fits.
	if len(p) > b.left+1 {
		p = p[:b.left+1]
	}
	n, err := b.body.Read(p)
	if n > b.left {
		n, err = b.left, refuse(ResponseTooLarge, "A body of the answer is larger than %d bytes.", MaxBodyBytes)
	}
	b.left -= n
	if err != nil && err != io.EOF {
		b.failed = b.visit.note(err, false)
		return n, b.failed
	}
	return n, err
}

func (b *cappedBody) Close() error {
	defer b.release()
	return b.body.Close()
}
