package egress

import (
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

const maxURLBytes = 2048

// ParseURL reads a URL that a client named and judges what can be judged
// without the network. The error is a *Refusal.
func (g *Guard) ParseURL(text string) (*url.URL, error) {
	if len(text) > maxURLBytes {
		return nil, refuse(URLForbidden, "The URL is longer than %d bytes.", maxURLBytes)
	}
	// Parsers disagree about the rest: spaces, controls, backslashes and
	// characters that some fold into others.
	if strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' || r == '\\' }) {
		return nil, refuse(URLForbidden, "The URL has characters besides plain ASCII. Write a host in its xn-- form and the rest percent-encoded.")
	}
	u, err := url.Parse(text)
	if err != nil {
		return nil, refuse(URLForbidden, "The URL cannot be read.")
	}
	if err := g.judgeURL(u); err != nil {
		return nil, err
	}
	return u, nil
}

// judgeURL holds for the first URL and for each one that a redirect names.
func (g *Guard) judgeURL(u *url.URL) error {
	switch {
	case u.Scheme != "https" && u.Scheme != "http":
		return refuse(URLForbidden, "The URL must begin with https://.")
	case u.Opaque != "" || u.Host == "":
		return refuse(URLForbidden, "The URL names no host.")
	case u.User != nil:
		return refuse(URLForbidden, "The URL carries user info. Name a secret in auth instead.")
	case u.Fragment != "":
		return refuse(URLForbidden, "The URL carries a fragment, which no server ever sees.")
	}
	if err := judgeHost(u.Hostname()); err != nil {
		return err
	}
	if err := g.judgePort(u); err != nil {
		return err
	}
	return g.judgeNow(u)
}

// judgeHost takes one spelling of a host. What a resolver might read as a number
// in disguise (0x7f.1, 2130706433) is refused before any resolver sees it.
func judgeHost(host string) error {
	if addr, err := netip.ParseAddr(host); err == nil {
		if addr.Zone() != "" {
			return refuse(URLForbidden, "The address in the URL carries a zone.")
		}
		return nil
	}
	labels := strings.Split(host, ".")
	if len(host) > 253 || slices.ContainsFunc(labels, badLabel) {
		return refuse(URLForbidden, "The host in the URL is no host name.")
	}
	if last := labels[len(labels)-1]; strings.Trim(last, "0123456789") == "" || strings.HasPrefix(strings.ToLower(last), "0x") {
		return refuse(URLForbidden, "The host in the URL ends in a number and is no address.")
	}
	return nil
}

func badLabel(label string) bool {
	return label == "" || len(label) > 63 || strings.ContainsFunc(label, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_')
	})
}

func (g *Guard) judgePort(u *url.URL) error {
	if strings.HasSuffix(u.Host, ":") {
		return refuse(URLForbidden, "The URL has a colon and no port behind it.")
	}
	port, err := strconv.ParseUint(portOf(u), 10, 16)
	if err != nil || !slices.Contains(g.ports, uint16(port)) {
		return refuse(URLForbidden, "The port is not 443 and not one that the operator opened.")
	}
	return nil
}

// judgeNow tells early what the dialer would tell late.
func (g *Guard) judgeNow(u *url.URL) error {
	addr, err := netip.ParseAddr(u.Hostname())
	if u.Scheme == "http" && (len(g.rules.Networks) == 0 || err == nil && !g.rules.named(addr.Unmap())) {
		return refuse(URLForbidden, "Plain http is for hosts in networks that the operator opened. Use https.")
	}
	if err != nil {
		return nil
	}
	return g.judgeAddr(addr.Unmap())
}

func portOf(u *url.URL) string {
	switch port := u.Port(); {
	case port != "":
		return port
	case u.Scheme == "http":
		return "80"
	default:
		return "443"
	}
}

// An origin is what a credential belongs to (RFC 6454 part 4).
type origin struct{ scheme, host, port string }

func originOf(u *url.URL) origin {
	return origin{u.Scheme, strings.ToLower(u.Hostname()), portOf(u)}
}
