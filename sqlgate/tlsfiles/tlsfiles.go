// Package tlsfiles reads the PEM files that TLS settings name, strictly: a pair
// that does not fit or is not valid now, and a bundle in which anything is not
// an authority, are refused while the person who wrote them is still looking.
// Listeners and upstream connections read theirs here.
package tlsfiles

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"time"
)

// Pair reads a certificate with its chain, and its key. Leaf is set.
func Pair(certPath, keyPath string, now time.Time) (tls.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(certPath, keyPath)
	if err != nil {
		return pair, err
	}
	if from, to := pair.Leaf.NotBefore, pair.Leaf.NotAfter; now.Before(from) || now.After(to) {
		return pair, fmt.Errorf("the certificate in %s is valid from %s to %s only", certPath, from.UTC().Format(time.RFC3339), to.UTC().Format(time.RFC3339))
	}
	return pair, nil
}

// Authorities reads a bundle. A block that is no certificate is refused: to
// skip it would leave out an authority that somebody counts on. expires is when
// the last of them ends.
func Authorities(path string, now time.Time) (pool *x509.CertPool, expires time.Time, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, expires, err
	}
	pool = x509.NewCertPool()
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			return nil, expires, fmt.Errorf("%s holds a PEM block %s, and only CERTIFICATE belongs there", path, block.Type)
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, expires, fmt.Errorf("%s: %w", path, err)
		}
		pool.AddCert(cert)
		if cert.NotAfter.After(expires) {
			expires = cert.NotAfter
		}
	}
	if expires.Before(now) {
		return nil, expires, fmt.Errorf("%s holds no PEM certificate that is valid now", path)
	}
	return pool, expires, nil
}
