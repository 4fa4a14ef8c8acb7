package httpd

import (
	"cmp"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"writegate/commands/fault"
)

// Names are what a listener is called: a request for another name is refused,
// so that a name of somebody else's that leads here (DNS rebinding) shows
// nothing, and a page of another origin (RFC 6454) has nothing done. An IP
// address and localhost are always names of the listener: nobody can make one
// of them mean another host. A nil *Names knows no other name.
type Names struct {
	// Public, where it is set, is the listener's only origin: no other name, and
	// no address, is taken then.
	Public *url.URL
	// Secure tells that browsers come by HTTPS although the listener itself has
	// no certificate.
	Secure bool
	// Setting is what a refusal tells to set; "" is GATE_ALLOWED_HOSTS.
	Setting string

	hosts map[string]bool // name or name:port, as hostOf gives them
}

// ParseNames reads a comma-separated list of host names, each with any port or,
// as name:port, with this one.
func ParseNames(list string) (*Names, error) {
	n := &Names{hosts: make(map[string]bool)}
	for item := range strings.SplitSeq(list, ",") {
		if item = strings.TrimSpace(item); item == "" {
			continue
		}
		name, port, ok := hostOf(item)
		if !ok || name == "" || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-_.") != "" {
			return nil, fmt.Errorf("%q is no host name such as gate.example or gate.example:6543; a name outside of ASCII is written as xn--", item)
		}
		n.hosts[joined(name, port)] = true
	}
	return n, nil
}

// hostOf takes a Host apart (RFC 9110 part 7.2): the name in small letters and
// without the final dot of DNS, an IPv6 address without its brackets.
func hostOf(host string) (name, port string, ok bool) {
	switch end := strings.LastIndexByte(host, ']'); {
	case strings.HasPrefix(host, "["):
		if end < 0 {
			return "", "", false
		}
		name, port = host[1:end], host[end+1:]
	case strings.Count(host, ":") == 1:
		colon := strings.IndexByte(host, ':')
		name, port = host[:colon], host[colon:]
	default:
		name = host
	}
	if port != "" && (port[0] != ':' || strings.Trim(port[1:], "0123456789") != "") {
		return "", "", false
	}
	return strings.TrimSuffix(strings.ToLower(name), "."), strings.TrimPrefix(port, ":"), true
}

func joined(name, port string) string {
	if port == "" {
		return name
	}
	return name + ":" + port
}

// authority is a host with its port, also where that is the one of its scheme.
func authority(scheme, host string) string {
	name, port, ok := hostOf(host)
	if !ok {
		return ""
	}
	return joined(name, cmp.Or(port, map[string]string{"http": "80", "https": "443"}[scheme]))
}

// called reports whether a request calls the listener by one of its names. One of HTTP/1.0
// that names no host comes from no browser; load balancers send such.
func (n *Names) called(r *http.Request) bool {
	return n.known(r.Host) || r.Host == "" && !r.ProtoAtLeast(1, 1) && (n == nil || n.Public == nil)
}

// known reports whether a Host is one of the names.
func (n *Names) known(host string) bool {
	if n != nil && n.Public != nil {
		return authority(n.Public.Scheme, host) == authority(n.Public.Scheme, n.Public.Host)
	}
	name, port, ok := hostOf(host)
	if !ok {
		return false
	}
	if name == "localhost" || n.listed(name, port) {
		return true
	}
	_, err := netip.ParseAddr(name)
	return err == nil
}

func (n *Names) listed(name, port string) bool {
	return n != nil && (n.hosts[name] || n.hosts[joined(name, port)])
}

// own reports whether an Origin is the listener's, as this request sees it. Who
// is known by a name of the list may stand behind a proxy that ends TLS.
func (n *Names) own(origin string, r *http.Request) bool {
	scheme, host, ok := strings.Cut(origin, "://")
	if !ok {
		return false
	}
	if n != nil && n.Public != nil {
		return scheme == n.Public.Scheme && authority(scheme, host) == authority(scheme, n.Public.Host)
	}
	switch scheme {
	case "http":
		ok = r.TLS == nil && (n == nil || !n.Secure)
	case "https":
		name, port, _ := hostOf(r.Host)
		ok = r.TLS != nil || n != nil && n.Secure || n.listed(name, port)
	default:
		return false
	}
	return ok && host != "" && authority(scheme, host) == authority(scheme, r.Host)
}

// admit refuses a request that does not know whom it speaks to, and one that a
// web page of another origin had a browser send, whatever it asks for: pages
// must neither have anything done here nor learn anything. A program names no
// origin and no site.
func (c *Call) admit() error {
	r, names := c.Request, c.mux.names
	if !names.called(r) {
		setting := "GATE_ALLOWED_HOSTS"
		if names != nil && names.Setting != "" {
			setting = names.Setting
		}
		// the name is for the log alone: to who asks through a proxy it says where the service is
		return fault.New(fault.MisdirectedRequest, "This service is not known by the name that it was called by, so nothing was done. Use its address or localhost, or add the name to %s.", setting).
			Because(fmt.Errorf("the Host is %q", clip(r.Host, maxNameInMessage)))
	}
	if c.foreign() {
		return fault.New(fault.ForbiddenOrigin, "A web page of another origin sent this request, so nothing was done. Use the service's own pages, or a program, which sends neither Origin nor Sec-Fetch-Site.")
	}
	return nil
}

// foreign reports a page of another origin, also of another port or another name
// of the same site (https://www.w3.org/TR/fetch-metadata/).
func (c *Call) foreign() bool {
	r := c.Request
	for _, site := range r.Header["Sec-Fetch-Site"] {
		if site != "same-origin" && site != "none" && !(c.mux.pages && opensPage(r)) {
			return true
		}
	}
	origins := r.Header["Origin"]
	return len(origins) > 1 || len(origins) == 1 && !c.mux.names.own(origins[0], r)
}

// opensPage reports a person who follows a link: the answer is shown to the
// person alone.
func opensPage(r *http.Request) bool {
	return (r.Method == http.MethodGet || r.Method == http.MethodHead) &&
		r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document"
}

// FromOwnPage reports whether a browser says of a request that a page of the
// listener's own sent it: by its Origin or, where it leaves that out, by
// Sec-Fetch-Site. It is false for a program.
func (c *Call) FromOwnPage() bool {
	r := c.Request
	return !c.foreign() && (r.Header.Get("Origin") != "" || r.Header.Get("Sec-Fetch-Site") == "same-origin")
}

// pageHeaders keep browsers from showing, running or handing to another page
// what a program is meant to read (https://fetch.spec.whatwg.org/#cross-origin-resource-policy-header).
var pageHeaders = map[string]string{
	"Content-Security-Policy":      "default-src 'none'; frame-ancestors 'none'",
	"Cross-Origin-Resource-Policy": "same-origin",
}
