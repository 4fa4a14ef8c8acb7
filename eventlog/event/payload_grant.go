package event

import "time"

// Types of a grant's life.
const (
	TypeGrantCreated Type = "grant_created"
	TypeGrantUsed    Type = "grant_used"
	TypeGrantRevoked Type = "grant_revoked"
	TypeGrantExpired Type = "grant_expired"
)

// GrantCreated is an operator's answer ahead of the questions: for a time and within a
// budget, statements of one agent that meet the condition need no approval of their own
// where a rule of the policy takes grants. The agent and its project stand in the context.
type GrantCreated struct {
	GrantID   string
	Condition string // over the facts of a statement, as a rule's when
	Until     int64  // ns since 1970; it covers nothing from then on
	Uses      int    // statements that may run under it
	Rows      int64  // rows that these may change together
	Reason    string
	By        string // label of the operator token
	Origin    Origin // of the request: its idempotency key
}

func (*GrantCreated) EventType() Type         { return TypeGrantCreated }
func (p *GrantCreated) Fields() Payload       { return write(8, p.form) }
func (p *GrantCreated) Parse(l Payload) error { return read(l, p.form) }

// From implements Originated.
func (p *GrantCreated) From() *Origin { return &p.Origin }

func (p *GrantCreated) form(f *form) {
	f.str("by", &p.By, need)
	f.str("condition", &p.Condition, need)
	f.str("grant_id", &p.GrantID, need)
	f.origin(&p.Origin)
	f.str("reason", &p.Reason, need)
	num(f, "rows", &p.Rows, need)
	num(f, "until", &p.Until, need)
	num(f, "uses", &p.Uses, need)
}

// GrantUsed binds a use of a grant to the execution that its context names. It stands in
// the append of that execution's dispatch.
type GrantUsed struct {
	GrantID string
	Use     int   // the how many-eth it is, from 1
	Rows    int64 // that are kept for the execution until its result says how many it changed
}

func (*GrantUsed) EventType() Type         { return TypeGrantUsed }
func (p *GrantUsed) Fields() Payload       { return write(3, p.form) }
func (p *GrantUsed) Parse(l Payload) error { return read(l, p.form) }

func (p *GrantUsed) form(f *form) {
	f.str("grant_id", &p.GrantID, need)
	num(f, "rows", &p.Rows, need)
	num(f, "use", &p.Use, need)
}

// GrantRevoked ends a grant before its time.
type GrantRevoked struct {
	GrantID string
	Note    string
	By      string // label of the operator token
}

func (*GrantRevoked) EventType() Type         { return TypeGrantRevoked }
func (p *GrantRevoked) Fields() Payload       { return write(3, p.form) }
func (p *GrantRevoked) Parse(l Payload) error { return read(l, p.form) }

func (p *GrantRevoked) form(f *form) {
	f.str("by", &p.By, need)
	f.str("grant_id", &p.GrantID, need)
	f.str("note", &p.Note, may)
}

// GrantExpired says that a grant's time is over, or, with a reason_code, why it ended
// before.
type GrantExpired struct {
	GrantID string
	Until   int64 // ns since 1970
}

func (*GrantExpired) EventType() Type         { return TypeGrantExpired }
func (p *GrantExpired) Fields() Payload       { return write(2, p.form) }
func (p *GrantExpired) Parse(l Payload) error { return read(l, p.form) }

func (p *GrantExpired) form(f *form) {
	f.str("grant_id", &p.GrantID, need)
	num(f, "until", &p.Until, need)
}

// A Drawn is what the result of an execution means for the grant that it ran under.
type Drawn struct {
	Settled bool  // the rows that were kept for it are given back
	All     bool  // but for those that it may have changed: all of them
	Changed int64 // rows that it is known to have changed
}

// GrantedAfter is what a result of an execution, or what a check found out of one, means for
// its grant. What may have changed rows counts as all that were kept for it.
func GrantedAfter(p Typed) Drawn {
	switch p := p.(type) {
	case *ExecutionSuccess:
		return Drawn{Settled: true, Changed: int64(p.RowsChanged)}
	case *ExecutionFailure:
		return Drawn{Settled: true, All: p.Outcome != OutcomeAborted && p.Outcome != OutcomeNotExecuted}
	case *ExecutionOutcomeResolved:
		return Drawn{Settled: p.Outcome == OutcomeAborted || p.Outcome == OutcomeCommitted, All: p.Outcome == OutcomeCommitted}
	}
	return Drawn{}
}

// Of is how many of the rows that were kept for an execution it changed.
func (d Drawn) Of(kept int64) int64 {
	if d.All {
		return kept
	}
	return d.Changed
}

// GrantSeconds is how long a grant is for, in full seconds.
func GrantSeconds(made, until time.Time) int {
	return int((until.Sub(made) + time.Second - 1) / time.Second)
}
