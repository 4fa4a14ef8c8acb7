package replay

import (
	"writegate/eventlog/event"
	"writegate/sqlgate/agentrules"
	"writegate/sqlgate/policy"
)

// maxCovered is how many statements a coverage names.
const maxCovered = 100

// A Coverage holds recorded decisions against the condition of a grant before it is given:
// which of the agent's statements that asked for an approval would have run under it.
type Coverage struct {
	policy    *policy.Policy
	condition *policy.GrantCondition
	agentID   string
	seconds   int // how long the grant would be for
	countable func(*Decision) bool
	report    CoverageReport
}

// A CoverageReport is what a coverage found.
type CoverageReport struct {
	FromSeq      uint64         `json:"from_seq"`
	ToSeq        uint64         `json:"to_seq"`
	Evaluated    int            `json:"evaluated"` // statements of the agent for which the policy asks for an approval
	Unreplayable int            `json:"unreplayable"`
	Complete     bool           `json:"complete"`
	Covered      int            `json:"covered"`
	ByRule       map[string]int `json:"by_rule"`    // the rules that asked
	Statements   []Covered      `json:"statements"` // the last of those that are covered, the newest first
}

// Covered is a statement that a grant would have covered.
type Covered struct {
	EventID       string          `json:"event_id"`
	Seq           uint64          `json:"seq"`
	At            string          `json:"timestamp"`
	RequestID     string          `json:"request_id"`
	Recorded      policy.Decision `json:"recorded"`
	RuleID        string          `json:"rule_id"`
	QueryType     string          `json:"query_type"`
	TablesWritten []string        `json:"tables_written"`
	Fingerprint   string          `json:"fingerprint"`
}

// NewCoverage holds decisions of a range of the log against a condition. countable reports
// whether the rows that a statement changes can be counted.
func NewCoverage(p *policy.Policy, condition *policy.GrantCondition, agentID string, seconds int, fromSeq, toSeq uint64, countable func(*Decision) bool) *Coverage {
	return &Coverage{policy: p, condition: condition, agentID: agentID, seconds: seconds, countable: countable,
		report: CoverageReport{FromSeq: fromSeq, ToSeq: toSeq, ByRule: map[string]int{}}}
}

// Unreplayable counts a decision whose facts have a meaning that this program does not know.
func (c *Coverage) Unreplayable() { c.report.Unreplayable++ }

// Add looks at one recorded decision. The retry of what a person approved counts once: as
// what it was when it asked.
func (c *Coverage) Add(d *Decision) {
	if d.Describes || d.session || d.Facts.AgentID != c.agentID || d.Facts.Approved {
		return
	}
	f := d.Facts
	f.GrantSeconds = 0
	without := c.policy.Decide(&f)
	if without.Decision != policy.RequireApproval {
		return
	}
	c.report.Evaluated++
	f.GrantSeconds = c.seconds
	under := c.policy.Decide(&f)
	if d.AgentLayer != nil {
		under = agentrules.Tighten(under, d.AgentLayer)
	}
	if under.Decision != policy.Allow || !c.condition.Covers(&f) || !c.countable(d) {
		return
	}
	c.report.Covered++
	c.report.ByRule[without.RuleID]++
	tables := d.Facts.TablesWritten
	if tables == nil {
		tables = []string{}
	}
	c.report.Statements = append(c.report.Statements, Covered{EventID: d.EventID, Seq: d.Seq, At: event.Timestamp(d.At), RequestID: d.RequestID,
		Recorded: d.Recorded.Decision, RuleID: without.RuleID, QueryType: d.Facts.QueryType, TablesWritten: tables, Fingerprint: d.Facts.Fingerprint})
	if len(c.report.Statements) > 2*maxCovered {
		c.report.Statements = append(c.report.Statements[:0:0], c.report.Statements[maxCovered:]...)
	}
}

// Report ends the coverage.
func (c *Coverage) Report(complete bool) *CoverageReport {
	r := c.report
	r.Complete = complete
	r.Statements = []Covered{}
	for i := len(c.report.Statements) - 1; i >= 0 && len(r.Statements) < maxCovered; i-- {
		r.Statements = append(r.Statements, c.report.Statements[i])
	}
	return &r
}
