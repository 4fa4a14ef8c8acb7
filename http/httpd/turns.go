package httpd

import (
	"sync"
	"time"

	"writegate/commands/fault"
)

// Bounds on what is read for one client at once. A GET is counted by no rate, and
// what it reads takes time and memory before its answer is there: with these, one
// client that asks for much waits for itself.
const (
	readsEach    = 16
	readsMaxWait = 10 * time.Second
)

// turns bound how many requests of one holder are worked on at once. Those that come
// on top wait.
type turns struct {
	each int
	wait time.Duration

	mu sync.Mutex
	of map[string]*turnsOf
}

// turnsOf are one holder's; users hold one or wait for one.
type turnsOf struct {
	slots chan struct{}
	users int
}

func newTurns(each int, wait time.Duration) *turns {
	return &turns{each: each, wait: wait, of: make(map[string]*turnsOf)}
}

// take waits for a turn of the holder; end gives it back, once.
func (t *turns) take(done <-chan struct{}, holder string) (end func(), err error) {
	t.mu.Lock()
	own := t.of[holder]
	if own == nil {
		own = &turnsOf{slots: make(chan struct{}, t.each)}
		t.of[holder] = own
	}
	own.users++
	t.mu.Unlock()
	select {
	case own.slots <- struct{}{}:
	default:
		timer := time.NewTimer(t.wait)
		defer timer.Stop()
		select {
		case own.slots <- struct{}{}:
		case <-done:
			err = fault.New(fault.RateLimitExceeded, "The request ended while it waited for others of this client. Send it again.")
		case <-timer.C:
			err = fault.New(fault.RateLimitExceeded, "%d requests of this client are worked on at once, and the others did not end in time. Send fewer at once, and this one again.", t.each)
		}
	}
	if err != nil {
		t.leave(holder, own)
		return nil, fault.Of(err).With(retryAfter, 1)
	}
	return sync.OnceFunc(func() { <-own.slots; t.leave(holder, own) }), nil
}

func (t *turns) leave(holder string, own *turnsOf) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if own.users--; own.users == 0 {
		delete(t.of, holder)
	}
}

// reading is a handler that has its turn among those that only read. A stream gives
// it back as it begins. An operator is a client beside those of the same address.
func (m *Mux) reading(h Handler) Handler {
	return func(c *Call) (err error) {
		holder := c.Holder()
		if label, _ := m.operators.Label(c.Request); label != "" {
			holder = "operator " + label
		}
		if c.endRead, err = m.reads.take(c.Request.Context().Done(), holder); err != nil {
			return err
		}
		defer c.endRead()
		return h(c)
	}
}
