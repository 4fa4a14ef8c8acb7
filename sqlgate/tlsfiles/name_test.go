package tlsfiles

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/hex"
	"math/big"
	"testing"

	"github.com/stretchr/testify/require"
)

// A named makes certificates of any subject and any alternative names.
type named struct {
	t   *testing.T
	key *ecdsa.PrivateKey
}

func newNamed(t *testing.T) *named {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	return &named{t, key}
}

func (n *named) certificate(subject []rdn, alternative ...asn1.RawValue) *x509.Certificate {
	n.t.Helper()
	template := &x509.Certificate{SerialNumber: big.NewInt(1), RawSubject: sequence(n.t, asn1.TagSequence)}
	var rdns [][]byte
	for _, r := range subject {
		var attributes [][]byte
		for _, a := range r {
			attributes = append(attributes, sequence(n.t, asn1.TagSequence, der(n.t, a.kind), a.value))
		}
		rdns = append(rdns, sequence(n.t, asn1.TagSet, attributes...))
	}
	template.RawSubject = sequence(n.t, asn1.TagSequence, rdns...)
	if alternative != nil {
		template.ExtraExtensions = []pkix.Extension{{Id: subjectAltName, Critical: true, Value: der(n.t, alternative)}}
	}
	made, err := x509.CreateCertificate(rand.Reader, template, &x509.Certificate{}, &n.key.PublicKey, n.key)
	require.NoError(n.t, err)
	cert, err := x509.ParseCertificate(made)
	require.NoError(n.t, err)
	return cert
}

// An rdn is the attributes of one level of a subject, each with the DER of its value.
type rdn []attribute

type attribute struct {
	kind  asn1.ObjectIdentifier
	value []byte
}

var (
	commonName   = asn1.ObjectIdentifier{2, 5, 4, 3}
	organization = asn1.ObjectIdentifier{2, 5, 4, 10}
	userID       = asn1.ObjectIdentifier{0, 9, 2342, 19200300, 100, 1, 1}
)

func der(t *testing.T, value any) []byte {
	t.Helper()
	text, err := asn1.Marshal(value)
	require.NoError(t, err)
	return text
}

func sequence(t *testing.T, tag int, parts ...[]byte) []byte {
	t.Helper()
	var all []byte
	for _, p := range parts {
		all = append(all, p...)
	}
	return der(t, asn1.RawValue{Tag: tag, IsCompound: true, Bytes: all})
}

// of is an attribute whose value is a string of this tag.
func (n *named) of(kind asn1.ObjectIdentifier, tag int, value string) attribute {
	return attribute{kind, der(n.t, asn1.RawValue{Tag: tag, Bytes: []byte(value)})}
}

func (n *named) utf8(kind asn1.ObjectIdentifier, value string) attribute {
	return n.of(kind, asn1.TagUTF8String, value)
}

// general is a GeneralName.
func general(tag int, value string) asn1.RawValue {
	return asn1.RawValue{Class: asn1.ClassContextSpecific, Tag: tag, Bytes: []byte(value)}
}

func TestAClientIsNamedByItsSubjectOrElseByItsAlternativeNames(t *testing.T) {
	n := newNamed(t)
	one := general(6, "spiffe://shop.test/one")
	for want, c := range map[string]struct {
		subject     []rdn
		alternative []asn1.RawValue
	}{
		"O=core,CN=migrator":     {subject: []rdn{{n.utf8(commonName, "migrator")}, {n.utf8(organization, "core")}}, alternative: []asn1.RawValue{one}},
		"SAN:URI=spiffe://a/b":   {alternative: []asn1.RawValue{general(6, "spiffe://a/b")}},
		"SAN:URI=spiffe://a/c":   {subject: []rdn{{}}, alternative: []asn1.RawValue{general(6, "spiffe://a/c")}},
		"SAN:URI=spiffe://a/d":   {subject: []rdn{{}, {}}, alternative: []asn1.RawValue{general(6, "spiffe://a/d")}},
		"SAN:URI=spiffe://a/e":   {subject: []rdn{{n.utf8(commonName, "")}}, alternative: []asn1.RawValue{general(6, "spiffe://a/e")}},
		"SAN:URI=spiffe://a/f":   {subject: []rdn{{n.utf8(commonName, " "), n.utf8(organization, "")}}, alternative: []asn1.RawValue{general(6, "spiffe://a/f")}},
		"SAN:DNS=a.example":      {alternative: []asn1.RawValue{general(2, "a.example")}},
		"SAN:EMAIL=ana@shop":     {alternative: []asn1.RawValue{general(1, "ana@shop")}},
		"SAN:IP=10.1.2.3":        {alternative: []asn1.RawValue{general(7, "\x0a\x01\x02\x03")}},
		"SAN:IP=::ffff:10.1.2.3": {alternative: []asn1.RawValue{general(7, "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\x0a\x01\x02\x03")}},
		"SAN:8=#88022a03":        {alternative: []asn1.RawValue{general(8, "\x2a\x03")}},
		`SAN:DNS=a\,URI\00\;\\=`: {alternative: []asn1.RawValue{general(2, "a,URI\x00;\\=")}},
		"SAN:DNS=b.example,DNS=c.example,URI=spiffe://shop.test/one": {alternative: []asn1.RawValue{one, general(2, "c.example"), general(2, "b.example")}},
	} {
		require.Equal(t, want, ClientName(n.certificate(c.subject, c.alternative...)))
	}
}

func TestNothingButItsFingerprintNamesACertificateWithoutNames(t *testing.T) {
	n := newNamed(t)
	for _, cert := range []*x509.Certificate{
		n.certificate(nil), n.certificate([]rdn{{}}), n.certificate([]rdn{{n.utf8(commonName, "")}}),
		n.certificate(nil, []asn1.RawValue{}...), n.certificate(nil, general(2, ""), general(1, "")),
	} {
		sum := sha256.Sum256(cert.Raw)
		require.Equal(t, "SHA256:"+hex.EncodeToString(sum[:]), ClientName(cert))
	}
}

// What differs in what it says of its holder is another client.
func TestCertificatesOfDifferentNamesHaveDifferentTexts(t *testing.T) {
	n := newNamed(t)
	cn := func(value string) rdn { return rdn{n.utf8(commonName, value)} }
	certificates := []*x509.Certificate{
		n.certificate([]rdn{cn("a")}), n.certificate([]rdn{cn("A")}), n.certificate([]rdn{cn("a ")}), n.certificate([]rdn{cn(`a\ `)}),
		n.certificate([]rdn{{}, cn("a")}), n.certificate([]rdn{cn("a"), {}}), // a level without attributes
		n.certificate([]rdn{cn("a"), cn("")}), n.certificate([]rdn{cn(""), cn("a")}),
		n.certificate([]rdn{cn("a"), {n.utf8(organization, "b")}}), n.certificate([]rdn{{n.utf8(organization, "b")}, cn("a")}),
		n.certificate([]rdn{{n.utf8(commonName, "a"), n.utf8(organization, "b")}}), n.certificate([]rdn{{n.utf8(organization, "b"), n.utf8(commonName, "a")}}),
		n.certificate([]rdn{cn("a,O=b")}), n.certificate([]rdn{cn("a+O=b")}), n.certificate([]rdn{cn(`a\,O=b`)}), n.certificate([]rdn{cn("b+CN=a")}),
		n.certificate([]rdn{cn("#0c0161")}), n.certificate([]rdn{{n.utf8(userID, "a")}}), n.certificate([]rdn{{n.utf8(userID, "#130161")}}),
		n.certificate([]rdn{cn("SAN:URI=x")}), n.certificate([]rdn{cn("user=a")}), n.certificate([]rdn{cn("a;user=b")}), n.certificate([]rdn{cn("a\x00b")}),
		// The letters of T61String are those of Latin 1 here, never a sign that stands for all of them.
		n.certificate([]rdn{{n.of(commonName, asn1.TagT61String, "M\xfcller")}}), n.certificate([]rdn{{n.of(commonName, asn1.TagT61String, "M\xf6ller")}}),
		n.certificate([]rdn{{n.of(userID, asn1.TagT61String, "M\xfcller")}}), n.certificate([]rdn{{n.of(userID, asn1.TagT61String, "M\xf6ller")}}),
		n.certificate([]rdn{cn("M\ufffdller")}),
		n.certificate([]rdn{{n.of(commonName, asn1.TagBMPString, "\x04\x10")}}), n.certificate([]rdn{{n.of(commonName, asn1.TagBMPString, "\x04\x11")}}),

		n.certificate(nil, general(6, "spiffe://a/b")), n.certificate(nil, general(2, "spiffe://a/b")), n.certificate(nil, general(1, "spiffe://a/b")),
		n.certificate(nil, general(2, "a"), general(2, "b")), n.certificate(nil, general(2, "a,DNS=b")), n.certificate(nil, general(2, `a\,DNS=b`)),
		n.certificate(nil, general(2, "a"), general(2, "")), n.certificate(nil, general(2, "a")), n.certificate(nil, general(2, "a"), general(2, "a")),
		n.certificate(nil, general(2, "a\n")), n.certificate(nil, general(2, `a\0a`)), n.certificate(nil, general(2, "a ")),
		n.certificate(nil, general(7, "\x0a\x01\x02\x03")), n.certificate(nil, general(2, "10.1.2.3")),
		n.certificate(nil, general(6, "http://a")), n.certificate(nil, general(6, "http://a/")), n.certificate(nil, general(6, "http://a/%62")), n.certificate(nil, general(6, "http://a/b")),
		// A user's name in a directory, and another's: crypto/x509 shows neither.
		n.certificate(nil, otherName(t, "ana@shop")), n.certificate(nil, otherName(t, "eve@shop")),
		n.certificate(nil), n.certificate([]rdn{{}}), n.certificate([]rdn{cn("")}),
	}
	seen := map[string]int{"127.0.0.1": -1, "": -2}
	for i, cert := range certificates {
		name := ClientName(cert)
		other, taken := seen[name]
		require.False(t, taken, "%d and %d are both %s", i, other, name)
		seen[name] = i
	}
}

func otherName(t *testing.T, principal string) asn1.RawValue {
	var name asn1.RawValue
	id, value := der(t, asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 311, 20, 2, 3}), der(t, asn1.RawValue{Tag: asn1.TagUTF8String, Bytes: []byte(principal)})
	name = asn1.RawValue{Class: asn1.ClassContextSpecific, Tag: 0, IsCompound: true,
		Bytes: append(id, der(t, asn1.RawValue{Class: asn1.ClassContextSpecific, Tag: 0, IsCompound: true, Bytes: value})...)}
	return name
}

// A renewed certificate of the same holder is the same client.
func TestARenewedCertificateHasTheSameName(t *testing.T) {
	n := newNamed(t)
	require.Equal(t, ClientName(n.certificate([]rdn{{n.of(commonName, asn1.TagPrintableString, "ana")}})),
		ClientName(n.certificate([]rdn{{n.utf8(commonName, "ana")}}, general(2, "ana.example"))), "by another type of string")
	require.Equal(t, ClientName(n.certificate(nil, general(2, "a"), general(6, "spiffe://a/b"))),
		ClientName(n.certificate(nil, general(6, "spiffe://a/b"), general(2, "a"))), "in another order")
}
