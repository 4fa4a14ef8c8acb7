package toolcheck

import (
	"time"

	"writegate/agentctl/egress"
)

// Results of a verification and of its steps.
const (
	Passed  = "passed"
	Failed  = "failed"
	Drifted = "drifted" // not what was pinned
)

// Codes of failed verifications besides those of a visit (package egress).
const (
	HTTPStatus         egress.Code = "http_status"         // the server answered with another status
	AuthRequired       egress.Code = "auth_required"       // 401 or 403: reachable, credentials missing
	VersionUnsupported egress.Code = "version_unsupported" // no protocol version in common
	ToolMissing        egress.Code = "tool_missing"        // the server does not list the tool
	SchemaMismatch     egress.Code = "schema_mismatch"     // a schema is not the declared one, or is none
	SecretUnavailable  egress.Code = "secret_unavailable"  // there is no such secret for this host
)

// Names of the steps, in their order.
const (
	StepURL         = "url"
	StepConnect     = "connect"
	StepProbe       = "probe"
	StepHandshake   = "handshake"
	StepToolPresent = "tool_present"
	StepSchema      = "schema"
	StepFingerprint = "fingerprint"
)

// A Result is what one verification found.
type Result struct {
	Status  string
	Code    egress.Code // of a failed one
	Steps   []Step      // up to the one that failed
	Latency time.Duration

	// Current is the definition that the server gave; empty for what has none.
	// With the status passed it is what is pinned from now on.
	Current Definition
}

// A Step is one thing that was looked at. Fields are set where the step found
// them out.
type Step struct {
	Name    string
	Status  string
	Message string // of a failed one, for people; in our words alone

	Address         string    // connect: the IP address
	TLSNotAfter     time.Time // connect: end of the certificate; zero without TLS
	HTTPStatus      int       // probe, and where a status failed the step
	ProtocolVersion string    // handshake
	ServerName      string    // handshake, plain characters alone
	ServerVersion   string
	Tools           int      // tool_present: how many the server lists
	Changes         []Change // fingerprint: where the definition is another
}

// A Change is one place of a definition, as a JSON pointer (RFC 6901).
type Change struct {
	Path   string
	Change string // added, removed or modified
}

// A run collects the steps of one verification.
type run struct {
	steps []Step
}

func (r *run) pass(s Step) {
	s.Status = Passed
	r.steps = append(r.steps, s)
}

// fail ends the verification at step s.
func (r *run) fail(s Step, code egress.Code, why string) Result {
	s.Status, s.Message = Failed, why
	r.steps = append(r.steps, s)
	return Result{Status: Failed, Code: code, Steps: r.steps}
}

func (r *run) refused(step string, refusal *egress.Refusal) Result {
	return r.fail(Step{Name: step}, refusal.Code, refusal.Why)
}

func (r *run) drifted(s Step, current Definition) Result {
	s.Status = Drifted
	return Result{Status: Drifted, Steps: append(r.steps, s), Current: current}
}

func (r *run) passed(current Definition) Result {
	return Result{Status: Passed, Steps: r.steps, Current: current}
}
