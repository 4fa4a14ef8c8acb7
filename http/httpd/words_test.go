package httpd

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
)

// words is what CheckWords says to a POST with a header.
func words(name, value string) error {
	r := httptest.NewRequest(http.MethodPost, "/query", nil)
	r.Header.Set(name, value)
	return (&Call{Request: r}).CheckWords([]string{idempotencyKey})
}

func TestHeadersThatAskForNoEffectAreRefused(t *testing.T) {
	for _, name := range []string{"X-Preview-Only", "X-Preview", "Preview", "X-Dry-Run", "X-Dry-Run-Only", "Dry_run", "X-DryRunMode", "X-Gate-Mode", "X-Gate-Query-Mode", "X-Is-Preview",
		"X-Simulate-Only", "X-Simulation", "X-Validate-Only", "X-What-If", "X-Noop", "X-No-Op", "X-No-Execute", "X-NoExec", "X-Read-Only", "X-Test-Mode", "X-Rollback", "X-Company-Internal-Dry-Run-Requested",
		"X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override", "X-Require-Approval", "X-Approval-Required", "X-Idempotence-Key", "X-If-Match",
		"X-Transaction-Rollback", "X-Execute", "X-Explain", "X-Max-Rows", "Max-Affected", "Repeatability-Request-Id", "Repeatability-First-Sent", "Client-Token", "X-Amz-Client-Token"} {
		require.Equal(t, fault.ValidationFailed, fault.CodeOf(words(name, "true")), name)
	}
	for _, preferences := range []string{"handling=strict, dry-run", "tx=rollback", "handling=strict, max-affected=1"} {
		require.Equal(t, fault.ValidationFailed, fault.CodeOf(words("Prefer", preferences)), preferences)
	}
}

func TestHeadersOfBrowsersProxiesAndTracersAreTaken(t *testing.T) {
	for name, value := range map[string]string{
		"Traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "Tracestate": "a=b", "Baggage": "k=v", "B3": "0", "X-B3-Traceid": "1", "X-B3-Sampled": "1", "Uber-Trace-Id": "1",
		"X-Request-Id": "r", "X-Correlation-Id": "c", "X-Session-Id": "s", "X-Amzn-Trace-Id": "Root=1", "X-Cloud-Trace-Context": "1/2", "X-Datadog-Sampling-Priority": "1", "Newrelic": "x", "Sentry-Trace": "1",
		"X-Forwarded-For": "192.0.2.1", "X-Forwarded-Proto": "https", "X-Forwarded-Host": "h", "X-Forwarded-Port": "443", "X-Forwarded-Client-Cert": "Hash=1", "Forwarded": "for=192.0.2.1", "X-Real-Ip": "192.0.2.1",
		"Via": "1.1 p", "X-Envoy-Attempt-Count": "1", "X-Envoy-Expected-Rq-Timeout-Ms": "15000", "X-Envoy-Decorator-Operation": "op", "Cf-Ray": "1", "Cf-Visitor": "{}", "Cdn-Loop": "x", "X-Original-Uri": "/query",
		"X-Original-Method": "POST", "X-Casino-Operator": "1", "Sec-Fetch-Mode": "cors", "Sec-Fetch-Site": "same-origin", "Sec-Gpc": "1", "Dnt": "1", "Save-Data": "on", "Priority": "u=1", "Cache-Control": "no-cache", "Pragma": "no-cache",
		"User-Agent": "dry-run/1.0", "Accept": "application/vnd.x.preview+json", "Referer": "https://gate/preview", "Te": "trailers", "Expect": "100-continue", "Prefer": "return=minimal", "Idempotency-Key": "k", "Authorization": "Bearer x",
	} {
		require.NoError(t, words(name, value), name)
	}
}

func TestAnAddressFullOfUnknownWordsIsRefusedInFewWords(t *testing.T) {
	var query strings.Builder
	for i := range 5_000 {
		fmt.Fprintf(&query, "a%d&", i)
	}
	err := (&Call{Request: httptest.NewRequest(http.MethodPost, "/query?"+query.String(), nil)}).CheckWords(nil, Param{Name: "mode"})
	require.Len(t, fault.Of(err).Details["fields"], mostWords)
}
