// Package tlsfiles reads the PEM files that TLS settings name, strictly: a pair
// that does not fit or is not valid now, and a bundle in which anything is not
// an authority, are refused while the person who wrote them is still looking.
// Listeners and upstream connections read theirs here, and have the name of a client
// by its certificate from here.
package tlsfiles

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"
)

// maxFile bounds what is read of one file: a bundle of every authority there is
// has some hundred kilobytes.
const maxFile = 16 << 20

// read reads a regular file, through links. A pipe is not waited for: whoever
// waits at a reload keeps GET /health waiting too.
func read(path string) (text []byte, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	text, err = io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(text) > maxFile {
		err = fmt.Errorf("%s is larger than %d bytes", path, maxFile)
	}
	return text, err
}

// Pair reads a certificate with its chain, and its key. Leaf is set.
func Pair(certPath, keyPath string, now time.Time) (tls.Certificate, error) {
	cert, err := read(certPath)
	if err != nil {
		return tls.Certificate{}, err
	}
	key, err := read(keyPath)
	if err != nil {
		return tls.Certificate{}, err
	}
	pair, err := tls.X509KeyPair(cert, key)
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
	text, err := read(path)
	if err != nil {
		return nil, expires, err
	}
	pool = x509.NewCertPool()
	read := 0
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			return nil, expires, fmt.Errorf("%s holds a PEM block %s, and only CERTIFICATE belongs there", path, block.Type)
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, expires, fmt.Errorf("%s: %w", path, err)
		}
		pool.AddCert(cert)
		read++
		if cert.NotAfter.After(expires) {
			expires = cert.NotAfter
		}
	}
	if begun := bytes.Count(text, []byte("-----BEGIN ")); begun != read {
		return nil, expires, fmt.Errorf("%s has %d PEM block(s) that cannot be read; a part of the file may be missing", path, begun-read)
	}
	if expires.Before(now) {
		return nil, expires, fmt.Errorf("%s holds no PEM certificate that is valid now", path)
	}
	return pool, expires, nil
}
