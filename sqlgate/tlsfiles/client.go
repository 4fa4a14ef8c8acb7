package tlsfiles

import (
	"crypto/x509"
	"time"
)

// VerifyClient verifies what a client showed in its handshake, its own certificate
// first, as a handshake at that moment would. until is the last moment at which the
// answer is still the same: a chain ends with the first of its certificates that does,
// and of several chains one is enough.
func VerifyClient(shown []*x509.Certificate, roots *x509.CertPool, now time.Time) (until time.Time, err error) {
	between := x509.NewCertPool()
	for _, cert := range shown[1:] {
		between.AddCert(cert)
	}
	chains, err := shown[0].Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: between, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	for _, chain := range chains {
		ends := chain[0].NotAfter
		for _, cert := range chain[1:] {
			if cert.NotAfter.Before(ends) {
				ends = cert.NotAfter
			}
		}
		if ends.After(until) {
			until = ends
		}
	}
	return until, err
}
