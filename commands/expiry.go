package commands

import (
	"context"
	"time"

	"writegate/eventlog"
	"writegate/eventlog/event"
	"writegate/projections"
)

// expiryChunk bounds how many approvals one command locks and how many events
// it appends. It is under half of the log's group limit, because a purge may
// write an event for each and one more.
const expiryChunk = 256

// ExpireDue writes approval_expired for every pending approval whose time is
// over, or whose agent was deactivated. next is when the next pending one will be
// due, zero when none is.
//
// The same is done for grants, with grant_expired.
func (c *Commands) ExpireDue(ctx context.Context) (n int, next time.Time, err error) {
	now := c.now() // one moment for the whole round: with a clock that goes back it would not end
	for c.deactivated.Swap(false) {
		ended, _, err := c.expireGrants(ctx, now, true)
		if n += ended; err != nil {
			c.deactivated.Store(true)
			return n, time.Time{}, err
		}
		ids, err := c.withdrawnApprovals()
		if err == nil && len(ids) > 0 {
			var expired int
			expired, err = c.expire(ctx, ids, now)
			n += expired
			c.deactivated.Store(expired > 0) // there may be more
		}
		if err != nil {
			c.deactivated.Store(true)
			return n, time.Time{}, err
		}
	}
	ended, nextGrant, err := c.expireGrants(ctx, now, false)
	if n += ended; err != nil {
		return n, time.Time{}, err
	}
	for {
		ids, next, err := c.dueApprovals(now)
		if err != nil || len(ids) == 0 {
			if next.IsZero() || !nextGrant.IsZero() && nextGrant.Before(next) {
				next = nextGrant
			}
			return n, next, err
		}
		expired, err := c.expire(ctx, ids, now)
		n += expired
		if err != nil {
			return n, time.Time{}, err
		}
	}
}

func (c *Commands) expire(ctx context.Context, ids []string, now time.Time) (int, error) {
	unlock, err := c.lock(ctx, approvalKeys(ids)...)
	if err != nil {
		return 0, err
	}
	defer unlock()
	states, err := c.approvalStates(ids)
	if err != nil {
		return 0, err
	}
	drafts := decideExpire(states, now)
	if len(drafts) == 0 {
		return 0, nil
	}
	_, err = c.commit(ctx, eventlog.Group{Drafts: drafts})
	return len(drafts), err
}

// decideExpire gives one event for each approval that passed its time
// unresolved and is not written down as expired.
func decideExpire(states []*approvalState, now time.Time) []event.Draft {
	var drafts []event.Draft
	for _, a := range states {
		if a == nil || a.expired || !a.isExpired(now) {
			continue
		}
		shared := a.claims
		shared.Operation = "expire_approval"
		if a.withdrawn != "" && !a.pastTime(now) {
			shared.ReasonCode = string(a.withdrawn)
		}
		drafts = append(drafts, event.New(now, shared, &event.ApprovalExpired{ExpiresAt: a.expiresAt.UnixNano()}))
	}
	return drafts
}

// PurgeApprovals removes every expired approval from the store; the log keeps
// them all. It returns how many it removed, also beside an error. By is the
// label of the operator token.
func (c *Commands) PurgeApprovals(ctx context.Context, by string) (int, error) {
	purged := 0
	now := c.now() // one moment for all chunks, as in ExpireDue
	for {
		ids, err := c.expiredApprovals(now)
		if err != nil || len(ids) == 0 {
			return purged, err
		}
		n, err := c.purge(ctx, ids, by, now)
		purged += n
		if err != nil {
			return purged, err
		}
	}
}

// purge looks at each approval again under its lock: one that was resolved in
// its last moment is not expired, whatever the list said.
func (c *Commands) purge(ctx context.Context, ids []string, by string, now time.Time) (int, error) {
	unlock, err := c.lock(ctx, approvalKeys(ids)...)
	if err != nil {
		return 0, err
	}
	defer unlock()
	states, err := c.approvalStates(ids)
	if err != nil {
		return 0, err
	}
	c.step("commands.decide")
	drafts, n := decidePurge(states, by, now)
	if n == 0 {
		return 0, nil
	}
	_, err = c.commit(ctx, eventlog.Group{Drafts: drafts})
	if err != nil {
		return 0, err
	}
	return n, nil
}

// decidePurge removes what is expired. What the timer has not come to yet gets
// its approval_expired first, so that no approval vanishes while pending.
func decidePurge(states []*approvalState, by string, now time.Time) (drafts []event.Draft, n int) {
	drafts = decideExpire(states, now)
	var ids []string
	for _, a := range states {
		if a != nil && a.isExpired(now) {
			ids = append(ids, a.id)
		}
	}
	if len(ids) == 0 {
		return nil, 0
	}
	shared := event.Context{Operation: "purge_approvals"}
	return append(drafts, event.New(now, shared, &event.ApprovalsPurged{ApprovalIDs: ids, By: by})), len(ids)
}

func approvalKeys(ids []string) []string {
	keys := make([]string, len(ids))
	for i, id := range ids {
		keys[i] = approvalKey(id)
	}
	return keys
}

func (c *Commands) approvalStates(ids []string) ([]*approvalState, error) {
	states := make([]*approvalState, len(ids))
	err := c.look(context.Background(), func(view *projections.View) (err error) {
		for i := 0; i < len(ids) && err == nil; i++ {
			_, states[i], err = findApproval(view, ids[i])
		}
		return err
	})
	return states, err
}

const (
	expiryIdle  = time.Hour       // between looks when nothing is pending
	expiryRetry = 5 * time.Second // after an error
)

// RunExpiry writes approval_expired events when they fall due, until ctx ends.
// A reader never depends on it: status is computed at the moment of the read.
func (c *Commands) RunExpiry(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-c.wake:
		}
		_, next, err := c.ExpireDue(ctx)
		wait := expiryIdle
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			c.logs.Warn("approvals could not be expired; trying again", "source", "commands", "error", err)
			wait = expiryRetry
		case !next.IsZero():
			wait = min(expiryIdle, max(0, next.Sub(c.now())))
		}
		timer.Reset(wait)
	}
}

// wakeExpiry lets the timer look again, because the next due moment may be
// nearer than it thinks.
func (c *Commands) wakeExpiry() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}
