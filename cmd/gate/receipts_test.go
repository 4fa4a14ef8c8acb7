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
	key checkpoint.PublicKey

	mu       sync.Mutex
	texts    []string
	kept     map[uint64]keptReceipt // by the event that it vouches for
	answered map[string]uint64      // request id -> the last event that a receipt of it vouches for, 0 = none
	faults   []error                // of mustKeep
}

type keptReceipt struct {
	anchor  checkpoint.Anchor
	request string // id of the answer that it came with
}

func newReceiptBook(key checkpoint.PublicKey) *receiptBook {
	return &receiptBook{key: key, kept: map[uint64]keptReceipt{}, answered: map[string]uint64{}}
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
	anchor, err := receipt.Check(b.key)
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
	if first, twice := b.kept[a.Seq]; twice {
		b.mu.Unlock()
		return fmt.Errorf("the answer to %s had the receipt of event %d before", first.request, a.Seq)
	}
	b.kept[a.Seq] = keptReceipt{a, r.header.Get("X-Request-Id")}
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
	for seq, kept := range b.kept {
		require.Equal(t, logID, kept.anchor.LogID)
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

// settles reports a type that may be written after the answer to the request
// that it belongs to: results that were not on disk yet, or were found out later.
func settles(kind event.Type) bool {
	return slices.Contains([]event.Type{event.TypeExecutionSuccess, event.TypeExecutionFailure, event.TypeExecutionStateUnknown}, kind)
}
