package tlsfiles

import (
	"crypto/x509"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/fixtures/certs"
)

func TestAPairHasToFitAndToBeValidNow(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	ca := certs.NewAuthority(t, dir, "ca")
	good, other := ca.Issue(dir, "good", x509.ExtKeyUsageServerAuth), ca.Issue(dir, "other", x509.ExtKeyUsageServerAuth)
	pair, err := Pair(good.Cert, good.Key, now)
	require.NoError(t, err)
	require.Equal(t, "CN=good", pair.Leaf.Subject.String())
	for _, at := range []time.Time{now.Add(-48 * time.Hour), now.Add(400 * 24 * time.Hour)} {
		_, err = Pair(good.Cert, good.Key, at)
		require.ErrorContains(t, err, "is valid from")
	}
	_, err = Pair(good.Cert, other.Key, now)
	require.ErrorContains(t, err, "does not match")
	_, err = Pair(good.Cert, filepath.Join(dir, "nowhere"), now)
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestABundleHoldsAuthoritiesAndNothingElse(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	one, two := certs.NewAuthority(t, dir, "one"), certs.NewAuthority(t, dir, "two")
	pair := one.Issue(dir, "leaf", x509.ExtKeyUsageServerAuth)
	read := func(path string) string {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		return string(text)
	}
	bundle := func(text string) string {
		path := filepath.Join(t.TempDir(), "bundle.pem")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
		return path
	}
	pool, expires, err := Authorities(bundle("the first\n"+read(one.Path)+"\nand the second\n"+read(two.Path)), now)
	require.NoError(t, err)
	both := one.Pool()
	both.AppendCertsFromPEM([]byte(read(two.Path)))
	require.True(t, pool.Equal(both))
	require.WithinDuration(t, now.Add(365*24*time.Hour), expires, time.Minute)

	for says, path := range map[string]string{
		"no PEM certificate":    bundle("nothing"),
		"a PEM block":           bundle(read(one.Path) + read(pair.Key)),
		"cannot be read":        bundle(read(one.Path) + read(two.Path)[:len(read(two.Path))/2]),
		"malformed certificate": bundle(read(one.Path) + "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
		"no such file":          filepath.Join(dir, "nowhere"),
	} {
		_, _, err := Authorities(path, now)
		require.ErrorContains(t, err, says)
	}
	_, _, err = Authorities(one.Path, now.Add(400*24*time.Hour))
	require.ErrorContains(t, err, "valid now")
}

// A pipe in the place of a file would be waited for, at a start as at a reload.
func TestAPipeIsNotWaitedFor(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	pipe := filepath.Join(dir, "pipe")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	good := certs.NewAuthority(t, dir, "ca").Issue(dir, "good", x509.ExtKeyUsageServerAuth)
	_, _, err := Authorities(pipe, now)
	require.ErrorContains(t, err, "regular file")
	_, err = Pair(pipe, good.Key, now)
	require.ErrorContains(t, err, "regular file")
	_, err = Pair(good.Cert, pipe, now)
	require.ErrorContains(t, err, "regular file")
}
