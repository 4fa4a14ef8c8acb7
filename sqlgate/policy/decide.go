package policy

import (
	"math/bits"
	"slices"
)

// outcome is what became of one rule.
type outcome uint8

const (
	notMatched outcome = iota
	matched
	failed
)

// outcome reads match, then unless, and when last. What the index of
// the policy tells of match is not read again.
func (r *rule) outcome(e *evaluation) outcome {
	if !r.match.holds(e) || (r.unless != nil && r.unless.holds(e)) {
		return notMatched
	}
	if r.when == nil {
		return matched
	}
	e.cost += r.when.cost
	e.costOfFew += r.when.costOfFew
	return r.when.decide(e)
}

// Decide evaluates the policy over the facts of one statement: every rule, the
// floor, the strictest of them, the default where there is none, and last the
// mode approval_first. It never fails; a when that does is a BLOCK.
//
// A statement that names the gate's own marker table is a BLOCK before all that.
//
// Statements that are refused before any rule (several, none, not parsed)
// never reach it, and session control has DecideSessionControl.
func (p *Policy) Decide(f *Facts) Result {
	e := evaluate(f)
	defer e.done()
	return p.decide(e)
}

func (p *Policy) decide(e *evaluation) Result {
	f := e.facts
	p.collect(e)
	var r Result
	blocking := p.floor(e, &r)
	switch winner, strictness := p.strictest(e); {
	case f.namesMarkerTable():
		decideByMarkerTable(&r)
	case blocking != 0:
		decideByFloor(&r, blocking)
	case winner >= 0:
		p.decideByRule(e, &r, winner, strictness)
	case e.safe:
		r.Decision, r.ReasonCode, r.RuleID = Allow, ReasonSafeRead, RuleDefault
	default:
		r.Decision, r.ReasonCode, r.RuleID = Block, ReasonDefaultDeny, RuleDefault
		r.Message, r.Remedy = textDefaultDeny, remedyDefaultDeny
	}
	p.demandReason(e, &r)
	p.approvalFirst(e, &r)
	if r.Decision != Block {
		r.DryRun = p.dryRun(e)
	}
	p.report(e, &r)
	return r
}

// demandReason blocks what would pass, or wait, where a rule that matches asks for a reason and
// the request gives none. Whoever approves, or gave a grant, is to know why.
func (p *Policy) demandReason(e *evaluation, r *Result) {
	if e.facts.ReasonGiven || r.Decision == Block {
		return
	}
	for _, i := range e.matched {
		if u := &p.rules[i]; u.needsReason {
			*r = Result{Decision: Block, ReasonCode: ReasonRequired, RuleID: u.id, Message: textReasonRequired, Remedy: remedyReasonRequired, Layer: r.Layer, Floor: r.Floor, Lifted: r.Lifted}
			return
		}
	}
}

// DecideSessionControl decides on a statement that the gate answers itself
// (PREPARE, DEALLOCATE, the closed list of the wire listener): a matched rule
// decides; without one it is allowed. The default, the floor and the mode
// approval_first do not block it, since nothing of it reaches the database. The
// gate's own marker table may not be named here either.
func (p *Policy) DecideSessionControl(f *Facts) Result {
	e := evaluate(f)
	defer e.done()
	return p.decideSessionControl(e)
}

func (p *Policy) decideSessionControl(e *evaluation) Result {
	f := e.facts
	p.collect(e)
	var r Result
	switch winner, strictness := p.strictest(e); {
	case f.namesMarkerTable():
		decideByMarkerTable(&r)
	case winner >= 0:
		p.decideByRule(e, &r, winner, strictness)
	default:
		r.Decision, r.ReasonCode, r.Layer = Allow, ReasonSessionControl, LayerSession
	}
	p.demandReason(e, &r)
	p.report(e, &r)
	return r
}

// SessionControl reports whether POST /query answers a statement of this type
// itself. EXECUTE is none: its inner statement stands in its place.
func SessionControl(queryType string) bool {
	return queryType == "PREPARE" || queryType == "DEALLOCATE"
}

// DecideStatement decides as POST /query does: as on session control what the
// gate answers itself, all else as Decide.
func (p *Policy) DecideStatement(f *Facts) Result {
	e := evaluate(f)
	defer e.done()
	return p.decideStatement(e)
}

func (p *Policy) decideStatement(e *evaluation) Result {
	if SessionControl(e.facts.QueryType) {
		return p.decideSessionControl(e)
	}
	return p.decide(e)
}

// collect evaluates the rules that may match, in their order.
func (p *Policy) collect(e *evaluation) {
	for n, word := range p.index.candidates(e) {
		for ; word != 0; word &= word - 1 {
			p.evaluate(e, n*64+bits.TrailingZeros64(word))
		}
	}
}

func (p *Policy) evaluate(e *evaluation, place int) {
	r := &p.rules[place]
	switch r.outcome(e) {
	case matched:
		if r.observe {
			e.observed = append(e.observed, place)
		} else {
			e.matched = append(e.matched, place)
		}
	case failed:
		if !r.observe {
			e.failed = append(e.failed, place)
		}
	}
}

// floor sorts the floor signals present into lifted and blocking ones and
// returns the blocking ones. Facts outside of facts/v1 raise unknown_node by
// themselves: a statement has a type and a class, and what says otherwise could
// satisfy every _only key without meaning it.
func (p *Policy) floor(e *evaluation, r *Result) uint64 {
	types, seen := e.bits(queryTypesVariable), e.bits(signalsVariable)
	raised := seen & floorMask
	if types == 0 || (types|seen|e.bits(classVariable))&foreign != 0 {
		raised |= signals.bit[signalUnknownNode]
	}
	if raised == 0 {
		return 0
	}
	var lifts uint64
	for _, i := range e.matched {
		lifts |= p.rules[i].liftBits
	}
	r.Lifted, r.Floor = signalNames(raised&lifts), signalNames(raised&^lifts)
	return raised &^ lifts
}

// strictest finds the place of the rule that decides among those that failed
// or matched: the first of the strictest ones, or -1.
func (p *Policy) strictest(e *evaluation) (winner, strictness int) {
	winner, strictness = -1, -1
	consider := func(i, s int) {
		if s > strictness || (s == strictness && i < winner) {
			winner, strictness = i, s
		}
	}
	for _, i := range e.failed {
		consider(i, Block.Strictness())
	}
	for _, i := range e.matched {
		s := p.rules[i].decision.Strictness()
		if p.rules[i].decision == RequireApproval && (e.facts.Approved || p.rules[i].takesGrant(e.facts.GrantSeconds)) {
			s = satisfied
		}
		consider(i, s)
	}
	return winner, strictness
}

// takesGrant reports whether a grant of so many seconds stands for the approval that the
// rule asks for.
func (u *rule) takesGrant(seconds int) bool { return seconds > 0 && seconds <= u.grantSeconds }

func (p *Policy) decideByRule(e *evaluation, r *Result, place, strictness int) {
	winner := &p.rules[place]
	r.RuleID, r.ReasonCode = winner.id, winner.reasonCode
	r.Message, r.Remedy = winner.message, winner.remedy
	switch strictness {
	case Allow.Strictness():
		r.Decision = Allow
	case satisfied:
		r.Decision = Allow
		r.Approval = p.terms(e)
	case RequireApproval.Strictness():
		r.Decision = RequireApproval
		r.Approval = p.terms(e)
	default:
		r.Decision = Block
		if slices.Contains(e.failed, place) {
			r.ReasonCode, r.Message, r.Remedy = ReasonRuleEvalError, textRuleEvalError, remedyRuleEvalError
		}
	}
}

// terms are the smallest over all matched rules that ask for an approval.
func (p *Policy) terms(e *evaluation) *ApprovalTerms {
	t := &ApprovalTerms{TTLSeconds: -1}
	for _, i := range e.matched {
		r := &p.rules[i]
		if r.decision != RequireApproval {
			continue
		}
		ttl := r.ttlSeconds
		if ttl == 0 {
			ttl = p.defaultTTL
		}
		if t.TTLSeconds < 0 || ttl < t.TTLSeconds {
			t.TTLSeconds = ttl
		}
		if r.maxRows != nil && (t.MaxRows == nil || *r.maxRows < *t.MaxRows) {
			t.MaxRows = r.maxRows
		}
	}
	return t
}

// dryRun is what all matched rules take that have a say: those that ask for an approval, or
// the ALLOW rules where none does. One that does not say so is enough for none, as the
// strictest wins and their order has no say. Without a rule, as of a safe read, it is nil.
func (p *Policy) dryRun(e *evaluation) *DryRunTerms {
	say := Allow
	if slices.ContainsFunc(e.matched, func(i int) bool { return p.rules[i].decision == RequireApproval }) {
		say = RequireApproval
	}
	var terms *DryRunTerms
	for _, i := range e.matched {
		r := &p.rules[i]
		switch {
		case r.decision != say:
		case r.dryRun == nil:
			return nil
		case terms == nil || !r.dryRun.Rows:
			terms = r.dryRun
		}
	}
	return terms
}

// approvalFirst turns an ALLOW into a wish for an approval in that mode, unless
// the statement is a safe read or was approved. Rule and layer stay: the
// reason alone is another.
func (p *Policy) approvalFirst(e *evaluation, r *Result) {
	if e.facts.Mode != ModeApprovalFirst || r.Decision != Allow || e.safe || e.facts.Approved {
		return
	}
	r.Decision, r.ReasonCode = RequireApproval, ReasonApprovalFirst
	r.Message, r.Remedy = textApprovalFirst, remedyApprovalFirst
	r.Approval = &ApprovalTerms{TTLSeconds: p.defaultTTL}
}

// report fills in the lists of the result and what is still empty.
func (p *Policy) report(e *evaluation, r *Result) {
	r.Matched, r.Observed, r.Errors = p.ids(e.matched), p.ids(e.observed), p.ids(e.failed)
	if r.Layer == "" {
		r.Layer = LayerPolicy
	}
	if r.Message != "" {
		return
	}
	switch r.Decision {
	case Block:
		r.Message = textBlockedByRule
	case RequireApproval:
		r.Message = textApprovalByRule
	}
}

func (p *Policy) ids(places []int) []string {
	switch len(places) {
	case 0:
		return nil
	case 1:
		return p.rules[places[0]].self
	}
	ids := make([]string, len(places))
	for n, i := range places {
		ids[n] = p.rules[i].id
	}
	return ids
}

func signalNames(set uint64) []string {
	if set == 0 {
		return nil
	}
	names := make([]string, 0, bits.OnesCount64(set))
	for _, name := range signals.names {
		if signals.bit[name]&set != 0 {
			names = append(names, name)
		}
	}
	return names
}

func decideByMarkerTable(r *Result) {
	r.Decision, r.ReasonCode, r.RuleID = Block, ReasonMarkerTable, FloorPrefix+ReasonMarkerTable
	r.Message, r.Remedy = textMarkerTable, remedyMarkerTable
}

func decideByFloor(r *Result, blocking uint64) {
	signal := signals.names[bits.TrailingZeros64(blocking)]
	r.Decision, r.ReasonCode, r.RuleID = Block, signal, FloorPrefix+signal
	r.Message, r.Remedy = floorTexts[signal], remedyFloor
}
