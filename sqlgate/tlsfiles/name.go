package tlsfiles

import (
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/hex"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// ClientName is the name of a verified client certificate, and never empty:
//
//   - the RFC 2253 text of its subject, from the subject's own bytes, since
//     pkix.Name keeps neither unknown attributes nor their order;
//   - where no attribute of the subject has a value, SAN: and all of its subject
//     alternative names in the order of their texts, with commas in between:
//     SAN:DNS=a.example,URI=spiffe://b.example/c;
//   - where it has neither, SHA256: and the fingerprint of the whole certificate.
//
// Certificates have the same name only where they say the same of their holder. No
// subject has a colon before its first equals sign, so the three forms stay apart,
// and none is an address.
func ClientName(leaf *x509.Certificate) string {
	var subject pkix.RDNSequence
	if rest, err := asn1.Unmarshal(leaf.RawSubject, &subject); err == nil && len(rest) == 0 && saysSomething(subject) {
		return subject.String()
	}
	if names := alternativeNames(leaf); len(names) > 0 {
		return "SAN:" + strings.Join(names, ",")
	}
	fingerprint := sha256.Sum256(leaf.Raw)
	return "SHA256:" + hex.EncodeToString(fingerprint[:])
}

// saysSomething is false for a subject that many certificates have and that names
// none of them: without attributes, or with blank ones alone (CN=).
func saysSomething(subject pkix.RDNSequence) bool {
	for _, rdn := range subject {
		for _, attribute := range rdn {
			if text, ok := attribute.Value.(string); !ok || strings.TrimSpace(text) != "" {
				return true
			}
		}
	}
	return false
}

var subjectAltName = asn1.ObjectIdentifier{2, 5, 29, 17}

// alternativeNames are the texts of all names in the extension, sorted, since a
// renewed certificate may list them in another order. They are made from the
// extension's own bytes: crypto/x509 drops the kinds that it does not know. None
// where all of them are empty.
func alternativeNames(leaf *x509.Certificate) []string {
	var names []string
	named := false
	for _, extension := range leaf.Extensions {
		if !extension.Id.Equal(subjectAltName) {
			continue
		}
		var list []asn1.RawValue
		if rest, err := asn1.Unmarshal(extension.Value, &list); err != nil || len(rest) > 0 {
			return nil
		}
		for _, name := range list {
			names = append(names, alternativeName(name))
			named = named || len(name.Bytes) > 0
		}
	}
	if !named {
		return nil
	}
	slices.Sort(names)
	return names
}

// alternativeName is one GeneralName of RFC 5280 part 4.2.1.6: kind=value, and
// tag=#DER in hexadecimal for a kind that is no text.
func alternativeName(name asn1.RawValue) string {
	if name.Class == asn1.ClassContextSpecific && !name.IsCompound {
		switch name.Tag {
		case 1:
			return "EMAIL=" + escaped(name.Bytes)
		case 2:
			return "DNS=" + escaped(name.Bytes)
		case 6:
			return "URI=" + escaped(name.Bytes)
		case 7:
			if addr, ok := netip.AddrFromSlice(name.Bytes); ok {
				return "IP=" + addr.String()
			}
		}
	}
	return strconv.Itoa(name.Tag) + "=#" + hex.EncodeToString(name.FullBytes)
}

// escaped puts a backslash before what RFC 2253 would, and writes what is no
// visible ASCII as a backslash and two hexadecimal digits.
func escaped(text []byte) string {
	var b strings.Builder
	for _, c := range text {
		switch {
		case strings.IndexByte(`,+"\<>;`, c) >= 0:
			b.WriteByte('\\')
			b.WriteByte(c)
		case c <= ' ' || c > '~':
			b.WriteByte('\\')
			b.WriteString(hex.EncodeToString([]byte{c}))
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}
