package event

import "slices"

// Types of a tool's life (spec/v1.md part 12).
const (
	TypeToolRegistered Type = "tool_registered"
	TypeToolUpdated    Type = "tool_updated"
	TypeToolVerified   Type = "tool_verified"
)

// A Tool is a registered tool whole, as of a revision. What its verification
// found stands in tool_verified.
type Tool struct {
	ToolID       string
	Name         string
	Type         string // mcp, http, function
	Description  string
	Version      string
	Enabled      bool
	Endpoint     ToolEndpoint
	Auth         ToolAuth
	InputSchema  string // JSON; "" = none
	OutputSchema string // JSON; "" = none
	Annotations  ToolAnnotations
	Agents       []string
	Metadata     map[string]string
	Status       string // registered, verified, failed, drifted, disabled
	Pinned       [32]byte
	Revision     int
}

// A ToolEndpoint is where a tool is reached and how it is probed.
type ToolEndpoint struct {
	URL         string
	ToolName    string
	ProbeMethod string
	ProbePath   string
	ProbeExpect []int // HTTP statuses; none = any 2xx
}

// ToolAuth names the secret that is sent, never its value.
type ToolAuth struct{ Type, Header, Secret string }

// ToolAnnotations are the owner's claims.
type ToolAnnotations struct{ ReadOnly, Destructive, Idempotent, OpenWorld bool }

// Statuses of a tool.
const (
	ToolIsRegistered = "registered"
	ToolIsVerified   = "verified"
	ToolIsFailed     = "failed"
	ToolIsDrifted    = "drifted"
	ToolIsDisabled   = "disabled"
)

// Results of a verification.
const (
	VerificationPassed  = "passed"
	VerificationFailed  = "failed"
	VerificationDrifted = "drifted"
)

// SameTarget tells whether two revisions of a tool are verified alike, so that
// what was found of one holds for the other.
func (t *Tool) SameTarget(o *Tool) bool {
	a, b := &t.Endpoint, &o.Endpoint
	return t.Type == o.Type && t.Auth == o.Auth && t.InputSchema == o.InputSchema && t.OutputSchema == o.OutputSchema &&
		a.URL == b.URL && a.ToolName == b.ToolName && a.ProbeMethod == b.ProbeMethod && a.ProbePath == b.ProbePath && slices.Equal(a.ProbeExpect, b.ProbeExpect)
}

func (t *Tool) form(f *form, origin *Origin) {
	f.strs("agents", &t.Agents, may)
	f.group("annotations", 4, t.Annotations.form)
	f.group("auth", 3, t.Auth.form)
	f.str("description", &t.Description, may)
	f.flag("enabled", &t.Enabled, may)
	f.group("endpoint", 5, t.Endpoint.form)
	f.str("input_schema", &t.InputSchema, may)
	f.dict("metadata", &t.Metadata, may)
	f.str("name", &t.Name, need)
	f.origin(origin)
	f.str("output_schema", &t.OutputSchema, may)
	f.hash("pinned", &t.Pinned, may)
	num(f, "revision", &t.Revision, need)
	f.str("status", &t.Status, need)
	f.str("tool_id", &t.ToolID, need)
	f.str("type", &t.Type, need)
	f.str("version", &t.Version, may)
}

func (e *ToolEndpoint) form(f *form) {
	nums(f, "probe_expect", &e.ProbeExpect, may)
	f.str("probe_method", &e.ProbeMethod, may)
	f.str("probe_path", &e.ProbePath, may)
	f.str("tool_name", &e.ToolName, may)
	f.str("url", &e.URL, may)
}

func (a *ToolAuth) form(f *form) {
	f.str("header", &a.Header, may)
	f.str("secret", &a.Secret, may)
	f.str("type", &a.Type, need)
}

func (a *ToolAnnotations) form(f *form) {
	f.flag("destructive", &a.Destructive, may)
	f.flag("idempotent", &a.Idempotent, may)
	f.flag("open_world", &a.OpenWorld, may)
	f.flag("read_only", &a.ReadOnly, may)
}

// ToolRegistered brings a tool.
type ToolRegistered struct {
	Origin Origin
	Tool   Tool
}

// ToolUpdated replaces a tool's configuration.
type ToolUpdated struct {
	Origin Origin
	Tool   Tool
}

func (*ToolRegistered) EventType() Type         { return TypeToolRegistered }
func (p *ToolRegistered) From() *Origin         { return &p.Origin }
func (p *ToolRegistered) Fields() Payload       { return write(17, p.form) }
func (p *ToolRegistered) Parse(l Payload) error { return read(l, p.form) }
func (p *ToolRegistered) form(f *form)          { p.Tool.form(f, &p.Origin) }

func (*ToolUpdated) EventType() Type         { return TypeToolUpdated }
func (p *ToolUpdated) From() *Origin         { return &p.Origin }
func (p *ToolUpdated) Fields() Payload       { return write(17, p.form) }
func (p *ToolUpdated) Parse(l Payload) error { return read(l, p.form) }
func (p *ToolUpdated) form(f *form)          { p.Tool.form(f, &p.Origin) }

// ToolVerified is a verification whole, with what it makes of the tool.
type ToolVerified struct {
	Origin         Origin
	VerificationID string
	ToolID         string
	Status         string // passed, failed, drifted
	CheckedAt      int64  // ns since 1970
	LatencyMS      int
	ErrorCode      string
	Pinned         [32]byte // after the verification; zero = none
	PinnedParts    string   // JSON object of short hashes by JSON pointer, where this verification pinned; they tell later where a definition changed
	Current        [32]byte // as found; zero = none
	Steps          string   // JSON array
	ToolStatus     string   // of the tool from here on
	StaleAfter     int64    // ns since 1970, where it passed
	Revision       int      // of the tool
}

func (*ToolVerified) EventType() Type         { return TypeToolVerified }
func (p *ToolVerified) From() *Origin         { return &p.Origin }
func (p *ToolVerified) Fields() Payload       { return write(14, p.form) }
func (p *ToolVerified) Parse(l Payload) error { return read(l, p.form) }

func (p *ToolVerified) form(f *form) {
	num(f, "checked_at", &p.CheckedAt, need)
	f.hash("current", &p.Current, may)
	f.str("error_code", &p.ErrorCode, may)
	num(f, "latency_ms", &p.LatencyMS, need)
	f.origin(&p.Origin)
	f.hash("pinned", &p.Pinned, may)
	f.str("pinned_parts", &p.PinnedParts, may)
	num(f, "revision", &p.Revision, need)
	num(f, "stale_after", &p.StaleAfter, may)
	f.str("status", &p.Status, need)
	f.str("steps", &p.Steps, need)
	f.str("tool_id", &p.ToolID, need)
	f.str("tool_status", &p.ToolStatus, need)
	f.str("verification_id", &p.VerificationID, need)
}
