package sqlgate

import (
	"bytes"
	"context"
	"path/filepath"

	"writegate/commands"
	"writegate/sqlgate/policy"
	"writegate/sqlgate/policyfolder"
)

func (g *Gate) pathOf(version string) string {
	return filepath.Join(g.Policies.Dir, policyfolder.Path(version))
}

// checkFolder compares the folder with the log before a version becomes active:
// the bytes on disk, those of the log and the manifest must be the same, for
// every version, since a folder that somebody touched vouches for nothing. What
// a crash left unwritten is written first.
func (g *Gate) checkFolder(ctx context.Context, target sourced) error {
	known, err := g.knownVersions(ctx)
	if err != nil {
		return err
	}
	standing, findings, err := policyfolder.Compare(g.Policies.Dir, g.Policies.Manifest, known)
	if err == nil && (standing == policyfolder.Absent || standing == policyfolder.Behind) {
		standing, err = policyfolder.Agrees, policyfolder.Write(g.Policies.Dir, g.Policies.Manifest, known)
	}
	switch {
	case err != nil:
		return commands.ActivationFault("manifest_mismatch", "The policy folder could not be brought to what the event log says, so nothing was changed; details.findings says why. Free space on its volume, or see to the folder's rights, and send the request again.").
			With("findings", []policy.Finding{unwritten(err)}).Because(err)
	case standing == policyfolder.Agrees:
		return nil
	}
	reason := "manifest_mismatch"
	if onDisk, err := policyfolder.Document(g.Policies.Dir, target.version); err == nil && !bytes.Equal(onDisk, target.document) {
		reason = "hash_mismatch"
	}
	return commands.ActivationFault(reason, "The policy folder and the event log disagree, so nothing was changed; details.findings says where. `gate policy rebuild` shows the differences and writes the folder anew from the log.").
		With("findings", findings)
}

// writePolicies brings the folder to what the log says. Where that fails the
// log stands, and the answer warns: the next change or start writes it.
func (g *Gate) writePolicies() []policy.Finding {
	known, err := g.knownVersions(context.Background()) // the change is durable, whether or not its request still waits
	if err == nil {
		err = policyfolder.Write(g.Policies.Dir, g.Policies.Manifest, known)
	}
	if err == nil {
		return nil
	}
	g.Logger.Error("the policy folder could not be written; the event log holds the truth, and the next change or start writes it", "source", "gate", "cause", err.Error())
	finding := unwritten(err)
	finding.Severity = policy.SeverityWarning
	return []policy.Finding{finding}
}

func unwritten(err error) policy.Finding {
	return policy.NewFinding("PV402", "the policy folder could not be written from the event log: %v", err)
}
