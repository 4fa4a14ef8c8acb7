package sqlgate

import (
	"bytes"
	"encoding/json"
	"strconv"
	"time"
	"unicode/utf8"

	"writegate/commands"
	"writegate/eventlog/event"
	"writegate/sqlgate/classify"
	"writegate/sqlgate/pgexec"
	"writegate/sqlgate/policy"
)

// Execution states (spec/decisions.md part 3).
const (
	StateNotExecuted = "not_executed"
	StateDispatched  = "dispatched"
	StateSuccess     = "success"
	StateFailure     = "failure"
	StateUnknown     = "unknown"
)

// maxKeptRows is how many bytes of rows and columns a keyed answer keeps in the
// log (spec/decisions.md part 3); above it a replay says rows_omitted.
const maxKeptRows = 64 << 10

// An Answer is what the gate says to a statement it decided about: an executed
// ALLOW, a BLOCK, a REQUIRE_APPROVAL, a preview, or the kept answer of an
// idempotency key.
type Answer struct {
	Result         policy.Result
	Classification *classify.Classification
	Mode           string
	Enforced       bool // false where shadow mode or a bypass let it run regardless
	Bypass         bool
	Preview        bool
	Trace          []policy.TraceEntry // preview alone
	Plan           *pgexec.Plan        // of a preview, where it could be had
	PlanOmitted    string              // why not; "" where estimates are off
	Behind         []string            // of a preview: what stands in the database behind the names, a sentence each
	PolicyVersion  string
	RequestID      string

	AgentPolicyID     string // the agent's policy that decided; "" = the gate's own
	RetryAfterSeconds int    // a throttle stopped it; 0 = none did

	GrantID           string // that stood for the approval; "" = none
	ApprovalID        string // of a REQUIRE_APPROVAL
	ApprovalExpiresAt time.Time

	Executed       bool // the statement ran; the fields below are set
	Session        bool // the gate answered it itself: there is no execution
	ExecutionID    string
	ExecutionState string
	DryRun         *DryRunOutcome // it was rolled back; nil: it was no dry run
	Rows           []byte         // JSON array of objects
	Columns        []byte         // JSON array of columns
	RowCount       int64
	CommandTag     string
	Warnings       []string
	Notices        []pgexec.Notice // of the database; only the wire hands them on
	Duration       time.Duration

	Events []commands.EventRef // the evidence of this answer

	// Kept is the stored answer of an idempotency key: status and body are
	// given again as they were.
	Kept *KeptAnswer
}

// A KeptAnswer is the first answer under an idempotency key.
type KeptAnswer struct {
	Status      int
	Body        []byte // a JSON object
	RowsOmitted bool
	Outcome     string // what a check found out since about an unknown outcome
	ErrorID     string // of this occurrence, where the answer is an error object
}

// AppendJSON appends the body of the answer (spec/decisions.md part 3).
func (a *Answer) AppendJSON(dst []byte) []byte {
	if a.Kept != nil {
		return a.Kept.appendJSON(dst)
	}
	dst = a.appendBody(dst, a.Rows, a.Columns, false)
	if len(a.Events) > 0 {
		dst = append(dst[:len(dst)-1], `,"events":[`...)
		for i, e := range a.Events {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(dst, `{"event_id":`...)
			dst = appendString(dst, e.ID.String())
			dst = append(dst, `,"seq":`...)
			dst = strconv.AppendUint(dst, e.Seq, 10)
			dst = append(dst, `,"event_type":`...)
			dst = appendString(dst, string(e.Type))
			dst = append(dst, '}')
		}
		dst = append(dst, "]}"...)
	}
	return dst
}

// keptBody is the body that an idempotency key keeps: without rows where they
// are too many for the log.
func (a *Answer) keptBody() (body []byte, rowsOmitted bool) {
	if len(a.Rows)+len(a.Columns) <= maxKeptRows {
		return a.appendBody(nil, a.Rows, a.Columns, false), false
	}
	return a.appendBody(nil, []byte("[]"), []byte("[]"), true), true
}

func (a *Answer) appendBody(dst, rows, columns []byte, omitted bool) []byte {
	dst = append(dst, `{"decision":`...)
	dst = appendString(dst, string(a.Result.Decision))
	switch {
	case a.Preview:
		dst = a.appendReason(dst)
		dst = append(dst, `,"would_execute":false,"audit_written":false,"rule_trace":`...)
		dst = appendValue(dst, a.Trace)
		if a.Plan != nil {
			dst = appendValue(append(dst, `,"plan":`...), a.Plan)
		}
		if len(a.Behind) > 0 {
			dst = appendValue(append(dst, `,"behind":`...), a.Behind)
		}
		if a.PlanOmitted != "" {
			dst = appendString(append(dst, `,"plan_omitted":`...), a.PlanOmitted)
		}
	case a.Executed:
		dst = appendBool(append(dst, `,"enforced":`...), a.Enforced)
		if a.Bypass {
			dst = append(dst, `,"bypass":true`...)
		}
		if a.Result.Decision != policy.Allow || a.Session || a.DryRun != nil {
			dst = a.appendReason(dst)
		}
		if a.DryRun != nil {
			dst = appendValue(append(dst, `,"rolled_back":true,"dry_run":`...), a.DryRun)
		}
		dst = a.appendExecution(dst, rows, columns, omitted)
	default:
		dst = appendBool(append(dst, `,"enforced":`...), a.Enforced)
		dst = a.appendReason(dst)
		if a.ApprovalID != "" {
			dst = appendString(append(dst, `,"approval_id":`...), a.ApprovalID)
			dst = appendString(append(dst, `,"approval_expires_at":`...), event.Timestamp(a.ApprovalExpiresAt))
		}
	}
	if a.GrantID != "" {
		dst = appendString(append(dst, `,"grant_id":`...), a.GrantID)
	}
	dst = appendString(append(dst, `,"fingerprint":`...), a.Classification.Fingerprint)
	dst = appendString(append(dst, `,"policy_version":`...), a.PolicyVersion)
	dst = appendString(append(dst, `,"request_id":`...), a.RequestID)
	dst = appendValue(append(dst, `,"classification":`...), a.Classification)
	return append(dst, '}')
}

// appendReason appends what explains a decision that did not simply run.
func (a *Answer) appendReason(dst []byte) []byte {
	dst = appendString(append(dst, `,"reason_code":`...), a.Result.ReasonCode)
	dst = appendString(append(dst, `,"message":`...), a.message())
	dst = append(dst, `,"remedy":`...)
	if remedy := a.remedy(); remedy == "" {
		dst = append(dst, "null"...)
	} else {
		dst = appendString(dst, remedy)
	}
	dst = appendString(append(dst, `,"rule_id":`...), a.Result.RuleID)
	dst = a.appendDecidedBy(dst)
	if a.RetryAfterSeconds > 0 {
		dst = strconv.AppendInt(append(dst, `,"retry_after_seconds":`...), int64(a.RetryAfterSeconds), 10)
	}
	return dst
}

// appendDecidedBy names the layer that decided and its rule (spec/v1.md part 7).
func (a *Answer) appendDecidedBy(dst []byte) []byte {
	dst = appendString(append(dst, `,"decided_by":{"layer":`...), a.Result.Layer)
	if a.AgentPolicyID != "" {
		dst = appendString(append(dst, `,"policy_id":`...), a.AgentPolicyID)
	} else {
		dst = appendString(append(dst, `,"policy_version":`...), a.PolicyVersion)
	}
	return append(appendString(append(dst, `,"rule_id":`...), a.Result.RuleID), '}')
}

// message says in words what was decided, also where the rule has none.
func (a *Answer) message() string {
	if a.Result.Message != "" {
		return a.Result.Message
	}
	switch d := a.Result.Decision; {
	case a.Executed && !a.Enforced && d != policy.Allow:
		return "The policy says " + string(d) + " (" + a.Result.ReasonCode + "), and that was not enforced: the statement ran."
	case d == policy.Block:
		return "The statement is blocked (" + a.Result.ReasonCode + ") and never reached the database."
	case d == policy.RequireApproval:
		return "The statement needs an operator's approval (" + a.Result.ReasonCode + "). Nothing was executed."
	default:
		return "The statement is allowed (" + a.Result.ReasonCode + ")."
	}
}

func (a *Answer) remedy() string {
	if a.Executed && !a.Enforced && a.Result.Decision != policy.Allow {
		return "" // whoever followed it would run the statement again
	}
	if a.Result.Remedy == "" && a.Result.Decision == policy.RequireApproval && !a.Preview {
		return "After the approval send the same request again with this approval_id."
	}
	return a.Result.Remedy
}

func (a *Answer) appendExecution(dst, rows, columns []byte, omitted bool) []byte {
	dst = appendString(append(dst, `,"execution_state":`...), a.ExecutionState)
	if dst = append(dst, `,"execution_id":`...); a.Session {
		dst = append(dst, "null"...)
	} else {
		dst = appendString(dst, a.ExecutionID)
	}
	dst = append(append(dst, `,"rows":`...), orEmptyList(rows)...)
	dst = strconv.AppendInt(append(dst, `,"row_count":`...), a.RowCount, 10)
	dst = append(append(dst, `,"columns":`...), orEmptyList(columns)...)
	dst = appendString(append(dst, `,"command_tag":`...), a.CommandTag)
	if omitted {
		dst = append(dst, `,"rows_omitted":true`...)
	}
	if len(a.Warnings) > 0 {
		dst = appendValue(append(dst, `,"warnings":`...), a.Warnings)
	}
	dst = append(dst, `,"duration_ms":`...)
	return strconv.AppendFloat(dst, float64(a.Duration.Microseconds())/1000, 'f', -1, 64)
}

func orEmptyList(b []byte) []byte {
	if len(b) == 0 {
		return []byte("[]")
	}
	return b
}

// appendJSON gives the kept body again, marked as such. What a check found out
// since goes into its details, beside those that it had. An error_id that an older
// gate kept gives way to the one of this occurrence.
func (k *KeptAnswer) appendJSON(dst []byte) []byte {
	body := k.Body
	if k.Outcome != "" || k.ErrorID != "" && bytes.Contains(body, []byte(`"error_id"`)) {
		body = k.amended()
	}
	dst = append(dst, body[:len(body)-1]...)
	if k.ErrorID != "" {
		dst = appendString(append(dst, `,"error_id":`...), k.ErrorID)
	}
	return append(dst, `,"replayed":true}`...)
}

func (k *KeptAnswer) amended() []byte {
	var fields, details map[string]json.RawMessage
	if json.Unmarshal(k.Body, &fields) != nil {
		return k.Body
	}
	if k.ErrorID != "" {
		delete(fields, "error_id")
	}
	if k.Outcome != "" {
		if json.Unmarshal(fields["details"], &details) != nil || details == nil {
			details = map[string]json.RawMessage{}
		}
		details["outcome"] = appendString(nil, k.Outcome)
		fields["details"] = appendValue(nil, details)
	}
	return appendValue(nil, fields)
}

func appendBool(dst []byte, b bool) []byte { return strconv.AppendBool(dst, b) }

// appendValue appends a value that encoding/json renders without error: plain
// structs and lists of strings.
func appendValue(dst []byte, v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		return append(dst, "null"...)
	}
	return append(dst, b...)
}

// appendString appends a JSON string. Text of ours is ASCII nearly always, so
// the library is called only for the rest.
func appendString(dst []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' || c >= utf8.RuneSelf {
			return appendValue(dst, s)
		}
	}
	dst = append(dst, '"')
	dst = append(dst, s...)
	return append(dst, '"')
}
