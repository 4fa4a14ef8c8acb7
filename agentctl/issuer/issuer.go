package issuer

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/go-jose/go-jose/v4"

	"writegate/agentctl/egress"
	"writegate/commands/fault"
	"writegate/eventlog/event"
)

// Bounds of what an issuer and its tokens may take, in time and size.
const (
	Leeway       = 30 * time.Second // by which clocks may differ
	RefreshEvery = 10 * time.Minute // and so long a key may be used that the issuer took back
	RefetchAfter = 30 * time.Second // between two attempts to read the keys
	KeysLast     = 24 * time.Hour   // without the issuer
	fetchTime    = 10 * time.Second // for the documents of one attempt
	maxDocument  = 1 << 20          // bytes of each
	maxKeys      = 64
	maxToken     = 16 << 10 // bytes
	leastRSA     = 2048     // bits
	mostRSA      = 8192     // bits: what a check costs grows with their square, and anybody may ask for one
)

// algorithms are those that a token may be signed with.
var algorithms = []jose.SignatureAlgorithm{jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512, jose.ES256, jose.ES384, jose.ES512, jose.EdDSA}

// types are what `typ` of a token may say: nothing, a JWT (RFC 7519 section 5.1), an access
// token (RFC 9068).
var types = []string{"", "jwt", "at+jwt", "application/jwt", "application/at+jwt"}

// Options are what an Issuer stands on. URL, Audience, Guard and Logger are required.
type Options struct {
	URL       string // as `iss` of its tokens, exact
	Audience  string // that `aud` of its tokens has to hold, exact
	Roots     *x509.CertPool
	PlainHTTP bool          // to loopback addresses, for development
	Guard     *egress.Guard // of the way to keys on another host
	Now       func() time.Time
	Logger    *slog.Logger
}

// An Issuer is one that the gate takes agents' tokens of. All methods may be called from any
// goroutine.
type Issuer struct {
	Options
	document string // URL of its discovery document

	mu       sync.Mutex
	keys     []jose.JSONWebKey // guarded by mu, as is all that follows; the slice is never changed
	read     time.Time         // when they were; zero = never
	tried    time.Time         // when that was begun last
	problem  string            // why the last attempt failed; "" = it did not
	fetching chan struct{}     // closed when the attempt under way ends; nil = none is
}

// New makes an issuer, without asking it for anything.
func New(o Options) (*Issuer, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	u, err := url.Parse(o.URL)
	switch {
	case err != nil || u.Host == "" || u.Opaque != "":
		return nil, errors.New("it is no URL such as https://login.example.com")
	case u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || strings.HasSuffix(o.URL, "#"):
		return nil, errors.New("it has user info, a query or a fragment, which no issuer has")
	case u.Scheme == "http" && !o.PlainHTTP:
		return nil, errors.New("it is plain http; write https (http is for loopback addresses, in development)")
	case u.Scheme == "http" && !loopback(u.Hostname()):
		return nil, errors.New("it is plain http to another machine; write https")
	case u.Scheme != "https" && u.Scheme != "http":
		return nil, errors.New("it does not begin with https://")
	}
	return &Issuer{Options: o, document: strings.TrimSuffix(o.URL, "/") + "/.well-known/openid-configuration"}, nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// An Identity is who a token speaks for.
type Identity struct {
	Subject  string
	IssuedAt time.Time
	Until    time.Time // it is good before, the leeway included
}

// Verify checks a token.
//
// Errors: credentials_invalid, token_expired, and issuer_unavailable where there is no key
// to check it by.
func (i *Issuer) Verify(ctx context.Context, token string) (Identity, error) {
	if len(token) > maxToken {
		return Identity{}, refused("it is longer than %d bytes", maxToken)
	}
	keys := &keySet{issuer: i}
	// The times are looked at below, by one leeway for all of them.
	verifier := oidc.NewVerifier(i.URL, keys, &oidc.Config{ClientID: i.Audience, SupportedSigningAlgs: names(algorithms), SkipExpiryCheck: true, Now: i.Now})
	t, err := verifier.Verify(ctx, token)
	switch {
	case keys.err != nil:
		return Identity{}, keys.err
	case !keys.signed:
		return Identity{}, refused("it is no JWT that is signed by %s", strings.Join(names(algorithms), ", "))
	case t != nil && t.Issuer != i.URL, err != nil && keys.issuerOf() != i.URL: // go-oidc takes a second spelling of one issuer
		return Identity{}, refused("it is of another issuer: iss has to be %s, byte by byte", i.URL)
	case err != nil:
		return Identity{}, refused("it is for somebody else, or its claims can't be read: aud has to hold %s", i.Audience)
	}
	var text json.RawMessage
	if err := t.Claims(&text); err != nil {
		return Identity{}, refused("its claims can't be read")
	}
	return i.identity(text)
}

// exactly reads the members of a JSON object by their names as they are. A reader that takes SUB or
// ſub for sub, or the last of two, lets whoever has a claim of a name of his choice be somebody else.
func exactly(text []byte) (members map[string]json.RawMessage, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	if open, err := d.Token(); err != nil || open != json.Delim('{') {
		return nil, refused("its claims are no JSON object")
	}
	members = map[string]json.RawMessage{}
	for d.More() {
		name, err := d.Token()
		key, isText := name.(string)
		var value json.RawMessage
		if err != nil || !isText || d.Decode(&value) != nil {
			return nil, refused("its claims can't be read")
		}
		if _, twice := members[key]; twice {
			return nil, refused("it has a claim twice")
		}
		members[key] = value
	}
	return members, nil
}

// identity holds the claims of a token that the issuer signed against what they have to be.
func (i *Issuer) identity(text []byte) (Identity, error) {
	claims, err := exactly(text)
	if err != nil {
		return Identity{}, err
	}
	var issuer, subject, audience string
	var audiences []string
	if json.Unmarshal(claims["iss"], &issuer) != nil || issuer != i.URL {
		return Identity{}, refused("it is of another issuer: iss has to be %s, byte by byte", i.URL)
	}
	if json.Unmarshal(claims["aud"], &audience) == nil {
		audiences = []string{audience}
	} else if json.Unmarshal(claims["aud"], &audiences) != nil {
		audiences = nil
	}
	if !slices.Contains(audiences, i.Audience) {
		return Identity{}, refused("it is for somebody else: aud has to hold %s", i.Audience)
	}
	if json.Unmarshal(claims["sub"], &subject) != nil || subject == "" {
		return Identity{}, refused("it does not say sub")
	}
	times := map[string]*float64{"exp": nil, "iat": nil, "nbf": nil}
	for name := range times {
		value, there := claims[name]
		if !there || string(value) == "null" {
			continue
		}
		times[name] = new(float64)
		if json.Unmarshal(value, times[name]) != nil {
			return Identity{}, refused("its times are no numbers")
		}
	}
	for _, name := range []string{"exp", "iat"} {
		if times[name] == nil {
			return Identity{}, refused("it does not say %s", name)
		}
	}
	now := i.Now()
	id := Identity{Subject: subject, IssuedAt: moment(*times["iat"]), Until: moment(*times["exp"]).Add(Leeway)}
	switch {
	case !now.Before(id.Until):
		return Identity{}, fault.New(fault.TokenExpired, "The token's time is over. Get a new one from the issuer.").With("expires_at", event.Timestamp(moment(*times["exp"])))
	case now.Add(Leeway).Before(id.IssuedAt):
		return Identity{}, refused("it was issued in the future (iat); compare the clocks of issuer and gate")
	case times["nbf"] != nil && now.Add(Leeway).Before(moment(*times["nbf"])):
		return Identity{}, refused("it is not good yet (nbf)")
	}
	return id, nil
}

// moment is a NumericDate (RFC 7519 section 2), in bounds that a time can be told in.
func moment(seconds float64) time.Time {
	const most = 253402300799 // the end of the year 9999
	seconds = math.Max(0, math.Min(most, seconds))
	whole, part := math.Modf(seconds)
	return time.Unix(int64(whole), int64(part*1e9)).UTC()
}

func refused(why string, args ...any) error {
	return fault.New(fault.CredentialsInvalid, "The gate does not take this token: "+why+".", args...)
}

func names(list []jose.SignatureAlgorithm) []string {
	texts := make([]string, len(list))
	for i, a := range list {
		texts[i] = string(a)
	}
	return texts
}

// Status is how the issuer stands, for health and metrics.
type Status struct {
	OK      bool // its tokens can be checked, and the last attempt to read the keys did not fail
	Message string
	Keys    int
	Read    time.Time // when the keys were read; zero = never
}

// Status tells how the issuer stands.
func (i *Issuer) Status() Status {
	i.mu.Lock()
	defer i.mu.Unlock()
	s := Status{Message: "The keys of the issuer are read.", Keys: len(i.keys), Read: i.read}
	switch stale := i.stale(); {
	case i.read.IsZero() && i.problem == "":
		s.Message = "The keys of the issuer are not read yet."
	case i.read.IsZero():
		s.Message = "No token of the issuer can be checked: its keys could not be read. " + i.problem
	case stale:
		s.Message = fmt.Sprintf("No token of the issuer can be checked: its keys were read more than %s ago, and could not be read since. ", KeysLast) + i.problem
	case i.problem != "":
		s.Message = "The keys of the issuer could not be read anew; those that it had go on. " + i.problem
	default:
		s.OK = true
	}
	return s
}

// stale tells whether the keys are too old to be believed. The lock is held.
func (i *Issuer) stale() bool { return i.Now().Sub(i.read) > KeysLast }
