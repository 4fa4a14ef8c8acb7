package httpd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"writegate/commands/fault"
	"writegate/sqlgate/tlsfiles"
)

// TLSFiles is the material of a TLS listener (design/execution-and-wire.md part 7).
type TLSFiles struct {
	CertPath, KeyPath string // GATE_TLS_CERT_PATH, GATE_TLS_KEY_PATH
	ClientCAPath      string // GATE_TLS_CLIENT_CA_BUNDLE_PATH; empty: clients show no certificate
	RequireClientCert bool   // GATE_TLS_REQUIRE_CLIENT_CERT
	MinVersion        string // GATE_TLS_MIN_VERSION: 1.2 or 1.3
}

// TLS is the material of a listener that can be read anew while it serves. A
// connection is judged by what is loaded at its handshake, and once more at its
// first request, and where the material changed or a certificate of its chain ended.
type TLS struct {
	files   TLSFiles
	now     func() time.Time
	current atomic.Pointer[tlsSet]
}

// tlsSet is what one reading of the files gave; it never changes.
type tlsSet struct {
	config  *tls.Config
	expires time.Time
}

// NewTLS reads the files for the first time.
func NewTLS(files TLSFiles, now func() time.Time) (*TLS, error) {
	t := &TLS{files: files, now: now}
	if _, err := t.Reload(); err != nil {
		return nil, err
	}
	return t, nil
}

// Reload reads all files, and puts them in the place of what was used when
// they fit together and are valid now. After an error nothing has changed.
// expires is the moment from which clients cannot connect any more.
func (t *TLS) Reload() (expires time.Time, err error) {
	set, err := t.files.load(t.now)
	if err != nil {
		return time.Time{}, err
	}
	t.current.Store(set)
	return set.expires, nil
}

// tls12Suites are those of TLS 1.2 with forward secrecy and an AEAD. TLS 1.3
// has no others, and Go chooses among them by itself.
var tls12Suites = []uint16{
	tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
	tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
	tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
}

func (f TLSFiles) load(clock func() time.Time) (*tlsSet, error) {
	now := clock()
	pair, err := tlsfiles.Pair(f.CertPath, f.KeyPath, now)
	if err != nil {
		return nil, fmt.Errorf("GATE_TLS_CERT_PATH and GATE_TLS_KEY_PATH: %w", err)
	}
	config := &tls.Config{
		Time: clock, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12, CipherSuites: tls12Suites, NextProtos: []string{"http/1.1"},
		// A resumed session would be judged by the CA of the day it began.
		SessionTicketsDisabled: true,
	}
	if f.MinVersion == "1.3" {
		config.MinVersion = tls.VersionTLS13
	}
	set := &tlsSet{config: config, expires: pair.Leaf.NotAfter}
	if f.ClientCAPath == "" {
		return set, nil
	}
	pool, expires, err := tlsfiles.Authorities(f.ClientCAPath, now)
	if err != nil {
		return nil, fmt.Errorf("GATE_TLS_CLIENT_CA_BUNDLE_PATH: %w", err)
	}
	config.ClientCAs, config.ClientAuth = pool, tls.VerifyClientCertIfGiven
	if f.RequireClientCert {
		config.ClientAuth = tls.RequireAndVerifyClientCert
	}
	if expires.Before(set.expires) {
		set.expires = expires
	}
	return set, nil
}

// listen puts TLS before a listener. The configuration is asked for anew at
// each handshake.
func (t *TLS) listen(inner net.Listener) net.Listener {
	return tls.NewListener(inner, &tls.Config{
		MinVersion:         tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return t.current.Load().config, nil },
	})
}

// Config is what is loaded now, for another listener with the same material. It
// must not be changed.
func (t *TLS) Config() *tls.Config { return t.current.Load().config }

// clientTrustKey finds, in a connection's context, its clientTrust.
type clientTrustKey struct{}

// A clientTrust is what the client certificate of a connection was last verified with.
type clientTrust struct {
	tls  *TLS
	last atomic.Pointer[trusted] // nil before the first request
}

type trusted struct {
	by    *tlsSet
	until time.Time
}

func (t *TLS) remember(ctx context.Context, _ net.Conn) context.Context {
	return context.WithValue(ctx, clientTrustKey{}, &clientTrust{tls: t})
}

// guard ends a connection whose client would be refused today: its authority
// was taken out of the bundle, or its certificate or one of an authority of it ran
// out, since the handshake.
func (t *TLS) guard(next http.Handler, log *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := stillTrusted(r); err != nil {
			log.Warn(untrusted, "source", logSource, "client", TLSSubject(r), "error", err)
			panic(http.ErrAbortHandler) // what a new handshake would be told has no form inside this one
		}
		next.ServeHTTP(w, r)
	})
}

const untrusted = "a connection is closed: its client certificate does not verify any more"

// CertificateStands is credentials_invalid where the client certificate of the call's
// connection does not verify any more.
func (c *Call) CertificateStands() error {
	err := stillTrusted(c.Request)
	if err == nil {
		return nil
	}
	return fault.New(fault.CredentialsInvalid, "Your client certificate does not verify any more, so nothing was executed. Connect anew with one that does.").Because(err)
}

// stillTrusted is why the client of a request would be refused today. It is asked
// again where a request took its time.
func stillTrusted(r *http.Request) error {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return nil
	}
	c, ok := r.Context().Value(clientTrustKey{}).(*clientTrust)
	if !ok {
		return errors.New("the connection is not one of this listener")
	}
	set, now, last := c.tls.current.Load(), c.tls.now(), c.last.Load()
	if last != nil && last.by == set && !now.After(last.until) {
		return nil
	}
	until, err := tlsfiles.VerifyClient(r.TLS.PeerCertificates, set.config.ClientCAs, now)
	if err == nil {
		c.last.Store(&trusted{set, until})
	}
	return err
}
