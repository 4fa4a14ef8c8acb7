package policy

// A Decision is what becomes of a statement.
type Decision string

// The three decisions of the contract (spec/gate.md part 1.3).
const (
	Allow           Decision = "ALLOW"
	Block           Decision = "BLOCK"
	RequireApproval Decision = "REQUIRE_APPROVAL"
)

var decisions = newVocabulary(string(Allow), string(Block), string(RequireApproval))

// Strictness orders decisions for the rule that the strictest wins: ALLOW is
// below REQUIRE_APPROVAL, which is below BLOCK. Anything else counts as BLOCK.
func (d Decision) Strictness() int {
	switch d {
	case Allow:
		return 0
	case RequireApproval:
		return 2
	default:
		return 3
	}
}

// satisfied is the strictness of an approval that a person has given: above
// ALLOW, so that its rule gives the reason, below a wish for another approval.
const satisfied = 1

// Rule ids, reason codes and layers that no document may use for itself.
const (
	RuleDefault = "default"
	FloorPrefix = "floor."

	ReasonSafeRead       = "safe_read"
	ReasonDefaultDeny    = "default_deny"
	ReasonRuleEvalError  = "rule_eval_error"
	ReasonApprovalFirst  = "approval_first_mode"
	ReasonSessionControl = "session_control"
	ReasonMarkerTable    = "marker_table"
	ReasonRequired       = "reason_required"

	LayerPolicy  = "policy"
	LayerSession = "session"
	LayerAgent   = "agent" // a rule of the agent was stricter (spec/v1.md part 7)
)

// ApprovalTerms are the strictest terms over all matched rules that ask for an
// approval.
type ApprovalTerms struct {
	TTLSeconds int `json:"ttl_seconds"`
	// MaxRows is the number of changed rows above which the executor rolls
	// back; nil sets no limit.
	MaxRows *int64 `json:"max_rows,omitempty"`
}

// DryRunTerms say what a dry run of a statement may show: how many rows of which tables it
// would change, and with Rows some of these rows to whoever approves.
type DryRunTerms struct {
	Rows bool `json:"rows"`
}

var dryRuns = newVocabulary("none", "allow", "rows")

// word is one of dryRuns, as a test expects it.
func (d *DryRunTerms) word() string {
	switch {
	case d == nil:
		return "none"
	case d.Rows:
		return "rows"
	}
	return "allow"
}

// A Result is a decision with all that led to it. Its slices are shared with
// the policy and must not be changed.
type Result struct {
	Decision   Decision `json:"decision"`
	ReasonCode string   `json:"reason_code"`
	// RuleID is the rule that decided: an id of the document, floor.<signal>,
	// default, or "" for session control without a matching rule.
	RuleID string `json:"rule_id"`
	// Layer is policy, or session where the gate answers session control
	// itself and no rule had a say.
	Layer string `json:"layer"`
	// Message and Remedy are for the client; they never hold SQL text.
	Message string `json:"message,omitempty"`
	Remedy  string `json:"remedy,omitempty"`
	// Matched are the enforced rules that matched, Observed those in mode
	// observe, Errors the enforced rules whose when failed; ids in document order.
	Matched  []string `json:"matched,omitempty"`
	Observed []string `json:"observed,omitempty"`
	Errors   []string `json:"errors,omitempty"`
	// Floor are the floor signals that block, Lifted those that a matched rule lifted.
	Floor  []string `json:"floor,omitempty"`
	Lifted []string `json:"lifted,omitempty"`
	// Approval is set where the decision is REQUIRE_APPROVAL, and where it is
	// ALLOW because the approval was given: the row limit still binds then.
	Approval *ApprovalTerms `json:"approval,omitempty"`
	// DryRun is set where the statement may run to be rolled back, as far as rules say.
	DryRun *DryRunTerms `json:"dry_run,omitempty"`
}
