package projections

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"writegate/eventlog/checkpoint"
	"writegate/eventlog/event"
)

// A View is one consistent look at all projections, as of Applied. It keeps
// old versions of records alive in the store, so it is closed soon.
type View struct {
	store    *Store
	ctx      context.Context // of the request that reads
	snap     *pebble.Snapshot
	space    byte
	applied  Applied
	counters Counters
	block    block
	tail     []checkpoint.Hash
	lineage  []Applied
	indexed  bool  // block and tail are complete up to applied
	err      error // why there is nothing to see
}

// ErrBehind is what a view gives whose request ended: before the projections had
// folded what it waits for, or while it read.
var ErrBehind = errors.New("the request ended before the projections were read")

// View is ViewWithin for who asks without a request.
func (s *Store) View() *View { return s.ViewWithin(context.Background()) }

// ViewWithin opens a look at everything that is durable in the log when it is called:
// it waits, from Connect to the end of Run, for what Run has not folded yet, so that whoever was answered finds
// what was answered. On a store that is closed or has failed, with ErrBehind where ctx ended
// first, and with ErrFull where its volume takes nothing more, every read of it gives an error.
func (s *Store) ViewWithin(ctx context.Context) *View {
	if f := s.follows.Load(); f != nil {
		if err := s.WaitFolded(ctx, f.log.Head().Seq); err != nil {
			return &View{err: err}
		}
	}
	if s.failed.Load() != nil {
		return &View{err: s.stopReason()}
	}
	v := s.present()
	v.ctx = ctx
	return v
}

// WaitFolded waits until the event seq is in every new view, or never will be
// because Run is over or the store has failed. Its error is ErrBehind where ctx ended
// first, or ErrFull.
func (s *Store) WaitFolded(ctx context.Context, seq uint64) error {
	f := s.follows.Load()
	if f == nil || s.seq.Load() >= seq {
		return nil
	}
	within, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(f.ctx, cancel)()
	switch err := s.WaitApplied(within, seq); {
	case errors.Is(err, ErrFull):
		return err
	case err != nil && f.ctx.Err() == nil && ctx.Err() != nil:
		return fmt.Errorf("%w: %w", ErrBehind, context.Cause(ctx))
	}
	return nil
}

// present opens a look at what is applied now. Close of the store waits for it.
func (s *Store) present() *View {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed != nil {
		return &View{err: s.closed}
	}
	s.views.Add(1)
	sp := s.space
	return &View{store: s, ctx: context.Background(), snap: s.db.NewSnapshot(), space: sp.id, applied: sp.applied, counters: sp.counters, block: sp.block, tail: sp.growth.tail, lineage: sp.lineage, indexed: s.connected}
}

// Close gives the look up. It is needed once; a second call does nothing.
func (v *View) Close() error {
	if v.snap == nil {
		return nil
	}
	snap := v.snap
	v.snap, v.err = nil, ErrClosed
	defer v.store.views.Done()
	return snap.Close()
}

// Applied is the event up to which the view has everything.
func (v *View) Applied() Applied { return v.applied }

// Counters are the numbers of records as of Applied. An approval whose time is
// over counts as pending until its event; see ApprovalsPending.
func (v *View) Counters() Counters { return v.counters }

// read finds a record; found is false when there is none.
func (v *View) read(key []byte, r record) (found bool, err error) {
	_, found, err = v.readSize(key, r)
	return found, err
}

// readSize is read, and says how many bytes the record has.
func (v *View) readSize(key []byte, r record) (size int, found bool, err error) {
	b, found, err := v.bytes(key)
	if err != nil || !found {
		return 0, false, err
	}
	if err := unmarshal(b, r); err != nil {
		return 0, false, v.store.damaged(fmt.Errorf("%q: %w", key, err))
	}
	return len(b), true, nil
}

// ended says why a view can't be read on: it was never open, its request ended, or
// the store is to be closed and waits for it.
func (v *View) ended() error {
	switch {
	case v.err != nil:
		return v.err
	case v.ctx.Err() != nil:
		return fmt.Errorf("%w: %w", ErrBehind, context.Cause(v.ctx))
	case v.store.closing.Load():
		return ErrClosed
	}
	return nil
}

// bytes copies the value of a key.
func (v *View) bytes(key []byte) (value []byte, found bool, err error) {
	if err := v.ended(); err != nil {
		return nil, false, err
	}
	b, closer, err := v.snap.Get(physical(v.space, key))
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, v.store.damaged(err)
	}
	value = append([]byte{}, b...)
	return value, true, closer.Close()
}

// iter walks the keys of [from, to).
func (v *View) iter(from, to []byte) (*pebble.Iterator, error) {
	if err := v.ended(); err != nil {
		return nil, err
	}
	return v.snap.NewIter(&pebble.IterOptions{LowerBound: physical(v.space, from), UpperBound: physical(v.space, to)})
}

// closeIter ends an iterator and keeps the first error.
func (v *View) closeIter(it *pebble.Iterator, err error) error {
	if e := errors.Join(it.Error(), it.Close()); e != nil && err == nil {
		return v.store.damaged(e)
	}
	return err
}

// Approval finds an approval; ok is false when there is none or it was purged.
func (v *View) Approval(id string) (a Approval, ok bool, err error) {
	if ok, err = v.read(approvalKey(id), &a); err == nil && ok {
		err = v.withdrawn(&a)
	}
	return a, ok, err
}

// withdrawn fills in Withdrawn.
func (v *View) withdrawn(a *Approval) error {
	if !v.Place(a.Seq).Own && a.Use == UseFree {
		a.Withdrawn = WithdrawnLoss
		return nil
	}
	if a.AgentID == "" {
		return nil
	}
	agent, _, err := v.Agent(a.Project, a.AgentID)
	if a.Seq < agent.DeactivatedSeq {
		a.Withdrawn = WithdrawnAgent
	}
	return err
}

// WithdrawnApprovals gives the ids of the first pending approvals that are withdrawn.
func (v *View) WithdrawnApprovals(limit int) (ids []string, err error) {
	var failed error
	_, err = each(v, listing{keyApprovalList, keyApproval, []string{ApprovalPending}, nil}, Page{Limit: limit}, func(a *Approval) bool {
		failed = cmp.Or(failed, v.withdrawn(a))
		return a.Withdrawn != ""
	}, func(a *Approval) (bool, error) {
		ids = append(ids, a.ID)
		return true, nil
	})
	return ids, cmp.Or(failed, err)
}

// Execution finds an execution.
func (v *View) Execution(id string) (x Execution, ok bool, err error) {
	ok, err = v.read(executionKey(id), &x)
	return x, ok, err
}

// Grant finds a grant.
func (v *View) Grant(id string) (g Grant, ok bool, err error) {
	if ok, err = v.read(grantKey(id), &g); err == nil && ok {
		err = v.withdrawnGrant(&g)
	}
	return g, ok, err
}

// withdrawnGrant fills in Withdrawn. A grant of a log before this one may have been revoked
// or used in what was lost.
func (v *View) withdrawnGrant(g *Grant) error {
	if !v.Place(g.Seq).Own {
		g.Withdrawn = WithdrawnLoss
		return nil
	}
	agent, _, err := v.Agent(g.Project, g.AgentID)
	if agent.Status != event.AgentActive || g.Seq < agent.DeactivatedSeq {
		g.Withdrawn = WithdrawnAgent
	}
	return err
}

// GrantsOf lists the grants of an agent that no event has ended, the oldest first.
func (v *View) GrantsOf(agentID string) (list []Grant, err error) {
	prefix := listPrefix(keyGrantOf, agentID)
	it, err := v.iter(prefix, after(prefix))
	if err != nil {
		return nil, err
	}
	for ok := it.First(); ok && err == nil; ok = it.Next() {
		var g Grant
		var found bool
		if g, found, err = v.Grant(string(it.Value())); found {
			list = append(list, g)
		}
	}
	return list, v.closeIter(it, err)
}

// DueGrants is DueApprovals of grants: those that no event has ended, whose time is over.
func (v *View) DueGrants(now time.Time, limit int) (due []string, next time.Time, err error) {
	return v.due(keyGrantDue, now, limit)
}

// WithdrawnGrants gives the ids of the first grants that are withdrawn and that no event has ended.
func (v *View) WithdrawnGrants(limit int) (ids []string, err error) {
	var failed error
	_, err = each(v, listing{keyGrantList, keyGrant, []string{GrantActive}, nil}, Page{Limit: limit}, func(g *Grant) bool {
		failed = cmp.Or(failed, v.withdrawnGrant(g))
		return g.Withdrawn != ""
	}, func(g *Grant) (bool, error) {
		ids = append(ids, g.ID)
		return true, nil
	})
	return ids, cmp.Or(failed, err)
}

// PolicyVersion finds a version by its name@version.
func (v *View) PolicyVersion(version string) (p PolicyVersion, ok bool, err error) {
	ok, err = v.read(policyKey(version), &p)
	return p, ok, err
}

// ActivePolicy finds the active version; ok is false when none was activated yet.
func (v *View) ActivePolicy() (p PolicyVersion, ok bool, err error) {
	if v.err != nil || v.counters.Active == "" {
		return p, false, v.err
	}
	return v.PolicyVersion(v.counters.Active)
}

// PolicyDocument gives the exact bytes of the document with the hash.
func (v *View) PolicyDocument(hash [32]byte) (document []byte, ok bool, err error) {
	return v.bytes(documentKey(hash))
}

// LastPolicySeq is the seq of the last event that added a version's bytes or
// changed a status, in the log at hand or in the last one before it that has
// such an event; 0 when there is none.
func (v *View) LastPolicySeq() uint64 { return v.counters.PolicySeq & seqMask }

// Idempotency finds what the key with the scope digest was answered with; ok
// is false when the key is free at now.
func (v *View) Idempotency(scope [32]byte, now time.Time) (r IdempotencyRecord, ok bool, err error) {
	ok, err = v.read(idempotencyKey(scope), &r)
	if err != nil || !ok || !now.Before(r.ExpiresAt) {
		return IdempotencyRecord{}, false, err
	}
	return r, true, nil
}

// UnknownCount is the number of executions whose outcome is not known.
func (v *View) UnknownCount() int { return v.counters.ExecutionsUnknown }

// OpenExecutions lists what was dispatched and has no result, oldest first.
func (v *View) OpenExecutions() ([]Execution, error) {
	var open []Execution
	err := v.all(Page{Asc: true, Limit: maxLimit}, func(page Page) (string, error) {
		list, next, err := v.Executions(ExecutionFilter{State: ExecutionDispatched}, page)
		open = append(open, list...)
		return next, err
	})
	return open, err
}

// all takes page after page.
func (v *View) all(page Page, take func(Page) (next string, err error)) error {
	for {
		next, err := take(page)
		if err != nil || next == "" {
			return err
		}
		page.Cursor = next
	}
}

// DueApprovals gives the ids of the first pending approvals whose time is over at now, the
// longest overdue first, and the moment at which the next one is due; zero when
// none is pending beyond the list.
func (v *View) DueApprovals(now time.Time, limit int) (due []string, next time.Time, err error) {
	return v.due(keyApprovalDue, now, limit)
}

// due lists the ids behind the first keys of an index by time.
func (v *View) due(prefix string, now time.Time, limit int) (due []string, next time.Time, err error) {
	it, err := v.iter([]byte(prefix), after([]byte(prefix)))
	if err != nil {
		return nil, next, err
	}
	for ok := it.First(); ok; ok = it.Next() {
		key := it.Key()[1:]
		at := dueTime(key, prefix)
		if at.After(now) || len(due) == limit {
			next = at
			break
		}
		due = append(due, string(key[len(prefix)+8:]))
	}
	return due, next, v.closeIter(it, nil)
}

// ApprovalsPending counts the approvals that are pending at now.
func (v *View) ApprovalsPending(now time.Time) (int, error) {
	elapsed := 0
	it, err := v.iter([]byte(keyApprovalDue), dueKey(keyApprovalDue, now.Add(1), ""))
	if err != nil {
		return 0, err
	}
	for ok := it.First(); ok; ok = it.Next() {
		elapsed++
	}
	return v.counters.ApprovalsPending - elapsed, v.closeIter(it, nil)
}

// approvalStates are the states that may have a status; nil is an unknown status.
func approvalStates(status string) []string {
	switch status {
	case "":
		return []string{ApprovalPending, ApprovalApproved, ApprovalRejected, ApprovalExpired}
	case StatusPending:
		return []string{ApprovalPending}
	case StatusExpired:
		return []string{ApprovalPending, ApprovalExpired}
	case StatusResolved:
		return []string{ApprovalApproved, ApprovalRejected}
	case ApprovalApproved, ApprovalRejected:
		return []string{status}
	}
	return nil
}

// An ApprovalFilter selects approvals; an empty field selects all.
type ApprovalFilter struct {
	Status          string    // pending, expired, resolved, approved, rejected
	Now             time.Time // the moment at which Status is meant
	Env, App, Actor string
}

// Approvals lists approvals by the time of their creation.
func (v *View) Approvals(f ApprovalFilter, page Page) ([]Approval, string, error) {
	return gather(func(take func(*Approval) (bool, error)) (string, error) { return v.EachApproval(f, page, take) })
}

// EachApproval is Approvals one by one: an approval holds the whole statement.
// The page ends before the first one that take has no room for.
func (v *View) EachApproval(f ApprovalFilter, page Page, take func(*Approval) (room bool, err error)) (next string, err error) {
	states := approvalStates(f.Status)
	if states == nil {
		return "", fmt.Errorf("%w: status %q", ErrFilter, f.Status)
	}
	var failed error
	next, err = each(v, listing{keyApprovalList, keyApproval, states, []string{f.Status, f.Env, f.App, f.Actor}}, page, func(a *Approval) bool {
		failed = cmp.Or(failed, v.withdrawn(a))
		return matches(f.Env, a.Env) && matches(f.App, a.App) && matches(f.Actor, a.Actor) &&
			(f.Status != StatusPending && f.Status != StatusExpired || a.StatusAt(f.Now) == f.Status)
	}, take)
	return next, cmp.Or(failed, err)
}

// A GrantFilter selects grants; an empty field selects all.
type GrantFilter struct {
	Status  string    // active, used_up, expired, revoked, at Now
	Now     time.Time // the moment at which Status is meant
	AgentID string
}

var grantStates = []string{GrantActive, GrantExpired, GrantRevoked}

// EachGrant lists grants by the time of their creation, one by one, as EachApproval.
func (v *View) EachGrant(f GrantFilter, page Page, take func(*Grant) (room bool, err error)) (next string, err error) {
	var failed error
	next, err = each(v, listing{keyGrantList, keyGrant, grantStates, []string{f.Status, f.AgentID}}, page, func(g *Grant) bool {
		failed = cmp.Or(failed, v.withdrawnGrant(g))
		return matches(f.AgentID, g.AgentID) && (f.Status == "" || g.StatusAt(f.Now) == f.Status)
	}, take)
	return next, cmp.Or(failed, err)
}

func matches(want, have string) bool { return want == "" || want == have }

// An ExecutionFilter selects executions; an empty field selects all.
type ExecutionFilter struct {
	State      string // ExecutionSuccess and so on
	Actor, App string
}

var executionStates = []string{ExecutionNotExecuted, ExecutionDispatched, ExecutionSuccess, ExecutionFailure, ExecutionUnknown}

// Executions lists executions by the time of their first event.
func (v *View) Executions(f ExecutionFilter, page Page) ([]Execution, string, error) {
	return gather(func(take func(*Execution) (bool, error)) (string, error) { return v.EachExecution(f, page, take) })
}

// EachExecution is Executions one by one, as EachApproval.
func (v *View) EachExecution(f ExecutionFilter, page Page, take func(*Execution) (room bool, err error)) (next string, err error) {
	states, err := oneOf(f.State, executionStates)
	if err != nil {
		return "", err
	}
	return each(v, listing{keyExecutionList, keyExecution, states, []string{f.State, f.Actor, f.App}}, page, func(x *Execution) bool {
		return matches(f.Actor, x.Actor) && matches(f.App, x.App)
	}, take)
}

// A PolicyFilter selects policy versions; an empty field selects all.
type PolicyFilter struct {
	Status string // event.PolicyCandidateStatus and so on
	Name   string // the part before @
}

// A version that was only validated has no status, and is listed without one.
var policyStatuses = []string{"", event.PolicyCandidateStatus, event.PolicyActiveStatus, event.PolicyArchivedStatus, event.PolicyRejectedStatus}

// PolicyVersions lists versions in the order in which they came.
func (v *View) PolicyVersions(f PolicyFilter, page Page) ([]PolicyVersion, string, error) {
	return gather(func(take func(*PolicyVersion) (bool, error)) (string, error) {
		return v.EachPolicyVersion(f, page, take)
	})
}

// EachPolicyVersion is PolicyVersions one by one, as EachApproval.
func (v *View) EachPolicyVersion(f PolicyFilter, page Page, take func(*PolicyVersion) (room bool, err error)) (next string, err error) {
	states, err := oneOf(f.Status, policyStatuses)
	if err != nil {
		return "", err
	}
	return each(v, listing{keyPolicyList, keyPolicy, states, []string{f.Status, f.Name}}, page, func(p *PolicyVersion) bool {
		return f.Name == "" || len(p.PolicyVersion) > len(f.Name) && p.PolicyVersion[:len(f.Name)] == f.Name && p.PolicyVersion[len(f.Name)] == '@'
	}, take)
}

// oneOf gives the states that a filter leaves.
func oneOf(state string, all []string) ([]string, error) {
	if state == "" {
		return all, nil
	}
	for _, s := range all {
		if s == state {
			return []string{state}, nil
		}
	}
	return nil, fmt.Errorf("%w: state %q", ErrFilter, state)
}
