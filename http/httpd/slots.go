package httpd

import (
	"net/netip"
	"sync"

	"writegate/commands/fault"
)

// Slots bound something that lasts, such as a stream: how many there are at
// once, and how many of one holder, so that one can't take them from all others.
type Slots struct {
	total, each int

	mu    sync.Mutex
	taken int
	held  map[string]int
}

// NewSlots makes Slots of total, of which one holder gets each at most.
func NewSlots(total, each int) *Slots {
	return &Slots{total: total, each: min(each, total), held: make(map[string]int)}
}

// Take gives a slot to a holder; release gives it back, once. own tells, where
// there is none, that the holder has all that one may have.
func (s *Slots) Take(holder string) (release func(), own, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[holder] >= s.each {
		return nil, true, false
	}
	if s.taken >= s.total {
		return nil, false, false
	}
	return s.take(holder, 1), false, true
}

// TakeSome gives n slots of a holder, or none. They are given back by Give.
func (s *Slots) TakeSome(holder string, n int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[holder]+n > s.each || s.taken+n > s.total {
		return false
	}
	s.taken += n
	s.held[holder] += n
	return true
}

// Give gives back what TakeSome gave.
func (s *Slots) Give(holder string, n int) {
	if n > 0 {
		s.release(holder, n)
	}
}

// TakeAll gives n slots, whether there are so many or not: of what is there already
// and can only be told to be too much for the next one.
func (s *Slots) TakeAll(holder string, n int) (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.take(holder, n)
}

// Left tells whether a holder could take one.
func (s *Slots) Left(holder string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held[holder] < s.each && s.taken < s.total
}

func (s *Slots) take(holder string, n int) (release func()) {
	s.taken += n
	s.held[holder] += n
	return sync.OnceFunc(func() { s.release(holder, n) })
}

func (s *Slots) release(holder string, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken -= n
	if s.held[holder] -= n; s.held[holder] == 0 {
		delete(s.held, holder)
	}
}

// Each is how many slots one holder may have.
func (s *Slots) Each() int { return s.each }

// Total is how many slots there are.
func (s *Slots) Total() int { return s.total }

// Shares are Slots of all clients, and as many of all operators: whoever shows an
// operator's token has slots of their own, which are not taken by those without.
type Shares struct{ all, operators *Slots }

// NewShares makes Shares of total, of which one client gets each at most.
func NewShares(total, each int) Shares {
	return Shares{NewSlots(total, each), NewSlots(total, total)}
}

// Take gives a slot to the caller. what names, in a refusal, what there can be no
// more of at once; the refusal is a fault rate_limit_exceeded.
func (s Shares) Take(c *Call, what string, retryAfterSeconds int) (release func(), err error) {
	label, err := c.OperatorLabel()
	if err != nil {
		return nil, err
	}
	slots, holder := s.all, c.Holder()
	if label != "" {
		slots, holder = s.operators, label
	}
	release, own, ok := slots.Take(holder)
	switch {
	case ok:
		return release, nil
	case own:
		err = fault.New(fault.RateLimitExceeded, "This client has %d %s at once, and may have no more. Try again when one has ended.", slots.Each(), what)
	default:
		err = fault.New(fault.RateLimitExceeded, "There are %d %s at once already, and no more may be. Try again when one has ended.", slots.Total(), what)
	}
	return nil, fault.Of(err).With(retryAfter, retryAfterSeconds)
}

// TakeFor gives a slot to a holder of whom no token is known.
func (s Shares) TakeFor(holder string) (release func(), ok bool) {
	release, _, ok = s.all.Take(holder)
	return release, ok
}

// Holder is the client as one who holds slots: of an IPv6 address the network of
// 64 bits, in which a host has as many addresses as it wants (RFC 4291 part 2.5.4).
func (c *Call) Holder() string {
	if c.holder != "" {
		return c.holder
	}
	return HolderOf(c.Client())
}

// HoldAs names who holds the slots that the call takes, where a credential says
// it better than an address.
func (c *Call) HoldAs(holder string) { c.holder = holder }

// HolderOf is that of a client by its name.
func HolderOf(client string) string {
	addr, err := netip.ParseAddr(client)
	if err != nil || !addr.Is6() {
		return client
	}
	network, err := addr.WithZone("").Prefix(64)
	if err != nil {
		return client
	}
	return network.String()
}
