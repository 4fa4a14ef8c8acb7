package controlplane

import (
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// What the gate's API answers, as far as the pages show it (docs/openapi.yaml).

type health struct {
	Status        string `json:"status"`
	Version       string `json:"version"`
	UptimeSeconds int64  `json:"uptime_seconds"`
	Mode          string `json:"mode"`
	StartupChain  []step `json:"startup_chain"`
	Database      step   `json:"database"`
	Log           struct {
		Seq        uint64  `json:"seq"`
		EventHash  string  `json:"event_hash"`
		VerifiedTo *uint64 `json:"verified_to"` // the last event before the damage; nil: none is known
	} `json:"log"`
	Checkpoints *struct {
		Size uint64 `json:"size"` // events that the newest one vouches for
	} `json:"checkpoints"`
	BypassUntil  *time.Time `json:"bypass_until"`
	BypassReason string     `json:"bypass_reason"`
}

// damaged reports that the evidence can't be relied on: what is not found in it may have
// been there.
func (h *health) damaged() bool {
	return h != nil && slices.ContainsFunc(h.StartupChain, func(s step) bool { return s.Step == "audit_log_continuity" && s.Status == "failed" })
}

// failedStep tells whether the chain of checks of a start broke off.
func (h *health) failedStep() bool {
	return h != nil && slices.ContainsFunc(h.StartupChain, func(s step) bool { return s.Status == "failed" })
}

type step struct {
	Step    string `json:"step"`
	Status  string `json:"status"`
	Message string `json:"message"`
}

type quantiles struct {
	P50 float64 `json:"p50"`
	P95 float64 `json:"p95"`
	P99 float64 `json:"p99"`
}

type stats struct {
	UptimeSeconds     int64                `json:"uptime_seconds"`
	RequestsTotal     int64                `json:"requests_total"`
	RequestsByType    map[string]int64     `json:"requests_by_query_type"`
	Decisions         map[string]int64     `json:"decisions"`
	Unenforced        int64                `json:"unenforced"`
	LatencyMS         map[string]quantiles `json:"latency_ms"`
	PolicyVersion     string               `json:"policy_version"`
	ApprovalsPending  int64                `json:"approvals_pending"`
	ApprovalsResolved int64                `json:"approvals_resolved"`
	ExecutionsUnknown int64                `json:"executions_unknown"`
	Pool              map[string]int64     `json:"pool"`
}

type classification struct {
	QueryType      string   `json:"query_type"`
	QueryTypes     []string `json:"query_types"`
	Class          string   `json:"class"`
	SafeRead       bool     `json:"safe_read"`
	TablesRead     []string `json:"tables_read"`
	TablesWritten  []string `json:"tables_written"`
	ColumnsWritten []string `json:"columns_written"`
	Functions      []string `json:"functions"`
	RiskSignals    []string `json:"risk_signals"`
	Flags          []string `json:"flags"`
	Where          []string `json:"where"`
	Run            string   `json:"run"`
	Signals        []signal `json:"signals"`
	Advice         []string `json:"advice"`
}

type signal struct {
	Signal   string `json:"signal"`
	Severity string `json:"severity"`
	Subject  string `json:"subject"`
}

type claims struct {
	Actor     string `json:"actor"`
	App       string `json:"app"`
	Tenant    string `json:"tenant"`
	Role      string `json:"role"`
	Host      string `json:"host"`
	Env       string `json:"env"`
	SessionID string `json:"session_id"`
}

type approval struct {
	ApprovalID     string         `json:"approval_id"`
	Status         string         `json:"status"`
	Resolution     string         `json:"resolution"`
	SQL            string         `json:"sql"`
	PreparedSQL    string         `json:"prepared_sql"`
	Parameters     []string       `json:"parameters"`
	Classification classification `json:"classification"`
	Context        claims         `json:"context"`
	CreatedAt      time.Time      `json:"created_at"`
	ExpiresAt      time.Time      `json:"expires_at"`
	ResolvedAt     *time.Time     `json:"resolved_at"`
	ResolvedBy     string         `json:"resolved_by"`
	Use            string         `json:"use"`
	Note           string         `json:"note"`
	Profile        string         `json:"execution_profile"`
	Fingerprint    string         `json:"fingerprint"`
	PolicyVersion  string         `json:"policy_version"`
	ReasonCode     string         `json:"reason_code"`
	RuleID         string         `json:"rule_id"`
	DecidedBy      struct {
		PolicyID string `json:"policy_id"` // the agent's policy; "": the gate's own
	} `json:"decided_by"`
	Message        string     `json:"message"`
	MaxRows        *int64     `json:"max_rows"`
	Principal      string     `json:"principal"`
	AgentID        string     `json:"agent_id"`
	Impact         *plan      `json:"impact"`
	DryRun         *dryRun    `json:"-"`           // of impact
	ReachedNow     *plan      `json:"reached_now"` // its tables alone
	Renewed        *renewal   `json:"-"`
	OverLimit      bool       `json:"estimate_exceeds_max_rows"`
	Uncounted      string     `json:"not_countable"`
	ExecutionID    string     `json:"execution_id"`
	ExecutionState string     `json:"execution_state"`
	UsedAt         *time.Time `json:"used_at"`
	RequestID      string     `json:"request_id"`
	Withdrawn      bool       `json:"withdrawn"`
}

// UnmarshalJSON tells apart what PostgreSQL says of a statement and what a dry run of it has
// found: where there is the second alone, nothing is known of the first.
func (a *approval) UnmarshalJSON(text []byte) error {
	type record approval
	if err := json.Unmarshal(text, (*record)(a)); err != nil || a.Impact == nil {
		return err
	}
	if a.DryRun = a.Impact.DryRun; a.DryRun != nil && a.Impact.Node == "" && a.Impact.Tables == nil && a.Impact.Unplanned == "" && a.Impact.Omitted == "" {
		a.Impact = nil
	}
	return nil
}

// named leaves to the classification the tables that the text names, where the gate has looked
// at what the write reaches besides: one that was decided by the catalogues has both.
func (a *approval) named() {
	of := func(table string, how ...string) bool {
		return slices.ContainsFunc(a.Impact.tables(), func(t reached) bool { return t.Table == table && (len(how) == 0 || slices.Contains(how, t.How)) })
	}
	own := slices.DeleteFunc(slices.Clone(a.Classification.TablesWritten), func(table string) bool { return of(table) && !of(table, "named") })
	if len(own) > 0 {
		a.Classification.TablesWritten = own
	}
}

// A dryRun is what the statement would have changed when it was tried.
type dryRun struct {
	At          time.Time `json:"at"`
	ExecutionID string    `json:"execution_id"`
	RowsChanged int64     `json:"rows_changed"`
	MaxRows     int64     `json:"max_rows"`
	Tables      []struct {
		Table    string `json:"table"`
		Inserted int64  `json:"inserted"`
		Updated  int64  `json:"updated"`
		Deleted  int64  `json:"deleted"`
		Cascade  bool   `json:"cascade"`
	} `json:"tables"`
	Shown struct {
		Tables []struct {
			Table  string            `json:"table"`
			Before []json.RawMessage `json:"before"`
			After  []json.RawMessage `json:"after"`
		} `json:"tables"`
	} `json:"shown"`
	RowsOmitted string `json:"rows_omitted"`
}

// Words say it in one line, with the time at which it was so.
func (d *dryRun) Words() string {
	return fmt.Sprintf("would change %s in %s, at %s", plural(int(d.RowsChanged), "row", "rows"), plural(len(d.Tables), "table", "tables"), d.At.UTC().Format(time.TimeOnly))
}

// Counts are the tables, a line each.
func (d *dryRun) Counts() (lines []string) {
	for _, t := range d.Tables {
		var parts []string
		for _, p := range []struct {
			n    int64
			word string
		}{{t.Inserted, "inserted"}, {t.Updated, "updated"}, {t.Deleted, "deleted"}} {
			if p.n > 0 {
				parts = append(parts, thousands(p.n)+" "+p.word)
			}
		}
		line := t.Table + ": " + strings.Join(parts, ", ")
		if t.Cascade {
			line += ", by a foreign key"
		}
		lines = append(lines, line)
	}
	return lines
}

// triedRow is a row of a dry run as a person reads it: its JSON, without the escapes that make
// JSON safe in a page, and that this page does not need.
func triedRow(row json.RawMessage) string {
	if string(row) == "null" {
		return "a row that is too long to be shown"
	}
	return jsonEscape.ReplaceAllStringFunc(string(row), func(escape string) string {
		return cmp.Or(map[string]string{`\u003c`: "<", `\u003e`: ">", `\u0026`: "&"}[escape], escape)
	})
}

var jsonEscape = regexp.MustCompile(`\\(?:u003[ce]|u0026|.)`)

// A plan is what PostgreSQL expects of a statement that it did not run, where it was
// asked, and which tables the statement reaches.
type plan struct {
	Node      string    `json:"node"`
	Rows      int64     `json:"rows"`
	TotalCost float64   `json:"total_cost"`
	Parts     int64     `json:"parts"` // partitions that are looked at, each counted for a row at least
	Tables    []reached `json:"tables"`
	More      int       `json:"tables_more"`    // beyond those that are listed
	Unplanned string    `json:"plan_omitted"`   // why it was not asked
	Omitted   string    `json:"tables_omitted"` // why those could not be asked for
	DryRun    *dryRun   `json:"dry_run"`
}

// tables is for a plan that could not be had, too.
func (p *plan) tables() []reached {
	if p == nil {
		return nil
	}
	return p.Tables
}

// each is how many rows of a table hang on a row of the one that it is reached from, on
// average; 0: not known, as of rows that hang on others of their own table.
func (p *plan) each(t reached) float64 {
	for _, from := range p.tables() {
		if from.Table == t.From && t.Table != t.From && t.Rows != nil && from.Rows != nil && *from.Rows > 0 && !slices.Contains([]string{"view", "rule", "partition", "child", "emptied"}, t.How) {
			return float64(*t.Rows) / float64(*from.Rows)
		}
	}
	return 0
}

// taken is how many rows hang, on average and over all levels, on as many as PostgreSQL
// expects; 0: not known.
func (p *plan) taken() (rows float64) {
	if p == nil || p.Node == "" {
		return 0
	}
	expected := make(map[string]float64) // of each table
	for _, t := range p.Tables {
		if t.How == "named" {
			expected[t.Table] = float64(p.Rows)
		}
	}
	for found := true; found; { // a level
		found = false
		for _, t := range p.Tables {
			if _, known := expected[t.Table]; !known && expected[t.From] > 0 && p.each(t) > 0 {
				expected[t.Table] = expected[t.From] * p.each(t)
				rows, found = rows+expected[t.Table], true
			}
		}
	}
	return rows
}

// ofItself is a table whose rows go with others of it, also by way of other tables.
func (p *plan) ofItself() string {
	for _, t := range p.tables() {
		if t.How == "cascade" && p.comesBack(t) {
			return t.Table
		}
	}
	return ""
}

// comesBack tells whether rows that go with those of a table take others of that one along.
func (p *plan) comesBack(t reached) bool {
	seen := map[string]bool{t.Table: true}
	for found := true; found && !seen[t.From]; {
		found = false
		for _, next := range p.Tables {
			if next.How == "cascade" && seen[next.From] && !seen[next.Table] {
				seen[next.Table], found = true, true
			}
		}
	}
	return seen[t.From]
}

type reached struct {
	Table    string   `json:"table"`
	How      string   `json:"how"`
	From     string   `json:"from"`
	Rows     *int64   `json:"rows"`
	Bytes    int64    `json:"bytes"`
	Triggers []string `json:"triggers"`
	Moves    bool     `json:"moves"`
	Old      bool     `json:"old"`
}

type auditEvent struct {
	Seq           uint64          `json:"seq"`
	EventID       string          `json:"event_id"`
	EventType     string          `json:"event_type"`
	Timestamp     time.Time       `json:"timestamp"`
	PolicyVersion string          `json:"policy_version"`
	Operation     string          `json:"operation"`
	Fingerprint   string          `json:"fingerprint"`
	Decision      string          `json:"decision"`
	Actor         string          `json:"actor"`
	App           string          `json:"app"`
	Tenant        string          `json:"tenant"`
	Env           string          `json:"env"`
	SessionID     string          `json:"session_id"`
	ApprovalID    string          `json:"approval_id"`
	RequestID     string          `json:"request_id"`
	ExecutionID   string          `json:"execution_id"`
	AgentID       string          `json:"agent_id"`
	ReasonCode    string          `json:"reason_code"`
	ErrorCode     string          `json:"error_code"`
	Mode          string          `json:"mode"`
	Payload       json.RawMessage `json:"payload"`
	PreviousHash  string          `json:"previous_hash"`
	EventHash     string          `json:"event_hash"`
}

type execution struct {
	ExecutionID    string     `json:"execution_id"`
	RequestID      string     `json:"request_id"`
	ApprovalID     string     `json:"approval_id"`
	GrantID        string     `json:"grant_id"`
	ExecutionState string     `json:"execution_state"`
	Outcome        string     `json:"outcome"`
	Basis          string     `json:"basis"`
	Path           string     `json:"path"`
	XID            uint64     `json:"xid"`
	DispatchedAt   time.Time  `json:"dispatched_at"`
	ResolvedAt     *time.Time `json:"resolved_at"`
	Fingerprint    string     `json:"fingerprint"`
	Operation      string     `json:"operation"`
	PolicyVersion  string     `json:"policy_version"`
	ReasonCode     string     `json:"reason_code"`
	ErrorCode      string     `json:"error_code"`
	CommandTag     string     `json:"command_tag"`
	Actor          string     `json:"actor"`
	App            string     `json:"app"`
	EventSeqs      []uint64   `json:"event_seqs"`
}

type policyStatus struct {
	Loaded        bool       `json:"loaded"`
	PolicyVersion string     `json:"policy_version"`
	RuleCount     int        `json:"rule_count"`
	OperatorAuth  bool       `json:"operator_auth_enabled"`
	Hash          string     `json:"hash"`
	Mode          string     `json:"mode"`
	ActivatedAt   *time.Time `json:"activated_at"`
	ActivatedSeq  uint64     `json:"activated_seq"`
	GrantSeconds  int        `json:"max_grant_seconds"` // 0: no rule takes grants
	RollbackTo    string     `json:"rollback_version"`
	Tests         counted    `json:"tests"`
	Corpus        counted    `json:"corpus"`
	Warnings      []any      `json:"warnings"`
}

type counted struct {
	Cases  int `json:"cases"`
	Passed int `json:"passed"`
}

type policyVersion struct {
	PolicyVersion  string     `json:"policy_version"`
	Status         string     `json:"status"`
	Hash           string     `json:"hash"`
	RuleCount      int        `json:"rule_count"`
	Bytes          int64      `json:"bytes"`
	CreatedAt      time.Time  `json:"created_at"`
	CreatedBy      string     `json:"created_by"`
	ActivatedAt    *time.Time `json:"activated_at"`
	ArchivedAt     *time.Time `json:"archived_at"`
	RejectedReason string     `json:"rejected_reason"`
	Note           string     `json:"note"`
	Document       string     `json:"document"`
}

type finding struct {
	Code       string `json:"code"`
	Severity   string `json:"severity"`
	Message    string `json:"message"`
	RuleID     string `json:"rule_id"`
	Line       int    `json:"line"`
	Column     int    `json:"column"`
	Suggestion string `json:"suggestion"`
}

type logEntry struct {
	Timestamp time.Time `json:"timestamp"`
	Level     string    `json:"level"`
	Source    string    `json:"source"`
	Message   string    `json:"message"`
	ErrorID   string    `json:"error_id"`
	RequestID string    `json:"request_id"`
	TraceID   string    `json:"trace_id"`
	Recorded  bool      `json:"recorded"` // the event log has events of the request

	Attributes map[string]string `json:"attributes"`
}
