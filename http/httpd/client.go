package httpd

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"writegate/sqlgate/tlsfiles"
)

// Proxies are the peers whose X-Forwarded-For is believed (GATE_TRUSTED_PROXIES).
// A nil *Proxies believes nobody.
type Proxies struct {
	networks []netip.Prefix
}

// ParseProxies reads a comma-separated list of CIDR ranges and addresses.
func ParseProxies(list string) (*Proxies, error) {
	p := new(Proxies)
	for item := range strings.SplitSeq(list, ",") {
		item = strings.TrimSpace(item)
		if item == "" {
			continue
		}
		network, err := parseNetwork(item)
		if err != nil {
			return nil, fmt.Errorf("trusted proxy %q is neither an address nor a CIDR range", item)
		}
		p.networks = append(p.networks, network)
	}
	return p, nil
}

func parseNetwork(s string) (netip.Prefix, error) {
	if strings.Contains(s, "/") {
		network, err := netip.ParsePrefix(s)
		return network.Masked(), err
	}
	addr, err := netip.ParseAddr(s)
	addr = addr.Unmap()
	return netip.PrefixFrom(addr, addr.BitLen()), err
}

func (p *Proxies) trusts(addr netip.Addr) bool {
	if p == nil {
		return false
	}
	for _, network := range p.networks {
		if network.Contains(addr) {
			return true
		}
	}
	return false
}

// client names who sent a request.
func (p *Proxies) client(r *http.Request) string {
	if subject := TLSSubject(r); subject != "" {
		return subject
	}
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		host = r.RemoteAddr
	}
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return host
	}
	addr = addr.Unmap()
	if p.trusts(addr) {
		addr = p.forwarded(r.Header.Values("X-Forwarded-For"), addr)
	}
	return addr.String()
}

// forwarded walks X-Forwarded-For from its end, where our own proxies wrote,
// to the first address that is none of them. What stands before that is the
// client's own word.
func (p *Proxies) forwarded(headers []string, peer netip.Addr) netip.Addr {
	hops := strings.Split(strings.Join(headers, ","), ",")
	for i := len(hops) - 1; i >= 0 && p.trusts(peer); i-- {
		addr, err := netip.ParseAddr(strings.TrimSpace(hops[i]))
		if err != nil {
			break
		}
		peer = addr.Unmap()
	}
	return peer
}

// TLSSubject is the name of the verified client certificate, its subject as a rule
// (tlsfiles.ClientName), or "" without one.
func TLSSubject(r *http.Request) string {
	if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
		return ""
	}
	return tlsfiles.ClientName(r.TLS.VerifiedChains[0][0])
}
