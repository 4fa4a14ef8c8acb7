package egress_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/agentctl/egress"
	"writegate/fixtures/loopback"
)

// Every way round the guard that is known, by name. PORT is the port of a TLS
// server on 127.0.0.1, which the operator's list of ports allows, so that only
// the judgement of the host stands in the way; PLAIN is one without TLS.
var bypasses = []struct {
	name, url string
	code      egress.Code
}{
	{"loopback by address", "https://127.0.0.1:PORT/", egress.Blocked},
	{"loopback by another address", "https://127.8.8.8:PORT/", egress.Blocked},
	{"loopback by the name of the hosts file", "https://localhost:PORT/", egress.Blocked},
	{"loopback by a name", "https://inside.test:PORT/", egress.Blocked},
	{"loopback by a name in capitals", "https://INSIDE.TEST:PORT/", egress.Blocked},
	{"loopback through a CNAME to localhost", "https://alias.test:PORT/", egress.Blocked},
	{"loopback in IPv6", "https://[::1]:PORT/", egress.Blocked},
	{"loopback in IPv6 written long", "https://[0:0:0:0:0:0:0:1]:PORT/", egress.Blocked},
	{"the unspecified address, which means this host", "https://0.0.0.0:PORT/", egress.Blocked},
	{"the unspecified address in IPv6", "https://[::]:PORT/", egress.Blocked},
	{"this network", "https://0.1.2.3:PORT/", egress.Blocked},
	{"address as one decimal number", "https://2130706433:PORT/", egress.URLForbidden},
	{"address as one hexadecimal number", "https://0x7f000001:PORT/", egress.URLForbidden},
	{"address with octal parts", "https://0177.0.0.1:PORT/", egress.URLForbidden},
	{"address with hexadecimal parts", "https://0x7f.0x0.0x0.0x1:PORT/", egress.URLForbidden},
	{"address with parts left out", "https://127.1:PORT/", egress.URLForbidden},
	{"address of one zero", "https://0:PORT/", egress.URLForbidden},
	{"address with leading zeros", "https://127.000.000.001:PORT/", egress.URLForbidden},
	{"address with a part that overflows", "https://127.0.0.257:PORT/", egress.URLForbidden},
	{"address with five parts", "https://127.0.0.0.1:PORT/", egress.URLForbidden},
	{"IPv4 mapped into IPv6", "https://[::ffff:127.0.0.1]:PORT/", egress.Blocked},
	{"IPv4 mapped into IPv6 in hexadecimal", "https://[::ffff:7f00:1]:PORT/", egress.Blocked},
	{"IPv4 compatible IPv6", "https://[::127.0.0.1]:PORT/", egress.Blocked},
	{"IPv4 translated, SIIT", "https://[::ffff:0:127.0.0.1]:PORT/", egress.Blocked},
	{"NAT64", "https://[64:ff9b::127.0.0.1]:PORT/", egress.Blocked},
	{"NAT64 of local use", "https://[64:ff9b:1::127.0.0.1]:PORT/", egress.Blocked},
	{"NAT64 by a name", "https://nat64.test:PORT/", egress.Blocked},
	{"6to4", "https://[2002:7f00:1::]:PORT/", egress.Blocked},
	{"Teredo", "https://[2001:0:7f00:1::]:PORT/", egress.Blocked},
	{"mapped address by a name", "https://mapped.test:PORT/", egress.Blocked},
	{"private 10/8", "https://10.0.0.1/", egress.Blocked},
	{"private 172.16/12", "https://172.16.0.1/", egress.Blocked},
	{"private 192.168/16", "https://192.168.1.1/", egress.Blocked},
	{"private by a name", "https://private.test/", egress.Blocked},
	{"unique local IPv6", "https://[fd12:3456::1]/", egress.Blocked},
	{"site local IPv6", "https://[fec0::1]/", egress.Blocked},
	{"link local IPv6", "https://[fe80::1]/", egress.Blocked},
	{"link local IPv6 with a zone", "https://[fe80::1%25eth0]/", egress.URLForbidden},
	{"loopback with a zone", "https://[::1%25lo]:PORT/", egress.URLForbidden},
	{"shared address space", "https://100.64.0.1/", egress.Blocked},
	{"metadata service, link local", "https://169.254.169.254/latest/meta-data/", egress.Blocked},
	{"metadata service by a name", "https://metadata.test/", egress.Blocked},
	{"metadata service of ECS", "https://169.254.170.2/", egress.Blocked},
	{"metadata service in IPv6", "https://[fd00:ec2::254]/", egress.Blocked},
	{"metadata service in shared space", "https://100.100.100.200/", egress.Blocked},
	{"metadata service among protocol assignments", "https://192.0.0.192/", egress.Blocked},
	{"metadata service on an address that looks public", "https://168.63.129.16/", egress.Blocked},
	{"multicast", "https://224.0.0.1/", egress.Blocked},
	{"multicast IPv6", "https://[ff02::1]/", egress.Blocked},
	{"broadcast", "https://255.255.255.255/", egress.Blocked},
	{"reserved", "https://240.0.0.1/", egress.Blocked},
	{"benchmarking network", "https://198.18.0.1/", egress.Blocked},
	{"documentation network", "https://[2001:db8::1]/", egress.Blocked},
	{"trailing dot", "https://inside.test.:PORT/", egress.URLForbidden},
	{"trailing dot behind an address", "https://127.0.0.1.:PORT/", egress.URLForbidden},
	{"trailing dot behind localhost", "https://localhost.:PORT/", egress.URLForbidden},
	{"empty label", "https://inside..test:PORT/", egress.URLForbidden},
	{"user info", "https://public.test@127.0.0.1:PORT/", egress.URLForbidden},
	{"user and password", "https://a:b@public.test/", egress.URLForbidden},
	{"empty user info", "https://@127.0.0.1:PORT/", egress.URLForbidden},
	{"backslash for a slash", `https://public.test\@127.0.0.1:PORT/`, egress.URLForbidden},
	{"fragment before user info", "https://127.0.0.1:PORT#@public.test/", egress.URLForbidden},
	{"percent-encoded host", "https://%31%32%37.0.0.1:PORT/", egress.URLForbidden},
	{"percent-encoded dot in a host", "https://inside%2etest:PORT/", egress.URLForbidden},
	{"digits in circles, which fold to an address", "https://①②⑦.⓪.⓪.①:PORT/", egress.URLForbidden},
	{"full-width dots", "https://127。0。0。1:PORT/", egress.URLForbidden},
	{"a host in letters of another script", "https://lоcalhost:PORT/", egress.URLForbidden},
	{"percent-encoded letters of another script", "https://l%D0%BEcalhost:PORT/", egress.URLForbidden},
	{"soft hyphen inside a host", "https://local\u00adhost:PORT/", egress.URLForbidden},
	{"tab inside a host", "https://local\thost:PORT/", egress.URLForbidden},
	{"line break inside a URL", "https://public.test/\r\nHost: inside", egress.URLForbidden},
	{"space before a URL", " https://127.0.0.1:PORT/", egress.URLForbidden},
	{"empty host", "https:///path", egress.URLForbidden},
	{"port without a host", "https://:PORT/", egress.URLForbidden},
	{"no scheme", "//127.0.0.1:PORT/", egress.URLForbidden},
	{"opaque URL", "https:127.0.0.1:PORT", egress.URLForbidden},
	{"http to loopback", "http://127.0.0.1:PLAIN/", egress.URLForbidden},
	{"http by a name to loopback", "http://inside.test:PLAIN/", egress.Blocked},
	{"http by a name to a public address", "http://elsewhere.test:PLAIN/", egress.Blocked},
	{"http to a mapped address", "http://[::ffff:127.0.0.1]:PLAIN/", egress.URLForbidden},
	{"file", "file:///etc/passwd", egress.URLForbidden},
	{"gopher", "gopher://127.0.0.1:PORT/_INFO", egress.URLForbidden},
	{"ftp", "ftp://127.0.0.1/", egress.URLForbidden},
	{"unix socket", "unix:///run/docker.sock", egress.URLForbidden},
	{"javascript", "javascript:alert(1)", egress.URLForbidden},
	{"data", "data:text/plain,hello", egress.URLForbidden},
	{"port of a database", "https://public.test:5432/", egress.URLForbidden},
	{"port of mail", "https://public.test:25/", egress.URLForbidden},
	{"port zero", "https://public.test:0/", egress.URLForbidden},
	{"port that wraps round to 443", "https://public.test:65979/", egress.URLForbidden},
	{"port with a sign", "https://public.test:+443/", egress.URLForbidden},
	{"port left out behind its colon", "https://public.test:/", egress.URLForbidden},
	{"a URL without end", "https://public.test/" + strings.Repeat("a", 4096), egress.URLForbidden},
	{"a host without end", "https://" + strings.Repeat("a.", 200) + "test/", egress.URLForbidden},
}

func insideRig(t *testing.T) (r *loopback.Internet, secure, plain string) {
	r = loopback.New(t)
	reached := hello
	secure, _ = r.Serve(loopback.Inside, true, reached)
	plain, _ = r.Serve(loopback.Inside, false, reached)
	r.Names.Has("inside.test", []string{"127.0.0.1"})
	r.Names.Has("alias.test", []string{"cname:localhost", "127.0.0.1"})
	r.Names.Has("nat64.test", []string{"64:ff9b::7f00:1"})
	r.Names.Has("mapped.test", []string{"::ffff:127.0.0.1"})
	r.Names.Has("private.test", []string{"10.1.2.3", "192.168.7.7"})
	r.Names.Has("metadata.test", []string{"169.254.169.254"})
	r.Names.Has("public.test", []string{"127.0.0.2"})
	r.Names.Has("elsewhere.test", []string{"93.184.216.34"}) // is refused before the first packet
	return r, secure, plain
}

func TestNoWayRoundTheGuard(t *testing.T) {
	r, secure, plain := insideRig(t)
	guard := guardOf(r)
	for _, c := range bypasses {
		t.Run(c.name, func(t *testing.T) {
			url := strings.ReplaceAll(strings.ReplaceAll(c.url, "PORT", secure), "PLAIN", plain)
			_, _, refusal := visit(t, guard, url, egress.Credential{})
			require.NotNil(t, refusal)
			require.Equal(t, c.code, refusal.Code, refusal.Why)
			r.RequireInsideUntouched(t)
		})
	}
	require.Greater(t, len(bypasses), 30)
}

// The same ways as the Location of a redirect: whatever they are refused for,
// the redirect is.
func TestNoRedirectLeadsRoundTheGuard(t *testing.T) {
	r, secure, plain := insideRig(t)
	var location string
	port, _ := r.Serve(loopback.Public, true, func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["Location"] = []string{location}
		w.WriteHeader(http.StatusTemporaryRedirect)
	})
	guard := guardOf(r)
	for _, c := range bypasses {
		switch c.name {
		case "line break inside a URL", "tab inside a host", "space before a URL":
			continue // no header can carry them
		}
		t.Run(c.name, func(t *testing.T) {
			location = strings.ReplaceAll(strings.ReplaceAll(c.url, "PORT", secure), "PLAIN", plain)
			resp, _, refusal := visit(t, guard, "https://public.test:"+port+"/", egress.Credential{})
			require.NotNil(t, refusal, "%v", resp)
			require.Equal(t, egress.RedirectBlocked, refusal.Code, refusal.Why)
			r.RequireInsideUntouched(t)
		})
	}
}
