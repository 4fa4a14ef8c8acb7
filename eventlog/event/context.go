package event

// Context holds the fields that many event types share (design/eventlog.md
// part 3). Every field is text; "" means that it does not apply and is not
// stored. The numbers are the keys in the log.
type Context struct {
	PolicyVersion  string // 1
	Operation      string // 2: the statement's query type, else the command's name
	Fingerprint    string // 3
	Decision       string // 4
	Actor          string // 5
	App            string // 6
	Tenant         string // 7
	Env            string // 8
	SessionID      string // 9
	ApprovalID     string // 10
	RequestID      string // 11
	ExecutionID    string // 12
	ReasonCode     string // 13
	ErrorCode      string // 14
	FallbackReason string // 15
	EvidenceBundle string // 16
	Role           string // 17: in a request's first event only
	Host           string // 18: in a request's first event only
	Mode           string // 19: in startup and decision_recorded
	AgentID        string // 20: the registered agent that it is about or was done by
	Project        string // 21: the project of an agent, a policy of agents, a tool or a project key
}

const (
	contextFields = 21
	// contextAlways is how many of them, by number, the readable form shows
	// even when they are empty: the ten of the contract (spec/gate.md part 2.6).
	contextAlways = 10
)

// contextNames are the names in the readable form, by number.
var contextNames = [contextFields + 1]string{
	1: "policy_version", 2: "operation", 3: "fingerprint", 4: "decision", 5: "actor", 6: "app", 7: "tenant", 8: "env",
	9: "session_id", 10: "approval_id", 11: "request_id", 12: "execution_id", 13: "reason_code", 14: "error_code",
	15: "fallback_reason", 16: "evidence_bundle", 17: "role", 18: "host", 19: "mode",
	20: "agent_id", 21: "project",
}

// contextPrefixes are those of the ids that the log keeps as 16 bytes, by number.
var contextPrefixes = [contextFields + 1]string{10: prefixApproval, 11: prefixRequest, 12: prefixExecution, 20: prefixAgent}

// at gives the field with the number n, from 1.
func (c *Context) at(n int) *string {
	switch n {
	case 1:
		return &c.PolicyVersion
	case 2:
		return &c.Operation
	case 3:
		return &c.Fingerprint
	case 4:
		return &c.Decision
	case 5:
		return &c.Actor
	case 6:
		return &c.App
	case 7:
		return &c.Tenant
	case 8:
		return &c.Env
	case 9:
		return &c.SessionID
	case 10:
		return &c.ApprovalID
	case 11:
		return &c.RequestID
	case 12:
		return &c.ExecutionID
	case 13:
		return &c.ReasonCode
	case 14:
		return &c.ErrorCode
	case 15:
		return &c.FallbackReason
	case 16:
		return &c.EvidenceBundle
	case 17:
		return &c.Role
	case 18:
		return &c.Host
	case 19:
		return &c.Mode
	case 20:
		return &c.AgentID
	default:
		return &c.Project
	}
}

// set counts the fields that are stored.
func (c *Context) set() int {
	n := 0
	for i := 1; i <= contextFields; i++ {
		if *c.at(i) != "" {
			n++
		}
	}
	return n
}
