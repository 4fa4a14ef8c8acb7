package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"writegate/cmd/terminal"
	"writegate/eventlog/checkpoint"
	"writegate/eventlog/frame"
)

// Names of the two files of a signing key.
const (
	privateKeyFile = "evidence-key.pem"
	publicKeyFile  = "evidence-key.pub.pem"
)

func (a *app) keysCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "keys", Short: "Make keys: of projects for the agent API, and the one that evidence is signed with", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	cmd.AddCommand(a.keysEvidenceCommand(), a.keysCreateCommand())
	return cmd
}

func (a *app) keysEvidenceCommand() *cobra.Command {
	var out, origin string
	cmd := &cobra.Command{
		Use: "evidence --out DIR", Short: "Make a new Ed25519 key for evidence and print the settings that use it", Args: cobra.NoArgs,
		Long: `Make a new Ed25519 key: ` + privateKeyFile + ` (PKCS#8) and ` + publicKeyFile + `
in DIR, both readable by their owner alone. Files that exist are never written over.

Give the public half, or the vkey, to everybody who checks evidence. A vkey names the log by its
origin: --origin, else GATE_AUDIT_ORIGIN, else the log at GATE_AUDIT_WAL_PATH. Of a log that does
not exist yet a running gate tells it, under GET /audit/evidence/signing-public-key.`,
		Example: "  gate keys evidence --out /etc/gate",
		RunE: func(*cobra.Command, []string) error {
			return a.makeEvidenceKey(out, cmp.Or(origin, a.knownOrigin()))
		},
	}
	cmd.Flags().StringVar(&out, "out", "", "folder for the two files (required)")
	cmd.Flags().StringVar(&origin, "origin", "", "origin of the log, for the vkey")
	_ = cmd.MarkFlagRequired("out") // fails for a flag that is not there, and this one is
	return cmd
}

func (a *app) makeEvidenceKey(dir, origin string) error {
	key, err := checkpoint.NewPrivateKey()
	if err != nil {
		return exitWith(exitFailed, err)
	}
	vkey := "told by the gate once the log exists: GET /audit/evidence/signing-public-key"
	if origin != "" {
		if vkey, err = key.Public().VKey(origin); err != nil {
			return err
		}
	}
	private, public, err := writeKeyPair(dir, key)
	if err != nil {
		return exitWith(exitFailed, err)
	}
	printKey(a.out, key.Public(), vkey, private, public)
	return nil
}

func printKey(w io.Writer, key checkpoint.PublicKey, vkey, private, public string) {
	fmt.Fprintf(w, `key_id      %s
public_key  %s
vkey        %s

Settings of the gate:

GATE_EVIDENCE_SIGNING_ENABLED=true
GATE_EVIDENCE_SIGNING_PRIVATE_KEY_PATH=%s
GATE_EVIDENCE_SIGNING_PUBLIC_KEY_PATH=%s

Keep a copy of the private key where the gate's host cannot lose it, and give %s
to everybody who checks evidence, before they need it.
`, key.ID(), key.Base64(), vkey, private, public, filepath.Base(public))
}

// writeKeyPair puts a new key into a folder and tells the absolute paths.
func writeKeyPair(dir string, key *checkpoint.PrivateKey) (private, public string, err error) {
	if dir, err = filepath.Abs(dir); err != nil {
		return "", "", err
	}
	if err = os.MkdirAll(dir, 0o700); err != nil {
		return "", "", err
	}
	private, public = filepath.Join(dir, privateKeyFile), filepath.Join(dir, publicKeyFile)
	err = checkpoint.WriteKeyPair(private, public, key)
	if errors.Is(err, fs.ErrExist) {
		err = fmt.Errorf("%w; a key is never written over: name another folder, or move the old pair away and keep it", err)
	}
	return private, public, err
}

// knownOrigin is the origin of the log that the environment names, or the one
// that it will be created with; "" where only its creation will tell. No other
// setting is read: those that need the key are faults until it is made.
func (a *app) knownOrigin() string {
	origin, _ := lookUp(a.environ, "GATE_AUDIT_ORIGIN")
	path, _ := lookUp(a.environ, "GATE_AUDIT_WAL_PATH")
	f, _, err := terminal.OpenFile(cmp.Or(path, "./audit.wal"))
	if err != nil {
		return origin
	}
	defer f.Close()
	b := make([]byte, frame.HeaderSize)
	if _, err := io.ReadFull(f, b); err != nil {
		return origin
	}
	header, err := frame.ParseHeader(b)
	if err != nil {
		return origin
	}
	return header.Origin
}
