package event

// Types of an execution.
const (
	TypeExecutionDispatched      Type = "execution_dispatched"
	TypeExecutionSuccess         Type = "execution_success"
	TypeExecutionFailure         Type = "execution_failure"
	TypeExecutionStateUnknown    Type = "execution_state_unknown"
	TypeExecutionOutcomeResolved Type = "execution_outcome_resolved"
	TypeReadFenceViolation       Type = "read_fence_violation"
)

// Paths of an execution (design/execution-and-wire.md part 2).
const (
	PathRead  = "read"
	PathTx    = "tx"
	PathAlone = "alone"
)

// ExecutionDispatched is durable before the client's text leaves for the database.
type ExecutionDispatched struct {
	Path        string // PathRead, PathTx, PathAlone or PathDryRun
	SQLSHA256   [32]byte
	Params      *Params // nil = no parameters
	Limits      Limits
	Settings    map[string]string // what differs from the pins
	Upstream    Upstream
	XID         uint64 // PostgreSQL's transaction id; 0 = none
	Marker      bool   // a row was written into the marker table
	BlockID     string // the client's transaction block; "" = none
	Idempotency *Idempotency
	Salt        Salt // of Idempotency
}

// Params describes bound parameters without their values.
type Params struct {
	Count  int
	SHA256 [32]byte
}

// Limits bound the execution.
type Limits struct {
	Rows      int
	Bytes     int
	MaxRows   *int64 // the approval's; nil = none, 0 = no row at all
	TimeoutMS int
}

// Upstream is the database connection, as far as an outcome check needs it.
type Upstream struct {
	SystemIdentifier string
	Timeline         string
	CrashMark        string
	Database         string
	Host             string
	Role             string
	BackendPID       int
	BackendStart     string
}

// Idempotency binds a client's key to the execution.
type Idempotency struct {
	Key           string
	ScopeDigest   [32]byte // SHA-256 over actor, app, tenant and key
	RequestDigest [32]byte
	ExpiresAt     int64 // ns since 1970
}

func (*ExecutionDispatched) EventType() Type         { return TypeExecutionDispatched }
func (p *ExecutionDispatched) Fields() Payload       { return write(10, p.form) }
func (p *ExecutionDispatched) Parse(l Payload) error { return read(l, p.form) }

func (p *ExecutionDispatched) form(f *form) {
	f.str("block_id", &p.BlockID, may)
	part(f, "idempotency", &p.Idempotency, (*Idempotency).form)
	f.group("limits", 4, p.Limits.form)
	f.flag("marker", &p.Marker, may)
	part(f, "params", &p.Params, (*Params).form)
	f.str("path", &p.Path, need)
	f.salt(&p.Salt)
	f.dict("settings", &p.Settings, may)
	f.hash("sql_sha256", &p.SQLSHA256, need)
	f.group("upstream", 8, p.Upstream.form)
	num(f, "xid", &p.XID, may)
}

func (p *Params) form(f *form) {
	num(f, "count", &p.Count, need)
	f.hash("sha256", &p.SHA256, need)
}

func (l *Limits) form(f *form) {
	num(f, "bytes", &l.Bytes, need)
	bound(f, "max_rows", &l.MaxRows)
	num(f, "rows", &l.Rows, need)
	num(f, "timeout_ms", &l.TimeoutMS, need)
}

func (u *Upstream) form(f *form) {
	num(f, "backend_pid", &u.BackendPID, may)
	f.str("backend_start", &u.BackendStart, may)
	f.str("crash_mark", &u.CrashMark, may)
	f.str("database", &u.Database, may)
	f.str("host", &u.Host, need)
	f.str("role", &u.Role, need)
	f.str("system_identifier", &u.SystemIdentifier, may)
	f.str("timeline", &u.Timeline, may)
}

func (i *Idempotency) form(f *form) {
	num(f, "expires_at", &i.ExpiresAt, need)
	f.str("key", &i.Key, need)
	f.hash("request_digest", &i.RequestDigest, need)
	f.hash("scope_digest", &i.ScopeDigest, need)
}

// An Answer is what a keyed request was told, kept to be told again.
type Answer struct {
	Status      int // HTTP
	Body        string
	RowsOmitted bool // rows and columns were too large to keep
}

func (a *Answer) form(f *form) {
	f.str("body", &a.Body, need)
	f.flag("rows_omitted", &a.RowsOmitted, may)
	num(f, "status", &a.Status, need)
}

// ExecutionSuccess says that the statement took effect, that a read was read, or, with
// RolledBack, that a dry run ran to its end and was rolled back.
type ExecutionSuccess struct {
	CommandTag  string // as PostgreSQL sent it
	RowCount    int
	RowsChanged int
	Bytes       int
	DurationUS  int
	Basis       string // what it is known by: commit_acknowledged, read_rolled_back, alone_completed; of a dry run rollback_acknowledged, commit_never_sent
	Warnings    []string
	RolledBack  bool
	DryRun      *DryRunResult // with RolledBack
	Answer      *Answer       // of a keyed request
	Salt        Salt
}

func (*ExecutionSuccess) EventType() Type         { return TypeExecutionSuccess }
func (p *ExecutionSuccess) Fields() Payload       { return write(11, p.form) }
func (p *ExecutionSuccess) Parse(l Payload) error { return read(l, p.form) }

func (p *ExecutionSuccess) form(f *form) {
	part(f, "answer", &p.Answer, (*Answer).form)
	f.str("basis", &p.Basis, need)
	num(f, "bytes", &p.Bytes, need)
	f.str("command_tag", &p.CommandTag, need)
	part(f, "dry_run", &p.DryRun, (*DryRunResult).form)
	num(f, "duration_us", &p.DurationUS, need)
	f.flag("rolled_back", &p.RolledBack, may)
	num(f, "row_count", &p.RowCount, need)
	num(f, "rows_changed", &p.RowsChanged, may)
	f.salt(&p.Salt)
	f.strs("warnings", &p.Warnings, may)
}

// Outcomes of executions, in execution_failure and execution_outcome_resolved.
const (
	OutcomeAborted         = "aborted"          // nothing was applied
	OutcomePartialPossible = "partial_possible" // outside a transaction, or by what no rollback undoes: something may have been
	OutcomeNotExecuted     = "not_executed"     // nothing of the client's was sent
	OutcomeCommitted       = "committed"
	OutcomeInProgress      = "in_progress"
	OutcomeNotKnowable     = "not_knowable"
)

// ExecutionFailure says that the statement did not take effect; the context's
// reason_code says why.
type ExecutionFailure struct {
	SQLState   string
	Outcome    string // OutcomeAborted, OutcomePartialPossible or OutcomeNotExecuted
	Basis      string
	Message    string // the database's text, under GATE_AUDIT_SQL_TEXT=full alone
	DurationUS int
	Rows       int
	Answer     *Answer
	Salt       Salt
}

func (*ExecutionFailure) EventType() Type         { return TypeExecutionFailure }
func (p *ExecutionFailure) Fields() Payload       { return write(8, p.form) }
func (p *ExecutionFailure) Parse(l Payload) error { return read(l, p.form) }

func (p *ExecutionFailure) form(f *form) {
	part(f, "answer", &p.Answer, (*Answer).form)
	f.str("basis", &p.Basis, may)
	num(f, "duration_us", &p.DurationUS, may)
	f.str("message", &p.Message, may)
	f.str("outcome", &p.Outcome, need)
	num(f, "rows", &p.Rows, may)
	f.salt(&p.Salt)
	f.str("sqlstate", &p.SQLState, may)
}

// ExecutionStateUnknown says that a dispatched statement's outcome is not known.
type ExecutionStateUnknown struct {
	Step   string // of the journey, "" = not known either
	Cause  string // timeout, connection_lost, gate_stopped, evidence_lost
	Answer *Answer
	Salt   Salt
}

func (*ExecutionStateUnknown) EventType() Type         { return TypeExecutionStateUnknown }
func (p *ExecutionStateUnknown) Fields() Payload       { return write(4, p.form) }
func (p *ExecutionStateUnknown) Parse(l Payload) error { return read(l, p.form) }

func (p *ExecutionStateUnknown) form(f *form) {
	part(f, "answer", &p.Answer, (*Answer).form)
	f.str("cause", &p.Cause, need)
	f.salt(&p.Salt)
	f.str("step", &p.Step, need)
}

// ExecutionOutcomeResolved is what a check found out about an unknown outcome.
type ExecutionOutcomeResolved struct {
	Outcome  string // OutcomeCommitted, OutcomeAborted, OutcomeInProgress or OutcomeNotKnowable
	Basis    string
	Answered string // what the server said; "" = it was not asked
	By       string // label of the operator token; "" = the gate itself
}

func (*ExecutionOutcomeResolved) EventType() Type         { return TypeExecutionOutcomeResolved }
func (p *ExecutionOutcomeResolved) Fields() Payload       { return write(4, p.form) }
func (p *ExecutionOutcomeResolved) Parse(l Payload) error { return read(l, p.form) }

func (p *ExecutionOutcomeResolved) form(f *form) {
	f.str("answered", &p.Answered, may)
	f.str("basis", &p.Basis, need)
	f.str("by", &p.By, may)
	f.str("outcome", &p.Outcome, need)
}

// ReadFenceViolation says that the database refused, as a write, what the
// classifier took for a safe read.
type ReadFenceViolation struct {
	SQLState string
	Detail   string
}

func (*ReadFenceViolation) EventType() Type         { return TypeReadFenceViolation }
func (p *ReadFenceViolation) Fields() Payload       { return write(2, p.form) }
func (p *ReadFenceViolation) Parse(l Payload) error { return read(l, p.form) }

func (p *ReadFenceViolation) form(f *form) {
	f.str("detail", &p.Detail, may)
	f.str("sqlstate", &p.SQLState, need)
}
