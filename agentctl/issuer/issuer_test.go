package issuer_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/big"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/stretchr/testify/require"

	"writegate/agentctl/egress"
	"writegate/agentctl/issuer"
	"writegate/commands/fault"
	fixture "writegate/fixtures/issuer"
	"writegate/fixtures/loopback"
	"writegate/fixtures/manualclock"
)

// rig is an issuer and the gate's side of it, whose clock is the test's.
type rig struct {
	*fixture.Issuer
	checks *issuer.Issuer
	clock  *manualclock.Clock
	said   *bytes.Buffer
}

func newRig(t *testing.T) *rig {
	r := &rig{Issuer: fixture.New(t), clock: manualclock.At(time.Now()), said: new(bytes.Buffer)}
	r.checks = r.over(t, egress.New(egress.Rules{}))
	return r
}

func (r *rig) over(t *testing.T, guard *egress.Guard) *issuer.Issuer {
	checks, err := issuer.New(issuer.Options{URL: r.URL, Audience: fixture.Audience, Roots: r.Authority.Pool(), Guard: guard, Now: r.clock.Now,
		Logger: slog.New(slog.NewTextHandler(r.said, nil))})
	require.NoError(t, err)
	return checks
}

func (r *rig) refuses(t *testing.T, code fault.Code, token, words string) {
	t.Helper()
	_, err := r.checks.Verify(context.Background(), token)
	require.Equal(t, code, fault.CodeOf(err), "%v", err)
	require.ErrorContains(t, err, words)
}

func rsaKey(t *testing.T, bits int) *rsa.PrivateKey {
	key, err := rsa.GenerateKey(rand.Reader, bits)
	require.NoError(t, err)
	return key
}

func TestATokenOfTheIssuerIsTaken(t *testing.T) {
	r := newRig(t)
	big, err := ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	require.NoError(t, err)
	_, small, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	for _, k := range []struct {
		alg jose.SignatureAlgorithm
		key crypto.Signer
	}{{jose.RS256, rsaKey(t, 2048)}, {jose.PS384, rsaKey(t, 2048)}, {jose.ES512, big}, {jose.EdDSA, small}} {
		r.Add(string(k.alg), k.key, k.alg)
		r.clock.Advance(issuer.RefetchAfter)
		id, err := r.checks.Verify(context.Background(), r.Token("client-7"))
		require.NoError(t, err, k.alg)
		require.Equal(t, "client-7", id.Subject)
	}
	at := r.clock.Now()
	for name, claims := range map[string]map[string]any{
		"audiences":        {"aud": []string{"https://other.example.com", fixture.Audience}},
		"a fraction":       {"exp": float64(at.Unix()) + 100.5},
		"clocks that lag":  {"iat": at.Add(20 * time.Second).Unix(), "nbf": at.Add(20 * time.Second).Unix()},
		"an end just gone": {"exp": at.Add(-20 * time.Second).Unix()},
		"an end far off":   {"exp": 1e17},
	} {
		_, err := r.checks.Verify(context.Background(), r.Token("client-7", claims))
		require.NoError(t, err, name)
	}
	id, err := r.checks.Verify(context.Background(), r.Token("client-7", map[string]any{"iat": at.Unix(), "exp": at.Unix() + 60}))
	require.NoError(t, err)
	require.Equal(t, []time.Time{time.Unix(at.Unix(), 0).UTC(), time.Unix(at.Unix()+60, 0).UTC().Add(issuer.Leeway)}, []time.Time{id.IssuedAt, id.Until})
}

func TestATokenThatSaysTheWrongThingIsRefused(t *testing.T) {
	r := newRig(t)
	at := time.Now()
	for _, c := range []struct {
		words  string
		code   fault.Code
		claims map[string]any
	}{
		{"iss has to be", "", map[string]any{"iss": r.URL + "/"}},
		{"iss has to be", "", map[string]any{"iss": strings.ToUpper(r.URL)}},
		{"iss has to be", "", map[string]any{"iss": nil}},
		{"aud has to hold", "", map[string]any{"aud": fixture.Audience + "/"}},
		{"aud has to hold", "", map[string]any{"aud": []string{}}},
		{"aud has to hold", "", map[string]any{"aud": nil}},
		{"aud has to hold", "", map[string]any{"aud": map[string]any{fixture.Audience: true}}},
		{"time is over", fault.TokenExpired, map[string]any{"exp": at.Add(-31 * time.Second).Unix()}},
		{"time is over", fault.TokenExpired, map[string]any{"exp": -1e17}},
		{"does not say exp", "", map[string]any{"exp": nil}},
		{"claims can't be read", "", map[string]any{"exp": "tomorrow"}},
		{"does not say iat", "", map[string]any{"iat": nil}},
		{"in the future", "", map[string]any{"iat": at.Add(40 * time.Second).Unix()}},
		{"not good yet", "", map[string]any{"nbf": at.Add(40 * time.Second).Unix()}},
		{"does not say sub", "", map[string]any{"sub": ""}},
		{"does not say sub", "", map[string]any{"sub": nil}},
	} {
		code := fault.CredentialsInvalid
		if c.code != "" {
			code = c.code
		}
		r.refuses(t, code, r.Token("client-7", c.claims), c.words)
	}
	// Names are what they are, and stand once: encoding/json would take the last of those that look alike.
	for words, changed := range map[string]map[string]any{
		"does not say sub": {"sub": nil, "Sub": "client-8"}, "does not say exp": {"exp": nil, "EXP": at.Add(time.Hour).Unix()}, "does not say iat": {"iat": nil, "Iat": at.Unix()},
	} {
		r.refuses(t, fault.CredentialsInvalid, r.Token("client-7", changed), words)
	}
	for _, c := range []map[string]any{{"aud": "https://other.example.com", "AUD": fixture.Audience}, {"iss": "https://other.example.com", "ISS": r.URL}, {"iss": nil, "Iſs": r.URL}} {
		_, err := r.checks.Verify(context.Background(), r.Token("client-7", c))
		require.Equal(t, fault.CredentialsInvalid, fault.CodeOf(err), "%v", c)
	}
	id, err := r.checks.Verify(context.Background(), r.Token("client-7", map[string]any{"SUB": "client-8", "ſub": "client-9", "EXP": 1, "IAT": 1, "Nbf": 1e12}))
	require.NoError(t, err)
	require.Equal(t, "client-7", id.Subject)
	claims, err := json.Marshal(r.Claims("client-7"))
	require.NoError(t, err)
	twice := json.RawMessage(strings.Replace(string(claims), "{", `{"sub":"client-8",`, 1))
	r.refuses(t, fault.CredentialsInvalid, fixture.Sign(t, r.Key(), twice, nil), "a claim twice")
	require.NotContains(t, r.said.String(), "eyJ", "tokens are not logged")
}

// forged is a token whose header is the attacker's own.
func forged(header map[string]any, claims map[string]any, signature []byte) string {
	var parts []string
	for _, v := range []any{header, claims} {
		text, _ := json.Marshal(v)
		parts = append(parts, base64.RawURLEncoding.EncodeToString(text))
	}
	return strings.Join(append(parts, base64.RawURLEncoding.EncodeToString(signature)), ".")
}

func TestATokenThatTheIssuerDidNotSignIsRefused(t *testing.T) {
	r := newRig(t)
	stranger := fixture.New(t)
	stranger.Drop("k1")
	stranger.Rotate("k1")
	key := r.Key()
	public, err := json.Marshal(key.Public())
	require.NoError(t, err)
	claims := r.Claims("client-7")
	hs := func(secret []byte, kid string) string {
		return fixture.Sign(t, jose.JSONWebKey{Key: secret, KeyID: kid, Algorithm: string(jose.HS256)}, claims, nil)
	}
	strangers := stranger.Key()
	embedded := fixture.Sign(t, strangers, claims, map[jose.HeaderKey]any{"jwk": strangers.Public()})
	good := r.Token("client-7")
	parts := strings.Split(good, ".")
	other := strings.Split(r.Token("client-8"), ".")
	for name, token := range map[string]string{
		"none":                      forged(map[string]any{"alg": "none", "kid": "k1"}, claims, nil),
		"None":                      forged(map[string]any{"alg": "None", "kid": "k1"}, claims, nil),
		"HS256 with the key":        hs(public, "k1"),
		"HS256 of nothing":          hs(make([]byte, 32), "k1"),
		"another issuer's key":      fixture.Sign(t, stranger.Key(), claims, nil),
		"a key of its own":          embedded,
		"a key at an address":       fixture.Sign(t, stranger.Key(), claims, map[jose.HeaderKey]any{"jku": stranger.URL + "/keys"}),
		"other claims":              parts[0] + "." + other[1] + "." + parts[2],
		"no signature":              parts[0] + "." + parts[1] + ".",
		"a critical header":         forged(map[string]any{"alg": "ES256", "kid": "k1", "crit": []string{"x"}, "x": 1}, claims, make([]byte, 64)),
		"a signature of zeros":      forged(map[string]any{"alg": "ES256", "kid": "k1"}, claims, make([]byte, 64)),
		"another algorithm":         forged(map[string]any{"alg": "RS256", "kid": "k1"}, claims, make([]byte, 256)),
		"no JWT":                    "wga_nonsense",
		"nothing":                   "",
		"JSON":                      `{"payload":"` + parts[1] + `","protected":"` + parts[0] + `","signature":"` + parts[2] + `"}`,
		"two signatures":            good + "." + parts[2],
		"a token without end":       parts[0] + "." + strings.Repeat("A", 20<<10) + "." + parts[2],
		"a logout token":            fixture.Sign(t, key, claims, map[jose.HeaderKey]any{jose.HeaderType: "logout+jwt"}),
		"a proof of possession":     fixture.Sign(t, key, claims, map[jose.HeaderKey]any{jose.HeaderType: "dpop+jwt"}),
		"a type that is no text":    fixture.Sign(t, key, claims, map[jose.HeaderKey]any{jose.HeaderType: 7}),
		"claims that are no claims": fixture.Sign(t, key, []string{"x"}, nil),
	} {
		_, err := r.checks.Verify(context.Background(), token)
		require.Equal(t, fault.CredentialsInvalid, fault.CodeOf(err), "%s: %v", name, err)
		for _, part := range strings.Split(token, ".") {
			if len(part) > 20 {
				require.NotContains(t, err.Error(), part, "%s: the error holds a part of the token", name)
			}
		}
	}
	require.NotContains(t, r.said.String(), parts[2])
	_, err = r.checks.Verify(context.Background(), good)
	require.NoError(t, err)
}

// A key that no token should be checked by stands among the issuer's.
func TestKeysThatAreUnfitAreIgnored(t *testing.T) {
	r := newRig(t)
	weak := rsaKey(t, 1024)
	forEncryption, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	oct := jose.JSONWebKey{Key: []byte("a secret that everybody can read"), KeyID: "oct", Algorithm: "HS256", Use: "sig"}
	key := r.Key()
	huge := &rsa.PublicKey{N: new(big.Int).SetBit(big.NewInt(1), 9000, 1), E: 65537}
	set := []any{jose.JSONWebKey{Key: weak.Public(), KeyID: "weak", Algorithm: "RS256"}, jose.JSONWebKey{Key: huge, KeyID: "huge", Algorithm: "RS256"}, jose.JSONWebKey{Key: forEncryption.Public(), KeyID: "enc", Use: "enc"}, oct,
		map[string]any{"kty": "later", "kid": "x"}, key.Public()}
	r.Answer("/keys", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]any{"keys": set})
	})
	_, err = r.checks.Verify(context.Background(), r.Token("client-7"))
	require.NoError(t, err)
	require.Equal(t, 1, r.checks.Status().Keys)
	claims := r.Claims("client-7")
	for _, k := range []jose.JSONWebKey{{Key: forEncryption, KeyID: "enc", Algorithm: "ES256"}, oct} {
		r.refuses(t, fault.CredentialsInvalid, fixture.Sign(t, k, claims, nil), "")
	}
	r.refuses(t, fault.CredentialsInvalid, forged(map[string]any{"alg": "RS256", "kid": "weak"}, claims, make([]byte, 128)), "no key of its kid")
}

func TestANewKeyIsReadAndAHostileKidAsksTheIssuerNoMore(t *testing.T) {
	r := newRig(t)
	verify := func(token string) error {
		_, err := r.checks.Verify(context.Background(), token)
		return err
	}
	require.NoError(t, verify(r.Token("client-7")))
	require.EqualValues(t, 1, r.Asked.Load())

	var work sync.WaitGroup
	for n := range 50 {
		work.Go(func() {
			err := verify(forged(map[string]any{"alg": "ES256", "kid": fmt.Sprintf("guess-%d", n)}, r.Claims("client-7"), make([]byte, 64)))
			require.Equal(t, fault.CredentialsInvalid, fault.CodeOf(err))
		})
	}
	work.Wait()
	require.EqualValues(t, 1, r.Asked.Load(), "tokens that nobody signed had the issuer asked")

	old := r.Token("client-7")
	r.Rotate("k2")
	r.clock.Advance(issuer.RefetchAfter)
	require.NoError(t, verify(r.Token("client-7")), "a new key was not looked for")
	require.NoError(t, verify(old))
	require.EqualValues(t, 2, r.Asked.Load())
	for range 10 {
		require.Error(t, verify(forged(map[string]any{"alg": "ES256", "kid": "guess"}, r.Claims("client-7"), make([]byte, 64))))
	}
	require.EqualValues(t, 2, r.Asked.Load())

	r.Drop("k1")
	r.Rotate("k3")
	r.clock.Advance(issuer.RefetchAfter)
	require.NoError(t, verify(r.Token("client-7")))
	require.Equal(t, fault.CredentialsInvalid, fault.CodeOf(verify(old)), "a key that was taken back is good still")
	nameless := r.Key()
	nameless.KeyID = ""
	require.NoError(t, verify(fixture.Sign(t, nameless, r.Claims("client-7"), nil)), "a token without a kid is checked by every key")
}

// long has the claims of a token that outlasts the test's clock.
func long() map[string]any { return map[string]any{"exp": time.Now().Add(72 * time.Hour).Unix()} }

func TestAnIssuerThatFailsLeavesItsKeysForADay(t *testing.T) {
	huge := func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"keys":[`))
		for { // who reads to the end of it never comes there
			if _, err := w.Write(bytes.Repeat([]byte(" "), 1<<20)); err != nil {
				return
			}
		}
	}
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
	}
	text := func(s string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(s)) }
	}
	elsewhere := func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "https://127.0.0.1:1/", http.StatusFound)
	}
	many := func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]any{"keys": make([]map[string]string, 65)})
	}
	const about = "/.well-known/openid-configuration"
	for _, c := range []struct {
		name, path string
		answer     http.HandlerFunc
		words      string
	}{
		{"megabytes", "/keys", huge, "larger than"}, {"500", "/keys", status(500), "status 500"}, {"no JSON", "/keys", text("<html>"), "not the JSON"},
		{"no keys", "/keys", text(`{"keys":[]}`), "none of them"}, {"a redirect", "/keys", elsewhere, "status 302"}, {"too many keys", "/keys", many, "more than 64"},
		{"a document of somebody else", about, text(`{"issuer":"https://evil.example.com","jwks_uri":"https://evil.example.com/keys"}`), "another issuer"},
		{"keys over plain http", about, nil, "no https URL"}, {"keys inside of the network", about, nil, "another host"}, {"no address of keys", about, nil, "no https URL"},
		{"a document without end", about, huge, "larger than"}, {"no document", about, status(404), "status 404"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			token := r.Token("client-7", long())
			_, err := r.checks.Verify(context.Background(), token)
			require.NoError(t, err)
			require.True(t, r.checks.Status().OK)
			r.Answer(c.path, c.answer)
			switch c.name {
			case "keys over plain http":
				r.Says("jwks_uri", strings.Replace(r.URL, "https:", "http:", 1)+"/keys")
			case "keys inside of the network":
				r.Says("jwks_uri", "https://127.0.0.1:1/keys")
			case "no address of keys":
				r.Says("jwks_uri", "")
			}
			unknown := forged(map[string]any{"alg": "ES256", "kid": "new"}, r.Claims("client-7"), make([]byte, 64))
			r.clock.Advance(issuer.RefetchAfter)
			r.refuses(t, fault.IssuerUnavailable, unknown, "can't be read at this time")
			s := r.checks.Status()
			require.False(t, s.OK)
			require.Contains(t, s.Message, c.words)
			require.Contains(t, r.said.String(), "could not be read")
			_, err = r.checks.Verify(context.Background(), token)
			require.NoError(t, err, "the keys that it had do not go on")

			r.clock.Advance(issuer.KeysLast)
			r.refuses(t, fault.IssuerUnavailable, token, "can't be read at this time")
			r.Answer(c.path, nil)
			r.Says("jwks_uri", r.URL+"/keys")
			r.clock.Advance(issuer.RefetchAfter)
			_, err = r.checks.Verify(context.Background(), token)
			require.NoError(t, err, "it is not asked again")
			require.True(t, r.checks.Status().OK)
		})
	}
}

// A kid that nobody knows must not hold its request up for longer than its client waits.
func TestAnIssuerThatIsSlowHoldsNobodyUp(t *testing.T) {
	r := newRig(t)
	token := r.Token("client-7")
	_, err := r.checks.Verify(context.Background(), token)
	require.NoError(t, err)
	free := make(chan struct{})
	defer close(free)
	r.Answer("/keys", func(http.ResponseWriter, *http.Request) { <-free })
	r.clock.Advance(issuer.RefetchAfter)
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_, err = r.checks.Verify(ctx, forged(map[string]any{"alg": "ES256", "kid": "new"}, r.Claims("client-7"), make([]byte, 64)))
	require.Equal(t, fault.IssuerUnavailable, fault.CodeOf(err))
	_, err = r.checks.Verify(context.Background(), token)
	require.NoError(t, err, "a token of a known key waits for the issuer")
}

func TestAnIssuerThatIsDownAtTheStartIsAskedAgain(t *testing.T) {
	r := newRig(t)
	r.Answer("/keys", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) })
	require.Contains(t, r.checks.Status().Message, "not read yet")
	r.refuses(t, fault.IssuerUnavailable, r.Token("client-7"), "")
	require.Contains(t, r.checks.Status().Message, "No token of the issuer can be checked")
	r.Answer("/keys", nil)
	r.refuses(t, fault.IssuerUnavailable, r.Token("client-7"), "")
	r.clock.Advance(issuer.RefetchAfter)
	_, err := r.checks.Verify(context.Background(), r.Token("client-7"))
	require.NoError(t, err)
}

func TestACertificateThatIsNotBelievedGivesNoKeys(t *testing.T) {
	r := newRig(t)
	r.Authority = fixture.New(t).Authority
	r.checks = r.over(t, egress.New(egress.Rules{}))
	r.refuses(t, fault.IssuerUnavailable, r.Token("client-7"), "")
	require.Contains(t, r.checks.Status().Message, "GATE_AGENT_OIDC_CA_BUNDLE_PATH")
	require.Zero(t, r.Asked.Load())
}

// The keys lie on another host than the issuer, as those of large issuers do.
func TestKeysOnAnotherHostAreReadByTheGuard(t *testing.T) {
	r := newRig(t)
	net := loopback.New(t)
	port, _ := net.Serve(loopback.Public, true, func(w http.ResponseWriter, _ *http.Request) {
		key := r.Key()
		_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{key.Public()}})
	})
	r.Says("jwks_uri", "https://"+loopback.Public+":"+port+"/keys")
	r.refuses(t, fault.IssuerUnavailable, r.Token("client-7"), "")
	require.Contains(t, r.checks.Status().Message, "GATE_EGRESS_ALLOW")

	r.checks = r.over(t, egress.New(egress.Rules{Networks: loopback.PublicSide(), Ports: net.Ports}, egress.WithRoots(net.Authority.Pool())))
	_, err := r.checks.Verify(context.Background(), r.Token("client-7"))
	require.NoError(t, err, r.checks.Status().Message)
}

func TestTheAddressOfAnIssuer(t *testing.T) {
	of := func(url string, plain bool) error {
		_, err := issuer.New(issuer.Options{URL: url, Audience: "x", PlainHTTP: plain})
		return err
	}
	for _, good := range []string{"https://login.example.com", "https://login.example.com/", "https://login.example.com/realms/x", "https://10.0.0.7:8443"} {
		require.NoError(t, of(good, false), good)
	}
	require.NoError(t, of("http://127.0.0.1:8080", true))
	require.NoError(t, of("http://localhost:8080/realms/x", true))
	for _, bad := range []string{"", "login.example.com", "ftp://login.example.com", "http://127.0.0.1:8080", "https://a:b@login.example.com", "https://login.example.com?x=1",
		"https://login.example.com?", "https://login.example.com#", "https://login.example.com#x", "https:login.example.com", "https://"} {
		require.Error(t, of(bad, false), bad)
	}
	require.Error(t, of("http://login.example.com", true))
	require.Error(t, of("http://10.0.0.7", true))
}
