package sqlgate

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"writegate/commands"
	"writegate/commands/fault"
	"writegate/eventlog/event"
	"writegate/projections"
	"writegate/sqlgate/classify"
	"writegate/sqlgate/pgexec"
	"writegate/sqlgate/policy"
	"writegate/sqlgate/replay"
)

// Operating modes (spec/decisions.md part 2).
const (
	ModeShadow          = "shadow"
	ModeApprovalFirst   = "approval_first"
	ModeEnforce         = "enforce"
	ModeEmergencyBypass = "emergency_bypass"
)

// What of a statement's text the log keeps (GATE_AUDIT_SQL_TEXT).
const (
	SQLTextNormalized = "normalized"
	SQLTextFull       = "full"
	SQLTextNone       = "none"
)

// Options are what a Gate stands on. All but Now, Step and Logger are required.
type Options struct {
	Classifier *classify.Classifier
	Database   *pgexec.DB
	Commands   *commands.Commands
	Store      *projections.Store

	Mode         string
	BypassReason string    // mode emergency_bypass
	BypassUntil  time.Time // after it the gate enforces again
	SQLText      string    // SQLTextNormalized, SQLTextFull or SQLTextNone
	MaxSQLBytes  int
	QueryTimeout time.Duration
	BulkTimeout  time.Duration
	ResultRows   int
	ResultBytes  int64
	MarkerTable  string // of execution markers, schema.table; no statement may name it; "" is none

	// Overlay are the rules of agents; nil: no agent's token is taken.
	Overlay Overlay

	Policies PolicySource // where policy versions lie
	// Events reads the event log from a sequence number on, up to its head.
	Events        func(ctx context.Context, from uint64) iter.Seq2[event.Envelope, error]
	ReplayTimeout time.Duration
	RequireImpact bool // an activation must name the impact that was looked at

	Wire WireOptions // of the wire listener

	// CatalogRefresh is how old what is known of the database's catalogue may be before it is
	// read again; 0: it is not read, and a statement is what its text says.
	CatalogRefresh time.Duration

	// DryRunTimeout and DryRunLockTimeout bound a dry run: each answer of the database, and the
	// wait for a lock.
	DryRunTimeout, DryRunLockTimeout time.Duration

	PlanEstimates bool // ask the database for plans in previews and for approvals, where that is provably harmless

	MaxSessions  int              // prepared-statement sessions at most
	SessionClock func() time.Time // by which they idle; nil is Now

	// StatusOf gives the HTTP status of a code, for the answers that an
	// idempotency key keeps.
	StatusOf func(fault.Code) int
	Now      func() time.Time
	Logger   *slog.Logger
	// Step is called at each named step of Submit, so that a test can end the
	// process there.
	Step func(name string)
}

// A Gate decides about statements and carries out what it decided. All methods
// may be called from any goroutine.
type Gate struct {
	Options
	running         atomic.Pointer[runningPolicy] // nil while no policy is loaded
	inForce         sync.RWMutex                  // held shared around the append of a dispatch, from the look at policy and mode on, and by an activation around its own; nobody waits for anything else under it
	chain           *Chain
	policyWork      turns         // one change of the policy, or walk of the chain, at a time
	replays         chan struct{} // a token for each replay that runs
	meters          *meters
	sessions        *sessions
	wireShares      *wireShares
	blocks          *blockCount // transactions of several statements, of all wire connections
	catalogue       catalogue
	overBudget      overBudgets
	grantConditions grantConditions
	dryRuns         dryRuns
	bypassed        atomic.Bool // a bypass ended: a clock that is set back begins none
}

// New makes a gate without a policy: it refuses every statement until
// LoadPolicy has passed the startup chain.
func New(o Options) (*Gate, error) {
	if o.Classifier == nil || o.Database == nil || o.Commands == nil || o.Store == nil || o.StatusOf == nil {
		return nil, errors.New("sqlgate: classifier, database, commands, store and the table of statuses are required")
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Step == nil {
		o.Step = func(string) {}
	}
	if o.SessionClock == nil {
		o.SessionClock = o.Now
	}
	return &Gate{Options: o, chain: newChain(), policyWork: newTurns(), replays: make(chan struct{}, maxReplays), meters: newMeters(),
		sessions: newSessions(o.MaxSessions, o.SessionClock), wireShares: newWireShares(o.ResultBytes), blocks: newBlockCount(o.Wire.MaxBlocks, o.Wire.BlocksReserved)}, nil
}

// Stats are the counters since the start.
func (g *Gate) Stats() Stats { return g.meters.snapshot() }

// Chain is the state of the startup chain.
func (g *Gate) Chain() *Chain { return g.chain }

// ModeNow is the mode in force: an emergency bypass that ended is enforce.
func (g *Gate) ModeNow() string {
	if g.Mode != ModeEmergencyBypass {
		return g.Mode
	}
	if g.bypassed.Load() || !g.Now().Before(g.BypassUntil) {
		g.bypassed.Store(true)
		return ModeEnforce
	}
	return g.Mode
}

// FactMode is the mode as a policy sees it: shadow and bypass decide as enforce
// does, so a rule cannot see them (design/policy.md part 3).
func (g *Gate) FactMode() string { return factMode(g.ModeNow()) }

func factMode(mode string) string {
	if mode == ModeApprovalFirst {
		return policy.ModeApprovalFirst
	}
	return policy.ModeEnforce
}

// submission is one statement on its way through Submit.
type submission struct {
	*Request
	classification classify.Classification
	policy         *runningPolicy
	mode           string
	markerTable    string
	result         policy.Result
	enforced       bool
	bypass         bool
	approved       bool          // the request carries a valid approval
	approvalRows   *int64        // the limit of the approval that was given
	grant          *grantUse     // that stands for the approval; nil: none
	describes      bool          // the server is only to describe it
	executionID    string        // set when the statement is about to run
	layer          LayerDecision // what the agent's rules say, where an agent asks
	record         commands.Request
	decision       commands.Decision
	watch          stopwatch
	unrecorded     bool  // what became of it could not be written
	unknown        error // why it is not known what the database tells of it
	calls          map[string]pgexec.ColumnCall
	judged         *replay.Judged       // by which snapshot of the catalogues, and what it was found to add; nil: by its text alone
	catalogue      pgexec.CatalogueRead // that snapshot's
	definitions    *pgexec.Definitions  // by which that was found; nil: none

	session     *session       // the one that the request names, where it exists
	tried       *DryRunOutcome // of a dry run that ran
	shown       int            // rows of it that are kept
	shownDigest [32]byte       // of these

	prepare *prepared // of a PREPARE
	execute *bound    // of an EXECUTE, whose inner statement is classified in its place

	wire *wireCall // of the wire listener; nil for POST /query
}

// Submit takes one statement through the four steps of the contract (spec/gate.md
// part 1.1). The order of the checks is that of spec/decisions.md part 3, from
// the startup chain on; Validate and the rate limit come before.
//
// The answer is a decision, executed or not. The error is a *fault.Fault.
func (g *Gate) Submit(ctx context.Context, r *Request) (*Answer, error) {
	g.meters.requests.Add(1)
	s := &submission{Request: r, mode: g.ModeNow(), markerTable: g.MarkerTable, watch: stopwatch{begin: g.Now()}}
	defer s.counted(time.Time{}) // unless a decision was recorded
	if s.policy = g.running.Load(); s.policy == nil || g.chain.Failed() {
		return nil, g.chain.fault()
	}
	err := g.findAgent(ctx, s)
	if r.Preview && err == nil {
		return g.preview(ctx, s)
	}
	s.record = g.recordOf(r)
	switch {
	case err != nil && r.Preview:
		return nil, err
	case err != nil:
		return nil, g.refuse(ctx, s, err)
	}
	lease, kept, err := g.beginKey(ctx, s)
	if err != nil || kept != nil {
		return kept, err
	}
	if lease != nil {
		defer lease.Release()
	}
	answer, err := g.decideAndRun(ctx, s)
	if err != nil {
		g.Logger.Debug("a statement was refused or failed", "source", "gate", "request_id", r.RequestID, "cause", err.Error())
	}
	return answer, err
}

// decideAndRun is the journey itself: classify, look up the approval, decide,
// then record and run.
func (g *Gate) decideAndRun(ctx context.Context, s *submission) (*Answer, error) {
	begin := time.Now()
	classification, err := g.Classifier.Classify(ctx, s.SQL)
	s.watch.time(phaseClassify, begin)
	if err != nil {
		return nil, g.refuse(ctx, s, err)
	}
	s.classification = g.withDatabase(ctx, s, classification.WithTypes(nil, nil), s.SQL)
	s.record.SQLText = g.sqlText(s)
	if s.DryRun && policy.SessionControl(s.classification.QueryType) {
		return nil, g.refuse(ctx, s, pgexec.NotPlain("%s is no write", s.classification.QueryType))
	}
	leave, err := g.joinSession(ctx, s)
	defer leave()
	if err != nil {
		return nil, g.refuse(ctx, s, err)
	}
	if s.ApprovalID != "" {
		answer, err := g.lookUpApproval(ctx, s)
		if err != nil || answer != nil {
			return answer, err
		}
	}
	answer, err := g.whileInForce(ctx, s, func() (*Answer, error) {
		begin := time.Now()
		err := g.decide(ctx, s)
		s.watch.time(phaseDecide, begin)
		if err != nil {
			return nil, g.refuse(ctx, s, err)
		}
		if s.DryRun {
			return g.dryRun(ctx, s)
		}
		if err := s.shapeFault(); err != nil {
			return nil, g.refuse(ctx, s, err)
		}
		return g.carryOut(ctx, s)
	})
	g.meters.decided(s)
	return answer, err
}

// withDatabase adds what the database tells of a statement besides its text. Where it does
// not tell, nothing but BLOCK may come of the statement: decide sees to that.
func (g *Gate) withDatabase(ctx context.Context, s *submission, c classify.Classification, text string) classify.Classification {
	return g.withCatalogue(ctx, s, g.withCalls(ctx, s, c), text)
}

// withCalls adds what a text calls like a column (t.f for f(t)), which nothing in it
// tells: functions and types that the database has, where a word behind a dot is one's
// name.
func (g *Gate) withCalls(ctx context.Context, s *submission, c classify.Classification) classify.Classification {
	s.unknown, s.calls = nil, nil
	if len(c.Attributes) == 0 {
		return c
	}
	calls, err := g.Database.ColumnCalls(ctx)
	if err != nil {
		s.unknown = err
		return c
	}
	s.calls = calls
	var called []string
	for _, word := range c.Attributes {
		if call, found := calls[word]; found && (c.Derived || !call.Hidden) && (call.Rows || slices.Contains(c.Fields, word)) {
			called = append(called, call.Name)
		}
	}
	return c.WithCalls(called)
}

// ErrPolicyChanged says that another policy was activated, a bypass ended, or the
// policies of the agent or what they read of it changed, while a decided statement
// waited for its connection. Nothing of it was sent or recorded.
var ErrPolicyChanged = errors.New("the decision is not of the policy in force")

// whileInForce decides a statement and carries it out, and does so again where the
// policy that decided is not in force any more when the statement could run.
func (g *Gate) whileInForce(ctx context.Context, s *submission, journey func() (*Answer, error)) (*Answer, error) {
	for {
		answer, err := journey()
		if !errors.Is(err, ErrPolicyChanged) {
			return answer, err
		}
		if err := g.findAgent(ctx, s); err != nil {
			return nil, g.refuse(ctx, s, err)
		}
		switch {
		case s.cancelled(context.Canceled):
			return nil, g.refuse(ctx, s, context.Canceled)
		case ctx.Err() != nil:
			return nil, fault.New(fault.PolicyNotLoaded, "The policy changed while the statement waited for the database, and the request ended. Nothing was executed or recorded; send it again.").Because(err)
		}
	}
}

// decide evaluates the policy and what the mode makes of it (spec/decisions.md
// part 2): the decision is the same in shadow and enforce. The rules of the
// request's agent may tighten it.
//
// Policy and mode are those of now: the statement may have waited, for the parser or
// for its turn in a session, while another policy was activated. A decision before this
// one was not recorded.
func (g *Gate) decide(ctx context.Context, s *submission) error {
	s.counted(time.Time{})
	if s.policy = g.running.Load(); s.policy == nil || g.chain.Failed() {
		return g.chain.fault()
	}
	s.mode = g.ModeNow()
	s.enforced, s.bypass = s.mode != ModeShadow, false
	switch {
	case s.DryRun: // in every mode: it is to tell what enforcing comes to
		s.enforced = true
	case s.mode == ModeEmergencyBypass && s.Operator != "":
		s.enforced, s.bypass = false, true
	}
	s.grant = nil
	f := s.facts()
	if s.isControl() {
		s.result = s.policy.policy.DecideSessionControl(&f)
	} else {
		s.result = s.policy.policy.Decide(&f)
	}
	without, err := s.result, error(nil)
	if s.result, err = g.underGrant(ctx, s, &f, without); err != nil {
		return err
	}
	if err := g.askAgent(ctx, s, &f); err != nil {
		return err
	}
	s.withoutGrant(&f, without)
	if s.unknown != nil && (s.result.Decision != policy.Block || !s.enforced) {
		return s.unknown
	}
	s.decision = s.decisionRecord(&f)
	if s.judged == nil || s.Preview {
		return nil
	}
	s.decision.Catalog = s.judged.Use(&f)
	return g.keepCatalogue(ctx, s.judged.Snapshot) // before the decision that names it
}

// runs reports whether the statement is sent to the database.
func (s *submission) runs() bool { return s.result.Decision == policy.Allow || !s.enforced }

// shapeFault refuses what POST /query cannot carry, where it would run or be
// approved (design/classification.md part 2, run none).
func (s *submission) shapeFault() error {
	if s.result.Decision == policy.Block && s.enforced || s.isControl() {
		return nil
	}
	if executesPrepared(&s.classification) {
		return fault.New(fault.UnsupportedSQLShape, "An EXECUTE inside of another statement cannot be run: what was prepared is known to the gate and not to the database. Write the prepared statement itself in its place.")
	}
	if s.classification.Run != classify.RunNone && s.classification.QueryType != classify.TypeLock { // a lock would be let go before the answer
		return nil
	}
	return fault.New(fault.UnsupportedSQLShape, "A %s cannot be carried by POST /query: each request runs one statement in its own transaction. Send the statements that matter, without it.", s.classification.QueryType).
		With("query_type", s.classification.QueryType)
}

// refuse leaves evidence of a request that is refused before its decision, and
// gives the reason back. Where the evidence cannot be written that is the
// reason.
func (g *Gate) refuse(ctx context.Context, s *submission, reason error) error {
	f, code := fault.Of(reason), ""
	if s.cancelled(reason) {
		f, code = errCancelled(), pgexec.ReasonCancelled
	}
	limit, _ := f.Details["limit"].(string)
	position, _ := f.Details["position"].(int)
	err := g.Commands.RecordRejection(context.WithoutCancel(ctx), &commands.Rejection{
		Request: s.record, ErrorCode: f.Code, ReasonCode: code, Limit: limit, Position: max(position, 0), Operation: s.classification.QueryType,
	})
	if err != nil {
		return err
	}
	return f
}

// recordOf is the request as evidence names it.
func (g *Gate) recordOf(r *Request) commands.Request {
	return commands.Request{
		RequestID: r.RequestID, Actor: r.Actor, App: r.App, Tenant: r.Tenant, Role: r.Role, Host: r.Host, Env: r.Env,
		SessionID: r.SessionID, ApprovalID: r.ApprovalID, SQLDigest: r.sqlDigest(), RequestDigest: g.approvalDigest(r),
		SQLBytes: len(r.SQL), Profile: r.ExecutionProfile, IdempotencyKey: r.IdempotencyKey, Principal: principal(r.TLSSubject, r.WireUser), At: r.ReceivedAt,
		AgentID: r.Agent.ID, Project: r.Agent.Project, CredentialIDs: r.Agent.credentials(), WireSession: r.WireSession,
		Channel: r.channel(), Client: r.Client, Reason: r.Reason,
	}
}

func (a *Agent) credentials() []string {
	if a.CredentialID == "" {
		return nil
	}
	return []string{a.CredentialID}
}

// sqlText is what the log keeps of the text (spec/decisions.md part 7).
func (g *Gate) sqlText(s *submission) string {
	switch g.SQLText {
	case SQLTextFull:
		return s.SQL
	case SQLTextNone:
		return ""
	}
	return s.classification.NormalizedSQL
}

// facts are what the policy sees (design/policy.md part 3).
func (s *submission) facts() policy.Facts {
	c := &s.classification
	f := policy.Facts{
		QueryType: c.QueryType, QueryTypes: c.QueryTypes, Class: c.Class, SafeRead: c.SafeRead,
		TablesRead: c.TablesRead, TablesWritten: c.TablesWritten, ColumnsWritten: c.ColumnsWritten,
		Functions: c.Functions, RiskSignals: c.RiskSignals, Flags: c.Flags, Where: c.Where, Fingerprint: c.Fingerprint,
		Actor: s.Actor, App: s.App, Tenant: s.Tenant, Role: s.Role, Host: s.Host, Env: s.Env,
		TLSSubject: s.TLSSubject, AgentID: s.Agent.ID, AgentToolsVerified: s.Agent.ToolsVerified, Mode: factMode(s.mode), Approved: s.approved, SessionID: s.SessionID, Channel: s.channel(), ReasonGiven: s.Reason != "",
		MarkerTable: s.markerTable,
	}
	if s.grant != nil {
		f.GrantSeconds = s.grant.seconds
	}
	return f
}

// decisionRecord is the decision as evidence keeps it (design/policy.md part 9).
func (s *submission) decisionRecord(f *policy.Facts) commands.Decision {
	r := &s.result
	d := commands.Decision{
		Decision: string(r.Decision), ReasonCode: r.ReasonCode, RuleID: r.RuleID, Layer: r.Layer, Mode: s.mode,
		PolicyVersion: s.policy.version, Operation: f.QueryType, Fingerprint: f.Fingerprint, Run: s.run(),
		PolicyHash: s.policy.hash, Enforced: s.enforced, Bypass: s.bypass,
		Matched: r.Matched, Observed: r.Observed, Errors: r.Errors, Floor: r.Floor, Lifted: r.Lifted, AgentLayer: s.layer.Layer, GrantID: s.grantID(),
		Facts: event.DecisionFacts{
			QueryTypes: f.QueryTypes, Class: f.Class, SafeRead: f.SafeRead, TablesRead: f.TablesRead, TablesWritten: f.TablesWritten,
			ColumnsWritten: f.ColumnsWritten, Functions: f.Functions, RiskSignals: f.RiskSignals, Flags: f.Flags, Where: f.Where,
			TLSSubject: f.TLSSubject, AgentID: f.AgentID, AgentToolsVerified: f.AgentToolsVerified, Approved: f.Approved, Channel: f.Channel, GrantSeconds: f.GrantSeconds,
		},
	}
	if r.Decision == policy.RequireApproval && r.Approval != nil {
		d.Terms = &event.ApprovalTerms{TTLSeconds: r.Approval.TTLSeconds, MaxRows: r.Approval.MaxRows}
	}
	if s.DryRun {
		d.DryRun = (*event.DryRunTerms)(r.DryRun)
	}
	return d
}

// run is how the statement runs, as evidence names it.
func (s *submission) run() string {
	switch {
	case s.isControl():
		return event.RunSession
	case s.DryRun:
		return event.RunDryRun
	}
	return s.classification.Run
}

// answer begins the answer of a decided statement.
func (s *submission) answer() *Answer {
	a := &Answer{
		Result: s.result, Classification: &s.classification, Mode: s.mode, Enforced: s.enforced, Bypass: s.bypass,
		PolicyVersion: s.policy.version, RequestID: s.RequestID, GrantID: s.grantID(),
	}
	if s.result.Layer == policy.LayerAgent {
		a.AgentPolicyID, a.RetryAfterSeconds = s.layer.Layer.PolicyID, s.layer.RetryAfterSeconds
	}
	return a
}

// preview classifies and decides alone: nothing is written, nothing executes.
// What needs a session is refused before its decision, as on the journey.
func (g *Gate) preview(ctx context.Context, s *submission) (*Answer, error) {
	classification, err := g.Classifier.Classify(ctx, s.SQL)
	if err != nil {
		return nil, err
	}
	s.classification = g.withDatabase(ctx, s, classification.WithTypes(nil, nil), s.SQL)
	if _, err := g.joinSession(ctx, s); err != nil {
		return nil, err
	}
	if err := g.decide(ctx, s); err != nil {
		return nil, err
	}
	a := s.answer()
	f := s.facts()
	a.Preview, a.Trace = true, append(s.policy.policy.Trace(&f), s.layerTrace()...)
	a.Behind = s.behind()
	a.Plan, a.PlanOmitted, err = g.estimate(ctx, s)
	return a, err
}
