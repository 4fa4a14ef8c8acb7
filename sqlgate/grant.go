package sqlgate

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"writegate/commands"
	"writegate/commands/fault"
	"writegate/eventlog/event"
	"writegate/projections"
	"writegate/sqlgate/agentrules"
	"writegate/sqlgate/classify"
	"writegate/sqlgate/pgexec"
	"writegate/sqlgate/policy"
	"writegate/sqlgate/replay"
)

// grantWait is how long a statement waits for rows of a grant that are kept for others that
// run under it; then it needs an approval of its own.
const grantWait = 5 * time.Second

// A grantUse is the grant that stands for the approval of a statement.
type grantUse struct {
	id      string
	seconds int   // how long it is for
	rows    int64 // that are left of its budget
}

// grantID is the grant that the statement was decided under; "" = none.
func (s *submission) grantID() string {
	if s.grant == nil {
		return ""
	}
	return s.grant.id
}

// underGrant decides once more where a person would be asked and the agent has a grant that
// covers the statement. A grant is of the policy's layer: what it makes of the statement has
// to be an ALLOW there, and what the agent's own rules say is theirs.
//
// What is not enforced needs no grant, and uses none. Nothing but an execution does: what is
// only described, and what the gate answers itself, is decided without.
func (g *Gate) underGrant(ctx context.Context, s *submission, f *policy.Facts, without policy.Result) (policy.Result, error) {
	if s.Agent.ID == "" || !s.enforced || s.approved || s.describes || s.DryRun || s.isControl() || without.Decision != policy.RequireApproval || s.policy.policy.TakesGrants() == 0 ||
		!g.grantable(s) {
		return without, nil
	}
	if s.wire != nil {
		ctx = s.waits(ctx)
	}
	wait, cancel := context.WithTimeout(ctx, grantWait)
	defer cancel()
	for {
		use, result, seq, err := g.findGrant(ctx, s, f)
		if use != nil {
			f.GrantSeconds, s.grant = use.seconds, use
			return result, err
		}
		if err != nil || seq == 0 || s.Preview || s.wire != nil && s.wire.wire.unit.block != nil {
			return without, err // its own transaction may be what keeps the rows
		}
		if err := g.Store.WaitApplied(wait, seq+1); err != nil {
			if ctx.Err() != nil {
				return without, fault.New(fault.PolicyNotLoaded, "The request ended while its statement waited for rows of a grant. Nothing was executed or recorded; send it again.").Because(err)
			}
			return without, nil
		}
	}
}

// grantable reports whether any grant may cover the statement: the rows that it changes can be
// counted, and what decides on them stands in the database, or in the statement.
func (g *Gate) grantable(s *submission) bool {
	if s.wire != nil {
		if u := &s.wire.wire.unit; u.seeded || u.block != nil && u.block.HadTemporary() {
			return false
		}
	}
	c := &s.classification
	return c.Run != classify.RunNone && c.Run != classify.RunAlone && Uncounted(c, s.statement().SQL) == ""
}

// findGrant looks for a grant of the agent that covers the statement, the one that ends first.
// Where only rows are missing, which others that run may give back, seq is the last event that
// was looked at.
func (g *Gate) findGrant(ctx context.Context, s *submission, f *policy.Facts) (use *grantUse, result policy.Result, seq uint64, err error) {
	view := g.Store.ViewWithin(ctx)
	defer view.Close()
	list, err := view.GrantsOf(s.Agent.ID)
	if err != nil {
		return nil, result, 0, commands.ViewFault(err)
	}
	slices.SortStableFunc(list, func(a, b projections.Grant) int { return a.Until.Compare(b.Until) })
	now, changes := g.Now(), s.classification.Run != classify.RunReadFence
	for i := range list {
		grant := &list[i]
		if grant.StatusAt(now) != projections.GrantActive || changes && grant.Rows == 0 || g.overBudget.has(grant.ID, s.record.RequestDigest) {
			continue
		}
		under := *f
		under.GrantSeconds = grant.Seconds()
		if result = s.policy.policy.Decide(&under); result.Decision != policy.Allow {
			continue
		}
		condition, err := g.grantConditions.of(grant.Condition)
		if err != nil || !condition.Covers(f) {
			continue // one that this program does not take any more covers nothing
		}
		if rows := grant.RowsLeft(); rows > 0 || !changes {
			return &grantUse{id: grant.ID, seconds: under.GrantSeconds, rows: rows}, result, 0, nil
		}
		if grant.Running > 0 {
			seq = view.Applied().Seq
		}
	}
	return nil, result, seq, nil
}

// withoutGrant takes back what a grant made of a statement, where the agent's rules let it
// pass no more than before: then it is not used, and the evidence does not name it.
func (s *submission) withoutGrant(f *policy.Facts, without policy.Result) {
	if s.grant == nil || s.result.Decision == policy.Allow {
		return
	}
	s.grant, f.GrantSeconds = nil, 0
	s.result = agentrules.Tighten(without, s.layer.Layer)
}

// useOf is the use of the grant by an execution under limits: as many rows are kept for it as
// it may change.
func (s *submission) useOf(l pgexec.Limits) *commands.GrantUse {
	if s.grant == nil {
		return nil
	}
	use := &commands.GrantUse{ID: s.grant.id}
	if l.MaxRows != nil {
		use.Rows = *l.MaxRows
	}
	return use
}

// overGrant notes that a statement would have changed more rows than its grant had left, or
// that they could not be counted: sent again, it asks for an approval.
func (g *Gate) overGrant(s *submission, f *fault.Fault) *fault.Fault {
	if s.grant == nil || f.Code != fault.RowLimitExceeded {
		return f
	}
	g.overBudget.add(s.grant.id, s.record.RequestDigest)
	told := fault.New(fault.RowLimitExceeded, "The statement ran under a grant, within a limit of changed rows that it would have passed, or they could not be counted. Nothing was applied. Send it again to ask for an approval of its own.").
		With("grant_id", s.grant.id)
	for key, value := range f.Details {
		told = told.With(key, value)
	}
	return told
}

// overBudgets remembers statements that were too large for a grant. It is a memory of this
// run alone: without it such a statement is rolled back once more.
type overBudgets struct {
	mu   sync.Mutex
	seen *simplelru.LRU[overBudget, struct{}] // guarded by mu
}

type overBudget struct {
	grant   string
	request [32]byte
}

// maxOverBudget is how many are remembered.
const maxOverBudget = 10_000

func (o *overBudgets) add(grant string, request [32]byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.seen == nil {
		o.seen, _ = simplelru.NewLRU[overBudget, struct{}](maxOverBudget, nil) // the size is right
	}
	o.seen.Add(overBudget{grant, request}, struct{}{})
}

func (o *overBudgets) has(grant string, request [32]byte) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.seen != nil && o.seen.Contains(overBudget{grant, request})
}

// grantConditions are conditions of grants, compiled.
type grantConditions struct {
	mu   sync.Mutex
	kept *simplelru.LRU[string, *policy.GrantCondition] // by their text; nil: it does not compile; guarded by mu
}

// maxGrantConditions is how many are kept compiled.
const maxGrantConditions = 1000

var errGrantCondition = errors.New("sqlgate: the condition of a grant is not valid for this program")

func (c *grantConditions) of(text string) (*policy.GrantCondition, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kept == nil {
		c.kept, _ = simplelru.NewLRU[string, *policy.GrantCondition](maxGrantConditions, nil) // the size is right
	}
	condition, known := c.kept.Get(text)
	if !known {
		condition, _ = policy.CompileGrant(text)
		c.kept.Add(text, condition)
	}
	if condition == nil {
		return nil, errGrantCondition
	}
	return condition, nil
}

// TakesGrants is the longest time of a grant, in seconds, that a rule of the policy in force
// takes; 0 where none takes any.
func (g *Gate) TakesGrants() (int, error) {
	p := g.running.Load()
	if p == nil || g.chain.Failed() {
		return 0, g.chain.fault()
	}
	return p.policy.TakesGrants(), nil
}

// ReplayGrant holds recorded decisions of an agent against the condition of a grant before it
// is given, under the policy in force: which of them would have run under one for so many
// seconds.
//
// Errors: policy_not_loaded, and rate_limit_exceeded when as many replays as may run do.
func (g *Gate) ReplayGrant(ctx context.Context, agentID string, condition *policy.GrantCondition, seconds int, r ReplayRequest) (*replay.CoverageReport, error) {
	p := g.running.Load()
	if p == nil || g.chain.Failed() {
		return nil, g.chain.fault()
	}
	var coverage *replay.Coverage
	complete, err := g.replayOver(ctx, r, func(from, to uint64) replayed {
		coverage = replay.NewCoverage(p.policy, condition, agentID, seconds, from, to, func(d *replay.Decision) bool {
			c := classify.Classification{Run: d.Run, QueryType: d.Facts.QueryType, Class: d.Facts.Class, Functions: d.Facts.Functions}
			return d.Run != classify.RunNone && d.Run != classify.RunAlone && d.Run != event.RunDryRun && Uncounted(&c, "") == ""
		})
		return coverage
	})
	if err != nil {
		return nil, err
	}
	return coverage.Report(complete), nil
}
