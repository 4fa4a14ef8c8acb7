package checkpoint_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/mod/sumdb/note"

	"writegate/eventlog/checkpoint"
)

func TestAPublicKeyIsReadInAnyOfItsForms(t *testing.T) {
	raw, err := hex.DecodeString(goldenRaw)
	require.NoError(t, err)
	for name, form := range map[string]string{
		"PEM": goldenPublic, "PEM without its last line end": strings.TrimSpace(goldenPublic),
		"vkey": goldenVKey, "vkey of a file": goldenVKey + "\n", "base64": base64.StdEncoding.EncodeToString(raw),
	} {
		p, err := checkpoint.ParsePublicKey([]byte(form))
		require.NoError(t, err, name)
		require.Equal(t, goldenKeyID, p.ID(), name)
	}
	p := goldenKey(t).Public()
	require.Equal(t, goldenRaw, hex.EncodeToString(p[:]))
	text, err := p.PEM()
	require.NoError(t, err)
	require.Equal(t, goldenPublic, string(text))
	vkey, err := p.VKey("gate.example")
	require.NoError(t, err)
	require.Equal(t, goldenVKey, vkey)
	name, back, err := checkpoint.ParseVKey(vkey)
	require.NoError(t, err)
	require.Equal(t, "gate.example", name)
	require.Equal(t, p, back)
	private, err := goldenKey(t).PEM()
	require.NoError(t, err)
	require.Equal(t, goldenPrivate, string(private))
}

func TestWhatIsNoPublicKeyIsRefused(t *testing.T) {
	other, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.MarshalPKIXPublicKey(&other.PublicKey)
	require.NoError(t, err)
	for name, form := range map[string]string{
		"nothing":             "",
		"a private key":       goldenPrivate,
		"two keys":            goldenPublic + goldenPublic,
		"text after the PEM":  goldenPublic + "x",
		"PEM headers":         strings.Replace(goldenPublic, "KEY-----\n", "KEY-----\nA: b\n\n", 1),
		"PEM of nothing":      "-----BEGIN PUBLIC KEY-----\n-----END PUBLIC KEY-----\n",
		"broken PEM":          "-----BEGIN PUBLIC KEY-----\n",
		"another algorithm":   string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})),
		"a witness's vkey":    goldenWitness,
		"vkey without a name": goldenVKey[len("gate.example"):],
		"vkey of a wrong sum": strings.Replace(goldenVKey, "+78d1", "+78d2", 1),
		"vkey of a short sum": strings.Replace(goldenVKey, "+78d11f8f", "+78d11f8", 1),
		"vkey of a long sum":  strings.Replace(goldenVKey, "+78d11f8f", "+0078d11f8f", 1),
		"vkey of another sum": strings.Replace(goldenVKey, "+78d11f8f", "+78D11F8F", 1),
		"vkey cut short":      goldenVKey[:len(goldenVKey)-4],
		"vkey, name changed":  "x" + goldenVKey,
		"31 bytes":            strings.Repeat("k", 31),
		"a path of 32 bytes":  "/srv/gate/keys/evidence1.pub.pem",
		"short base64":        "AAAA=",
		"base64, free bits":   strings.Repeat("A", 42) + "B=",
	} {
		_, err := checkpoint.ParsePublicKey([]byte(form))
		require.ErrorIs(t, err, checkpoint.ErrKey, name)
	}
}

func TestWhatIsNoPrivateKeyIsRefused(t *testing.T) {
	other, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(other)
	require.NoError(t, err)
	for name, form := range map[string]string{
		"nothing": "", "a public key": goldenPublic, "two keys": goldenPrivate + goldenPrivate,
		"another algorithm": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})),
		"garbage":           string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("secret")})),
		"an encrypted key":  string(pem.EncodeToMemory(&pem.Block{Type: "ENCRYPTED PRIVATE KEY", Bytes: []byte("secret")})),
	} {
		_, err := checkpoint.ParsePrivateKey([]byte(form))
		require.ErrorIs(t, err, checkpoint.ErrKey, name)
		require.NotContains(t, err.Error(), "secret")
	}
}

// A note opens only under names that the note format allows, so a key under
// another name would sign what nobody can read.
func TestNamesThatNotesCanNotHoldAreRefused(t *testing.T) {
	p := goldenKey(t).Public()
	for _, name := range []string{"", "a b", "a+b", "a\tb", "a\nb", "a\u00a0b", "a\x01b", "a\xffb"} {
		_, err := p.VKey(name)
		require.ErrorIs(t, err, checkpoint.ErrKey, "%q", name)
		_, err = checkpoint.NewSigner(name, goldenKey(t))
		require.ErrorIs(t, err, checkpoint.ErrKey, "%q", name)
	}
	for _, name := range []string{"gate/00ff", "Größe", "a=b?c"} {
		vkey, err := p.VKey(name)
		require.NoError(t, err)
		_, err = note.NewVerifier(vkey)
		require.NoError(t, err)
	}
}

func TestAPrivateKeyShowsOnlyItsName(t *testing.T) {
	key := goldenKey(t)
	encoded, err := json.Marshal(map[string]any{"key": key})
	require.NoError(t, err)
	shown := fmt.Sprintf("%v %+v %#v %s %q %x %d %v %v", key, key, key, key, key, key, key, *key, struct{ K *checkpoint.PrivateKey }{key}) + string(encoded)
	require.Contains(t, shown, "private key of "+goldenKeyID)
	require.NotContains(t, shown, "000102030405")
	require.NotContains(t, shown, "0 1 2 3 4")
	require.NotContains(t, shown, "AAECAwQF")
	require.Equal(t, "<nil>", fmt.Sprint((*checkpoint.PrivateKey)(nil)))
}

func keyFiles(t *testing.T) (private, public string) {
	dir := t.TempDir()
	return filepath.Join(dir, "private.pem"), filepath.Join(dir, "public.pem")
}

func TestAKeyPairOnDisk(t *testing.T) {
	private, public := keyFiles(t)
	key := newKey(t)
	require.NoError(t, checkpoint.WriteKeyPair(private, public, key))
	for _, path := range []string{private, public} {
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	}
	back, err := checkpoint.LoadKeyPair(private, public)
	require.NoError(t, err)
	require.Equal(t, key.Public(), back.Public())

	require.ErrorIs(t, checkpoint.WriteKeyPair(private, public, newKey(t)), os.ErrExist)
	again, err := checkpoint.LoadPrivateKey(private)
	require.NoError(t, err)
	require.Equal(t, key.Public(), again.Public(), "a key is never written over")
}

func TestHalfAKeyPairIsNotLeftBehind(t *testing.T) {
	private, public := keyFiles(t)
	require.NoError(t, os.WriteFile(public, []byte(goldenPublic), 0o600))
	require.ErrorIs(t, checkpoint.WriteKeyPair(private, public, newKey(t)), os.ErrExist)
	require.NoFileExists(t, private)
}

func TestAPrivateKeyThatOthersMayUseIsRefused(t *testing.T) {
	private, public := keyFiles(t)
	require.NoError(t, checkpoint.WriteKeyPair(private, public, newKey(t)))
	for _, mode := range []os.FileMode{0o640, 0o604, 0o620, 0o602, 0o610, 0o777} {
		require.NoError(t, os.Chmod(private, mode))
		_, err := checkpoint.LoadPrivateKey(private)
		require.ErrorIs(t, err, checkpoint.ErrKey, "%04o", mode)
		require.ErrorContains(t, err, "chmod 600")
	}
	require.NoError(t, os.Chmod(private, 0o400))
	_, err := checkpoint.LoadPrivateKey(private)
	require.NoError(t, err)
}

func TestKeyFilesThatCanNotServe(t *testing.T) {
	private, public := keyFiles(t)
	require.NoError(t, checkpoint.WriteKeyPair(private, public, newKey(t)))
	_, other := keyFiles(t)
	require.NoError(t, os.WriteFile(other, []byte(goldenPublic), 0o600))

	_, err := checkpoint.LoadKeyPair(private, other)
	require.ErrorIs(t, err, checkpoint.ErrKey)
	require.ErrorContains(t, err, goldenKeyID)
	_, err = checkpoint.LoadKeyPair(private, public+".none")
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = checkpoint.LoadPrivateKey(private + ".none")
	require.ErrorIs(t, err, os.ErrNotExist)
	raw, err := hex.DecodeString(goldenRaw)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(other, raw, 0o600))
	bare, err := checkpoint.LoadPublicKey(other)
	require.NoError(t, err)
	require.Equal(t, goldenKeyID, bare.ID(), "a file may hold the bytes alone")
	_, err = checkpoint.LoadPublicKey(filepath.Dir(public))
	require.ErrorIs(t, err, checkpoint.ErrKey, "a folder")
	require.NoError(t, os.WriteFile(other, make([]byte, 1<<20), 0o600))
	_, err = checkpoint.LoadPublicKey(other)
	require.ErrorIs(t, err, checkpoint.ErrKey, "a large file")
}

// Anybody can sign with a point of small order: R = A and S = 0 fit one message in eight.
func TestKeysThatAnybodyCanSignWithAreRefused(t *testing.T) {
	dir := t.TempDir()
	for _, y := range []string{
		"0000000000000000000000000000000000000000000000000000000000000000",
		"0100000000000000000000000000000000000000000000000000000000000000",
		"ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
		"edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
		"eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
		"f0ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
		"26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
		"c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
	} {
		for _, sign := range []byte{0, 0x80} {
			raw, err := hex.DecodeString(y)
			require.NoError(t, err)
			raw[31] |= sign
			weak := checkpoint.PublicKey(raw)
			pem, err := weak.PEM()
			require.NoError(t, err)
			vkey, err := weak.VKey("gate.example")
			require.NoError(t, err)
			for _, text := range []string{weak.Base64(), string(pem), vkey} {
				_, err := checkpoint.ParsePublicKey([]byte(text))
				require.ErrorIs(t, err, checkpoint.ErrKey, "%s", text)
			}
			file := filepath.Join(dir, "raw")
			require.NoError(t, os.WriteFile(file, raw, 0o600))
			_, err = checkpoint.LoadPublicKey(file)
			require.ErrorIs(t, err, checkpoint.ErrKey)
		}
	}
}
