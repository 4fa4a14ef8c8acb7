package commands

import (
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"writegate/eventlog/event"
)

const (
	// floodEvery is how often one client's incidents of one type are written.
	floodEvery = time.Minute
	// floodClients bounds the clients that are told apart.
	floodClients = 4096
	// floodBudget bounds the events of all clients in one floodEvery: addresses
	// are cheap, and a flood from many of them must not fill the log either.
	floodBudget = 600
	// otherClients is the client of what can't be told apart any more.
	otherClients = "(others)"
)

// throttle turns incidents that clients can cause at will into a bounded number
// of events: the first one of a client at once, then at most one a minute with
// the count of what happened since (spec/decisions.md part 3).
type throttle struct {
	mu      sync.Mutex
	clients *simplelru.LRU[floodKey, *floodState] // guarded by mu, as is all below
	others  map[event.Type]int
	window  time.Time // when the budget was last full
	spent   int
}

type floodKey struct {
	kind   event.Type
	client string
}

type floodState struct {
	written time.Time // when the last event was
	last    flood     // the last occurrence; its Count is what no event counts yet
}

// A flood is what one event says of many incidents.
type flood struct {
	event.Flood
	login Login // of the last one
}

func newThrottle() (*throttle, error) {
	t := &throttle{others: make(map[event.Type]int)}
	clients, err := simplelru.NewLRU(floodClients, t.forgotten)
	t.clients = clients
	return t, err
}

// forgotten keeps the count of a client that makes room for another.
func (t *throttle) forgotten(k floodKey, s *floodState) {
	if s.last.Count > 0 {
		t.others[k.kind] += s.last.Count
	}
}

// note counts one occurrence and tells whether its event is due now; then the
// flood it returns counts everything since the last one.
func (t *throttle) note(kind event.Type, f flood, now time.Time) (flood, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	key := floodKey{kind, f.Client}
	s, known := t.clients.Get(key)
	if !known {
		s = new(floodState)
		t.clients.Add(key, s)
	}
	f.Count = s.last.Count + 1
	s.last = f
	if !due(s.written, now) || !t.spend(now) {
		return f, false
	}
	s.written, s.last.Count = now, 0
	return f, true
}

// due holds also when the clock went back, so that a client is not silenced
// until it has caught up.
func due(written, now time.Time) bool {
	age := now.Sub(written)
	return age >= floodEvery || age < 0
}

func (t *throttle) spend(now time.Time) bool {
	if due(t.window, now) {
		t.window, t.spent = now, 0
	}
	if t.spent >= floodBudget {
		return false
	}
	t.spent++
	return true
}

// flush gives the events of what was counted and is due, oldest client first;
// all of it when the service ends.
func (t *throttle) flush(now time.Time, all bool) []event.Draft {
	t.mu.Lock()
	defer t.mu.Unlock()
	var drafts []event.Draft
	for _, key := range t.clients.Keys() {
		s, _ := t.clients.Peek(key)
		if s.last.Count == 0 || (!all && !due(s.written, now)) {
			continue
		}
		if t.spend(now) {
			drafts = append(drafts, floodEvent(now, key.kind, s.last))
			s.written = now
		} else {
			t.others[key.kind] += s.last.Count
		}
		s.last.Count = 0
	}
	for _, kind := range floodTypes {
		if n := t.others[kind]; n > 0 {
			drafts = append(drafts, floodEvent(now, kind, flood{Flood: event.Flood{Client: otherClients, Count: n}}))
			delete(t.others, kind)
		}
	}
	return drafts
}

// floodTypes are the throttled event types.
var floodTypes = []event.Type{event.TypeRateLimitHit, event.TypeOversizedRequest, event.TypeOperatorAuthFailed, event.TypeWireLoginFailed}

func floodEvent(now time.Time, kind event.Type, f flood) event.Draft {
	shared := event.Context{Actor: systemActor, ReasonCode: string(kind)}
	switch kind {
	case event.TypeRateLimitHit:
		return event.New(now, shared, &event.RateLimitHit{Flood: f.Flood})
	case event.TypeOversizedRequest:
		return event.New(now, shared, &event.OversizedRequest{Flood: f.Flood})
	case event.TypeWireLoginFailed:
		return event.New(now, shared, &event.WireLoginFailed{Cause: f.login.Cause, Client: f.Client, Count: f.Count, SQLState: f.login.SQLState, User: f.login.User})
	default:
		return event.New(now, shared, &event.OperatorAuthFailed{Flood: f.Flood})
	}
}
