package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/eventlog"
	"writegate/eventlog/checkpoint"
	"writegate/eventlog/event"
)

// signs reports whether a gate with these settings gives receipts.
func signs(environ []string) bool {
	on, _ := lookUp(environ, "GATE_EVIDENCE_SIGNING_ENABLED")
	fsync, _ := lookUp(environ, "GATE_AUDIT_FSYNC")
	return on == "true" && fsync != eventlog.FsyncOff
}

// A receiptBook is what the clients of a gate keep of its answers. It outlives
// every gate of a folder. A nil one keeps nothing.
type receiptBook struct {
	mu       sync.Mutex
	keys     []checkpoint.PublicKey
	texts    []string
	kept     map[place]keptReceipt // by the event that it vouches for
	answered map[string]uint64     // request id -> the last event that a receipt of it vouches for, 0 = none
	faults   []error               // of mustKeep
}

// A place is that of an event in one log of a gate.
type place struct {
	logID [16]byte
	seq   uint64
}

type keptReceipt struct {
	anchor  checkpoint.Anchor
	request string // id of the answer that it came with
}

func newReceiptBook() *receiptBook {
	return &receiptBook{kept: map[place]keptReceipt{}, answered: map[string]uint64{}}
}

// trust has the book believe the key of a gate with these settings, which is
// about to start.
func (b *receiptBook) trust(environ []string) {
	if b == nil || !signs(environ) {
		return
	}
	path, _ := lookUp(environ, "GATE_EVIDENCE_SIGNING_PUBLIC_KEY_PATH")
	key, err := checkpoint.LoadPublicKey(path)
	if err != nil {
		return // the gate says why it does not start
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.keys = append(b.keys, key)
}

func (b *receiptBook) trusted() []checkpoint.PublicKey {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.keys
}

// keep takes the receipt of an answer, and says what is wrong with it or with
// its absence. Of an answer that names its events the receipt is the last one's,
// but of a result that is not on disk yet.
func (b *receiptBook) keep(r reply, signed, latency bool) error {
	var body struct {
		Events   []toldEvent `json:"events"`
		Replayed bool        `json:"replayed"`
		Code     string      `json:"error_code"`
		Details  struct {
			Outcome string `json:"outcome"`
		} `json:"details"`
	}
	if b == nil {
		return nil
	}
	_ = json.Unmarshal(r.body, &body) // not every answer is such an object
	text := r.header.Get(checkpoint.Header)
	wrote := len(body.Events) > 0 && !body.Replayed
	switch {
	case !signed && text != "":
		return errors.New("a receipt, though evidence is not signed")
	case signed && text == "" && wrote:
		return errors.New("it names events and has no receipt")
	case !signed:
		return nil
	case text == "" && body.Code == "audit_unavailable" && body.Details.Outcome == "unknown":
		return nil // nobody knows whether its events are on disk, so they have no receipt, whatever the next start finds
	case text == "":
		b.note(r, 0)
		return nil
	}
	receipt, err := checkpoint.ParseReceipt(text)
	if err != nil {
		return err
	}
	anchor, err := receipt.Check(b.trusted()...)
	if err != nil {
		return err
	}
	if wrote {
		last := body.Events[len(body.Events)-1]
		if latency && strings.HasPrefix(last.Type, "execution_") && last.Type != string(event.TypeExecutionDispatched) {
			last = body.Events[len(body.Events)-2]
		}
		if last.Seq != anchor.Seq {
			return fmt.Errorf("its last durable event is %d, its receipt is of %d", last.Seq, anchor.Seq)
		}
	}
	return b.add(r, text, anchor)
}

// mustKeep is keep for clients that only tell an answer from none; hold says
// what was wrong.
func (b *receiptBook) mustKeep(r reply, signed, latency bool) {
	if err := b.keep(r, signed, latency); err != nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.faults = append(b.faults, fmt.Errorf("the answer %d %s: %w", r.status, r.body, err))
	}
}

func (b *receiptBook) add(r reply, text string, a checkpoint.Anchor) error {
	b.mu.Lock()
	at := place{a.LogID, a.Seq}
	if first, twice := b.kept[at]; twice {
		b.mu.Unlock()
		return fmt.Errorf("the answer to %s had the receipt of event %d before", first.request, a.Seq)
	}
	b.kept[at] = keptReceipt{a, r.header.Get("X-Request-Id")}
	b.texts = append(b.texts, text)
	b.mu.Unlock()
	b.note(r, a.Seq)
	return nil
}

func (b *receiptBook) note(r reply, seq uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	id := r.header.Get("X-Request-Id")
	b.answered[id] = max(b.answered[id], seq)
}

// check holds what was kept against the log of the gate, which ended.
func (b *receiptBook) check(t testing.TB, log *eventlog.Log) {
	t.Helper()
	if b == nil {
		return
	}
	var all []event.Envelope
	for e, err := range log.From(context.WithoutCancel(t.Context()), 1) {
		require.NoError(t, err)
		all = append(all, e)
	}
	b.hold(t, log.LogID(), all)
}

// hold: each receipt is of an event of the log, and of the request whose answer
// carried it; and what an answered request wrote before its answer is not behind
// its receipt.
func (b *receiptBook) hold(t testing.TB, logID [16]byte, all []event.Envelope) {
	t.Helper()
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	require.NoError(t, errors.Join(b.faults...))
	earlier := predecessors(t, all)
	for at, kept := range b.kept {
		if slices.Contains(earlier, at.logID) {
			continue // of a log that this one follows
		}
		seq := at.seq
		require.Equal(t, logID, at.logID)
		require.LessOrEqual(t, kept.anchor.Last, uint64(len(all)), "a kept receipt is beyond the end of the log")
		require.Equal(t, all[seq-1].Hash, kept.anchor.Hash, "event %d is not the one of its receipt", seq)
		if id := all[seq-1].Context.RequestID; id != "" && !settles(all[seq-1].Type) {
			require.Equal(t, id, kept.request, "the receipt of event %d came with another answer", seq)
		}
	}
	for i := range all {
		last, answered := b.answered[all[i].Context.RequestID]
		if answered && all[i].Context.RequestID != "" && !settles(all[i].Type) {
			require.LessOrEqual(t, all[i].Seq, last, "%s of the answered request %s has no receipt", all[i].Type, all[i].Context.RequestID)
		}
	}
}

// predecessors are the logs that a log says it follows.
func predecessors(t testing.TB, all []event.Envelope) (ids [][16]byte) {
	t.Helper()
	for i := range all {
		if all[i].Type != event.TypeStartup {
			continue
		}
		var s event.Startup
		require.NoError(t, s.Parse(all[i].Payload))
		if s.Predecessor != nil {
			ids = append(ids, s.Predecessor.LogID)
		}
	}
	return ids
}

// settles reports a type that may be written after the answer to the request
// that it belongs to: results that were not on disk yet, or were found out later.
func settles(kind event.Type) bool {
	return slices.Contains([]event.Type{event.TypeExecutionSuccess, event.TypeExecutionFailure, event.TypeExecutionStateUnknown, event.TypeExecutionOutcomeResolved}, kind)
}
