package event

// Types of an approval's life.
const (
	TypeApprovalCreated  Type = "approval_created"
	TypeApprovalResolved Type = "approval_resolved"
	TypeApprovalExpired  Type = "approval_expired"
	TypeApprovalUsed     Type = "approval_used"
	TypeApprovalsPurged  Type = "approvals_purged"
)

// ApprovalCreated asks an operator for one execution of one exact text. The
// approval's id and the claims stand in the context; role and host are repeated
// here, because the operator has to see them.
type ApprovalCreated struct {
	SQL            string // exact, byte for byte
	SQLDigest      [32]byte
	RequestDigest  [32]byte
	Role           string
	Host           string
	Classification string // JSON
	ExpiresAt      int64  // ns since 1970
	TTLSeconds     int
	RuleID         string
	MaxRows        *int64 // nil = no limit, 0 = no row at all
	Message        string
	Remedy         string
	Principal      string
	PreparedSQL    string   // what an EXECUTE runs, exact; "" = SQL itself
	Impact         string   // JSON of the plan estimate; "" = none
	Parameters     []string // in order, for a person, and what the statement runs under: the digest covers their bytes
	AgentPolicyID  string   // the agent's policy that asks; "" = the gate's own
	Profile        string   // execution profile that was asked for; "" = default
	Salt           Salt
}

func (*ApprovalCreated) EventType() Type         { return TypeApprovalCreated }
func (p *ApprovalCreated) Fields() Payload       { return write(18, p.form) }
func (p *ApprovalCreated) Parse(l Payload) error { return read(l, p.form) }

func (p *ApprovalCreated) form(f *form) {
	f.str("agent_policy_id", &p.AgentPolicyID, may)
	f.str("classification", &p.Classification, need)
	f.str("execution_profile", &p.Profile, may)
	num(f, "expires_at", &p.ExpiresAt, need)
	f.str("host", &p.Host, need)
	f.str("impact", &p.Impact, may)
	bound(f, "max_rows", &p.MaxRows)
	f.str("message", &p.Message, may)
	f.strs("parameters", &p.Parameters, may)
	f.str("prepared_sql", &p.PreparedSQL, may)
	f.str("principal", &p.Principal, may)
	f.str("remedy", &p.Remedy, may)
	f.hash("request_digest", &p.RequestDigest, need)
	f.str("role", &p.Role, need)
	f.str("rule_id", &p.RuleID, need)
	f.salt(&p.Salt)
	f.str("sql", &p.SQL, need)
	f.hash("sql_digest", &p.SQLDigest, need)
	num(f, "ttl_seconds", &p.TTLSeconds, need)
}

// Resolutions of an approval.
const (
	ResolutionApprove = "approve"
	ResolutionReject  = "reject"
)

// ApprovalResolved is an operator's answer.
type ApprovalResolved struct {
	Resolution string // ResolutionApprove or ResolutionReject
	Note       string
	By         string // label of the operator token
}

func (*ApprovalResolved) EventType() Type         { return TypeApprovalResolved }
func (p *ApprovalResolved) Fields() Payload       { return write(3, p.form) }
func (p *ApprovalResolved) Parse(l Payload) error { return read(l, p.form) }

func (p *ApprovalResolved) form(f *form) {
	f.str("by", &p.By, need)
	f.str("note", &p.Note, may)
	f.str("resolution", &p.Resolution, need)
}

// ApprovalExpired says that an approval passed its time unresolved.
type ApprovalExpired struct {
	ExpiresAt int64 // ns since 1970
}

func (*ApprovalExpired) EventType() Type         { return TypeApprovalExpired }
func (p *ApprovalExpired) Fields() Payload       { return write(1, p.form) }
func (p *ApprovalExpired) Parse(l Payload) error { return read(l, p.form) }

func (p *ApprovalExpired) form(f *form) { num(f, "expires_at", &p.ExpiresAt, need) }

// ApprovalUsed binds an approval to the execution that its context names.
type ApprovalUsed struct{}

func (*ApprovalUsed) EventType() Type         { return TypeApprovalUsed }
func (p *ApprovalUsed) Fields() Payload       { return write(0, p.form) }
func (p *ApprovalUsed) Parse(l Payload) error { return read(l, p.form) }

func (*ApprovalUsed) form(*form) {}

// ApprovalsPurged removes expired approvals from the store; the log keeps them.
type ApprovalsPurged struct {
	ApprovalIDs []string
	By          string // label of the operator token
}

func (*ApprovalsPurged) EventType() Type         { return TypeApprovalsPurged }
func (p *ApprovalsPurged) Fields() Payload       { return write(2, p.form) }
func (p *ApprovalsPurged) Parse(l Payload) error { return read(l, p.form) }

func (p *ApprovalsPurged) form(f *form) {
	f.strs("approval_ids", &p.ApprovalIDs, need)
	f.str("by", &p.By, need)
}
