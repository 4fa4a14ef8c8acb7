package sqlgate

import (
	"context"
	"errors"
	"strconv"
	"time"

	"writegate/sqlgate/policy"
)

// LongestApprovalWait is the most that anybody waits for an approval at a time: what
// proxies in between bear with.
const LongestApprovalWait = time.Minute

// await holds a statement back that needs an approval, for as long as the connection asked
// for (gate.approval_wait_ms), and reports whether the approval was decided, or ended,
// meanwhile. Nobody is waited for while something is open at the database, whose locks
// others would wait for, and where as many wait already as may: held then says so.
func (w *Wire) await(ctx context.Context, held *WireRefusal) (decided bool) {
	ms, _ := strconv.Atoi(w.show(settingApprovalWait))
	if ms == 0 {
		return false
	}
	if w.unit.block != nil {
		held.Hint = "It was not waited for, since the transaction has run statements and may hold locks. Send what needs an approval by itself, or first in its transaction."
		return false
	}
	if w.gate.Wire.TakeWait != nil {
		release, ok := w.gate.Wire.TakeWait(w.login.Client)
		if !ok {
			held.Hint = "It was not waited for: this client, or all, wait for as many approvals as they may."
			return false
		}
		defer release()
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(ms)*time.Millisecond)
	defer cancel()
	if w.login.Stopping != nil {
		defer context.AfterFunc(w.login.Stopping, cancel)()
	}
	begin := time.Now()
	decided = w.gate.Commands.AwaitResolution(ctx, held.Answer.ApprovalID)
	w.waited += time.Since(begin)
	return decided
}

// Waited is how long statements waited for approvals since the last time: time of a
// person's, which is not the client's.
func (w *Wire) Waited() time.Duration {
	waited := w.waited
	w.waited = 0
	return waited
}

// run takes one statement through the journey, and once more with its approval where it
// waited for that. A decision that stops it is an error here, a WireRefusal.
func (w *Wire) run(ctx context.Context, st *wireStatement, c *wireCall) (WireDone, error) {
	done, err := w.once(ctx, st, c)
	var held *WireRefusal
	if !errors.As(err, &held) || held.Answer.Result.Decision != policy.RequireApproval {
		return done, err
	}
	decided := w.await(ctx, held)
	switch {
	case w.current.waited():
		return WireDone{}, errCancelled().With("approval_id", held.Answer.ApprovalID)
	case !decided:
		return WireDone{}, err
	}
	again := *st
	if w.approval() != held.Answer.ApprovalID { // else the setting serves, and is gone then
		again.approval = held.Answer.ApprovalID
	}
	return w.once(ctx, &again, c)
}
