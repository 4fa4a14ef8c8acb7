package pgwire

import (
	"bytes"
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"

	// The hashes of certificates that a channel is bound to.
	_ "crypto/sha256"
	_ "crypto/sha512"

	"writegate/sqlgate"
	"writegate/sqlgate/tlsfiles"
)

// alpn is PostgreSQL's name in TLS (IANA, protocol-flow of PostgreSQL 17).
const alpn = "postgresql"

// handshake takes a connection into TLS. begun is what was read of the client's
// first record already.
func (c *conn) handshake(ctx context.Context, begun []byte) error {
	config := c.server.o.TLS().Clone()
	config.NextProtos = []string{alpn} // another one is refused with an alert, none is fine
	var under net.Conn = c.raw
	if len(begun) > 0 {
		under = &prefixed{Conn: c.raw, reader: io.MultiReader(bytes.NewReader(begun), c.raw)}
	}
	secured := tls.Server(under, config)
	if err := secured.HandshakeContext(ctx); err != nil {
		return fmt.Errorf("%w: %w", errHandshake, err)
	}
	state := secured.ConnectionState()
	c.net, c.out.conn, c.tls = secured, secured, &state
	c.leaf = config.Certificates[0].Leaf.Raw
	return nil
}

// A prefixed connection gives back what was read of it.
type prefixed struct {
	net.Conn
	reader io.Reader
}

func (p *prefixed) Read(b []byte) (int, error) { return p.reader.Read(b) }

// endPoint is the channel binding tls-server-end-point of a certificate: its
// hash by the hash of its own signature, and SHA-256 in the place of MD5 and
// SHA-1 (RFC 5929 part 4.1). A signature without a hash has none.
func endPoint(leaf []byte) []byte {
	cert, err := x509.ParseCertificate(leaf)
	if err != nil {
		return nil
	}
	var hash crypto.Hash
	switch cert.SignatureAlgorithm {
	case x509.SHA256WithRSA, x509.SHA256WithRSAPSS, x509.ECDSAWithSHA256, x509.SHA1WithRSA, x509.ECDSAWithSHA1, x509.MD5WithRSA:
		hash = crypto.SHA256
	case x509.SHA384WithRSA, x509.SHA384WithRSAPSS, x509.ECDSAWithSHA384:
		hash = crypto.SHA384
	case x509.SHA512WithRSA, x509.SHA512WithRSAPSS, x509.ECDSAWithSHA512:
		hash = crypto.SHA512
	default:
		return nil
	}
	h := hash.New()
	h.Write(leaf)
	return h.Sum(nil)
}

// verifiedLeaf is the client certificate that was verified, nil without one.
func (c *conn) verifiedLeaf() *x509.Certificate {
	if c.tls == nil || len(c.tls.VerifiedChains) == 0 {
		return nil
	}
	return c.tls.VerifiedChains[0][0]
}

// trusted ends a conversation whose client would be refused today: its user was taken
// out of the file or has another password, its authority was taken out of the bundle,
// or its certificate or one of an authority of it ran out, since the handshake.
func (c *conn) trusted() *failure {
	if c.users != nil {
		if now := c.server.o.Users.current.Load(); now != c.users {
			if v, known := now.verifiers[c.claimed]; !known || v.StoredKey != c.storedKey {
				return fatalf("28P01", "the password that user %s logged in with is not valid any more", quote(c.claimed))
			}
			c.users = now
		}
	}
	if c.verifiedLeaf() == nil {
		return nil
	}
	config, now := c.server.o.TLS(), c.server.o.Now()
	if config == c.judged && !now.After(c.until) {
		return nil
	}
	until, err := tlsfiles.VerifyClient(c.tls.PeerCertificates, config.ClientCAs, now)
	if err != nil {
		f := fatalf("28000", "the client certificate does not verify any more")
		f.cause = err
		return f
	}
	c.judged, c.until = config, until
	return nil
}

// stands is trusted while a statement is on its way, as an error of the session's.
func (c *conn) stands() *sqlgate.WireError {
	f := c.trusted()
	if f == nil {
		return nil
	}
	c.server.log.Debug("a login ended while its statement waited", "wire_session", c.id, "cause", f.Error())
	return &sqlgate.WireError{SQLState: f.response.Code, Message: f.response.Message, Fatal: true}
}

// tlsSubject is the name of the client certificate, its subject as a rule
// (tlsfiles.ClientName), "" without one.
func (c *conn) tlsSubject() string {
	if leaf := c.verifiedLeaf(); leaf != nil {
		return tlsfiles.ClientName(leaf)
	}
	return ""
}
