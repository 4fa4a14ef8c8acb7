package egress

import "net"

// WithOwnAddresses lets a test say which addresses the machine has.
func WithOwnAddresses(own func() ([]net.Addr, error)) Option {
	return func(g *Guard) { g.own = own }
}
