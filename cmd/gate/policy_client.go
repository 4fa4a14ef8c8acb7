package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"writegate/sqlgate/policy"
	"writegate/sqlgate/tlsfiles"
)

// Bounds of a conversation with a gate: an answer that lists every version
// stays far below, and a replay has a time of its own on top.
const (
	maxGateAnswer = 64 << 20
	gateDialTime  = 5 * time.Second
	gateTime      = 60 * time.Second
)

// A gateClient speaks to the API of a running gate. It follows no redirect and
// uses no proxy, so that a credential goes to that gate alone.
type gateClient struct {
	damaged string // what a list said of the log that it was read from
	base    string
	header  string // of its credential
	secret  string // "" = none is shown
	match   string // If-Match; "" = the last writer wins
	http    *http.Client
}

// A gateAddress says which running gate is meant, and how to know it.
type gateAddress struct {
	url       string
	ca        string // PEM file of the authorities to believe; "" is those of the system
	cert, key string // PEM files of a client certificate, "" for none
}

// gateFlag is the flags of every command that can speak to a running gate.
func gateFlag(cmd *cobra.Command, to *gateAddress) {
	cmd.Flags().StringVar(&to.url, "url", "", "URL of the running gate, such as http://127.0.0.1:6543; default GATE_URL, or else the gate of GATE_HTTP_LISTEN_ADDR")
	cmd.Flags().StringVar(&to.ca, "cacert", "", "PEM file of the authority that signed the gate's certificate")
	cmd.Flags().StringVar(&to.cert, "cert", "", "PEM file of a client certificate to show to the gate")
	cmd.Flags().StringVar(&to.key, "key", "", "PEM file of its key")
}

// tls is what the flags say about certificates.
func (g gateAddress) tls() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if g.ca != "" {
		pool, _, err := tlsfiles.Authorities(g.ca, time.Now())
		if err != nil {
			return nil, fmt.Errorf("--cacert: %w", err)
		}
		config.RootCAs = pool
	}
	if (g.cert == "") != (g.key == "") {
		return nil, errors.New("--cert and --key go together: give both or none")
	}
	if g.cert != "" {
		pair, err := tlsfiles.Pair(g.cert, g.key, time.Now())
		if err != nil {
			return nil, fmt.Errorf("--cert and --key: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// gateClient makes a client for the gate at an address; without a URL it is the
// gate that these settings start.
func (a *app) gateClient(s *settings, at gateAddress) (*gateClient, error) {
	encrypted, err := at.tls()
	if err != nil {
		return nil, err
	}
	address, name := at.url, "--url"
	if address == "" {
		address, name = s.ClientURL, "GATE_URL"
	}
	if address == "" {
		host, port, err := net.SplitHostPort(s.HTTPListenAddr)
		if err != nil {
			return nil, fmt.Errorf("GATE_HTTP_LISTEN_ADDR is %q, which is no address of a running gate; use --url", s.HTTPListenAddr)
		}
		if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
			host = "127.0.0.1"
		}
		scheme := "http://"
		if s.TLSCert != "" {
			scheme = "https://"
		}
		address = scheme + net.JoinHostPort(host, port)
	}
	u, err := url.Parse(address)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.User != nil || u.RawQuery != "" {
		return nil, fmt.Errorf("%s must be http://host:port or https://host:port, without user, password or query", name)
	}
	return &gateClient{
		base: strings.TrimRight(u.String(), "/"), header: "X-GATE-Operator-Token", secret: s.OperatorToken,
		http: &http.Client{
			Timeout:       gateTime + millis(s.ReplayTimeout),
			Transport:     &http.Transport{DialContext: (&net.Dialer{Timeout: gateDialTime}).DialContext, TLSClientConfig: encrypted, ForceAttemptHTTP2: true},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

// A gateRefusal is an error object that the gate answered with.
type gateRefusal struct {
	Code    string         `json:"error_code"`
	Message string         `json:"message"`
	ErrorID string         `json:"error_id"`
	Details map[string]any `json:"details"`
	raw     []byte
}

func (r *gateRefusal) Error() string { return r.Message }

// findings are those of the details, where there are any.
func (r *gateRefusal) findings() []policy.Finding {
	var found []policy.Finding
	if text, err := json.Marshal(r.Details["findings"]); err != nil || json.Unmarshal(text, &found) != nil {
		return nil
	}
	return found
}

// call sends a request, body nil for none, and decodes the answer into answer.
// It gives the answer's bytes as well, for --json.
func (g *gateClient) call(ctx context.Context, method, path string, body, answer any) ([]byte, error) {
	response, read, err := g.send(ctx, method, path, body)
	if err != nil {
		return nil, err
	}
	if response.StatusCode/100 != 2 {
		return nil, g.refusal(response.Status, read)
	}
	if err := json.Unmarshal(read, answer); err != nil {
		return nil, fmt.Errorf("what answers at %s is no gate: its answer to %s %s cannot be read; look at --url", g.base, method, path)
	}
	return read, nil
}

// send sends a request and reads the answer, whatever its status.
func (g *gateClient) send(ctx context.Context, method, path string, body any) (*http.Response, []byte, error) {
	var text []byte
	if body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			return nil, nil, err
		}
	}
	request, err := http.NewRequestWithContext(ctx, method, g.base+path, bytes.NewReader(text))
	if err != nil {
		return nil, nil, err
	}
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	if g.secret != "" {
		request.Header.Set(g.header, g.secret)
	}
	if g.match != "" {
		request.Header.Set("If-Match", g.match)
	}
	response, err := g.http.Do(request)
	if err != nil {
		return nil, nil, g.unreachable(err)
	}
	defer response.Body.Close()
	read, err := io.ReadAll(io.LimitReader(response.Body, maxGateAnswer))
	if err != nil {
		return nil, nil, g.unreachable(err)
	}
	return response, read, nil
}

func (g *gateClient) refusal(status string, body []byte) error {
	r := &gateRefusal{raw: body}
	if json.Unmarshal(body, r) != nil || r.Code == "" {
		return fmt.Errorf("what answers at %s is no gate, or something stands between (%s); look at --url", g.base, status)
	}
	return r
}

// unreachable says what to check; the cause names the address, never the credential.
func (g *gateClient) unreachable(err error) error {
	var inner *url.Error
	if errors.As(err, &inner) {
		err = inner.Err
	}
	return fmt.Errorf("no gate answers at %s: %w\nIs it running? The address is that of --url, or of GATE_HTTP_LISTEN_ADDR where that is not given", g.base, err)
}
