package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
)

// ledgerPolicy lets rows into the ledger, holds those of two other tables for a
// person, lets the ledger be vacuumed, and has no rule for anything else that
// writes.
const ledgerPolicy = `
schema: gate.policy/v1
name: ledger-gate
version: 1.0.0
facts: facts/v1
rules:
  - id: ledger-rows
    decision: ALLOW
    reason_code: ledger_row
    match: { class: [write], query_types_only: [INSERT], tables_written_only: [public.ledger] }
  - id: held-rows
    decision: REQUIRE_APPROVAL
    reason_code: held_row
    match: { query_types_only: [INSERT], tables_written: [public.held], tables_written_only: [public.held] }
    approval: { ttl_seconds: 900, max_rows: 1 }
  - id: forgotten-rows
    decision: REQUIRE_APPROVAL
    reason_code: forgotten_row
    match: { query_types_only: [INSERT], tables_written: [public.forgotten], tables_written_only: [public.forgotten] }
    approval: { ttl_seconds: 1 }
  - id: upkeep
    decision: ALLOW
    reason_code: upkeep
    match: { class: [maintenance], query_types_only: [VACUUM] }
`

// ledgerTables have no key: a statement that ran twice is to show.
const ledgerTables = "CREATE TABLE ledger (v text NOT NULL); CREATE TABLE held (v text NOT NULL); CREATE TABLE forgotten (v text NOT NULL)"

// A kind is what a client wants of the gate.
type kind int

const (
	reading      kind = iota // a safe read
	writing                  // a row for the ledger, sent once
	hurrying                 // the same under the latency profile
	keyed                    // the same under an idempotency key, sent until it is answered
	asking                   // a row that waits for an approval, is approved and sent until it is answered
	askingInVain             // the same, but rejected
	forgetting               // a row that waits for an approval that nobody gives in time
	tidying                  // a statement that runs outside of a transaction
	trespassing              // a statement that is blocked
	stammering               // a text that is no SQL
	legislating              // another version of the policy, proposed and activated
	reporting                // a batch of telemetry, sent until it is answered, and then once more
	inBlocks                 // rows in a transaction on the wire
)

// allKinds are the wishes of an ordinary load.
var allKinds = []kind{reading, writing, hurrying, keyed, asking, askingInVain, forgetting, tidying, trespassing, stammering}

// An errand is one wish of a client, from its first request to its last. What a
// dying gate left unanswered is taken up again at the next one, where a client
// in its right mind would.
type errand struct {
	kind     kind
	number   int
	value    string // of the row it is about
	stage    int
	lost     bool   // a request that may have run got no answer
	approval string // its id
	first    reply  // the first answer under the key
}

// A told is an answer that a client got.
type told struct {
	request string
	status  int
	replay  bool
	Events  []toldEvent `json:"events"`
}

type toldEvent struct {
	ID   string `json:"event_id"`
	Seq  uint64 `json:"seq"`
	Type string `json:"event_type"`
}

// A fate is what the clients know of a row.
type fate struct {
	held    bool // it belongs into the table held
	must    bool // it was said to be there
	never   bool // it was said not to be
	unknown bool // it was said that nobody knows
}

// A book is what the clients of a life know: what they sent and what they were
// told. It outlives every gate.
type book struct {
	wishes []kind // what clients want, in turn

	mu         sync.Mutex
	requests   int
	sent       map[string]string   // request id -> value of the row that it is about
	texts      map[[32]byte]string // of statements on the wire -> the same
	database   string
	fates      map[string]*fate // by value
	told       []told
	created    []string          // approvals
	resolved   map[string]string // approval -> resolution
	activated  []string          // policy versions
	unanswered int
	undone     []*errand
	errands    int

	legislature sync.Mutex // one change of the policy at a time; taken before mu
	versions    int

	registry sync.Mutex // one registration at a time; taken before mu
	news     *newsroom
}

func newBook() *book {
	return &book{wishes: allKinds, sent: map[string]string{}, texts: map[[32]byte]string{}, fates: map[string]*fate{}, resolved: map[string]string{}, news: newNewsroom()}
}

// know changes what is known; f must not call the book.
func (b *book) know(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f()
}

// clients is how many there are at once.
const clients = 8

// load lets the clients work until the gate is gone or stop is closed.
func (b *book) load(t testing.TB, v *victim, stop <-chan struct{}) {
	var working sync.WaitGroup
	for range clients {
		working.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-v.ended:
					return
				default:
				}
				if e := b.next(); !b.pursue(t, v, e) {
					return
				}
			}
		})
	}
	working.Wait()
}

// finish takes up every errand that is left, one after the other.
func (b *book) finish(t testing.TB, v *victim) {
	for len(b.undone) > 0 {
		assert.True(t, b.pursue(t, v, b.next()), "a gate that nobody kills gives no answer")
	}
}

// pursue carries an errand on; false when the gate gave no answer.
func (b *book) pursue(t testing.TB, v *victim, e *errand) bool {
	for {
		answered, done := b.advance(t, v, e)
		switch {
		case !answered && (e.kind == keyed || e.kind == reporting || e.approval != ""):
			b.know(func() { b.undone = append(b.undone, e) })
			return false
		case !answered:
			return false
		case done:
			return true
		}
	}
}

// next is an errand that was given up, or else a new one.
func (b *book) next() *errand {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n := len(b.undone); n > 0 {
		e := b.undone[0]
		b.undone = b.undone[1:]
		return e
	}
	b.errands++
	e := &errand{kind: b.wishes[b.errands%len(b.wishes)], number: b.errands, value: fmt.Sprintf("row-%d", b.errands)}
	b.fates[e.value] = &fate{held: e.kind == asking || e.kind == askingInVain, never: e.kind >= askingInVain || e.kind == reading}
	return e
}

// query sends one statement; nil means that no answer came.
func (b *book) query(t testing.TB, v *victim, e *errand, s statement, params string) *reply {
	var request string
	b.know(func() {
		b.requests++
		request = fmt.Sprintf("crash-%d", b.requests)
		b.sent[request] = e.value
	})
	body, err := json.Marshal(s)
	assert.NoError(t, err)
	r, err := v.try(http.MethodPost, "/query"+params, string(body), "X-Request-Id: "+request)
	if err != nil {
		b.know(func() { b.unanswered++ })
		return nil
	}
	a := told{request: request, status: r.status}
	assert.NoError(t, json.Unmarshal(r.body, &a), "%s", r.body)
	a.replay = r.field("replayed") == true
	b.know(func() { b.told = append(b.told, a) })
	return &r
}

// field is one field of a JSON object, nil where there is none.
func (r *reply) field(name string) any {
	var m map[string]any
	if json.Unmarshal(r.body, &m) != nil {
		return nil
	}
	return m[name]
}

func (e *errand) insert(table string) statement {
	return ask("INSERT INTO " + table + " (v) VALUES ('" + e.value + "')")
}

// advance sends the next request of an errand.
func (b *book) advance(t testing.TB, v *victim, e *errand) (answered, done bool) {
	switch e.kind {
	case reading:
		return b.once(t, v, e, ask("SELECT count(*) FROM ledger"), http.StatusOK)
	case writing:
		return b.once(t, v, e, e.insert("ledger"), http.StatusOK)
	case hurrying:
		return b.once(t, v, e, e.insert("ledger").with("execution_profile", "latency"), http.StatusOK)
	case forgetting:
		return b.once(t, v, e, e.insert("forgotten"), http.StatusAccepted)
	case tidying:
		return b.once(t, v, e, ask("VACUUM ledger"), http.StatusOK)
	case trespassing:
		return b.once(t, v, e, ask("DELETE FROM ledger"), http.StatusForbidden)
	case stammering:
		return b.once(t, v, e, ask("INSERT INTO"), http.StatusBadRequest)
	case keyed:
		return b.advanceKeyed(t, v, e)
	case legislating:
		return b.legislate(t, v), true
	case reporting:
		return b.report(t, v, e)
	case inBlocks:
		return b.transact(t, v, e), true
	}
	return b.advanceApproval(t, v, e)
}

// once sends what is sent once, whatever becomes of it.
func (b *book) once(t testing.TB, v *victim, e *errand, s statement, status int) (answered, done bool) {
	r := b.query(t, v, e, s, "")
	if r == nil {
		return false, true
	}
	assert.Equal(t, status, r.status, "%s", r.body)
	b.know(func() { f := b.fates[e.value]; f.must = r.status == http.StatusOK && !f.never })
	return true, true
}

// legislate proposes the next version of the policy and activates it.
func (b *book) legislate(t testing.TB, v *victim) (answered bool) {
	b.legislature.Lock()
	defer b.legislature.Unlock()
	b.versions++
	number := fmt.Sprintf("1.0.%d", b.versions)
	document := strings.Replace(ledgerPolicy, "version: 1.0.0", "version: "+number, 1)
	for _, step := range []struct {
		path   string
		body   map[string]any
		status int
	}{
		{"/policy/candidates", map[string]any{"document": document}, http.StatusCreated},
		{"/policy/activate", map[string]any{"expected_hash": fmt.Sprintf("%x", sha256.Sum256([]byte(document)))}, http.StatusOK},
	} {
		body, err := json.Marshal(step.body)
		assert.NoError(t, err)
		r, err := v.try(http.MethodPost, step.path, string(body), "X-GATE-Operator-Token: "+operatorTestToken)
		if err != nil {
			return false
		}
		assert.Equal(t, step.status, r.status, "%s", r.body)
	}
	b.know(func() { b.activated = append(b.activated, "ledger-gate@"+number) })
	return true
}

// advanceKeyed sends until an answer comes, and then once more: whatever gate
// answers then says the same.
func (b *book) advanceKeyed(t testing.TB, v *victim, e *errand) (answered, done bool) {
	r := b.query(t, v, e, e.insert("ledger"), "?idempotency_key="+e.value)
	if r == nil {
		e.lost = true
		return false, false
	}
	if e.stage > 0 {
		assert.Equal(t, e.first.status, r.status, "%s", r.body)
		assert.Equal(t, true, r.field("replayed"), "%s", r.body)
		assert.Equal(t, e.first.field("execution_id"), r.field("execution_id"), "%s", r.body)
		return true, true
	}
	e.stage, e.first = 1, *r
	switch {
	case r.status == http.StatusOK:
		b.know(func() { b.fates[e.value].must = true })
	case e.lost && r.status == http.StatusGatewayTimeout:
		assert.Equal(t, "unknown", r.field("execution_state"), "%s", r.body)
		b.know(func() { b.fates[e.value].unknown = true })
	default:
		t.Errorf("the key %s is answered with %d (an answer was lost: %v): %s", e.value, r.status, e.lost, r.body)
	}
	return true, false
}

// Stages of an approval's errand.
const (
	toAsk = iota
	toResolve
	toUse
	toUseAgain
)

func (b *book) advanceApproval(t testing.TB, v *victim, e *errand) (answered, done bool) {
	switch e.stage {
	case toAsk:
		return b.askApproval(t, v, e), false
	case toResolve:
		return b.resolveApproval(t, v, e), false
	case toUse:
		return b.useApproval(t, v, e), false
	}
	r := b.query(t, v, e, e.insert("held").with("approval_id", e.approval), "")
	if r == nil {
		return false, false
	}
	b.refused(t, e, r)
	return true, true
}

func (b *book) askApproval(t testing.TB, v *victim, e *errand) (answered bool) {
	r := b.query(t, v, e, e.insert("held"), "")
	if r == nil {
		return false
	}
	assert.Equal(t, http.StatusAccepted, r.status, "%s", r.body)
	id, _ := r.field("approval_id").(string)
	e.approval, e.stage = id, toResolve
	b.know(func() { b.created = append(b.created, id) })
	return true
}

func (e *errand) resolution() string {
	if e.kind == askingInVain {
		return "reject"
	}
	return "approve"
}

// resolveApproval answers for the operator. That it was done before is an
// answer too, when the first one was lost.
func (b *book) resolveApproval(t testing.TB, v *victim, e *errand) (answered bool) {
	r, err := v.try(http.MethodPost, "/approvals/"+e.approval+"/resolve", `{"decision":"`+e.resolution()+`"}`, "X-GATE-Operator-Token: "+operatorTestToken)
	if err != nil {
		e.lost = true
		return false
	}
	if r.status != http.StatusOK {
		assert.True(t, e.lost, "%s", r.body)
		assert.Equal(t, "approval_already_resolved", r.field("error_code"), "%s", r.body)
	}
	e.stage, e.lost = toUse, false
	b.know(func() { b.resolved[e.approval] = e.resolution() })
	return true
}

// useApproval sends the statement twice at once: at most one of them runs.
func (b *book) useApproval(t testing.TB, v *victim, e *errand) (answered bool) {
	var replies [2]*reply
	var both sync.WaitGroup
	for i := range replies {
		both.Go(func() { replies[i] = b.query(t, v, e, e.insert("held").with("approval_id", e.approval), "") })
	}
	both.Wait()
	ran, answers := 0, 0
	for _, r := range replies {
		switch {
		case r == nil:
			continue
		case r.status == http.StatusOK:
			ran++
		default:
			b.refused(t, e, r)
		}
		answers++
	}
	assert.LessOrEqual(t, ran, 1, "the approval %s ran %d statements", e.approval, ran)
	switch {
	case ran > 0:
		e.stage = toUseAgain
		b.know(func() { b.fates[e.value].must = true })
	case answers < 2:
		e.lost = true
		return false
	default:
		assert.True(t, e.lost || e.kind == askingInVain, "an approval was refused to its first users")
		e.stage = toUseAgain
	}
	return answers == 2
}

// refused holds a refusal against what is known of the approval.
func (b *book) refused(t testing.TB, e *errand, r *reply) {
	if e.kind == askingInVain {
		assert.Equal(t, "approval_rejected", r.field("error_code"), "%s", r.body)
		return
	}
	assert.Contains(t, []any{"approval_already_used", "approval_outcome_unknown"}, r.field("error_code"), "%s", r.body)
}
