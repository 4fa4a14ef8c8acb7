package pgexec

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"writegate/sqlgate/tlsfiles"
)

// TLSConfig is GATE_TLS_UPSTREAM_*. There are two modes alone: everything
// between them would look safe without being it.
type TLSConfig struct {
	Mode       string // verify-full (default) or disable (development only)
	CAPath     string // PEM bundle; the only roots that count
	CertPath   string // client certificate, PEM
	KeyPath    string // its key, PEM
	ServerName string // name to verify where it is not the URL's host
}

// The modes of TLSConfig.
const (
	TLSVerifyFull = "verify-full"
	TLSDisable    = "disable"
)

// tlsSet is what one reading of the files gave; it never changes.
type tlsSet struct {
	config     *tls.Config // nil for disable
	serverName string
	expires    time.Time // zero for disable
}

func (t TLSConfig) load(now time.Time) (*tlsSet, error) {
	switch t.Mode {
	case TLSDisable:
		return new(tlsSet), nil
	case TLSVerifyFull:
	default:
		return nil, errors.New("GATE_TLS_UPSTREAM_MODE must be verify-full or disable")
	}
	if t.CAPath == "" {
		return nil, errors.New("GATE_TLS_UPSTREAM_CA_BUNDLE_PATH is empty, and no address has sslrootcert: verify-full needs the CA that signed the database's certificate (GATE_TLS_UPSTREAM_MODE=disable is for development only)")
	}
	roots, expires, err := tlsfiles.Authorities(t.CAPath, now)
	if err != nil {
		return nil, fmt.Errorf("GATE_TLS_UPSTREAM_CA_BUNDLE_PATH: %w", err)
	}
	set := &tlsSet{config: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}, serverName: t.ServerName, expires: expires}
	return set, t.addCertificate(set, now)
}

func (t TLSConfig) addCertificate(set *tlsSet, now time.Time) error {
	if (t.CertPath == "") != (t.KeyPath == "") {
		return errors.New("GATE_TLS_UPSTREAM_CERT_PATH and GATE_TLS_UPSTREAM_KEY_PATH belong together: set both or neither")
	}
	if t.CertPath == "" {
		return nil
	}
	pair, err := tlsfiles.Pair(t.CertPath, t.KeyPath, now)
	if err != nil {
		return fmt.Errorf("GATE_TLS_UPSTREAM_CERT_PATH and _KEY_PATH: %w", err)
	}
	set.config.Certificates = []tls.Certificate{pair}
	if pair.Leaf.NotAfter.Before(set.expires) {
		set.expires = pair.Leaf.NotAfter
	}
	return nil
}

// showsCertificate reports whether the gate logs in with a certificate.
func (s *tlsSet) showsCertificate() bool { return s.config != nil && len(s.config.Certificates) > 0 }

// apply has every host of a login verified by its own name.
func (s *tlsSet) apply(login *pgconn.Config) {
	login.TLSConfig = s.forHost(login.Host)
	for _, other := range login.Fallbacks {
		other.TLSConfig = s.forHost(other.Host)
	}
}

func (s *tlsSet) forHost(host string) *tls.Config {
	if s.config == nil {
		return nil
	}
	c := s.config.Clone()
	c.ServerName = cmp.Or(s.serverName, host)
	return c
}

// TLSFiles are the files that ReloadTLS reads; "" is none.
func (db *DB) TLSFiles() []string {
	return []string{db.cfg.TLS.CAPath, db.cfg.TLS.CertPath, db.cfg.TLS.KeyPath}
}

// ReloadTLS reads the files of GATE_TLS_UPSTREAM_* anew, for connections that
// are made from now on. After an error nothing has changed. expires is the
// moment from which none can be made any more; it is zero without TLS.
func (db *DB) ReloadTLS() (expires time.Time, err error) {
	set, err := db.cfg.TLS.load(time.Now())
	if err != nil {
		return time.Time{}, err
	}
	db.tls.Store(set)
	return set.expires, nil
}
