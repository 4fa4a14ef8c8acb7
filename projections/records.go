package projections

import (
	"time"

	"writegate/eventlog/event"
)

// States of an approval, as events made them. Whether a pending one has passed
// its time is for the reader's moment to tell: see Approval.StatusAt.
const (
	ApprovalPending  = "pending"
	ApprovalApproved = "approved"
	ApprovalRejected = "rejected"
	ApprovalExpired  = "expired"
)

// Statuses of an approval as readers see them (spec/decisions.md part 5).
const (
	StatusPending  = "pending"
	StatusExpired  = "expired"
	StatusResolved = "resolved"
)

// An ApprovalUse tells whether an approval can still let a statement run.
type ApprovalUse string

// Uses of an approval.
const (
	UseFree    ApprovalUse = ""        // not used, or what ran under it is known to have had no effect
	UseTaken   ApprovalUse = "used"    // an execution under it reached the database
	UseUnknown ApprovalUse = "unknown" // the outcome of an execution under it is not known
)

// An Approval is one question to an operator and its answer.
type Approval struct {
	ID        string
	State     string // ApprovalPending and so on
	Use       ApprovalUse
	Seq       uint64 // position of approval_created
	RequestID string

	Actor, App, Tenant, Env, SessionID, Role, Host string
	Principal                                      string // verified identity; "" = none
	AgentID, Project                               string // of the agent whose token asked; "" = none
	AgentPolicyID                                  string // the agent's policy that asks; "" = the gate's own
	Profile                                        string // execution profile that was asked for; "" = default

	SQL            string // exact, byte for byte
	SQLDigest      [32]byte
	RequestDigest  [32]byte
	Operation      string
	Fingerprint    string
	Classification string // JSON
	PolicyVersion  string
	ReasonCode     string
	RuleID         string
	Message        string
	Remedy         string
	PreparedSQL    string     // what an EXECUTE runs, exact; "" = SQL itself
	Impact         string     // JSON of the plan estimate; "" = none
	Salt           event.Salt // of the event: the digest, which is shown, covers Impact, which is not
	Parameters     []string   // in order, for a person, and what the statement runs under; none = there were none
	MaxRows        *int64     // nil = no limit, 0 = no row at all
	TTLSeconds     int

	CreatedAt   time.Time
	ExpiresAt   time.Time
	ResolvedAt  time.Time // zero = not resolved
	Resolution  string    // approve, reject; "" = not resolved
	Note        string
	ResolvedBy  string
	ExecutionID string    // the last execution under it
	UsedAt      time.Time // of that execution

	// Withdrawn is why the approval can be neither resolved nor used any more; "" = it
	// is not withdrawn. It is the view's to say, and not stored.
	Withdrawn Withdrawal
}

// A Withdrawal is why an approval ended before its time.
type Withdrawal string

// Reasons of a withdrawal.
const (
	WithdrawnAgent Withdrawal = "agent_deactivated" // the agent whose token asked was deactivated since
	WithdrawnLoss  Withdrawal = "log_loss"          // a log ended in a loss since, and what was lost may be its resolution or use
)

// StatusAt is the approval's status at a moment: an elapsed or withdrawn approval is
// never pending, even when no event has said so yet.
func (a *Approval) StatusAt(now time.Time) string {
	switch {
	case a.State == ApprovalApproved || a.State == ApprovalRejected:
		return StatusResolved
	case a.State == ApprovalExpired || a.Withdrawn != "" || a.ElapsedAt(now):
		return StatusExpired
	}
	return StatusPending
}

// ElapsedAt tells whether the approval's time is over, resolved or not.
func (a *Approval) ElapsedAt(now time.Time) bool { return !now.Before(a.ExpiresAt) }

// States of a grant, as events made them. Whether an active one has passed its time is for
// the reader's moment to tell: see Grant.StatusAt.
const (
	GrantActive  = "active"
	GrantExpired = "expired"
	GrantRevoked = "revoked"
)

// GrantUsedUp is the status of a grant whose uses are over before its time is.
const GrantUsedUp = "used_up"

// A Grant is an operator's answer to questions that one agent has not asked yet.
type Grant struct {
	ID             string
	State          string // GrantActive and so on
	Seq            uint64 // position of grant_created
	AgentID        string
	Project        string // of the agent
	Condition      string
	CreatedAt      time.Time
	Until          time.Time
	Uses           int   // statements that may run under it
	Rows           int64 // that these may change together
	Reason         string
	CreatedBy      string
	IdempotencyKey string // of the request that made it; "" = none

	Used     int       // statements that were dispatched under it
	UsedAt   time.Time // when the last one was; zero = none
	Changed  int64     // rows that they are known to have changed, or may have
	Reserved int64     // rows kept for those whose outcome is not known
	Running  int       // of those, the ones that have no result yet

	RevokedAt time.Time // zero = not revoked
	RevokedBy string
	Note      string // of the revocation

	// Withdrawn is as that of an Approval.
	Withdrawn Withdrawal
}

// What an execution under a grant still keeps of it.
const (
	GrantUseRuns    = "runs"    // its rows are kept: it has no result yet
	GrantUseOpen    = "open"    // they are kept still: the outcome is not known
	GrantUseSettled = "settled" // nothing more than what it changed
)

// Seconds is how long the grant is for, in full seconds.
func (g *Grant) Seconds() int { return event.GrantSeconds(g.CreatedAt, g.Until) }

// UsesLeft is how many statements may still run under it, as far as its budget goes.
func (g *Grant) UsesLeft() int { return max(0, g.Uses-g.Used) }

// RowsLeft is how many rows these may change, while those that are kept for others are not
// given back.
func (g *Grant) RowsLeft() int64 { return max(0, g.Rows-g.Changed-g.Reserved) }

// StatusAt is the grant's status at a moment: an elapsed or withdrawn one is never active,
// even when no event has said so yet.
func (g *Grant) StatusAt(now time.Time) string {
	switch {
	case g.State != GrantActive:
		return g.State
	case g.Withdrawn != "" || !now.Before(g.Until):
		return GrantExpired
	case g.UsesLeft() == 0:
		return GrantUsedUp
	}
	return GrantActive
}

// States of an execution (spec/decisions.md part 3).
const (
	ExecutionNotExecuted = "not_executed"
	ExecutionDispatched  = "dispatched"
	ExecutionSuccess     = "success"
	ExecutionFailure     = "failure"
	ExecutionUnknown     = "unknown"
)

// An Execution is one statement on its way through the database.
type Execution struct {
	ID         string
	State      string   // ExecutionDispatched and so on
	Seq        uint64   // position of its first event
	Events     []uint64 // positions
	RequestID  string
	ApprovalID string

	Actor, App, Tenant, Env, SessionID    string
	Operation, Fingerprint, PolicyVersion string
	AgentID, Project                      string // of the agent whose token asked; "" = none

	GrantID   string // the grant that it was dispatched under; "" = none
	GrantRows int64  // rows of it that were kept for this execution
	GrantUse  string // GrantUseRuns and so on; "" = it ran under none
	Path      string
	SQLDigest [32]byte
	XID       uint64
	Marker    bool
	BlockID   string
	Upstream  event.Upstream
	KeyScope  [32]byte // scope digest of its idempotency key; zero = none

	DispatchedAt time.Time // zero = never dispatched
	ResultAt     time.Time // when the first result was recorded
	ResolvedAt   time.Time // when success or failure became known; zero = not yet
	Outcome      string    // as events say: aborted, partial_possible, committed, ...; "" where the state says all
	Basis        string    // what the outcome is known by
	ReasonCode   string
	ErrorCode    string
	SQLState     string
	CommandTag   string
	RowCount     int
	DurationUS   int
	Step, Cause  string // of an unknown
}

// A PolicyVersion is one version of a policy document and where it stands.
type PolicyVersion struct {
	PolicyVersion string // name@version
	Status        string // event.PolicyCandidateStatus and so on
	Seq           uint64 // position of the event that brought it, as are all that follow
	Hash          [32]byte
	SemanticHash  [32]byte // zero = the log does not say
	RuleCount     int      // 0 = the log does not say
	Bytes         int
	Origin        string // import, candidate
	CreatedAt     time.Time
	CreatedBy     string
	Note          string

	ActivatedAt    time.Time // the last time; zero = never
	ActivatedSeq   uint64
	ActivatedBy    string
	ActivateReason string
	ArchivedAt     time.Time
	ArchivedSeq    uint64 // of the event that archived it, or brought it archived; 0 = never
	RejectedReason string
	Findings       string // JSON, of a rejected one

	ValidatedSeq uint64 // of the last policy_validated
	Valid        bool
	Counts       event.FindingCounts
	Tests        event.TestCounts
	Corpus       event.CorpusCounts
}

// An IdempotencyRecord is what a client's key was answered with.
type IdempotencyRecord struct {
	Key           string
	RequestDigest [32]byte
	ExecutionID   string
	RequestID     string
	State         string // of the execution
	Outcome       string // once a check settled an unknown
	ExpiresAt     time.Time
	Answered      bool // the three fields below are set
	Status        int  // HTTP
	Body          string
	RowsOmitted   bool
	Seq           uint64 // of the event that keeps the answer of a POST under /v1; 0 = a statement's
	// SQLDigest and ParamsDigest are of the text and the parameters that a statement was
	// sent with; zero = a POST under /v1, and no parameters.
	SQLDigest, ParamsDigest [32]byte
	Salt                    event.Salt // of the event with the answer: the digest, which is shown, covers Body, which is not
}

// Counters are kept beside the records, because nobody wants to count them.
type Counters struct {
	ApprovalsPending, ApprovalsApproved, ApprovalsRejected, ApprovalsExpired int
	ExecutionsOpen, ExecutionsUnknown                                        int
	PolicySeq                                                                uint64 // position of the last event that added a version's bytes or changed a status
	Active                                                                   string // active policy version; "" = none

	Timelines map[string]string // the newest of each cluster that a write went to, by its system identifier
	PutBack   string            // the timeline that the database was put back to on purpose, as the newest run says; "" = none
	Awaited   bool              // no write went there since, so it is not known of which cluster that was said
}

// ApprovalsResolved counts what an operator answered.
func (c *Counters) ApprovalsResolved() int { return c.ApprovalsApproved + c.ApprovalsRejected }

// Applied is how far the store has folded its log. Seq 0 is a new store.
type Applied struct {
	LogID [16]byte
	Seq   uint64
	Hash  [32]byte // event_hash of that event
}
