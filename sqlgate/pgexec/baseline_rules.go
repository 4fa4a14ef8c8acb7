package pgexec

import (
	"net/netip"
	"slices"
	"strings"
)

// file makes H2 and H4, which look at every line by itself.
func (b *baseline) file(rules []hbaRule) {
	for _, r := range rules {
		switch {
		case r.Error != "":
			b.fail("H2", "Line %d of pg_hba.conf is wrong (%s): the server goes on with the rules it had before, which nobody sees.", r.Line, clip(r.Error))
		case !r.network():
			if r.Method == "trust" {
				b.warn("H4", "Line %d of pg_hba.conf trusts local connections.", r.Line)
			}
		case slices.Contains([]string{"trust", "password", "ident"}, r.Method):
			b.fail("H4", "Line %d of pg_hba.conf lets connections from the network in by %s.", r.Line, r.Method)
		case r.Method == "md5" && b.strict:
			b.fail("H4", "Line %d of pg_hba.conf admits MD5 passwords.", r.Line)
		case r.Method == "md5":
			b.warn("H4", "Line %d of pg_hba.conf admits MD5 passwords.", r.Line)
		}
		if r.network() && r.Method != "reject" && r.everywhere() && slices.Contains(r.Databases, "all") && slices.Contains(r.Users, "all") {
			b.warn("H4", "Line %d of pg_hba.conf is for all roles, all databases and all addresses.", r.Line)
		}
	}
}

func (r hbaRule) everywhere() bool {
	return r.Address == "all" || (r.Address == "0.0.0.0" && r.Netmask == "0.0.0.0") || (r.Address == "::" && r.Netmask == "::")
}

// firstFit makes H3 and H5 for one role that comes from this address.
func (b *baseline) firstFit(rules []hbaRule, role int, name, client string) {
	found := false
	for _, r := range rules {
		if r.Error != "" || !r.network() {
			continue
		}
		if r.Replication[role] && r.Method != "reject" {
			b.fail("H5", "Line %d of pg_hba.conf lets %s connect for replication, which reads everything.", r.Line, name)
		}
		match := r.admits(client)
		if found || !r.Fits[role] || match == never || r.Type == "hostnossl" && b.tls.config != nil && r.Method == "reject" {
			continue
		}
		b.judge(r, name)
		// A line that may or may not be meant is judged, and so is the next.
		found = match == always
	}
	if !found {
		b.fail("H3", "No line of pg_hba.conf is surely the one that lets %s in from %s: name its address there.", name, client)
	}
}

func (b *baseline) judge(r hbaRule, name string) {
	switch {
	case r.Type != "hostssl":
		b.fail("H3", "Line %d of pg_hba.conf is the one for %s and is %s: write hostssl, so that nothing but TLS gets in.", r.Line, name, r.Type)
	case r.Method != "cert" && r.Method != "scram-sha-256":
		b.fail("H3", "Line %d of pg_hba.conf is the one for %s and asks for %s: write cert or scram-sha-256.", r.Line, name, r.Method)
	case r.Method == "scram-sha-256" && b.tls.showsCertificate() && !r.option("clientcert=verify-full"):
		b.fail("H3", "Line %d of pg_hba.conf is the one for %s and does not demand its certificate: add clientcert=verify-full (verify-ca takes any certificate of the authority).", r.Line, name)
	}
}

// Whether a line's address is that of a client.
type fit int

const (
	never fit = iota
	perhaps
	always
)

func (r hbaRule) admits(client string) fit {
	if r.Address == "all" {
		return always
	}
	addr, err := netip.ParseAddr(client)
	if err != nil {
		return perhaps
	}
	address, err := netip.ParseAddr(r.Address)
	if err != nil {
		return perhaps // a host's name, samehost, samenet: only the server knows
	}
	mask, err := netip.ParseAddr(r.Netmask)
	if err != nil || mask.BitLen() != address.BitLen() {
		return perhaps
	}
	if inNetwork(addr.Unmap(), address, mask) {
		return always
	}
	return never
}

func inNetwork(addr, network, mask netip.Addr) bool {
	a, n, m := addr.AsSlice(), network.AsSlice(), mask.AsSlice()
	if len(a) != len(n) {
		return false
	}
	for i := range a {
		if a[i]&m[i] != n[i]&m[i] {
			return false
		}
	}
	return true
}

// Failed are the findings that are no warnings.
func Failed(findings []Finding) []Finding {
	return slices.DeleteFunc(slices.Clone(findings), func(f Finding) bool { return f.Warning })
}

// Texts writes findings in one line each.
func Texts(findings []Finding) string {
	lines := make([]string, len(findings))
	for i, f := range findings {
		lines[i] = f.Check + ": " + f.Message
	}
	return strings.Join(lines, " ")
}
