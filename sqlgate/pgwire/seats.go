package pgwire

import (
	"net/netip"
	"slices"
	"time"
)

// Seats of connections that are let in for a CancelRequest alone, where all others
// that need no login are taken. It is one packet: they are given on quickly.
const (
	cancelSeats = 32
	cancelTime  = 5 * time.Second
)

// seats count connections against their limits. The Server's lock guards them.
// Only who has logged in counts against the limits of connections: a stranger takes
// nothing from those.
type seats struct {
	most, mostPerAddress int

	strangers  pending // that have not logged in
	cancels    pending // beyond those
	loggedIn   int
	perAddress map[netip.Addr]int
}

func newSeats(o *Options) seats {
	return seats{
		most: o.MaxConnections, mostPerAddress: o.MaxPerAddress, perAddress: map[netip.Addr]int{},
		strangers: newPending(o.MaxUnauthenticated), cancels: newPending(cancelSeats),
	}
}

// enter gives a connection a seat, among the cancels where there is no other; one
// that it displaced has none any more.
func (s *seats) enter(c *conn) (displaced *conn) {
	displaced, ok := s.strangers.enter(c, false)
	if !ok {
		c.cancelOnly = true
		displaced, _ = s.cancels.enter(c, true)
	}
	return displaced
}

// full reports whether a client may not log in now.
func (s *seats) full(c *conn) bool {
	return s.loggedIn >= s.most || s.perAddress[c.addr] >= s.mostPerAddress
}

func (s *seats) leave(c *conn) {
	if c.waiting != nil {
		c.waiting.leave(c)
	}
	if !c.loggedIn {
		return
	}
	s.loggedIn--
	if s.perAddress[c.addr]--; s.perAddress[c.addr] == 0 {
		delete(s.perAddress, c.addr)
	}
}

// admit refuses a client early that could not be let in after its login either. It
// is asked after the first packet: a CancelRequest needs no such seat.
func (s *Server) admit(c *conn) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seats.full(c) {
		return tooMany()
	}
	return nil
}

// welcome counts a connection that logged in.
func (s *Server) welcome(c *conn) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.waiting == nil || s.seats.full(c) {
		return tooMany()
	}
	c.waiting.leave(c)
	s.seats.loggedIn++
	s.seats.perAddress[c.addr]++
	c.loggedIn = true
	return nil
}

// holder is whom a connection counts for until it logs in: its address, and of an IPv6 address the
// network of 64 bits, in which a host has as many addresses as it wants (RFC 4291
// part 2.5.4).
func (c *conn) holder() netip.Prefix {
	bits := c.addr.BitLen()
	if c.addr.Is6() {
		bits = 64
	}
	network, _ := c.addr.Prefix(bits) // fails for what is no address: all of those are one
	return network
}

// pending are connections that have not logged in, of each holder in the order in
// which they came. One holder may have all seats as long as nobody else wants one:
// then whoever has fewer takes that of the oldest of whoever has most.
type pending struct {
	most  int
	count int
	of    map[netip.Prefix][]*conn
}

func newPending(most int) pending {
	return pending{most: most, of: map[netip.Prefix][]*conn{}}
}

// enter gives a seat. always displaces somebody where there is none, also one of
// the same holder; else only who stays behind with no fewer seats is displaced.
func (p *pending) enter(c *conn, always bool) (displaced *conn, ok bool) {
	holder := c.holder()
	if p.count >= p.most {
		from, held := p.largest()
		own := len(p.of[holder])
		switch {
		case held > own+1:
		case !always:
			return nil, false
		case own == held:
			from = holder
		}
		displaced = p.of[from][0]
		p.leave(displaced)
	}
	p.count++
	p.of[holder] = append(p.of[holder], c)
	c.waiting = p
	return displaced, true
}

// largest is who has most seats.
func (p *pending) largest() (holder netip.Prefix, held int) {
	for h, conns := range p.of {
		if len(conns) > held {
			holder, held = h, len(conns)
		}
	}
	return holder, held
}

func (p *pending) leave(c *conn) {
	c.waiting = nil
	p.count--
	holder := c.holder()
	left := slices.DeleteFunc(p.of[holder], func(other *conn) bool { return other == c })
	if p.of[holder] = left; len(left) == 0 {
		delete(p.of, holder)
	}
}
