package replay

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"writegate/eventlog/event"
	"writegate/sqlgate/agentrules"
	"writegate/sqlgate/policy"
)

var moment = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

var engine = map[string]string{"facts": policy.FactsVersion, "cel": policy.CELVersion, "gate": "0.6.0"}

// rules is a document whose rules are given, in YAML flow form.
func rules(version string, lines ...string) []byte {
	return []byte("schema: gate.policy/v1\nfacts: facts/v1\nname: p\nversion: " + version + "\nrules:\n  - " + strings.Join(lines, "\n  - ") + "\n")
}

const (
	blockDeletes = `{ id: deletes, decision: BLOCK, reason_code: no_deletes, match: { query_types: [DELETE] } }`
	askUpdates   = `{ id: updates, decision: REQUIRE_APPROVAL, reason_code: ask_first, match: { query_types: [UPDATE] } }`
	allowWrites  = `{ id: writes, decision: ALLOW, reason_code: writes, match: { query_types_only: [INSERT, UPDATE, DELETE] } }`
	clerksOnly   = `{ id: clerks, decision: BLOCK, reason_code: clerks_only, match: { class: [write] }, when: 'role != "clerk" || host == "kiosk"' }`
)

func load(t require.TestingT, document []byte) *policy.Policy {
	p, report := policy.Load(document, policy.Options{})
	require.NotNil(t, p, "%v", report.Findings)
	return p
}

// A story is a log in the making.
type story struct{ events []event.Envelope }

func (s *story) add(drafts ...event.Draft) uint64 {
	for _, d := range drafts {
		s.events = append(s.events, event.Envelope{Seq: uint64(len(s.events) + 1), Draft: d})
	}
	return uint64(len(s.events))
}

func (s *story) starts(engine map[string]string) uint64 {
	return s.add(event.New(moment, event.Context{Mode: "enforce"}, &event.Startup{Version: "0.6.0", Engine: engine}))
}

func (s *story) brings(document []byte) {
	s.add(event.New(moment, event.Context{}, &event.PolicyCandidateCreated{PolicyVersion: "p", Hash: sha256.Sum256(document), Document: document, By: "operator"}))
}

// decides records what p decides on the facts, as the gate would.
func (s *story) decides(p *policy.Policy, f policy.Facts, engine uint64) uint64 {
	r, run := p.DecideStatement(&f), "transaction"
	if policy.SessionControl(f.QueryType) {
		run = event.RunSession
	}
	request := event.Context{Actor: f.Actor, App: f.App, Tenant: f.Tenant, Role: f.Role, Host: f.Host, Env: f.Env, SessionID: f.SessionID, RequestID: "req"}
	shared := event.Context{Actor: f.Actor, App: f.App, RequestID: "req", PolicyVersion: p.Version(), Operation: f.QueryType, Fingerprint: f.Fingerprint,
		Decision: string(r.Decision), ReasonCode: r.ReasonCode, Mode: "enforce"}
	if f.Mode == policy.ModeApprovalFirst {
		shared.Mode = f.Mode
	}
	var layer *event.AgentLayer
	if f.AgentID != "" { // one without policies
		layer = agentrules.Evaluate(&agentrules.Input{Agent: event.AgentRoot{ID: f.AgentID}, Facts: &f})
	}
	return s.add(event.New(moment, request, &event.RequestReceived{}), event.New(moment, shared, &event.DecisionRecorded{
		AgentLayer: layer,
		RuleID:     r.RuleID, Layer: r.Layer, Matched: r.Matched, Observed: r.Observed, Errors: r.Errors, Floor: r.Floor, Lifted: r.Lifted,
		PolicyHash: sha256.Sum256(p.Document()), Engine: engine, Run: run,
		Facts: event.DecisionFacts{QueryTypes: f.QueryTypes, Class: f.Class, SafeRead: f.SafeRead, TablesRead: f.TablesRead, TablesWritten: f.TablesWritten,
			ColumnsWritten: f.ColumnsWritten, Functions: f.Functions, RiskSignals: f.RiskSignals, Flags: f.Flags, Where: f.Where,
			TLSSubject: f.TLSSubject, AgentID: f.AgentID, AgentToolsVerified: f.AgentToolsVerified, Approved: f.Approved, Channel: f.Channel},
	}))
}

func facts(t *rapid.T) policy.Facts {
	words := func(name string, of ...string) []string {
		return rapid.SliceOfDistinct(rapid.SampledFrom(of), rapid.ID[string]).Draw(t, name)
	}
	one := func(name string, of ...string) string { return rapid.SampledFrom(of).Draw(t, name) }
	kind := one("type", "SELECT", "INSERT", "UPDATE", "DELETE", "PREPARE", "DEALLOCATE")
	class := "write"
	switch kind {
	case "SELECT":
		class = "read"
	case "PREPARE", "DEALLOCATE":
		class = "session"
	}
	return policy.Facts{
		QueryType: kind, QueryTypes: []string{kind}, Class: class, RiskSignals: words("signals", "cascade", "opaque_code", "volatile_function"),
		TablesRead: words("read", "public.a", "public.b"), TablesWritten: words("written", "public.a", "audit.log"), Where: words("where", "none", "present"),
		Fingerprint: one("fingerprint", "f1", "f2"), Actor: one("actor", "ana", "bot"), App: one("app", "shop", ""), Role: one("role", "clerk", "chief"),
		Host: one("host", "desk", "kiosk"), Env: one("env", "prod", "staging"), AgentID: one("agent", "", "agt_1"), SessionID: one("session", "", "s"),
		Mode: one("mode", policy.ModeEnforce, policy.ModeApprovalFirst), Approved: rapid.Bool().Draw(t, "approved"),
	}
}

func verify(s *story, from, to uint64) (Result, []Difference) {
	var found []Difference
	v := NewVerifier(engine, nil, from, to, func(d Difference) { found = append(found, d) })
	for i := range s.events {
		if err := v.Take(&s.events[i]); err != nil {
			panic(err)
		}
	}
	return v.Result(), found
}

func TestWhatWasRecordedIsRecomputedFromTheLogAlone(t *testing.T) {
	documents := [][]byte{rules("1.0.0", blockDeletes, askUpdates, allowWrites), rules("1.1.0", clerksOnly, allowWrites), rules("2.0.0", askUpdates)}
	rapid.Check(t, func(t *rapid.T) {
		var s story
		at := s.starts(engine)
		var loaded []*policy.Policy
		for _, d := range documents {
			s.brings(d)
			loaded = append(loaded, load(t, d))
		}
		n := rapid.IntRange(1, 20).Draw(t, "decisions")
		for range n {
			s.decides(rapid.SampledFrom(loaded).Draw(t, "policy"), facts(t), at)
		}
		result, found := verify(&s, 0, 0)
		require.Empty(t, found)
		require.Equal(t, Result{Decisions: n}, result)
	})
}

func write(kind string) policy.Facts {
	return policy.Facts{QueryType: kind, QueryTypes: []string{kind}, Class: "write", TablesWritten: []string{"public.a"}, Actor: "ana", Role: "clerk", Fingerprint: "f"}
}

func TestARecordThatSaysOtherwiseIsADifference(t *testing.T) {
	p := load(t, rules("1.0.0", blockDeletes, allowWrites))
	for _, c := range []struct {
		name   string
		change func(request, decision *event.Draft, p *event.DecisionRecorded)
		field  string
	}{
		{"the decision", func(_, d *event.Draft, _ *event.DecisionRecorded) { d.Context.Decision = "ALLOW" }, "decision: recorded ALLOW, recomputed BLOCK"},
		{"the reason", func(_, d *event.Draft, _ *event.DecisionRecorded) { d.Context.ReasonCode = "other" }, "reason_code"},
		{"the rule", func(_, _ *event.Draft, p *event.DecisionRecorded) { p.RuleID = "writes" }, "rule_id"},
		{"the rules that matched", func(_, _ *event.Draft, p *event.DecisionRecorded) { p.Matched = nil }, "matched"},
		{"a rule observed", func(_, _ *event.Draft, p *event.DecisionRecorded) { p.Observed = []string{"x"} }, "observed"},
		{"an error", func(_, _ *event.Draft, p *event.DecisionRecorded) { p.Errors = []string{"x"} }, "errors"},
		{"the floor", func(_, _ *event.Draft, p *event.DecisionRecorded) { p.Floor = []string{"opaque_code"} }, "floor"},
		{"what was lifted", func(_, _ *event.Draft, p *event.DecisionRecorded) { p.Lifted = []string{"opaque_code"} }, "lifted"},
		{"a fact", func(_, _ *event.Draft, p *event.DecisionRecorded) { p.Facts.QueryTypes = []string{"INSERT"} }, "decision: recorded BLOCK, recomputed ALLOW"},
		{"the version's name", func(_, d *event.Draft, _ *event.DecisionRecorded) { d.Context.PolicyVersion = "p@9.9.9" }, "policy_version"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var s story
			at := s.starts(engine)
			s.brings(p.Document())
			seq := s.decides(p, write("DELETE"), at)
			request, decision := &s.events[seq-2].Draft, &s.events[seq-1].Draft
			var recorded event.DecisionRecorded
			require.NoError(t, decision.Parse(&recorded))
			c.change(request, decision, &recorded)
			decision.Payload = recorded.Fields()
			result, found := verify(&s, 0, 0)
			require.Equal(t, 1, result.Differences)
			require.Equal(t, KindDifference, found[0].Kind)
			require.Equal(t, seq, found[0].Seq)
			require.Contains(t, strings.Join(found[0].Fields, "\n"), c.field)
		})
	}
}

func TestADifferenceUnderAnotherEngineIsCalledDrift(t *testing.T) {
	p := load(t, rules("1.0.0", blockDeletes))
	for name, c := range map[string]struct {
		engine map[string]string
		kind   string
	}{
		"another classifier":      {map[string]string{"facts": policy.FactsVersion, "cel": "v0.1.0", "gate": "0.6.0"}, KindEngineDrift},
		"another gate around it":  {map[string]string{"facts": policy.FactsVersion, "cel": policy.CELVersion, "gate": "0.7.0"}, KindDifference},
		"facts of another format": {map[string]string{"facts": "facts/v2", "cel": policy.CELVersion}, KindUnchecked},
	} {
		t.Run(name, func(t *testing.T) {
			var s story
			at := s.starts(c.engine)
			s.brings(p.Document())
			seq := s.decides(p, write("DELETE"), at)
			s.events[seq-1].Context.Decision = "ALLOW"
			_, found := verify(&s, 0, 0)
			require.Len(t, found, 1)
			require.Equal(t, c.kind, found[0].Kind)
		})
	}
}

func TestWhatCannotBeCheckedIsSaid(t *testing.T) {
	p := load(t, rules("1.0.0", blockDeletes))
	for name, spoil := range map[string]func(s *story, seq uint64){
		"the bytes are not in the log": func(s *story, _ uint64) { s.events[1].Draft = event.New(moment, event.Context{}, &event.Shutdown{}) },
		"the engine is not in the log": func(s *story, _ uint64) { s.events[0].Draft = event.New(moment, event.Context{}, &event.Shutdown{}) },
		"the request is not in the log": func(s *story, seq uint64) {
			s.events[seq-2].Draft = event.New(moment, event.Context{}, &event.Shutdown{})
		},
		"the request is another one's":   func(s *story, seq uint64) { s.events[seq-2].Context.RequestID = "req_other" },
		"the bytes are no policy at all": func(s *story, _ uint64) { s.events[1].Draft = bringing([]byte("x")) },
	} {
		t.Run(name, func(t *testing.T) {
			var s story
			at := s.starts(engine)
			s.brings(p.Document())
			seq := s.decides(p, write("DELETE"), at)
			spoil(&s, seq)
			result, found := verify(&s, 0, 0)
			require.Equal(t, Result{Unchecked: 1}, result)
			require.Equal(t, KindUnchecked, found[0].Kind)
			require.NotEmpty(t, found[0].Problem)
		})
	}
}

func bringing(document []byte) event.Draft {
	return event.New(moment, event.Context{}, &event.PolicyCandidateCreated{Hash: sha256.Sum256(document), Document: document})
}

func TestARangeLeavesOutTheRest(t *testing.T) {
	p := load(t, rules("1.0.0", blockDeletes))
	var s story
	at := s.starts(engine)
	s.brings(p.Document())
	var seqs []uint64
	for range 5 {
		seqs = append(seqs, s.decides(p, write("DELETE"), at))
	}
	result, _ := verify(&s, seqs[1], seqs[3])
	require.Equal(t, 3, result.Decisions)
}

func TestAComparisonCountsWhatWouldChange(t *testing.T) {
	base, target := load(t, rules("1.0.0", allowWrites)), load(t, rules("1.1.0", allowWrites, blockDeletes, askUpdates))
	var s story
	at := s.starts(engine)
	for _, kind := range []string{"INSERT", "DELETE", "UPDATE", "DELETE"} {
		s.decides(base, write(kind), at)
	}
	other := s.decides(target, write("DELETE"), at)
	report := compare(t, &s, base, target)
	require.Equal(t, 5, report.Evaluated)
	require.Equal(t, 4, report.Changed)
	require.Equal(t, 1, report.RecordedDiffers, "the last one was decided under the target")
	require.Equal(t, 3, report.TargetDiffers)
	require.Zero(t, report.BothDiffer)
	require.Len(t, report.Transitions, 2)
	asks, blocks := report.Transitions[0], report.Transitions[1]
	require.Equal(t, Transition{From: policy.Allow, To: policy.RequireApproval, Count: 1, ByRule: map[string]int{"updates": 1}, Samples: asks.Samples}, asks)
	require.Equal(t, 3, blocks.Count)
	require.Equal(t, map[string]int{"deletes": 3}, blocks.ByRule)
	require.Equal(t, other, blocks.Samples[2].Seq)
	require.Equal(t, policy.Block, blocks.Samples[2].Recorded)
	require.Equal(t, policy.Allow, blocks.Samples[0].Recorded)
	require.Len(t, *report.ImpactHash, 64)

	again := compare(t, &s, base, target)
	require.Equal(t, report, again, "the same range gives the same hash")
	s.decides(base, write("DELETE"), at)
	require.NotEqual(t, *report.ImpactHash, *compare(t, &s, base, target).ImpactHash)
	require.NotEqual(t, *report.ImpactHash, *compare(t, &s, target, base).ImpactHash)
}

func compare(t *testing.T, s *story, base, target *policy.Policy) Report {
	c := NewComparison(base, target, 1, uint64(len(s.events)))
	var r Reader
	for i := range s.events {
		d, err := r.Take(&s.events[i])
		require.NoError(t, err)
		if d != nil {
			c.Add(d)
		}
	}
	report, err := c.Report(true, engine)
	require.NoError(t, err)
	return report
}

func TestSamplesAreFewAndAnUnfinishedReplayHasNoHash(t *testing.T) {
	base, target := load(t, rules("1.0.0", allowWrites)), load(t, rules("1.1.0", blockDeletes))
	c := NewComparison(base, target, 1, 100)
	for i := range 100 {
		c.Add(&Decision{Seq: uint64(i + 1), EventID: fmt.Sprint(i), Facts: write("DELETE"), Recorded: policy.Result{Decision: policy.Allow}})
	}
	c.Unreplayable()
	report, err := c.Report(false, engine)
	require.NoError(t, err)
	require.Len(t, report.Transitions[0].Samples, 10)
	require.Equal(t, 1, report.Unreplayable)
	require.Nil(t, report.ImpactHash)
	require.False(t, report.Complete)
}

func TestAnImpactHashIsReadInBothForms(t *testing.T) {
	want := sha256.Sum256([]byte("x"))
	for _, text := range []string{fmt.Sprintf("%x", want), fmt.Sprintf("sha256:%x", want)} {
		hash, ok := ParseImpactHash(text)
		require.True(t, ok)
		require.Equal(t, want, hash)
	}
	for _, text := range []string{"", "ab", "sha256:", fmt.Sprintf("%x00", want), "zz"} {
		_, ok := ParseImpactHash(text)
		require.False(t, ok, text)
	}
}

// A PREPARE that an earlier gate blocked, which had no sessions, was decided like
// any statement, and is decided so again.
func TestOnlyWhatWasSessionControlIsRecomputedAsSuch(t *testing.T) {
	p := load(t, rules("1.0.0", blockDeletes))
	f := policy.Facts{QueryType: "PREPARE", QueryTypes: []string{"PREPARE", "SELECT"}, Class: "session", RiskSignals: []string{"session_change"}}
	var s story
	at := s.starts(engine)
	s.brings(p.Document())
	s.decides(p, f, at)
	result, found := verify(&s, 0, 0)
	require.Empty(t, found)
	require.Equal(t, Result{Decisions: 1}, result)

	var payload event.DecisionRecorded
	last := &s.events[len(s.events)-1]
	require.NoError(t, last.Parse(&payload))
	payload.Run = "none"
	last.Payload = payload.Fields()
	_, found = verify(&s, 0, 0)
	require.Len(t, found, 1)
	require.Contains(t, strings.Join(found[0].Fields, "; "), "decision: recorded ALLOW, recomputed BLOCK")

	last.Context.Decision, last.Context.ReasonCode = "BLOCK", policy.ReasonDefaultDeny
	payload.RuleID = policy.RuleDefault
	last.Payload = payload.Fields()
	_, found = verify(&s, 0, 0)
	require.Empty(t, found)
}

// What was recorded before the channel was a fact is decided under a later policy by
// what its request says of it.
func TestAnOlderRecordTellsItsChannelByItsRequest(t *testing.T) {
	for want, request := range map[string]*event.RequestReceived{policy.ChannelHTTP: {}, policy.ChannelWire: {WireSession: "wire_1"}} {
		for recorded, is := range map[string]string{"": want, policy.ChannelMCP: policy.ChannelMCP} {
			var s story
			s.add(event.New(moment, event.Context{RequestID: "req"}, request),
				event.New(moment, event.Context{RequestID: "req", Decision: "ALLOW"}, &event.DecisionRecorded{Facts: event.DecisionFacts{Channel: recorded}}))
			var r Reader
			_, err := r.Take(&s.events[0])
			require.NoError(t, err)
			d, err := r.Take(&s.events[1])
			require.NoError(t, err)
			require.Equal(t, is, d.Facts.Channel)
		}
	}
}
