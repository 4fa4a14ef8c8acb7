package main

import (
	"net/http"
	"strings"
	"testing"

	"writegate/commands/fault"
)

// toolErrors are the codes of tools (spec/v1.md parts 4 and 12).
func toolErrors(t *testing.T) []raise {
	t.Helper()
	w, s := startTools(t)
	tool := w.made(t, "/tools", s.tool().text(t))["id"].(string)
	off := w.made(t, "/tools", s.tool().with("enabled", false).text(t))["id"].(string)
	bare := w.made(t, "/tools", `{"name":"add","type":"function"}`)["id"].(string)
	verify := func(id, body string) func(*testing.T) reply {
		return calls(w.testGate, "POST", "/v1/tools/"+id+"/verify", body, "X-Api-Key: "+w.key)
	}
	return []raise{
		{fault.ToolNotFound, 404, "", calls(w.testGate, "GET", "/v1/tools/tool_x", "", "X-Api-Key: "+w.key)},
		{fault.ToolDisabled, 409, "", verify(off, "")},
		{fault.ToolNotVerifiable, 422, "", verify(bare, "")},
		{fault.FingerprintChanged, 409, "", verify(tool, `{"accept_fingerprint":"`+strings.Repeat("0", 64)+`"}`)},
		{fault.RevisionMismatch, 412, "of a tool", calls(w.testGate, "PUT", "/v1/tools/"+tool, s.tool().text(t), "X-Api-Key: "+w.key, `If-Match: "7"`)},
		{fault.ValidationFailed, 400, "of a tool", calls(w.testGate, "POST", "/v1/tools", `{}`, "X-Api-Key: "+w.key)},
		{fault.VerificationInProgress, 409, "", func(t *testing.T) reply { return verifiedTwice(t, w, s, tool) }},
	}
}

// verifiedTwice asks for a verification while another one of the tool waits for
// its server.
func verifiedTwice(t *testing.T, w *agentWorld, s *toolServer, id string) reply {
	t.Helper()
	arrived, release, done := make(chan struct{}, 10), make(chan struct{}), make(chan error, 1)
	s.hold.Store(func() { arrived <- struct{}{}; <-release })
	go func() {
		_, err := w.try(http.MethodPost, "/v1/tools/"+id+"/verify", []byte(`{"timeout_ms":10000}`), "X-Api-Key: "+w.key)
		done <- err
	}()
	<-arrived
	r := w.verify(t, id, "")
	close(release)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	return r
}
