package egress_test

import (
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/agentctl/egress"
)

func TestRulesAreListsWithCommas(t *testing.T) {
	rules, err := egress.ParseRules("10.20.0.0/16, fd00:1234::/48,192.168.1.7/32", "8443, 80")
	require.NoError(t, err)
	require.Equal(t, []netip.Prefix{netip.MustParsePrefix("10.20.0.0/16"), netip.MustParsePrefix("fd00:1234::/48"), netip.MustParsePrefix("192.168.1.7/32")}, rules.Networks)
	require.Equal(t, []uint16{8443, 80}, rules.Ports)

	rules, err = egress.ParseRules("", "")
	require.NoError(t, err)
	require.Empty(t, rules.Networks)
	require.Empty(t, rules.Ports)
}

func TestRulesThatMeanSomethingElseAreRefused(t *testing.T) {
	for _, c := range []struct{ cidrs, ports, says string }{
		{"10.0.0.1", "", "no network"},
		{"example.com", "", "no network"},
		{"10.0.0.1/8", "", "10.0.0.0/8 is meant"},
		{"0.0.0.0/0", "", "every address"},
		{"::/0", "", "every address"},
		{"::ffff:10.0.0.0/104", "", "write it as IPv4"},
		{"10.0.0.0/33", "", "no network"},
		{"", "0", "no port"},
		{"", "65536", "no port"},
		{"", "https", "no port"},
		{"", "-1", "no port"},
	} {
		_, err := egress.ParseRules(c.cidrs, c.ports)
		require.ErrorContains(t, err, c.says, "%q %q", c.cidrs, c.ports)
	}
}

// What is public is let through: the judgement of a literal address needs no network.
func TestPublicAddressesPass(t *testing.T) {
	guard := egress.New(egress.Rules{Ports: []uint16{8443}})
	for _, url := range []string{
		"https://93.184.216.34/", "https://[2606:2800:220:1:248:1893:25c8:1946]/", "https://example.com", "https://EXAMPLE.com/a/b?c=d%20e", "https://xn--bcher-kva.example/",
		"https://example.com:443/", "https://example.com:8443/", "https://a_b.example-1.com/", "https://1.example/",
	} {
		_, err := guard.ParseURL(url)
		require.NoError(t, err, url)
	}
}

func TestANetworkThatTheOperatorOpenedMayBeReached(t *testing.T) {
	rules, err := egress.ParseRules("10.20.0.0/16,fd00:1234::/48", "80")
	require.NoError(t, err)
	guard := egress.New(rules)
	for url, open := range map[string]bool{
		"https://10.20.3.4/": true, "http://10.20.3.4/": true, "https://[fd00:1234::9]/": true, "http://[::ffff:10.20.3.4]/": true,
		"https://10.21.3.4/": false, "http://10.21.3.4/": false, "http://93.184.216.34/": false, "https://[fd00:1235::9]/": false,
	} {
		_, err := guard.ParseURL(url)
		require.Equal(t, open, err == nil, "%s: %v", url, err)
	}
}

func TestAnOpenedTranslationNetworkOpensNothingBehindIt(t *testing.T) {
	rules, err := egress.ParseRules("64:ff9b::/96", "")
	require.NoError(t, err)
	guard := egress.New(rules)
	_, err = guard.ParseURL("https://[64:ff9b::93.184.216.34]/")
	require.NoError(t, err)
	for _, url := range []string{"https://[64:ff9b::127.0.0.1]/", "https://[64:ff9b::a9fe:a9fe]/", "https://[64:ff9b::10.0.0.1]/"} {
		_, err = guard.ParseURL(url)
		require.Error(t, err, url)
	}
}

func TestTheMachinesOwnPublicAddressIsRefused(t *testing.T) {
	own := func() ([]net.Addr, error) {
		return []net.Addr{&net.IPNet{IP: net.ParseIP("93.184.216.34"), Mask: net.CIDRMask(24, 32)}}, nil
	}
	_, err := egress.New(egress.Rules{}, egress.WithOwnAddresses(own)).ParseURL("https://93.184.216.34/")
	require.Error(t, err)
	_, err = egress.New(egress.Rules{}, egress.WithOwnAddresses(own)).ParseURL("https://93.184.216.35/")
	require.NoError(t, err, "its neighbour is somebody else")

	opened := egress.Rules{Networks: []netip.Prefix{netip.MustParsePrefix("93.184.216.34/32")}}
	_, err = egress.New(opened, egress.WithOwnAddresses(own)).ParseURL("https://93.184.216.34/")
	require.NoError(t, err, "the operator opened it by name")

	broken := func() ([]net.Addr, error) { return nil, errors.New("no interfaces") }
	_, err = egress.New(egress.Rules{}, egress.WithOwnAddresses(broken)).ParseURL("https://93.184.216.34/")
	require.Error(t, err, "what cannot be judged is refused")
}

func FuzzParseURL(f *testing.F) {
	for _, c := range bypasses {
		f.Add(c.url)
	}
	f.Add("https://example.com/")
	guard := egress.New(egress.Rules{})
	f.Fuzz(func(t *testing.T, text string) {
		u, err := guard.ParseURL(text)
		if err != nil {
			return
		}
		require.Equal(t, "https", u.Scheme)
		again, err := guard.ParseURL(u.String())
		require.NoError(t, err, "what was taken once is taken as it is written again")
		require.Equal(t, u.Host, again.Host)
		if addr, err := netip.ParseAddr(u.Hostname()); err == nil {
			require.True(t, addr.IsGlobalUnicast() && !addr.IsPrivate() && !addr.IsLoopback() && !addr.Is4In6(), "%s", addr)
		}
	})
}
