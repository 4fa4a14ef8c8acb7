package controlplane

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"writegate/commands/fault"
	"writegate/sqlgate/tlsfiles"
)

// BackendFiles are the PEM files for a gate that is reached by HTTPS. All may be
// empty; a certificate needs its key.
type BackendFiles struct {
	CAPath            string // authorities that sign the gate's certificate; empty: the host's
	CertPath, KeyPath string // client certificate for a gate that asks for one
}

// A Backend is the way to the gate, with what opens it.
type Backend struct {
	base          *url.URL
	client        *http.Client
	operatorToken string
	projectKey    string
}

// Times of a call: until the gate is reached, and until it begins to answer.
// A replay of recorded decisions may take half a minute and more.
const (
	dialTime   = 3 * time.Second
	answerTime = 5 * time.Minute
)

// NewBackend reads the address (GATE_BACKEND_URL) and the files. Redirects are
// not followed and no proxy is used: the token goes to this address alone.
func NewBackend(address string, files BackendFiles, operatorToken, projectKey string, now time.Time) (*Backend, error) {
	base, err := url.Parse(address)
	if err != nil || (base.Scheme != "http" && base.Scheme != "https") || base.Host == "" || base.User != nil || base.RawQuery != "" || base.Fragment != "" {
		return nil, errors.New("GATE_BACKEND_URL must be an address such as https://gate.internal:6543, without user, query or fragment")
	}
	base.Path = strings.TrimSuffix(base.Path, "/")
	config, err := files.config(now)
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{
		DialContext: (&net.Dialer{Timeout: dialTime}).DialContext, TLSClientConfig: config, TLSHandshakeTimeout: dialTime,
		ResponseHeaderTimeout: answerTime, MaxIdleConnsPerHost: 16, IdleConnTimeout: time.Minute, DisableCompression: true,
	}
	return &Backend{base: base, operatorToken: operatorToken, projectKey: projectKey, client: &http.Client{
		Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

func (f BackendFiles) config(now time.Time) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if f.CAPath != "" {
		var pool *x509.CertPool
		pool, _, err := tlsfiles.Authorities(f.CAPath, now)
		if err != nil {
			return nil, fmt.Errorf("CONTROL_PLANE_BACKEND_CA_BUNDLE_PATH: %w", err)
		}
		config.RootCAs = pool
	}
	if f.CertPath == "" && f.KeyPath == "" {
		return config, nil
	}
	pair, err := tlsfiles.Pair(f.CertPath, f.KeyPath, now)
	if err != nil {
		return nil, fmt.Errorf("CONTROL_PLANE_BACKEND_CERT_PATH and CONTROL_PLANE_BACKEND_KEY_PATH: %w", err)
	}
	config.Certificates = []tls.Certificate{pair}
	return config, nil
}

// do implements source.
func (b *Backend) do(ctx context.Context, r request) (*answer, error) {
	target := b.base.JoinPath(r.path)
	target.RawQuery = r.query.Encode()
	out, err := http.NewRequestWithContext(ctx, r.method, target.String(), r.body)
	if err != nil {
		return nil, fault.Of(err)
	}
	for name, value := range map[string]string{"Content-Type": r.media, "Accept": r.accept, "Last-Event-ID": r.lastID} {
		if value != "" {
			out.Header.Set(name, value)
		}
	}
	if r.operator && b.operatorToken != "" {
		out.Header.Set("X-GATE-Operator-Token", b.operatorToken)
	}
	if r.project && b.projectKey != "" {
		out.Header.Set("X-Api-Key", b.projectKey)
	}
	resp, err := b.client.Do(out)
	if err != nil {
		return nil, unreachable(ctx, err)
	}
	return &answer{resp.StatusCode, resp.Header, resp.Body}, nil
}

// unreachable says in words what went wrong. The text of the error holds the
// address, so it goes nowhere.
func unreachable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var certificate *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	var deadline net.Error
	var hint string
	switch {
	case errors.As(err, &certificate):
		hint = "Its certificate does not verify: look at CONTROL_PLANE_BACKEND_CA_BUNDLE_PATH and at the certificate's name."
	case errors.As(err, &record):
		hint = "It does not speak TLS there: look at the scheme in GATE_BACKEND_URL."
	case errors.As(err, &deadline) && deadline.Timeout():
		hint = "It did not answer in time."
	case strings.Contains(err.Error(), "refused"):
		hint = "Nothing listens at the configured address. Is the gate running?"
	default:
		hint = "The connection failed. Is the gate running, and is GATE_BACKEND_URL right?"
	}
	return fault.New(fault.BackendUnavailable, "The gate cannot be reached. %s", hint)
}
