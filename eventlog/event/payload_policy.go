package event

// Types of a policy version's life (design/policy.md part 7).
const (
	TypePolicyLoaded            Type = "policy_loaded"
	TypePolicyValidated         Type = "policy_validated"
	TypePolicyActivated         Type = "policy_activated"
	TypePolicyRollback          Type = "policy_rollback"
	TypePolicyCandidateCreated  Type = "policy_candidate_created"
	TypePolicyCandidateRejected Type = "policy_candidate_rejected"
)

// Statuses of a policy version.
const (
	PolicyCandidateStatus = "candidate"
	PolicyActiveStatus    = "active"
	PolicyArchivedStatus  = "archived"
	PolicyRejectedStatus  = "rejected"
)

// Origins of a policy_loaded event.
const (
	PolicyOriginImport = "import" // from the folder, with its bytes, at the first start
	PolicyOriginLog    = "log"    // known to the log already
)

// PolicyLoaded says which version a start found.
type PolicyLoaded struct {
	Origin        string
	PolicyVersion string // name@version
	Hash          [32]byte
	Status        string
	Document      []byte // the exact bytes, for PolicyOriginImport alone
}

func (*PolicyLoaded) EventType() Type         { return TypePolicyLoaded }
func (p *PolicyLoaded) Fields() Payload       { return write(5, p.form) }
func (p *PolicyLoaded) Parse(l Payload) error { return read(l, p.form) }

func (p *PolicyLoaded) form(f *form) {
	f.bytes("document", &p.Document, may)
	f.hash("hash", &p.Hash, need)
	f.str("origin", &p.Origin, need)
	f.str("policy_version", &p.PolicyVersion, need)
	f.str("status", &p.Status, need)
}

// PolicyValidated is the verdict of a validation.
type PolicyValidated struct {
	Cause         string // startup, activate, rollback
	PolicyVersion string
	Hash          [32]byte
	Valid         bool
	Counts        FindingCounts
	Tests         TestCounts
	Corpus        CorpusCounts
	Engine        map[string]string // versions of what judged
}

// FindingCounts counts findings by severity.
type FindingCounts struct{ Error, Warning, Info int }

// TestCounts counts the document's own test cases.
type TestCounts struct{ Cases, Passed int }

// CorpusCounts counts the cases of the corpus beside the policies.
type CorpusCounts struct {
	Cases, Passed int
	Hash          [32]byte
}

func (*PolicyValidated) EventType() Type         { return TypePolicyValidated }
func (p *PolicyValidated) Fields() Payload       { return write(8, p.form) }
func (p *PolicyValidated) Parse(l Payload) error { return read(l, p.form) }

func (p *PolicyValidated) form(f *form) {
	f.str("cause", &p.Cause, need)
	f.group("corpus", 3, p.Corpus.form)
	f.group("counts", 3, p.Counts.form)
	f.dict("engine", &p.Engine, need)
	f.hash("hash", &p.Hash, need)
	f.str("policy_version", &p.PolicyVersion, need)
	f.group("tests", 2, p.Tests.form)
	f.flag("valid", &p.Valid, need)
}

func (c *FindingCounts) form(f *form) {
	num(f, "error", &c.Error, need)
	num(f, "info", &c.Info, need)
	num(f, "warning", &c.Warning, need)
}

func (c *TestCounts) form(f *form) {
	num(f, "cases", &c.Cases, need)
	num(f, "passed", &c.Passed, need)
}

func (c *CorpusCounts) form(f *form) {
	num(f, "cases", &c.Cases, need)
	f.hash("hash", &c.Hash, need)
	num(f, "passed", &c.Passed, need)
}

// PolicyActivated makes a version the active one and archives the one before.
type PolicyActivated struct {
	PolicyVersion string
	Hash          [32]byte
	Previous      string   // "" = there was none
	PreviousHash  [32]byte // zero = there was none
	Impact        *Impact
	By            string // label of the operator token; `gate` for an import
	Reason        string
}

// Impact names the replay that the operator looked at before activating.
type Impact struct {
	FromSeq, ToSeq uint64
	ImpactHash     [32]byte
}

func (*PolicyActivated) EventType() Type         { return TypePolicyActivated }
func (p *PolicyActivated) Fields() Payload       { return write(7, p.form) }
func (p *PolicyActivated) Parse(l Payload) error { return read(l, p.form) }

func (p *PolicyActivated) form(f *form) {
	f.str("by", &p.By, need)
	f.hash("hash", &p.Hash, need)
	part(f, "impact", &p.Impact, (*Impact).form)
	f.str("policy_version", &p.PolicyVersion, need)
	f.str("previous", &p.Previous, may)
	f.hash("previous_hash", &p.PreviousHash, may)
	f.str("reason", &p.Reason, may)
}

func (i *Impact) form(f *form) {
	num(f, "from_seq", &i.FromSeq, need)
	f.hash("impact_hash", &i.ImpactHash, need)
	num(f, "to_seq", &i.ToSeq, need)
}

// PolicyRollback makes an archived version the active one again and archives
// the one it takes over from.
type PolicyRollback struct {
	PolicyVersion string
	Hash          [32]byte
	From          string
	FromHash      [32]byte
	By            string
	Reason        string
}

func (*PolicyRollback) EventType() Type         { return TypePolicyRollback }
func (p *PolicyRollback) Fields() Payload       { return write(6, p.form) }
func (p *PolicyRollback) Parse(l Payload) error { return read(l, p.form) }

func (p *PolicyRollback) form(f *form) {
	f.str("by", &p.By, need)
	f.str("from", &p.From, need)
	f.hash("from_hash", &p.FromHash, need)
	f.hash("hash", &p.Hash, need)
	f.str("policy_version", &p.PolicyVersion, need)
	f.str("reason", &p.Reason, may)
}

// PolicyCandidateCreated brings a new version, with its bytes.
type PolicyCandidateCreated struct {
	PolicyVersion string
	Hash          [32]byte
	SemanticHash  [32]byte
	RuleCount     int
	Document      []byte
	Note          string
	By            string
}

func (*PolicyCandidateCreated) EventType() Type         { return TypePolicyCandidateCreated }
func (p *PolicyCandidateCreated) Fields() Payload       { return write(7, p.form) }
func (p *PolicyCandidateCreated) Parse(l Payload) error { return read(l, p.form) }

func (p *PolicyCandidateCreated) form(f *form) {
	f.str("by", &p.By, need)
	f.bytes("document", &p.Document, need)
	f.hash("hash", &p.Hash, need)
	f.str("note", &p.Note, may)
	f.str("policy_version", &p.PolicyVersion, need)
	num(f, "rule_count", &p.RuleCount, need)
	f.hash("semantic_hash", &p.SemanticHash, need)
}

// PolicyCandidateRejected spends a version's number for good.
type PolicyCandidateRejected struct {
	PolicyVersion string
	Hash          [32]byte
	Reason        string // validation_failed, tests_failed, corpus_failed
	Findings      string // JSON array, the first 100
}

func (*PolicyCandidateRejected) EventType() Type         { return TypePolicyCandidateRejected }
func (p *PolicyCandidateRejected) Fields() Payload       { return write(4, p.form) }
func (p *PolicyCandidateRejected) Parse(l Payload) error { return read(l, p.form) }

func (p *PolicyCandidateRejected) form(f *form) {
	f.str("findings", &p.Findings, need)
	f.hash("hash", &p.Hash, need)
	f.str("policy_version", &p.PolicyVersion, need)
	f.str("reason", &p.Reason, need)
}
