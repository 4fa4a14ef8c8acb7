package httpd

import (
	"net/netip"
	"sync"
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
	s.taken++
	s.held[holder]++
	return sync.OnceFunc(func() { s.release(holder) }), false, true
}

func (s *Slots) release(holder string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken--
	if s.held[holder]--; s.held[holder] == 0 {
		delete(s.held, holder)
	}
}

// Each is how many slots one holder may have.
func (s *Slots) Each() int { return s.each }

// Total is how many slots there are.
func (s *Slots) Total() int { return s.total }

// Holder is the client as one who holds slots: of an IPv6 address the network of
// 64 bits, in which a host has as many addresses as it wants (RFC 4291 part 2.5.4).
func (c *Call) Holder() string { return HolderOf(c.Client()) }

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
