package agentctl

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"unicode/utf8"

	"golang.org/x/net/http/httpguts"

	"writegate/agentctl/egress"
	"writegate/agentctl/toolcheck"
	"writegate/commands/fault"
	"writegate/eventlog/event"
)

// ToolInput is the body of POST and PUT /v1/tools (spec/v1.md part 12).
type ToolInput struct {
	Name         string            `json:"name"`
	Type         string            `json:"type"`
	Description  string            `json:"description"`
	Version      string            `json:"version"`
	Enabled      *bool             `json:"enabled"`
	Endpoint     *EndpointInput    `json:"endpoint"`
	Auth         AuthInput         `json:"auth"`
	InputSchema  json.RawMessage   `json:"input_schema"`
	OutputSchema json.RawMessage   `json:"output_schema"`
	Annotations  AnnotationsInput  `json:"annotations"`
	Agents       []string          `json:"agents"`
	Metadata     map[string]string `json:"metadata"`
}

// EndpointInput is where a tool is.
type EndpointInput struct {
	URL      string      `json:"url"`
	ToolName string      `json:"tool_name"`
	Probe    *ProbeInput `json:"probe"`
}

// ProbeInput is how an HTTP tool is asked whether it is there.
type ProbeInput struct {
	Method       *string `json:"method"`
	Path         *string `json:"path"`
	ExpectStatus []int   `json:"expect_status"`
}

// AuthInput is how the gate presents itself to a tool.
type AuthInput struct {
	Type   *string `json:"type"`
	Header string  `json:"header"`
	Secret string  `json:"secret"`
}

// AnnotationsInput are the owner's claims. What is left out is taken as in the
// Model Context Protocol: not read-only, destructive, not idempotent, open world.
type AnnotationsInput struct {
	ReadOnly    *bool `json:"read_only"`
	Destructive *bool `json:"destructive"`
	Idempotent  *bool `json:"idempotent"`
	OpenWorld   *bool `json:"open_world"`
}

// Limits of a tool's fields.
const (
	maxToolDescription = 4096
	maxToolVersion     = 64
	maxToolAgents      = 100
	maxExpectedStatus  = 20
)

// tool checks the input and gives the tool that it describes, without an id. All
// that is wrong comes at once.
func (in *ToolInput) tool(ctx context.Context, by *Asker, guard *ToolGuard) (event.Tool, error) {
	var f fieldErrors
	input, err := schema(ctx, by, guard.Checker, &f, "/input_schema", in.InputSchema)
	if err != nil {
		return event.Tool{}, err
	}
	output, err := schema(ctx, by, guard.Checker, &f, "/output_schema", in.OutputSchema)
	if err != nil {
		return event.Tool{}, err
	}
	f.add(!plainText(in.Name, maxName), "/name", "must have 1 to 128 characters and no control characters")
	f.add(!slices.Contains([]string{toolcheck.TypeMCP, toolcheck.TypeHTTP, toolcheck.TypeFunction}, in.Type), "/type", "must be mcp, http or function")
	f.add(utf8.RuneCountInString(in.Description) > maxToolDescription, "/description", "must have at most 4096 characters")
	f.add(in.Version != "" && !plainText(in.Version, maxToolVersion), "/version", "must have at most 64 characters and no control characters")
	f.add(len(in.Agents) > maxToolAgents, "/agents", "must have at most 100 agents")
	checkMetadata(&f, in.Metadata)
	t := event.Tool{Name: in.Name, Type: in.Type, Description: in.Description, Version: in.Version, Enabled: in.Enabled == nil || *in.Enabled, Metadata: in.Metadata,
		Agents: in.Agents, Auth: in.auth(&f), Annotations: in.Annotations.annotations(),
		InputSchema: input, OutputSchema: output}
	f.add(len(slices.Compact(slices.Sorted(slices.Values(in.Agents)))) != len(in.Agents), "/agents", "names an agent twice")
	in.endpoint(&f, guard.Guard, &t)
	return t, f.fault()
}

// endpoint fills in where the tool is.
func (in *ToolInput) endpoint(f *fieldErrors, guard *egress.Guard, t *event.Tool) {
	if in.Type == toolcheck.TypeFunction {
		f.add(in.Endpoint != nil, "/endpoint", "a function has none: it is verified by its schemas")
		return
	}
	if in.Endpoint == nil || in.Endpoint.URL == "" {
		f.add(true, "/endpoint/url", "is required")
		return
	}
	t.Endpoint = event.ToolEndpoint{URL: in.Endpoint.URL, ToolName: in.Endpoint.ToolName}
	if _, err := guard.ParseURL(in.Endpoint.URL); err != nil {
		f.add(true, "/endpoint/url", why(err))
	}
	if in.Type == toolcheck.TypeMCP {
		f.add(in.Endpoint.Probe != nil, "/endpoint/probe", "is for tools of type http")
		if t.Endpoint.ToolName == "" {
			t.Endpoint.ToolName = in.Name
		}
		f.add(!plainText(t.Endpoint.ToolName, maxName), "/endpoint/tool_name", "must have 1 to 128 characters and no control characters")
		return
	}
	f.add(in.Endpoint.ToolName != "", "/endpoint/tool_name", "is for tools of type mcp")
	in.probe(f, guard, t)
}

func (in *ToolInput) probe(f *fieldErrors, guard *egress.Guard, t *event.Tool) {
	p := ProbeInput{}
	if in.Endpoint.Probe != nil {
		p = *in.Endpoint.Probe
	}
	method, path := http.MethodGet, "/"
	if p.Method != nil {
		method = *p.Method
	}
	if p.Path != nil {
		path = *p.Path
	}
	f.add(method != http.MethodGet && method != http.MethodHead, "/endpoint/probe/method", "must be GET or HEAD")
	if _, err := guard.ParseURL(in.Endpoint.URL); err == nil {
		_, err := toolcheck.ProbeURL(guard, toolcheck.Target{URL: in.Endpoint.URL, Probe: toolcheck.Probe{Path: path}})
		f.add(path == "" || err != nil, "/endpoint/probe/path", "must begin with a slash and be a path, with a query if need be")
	}
	f.add(len(p.ExpectStatus) > maxExpectedStatus, "/endpoint/probe/expect_status", "must have at most 20 statuses")
	for i, status := range p.ExpectStatus {
		f.add(status < 200 || status > 599, fmt.Sprintf("/endpoint/probe/expect_status/%d", i), "must be from 200 to 599")
	}
	t.Endpoint.ProbeMethod, t.Endpoint.ProbePath, t.Endpoint.ProbeExpect = method, path, p.ExpectStatus
}

// why is what a guard says to the person who wrote a URL.
func why(err error) string {
	var refusal *egress.Refusal
	if errors.As(err, &refusal) {
		return refusal.Why
	}
	return "The URL cannot be read."
}

// notForSecrets are headers that a request carries anyway, or that say how it is
// to be read.
var notForSecrets = []string{"Accept", "Accept-Encoding", "Connection", "Content-Encoding", "Content-Length", "Content-Type", "Expect", "Host", "Keep-Alive",
	"Last-Event-Id", "Mcp-Method", "Mcp-Name", "Mcp-Protocol-Version", "Mcp-Session-Id", "Proxy-Connection", "Referer", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "User-Agent"}

func (in *ToolInput) auth(f *fieldErrors) event.ToolAuth {
	a := event.ToolAuth{Type: toolcheck.AuthNone, Header: in.Auth.Header, Secret: in.Auth.Secret}
	if in.Auth.Type != nil {
		a.Type = *in.Auth.Type
	}
	known := slices.Contains([]string{toolcheck.AuthNone, toolcheck.AuthBearer, toolcheck.AuthHeader}, a.Type)
	f.add(!known, "/auth/type", "must be none, bearer or header")
	f.add(in.Type == toolcheck.TypeFunction && a.Type != toolcheck.AuthNone, "/auth/type", "must be none: nothing is sent to a function")
	named := a.Type == toolcheck.AuthBearer || a.Type == toolcheck.AuthHeader
	f.add(named && !toolcheck.ValidSecretName(a.Secret), "/auth/secret", "must be the name of a secret: 1 to 48 of A to Z, 0 to 9 and _, not ending in _HOST")
	f.add(known && !named && a.Secret != "", "/auth/secret", "is for the types bearer and header")
	if a.Type != toolcheck.AuthHeader {
		f.add(known && a.Header != "", "/auth/header", "is for the type header")
		return a
	}
	bad := len(a.Header) > maxName || !httpguts.ValidHeaderFieldName(a.Header) || slices.Contains(notForSecrets, http.CanonicalHeaderKey(a.Header))
	f.add(bad, "/auth/header", "must be the name of a header that requests do not carry anyway")
	return a
}

func (in *AnnotationsInput) annotations() event.ToolAnnotations {
	or := func(b *bool, otherwise bool) bool {
		if b == nil {
			return otherwise
		}
		return *b
	}
	return event.ToolAnnotations{ReadOnly: or(in.ReadOnly, false), Destructive: or(in.Destructive, true), Idempotent: or(in.Idempotent, false), OpenWorld: or(in.OpenWorld, true)}
}

// schema checks a declared schema and keeps its text without space. Null is none.
func schema(ctx context.Context, by *Asker, checker *toolcheck.Checker, f *fieldErrors, pointer string, text json.RawMessage) (string, error) {
	if len(text) == 0 || string(text) == "null" {
		return "", nil
	}
	why, err := checker.CheckSchema(ctx, by.Project, text)
	switch {
	case errors.Is(err, toolcheck.ErrBusy) || ctx.Err() != nil:
		return "", fault.New(fault.RateLimitExceeded, "The schema waited too long for its turn: others go first. Nothing was changed; send the request again, and fewer at once.").With("retry_after_seconds", 1)
	case err != nil:
		return "", fault.New(fault.Internal, "The schema could not be checked. Nothing was changed; send the request again, and tell the operator the error_id if it stays.").Because(err)
	case why != "":
		f.add(true, pointer, "is no JSON Schema: "+why)
		return "", nil
	}
	var b bytes.Buffer
	if err := json.Compact(&b, text); err != nil {
		f.add(true, pointer, "is no JSON")
	}
	return b.String(), nil
}
