package egress

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Rules are what the operator opened beside the public addresses on port 443.
type Rules struct {
	Networks []netip.Prefix // may be reached although they are not public, and with plain http
	Ports    []uint16       // may be reached besides 443
}

// ParseRules reads the settings GATE_EGRESS_ALLOW_CIDRS and
// GATE_EGRESS_ALLOW_PORTS: lists with commas.
func ParseRules(cidrs, ports string) (Rules, error) {
	var r Rules
	for _, text := range words(cidrs) {
		network, err := parseNetwork(text)
		if err != nil {
			return Rules{}, err
		}
		r.Networks = append(r.Networks, network)
	}
	for _, text := range words(ports) {
		port, err := strconv.ParseUint(text, 10, 16)
		if err != nil || port == 0 {
			return Rules{}, fmt.Errorf("%q is no port: write a number from 1 to 65535", text)
		}
		r.Ports = append(r.Ports, uint16(port))
	}
	return r, nil
}

func parseNetwork(text string) (netip.Prefix, error) {
	network, err := netip.ParsePrefix(text)
	switch {
	case err != nil:
		return network, fmt.Errorf("%q is no network: write it like 10.20.0.0/16 or fd00:1234::/48", text)
	case network.Addr().Is4In6():
		return network, fmt.Errorf("%s is an IPv4 network in IPv6 clothes: write it as IPv4", text)
	case network.Bits() == 0:
		return network, fmt.Errorf("%s is every address there is: name the networks that are meant", text)
	case network.Masked() != network:
		return network, fmt.Errorf("%s has bits beyond its length: %s is meant", text, network.Masked())
	}
	return network, nil
}

func words(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
}

// named reports whether the operator opened this address by name.
func (r Rules) named(addr netip.Addr) bool {
	return slices.ContainsFunc(r.Networks, func(n netip.Prefix) bool { return n.Contains(addr) })
}

// split gives the networks by family, as the list of special addresses wants them.
func (r Rules) split() (v4, v6 []netip.Prefix) {
	for _, n := range r.Networks {
		if n.Addr().Is4() {
			v4 = append(v4, n)
		} else {
			v6 = append(v6, n)
		}
	}
	return v4, v6
}
