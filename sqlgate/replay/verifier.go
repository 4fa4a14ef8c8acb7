package replay

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"

	"writegate/eventlog/event"
	"writegate/sqlgate/agentrules"
	"writegate/sqlgate/catalog"
	"writegate/sqlgate/classify"
	"writegate/sqlgate/policy"
)

// A Verifier recomputes every decision of a log under the version that it
// names, from the log alone (design/policy.md part 9).
type Verifier struct {
	agents    *agents
	catalogs  catalogs
	grants    *grants
	subjects  subjects
	engine    map[string]string // of this program
	reader    Reader
	documents map[[32]byte][]byte
	policies  map[[32]byte]*policy.Policy // nil: the bytes do not load here
	engines   map[uint64]map[string]string
	from, to  uint64
	found     func(Difference)
	result    Result
}

// A Result counts what a verification did.
type Result struct {
	Decisions   int  `json:"decisions"`   // recomputed
	Differences int  `json:"differences"` // of those
	Unchecked   int  `json:"unchecked"`   // could not be recomputed
	EngineDrift bool `json:"engine_drift"`
}

// Kinds of a Difference.
const (
	KindDifference  = "difference"   // the same engine decides otherwise
	KindEngineDrift = "engine_drift" // another engine decided it
	KindUnchecked   = "unchecked"    // could not be recomputed
)

// A Difference is a decision whose record and recomputation differ, or one that
// could not be recomputed.
type Difference struct {
	Kind          string   `json:"kind"`
	Seq           uint64   `json:"seq"`
	EventID       string   `json:"event_id,omitempty"`
	PolicyVersion string   `json:"policy_version,omitempty"`
	Fields        []string `json:"fields,omitempty"` // "field: recorded X, recomputed Y"
	Problem       string   `json:"problem,omitempty"`
}

// NewVerifier verifies the decisions with from <= seq <= to (0: no bound) and
// hands each difference to found. It must see the log from its first event on,
// and before that the logs that it follows (Earlier): the bytes of a version
// stand where it was brought. views may be nil: then what a snapshot of the database's
// catalogues told of a statement can't be checked.
func NewVerifier(engine map[string]string, views Views, from, to uint64, found func(Difference)) *Verifier {
	return &Verifier{catalogs: catalogs{views: views, kept: map[[32]byte]*keptCatalog{}, read: map[string]*catalog.Snapshot{}}, engine: engine, from: from, to: to, found: found, documents: map[[32]byte][]byte{},
		policies: map[[32]byte]*policy.Policy{}, engines: map[uint64]map[string]string{}, agents: newAgents(), grants: newGrants(), subjects: subjects{}}
}

// Take looks at the next event of the log.
func (v *Verifier) Take(e *event.Envelope) error {
	switch e.Type {
	case event.TypeStartup:
		var p event.Startup
		if err := e.Parse(&p); err != nil {
			return fmt.Errorf("event %d: %w", e.Seq, err)
		}
		v.engines[e.Seq] = p.Engine
		return nil
	case event.TypePolicyCandidateCreated, event.TypePolicyLoaded:
		return v.Earlier(e)
	case event.TypeCatalogRecorded: // of an earlier log they are not asked for: each has its own
		return v.catalogs.take(e)
	}
	if tellsOfAgents(e.Type) {
		return v.agents.take(e, e.Seq)
	}
	if err := v.subjects.take(e); err != nil {
		return err
	}
	under, err := v.subjects.asked(e)
	if err != nil {
		return err
	}
	d, err := v.reader.Take(e)
	var granted []string
	if d != nil {
		granted = v.grants.decision(d)
	}
	used, broken := v.grants.take(e)
	used = append(used, under...)
	switch {
	case broken != nil:
		return broken
	case e.Seq < v.from || (v.to != 0 && e.Seq > v.to):
	case len(used) > 0:
		v.result.Differences++
		v.found(Difference{Kind: KindDifference, Seq: e.Seq, EventID: e.ID.String(), PolicyVersion: e.Context.PolicyVersion, Fields: used})
	case err != nil:
		v.unchecked(&Decision{Seq: e.Seq, EventID: e.ID.String(), PolicyVersion: e.Context.PolicyVersion}, err.Error())
	case d != nil:
		v.check(d, granted)
	}
	return nil
}

// Earlier looks at an event of a log before this one, the oldest log first: the bytes
// of a version may stand there, and the policies of agents, which go on as they stood at
// its end. Its decisions are that log's own and are not made again.
func (v *Verifier) Earlier(e *event.Envelope) (err error) {
	if tellsOfAgents(e.Type) {
		return v.agents.take(e, 0)
	}
	if err := v.subjects.take(e); err != nil {
		return err
	}
	switch e.Type {
	case event.TypePolicyCandidateCreated:
		var p event.PolicyCandidateCreated
		err = e.Parse(&p)
		v.keep(p.Document)
	case event.TypePolicyLoaded:
		var p event.PolicyLoaded
		err = e.Parse(&p)
		v.keep(p.Document)
	}
	if err != nil {
		return fmt.Errorf("event %d: %w", e.Seq, err)
	}
	return nil
}

// keep holds a document by the hash of its bytes, whatever its event says.
func (v *Verifier) keep(document []byte) {
	if len(document) > 0 {
		v.documents[sha256.Sum256(document)] = slices.Clone(document)
	}
}

// Result is what was found so far.
func (v *Verifier) Result() Result { return v.result }

func (v *Verifier) unchecked(d *Decision, problem string) {
	v.result.Unchecked++
	v.found(Difference{Kind: KindUnchecked, Seq: d.Seq, EventID: d.EventID, PolicyVersion: d.PolicyVersion, Problem: problem})
}

func (v *Verifier) check(d *Decision, fields []string) {
	engine, known := v.engines[d.Engine]
	if !known {
		v.unchecked(d, fmt.Sprintf("event %d, which names the engine, is no startup event", d.Engine))
		return
	}
	if !d.Under(engine) {
		v.unchecked(d, fmt.Sprintf("its facts are %q, and this program knows %s", engine["facts"], policy.FactsVersion))
		return
	}
	p, problem := v.policy(d.PolicyHash)
	if p == nil {
		v.unchecked(d, problem)
		return
	}
	v.result.Decisions++
	again := d.under(p)
	if asked := layerAgent(d.AgentLayer); asked != d.Facts.AgentID { // every statement of an agent is asked about
		fields = append(fields, fmt.Sprintf("agent_layer.agent_id: recorded %q, the facts name %q", asked, d.Facts.AgentID))
	}
	if d.AgentLayer != nil {
		var more []string
		var err error
		if more, err = v.agents.recompute(d.AgentLayer, &d.Facts); err != nil {
			v.unchecked(d, err.Error())
			return
		}
		fields = append(fields, more...)
		again = agentrules.Tighten(again, d.AgentLayer)
	}
	fields = append(fields, differences(&d.Recorded, again)...)
	if was, is := dryRunWords(d.Recorded.DryRun), dryRunWords(again.DryRun); d.Run == event.RunDryRun && was != is { // other decisions do not name it
		fields = append(fields, fmt.Sprintf("dry_run: recorded %s, recomputed %s", was, is))
	}
	if p.Version() != d.PolicyVersion {
		fields = append(fields, fmt.Sprintf("policy_version: recorded %s, the bytes say %s", d.PolicyVersion, p.Version()))
	}
	if d.Catalog != nil {
		more, err := v.catalogs.recompute(d, engine)
		if err != nil && len(fields) == 0 {
			v.unchecked(d, err.Error())
			return
		}
		fields = append(fields, more...)
	}
	if len(fields) == 0 {
		return
	}
	kind := KindDifference
	if !sameEngine(engine, v.engine) || d.Catalog != nil && engine[engineTables] != classify.Tables() {
		kind, v.result.EngineDrift = KindEngineDrift, true
	}
	v.result.Differences++
	v.found(Difference{Kind: kind, Seq: d.Seq, EventID: d.EventID, PolicyVersion: d.PolicyVersion, Fields: fields})
}

// dryRunWords are the terms of dry runs in words.
func dryRunWords(terms *policy.DryRunTerms) string {
	switch {
	case terms == nil:
		return "none"
	case terms.Rows:
		return "with rows"
	}
	return "allow"
}

// layerAgent is the agent whose policies a layer says were asked; "" = none.
func layerAgent(l *event.AgentLayer) string {
	if l == nil {
		return ""
	}
	return l.AgentID
}

// policy loads a version once. A document that was active once and does not
// load any more is a change of the program, not of the record.
func (v *Verifier) policy(hash [32]byte) (*policy.Policy, string) {
	p, done := v.policies[hash]
	if !done {
		document, known := v.documents[hash]
		if !known {
			return nil, fmt.Sprintf("the log does not hold the bytes of the policy with the hash %x", hash)
		}
		p, _ = policy.Load(document, policy.Options{})
		v.policies[hash] = p
	}
	if p == nil {
		return nil, fmt.Sprintf("the policy with the hash %x is not valid for this program", hash)
	}
	return p, ""
}

// sameEngine compares what decides; the version of the gate around it and of
// the language it is written in do not, the marker table is taken from the
// record, as is what the texts of views were judged with, and the timeline is of the database.
func sameEngine(a, b map[string]string) bool {
	decides := func(m map[string]string) map[string]string {
		m = maps.Clone(m)
		delete(m, "gate")
		delete(m, "go")
		delete(m, EngineMarkerTable)
		delete(m, event.EngineTimeline)
		catalogEngine(m)
		return m
	}
	return maps.Equal(decides(a), decides(b))
}

// differences names the fields in which two results differ.
func differences(recorded *policy.Result, again policy.Result) []string {
	var fields []string
	differ := func(name string, was, is any) {
		fields = append(fields, fmt.Sprintf("%s: recorded %v, recomputed %v", name, was, is))
	}
	for _, f := range []struct{ name, was, is string }{
		{"decision", string(recorded.Decision), string(again.Decision)},
		{"reason_code", recorded.ReasonCode, again.ReasonCode},
		{"rule_id", recorded.RuleID, again.RuleID},
	} {
		if f.was != f.is {
			differ(f.name, f.was, f.is)
		}
	}
	for _, f := range []struct {
		name    string
		was, is []string
	}{
		{"matched", recorded.Matched, again.Matched}, {"observed", recorded.Observed, again.Observed}, {"errors", recorded.Errors, again.Errors},
		{"floor", recorded.Floor, again.Floor}, {"lifted", recorded.Lifted, again.Lifted},
	} {
		if !slices.Equal(f.was, f.is) {
			differ(f.name, f.was, f.is)
		}
	}
	return fields
}
