package httpd

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"

	"writegate/commands/fault"
)

// DefaultOperatorLabel is the label of the token in GATE_OPERATOR_TOKEN.
const DefaultOperatorLabel = "operator"

// Operators are the tokens that open the operator endpoints (spec/gate.md part
// 5). Only digests of them are kept; they are compared in constant time,
// whatever the length of what was sent. A nil *Operators accepts no token.
type Operators struct {
	tokens []operatorToken
	jwts   bool // one of them has the form of a JWT
}

type operatorToken struct {
	label  string
	digest [sha256.Size]byte
}

// ParseOperators reads GATE_OPERATOR_TOKEN (one token, as it is) and
// GATE_OPERATOR_TOKENS (`label=token` pairs separated by commas). It returns
// nil when both are empty. Tokens shorter than minLength bytes, tokens or
// labels that are there twice and malformed pairs are errors, none of which
// shows a token.
func ParseOperators(single, labelled string, minLength int) (*Operators, error) {
	o := new(Operators)
	if single != "" {
		if err := o.add(DefaultOperatorLabel, single, minLength); err != nil {
			return nil, err
		}
	}
	if err := o.addPairs(labelled, minLength); err != nil {
		return nil, err
	}
	if len(o.tokens) == 0 {
		return nil, nil
	}
	return o, nil
}

func (o *Operators) addPairs(list string, minLength int) error {
	if list == "" {
		return nil
	}
	for i, pair := range strings.Split(list, ",") {
		label, token, ok := strings.Cut(strings.TrimSpace(pair), "=")
		if !ok || token == "" || !VisibleASCII(label, 64) {
			return fmt.Errorf("operator token %d is not of the form label=token", i+1)
		}
		if err := o.add(label, token, minLength); err != nil {
			return err
		}
	}
	return nil
}

func (o *Operators) add(label, token string, minLength int) error {
	if len(token) < minLength {
		return fmt.Errorf("the operator token labelled %q is shorter than %d characters", label, minLength)
	}
	if strings.HasPrefix(token, AgentTokenPrefix) {
		return fmt.Errorf("the operator token labelled %q begins with %s, as tokens of agents do", label, AgentTokenPrefix)
	}
	if !VisibleASCII(token, 4096) {
		return fmt.Errorf("the operator token labelled %q holds a character that a header can't carry", label)
	}
	t := operatorToken{label: label, digest: sha256.Sum256([]byte(token))}
	for _, other := range o.tokens {
		if other.label == label || other.digest == t.digest {
			return fmt.Errorf("the operator token labelled %q is there twice, by label or by value", label)
		}
	}
	o.tokens = append(o.tokens, t)
	o.jwts = o.jwts || isJWT(token)
	return nil
}

// LikeJWT tells whether an operator token has the form of a JWT. Where agents show JWTs
// there must be none: a wrong one could be taken for an agent's, and nobody see it guessed.
func (o *Operators) LikeJWT() bool { return o != nil && o.jwts }

// Enabled reports whether any token is configured.
func (o *Operators) Enabled() bool { return o != nil && len(o.tokens) > 0 }

// Label finds the token that a request carries. presented tells whether it
// carries one at all, which an agent's token is not; label is "" when that is wrong, or there twice. The gate's own header
// wins over Authorization, where an agent's token may stand.
func (o *Operators) Label(r *http.Request) (label string, presented bool) {
	if len(r.Header["X-Gate-Operator-Token"]) > 1 || len(r.Header["Authorization"]) > 1 {
		return "", true // who reads the first and who reads the last would see different operators
	}
	token := r.Header.Get("X-GATE-Operator-Token")
	if token == "" {
		token = bearer(r.Header.Get("Authorization"))
		if strings.HasPrefix(token, AgentTokenPrefix) {
			return "", false
		}
	}
	if token == "" {
		return "", false
	}
	return o.match(token), true
}

// AgentTokenPrefix tells an agent's token from an operator's (spec/v1.md part 7).
const AgentTokenPrefix = "wga_"

// isJWT tells a JWT by its form: three parts, of which the first is the base64url of a JSON
// object (RFC 7515 section 7.1).
func isJWT(token string) bool {
	return (strings.HasPrefix(token, "ey") || strings.HasPrefix(token, "ew")) && strings.Count(token, ".") == 2 // {" or { and white space
}

var jwtWithin = regexp.MustCompile(`e[yw][\w-]+\.([\w-]+)\.[\w-]+`)

// HoldsAgentJWT tells whether a text holds a JWT that says that the issuer of agents' tokens made it,
// whoever did. JWTs of others stand in headers of proxies.
func (c *Call) HoldsAgentJWT(text string) bool {
	if c.mux.agentIssuer == "" {
		return false
	}
	for _, found := range jwtWithin.FindAllStringSubmatch(text, 8) {
		claims, err := base64.RawURLEncoding.DecodeString(found[1])
		var said struct {
			Issuer string `json:"iss"`
		}
		if err == nil && json.Unmarshal(claims, &said) == nil && said.Issuer == c.mux.agentIssuer {
			return true
		}
	}
	return false
}

// AgentCredential is the bearer token of a request where it is one of an agent: a token, or
// a JWT where the gate takes those; "" where it is none.
func (c *Call) AgentCredential() string {
	if token := c.Bearer(); strings.HasPrefix(token, AgentTokenPrefix) || c.mux.agentIssuer != "" && isJWT(token) {
		return token
	}
	return ""
}

// match compares with every token, so that the time tells nothing about which
// one came close.
func (o *Operators) match(token string) (label string) {
	if o == nil {
		return ""
	}
	digest := sha256.Sum256([]byte(token))
	for i := range o.tokens {
		if subtle.ConstantTimeCompare(digest[:], o.tokens[i].digest[:]) == 1 {
			label = o.tokens[i].label
		}
	}
	return label
}

// bearer is the token of an Authorization header of that scheme, else "".
func bearer(header string) string {
	scheme, token, _ := strings.Cut(header, " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}

// Bearer is the token of the Authorization header of that scheme, or "".
func (c *Call) Bearer() string { return bearer(c.Request.Header.Get("Authorization")) }

// Operator puts a handler behind the operator token. A failed login leaves
// evidence and counts against the client's rate; over that it is a 429.
func (m *Mux) Operator(h Handler) Handler {
	return func(c *Call) error {
		label, presented := m.label(c)
		if label == "" {
			return m.refuseOperator(c, presented)
		}
		c.operator = label
		return h(c)
	}
}

// label is Operators.Label, to which an agent's JWT is no operator token that is wrong.
func (m *Mux) label(c *Call) (label string, presented bool) {
	h := c.Request.Header
	if label, presented = m.operators.Label(c.Request); label == "" && h.Get("X-Gate-Operator-Token") == "" && len(h["Authorization"]) == 1 && c.AgentCredential() != "" {
		return "", false
	}
	return label, presented
}

// OperatorLabel is the label of the operator token that a request to an open
// endpoint carries, "" without one: an endpoint asks it for what a token adds. A
// wrong one is refused, recorded and counted as at the operator endpoints: else
// tokens could be guessed where nobody sees it.
func (c *Call) OperatorLabel() (label string, err error) {
	label, presented := c.mux.label(c)
	if presented && label == "" {
		return "", c.mux.refuseOperator(c, presented)
	}
	return label, nil
}

// BearerIsOperators tells whether the Authorization header holds an operator's token.
func (c *Call) BearerIsOperators() bool { return c.mux.operators.match(c.Bearer()) != "" }

func (m *Mux) refuseOperator(c *Call, presented bool) error {
	m.report(c, OperatorAuthFailed, 0, 0)
	if err := c.Limit(); err != nil {
		return err
	}
	switch {
	case !m.operators.Enabled():
		return fault.New(fault.UnauthorizedOperator, "No operator token is configured on this service. Set GATE_OPERATOR_TOKEN and start it again.")
	case !presented:
		return fault.New(fault.UnauthorizedOperator, "This endpoint needs the operator token. Send it in the header X-GATE-Operator-Token or as Authorization: Bearer.")
	}
	return fault.New(fault.UnauthorizedOperator, "The operator token is wrong, or its header is there twice. Send once the one that this service was started with (GATE_OPERATOR_TOKEN or GATE_OPERATOR_TOKENS).")
}
