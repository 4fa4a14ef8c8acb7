package main

import (
	"errors"
	"fmt"
	"io/fs"

	"writegate/eventlog/checkpoint"
)

// signingKey is the key that the settings name for evidence: receipts,
// checkpoints and bundles. It is nil where signing is off. The error says which
// file does not do, and never what is in it.
func (s *settings) signingKey() (*checkpoint.PrivateKey, error) {
	if !s.SigningEnabled {
		return nil, nil
	}
	key, err := checkpoint.LoadKeyPair(s.SigningPrivateKey, s.SigningPublicKey)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("the signing key of GATE_EVIDENCE_SIGNING_PRIVATE_KEY_PATH and GATE_EVIDENCE_SIGNING_PUBLIC_KEY_PATH is not there: %w; `gate keys evidence --out DIR` makes a pair", err)
	case err != nil:
		return nil, fmt.Errorf("the signing key of GATE_EVIDENCE_SIGNING_PRIVATE_KEY_PATH and GATE_EVIDENCE_SIGNING_PUBLIC_KEY_PATH cannot be used: %w", err)
	}
	return key, nil
}

// signerOf is what signs the checkpoints of a log with this origin; nil without a key.
func signerOf(origin string, key *checkpoint.PrivateKey) (*checkpoint.Signer, error) {
	if key == nil {
		return nil, nil
	}
	signer, err := checkpoint.NewSigner(origin, key)
	if err != nil {
		return nil, fmt.Errorf("evidence of this log cannot be signed, because its origin %q (GATE_AUDIT_ORIGIN at its creation) cannot name a key: %w", origin, err)
	}
	return signer, nil
}

// signingFaults are settings that sign nothing though they look as if they did.
func (s *settings) signingFaults() []string {
	var faults []string
	if s.SigningEnabled && (s.SigningPrivateKey == "" || s.SigningPublicKey == "") {
		faults = append(faults, "GATE_EVIDENCE_SIGNING_ENABLED needs GATE_EVIDENCE_SIGNING_PRIVATE_KEY_PATH and GATE_EVIDENCE_SIGNING_PUBLIC_KEY_PATH: `gate keys evidence --out DIR` makes a pair")
	}
	if !s.SigningEnabled && (s.WitnessURLs != "" || s.WitnessKeys != "") {
		faults = append(faults, "GATE_WITNESS_URLS and GATE_WITNESS_KEYS need GATE_EVIDENCE_SIGNING_ENABLED=true: a witness is offered signed checkpoints")
	}
	return faults
}
