package policy

import (
	"slices"

	"cel.dev/cel-go/cel"
)

// Outcomes of a trace entry.
const (
	OutcomeMatched    = "matched"
	OutcomeNotMatched = "not_matched"
	OutcomeError      = "error"
	OutcomeLifted     = "lifted"
)

// A TraceEntry says what became of one rule, floor signal or the default, and
// why: the checks in the order in which they are made, up to and including the
// one that failed.
type TraceEntry struct {
	RuleID   string       `json:"rule_id"`
	Decision Decision     `json:"decision"`
	Mode     string       `json:"mode"`
	Outcome  string       `json:"outcome"`
	FailedAt string       `json:"failed_at,omitempty"`
	Checks   []TraceCheck `json:"checks"`
}

// A TraceCheck is one check: what the rule asks for and what the facts hold.
// For a when, want is the expression and got the facts that it read.
type TraceCheck struct {
	Key  string `json:"key"`
	Want any    `json:"want"`
	Got  any    `json:"got"`
	Pass bool   `json:"pass"`
}

// Trace explains DecideStatement on the same facts: one entry per floor signal, one for
// the marker table where there is one, then one per rule in order, then the default if it decided. It is for preview and
// dry-run and takes its time.
func (p *Policy) Trace(f *Facts) []TraceEntry {
	e := evaluate(f)
	defer e.done()
	r := p.DecideStatement(f)
	entries := make([]TraceEntry, 0, len(floorSignals)+len(p.rules)+1)
	if !SessionControl(f.QueryType) { // the floor is about what reaches the database
		for _, signal := range floorSignals {
			entries = append(entries, traceFloor(signal, &r, f))
		}
	}
	if f.MarkerTable != "" {
		entries = append(entries, traceMarkerTable(f))
	}
	for i := range p.rules {
		entries = append(entries, p.rules[i].trace(e))
	}
	if r.RuleID == RuleDefault {
		entries = append(entries, TraceEntry{RuleID: RuleDefault, Decision: r.Decision, Mode: "enforce", Outcome: OutcomeMatched,
			Checks: []TraceCheck{{Key: "safe_read", Want: r.Decision == Allow, Got: e.safe, Pass: true}}})
	}
	left := room(maxNames)
	for _, entry := range entries {
		for i := range entry.Checks {
			c := &entry.Checks[i]
			c.Want, c.Got = left.fit(c.Want), left.fit(c.Got)
		}
	}
	return entries
}

func traceFloor(signal string, r *Result, f *Facts) TraceEntry {
	entry := TraceEntry{RuleID: FloorPrefix + signal, Decision: Block, Mode: "enforce", Outcome: OutcomeNotMatched}
	key := "floor.risk_signals"
	check := TraceCheck{Key: key, Want: []string{signal}, Got: listOf(f.RiskSignals), Pass: slices.Contains(f.RiskSignals, signal)}
	switch {
	case slices.Contains(r.Lifted, signal):
		entry.Outcome = OutcomeLifted
	case check.Pass || slices.Contains(r.Floor, signal):
		entry.Outcome = OutcomeMatched
	default:
		entry.FailedAt = key
	}
	entry.Checks = []TraceCheck{check}
	return entry
}

func traceMarkerTable(f *Facts) TraceEntry {
	entry := TraceEntry{RuleID: FloorPrefix + ReasonMarkerTable, Decision: Block, Mode: "enforce", Outcome: OutcomeMatched}
	named := slices.Concat(f.TablesRead, f.TablesWritten)
	check := TraceCheck{Key: "floor.tables", Want: []string{f.MarkerTable}, Got: listOf(named), Pass: f.namesMarkerTable()}
	if !check.Pass {
		entry.Outcome, entry.FailedAt = OutcomeNotMatched, check.Key
	}
	entry.Checks = []TraceCheck{check}
	return entry
}

func listOf(names []string) []string {
	if names == nil {
		return []string{}
	}
	return names
}

func (u *rule) trace(e *evaluation) TraceEntry {
	entry := TraceEntry{RuleID: u.id, Decision: u.decision, Mode: "enforce", Outcome: OutcomeNotMatched, Checks: []TraceCheck{}}
	if u.observe {
		entry.Mode = "observe"
	}
	if at := entry.matcher("match", &u.match, e, true); at != "" {
		entry.FailedAt = at
		return entry
	}
	if u.unless != nil && entry.matcher("unless", u.unless, e, false) == "" {
		entry.FailedAt = "unless"
		return entry
	}
	entry.Outcome = OutcomeMatched
	if u.when != nil {
		entry.when(u.when, e)
	}
	return entry
}

// matcher adds the checks of match or unless and returns the first that does
// not hold, or "" where all do. What passes is a check that does not stand in
// the rule's way: for unless that is the group as a whole.
func (t *TraceEntry) matcher(where string, m *matcher, e *evaluation, wanted bool) (failedAt string) {
	for i := range m.all {
		c := &m.all[i]
		key := where + "." + c.key()
		holds := t.check(key, c, e)
		if !holds {
			return key
		}
	}
	if !m.hasAnyOf {
		return ""
	}
	for n, g := range m.anyOf {
		all := true
		for i := range g {
			all = t.check(where+".any_of."+itoa(n)+"."+g[i].key(), &g[i], e) && all
		}
		if all {
			return ""
		}
	}
	return where + ".any_of"
}

func (t *TraceEntry) check(key string, c *check, e *evaluation) bool {
	holds := c.holds(e)
	t.Checks = append(t.Checks, TraceCheck{Key: key, Want: c.asked(), Got: e.got(c.v), Pass: holds})
	return holds
}

// asked is what a check wants, in the order of the document.
func (c *check) asked() any {
	if c.v.kind == kindBool {
		return c.want
	}
	return listOf(c.values)
}

// got is the value of a fact. One value is shown as a list where the document
// asks for it by a list, so that both sides read alike.
func (e *evaluation) got(v *variable) any {
	switch {
	case v.kind == kindBool:
		return e.truth(v)
	case v.isList():
		return listOf(v.list(e.facts))
	default:
		return []string{v.text(e.facts)}
	}
}

func (t *TraceEntry) when(c *condition, e *evaluation) {
	watch := &watcher{evaluation: e, read: map[string]any{}}
	o := c.outcome(watch)
	switch o {
	case failed:
		t.Outcome, t.FailedAt = OutcomeError, "when"
	case notMatched:
		t.Outcome, t.FailedAt = OutcomeNotMatched, "when"
	}
	t.Checks = append(t.Checks, TraceCheck{Key: "when", Want: c.text, Got: watch.read, Pass: o == matched})
}

// A watcher notes the facts that a condition reads.
type watcher struct {
	*evaluation
	read map[string]any
}

func (w *watcher) ResolveName(name string) (any, bool) {
	value, ok := w.evaluation.ResolveName(name)
	if ok {
		w.read[name] = w.plain(variableByName[name])
	}
	return value, ok
}

// Parent of the activation: there is none.
func (w *watcher) Parent() cel.Activation { return nil }

func (w *watcher) plain(v *variable) any {
	if v.kind == kindBool || v.isList() {
		return w.got(v)
	}
	return v.text(w.facts)
}
