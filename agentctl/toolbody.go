package agentctl

import (
	"encoding/hex"
	"encoding/json"
	"time"

	"writegate/agentctl/toolcheck"
	"writegate/eventlog/event"
	"writegate/projections"
)

// ToolBody is a tool as /v1 shows it (spec/v1.md part 12).
type ToolBody struct {
	ID           string            `json:"id"`
	Name         string            `json:"name"`
	Type         string            `json:"type"`
	Description  string            `json:"description"`
	Version      string            `json:"version"`
	Enabled      bool              `json:"enabled"`
	Endpoint     *EndpointBody     `json:"endpoint"`
	Auth         AuthBody          `json:"auth"`
	InputSchema  json.RawMessage   `json:"input_schema"`
	OutputSchema json.RawMessage   `json:"output_schema"`
	Annotations  AnnotationsBody   `json:"annotations"`
	Agents       []string          `json:"agents"`
	Metadata     map[string]string `json:"metadata"`
	Status       string            `json:"status"`
	Fingerprint  FingerprintBody   `json:"fingerprint"`
	Verification *CheckedBody      `json:"verification"`
	Revision     int               `json:"revision"`
	CreatedAt    string            `json:"created_at"`
	UpdatedAt    string            `json:"updated_at"`
}

// EndpointBody is where a tool is; null for a function.
type EndpointBody struct {
	URL      string     `json:"url"`
	ToolName *string    `json:"tool_name"`
	Probe    *ProbeBody `json:"probe"`
}

// ProbeBody is how an HTTP tool is asked. Without statuses any from 200 to 299 is
// expected.
type ProbeBody struct {
	Method       string `json:"method"`
	Path         string `json:"path"`
	ExpectStatus []int  `json:"expect_status"`
}

// AuthBody names a secret, never its value.
type AuthBody struct {
	Type   string  `json:"type"`
	Header *string `json:"header"`
	Secret *string `json:"secret"`
}

// AnnotationsBody are the owner's claims.
type AnnotationsBody struct {
	ReadOnly    bool `json:"read_only"`
	Destructive bool `json:"destructive"`
	Idempotent  bool `json:"idempotent"`
	OpenWorld   bool `json:"open_world"`
}

// FingerprintBody holds the fingerprint that is pinned and the one last seen.
type FingerprintBody struct {
	Pinned  *string `json:"pinned"`
	Current *string `json:"current"`
}

// CheckedBody is what remains of the last verification.
type CheckedBody struct {
	ID         string  `json:"id"`
	Status     string  `json:"status"`
	ErrorCode  *string `json:"error_code"`
	CheckedAt  string  `json:"checked_at"`
	StaleAfter *string `json:"stale_after"`
	Stale      bool    `json:"stale"`
}

// ChangedTool is the answer of a registration and of a change.
type ChangedTool struct {
	ToolBody
	Warnings []Warning `json:"warnings,omitempty"`
}

// VerificationBody is one verification whole.
type VerificationBody struct {
	ID          string          `json:"id"`
	ToolID      string          `json:"tool_id"`
	Status      string          `json:"status"`
	CheckedAt   string          `json:"checked_at"`
	LatencyMS   int             `json:"latency_ms"`
	ErrorCode   *string         `json:"error_code"`
	Fingerprint FingerprintBody `json:"fingerprint"`
	Steps       []StepBody      `json:"steps"`
	Revision    int             `json:"revision"` // of the tool
}

// StepBody is one step of it.
type StepBody struct {
	Name            string       `json:"name"`
	Status          string       `json:"status"`
	Message         string       `json:"message,omitempty"`
	Address         string       `json:"address,omitempty"`
	TLSNotAfter     string       `json:"tls_not_after,omitempty"`
	HTTPStatus      int          `json:"http_status,omitempty"`
	ProtocolVersion string       `json:"protocol_version,omitempty"`
	Server          *ServerBody  `json:"server,omitempty"`
	Tools           *int         `json:"tools,omitempty"`
	Changes         []ChangeBody `json:"changes,omitempty"`
}

// ServerBody is who an MCP server says it is, in plain characters.
type ServerBody struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// ChangeBody is one place where a definition is not what was pinned.
type ChangeBody struct {
	Path   string `json:"path"`
	Change string `json:"change"`
}

func toolBody(v *projections.Tool, now time.Time) ToolBody {
	b := ToolBody{ID: v.ToolID, Name: v.Name, Type: v.Type, Description: v.Description, Version: v.Version, Enabled: v.Enabled, Endpoint: endpointBody(v),
		Auth:        AuthBody{Type: v.Auth.Type, Header: optional(v.Auth.Header), Secret: optional(v.Auth.Secret)},
		InputSchema: orNull(v.InputSchema), OutputSchema: orNull(v.OutputSchema), Annotations: AnnotationsBody(v.Annotations),
		Agents: v.Agents, Metadata: v.Metadata, Status: v.Status, Fingerprint: FingerprintBody{fingerprint(v.Pinned), fingerprint(v.Checked.Current)},
		Revision: v.Revision, CreatedAt: event.Timestamp(v.CreatedAt), UpdatedAt: event.Timestamp(v.UpdatedAt)}
	if b.Agents == nil {
		b.Agents = []string{}
	}
	if b.Metadata == nil {
		b.Metadata = map[string]string{}
	}
	if c := &v.Checked; c.VerificationID != "" {
		b.Verification = &CheckedBody{ID: c.VerificationID, Status: c.Status, ErrorCode: optional(c.ErrorCode), CheckedAt: event.Timestamp(c.CheckedAt),
			StaleAfter: moment(c.StaleAfter), Stale: c.StaleAt(now)}
	}
	return b
}

func endpointBody(v *projections.Tool) *EndpointBody {
	e := &v.Endpoint
	switch v.Type {
	case toolcheck.TypeMCP:
		return &EndpointBody{URL: e.URL, ToolName: optional(e.ToolName)}
	case toolcheck.TypeHTTP:
		p := ProbeBody{Method: e.ProbeMethod, Path: e.ProbePath, ExpectStatus: e.ProbeExpect}
		if p.ExpectStatus == nil {
			p.ExpectStatus = []int{}
		}
		return &EndpointBody{URL: e.URL, Probe: &p}
	}
	return nil
}

func orNull(text string) json.RawMessage {
	if text == "" {
		return json.RawMessage("null")
	}
	return json.RawMessage(text)
}

// fingerprint renders a hash; null where there is none.
func fingerprint(hash [32]byte) *string {
	if hash == ([32]byte{}) {
		return nil
	}
	text := hex.EncodeToString(hash[:])
	return &text
}

func stepBodies(steps []toolcheck.Step) []StepBody {
	bodies := make([]StepBody, len(steps))
	for i := range steps {
		s := &steps[i]
		b := StepBody{Name: s.Name, Status: s.Status, Message: s.Message, Address: s.Address, HTTPStatus: s.HTTPStatus, ProtocolVersion: s.ProtocolVersion}
		if !s.TLSNotAfter.IsZero() {
			b.TLSNotAfter = event.Timestamp(s.TLSNotAfter)
		}
		if s.ServerName != "" || s.ServerVersion != "" {
			b.Server = &ServerBody{s.ServerName, s.ServerVersion}
		}
		if s.Name == toolcheck.StepToolPresent {
			b.Tools = &s.Tools
		}
		for _, c := range s.Changes {
			b.Changes = append(b.Changes, ChangeBody(c))
		}
		bodies[i] = b
	}
	return bodies
}
