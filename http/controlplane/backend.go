package controlplane

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
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

// A Backend is the way to the gate, with what opens it. Its files can be read
// anew while it serves.
type Backend struct {
	base          *url.URL
	files         BackendFiles
	now           func() time.Time
	client        atomic.Pointer[http.Client] // by the files as last read
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
func NewBackend(address string, files BackendFiles, operatorToken, projectKey string, now func() time.Time) (*Backend, error) {
	base, err := url.Parse(address)
	if err != nil || (base.Scheme != "http" && base.Scheme != "https") || base.Host == "" || base.User != nil || base.RawQuery != "" || base.Fragment != "" {
		return nil, errors.New("GATE_BACKEND_URL must be an address such as https://gate.internal:6543, without user, query or fragment")
	}
	base.Path = strings.TrimSuffix(base.Path, "/")
	b := &Backend{base: base, files: files, now: now, operatorToken: operatorToken, projectKey: projectKey}
	if _, err := b.Reload(); err != nil {
		return nil, err
	}
	return b, nil
}

// Reload reads the files and, when they fit together and are valid now, begins
// new connections by them; answers that are on their way come to their end by the
// old ones. After an error nothing has changed. expires is the moment from which
// the gate cannot be reached any more, zero where no file is named.
func (b *Backend) Reload() (expires time.Time, err error) {
	config, expires, err := b.files.config(b.now())
	if err != nil {
		return time.Time{}, err
	}
	old := b.client.Swap(&http.Client{
		Transport: &http.Transport{
			DialContext: (&net.Dialer{Timeout: dialTime}).DialContext, TLSClientConfig: config, TLSHandshakeTimeout: dialTime,
			ResponseHeaderTimeout: answerTime, MaxIdleConnsPerHost: 16, IdleConnTimeout: time.Minute, DisableCompression: true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	})
	if old != nil {
		old.CloseIdleConnections()
	}
	return expires, nil
}

// Paths are the files that Reload reads.
func (b *Backend) Paths() []string {
	return []string{b.files.CAPath, b.files.CertPath, b.files.KeyPath}
}

// config reads the files; expires is when the first of them ends.
func (f BackendFiles) config(now time.Time) (config *tls.Config, expires time.Time, err error) {
	config = &tls.Config{MinVersion: tls.VersionTLS12}
	if f.CAPath != "" {
		if config.RootCAs, expires, err = tlsfiles.Authorities(f.CAPath, now); err != nil {
			return nil, expires, fmt.Errorf("CONTROL_PLANE_BACKEND_CA_BUNDLE_PATH: %w", err)
		}
	}
	if f.CertPath == "" && f.KeyPath == "" {
		return config, expires, nil
	}
	pair, err := tlsfiles.Pair(f.CertPath, f.KeyPath, now)
	if err != nil {
		return nil, expires, fmt.Errorf("CONTROL_PLANE_BACKEND_CERT_PATH and CONTROL_PLANE_BACKEND_KEY_PATH: %w", err)
	}
	config.Certificates = []tls.Certificate{pair}
	if expires.IsZero() || pair.Leaf.NotAfter.Before(expires) {
		expires = pair.Leaf.NotAfter
	}
	return config, expires, nil
}

// do implements source.
func (b *Backend) do(ctx context.Context, r request) (*answer, error) {
	target := *b.base // JoinPath would clean what it joins
	target.Path, target.RawPath, target.RawQuery = b.base.Path+r.path, b.base.EscapedPath()+r.path, r.query.Encode()
	out, err := http.NewRequestWithContext(ctx, r.method, target.String(), r.body)
	if err != nil {
		return nil, fault.Of(err)
	}
	for name, value := range map[string]string{"Content-Type": r.media, "Accept": r.accept, "Last-Event-ID": r.lastID} {
		if value != "" {
			out.Header.Set(name, value)
		}
	}
	// The operator's token also gives this process shares of its own in what the gate
	// does at once, which strangers behind the same address do not fill.
	switch {
	case r.project && b.projectKey != "":
		out.Header.Set("X-Api-Key", b.projectKey)
	case !r.project && b.operatorToken != "":
		out.Header.Set("X-GATE-Operator-Token", b.operatorToken)
	}
	resp, err := b.client.Load().Do(out)
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
