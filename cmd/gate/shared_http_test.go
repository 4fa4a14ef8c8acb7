package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/agentctl"
)

// A from is the HTTP client of another machine: what it sends comes from an
// address of its own.
func from(address string) *http.Client {
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}, Timeout: startPatience}
	return &http.Client{Transport: &http.Transport{DialContext: dialer.DialContext, DisableKeepAlives: true}}
}

// opened asks for something that lasts and gives what it was answered; the body
// of a 200 stays open until the test ends.
func (g *testGate) opened(t testing.TB, client *http.Client, ctx context.Context, path string, headers ...string) (status int, said string) {
	t.Helper()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, g.base+path, nil)
	require.NoError(t, err)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		request.Header.Set(name, value)
	}
	response, err := client.Do(request)
	require.NoError(t, err)
	t.Cleanup(func() { response.Body.Close() })
	if response.StatusCode == http.StatusOK {
		return response.StatusCode, ""
	}
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, string(text)
}

// One client can't keep the others from following the log, and no number of
// clients keeps an operator from it.
func TestStreamsOfTheLogAreShared(t *testing.T) {
	t.Parallel()
	g := startShop(t, "GATE_MAX_STREAMS_PER_CLIENT=8")
	leave, cancel := context.WithCancel(t.Context())
	for range 8 {
		status, said := g.opened(t, from("127.0.0.2"), leave, "/audit/stream")
		require.Equal(t, http.StatusOK, status, said)
	}
	status, said := g.opened(t, from("127.0.0.2"), t.Context(), "/audit/stream")
	require.Equal(t, http.StatusTooManyRequests, status)
	require.Contains(t, said, "This client has 8 streams of the log at once")
	for _, address := range []string{"127.0.0.3", "127.0.0.4", "127.0.0.5", "127.0.0.6", "127.0.0.7", "127.0.0.8", "127.0.0.9"} {
		for range 8 {
			status, said := g.opened(t, from(address), t.Context(), "/audit/stream")
			require.Equal(t, http.StatusOK, status, "%s: %s", address, said)
		}
	}
	status, said = g.opened(t, from("127.0.0.10"), t.Context(), "/audit/stream")
	require.Equal(t, http.StatusTooManyRequests, status)
	require.Contains(t, said, "There are 64 streams of the log at once")
	status, said = g.opened(t, from("127.0.0.10"), t.Context(), "/audit/stream", "X-GATE-Operator-Token: wrong")
	require.Equal(t, http.StatusUnauthorized, status, said)
	for range 10 {
		status, said = g.opened(t, from("127.0.0.10"), t.Context(), "/audit/stream", "X-GATE-Operator-Token: "+operatorTestToken)
		require.Equal(t, http.StatusOK, status, said)
	}
	cancel() // who leaves makes room
	require.Eventually(t, func() bool {
		status, _ := g.opened(t, from("127.0.0.10"), t.Context(), "/audit/stream")
		return status == http.StatusOK
	}, startPatience, pollEvery)
}

// Of the streams under /v1 a project key has its share, and so has an agent,
// however many tokens it has.
func TestStreamsUnderV1AreSharedByKeysAndAgents(t *testing.T) {
	t.Parallel()
	w := startAgents(t, "GATE_MAX_STREAMS_PER_CLIENT=4")
	agent, token := w.register(t, "follower")
	second := w.made(t, "/agents/"+agent+"/tokens", `{}`)["token"].(string)
	_, other := w.register(t, "other")
	open := func(credential string) int {
		status, _ := w.opened(t, http.DefaultClient, t.Context(), "/v1/events", "Accept: text/event-stream", credential)
		return status
	}
	for _, credential := range []string{"Authorization: Bearer " + token, "Authorization: Bearer " + second, "Authorization: Bearer " + token, "Authorization: Bearer " + second} {
		require.Equal(t, http.StatusOK, open(credential))
	}
	for _, credential := range []string{"Authorization: Bearer " + token, "Authorization: Bearer " + second} {
		require.Equal(t, http.StatusTooManyRequests, open(credential))
	}
	require.Equal(t, http.StatusOK, open("Authorization: Bearer "+other))
	require.Equal(t, http.StatusOK, open("X-Api-Key: "+w.key))
}

// What a key kept is given to nobody whose token ended while the request came.
func TestAKeptAnswerIsNotForATokenThatEndedMeanwhile(t *testing.T) {
	t.Parallel()
	w := startAgents(t)
	agent, token := w.register(t, "sender")
	for _, end := range []func(){func() {}, func() { require.Equal(t, http.StatusOK, w.v1(t, http.MethodDelete, "/agents/"+agent, "").status) }} {
		asked := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got100Continue: end}) // for the body, which comes behind it
		request, err := http.NewRequestWithContext(asked, http.MethodPost, w.base+"/v1/telemetry", strings.NewReader(`{"events":[{"type":"heartbeat"}]}`))
		require.NoError(t, err)
		for name, value := range map[string]string{"Authorization": "Bearer " + token, "Content-Type": "application/json", "Idempotency-Key": "k", "Expect": "100-continue"} {
			request.Header.Set(name, value)
		}
		patient := &http.Client{Transport: &http.Transport{ExpectContinueTimeout: startPatience}}
		answer, err := patient.Do(request)
		require.NoError(t, err)
		require.NoError(t, answer.Body.Close())
		want := http.StatusOK
		if w.v1(t, http.MethodGet, "/agents/"+agent, "").json(t)["status"] != "active" {
			want = http.StatusUnauthorized
		}
		require.Equal(t, want, answer.StatusCode)
	}
}

// A stream that finds nothing to send does not keep its place behind the end of its token.
func TestAStreamUnderV1EndsWithItsToken(t *testing.T) {
	t.Parallel() // it waits for a beat
	w := startAgents(t)
	agent, token := w.register(t, "follower")
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.base+"/v1/events?event_type=tool_verified", nil)
	require.NoError(t, err)
	request.Header.Set("Accept", "text/event-stream")
	request.Header.Set("Authorization", "Bearer "+token)
	stream, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer stream.Body.Close()
	require.Equal(t, http.StatusOK, stream.StatusCode)
	require.Equal(t, http.StatusOK, w.v1(t, http.MethodDelete, "/agents/"+agent, "").status)
	said, err := io.ReadAll(stream.Body)
	require.NoError(t, err)
	require.NotContains(t, string(said), "data:")
}

// A project has its share too, however many keys and agents it has.
func TestOneProjectLeavesStreamsUnderV1ToTheOthers(t *testing.T) {
	t.Parallel()
	w := startAgents(t)
	w.end(t)
	foreign := agentctl.NewSecret(agentctl.KeyPrefix)
	w.testGate = startGate(t, w.gateDir, "GATE_MAX_STREAMS_PER_CLIENT=64", "GATE_PROJECT_KEYS=shop/ops="+w.key+",other/ops="+foreign)
	_, token := w.register(t, "follower")
	leave, cancel := context.WithCancel(t.Context())
	open := func(ctx context.Context, credential string) (int, string) {
		return w.opened(t, http.DefaultClient, ctx, "/v1/events", "Accept: text/event-stream", credential)
	}
	for i := range 75 {
		credential := "X-Api-Key: " + w.key
		if i >= 40 {
			credential = bearer(token)
		}
		status, said := open(leave, credential)
		require.Equal(t, http.StatusOK, status, said)
	}
	status, said := open(t.Context(), bearer(token))
	require.Equal(t, http.StatusTooManyRequests, status)
	require.Contains(t, said, "Your project has 75 streams of the log at once")
	status, said = open(t.Context(), "X-Api-Key: "+foreign)
	require.Equal(t, http.StatusOK, status, said)
	cancel()
	require.Eventually(t, func() bool {
		status, _ := open(t.Context(), bearer(token))
		return status == http.StatusOK
	}, startPatience, pollEvery)
}
