package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strings"

	"writegate/cmd/terminal"
	"writegate/sqlgate"
	"writegate/sqlgate/policy"
	"writegate/sqlgate/policyfolder"
)

// maxPolicyRead bounds what is read of a file that a person names, so that a
// wrong name cannot fill the memory. Load says what a document may have.
const maxPolicyRead = 1 << 20

// A policyText is a document that a person named.
type policyText struct {
	shown    string // the name in what is printed: a path, a version, or standard input
	fileName string // what it is called on disk, "" where it is in no file
	document []byte
}

const standardInput = "-"

// policyText finds what a name of the command line means: - for standard
// input, a file, a version in GATE_POLICY_DIR, or the active one there.
func (a *app) policyText(s *settings, name string) (policyText, error) {
	if name == standardInput {
		document, err := io.ReadAll(io.LimitReader(a.in, maxPolicyRead))
		return policyText{shown: "standard input", document: document}, err
	}
	document, err := readAtMost(name, maxPolicyRead)
	switch {
	case err == nil:
		return policyText{name, filepath.Base(name), document}, nil
	case !errors.Is(err, fs.ErrNotExist) || !isVersionName(name):
		return policyText{}, err
	case name == sqlgate.ActiveVersion:
		return activeText(s)
	}
	path := filepath.Join(s.PolicyDir, policyfolder.Path(name))
	document, err = policyfolder.Document(s.PolicyDir, name)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%s is no file, and no version in the policy folder %s (GATE_POLICY_DIR)", name, s.PolicyDir)
	}
	if err != nil {
		return policyText{}, err
	}
	return policyText{path, filepath.Base(path), document}, nil
}

// isVersionName tells a version from a file.
func isVersionName(name string) bool {
	return name == sqlgate.ActiveVersion || (strings.Contains(name, "@") && !strings.ContainsRune(name, filepath.Separator) && filepath.Ext(name) != ".yaml")
}

func readAtMost(path string, limit int64) ([]byte, error) {
	f, _, err := terminal.OpenFile(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, limit))
}

// activeText is the active version of the policy folder.
func activeText(s *settings) (policyText, error) {
	folder, findings, err := policyfolder.Read(s.PolicyDir, s.PolicyManifest)
	if err != nil {
		return policyText{}, err
	}
	version, document, ok := folder.Active()
	if !ok {
		return policyText{}, fmt.Errorf("the policy folder %s has no active version that could be read; name a file%s", s.PolicyDir, listed(findings))
	}
	path := filepath.Join(s.PolicyDir, policyfolder.Path(version))
	return policyText{path, filepath.Base(path), document}, nil
}

func listed(findings []policy.Finding) string {
	var b strings.Builder
	for _, f := range findings {
		b.WriteString("\n  " + f.String())
	}
	return b.String()
}

// compiledText is a document that has to be valid as it stands, since something
// is to be decided with it. What is wrong with it is printed.
func (a *app) compiledText(s *settings, name string) (*policy.Policy, error) {
	text, err := a.policyText(s, name)
	if err != nil {
		return nil, exitWith(exitFailed, err)
	}
	p, report := policy.Load(text.document, policy.Options{DefaultTTLSeconds: s.ApprovalTTL})
	if p == nil {
		if err := a.printFindings(a.err, &text, report.Findings); err != nil {
			return nil, exitWith(exitFailed, err)
		}
		return nil, exitWith(exitFailed, fmt.Errorf("%s is not valid, so nothing can be decided with it", text.shown))
	}
	return p, nil
}
