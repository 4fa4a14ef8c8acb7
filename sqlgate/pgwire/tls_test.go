package pgwire

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/fixtures/certs"
)

// A secureDoor is a listener with a certificate of its own authority.
type secureDoor struct {
	*door
	authority *certs.Authority
	dir       string
	config    *tls.Config
}

func openSecureDoor(t *testing.T, mode string, change func(*Options)) *secureDoor {
	t.Helper()
	s := &secureDoor{dir: t.TempDir()}
	s.authority = certs.NewAuthority(t, s.dir, "authority")
	s.config = &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{s.pair("gate", x509.ExtKeyUsageServerAuth)}, NextProtos: []string{"http/1.1"},
		ClientCAs: s.authority.Pool(), ClientAuth: tls.VerifyClientCertIfGiven, SessionTicketsDisabled: true,
	}
	s.door = openDoor(t, func(o *Options) {
		o.TLSMode, o.TLS = mode, func() *tls.Config { return s.config }
		if change != nil {
			change(o)
		}
	})
	return s
}

func (s *secureDoor) pair(name string, usage x509.ExtKeyUsage, change ...func(*x509.Certificate)) tls.Certificate {
	return s.authority.Issue(s.dir, name, usage, change...).Load()
}

// client is what a client that knows the authority uses.
func (s *secureDoor) client(shown ...tls.Certificate) *tls.Config {
	return &tls.Config{RootCAs: s.authority.Pool(), ServerName: "localhost", Certificates: shown, MinVersion: tls.VersionTLS12}
}

func TestWithRequiredTLSNothingElseGetsIn(t *testing.T) {
	d := openSecureDoor(t, TLSRequire, nil)
	require.Equal(t, "28000", firstError(t, d.send(greet("user", "ana", "database", "shop"))).Code)
	require.Equal(t, behindTheDoor.SQLState, d.login("user=ana dbname=shop", d.client()).Code)
	require.Empty(t, d.send(request(codeCancel, 0, 0, 0, 1, 1, 2, 3, 4)))
	require.Equal(t, []string{"received", CancelWithoutTLS}, d.written())
}

func TestPreferredTLSTakesBoth(t *testing.T) {
	d := openSecureDoor(t, TLSPrefer, nil)
	require.Equal(t, behindTheDoor.SQLState, firstError(t, d.send(greet("user", "ana", "database", "shop"))).Code)
	require.Equal(t, behindTheDoor.SQLState, d.login("user=ana dbname=shop", d.client()).Code)
}

func TestNothingStuffedBehindTheRequestForTLSIsReadAsAMessage(t *testing.T) {
	d := openSecureDoor(t, TLSPrefer, nil)
	got := d.send(append(request(codeSSL), greet("user", "mallory", "database", "shop")...))
	require.Equal(t, byte('S'), got[0])
	require.NotContains(t, string(got[1:]), "57P03")
	require.Empty(t, d.logins)
}

func TestSecondRequestsInsideTLSAreRefused(t *testing.T) {
	d := openSecureDoor(t, TLSRequire, nil)
	for _, code := range []uint32{codeSSL, codeGSS} {
		c := d.handshaken(request(codeSSL), d.client())
		_, err := c.Write(request(code))
		require.NoError(t, err)
		require.Equal(t, "0A000", firstError(t, readAll(t, c)).Code)
	}
}

// handshaken asks for TLS, where ask is not empty, and enters it.
func (s *secureDoor) handshaken(ask []byte, config *tls.Config) *tls.Conn {
	s.t.Helper()
	raw := s.dial()
	if len(ask) > 0 {
		_, err := raw.Write(ask)
		require.NoError(s.t, err)
		var answer [1]byte
		_, err = io.ReadFull(raw, answer[:])
		require.NoError(s.t, err)
		require.Equal(s.t, byte('S'), answer[0])
	}
	c := tls.Client(raw, config)
	require.NoError(s.t, c.Handshake())
	return c
}

func TestDirectTLSNeedsItsOwnALPN(t *testing.T) {
	d := openSecureDoor(t, TLSRequire, nil)
	config := d.client()
	config.NextProtos = []string{alpn}
	c := d.handshaken(nil, config)
	_, err := c.Write(greet("user", "ana", "database", "shop"))
	require.NoError(t, err)
	require.Equal(t, behindTheDoor.SQLState, firstError(t, readAll(t, c)).Code)
	require.Len(t, d.logins, 1)

	c = d.handshaken(nil, d.client()) // no ALPN
	_, _ = c.Write(greet("user", "ana", "database", "shop"))
	require.Empty(t, readAll(t, c))
	require.Len(t, d.logins, 1)

	off := openDoor(t, nil)
	require.Empty(t, off.send([]byte{firstOfTLS, 3, 1, 0, 5}))
}

func TestAnotherALPNIsRefusedWithAnAlert(t *testing.T) {
	d := openSecureDoor(t, TLSRequire, nil)
	raw := d.dial()
	_, err := raw.Write(request(codeSSL))
	require.NoError(t, err)
	_, err = io.ReadFull(raw, make([]byte, 1))
	require.NoError(t, err)
	config := d.client()
	config.NextProtos = []string{"h2"}
	require.ErrorContains(t, tls.Client(raw, config).Handshake(), "no application protocol")
}

func TestACertificateIsALogin(t *testing.T) {
	d := openSecureDoor(t, TLSRequire, func(o *Options) { o.Auth = AuthCert })
	ana := d.pair("ana", x509.ExtKeyUsageClientAuth)
	require.Equal(t, behindTheDoor.SQLState, d.login("user=ana dbname=shop", d.client(ana)).Code)
	require.Equal(t, "CN=ana", d.lastLogin().TLSSubject)
	require.Equal(t, "28000", d.login("user=eve dbname=shop", d.client(ana)).Code)
	require.Equal(t, "28000", d.login("user=ana dbname=shop", d.client()).Code)
	both := d.client(d.pair("both", x509.ExtKeyUsageClientAuth, func(c *x509.Certificate) {
		c.Subject = pkix.Name{ExtraNames: []pkix.AttributeTypeAndValue{{Type: asn1.ObjectIdentifier{2, 5, 4, 3}, Value: "ana"}, {Type: asn1.ObjectIdentifier{2, 5, 4, 3}, Value: "eve"}}}
	}))
	for _, user := range []string{"ana", "eve", "both"} {
		require.Equal(t, "28000", d.login("user="+user+" dbname=shop", both).Code, user)
	}
	stranger := certs.NewAuthority(t, t.TempDir(), "stranger").Issue(t.TempDir(), "ana", x509.ExtKeyUsageClientAuth).Load()
	config := d.client()
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &stranger, nil }
	require.Empty(t, d.login("user=ana dbname=shop", config).Code, "refused in the handshake")
	require.Len(t, d.logins, 1)
}

func TestACertificateWithoutASubjectIsAClientAndNoUser(t *testing.T) {
	workload := certs.Nameless("spiffe://shop.test/one")
	d := openSecureDoor(t, TLSRequire, func(o *Options) { o.Auth = AuthTrust })
	require.Equal(t, behindTheDoor.SQLState, d.login("user=ana dbname=shop", d.client(d.pair("leaf", x509.ExtKeyUsageClientAuth, workload))).Code)
	login := d.lastLogin()
	require.Equal(t, "SAN:URI=spiffe://shop.test/one", login.TLSSubject)
	require.Equal(t, login.TLSSubject, login.Client)
	require.Equal(t, login.TLSSubject, login.Principal())

	d = openSecureDoor(t, TLSRequire, func(o *Options) { o.Auth = AuthCert })
	shown := d.client(d.pair("leaf", x509.ExtKeyUsageClientAuth, workload))
	for _, user := range []string{"ana", "''", "spiffe://shop.test/one", "SAN:URI=spiffe://shop.test/one"} {
		require.Equal(t, "28000", d.login("user="+user+" dbname=shop", shown).Code)
	}
	require.Empty(t, d.logins)
}

func TestPasswordsAreBoundToTheChannelWhereThereIsOne(t *testing.T) {
	users, err := OpenUsers(usersFile(t, hashed(t, "ana", "secret")))
	require.NoError(t, err)
	d := openSecureDoor(t, TLSRequire, func(o *Options) { o.Auth, o.Users = AuthScram, users })
	require.Equal(t, behindTheDoor.SQLState, d.login("user=ana password=secret dbname=shop channel_binding=require", d.client()).Code)
	require.Equal(t, behindTheDoor.SQLState, d.login("user=ana password=secret dbname=shop channel_binding=disable", d.client()).Code)
	require.Equal(t, "28P01", d.login("user=ana password=wrong dbname=shop channel_binding=require", d.client()).Code)
}

// Somebody in between who ends the TLS with a certificate of their own hands the
// messages on: the proof is for another channel.
func TestAProofForAnotherChannelFails(t *testing.T) {
	users, err := OpenUsers(usersFile(t, hashed(t, "ana", "secret")))
	require.NoError(t, err)
	d := openSecureDoor(t, TLSRequire, func(o *Options) { o.Auth, o.Users = AuthScram, users })
	between := d.pair("between", x509.ExtKeyUsageServerAuth)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	go func() {
		raw, err := listener.Accept()
		if err != nil {
			return
		}
		defer raw.Close()
		if _, err := io.ReadFull(raw, make([]byte, 8)); err != nil {
			return
		}
		_, _ = raw.Write([]byte{'S'})
		near := tls.Server(raw, &tls.Config{Certificates: []tls.Certificate{between}, MinVersion: tls.VersionTLS12})
		far, err := net.Dial("tcp", d.Addr().String())
		if err != nil {
			return
		}
		defer far.Close()
		_, _ = far.Write(request(codeSSL))
		_, _ = io.ReadFull(far, make([]byte, 1))
		secure := tls.Client(far, d.client())
		go func() { _, _ = io.Copy(secure, near) }()
		_, _ = io.Copy(near, secure)
	}()
	_, port, err := net.SplitHostPort(listener.Addr().String())
	require.NoError(t, err)
	require.Equal(t, "28P01", d.loginAt(port, "user=ana password=secret dbname=shop channel_binding=require", d.client()).Code)
}

func TestTheChannelIsTheHashOfTheCertificate(t *testing.T) {
	d := openSecureDoor(t, TLSRequire, nil)
	leaf := d.config.Certificates[0].Leaf.Raw
	sum := sha256.Sum256(leaf)
	require.Equal(t, sum[:], endPoint(leaf))
	require.Nil(t, endPoint([]byte("no certificate")))
}

func TestAnswersInTLSAreSmallRecords(t *testing.T) {
	near, far := net.Pipe()
	defer near.Close()
	w := &messageWriter{conn: near, timeout: patience}
	w.buffer = make([]byte, 3*maxWrite+1)
	sizes := make(chan int, 10)
	go func() {
		defer close(sizes)
		for b := make([]byte, 4*maxWrite); ; {
			n, err := far.Read(b)
			if err != nil {
				return
			}
			sizes <- n
		}
	}()
	require.NoError(t, w.flush())
	far.SetReadDeadline(time.Now())
	for n := range sizes {
		require.LessOrEqual(t, n, maxWrite)
	}
}

// TestAnOpenConnectionEndsWithItsChain: the first end of a certificate and its
// authorities counts, and of several chains the last one.
func TestAnOpenConnectionEndsWithItsChain(t *testing.T) {
	start := time.Now()
	year := certs.Expiring(start.Add(365 * 24 * time.Hour))
	short := certs.Expiring(start.Add(time.Hour))
	for name, ends := range map[string]struct{ root, between, leaf func(*x509.Certificate) }{
		"leaf": {year, year, short}, "intermediate": {year, short, year}, "root": {short, year, year}, "two intermediates": {year, year, year},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			root := certs.NewAuthority(t, dir, "root", ends.root)
			between := root.Intermediate(dir, "between", ends.between)
			chain := []*certs.Authority{between}
			if name == "two intermediates" { // of one key: either makes a chain
				chain = append(chain, root.Again(between, short))
			}
			shown := certs.Under(between.Issue(dir, "ana", x509.ExtKeyUsageClientAuth, ends.leaf).Load(), chain...)
			config := &tls.Config{ClientCAs: root.Pool()}
			now := start
			c := &conn{server: &Server{o: Options{TLS: func() *tls.Config { return config }, Now: func() time.Time { return now }}}, tls: new(tls.ConnectionState)}
			for _, der := range shown.Certificate {
				cert, err := x509.ParseCertificate(der)
				require.NoError(t, err)
				c.tls.PeerCertificates = append(c.tls.PeerCertificates, cert)
			}
			c.tls.VerifiedChains = [][]*x509.Certificate{c.tls.PeerCertificates}
			for range 2 {
				require.Nil(t, c.trusted())
				now = now.Add(50 * time.Minute)
			}
			now = start.Add(2 * time.Hour)
			if name == "two intermediates" {
				require.Nil(t, c.trusted())
				config = &tls.Config{ClientCAs: root.Pool()} // as after a reload
				require.Nil(t, c.trusted())
				now = start.Add(366 * 24 * time.Hour)
			}
			f := c.trusted()
			require.NotNil(t, f)
			require.Equal(t, "28000", f.response.Code)
		})
	}
}
