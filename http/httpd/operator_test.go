package httpd

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// ctx, made and quiet keep the tests' function literals short.
type ctx = context.Context

type made struct{}

func (made) HTTPStatus() int { return http.StatusCreated }

var quiet = slog.New(slog.DiscardHandler)

const secretToken = "correct-horse-battery-staple"

func operators(t testing.TB) *Operators {
	t.Helper()
	o, err := ParseOperators(secretToken, "night=token-of-the-night-shift, ci=a=b=c", 3)
	require.NoError(t, err)
	return o
}

func guarded(m *Mux) {
	m.Handle("POST", "/guarded", m.Operator(func(c *Call) error {
		c.JSON(200, map[string]string{"operator": c.Operator()})
		return nil
	}))
	m.Handle("GET", "/open", func(c *Call) error {
		label, err := c.OperatorLabel()
		if err != nil {
			return err
		}
		c.JSON(200, map[string]string{"operator": label})
		return nil
	})
}

func TestACredentialThatIsThereTwiceIsNone(t *testing.T) {
	o := operators(t)
	for _, h := range []http.Header{
		{"X-Gate-Operator-Token": {secretToken, "token-of-the-night-shift"}}, {"X-Gate-Operator-Token": {secretToken, secretToken}},
		{"Authorization": {"Bearer " + secretToken, "Bearer wrong"}}, {"X-Gate-Operator-Token": {secretToken}, "Authorization": {"Bearer a", "Bearer b"}},
	} {
		label, presented := o.Label(&http.Request{Header: h})
		require.Empty(t, label, "%v", h)
		require.True(t, presented)
	}
}

func TestTheOperatorTokenOpensInBothForms(t *testing.T) {
	s := serve(t, Options{Operators: operators(t)}, ServerOptions{}, guarded)
	for _, c := range []struct {
		name, label string
		headers     []string
	}{
		{"own header", "operator", []string{"X-GATE-Operator-Token", secretToken}},
		{"bearer", "operator", []string{"Authorization", "Bearer " + secretToken}},
		{"bearer in another case", "operator", []string{"Authorization", "bearer " + secretToken}},
		{"a labelled token", "night", []string{"X-Gate-Operator-Token", "token-of-the-night-shift"}},
		{"a token with equal signs", "ci", []string{"Authorization", "Bearer a=b=c"}},
		{"beside an agent's token", "operator", []string{"X-GATE-Operator-Token", secretToken, "Authorization", "Bearer wga_agent"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := s.do("POST", "/guarded", "", c.headers...)
			require.Equal(t, 200, r.StatusCode)
			require.Equal(t, c.label, r.json["operator"])
			require.Equal(t, c.label, s.do("GET", "/open", "", c.headers...).json["operator"])
		})
	}
	require.Empty(t, s.reported())
}

func TestWithoutTheTokenTheDoorStaysShut(t *testing.T) {
	s := serve(t, Options{Operators: operators(t)}, ServerOptions{}, guarded)
	wrong := [][]string{nil, {"X-GATE-Operator-Token", secretToken + "x"}, {"X-GATE-Operator-Token", secretToken[:5]}, {"Authorization", "Basic " + secretToken},
		{"Authorization", secretToken}, {"Authorization", "Bearer"}, {"X-GATE-Operator-Token", "operator=" + secretToken},
		{"X-GATE-Operator-Token", "wrong-token-here", "Authorization", "Bearer " + secretToken}}
	for _, headers := range wrong {
		r := s.do("POST", "/guarded", "", headers...)
		require.Equal(t, 401, r.StatusCode, headers)
		require.Equal(t, "unauthorized_operator", r.json["error_code"])
		require.Equal(t, "Bearer", r.Header.Get("WWW-Authenticate"))
		require.NotContains(t, r.body, secretToken)
	}
	require.Len(t, s.reported(), len(wrong))
	require.Equal(t, OperatorAuthFailed, s.reported()[0].Incident)
	require.NotContains(t, s.logged(), secretToken)
	require.NotContains(t, s.logged(), "wrong-token-here", "a mistyped token is a secret too")
}

// Where a token only adds something it could be guessed as well.
func TestAWrongTokenAtAnOpenEndpointIsRefusedReportedAndCounted(t *testing.T) {
	at := time.Now()
	limiter, err := NewLimiter(60, 2, func() time.Time { return at })
	require.NoError(t, err)
	s := serve(t, Options{Operators: operators(t), Limiter: limiter}, ServerOptions{}, guarded)
	for _, headers := range [][]string{nil, {"Authorization", "Basic " + secretToken}, {"Authorization", "Bearer wga_agent"}, {"X-GATE-Operator-Token", ""}} {
		r := s.do("GET", "/open", "", headers...)
		require.Equal(t, 200, r.StatusCode, headers)
		require.Equal(t, "", r.json["operator"])
	}
	require.Empty(t, s.reported(), "no operator's token was there")
	for _, headers := range [][]string{{"X-GATE-Operator-Token", secretToken + "x"}, {"Authorization", "Bearer wrong-token-here"}} {
		r := s.do("GET", "/open", "", headers...)
		require.Equal(t, 401, r.StatusCode, headers)
		require.Equal(t, "unauthorized_operator", r.json["error_code"])
	}
	require.Equal(t, 429, s.do("GET", "/open", "", "Authorization", "Bearer wrong-token-here").StatusCode)
	require.Equal(t, OperatorAuthFailed, s.reported()[0].Incident)
	require.Equal(t, 200, s.do("GET", "/open", "").StatusCode, "without a token the endpoint stays open")
}

func TestWithoutAConfiguredTokenNoTokenOpens(t *testing.T) {
	s := serve(t, Options{}, ServerOptions{}, guarded)
	for _, headers := range [][]string{nil, {"X-GATE-Operator-Token", ""}, {"X-GATE-Operator-Token", "anything"}} {
		r := s.do("POST", "/guarded", "", headers...)
		require.Equal(t, 401, r.StatusCode)
		require.Contains(t, r.json["message"], "GATE_OPERATOR_TOKEN")
	}
}

func TestFailedLoginsCountAgainstTheRate(t *testing.T) {
	at := time.Now()
	limiter, err := NewLimiter(60, 2, func() time.Time { return at })
	require.NoError(t, err)
	s := serve(t, Options{Operators: operators(t), Limiter: limiter}, ServerOptions{}, guarded)
	for range 2 {
		require.Equal(t, 401, s.do("POST", "/guarded", "").StatusCode)
	}
	r := s.do("POST", "/guarded", "")
	require.Equal(t, 429, r.StatusCode)
	require.Equal(t, "1", r.Header.Get("Retry-After"))
	require.Equal(t, 200, s.do("POST", "/guarded", "", "X-GATE-Operator-Token", secretToken).StatusCode, "who has the token is not counted")
}

func TestTokensAreParsedOrRefusedWithoutBeingShown(t *testing.T) {
	none, err := ParseOperators("", "", 0)
	require.NoError(t, err)
	require.False(t, none.Enabled())
	require.True(t, operators(t).Enabled())
	secret := "s3cret-value"
	for _, c := range []struct{ name, single, labelled, says string }{
		{"short", secret, "", "shorter than 24"},
		{"short labelled", "", "a=" + secret, "shorter than 24"},
		{"no label", "", secret, "label=token"},
		{"empty label", "", "=" + secret, "label=token"},
		{"empty token", "", "a=", "label=token"},
		{"an agent's", "wga_" + strings.Repeat(secret, 2), "", "tokens of agents"},
		{"space in label", "", "a b=" + secret, "label=token"},
		{"label twice", "", "a=" + strings.Repeat(secret, 2) + ",a=" + strings.Repeat(secret, 3), "twice"},
		{"token twice", strings.Repeat(secret, 2), "a=" + strings.Repeat(secret, 2), "twice"},
		{"space in token", strings.Repeat(secret+" ", 3), "", "header can't carry"},
		{"line break in token", strings.Repeat(secret, 3) + "\n", "", "header can't carry"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := ParseOperators(c.single, c.labelled, 24)
			require.ErrorContains(t, err, c.says)
			require.NotContains(t, err.Error(), secret)
		})
	}
}
