package projections

import (
	"maps"
	"time"

	"writegate/eventlog/event"
)

func executionKey(id string) []byte { return []byte(keyExecution + id) }

// execution hands the execution of e to change. The first event of an execution
// makes the record.
func (t *tx) execution(e *event.Envelope, change func(*Execution)) {
	if e.Context.ExecutionID == "" {
		return // the log knows of no execution to change
	}
	x := t.open(e)
	before := ""
	if len(x.Events) > 0 {
		before = x.State
	}
	x.Events = append(x.Events, e.Seq)
	change(&x.Execution)
	if x.State != before {
		t.countExecution(before, -1)
		t.countExecution(x.State, 1)
	}
}

func (t *tx) countExecution(state string, by int) {
	switch state {
	case ExecutionDispatched:
		t.count(func(c *Counters) { c.ExecutionsOpen += by })
	case ExecutionUnknown:
		t.count(func(c *Counters) { c.ExecutionsUnknown += by })
	}
}

// executionDispatched and executionSuccess are most of a log, and read their
// payloads into the same memory again.
func executionDispatched(t *tx, e *event.Envelope) error {
	p := &t.space.scratch.dispatched
	*p = event.ExecutionDispatched{}
	if err := e.Parse(p); err != nil {
		return err
	}
	t.execution(e, func(x *Execution) {
		x.State, x.DispatchedAt = ExecutionDispatched, e.Time
		x.Path, x.SQLDigest, x.XID, x.Marker, x.BlockID, x.Upstream = p.Path, p.SQLSHA256, p.XID, p.Marker, p.BlockID, p.Upstream
		if p.Idempotency != nil {
			x.KeyScope = p.Idempotency.ScopeDigest
			t.bindKey(e, x, p)
		}
	})
	if u := &p.Upstream; p.XID != 0 && u.Timeline != "" && (t.counters.Awaited || u.Timeline > t.counters.Timelines[u.SystemIdentifier]) {
		t.count(func(c *Counters) { // views have the map of before
			c.Awaited, c.Timelines = false, maps.Clone(c.Timelines)
			if c.Timelines == nil {
				c.Timelines = map[string]string{}
			}
			c.Timelines[u.SystemIdentifier] = u.Timeline
		})
	}
	return nil
}

func executionSuccess(t *tx, e *event.Envelope) error {
	p := &t.space.scratch.success
	*p = event.ExecutionSuccess{}
	if err := e.Parse(p); err != nil {
		return err
	}
	t.execution(e, func(x *Execution) {
		x.State, x.Basis, x.CommandTag, x.RowCount, x.DurationUS = ExecutionSuccess, p.Basis, p.CommandTag, p.RowCount, p.DurationUS
		x.result(e)
		x.ResolvedAt = e.Time
		t.useOf(x, UseTaken)
		t.grantOf(x, event.GrantedAfter(p))
		t.answerKey(x, p.Answer, p.Salt)
	})
	return nil
}

func executionFailure(t *tx, e *event.Envelope, p *event.ExecutionFailure) {
	t.execution(e, func(x *Execution) {
		if !x.DispatchedAt.IsZero() || p.Outcome != event.OutcomeNotExecuted {
			x.State = ExecutionFailure
		}
		x.Outcome, x.Basis, x.SQLState, x.DurationUS = p.Outcome, p.Basis, p.SQLState, p.DurationUS
		x.result(e)
		x.ResolvedAt = e.Time
		t.useOf(x, UseAfterFailure(p.Outcome, e.Context.ReasonCode))
		t.grantOf(x, event.GrantedAfter(p))
		t.answerKey(x, p.Answer, p.Salt)
	})
}

// UseAfterFailure is what an approval stands at once the execution under it has failed.
func UseAfterFailure(outcome, reasonCode string) ApprovalUse {
	if outcome == event.OutcomeNotExecuted || outcome == event.OutcomeAborted && (reasonCode == reasonRowLimit || reasonCode == reasonCatalogChanged) {
		return UseFree // it never ran, or the gate itself rolled it back
	}
	return UseTaken
}

// reasonRowLimit is the reason of a write that changed more rows than its approval
// allows, and that of a statement which met other definitions than it was judged by.
const reasonRowLimit, reasonCatalogChanged = "row_limit_exceeded", "catalog_changed"

func executionStateUnknown(t *tx, e *event.Envelope, p *event.ExecutionStateUnknown) {
	t.execution(e, func(x *Execution) {
		x.State, x.Step, x.Cause = ExecutionUnknown, p.Step, p.Cause
		x.result(e)
		t.useOf(x, UseUnknown)
		t.grantOf(x, event.GrantedAfter(p))
		t.answerKey(x, p.Answer, p.Salt)
	})
}

// UseAfterOutcome is what an approval stands at once the outcome of the execution under
// it was looked up.
func UseAfterOutcome(outcome string) ApprovalUse {
	switch outcome {
	case event.OutcomeCommitted:
		return UseTaken
	case event.OutcomeAborted:
		return UseFree
	}
	return UseUnknown
}

// executionOutcomeResolved settles an unknown, or says that it stays one.
func executionOutcomeResolved(t *tx, e *event.Envelope, p *event.ExecutionOutcomeResolved) {
	t.execution(e, func(x *Execution) {
		switch p.Outcome {
		case event.OutcomeCommitted:
			x.State, x.ResolvedAt = ExecutionSuccess, e.Time
		case event.OutcomeAborted:
			x.State, x.ResolvedAt = ExecutionFailure, e.Time
		}
		x.Outcome, x.Basis = p.Outcome, p.Basis
		t.useOf(x, UseAfterOutcome(p.Outcome))
		t.grantOf(x, event.GrantedAfter(p))
		t.settleKey(x)
	})
}

// readFenceViolation keeps its seq with the execution it belongs to.
func readFenceViolation(t *tx, e *event.Envelope, _ *event.ReadFenceViolation) {
	t.execution(e, func(*Execution) {})
}

func (x *Execution) result(e *event.Envelope) {
	x.ResultAt, x.ReasonCode, x.ErrorCode = e.Time, e.Context.ReasonCode, e.Context.ErrorCode
}

func idempotencyKey(scope [32]byte) []byte { return append([]byte(keyIdempotency), scope[:]...) }

// bindKey gives a client's key to the execution, and sweeps.
func (t *tx) bindKey(e *event.Envelope, x *Execution, sent *event.ExecutionDispatched) {
	p := sent.Idempotency
	r := IdempotencyRecord{Key: p.Key, RequestDigest: p.RequestDigest, ExecutionID: x.ID, RequestID: x.RequestID, State: x.State,
		ExpiresAt: time.Unix(0, p.ExpiresAt).UTC(), SQLDigest: sent.SQLSHA256}
	if sent.Params != nil {
		r.ParamsDigest = sent.Params.SHA256
	}
	var old IdempotencyRecord
	if t.get(idempotencyKey(p.ScopeDigest), &old) {
		t.dropExpiry(keyExpiry, dueKey(keyExpiry, old.ExpiresAt, string(p.ScopeDigest[:])))
	}
	t.sweepKeys(e.Time)
	t.put(idempotencyKey(p.ScopeDigest), &r)
	t.setExpiry(keyExpiry, dueKey(keyExpiry, r.ExpiresAt, string(p.ScopeDigest[:])), nil)
}

// keyed hands the record of x's key to change, unless the key has meanwhile
// expired and belongs to another execution.
func (t *tx) keyed(x *Execution, change func(*IdempotencyRecord)) {
	if x.KeyScope == ([32]byte{}) {
		return
	}
	var r IdempotencyRecord
	if !t.get(idempotencyKey(x.KeyScope), &r) || r.ExecutionID != x.ID {
		return
	}
	change(&r)
	t.put(idempotencyKey(x.KeyScope), &r)
}

// answerKey keeps the first answer; a later result does not change what the
// client was told.
func (t *tx) answerKey(x *Execution, a *event.Answer, salt event.Salt) {
	t.keyed(x, func(r *IdempotencyRecord) {
		r.State = x.State
		if a != nil && !r.Answered {
			r.Answered, r.Status, r.Body, r.RowsOmitted, r.Salt = true, a.Status, a.Body, a.RowsOmitted, salt
		}
	})
}

func (t *tx) settleKey(x *Execution) {
	t.keyed(x, func(r *IdempotencyRecord) { r.State, r.Outcome = x.State, x.Outcome })
}

// keyGrace is how long an expired key is kept: a clock that jumps ahead for a
// day must not make the gate forget what it has answered.
const keyGrace = 24 * time.Hour

// sweepKeys removes a few keys that expired long before the event at now. The
// log's own times decide, so a replay removes the same ones at the same event.
func (t *tx) sweepKeys(now time.Time) {
	due, err := t.expired(keyExpiry, dueKey(keyExpiry, now.Add(-keyGrace), ""))
	if err != nil {
		t.fail(err)
		return
	}
	for _, key := range due {
		t.dropExpiry(keyExpiry, []byte(key))
		t.delete([]byte(keyIdempotency + key[len(keyExpiry)+8:]))
	}
}
