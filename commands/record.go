package commands

import (
	"context"
	"errors"
	"math"
	"time"

	"writegate/commands/fault"
	"writegate/eventlog"
	"writegate/eventlog/event"
	"writegate/projections"
)

// KeyLifetime is how long an idempotency key gives its first answer
// (spec/decisions.md part 3).
const KeyLifetime = 24 * time.Hour

// RecordDecision asks for the evidence of one decision, and of what follows
// from it at once: an approval that has to be given, a dispatch, or a dispatch
// that could not even begin.
type RecordDecision struct {
	Request  Request
	Decision Decision

	// At most one of these four is set; none for a BLOCK, or for the retry of
	// an approval that is still pending.
	NewApproval   *NewApproval               // REQUIRE_APPROVAL
	Dispatch      *event.ExecutionDispatched // the statement is about to be sent; Idempotency is filled in here
	NotDispatched *Failure                   // the connection failed before anything was sent
	Answered      bool                       // the gate carries it out itself: session control, without an execution

	// UseApproval is the approval that lets the statement run. It is checked
	// again under its lock and used up by the dispatch, or by being answered;
	// with NotDispatched it stays usable.
	UseApproval string
	// UseGrant is the grant that stands for the approval. It is checked again under its
	// lock, and used by the dispatch. ErrGrantLost: the statement has to be decided again.
	UseGrant *GrantUse
	// OpenSession binds the session in the request's context to its identity.
	OpenSession *event.SessionOpened
	// Ahead are statements of session control that the gate answered on the same
	// connection before this one: their evidence was kept for this append.
	Ahead []Answered
	// Idempotency binds the dispatch to the client's key. A zero ExpiresAt is
	// KeyLifetime from now.
	Idempotency *event.Idempotency
	Emergency   *event.EmergencyBypass // written before a bypassed statement runs
	// Extra decides, under the locks of Keys, what else happens with this
	// decision: an agent's rule may deactivate the agent. Its error refuses the
	// statement. It may be nil.
	Extra func(view *projections.View, now time.Time) ([]event.Draft, error)
	Keys  []string
	// Around writes the decision, once its locks are held and nothing else is waited
	// for, or refuses it. It may be nil.
	Around func(write func() error) error
	// ExecutionID names the execution; one is made when it is empty.
	ExecutionID string
}

// Answered is a statement that the gate carried out itself, without an execution.
type Answered struct {
	Request  Request
	Decision Decision
}

// Bytes is how much of an append the evidence takes, at most some bytes less.
// The error says that it can't be encoded.
func (a *Answered) Bytes(now time.Time) (int, error) {
	var buf []byte
	for _, draft := range a.drafts(now, math.MaxInt64) {
		var err error
		if buf, err = event.Encode(buf, &draft); err != nil {
			return 0, err
		}
	}
	return len(buf), nil
}

func (a *Answered) drafts(now time.Time, engine uint64) []event.Draft {
	r := RecordDecision{Request: a.Request, Decision: a.Decision}
	return []event.Draft{a.Request.received(now, &a.Decision), r.decided(now, a.Request.context(&a.Decision), engine)}
}

// NewApproval is what an operator will be shown. The decision gives rule,
// reason and terms.
type NewApproval struct {
	SQL             string   // exact, byte for byte
	PreparedSQL     string   // what an EXECUTE runs, exact; "" = SQL itself
	Classification  string   // JSON
	Impact          string   // JSON of the plan estimate; "" = none
	Parameters      []string // of the wire, in order, for a person
	Message, Remedy string
	AgentPolicyID   string // the agent's policy that asks; "" = the gate's own
}

// Failure is why a statement did not take effect.
type Failure struct {
	event.ExecutionFailure
	ReasonCode string
	ErrorCode  string // what the client was told
}

// RecordDecision appends the evidence of a decision before anything is executed.
//
// Errors besides those of the log: the approval's or the key's state, as faults
// approval_not_found, approval_rejected, approval_expired, approval_mismatch,
// approval_outcome_unknown, approval_already_used, idempotency_conflict or
// idempotency_in_progress. After any error nothing may be executed.
func (c *Commands) RecordDecision(ctx context.Context, r *RecordDecision) (Recorded, error) {
	if keys := r.aggregates(); len(keys) > 0 {
		unlock, err := c.lock(ctx, keys...)
		if err != nil {
			return Recorded{}, err
		}
		defer unlock()
	}
	now := c.now()
	facts, err := c.decisionFacts(ctx, r, now)
	if err != nil {
		return Recorded{}, err
	}
	c.step("commands.decide")
	drafts, recorded, err := decideRecord(r, facts, c.ttl, now)
	if err != nil {
		return Recorded{}, err
	}
	done, err := c.commitWithin(ctx, eventlog.Group{Drafts: drafts}, r.Around)
	if err != nil {
		return Recorded{}, err
	}
	if r.NewApproval != nil {
		c.wakeExpiry()
	}
	recorded.Events, recorded.At = refs(drafts, done), now
	return recorded, nil
}

// stateful reports whether the state of an approval or of a key decides too.
func (r *RecordDecision) stateful() bool {
	return (r.Dispatch != nil || r.Answered) && (r.UseApproval != "" || r.Idempotency != nil || r.UseGrant != nil)
}

// aggregates are the keys this command has to hold; a plain decision has none.
func (r *RecordDecision) aggregates() []string {
	if !r.stateful() {
		return r.Keys
	}
	keys := append([]string(nil), r.Keys...)
	if r.UseApproval != "" {
		keys = append(keys, approvalKey(r.UseApproval))
	}
	if r.UseGrant != nil {
		keys = append(keys, grantLock(r.UseGrant.ID))
	}
	if r.Idempotency != nil {
		keys = append(keys, idempotencyKey(r.Idempotency.ScopeDigest))
	}
	return keys
}

// decisionFacts are what the views show of a decision's aggregates.
type decisionFacts struct {
	engine   uint64
	approval *approvalState // nil = nobody knows it
	key      *keyState      // nil = free
	grantUse int            // the how many-eth use of the grant this is
	extra    []event.Draft
}

func (c *Commands) decisionFacts(ctx context.Context, r *RecordDecision, now time.Time) (decisionFacts, error) {
	facts := decisionFacts{engine: c.engine.Load()}
	bound := r.stateful()
	if !bound && r.Extra == nil {
		return facts, nil
	}
	lost := false
	err := c.look(ctx, func(view *projections.View) (err error) {
		if bound && r.UseApproval != "" {
			var a projections.Approval
			a, facts.approval, err = findApproval(view, r.UseApproval)
			if s := facts.approval; err == nil && s != nil && s.resolution == event.ResolutionApprove && s.use == unused {
				err = c.proven(ctx, view, &a)
			}
		}
		if bound && r.Idempotency != nil && err == nil {
			_, facts.key, err = findKey(view, r.Idempotency.ScopeDigest, now)
		}
		if bound && r.UseGrant != nil && err == nil {
			if facts.grantUse, err = c.useGrant(ctx, view, r.UseGrant, r.Request.AgentID, now); errors.Is(err, ErrGrantLost) {
				lost = true
				return nil
			}
		}
		if r.Extra != nil && err == nil {
			facts.extra, err = r.Extra(view, now)
		}
		return err
	})
	if lost {
		return facts, ErrGrantLost
	}
	return facts, err
}

// decideRecord is the pure heart of RecordDecision. The order of the drafts is
// the order in which the facts came about.
func decideRecord(r *RecordDecision, facts decisionFacts, defaultTTL time.Duration, now time.Time) ([]event.Draft, Recorded, error) {
	if err := r.check(); err != nil {
		return nil, Recorded{}, err
	}
	if err := facts.allow(r, now); err != nil {
		return nil, Recorded{}, err
	}
	var recorded Recorded
	shared := r.Request.context(&r.Decision)
	if r.Dispatch != nil || r.NotDispatched != nil {
		recorded.ExecutionID = r.ExecutionID
		if recorded.ExecutionID == "" {
			recorded.ExecutionID = event.NewExecutionID(now)
		}
	}
	if r.UseApproval != "" {
		shared.ApprovalID = r.UseApproval
	}
	if r.NewApproval != nil {
		shared.ApprovalID = event.NewApprovalID(now)
		recorded.ApprovalID = shared.ApprovalID
	}
	shared.ExecutionID = recorded.ExecutionID

	drafts := make([]event.Draft, 0, r.events()+len(facts.extra))
	for i := range r.Ahead {
		drafts = append(drafts, r.Ahead[i].drafts(now, facts.engine)...)
	}
	drafts = append(drafts, r.Request.received(now, &r.Decision), r.decided(now, shared, facts.engine))
	if r.Emergency != nil {
		drafts = append(drafts, event.New(now, shared, r.Emergency))
	}
	if r.OpenSession != nil {
		drafts = append(drafts, event.New(now, shared, r.OpenSession))
	}
	switch {
	case r.NewApproval != nil:
		var draft event.Draft
		draft, recorded.ExpiresAt = r.approval(now, shared, defaultTTL)
		drafts = append(drafts, draft)
	case r.Dispatch != nil:
		if r.UseApproval != "" {
			drafts = append(drafts, event.New(now, shared, &event.ApprovalUsed{}))
		}
		if r.UseGrant != nil {
			ctx := shared // of the first event of its execution
			ctx.PolicyVersion = r.Decision.PolicyVersion
			drafts = append(drafts, event.New(now, ctx, &event.GrantUsed{GrantID: r.UseGrant.ID, Use: facts.grantUse, Rows: r.UseGrant.Rows}))
		}
		drafts = append(drafts, r.dispatched(now, shared))
	case r.NotDispatched != nil:
		drafts = append(drafts, failed(now, shared, r.NotDispatched))
	case r.Answered && r.UseApproval != "":
		drafts = append(drafts, event.New(now, shared, &event.ApprovalUsed{}))
	}
	return append(drafts, facts.extra...), recorded, nil
}

// events is how many there will be at most.
func (r *RecordDecision) events() int {
	n := 2 + 2*len(r.Ahead)
	if r.Emergency != nil {
		n++
	}
	if r.OpenSession != nil {
		n++
	}
	if r.UseGrant != nil {
		n++
	}
	if r.NewApproval != nil || r.Dispatch != nil || r.NotDispatched != nil || r.Answered {
		n += 2
	}
	return n
}

// check refuses what only a faulty caller can ask for.
func (r *RecordDecision) check() error {
	ways := 0
	for _, set := range []bool{r.NewApproval != nil, r.Dispatch != nil, r.NotDispatched != nil, r.Answered} {
		if set {
			ways++
		}
	}
	switch {
	case ways > 1:
		return misuse("a decision is followed by more than one thing")
	case ways > 0 && r.Decision.Run == event.RunDescribe:
		return misuse("something follows the decision that a statement may be described")
	case r.Dispatch != nil && (r.Dispatch.Path == event.PathDryRun) != (r.Decision.Run == event.RunDryRun),
		r.Decision.Run == event.RunDryRun && (r.NewApproval != nil || r.Answered):
		return misuse("a dry run is followed by what is none")
	case r.Dispatch != nil && r.Decision.Run == event.RunDryRun && (r.Decision.DryRun == nil || r.Decision.Decision == decisionBlock || r.UseApproval != "" || r.UseGrant != nil || r.Idempotency != nil):
		return misuse("a dry run that no rule takes, or that uses something up")
	case r.UseApproval != "" && r.Dispatch == nil && r.NotDispatched == nil && !r.Answered:
		return misuse("an approval is used without a dispatch")
	case r.UseGrant != nil && (r.Dispatch == nil || r.UseApproval != "" || r.Decision.GrantID != r.UseGrant.ID || r.UseGrant.Rows < 0):
		return misuse("a grant is used without a dispatch that was decided under it")
	case r.Dispatch != nil && (r.Decision.GrantID != "") != (r.UseGrant != nil):
		return misuse("what was decided under a grant is dispatched without it")
	case r.OpenSession != nil && (!r.Answered || r.Request.SessionID == ""):
		return misuse("a session is opened by something else than session control")
	case r.Idempotency != nil && r.Dispatch == nil:
		return misuse("an idempotency key is bound without a dispatch")
	case r.NotDispatched != nil && r.NotDispatched.Outcome != event.OutcomeNotExecuted:
		return misuse("what was never dispatched has another outcome than not_executed")
	}
	return nil
}

// misuse is a fault of our own: its text is for the operational log.
func misuse(what string) error { return fault.Of(misuseError(what)) }

type misuseError string

func (e misuseError) Error() string { return "commands: " + string(e) }

// allow checks the approval and the key as they stand under their locks.
func (f *decisionFacts) allow(r *RecordDecision, now time.Time) error {
	if !r.stateful() {
		return nil
	}
	if r.Idempotency != nil && f.key != nil {
		return decideKey(f.key, r.Idempotency.RequestDigest)
	}
	if r.UseApproval == "" {
		return nil
	}
	pending, err := decideUse(r.UseApproval, f.approval, r.Request.RequestDigest, r.Request.Profile, now)
	if err == nil && pending {
		return misuse("a pending approval is used") // an approval never goes back to pending: the caller did not look
	}
	return err
}

func (r *RecordDecision) decided(now time.Time, shared event.Context, engine uint64) event.Draft {
	d := &r.Decision
	shared.Decision, shared.PolicyVersion, shared.ReasonCode, shared.Mode = d.Decision, d.PolicyVersion, d.ReasonCode, d.Mode
	shared.FallbackReason = d.fallback()
	return event.New(now, shared, d.payload(engine))
}

// approval asks for an operator's answer. Its time runs from now.
func (r *RecordDecision) approval(now time.Time, shared event.Context, defaultTTL time.Duration) (event.Draft, time.Time) {
	d, n := &r.Decision, r.NewApproval
	shared.Decision, shared.PolicyVersion, shared.ReasonCode = d.Decision, d.PolicyVersion, d.ReasonCode
	ttl, maxRows := defaultTTL, (*int64)(nil)
	if d.Terms != nil {
		maxRows = d.Terms.MaxRows
		if d.Terms.TTLSeconds > 0 {
			ttl = time.Duration(d.Terms.TTLSeconds) * time.Second
		}
	}
	expires := now.Add(ttl)
	return event.New(now, shared, &event.ApprovalCreated{SQL: n.SQL, PreparedSQL: n.PreparedSQL, Impact: n.Impact, Parameters: n.Parameters, SQLDigest: r.Request.SQLDigest, RequestDigest: r.Request.RequestDigest,
		Role: r.Request.Role, Host: r.Request.Host, Classification: n.Classification, ExpiresAt: expires.UnixNano(),
		TTLSeconds: int(ttl / time.Second), RuleID: d.RuleID, MaxRows: maxRows, Message: n.Message, Remedy: n.Remedy,
		Principal: r.Request.Principal, AgentPolicyID: n.AgentPolicyID, Profile: r.Request.profile()}), expires
}

func (r *RecordDecision) dispatched(now time.Time, shared event.Context) event.Draft {
	shared.PolicyVersion = r.Decision.PolicyVersion
	p := *r.Dispatch
	if r.Idempotency != nil {
		key := *r.Idempotency
		if key.ExpiresAt == 0 {
			key.ExpiresAt = now.Add(KeyLifetime).UnixNano()
		}
		p.Idempotency = &key
	}
	return event.New(now, shared, &p)
}

func failed(now time.Time, shared event.Context, f *Failure) event.Draft {
	shared.ReasonCode, shared.ErrorCode = f.ReasonCode, f.ErrorCode
	return event.New(now, shared, &f.ExecutionFailure)
}

// A Rejection is a request that was refused before it reached a decision.
type Rejection struct {
	Request    Request
	ErrorCode  fault.Code
	ReasonCode string
	Limit      string // name of the limit that was hit; "" = none
	Position   int    // in characters of the text, from 1; 0 = none
	Operation  string // query type where the text was parsed; "" = none
}

// RecordRejection leaves evidence of a refused request.
func (c *Commands) RecordRejection(ctx context.Context, r *Rejection) error {
	shared := r.Request.context(nil)
	shared.Role, shared.Host = r.Request.Role, r.Request.Host
	shared.ErrorCode, shared.ReasonCode, shared.Operation = string(r.ErrorCode), r.ReasonCode, r.Operation
	draft := event.New(c.now(), shared, &event.QueryRejected{SQLDigest: r.Request.SQLDigest, SQLBytes: r.Request.SQLBytes,
		Limit: r.Limit, Position: r.Position, Principal: r.Request.Principal, ExecutionProfile: r.Request.Profile,
		CredentialIDs: r.Request.CredentialIDs, WireSession: r.Request.WireSession, Channel: r.Request.Channel, Client: r.Request.Client})
	_, err := c.commit(ctx, eventlog.Group{Drafts: []event.Draft{draft}})
	return err
}
