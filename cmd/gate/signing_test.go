package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"io"
	"mime/multipart"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/checkpoint"
	"writegate/eventlog/event"
)

// A signingPair is a key of a test with its two files.
type signingPair struct {
	private, public string
	key             checkpoint.PublicKey
}

func newSigningPair(t testing.TB) signingPair {
	t.Helper()
	key, err := checkpoint.NewPrivateKey()
	require.NoError(t, err)
	private, public, err := writeKeyPair(t.TempDir(), key)
	require.NoError(t, err)
	return signingPair{private, public, key.Public()}
}

// environ are the settings that sign with the pair.
func (p signingPair) environ() []string {
	return []string{"GATE_EVIDENCE_SIGNING_ENABLED=true", "GATE_EVIDENCE_SIGNING_PRIVATE_KEY_PATH=" + p.private, "GATE_EVIDENCE_SIGNING_PUBLIC_KEY_PATH=" + p.public}
}

// runGate runs the program to its end.
func runGate(t testing.TB, environ []string, args ...string) (code int, output string) {
	t.Helper()
	out := new(lockedBuffer)
	code = Run(context.WithoutCancel(t.Context()), args, streams{strings.NewReader(""), out, out}, environ)
	return code, out.String()
}

// secretOf is the part of a PEM file that must show up nowhere.
func secretOf(t testing.TB, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return strings.Split(string(text), "\n")[1]
}

func TestAGateWithAKeyThatDoesNotFitDoesNotStart(t *testing.T) {
	t.Parallel()
	one, two := newSigningPair(t), newSigningPair(t)
	open := newSigningPair(t)
	require.NoError(t, os.Chmod(open.private, 0o640))
	curve, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(curve)
	require.NoError(t, err)
	other := filepath.Join(t.TempDir(), "p256.pem")
	require.NoError(t, os.WriteFile(other, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600))
	for name, c := range map[string]struct {
		private, public, want string
	}{
		"no file":                    {one.private + "x", one.public, "gate keys evidence --out DIR"},
		"no public file":             {one.private, one.public + "x", "gate keys evidence --out DIR"},
		"no path":                    {"", "", "GATE_EVIDENCE_SIGNING_ENABLED needs"},
		"half a pair":                {one.private, "", "GATE_EVIDENCE_SIGNING_ENABLED needs"},
		"others may read it":         {open.private, open.public, "chmod 600"},
		"another algorithm":          {other, one.public, "not Ed25519"},
		"halves of two pairs":        {one.private, two.public, two.key.ID()},
		"the public key as private":  {one.public, one.public, `not "PRIVATE KEY"`},
		"the private key as public":  {one.private, one.private, "PUBLIC KEY"},
		"a folder":                   {filepath.Dir(one.private), one.public, "not a regular file"},
		"a file that is no key":      {one.private, "signing_test.go", "GATE_EVIDENCE_SIGNING_PUBLIC_KEY_PATH"},
		"a file far too long for it": {"/dev/zero", one.public, "not a regular file"},
	} {
		t.Run(name, func(t *testing.T) {
			d := gateDir{path: t.TempDir(), database: "postgres://u:p@127.0.0.1:1/db"}
			code, said := runGate(t, d.environ(signingPair{private: c.private, public: c.public}.environ()...), "serve")
			require.Equal(t, exitConfigured, code)
			require.Contains(t, said, c.want)
			requireNoSecret(t, "the message", said, secretOf(t, one.private), secretOf(t, open.private))
			require.NoFileExists(t, d.file("audit.wal"), "nothing was begun")
		})
	}
}

func TestSettingsThatWouldSignNothingAreRefused(t *testing.T) {
	t.Parallel()
	_, err := loadSettings([]string{"GATE_WITNESS_URLS=https://witness.example"}, noon)
	require.ErrorContains(t, err, "need GATE_EVIDENCE_SIGNING_ENABLED=true")
	d := gateDir{path: t.TempDir(), database: "postgres://u:p@127.0.0.1:1/db"}
	signs := newSigningPair(t).environ()
	code, said := runGate(t, d.environ(append(signs, "GATE_WITNESS_URLS=https://witness.example")...), "serve")
	require.Equal(t, exitConfigured, code)
	require.Contains(t, said, "GATE_WITNESS_URLS needs GATE_WITNESS_KEYS")
	require.Contains(t, said, "GATE_WITNESS_URLS needs GATE_AUDIT_ORIGIN")
	code, said = runGate(t, d.environ(append(signs, "GATE_AUDIT_ORIGIN=two words")...), "serve")
	require.Equal(t, exitConfigured, code)
	require.Contains(t, said, "no white space")
	require.NoFileExists(t, d.file("audit.wal"), "nothing was begun")
}

func TestALogWhoseNameCannotNameAKeyIsNotSigned(t *testing.T) {
	t.Parallel()
	d := newGateDir(t, nil)
	startGate(t, d, "GATE_AUDIT_ORIGIN=two words", "GATE_EVIDENCE_SIGNING_ENABLED=false").end(t)
	code, said := runGate(t, d.environ(newSigningPair(t).environ()...), "serve")
	require.Equal(t, exitConfigured, code)
	require.Contains(t, said, `"two words"`)
}

func TestKeysEvidenceMakesAKeyThatAGateSignsWith(t *testing.T) {
	t.Parallel()
	d := newGateDir(t, nil)
	out := filepath.Join(d.path, "keys")
	code, said := runGate(t, []string{"GATE_AUDIT_WAL_PATH=" + d.file("audit.wal"), "GATE_AUDIT_ORIGIN=shop.example/gate"}, "keys", "evidence", "--out", out)
	require.Zero(t, code, said)
	info, err := os.Stat(filepath.Join(out, privateKeyFile))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	secret := secretOf(t, filepath.Join(out, privateKeyFile))
	requireNoSecret(t, "the command", said, secret)
	public, err := checkpoint.LoadPublicKey(filepath.Join(out, publicKeyFile))
	require.NoError(t, err)
	vkey, err := public.VKey("shop.example/gate")
	require.NoError(t, err)
	for _, want := range []string{public.ID(), public.Base64(), vkey} {
		require.Contains(t, said, want)
	}

	var environ []string
	for line := range strings.Lines(said) {
		if strings.HasPrefix(line, "GATE_") {
			environ = append(environ, strings.TrimSpace(line))
		}
	}
	require.Len(t, environ, 3)
	environ = append(environ, "GATE_AUDIT_ORIGIN=shop.example/gate")
	g := startGate(t, d, environ...)
	g.end(t)
	requireNoSecret(t, "what the gate printed", g.output.String(), secret)
	code, config := runGate(t, d.environ(environ...), "config", "--json")
	require.Zero(t, code, config)
	requireNoSecret(t, "gate config", config, secret)
	require.Equal(t, []string{vkey}, d.startupKeys(t))
	log := d.openLog(t)
	require.Equal(t, vkey, log.Header().Signer, "a new log names its first key")
	require.NoError(t, log.Close(context.Background()))

	code, again := runGate(t, nil, "keys", "evidence", "--out", out)
	require.Equal(t, exitFailed, code)
	require.Contains(t, again, "never written over")
	kept, err := checkpoint.LoadKeyPair(filepath.Join(out, privateKeyFile), filepath.Join(out, publicKeyFile))
	require.NoError(t, err)
	require.Equal(t, public, kept.Public())
}

func TestTheVKeyOfALogThatIsNotThereYetIsToldLater(t *testing.T) {
	code, said := runGate(t, []string{"GATE_AUDIT_WAL_PATH=" + filepath.Join(t.TempDir(), "audit.wal")}, "keys", "evidence", "--out", t.TempDir())
	require.Zero(t, code, said)
	require.Contains(t, said, "GET /audit/evidence/signing-public-key")
	code, said = runGate(t, nil, "keys", "evidence")
	require.Equal(t, exitUsage, code)
	require.Contains(t, said, "out")
}

// startupKeys are the keys that the starts of a gate named, in order; "" for
// one that signed nothing.
func (d gateDir) startupKeys(t testing.TB) []string {
	t.Helper()
	var keys []string
	for _, e := range d.events(t) {
		if e.Type == event.TypeStartup {
			var s event.Startup
			require.NoError(t, e.Parse(&s))
			keys = append(keys, s.SigningVKey)
		}
	}
	return keys
}

func TestAKeyIsChangedByAStartWithAnother(t *testing.T) {
	t.Parallel()
	d := newGateDir(t, nil)
	one, two := newSigningPair(t), newSigningPair(t)
	startGate(t, d, "GATE_EVIDENCE_SIGNING_ENABLED=false").end(t)
	startGate(t, d, one.environ()...).end(t)
	startGate(t, d, two.environ()...).end(t)
	log := d.openLog(t)
	origin := log.Header().Origin
	require.Empty(t, log.Header().Signer, "a log that was begun without signing")
	require.NoError(t, log.Close(context.Background()))
	first, err := one.key.VKey(origin)
	require.NoError(t, err)
	second, err := two.key.VKey(origin)
	require.NoError(t, err)
	require.Equal(t, []string{"", first, second}, d.startupKeys(t))
}

// Exports don't wait for the next checkpoint, and what the key before has signed is good.
func TestEvidenceGoesOnBehindAChangeOfKeys(t *testing.T) {
	t.Parallel()
	d := newGateDir(t, nil)
	one, two := newSigningPair(t), newSigningPair(t)
	seldom := "GATE_AUDIT_CHECKPOINT_EVERY_SECONDS=86400"
	g := startGate(t, d, append(one.environ(), seldom)...)
	first := g.post(t, "/audit/evidence", `{"start_seq":1,"end_seq":2,"reason":"before"}`)
	require.Equal(t, http.StatusOK, first.status, "%s", first.body)
	g.end(t)
	g = startGate(t, d, append(two.environ(), seldom)...)
	second := g.post(t, "/audit/evidence", `{"start_seq":1,"end_seq":2,"reason":"behind"}`)
	require.Equal(t, http.StatusOK, second.status, "%s", second.body)
	require.Empty(t, judgeBundle(t, second.body, two.key).Faults)

	r := startTestPlane(t, g.base).reader(t)
	readable := reply{body: mustRead(t, g.file("audit.log"))}
	for i, bundle := range []reply{first, second, readable} {
		page, err := r.Get(r.base + "/evidence")
		require.NoError(t, err)
		form, err := io.ReadAll(page.Body)
		require.NoError(t, err)
		require.NoError(t, page.Body.Close())
		token := regexp.MustCompile(`name="csrf" value="([^"]+)"`).FindSubmatch(form)
		require.NotNil(t, token)
		var body bytes.Buffer
		parts := multipart.NewWriter(&body)
		require.NoError(t, parts.WriteField("csrf", string(token[1])))
		file, err := parts.CreateFormFile("file", "b.json")
		require.NoError(t, err)
		_, err = file.Write(bundle.body)
		require.NoError(t, err)
		require.NoError(t, parts.Close())
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.base+"/evidence/check", &body)
		require.NoError(t, err)
		request.Header.Set("Content-Type", parts.FormDataContentType())
		request.Header.Set("Origin", r.base)
		request.Header.Set("Sec-Fetch-Site", "same-origin")
		answer, err := r.Do(request)
		require.NoError(t, err)
		said, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		require.NoError(t, answer.Body.Close())
		require.Contains(t, string(said), "upload-result")
		require.NotContains(t, string(said), "Damaged")
		require.NotContains(t, string(said), "Self-asserted")
		require.Contains(t, string(said), []string{"a former key of this log.", "Signed by the key that this gate shows now, ", "no key plays a part"}[i])
	}
}

func TestALogThatFollowsAnotherNamesTheKeyAtOnce(t *testing.T) {
	t.Parallel()
	d := newGateDir(t, nil)
	startGate(t, d).end(t)
	code, out, errs := d.command(t, "log", "new", "--accept-loss", "a drill")
	require.Zero(t, code, "%s%s", out, errs)
	log := d.openLog(t)
	require.NotEmpty(t, log.Header().Signer)
	require.NoError(t, log.Close(context.Background()))
	require.Equal(t, []string{log.Header().Signer}, d.startupKeys(t))
	require.NoError(t, os.Chmod(d.signing.private, 0o640))
	code, _, errs = d.command(t, "log", "new", "--accept-loss", "a drill")
	require.Equal(t, exitConfigured, code, "a log that is to be signed does not begin without its key")
	require.Contains(t, errs, "chmod 600")
}
