package replay

import (
	"cmp"
	"encoding/hex"
	"slices"

	"writegate/sqlgate/agentrules"
	"writegate/sqlgate/policy"
)

// maxSamples is how many events stand for one kind of change.
const maxSamples = 10

// A Comparison decides recorded decisions under two versions and keeps what
// differs. Its memory grows with the changes alone.
type Comparison struct {
	base, target *policy.Policy
	report       Report
	changed      [][3]any // seq, from, to: what the impact hash covers
	transitions  map[[2]policy.Decision]*Transition
}

// A Report is what a replay found (design/policy.md part 8).
type Report struct {
	FromSeq         uint64       `json:"from_seq"`
	ToSeq           uint64       `json:"to_seq"`
	Evaluated       int          `json:"evaluated"`
	Unreplayable    int          `json:"unreplayable"`
	RecordedDiffers int          `json:"recorded_differs"` // the base decides otherwise than the record says
	TargetDiffers   int          `json:"recorded_differs_from_target"`
	BothDiffer      int          `json:"recorded_differs_from_both"`
	Changed         int          `json:"changed"` // the two decide differently, whatever was recorded
	Complete        bool         `json:"complete"`
	Transitions     []Transition `json:"transitions"`
	ImpactHash      *string      `json:"impact_hash"` // null when it is not complete
}

// A Transition counts the decisions that go from one to another.
type Transition struct {
	From    policy.Decision `json:"from"`
	To      policy.Decision `json:"to"`
	Count   int             `json:"count"`
	ByRule  map[string]int  `json:"by_rule"` // rules of the target that decide so
	Samples []Sample        `json:"samples"` // the first ones
}

// A Sample is a decision that the two make differently, with what was recorded.
type Sample struct {
	EventID     string          `json:"event_id"`
	Seq         uint64          `json:"seq"`
	Fingerprint string          `json:"fingerprint"`
	Recorded    policy.Decision `json:"recorded"`
}

// NewComparison compares two versions over a range of the log.
func NewComparison(base, target *policy.Policy, fromSeq, toSeq uint64) *Comparison {
	return &Comparison{base: base, target: target, transitions: map[[2]policy.Decision]*Transition{},
		report: Report{FromSeq: fromSeq, ToSeq: toSeq}}
}

// Unreplayable counts a decision whose facts have a meaning that this program
// does not know.
func (c *Comparison) Unreplayable() { c.report.Unreplayable++ }

// Add decides one recorded decision under both versions. One that lets the server describe
// or plan a statement is none about a run: that has its own.
func (c *Comparison) Add(d *Decision) {
	if d.Describes {
		return
	}
	c.report.Evaluated++
	base, target := d.under(c.base), d.under(c.target)
	if d.AgentLayer != nil { // the rules of an agent stay what they were
		base, target = agentrules.Tighten(base, d.AgentLayer), agentrules.Tighten(target, d.AgentLayer)
	}
	recorded := d.Recorded.Decision // by what was in force then, which may be neither
	if base.Decision != recorded {
		c.report.RecordedDiffers++
	}
	if target.Decision != recorded {
		c.report.TargetDiffers++
	}
	if base.Decision != recorded && target.Decision != recorded {
		c.report.BothDiffer++
	}
	if base.Decision == target.Decision {
		return
	}
	c.report.Changed++
	c.changed = append(c.changed, [3]any{d.Seq, string(base.Decision), string(target.Decision)})
	key := [2]policy.Decision{base.Decision, target.Decision}
	t := c.transitions[key]
	if t == nil {
		t = &Transition{From: base.Decision, To: target.Decision, ByRule: map[string]int{}}
		c.transitions[key] = t
	}
	t.Count++
	t.ByRule[target.RuleID]++
	if len(t.Samples) < maxSamples {
		t.Samples = append(t.Samples, Sample{EventID: d.EventID, Seq: d.Seq, Fingerprint: d.Facts.Fingerprint, Recorded: recorded})
	}
}

// Report ends the comparison. Without complete there is no impact hash: it
// would vouch for what nobody looked at.
func (c *Comparison) Report(complete bool, engine map[string]string) (Report, error) {
	r := c.report
	r.Complete, r.Transitions = complete, []Transition{}
	for _, t := range c.transitions {
		r.Transitions = append(r.Transitions, *t)
	}
	slices.SortFunc(r.Transitions, func(a, b Transition) int {
		return cmp.Or(cmp.Compare(a.From.Strictness(), b.From.Strictness()), cmp.Compare(a.To.Strictness(), b.To.Strictness()))
	})
	if !complete {
		return r, nil
	}
	hash, err := c.impactHash(engine)
	if err != nil {
		return r, err
	}
	r.ImpactHash = &hash
	return r, nil
}

// impactHash is over the canonical JSON of all that the impact consists of.
func (c *Comparison) impactHash(engine map[string]string) (string, error) {
	changed := make([]any, len(c.changed))
	for i, row := range c.changed {
		changed[i] = row[:]
	}
	text, err := policy.CanonicalJSON(map[string]any{
		"base_hash": c.base.Hash(), "target_hash": c.target.Hash(), "engine": engine,
		"from_seq": c.report.FromSeq, "to_seq": c.report.ToSeq,
		"evaluated": c.report.Evaluated, "unreplayable": c.report.Unreplayable, "changed": changed,
	})
	return policy.Digest(text), err
}

// ParseImpactHash reads a hash that a request names; ok is false when it is none.
func ParseImpactHash(text string) (hash [32]byte, ok bool) {
	raw, err := hex.DecodeString(policy.NormalHash(text))
	if err != nil || len(raw) != len(hash) {
		return hash, false
	}
	copy(hash[:], raw)
	return hash, true
}
