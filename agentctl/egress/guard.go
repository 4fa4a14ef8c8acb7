package egress

import (
	"crypto/x509"
	"net"
	"net/netip"
	"slices"
	"syscall"

	"code.dny.dev/ssrf"
)

// metadata are metadata services outside the special ranges: Azure's answers on
// an address that looks public.
var metadata = []netip.Prefix{netip.MustParsePrefix("168.63.129.16/32")}

// nat64 addresses carry an IPv4 address in their last 32 bits (RFC 6052 part 2.1).
var nat64 = ssrf.IPv6NAT64Prefix

// A Guard judges URLs and addresses, and gives out visits. It is safe for
// concurrent use.
type Guard struct {
	rules    Rules
	ports    []uint16
	special  *ssrf.Guardian
	resolver *net.Resolver
	roots    *x509.CertPool
	own      func() ([]net.Addr, error)
}

// An Option changes where a guard looks things up, not what it refuses.
type Option func(*Guard)

// WithResolver resolves names with r instead of the system's resolver.
func WithResolver(r *net.Resolver) Option { return func(g *Guard) { g.resolver = r } }

// WithRoots verifies certificates against roots instead of the system's
// authorities.
func WithRoots(roots *x509.CertPool) Option { return func(g *Guard) { g.roots = roots } }

// New makes a guard.
func New(rules Rules, options ...Option) *Guard {
	g := &Guard{rules: rules, ports: append([]uint16{443}, rules.Ports...), resolver: net.DefaultResolver, own: net.InterfaceAddrs}
	v4, v6 := rules.split()
	g.special = ssrf.New(ssrf.WithPorts(g.ports...), ssrf.WithAllowedV4Prefixes(v4...), ssrf.WithAllowedV6Prefixes(v6...), ssrf.WithDeniedV4Prefixes(metadata...))
	for _, option := range options {
		option(g)
	}
	return g
}

// Rules are what the operator opened, for reports.
func (g *Guard) Rules() Rules { return g.rules }

// control judges a connection before its first packet (net.Dialer.Control): the
// address is the resolved one, so there is nothing left that could change.
func (g *Guard) control(plain bool) func(network, address string, c syscall.RawConn) error {
	return func(network, address string, c syscall.RawConn) error {
		if err := g.special.Safe(network, address, c); err != nil {
			return blocked()
		}
		target, err := netip.ParseAddrPort(address)
		if err != nil {
			return blocked()
		}
		if plain && !g.rules.named(target.Addr()) {
			return refuse(Blocked, "Plain http is for addresses in networks that the operator opened.")
		}
		return g.judgeAddr(target.Addr())
	}
}

func blocked() *Refusal {
	return refuse(Blocked, "The host's address is not one that tools may have: it is not public, and the operator did not open its network.")
}

// judgeAddr is the judgement of the address alone.
func (g *Guard) judgeAddr(addr netip.Addr) error {
	if g.special.SafeAddr(addr) != nil {
		return blocked()
	}
	// An operator who opens a NAT64 network does not mean the loopback behind it.
	if nat64.Contains(addr) {
		b := addr.As16()
		return g.judgeAddr(netip.AddrFrom4([4]byte(b[12:])))
	}
	if g.rules.named(addr) {
		return nil
	}
	return g.judgeOwn(addr)
}

// judgeOwn refuses this machine's own addresses: a public one leads to the same
// listeners as loopback, from inside.
func (g *Guard) judgeOwn(addr netip.Addr) error {
	own, err := g.own()
	if err != nil {
		return refuse(Blocked, "The machine's own addresses cannot be read, so none can be told apart from them.")
	}
	if slices.ContainsFunc(own, func(a net.Addr) bool { return isOwn(a, addr) }) {
		return blocked()
	}
	return nil
}

func isOwn(own net.Addr, addr netip.Addr) bool {
	network, ok := own.(*net.IPNet)
	if !ok {
		return false
	}
	mine, ok := netip.AddrFromSlice(network.IP)
	return ok && mine.Unmap() == addr
}
