package projections

import "writegate/eventlog/event"

func policyKey(version string) []byte { return []byte(keyPolicy + version) }

func documentKey(hash [32]byte) []byte { return append([]byte(keyDocument), hash[:]...) }

// policy hands a version to change and writes it back. A version nobody brought
// is made, because the log has spoken of it.
func (t *tx) policy(e *event.Envelope, version string, hash [32]byte, change func(*PolicyVersion)) {
	var p PolicyVersion
	known := t.get(policyKey(version), &p)
	before := p.Status
	if !known {
		p = PolicyVersion{PolicyVersion: version, Seq: e.Seq, Hash: hash, CreatedAt: e.Time}
	}
	change(&p)
	t.put(policyKey(version), &p)
	if p.Status == before {
		return
	}
	if known {
		t.delete(listKey(keyPolicyList, before, p.Seq))
	}
	t.keep(listKey(keyPolicyList, p.Status, p.Seq), []byte(version))
}

// touched notes that e added a version's bytes or changed a status: the
// manifest in the policy folder is compared with this seq (design/policy.md part 1).
func (t *tx) touched(e *event.Envelope) {
	t.count(func(c *Counters) { c.PolicySeq = e.Seq })
}

func policyLoaded(t *tx, e *event.Envelope, p *event.PolicyLoaded) {
	if p.Origin != event.PolicyOriginImport {
		return // known already: this start says that it found what the log says
	}
	t.touched(e)
	t.set(documentKey(p.Hash), p.Document)
	t.policy(e, p.PolicyVersion, p.Hash, func(v *PolicyVersion) {
		v.Status, v.Bytes, v.Origin, v.CreatedBy = p.Status, len(p.Document), event.PolicyOriginImport, importedBy
		if p.Status == event.PolicyArchivedStatus {
			v.ArchivedAt, v.ArchivedSeq = e.Time, e.Seq
		}
	})
	if p.Status == event.PolicyActiveStatus {
		t.activate(e, p.PolicyVersion, p.Hash, importedBy, "")
	}
}

// importedBy is the `by` of what came from the policy folder (design/policy.md part 7).
const importedBy = "gate"

func policyCandidateCreated(t *tx, e *event.Envelope, p *event.PolicyCandidateCreated) {
	t.touched(e)
	t.set(documentKey(p.Hash), p.Document)
	t.policy(e, p.PolicyVersion, p.Hash, func(v *PolicyVersion) {
		v.Status, v.SemanticHash, v.RuleCount, v.Bytes = event.PolicyCandidateStatus, p.SemanticHash, p.RuleCount, len(p.Document)
		v.Origin, v.CreatedBy, v.Note = event.PolicyCandidateStatus, p.By, p.Note
	})
}

func policyCandidateRejected(t *tx, e *event.Envelope, p *event.PolicyCandidateRejected) {
	t.touched(e)
	t.policy(e, p.PolicyVersion, p.Hash, func(v *PolicyVersion) {
		v.Status, v.RejectedReason, v.Findings = event.PolicyRejectedStatus, p.Reason, p.Findings
	})
}

func policyValidated(t *tx, e *event.Envelope, p *event.PolicyValidated) {
	t.policy(e, p.PolicyVersion, p.Hash, func(v *PolicyVersion) {
		v.ValidatedSeq, v.Valid, v.Counts, v.Tests, v.Corpus = e.Seq, p.Valid, p.Counts, p.Tests, p.Corpus
	})
}

func policyActivated(t *tx, e *event.Envelope, p *event.PolicyActivated) {
	t.touched(e)
	t.activate(e, p.PolicyVersion, p.Hash, p.By, p.Reason)
}

func policyRollback(t *tx, e *event.Envelope, p *event.PolicyRollback) {
	t.touched(e)
	t.activate(e, p.PolicyVersion, p.Hash, p.By, p.Reason)
}

// activate makes version the active one and archives the one that was.
func (t *tx) activate(e *event.Envelope, version string, hash [32]byte, by, reason string) {
	if previous := t.counters.Active; previous != "" && previous != version {
		t.policy(e, previous, [32]byte{}, func(v *PolicyVersion) {
			v.Status, v.ArchivedAt, v.ArchivedSeq = event.PolicyArchivedStatus, e.Time, e.Seq
		})
	}
	t.policy(e, version, hash, func(v *PolicyVersion) {
		v.Status, v.ActivatedAt, v.ActivatedSeq, v.ActivatedBy, v.ActivateReason = event.PolicyActiveStatus, e.Time, e.Seq, by, reason
	})
	t.count(func(c *Counters) { c.Active = version })
}
