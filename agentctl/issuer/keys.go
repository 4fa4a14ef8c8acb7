package issuer

import (
	"context"
	"crypto/rsa"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"

	"writegate/agentctl/egress"
	"writegate/commands/fault"
)

// logSource is the source attribute of this package's log entries.
const logSource = "agents"

// Run reads the issuer's keys, and reads them anew, until ctx ends.
func (i *Issuer) Run(ctx context.Context) {
	for {
		i.refresh(ctx)
		next := RefreshEvery
		if !i.Status().OK {
			next = RefetchAfter
		}
		select {
		case <-time.After(next):
		case <-ctx.Done():
			return
		}
	}
}

// refresh reads the keys, and waits until they are there or ctx ends. What was tried less
// than RefetchAfter ago is not tried again; who comes while it is tried waits for that.
func (i *Issuer) refresh(ctx context.Context) {
	i.mu.Lock()
	if i.fetching == nil {
		now := i.Now()
		if !i.tried.IsZero() && now.Sub(i.tried) < RefetchAfter {
			i.mu.Unlock()
			return
		}
		i.tried, i.fetching = now, make(chan struct{})
		go i.fetch(context.WithoutCancel(ctx), i.fetching) // others may wait for it, too
	}
	done := i.fetching
	i.mu.Unlock()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// fetch is one attempt.
func (i *Issuer) fetch(ctx context.Context, done chan struct{}) {
	ctx, cancel := context.WithTimeout(ctx, fetchTime)
	defer cancel()
	keys, err := i.readKeys(ctx)
	i.mu.Lock()
	before := i.problem
	if i.problem = ""; err != nil {
		i.problem = err.Error()
	} else {
		i.keys, i.read = keys, i.Now()
	}
	said := i.problem
	i.fetching = nil
	i.mu.Unlock()
	defer close(done)
	switch {
	case said != "" && said != before:
		i.Logger.Warn("the keys of the issuer of agents' tokens could not be read; those that were read before go on for a day", "source", logSource, "issuer", i.URL, "cause", said)
	case said == "" && before != "":
		i.Logger.Info("the keys of the issuer of agents' tokens are read again", "source", logSource, "issuer", i.URL)
	}
}

// readKeys asks the issuer for its document, and then for the keys that it names.
func (i *Issuer) readKeys(ctx context.Context) ([]jose.JSONWebKey, error) {
	var about struct {
		Issuer string `json:"issuer"`
		Keys   string `json:"jwks_uri"`
	}
	if err := i.get(ctx, i.document, &about); err != nil {
		return nil, fmt.Errorf("its document (%s): %w", i.document, err)
	}
	if about.Issuer != i.URL {
		return nil, errors.New("its document (" + i.document + ") is of another issuer than GATE_AGENT_OIDC_ISSUER names; the two have to be the same, byte by byte")
	}
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := i.get(ctx, about.Keys, &set); err != nil {
		return nil, fmt.Errorf("its keys (jwks_uri): %w", err)
	}
	if len(set.Keys) > maxKeys {
		return nil, fmt.Errorf("its keys (jwks_uri): there are more than %d", maxKeys)
	}
	var keys []jose.JSONWebKey
	for _, text := range set.Keys {
		var k jose.JSONWebKey
		if json.Unmarshal(text, &k) == nil && usable(&k) { // RFC 7517 section 5: others are ignored
			keys = append(keys, k)
		}
	}
	if len(keys) == 0 {
		return nil, errors.New("its keys (jwks_uri): none of them is a public key that signs tokens")
	}
	return keys, nil
}

// usable tells whether tokens may be checked by a key.
func usable(k *jose.JSONWebKey) bool {
	if !k.Valid() || !k.IsPublic() || k.Use != "" && k.Use != "sig" || k.Algorithm != "" && !slices.Contains(algorithms, jose.SignatureAlgorithm(k.Algorithm)) {
		return false
	}
	public, isRSA := k.Key.(*rsa.PublicKey)
	return !isRSA || public.N.BitLen() >= leastRSA && public.N.BitLen() <= mostRSA
}

// get reads a JSON document. A redirect is refused: an issuer's documents are where it says.
func (i *Issuer) get(ctx context.Context, address string, into any) error {
	client, leave, err := i.way(ctx, address)
	if err != nil {
		return err
	}
	defer leave()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return errors.New("its address is no URL")
	}
	request.Header.Set("Accept", "application/json")
	request.Header.Set("User-Agent", "gate")
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	response, err := client.Do(request)
	if err != nil {
		var tooLate interface{ Timeout() bool }
		if ctx.Err() != nil || errors.As(err, &tooLate) && tooLate.Timeout() {
			return fmt.Errorf("it did not answer within %s", fetchTime)
		}
		return errors.New(unreached(err))
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("it was answered with the status %d", response.StatusCode)
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxDocument+1))
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("it did not come within %s", fetchTime)
	case err != nil:
		return errors.New("it broke off")
	case len(body) > maxDocument:
		return fmt.Errorf("it is larger than %d bytes", maxDocument)
	case json.Unmarshal(body, into) != nil:
		return errors.New("it is not the JSON that it should be")
	}
	return nil
}

// unreached says why nobody answered, in words that hold nothing of what was sent.
func unreached(err error) string {
	var refusal *egress.Refusal
	var certificate *tls.CertificateVerificationError
	var name *net.DNSError
	var dial *net.OpError
	switch {
	case errors.As(err, &refusal):
		return refusal.Why
	case errors.As(err, &certificate):
		return "the certificate that is shown there is not one that the gate believes (GATE_AGENT_OIDC_CA_BUNDLE_PATH)"
	case errors.As(err, &name):
		return "its name has no address"
	case errors.As(err, &dial) && dial.Op == "dial":
		return "nobody answers at its address"
	}
	return "the connection to it broke off"
}

// way is a client for one address: straight to the issuer's own host, and to any other by
// the guard. No proxy of the environment is used.
func (i *Issuer) way(ctx context.Context, address string) (client *http.Client, leave func(), err error) {
	to, err := url.Parse(address)
	own, ownErr := url.Parse(i.URL)
	if err != nil || ownErr != nil || to.Host == "" || to.Scheme != "https" && to.Scheme != own.Scheme || to.User != nil {
		return nil, nil, errors.New("its address is no https URL")
	}
	if !strings.EqualFold(to.Host, own.Host) || to.Scheme != own.Scheme {
		target, err := i.Guard.ParseURL(address)
		if err != nil {
			if refusal := new(egress.Refusal); errors.As(err, &refusal) {
				err = errors.New(refusal.Why + " It lies on another host than the issuer: GATE_EGRESS_ALLOW_CIDRS and GATE_EGRESS_ALLOW_PORTS open what is not public.")
			}
			return nil, nil, err
		}
		visit := i.Guard.Visit(ctx, target, egress.Credential{})
		return visit.Client(), visit.Close, nil
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: i.Roots, MinVersion: tls.VersionTLS12}, DisableKeepAlives: true,
		DisableCompression: true, MaxResponseHeaderBytes: 64 << 10, ForceAttemptHTTP2: true}
	return &http.Client{Transport: transport}, transport.CloseIdleConnections, nil
}

// A keySet checks one token. What it finds out stays with it, as the library hands on texts
// of errors alone.
type keySet struct {
	issuer  *Issuer
	signed  bool // by a key of the issuer
	payload []byte
	err     error
}

// VerifySignature implements oidc.KeySet.
func (s *keySet) VerifySignature(ctx context.Context, token string) ([]byte, error) {
	s.err = s.check(ctx, token)
	return s.payload, s.err
}

func (s *keySet) check(ctx context.Context, token string) error {
	jws, err := jose.ParseSignedCompact(token, algorithms)
	if err != nil || len(jws.Signatures) != 1 {
		return refused("it is no JWT that is signed by %s", strings.Join(names(algorithms), ", "))
	}
	header := jws.Signatures[0].Header
	said, isText := header.ExtraHeaders[jose.HeaderType].(string)
	if _, there := header.ExtraHeaders[jose.HeaderType]; there && !isText || !slices.Contains(types, strings.ToLower(said)) {
		return refused("its header says that it is for another use (typ)")
	}
	keys, err := s.issuer.keysFor(ctx, header.KeyID)
	if err != nil {
		return err
	}
	for _, k := range keys {
		if k.Algorithm != "" && k.Algorithm != header.Algorithm {
			continue
		}
		if payload, err := jws.Verify(k.Key); err == nil {
			s.payload, s.signed = payload, true
			return nil
		}
	}
	return refused("its signature is none of the issuer's")
}

// issuerOf is the issuer that the token names, once its signature is checked.
func (s *keySet) issuerOf() string {
	var claims struct {
		Issuer string `json:"iss"`
	}
	_ = json.Unmarshal(s.payload, &claims)
	return claims.Issuer
}

// keysFor are the keys that a token may be signed with: that of its kid, or all where it
// names none. One that is not there may be new, so the issuer is asked.
func (i *Issuer) keysFor(ctx context.Context, kid string) ([]jose.JSONWebKey, error) {
	keys, problem := i.known(kid)
	if len(keys) == 0 {
		i.refresh(ctx)
		keys, problem = i.known(kid)
	}
	switch {
	case len(keys) > 0:
		return keys, nil
	case ctx.Err() != nil || problem:
		return nil, fault.New(fault.IssuerUnavailable, "The keys of the issuer of agents' tokens can't be read at this time, so this token can't be checked. Send the request again later; a token of the gate itself (wga_) is good meanwhile.").
			With("retry_after_seconds", int(RefetchAfter/time.Second))
	}
	return nil, refused("the issuer has no key of its kid")
}

// known are the keys that fit; problem tells that there may be others, which can't be read.
func (i *Issuer) known(kid string) (keys []jose.JSONWebKey, problem bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.read.IsZero() || i.stale() {
		return nil, true
	}
	for _, k := range i.keys {
		if kid == "" || k.KeyID == kid {
			keys = append(keys, k)
		}
	}
	return keys, i.problem != ""
}
