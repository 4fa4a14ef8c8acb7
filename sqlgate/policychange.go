package sqlgate

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"unicode/utf8"

	"writegate/commands"
	"writegate/commands/fault"
	"writegate/eventlog/event"
	"writegate/projections"
	"writegate/sqlgate/policy"
)

// maxPolicyNote bounds a note and a reason, in bytes.
const maxPolicyNote = 4 << 10

// maxRecordedFindings is how many findings of a rejected candidate the log keeps
// (design/policy.md part 7).
const maxRecordedFindings = 100

// turns is a lock that a caller can give up waiting for.
type turns chan struct{}

func newTurns() turns { return make(turns, 1) }

func (t turns) lock(ctx context.Context) error {
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (t turns) unlock() { <-t }

// A CandidateAnswer is the answer of POST /policy/candidates. What a validation
// found is absent where the version was there already.
type CandidateAnswer struct {
	VersionEntry
	Created  bool                `json:"-"`
	Warnings []policy.Finding    `json:"warnings"`
	Tests    *policy.SuiteReport `json:"tests,omitempty"`
	Corpus   *policy.SuiteReport `json:"corpus,omitempty"`
	Coverage *policy.Coverage    `json:"coverage,omitempty"`
}

// CreateCandidate takes a document as a new version (design/policy.md part 8).
// A version is what its bytes are: the same bytes again are no second event.
//
// Errors: validation_failed, policy_invalid for a document that does not pass
// (recorded as rejected where its name and version can be read),
// policy_version_exists, and those of the log.
func (g *Gate) CreateCandidate(ctx context.Context, document []byte, note, by string) (*CandidateAnswer, error) {
	if problem := noteProblem(note); problem != "" {
		return nil, FieldsFault(map[string]string{"note": problem})
	}
	if err := g.policyWork.lock(ctx); err != nil {
		return nil, err
	}
	defer g.policyWork.unlock()
	_, loaded := policy.Load(document, policy.Options{})
	if loaded.PolicyVersion == "" {
		return nil, invalidFault("", loaded.Hash, "", commands.PolicyValidationFailed, loaded.Findings)
	}
	if answer, err := g.standing(ctx, loaded.PolicyVersion, loaded.Hash); answer != nil || err != nil {
		return answer, err
	}
	j, err := g.judge(ctx, document, policy.Options{})
	if err != nil {
		return nil, err
	}
	if j.unusable {
		return nil, invalidFault(loaded.PolicyVersion, loaded.Hash, "", j.failed, j.report.Findings)
	}
	if _, err := g.Commands.CreateCandidate(ctx, j.candidate(document, note, by)); err != nil {
		return nil, err
	}
	g.Step("policy.appended")
	warnings := append(j.report.Warnings, g.writePolicies()...)
	if j.failed != "" {
		return nil, invalidFault(loaded.PolicyVersion, loaded.Hash, event.PolicyRejectedStatus, j.failed, j.recorded())
	}
	entry, err := g.versionEntry(context.WithoutCancel(ctx), loaded.PolicyVersion) // it is recorded: an answer must not say that it is not
	return &CandidateAnswer{VersionEntry: entry, Created: true, Warnings: warnings, Tests: &j.report.Tests, Corpus: &j.report.Corpus, Coverage: &j.report.Coverage}, err
}

func noteProblem(note string) string {
	switch {
	case len(note) > maxPolicyNote:
		return "must have at most 4096 bytes"
	case !utf8.ValidString(note):
		return "must be valid UTF-8"
	}
	return ""
}

// standing answers for a version that exists, nil where it does not.
func (g *Gate) standing(ctx context.Context, version, hash string) (*CandidateAnswer, error) {
	view := g.Store.ViewWithin(ctx)
	defer view.Close()
	v, found, err := view.PolicyVersion(version)
	switch {
	case err != nil || !found:
		return nil, err
	case hex.EncodeToString(v.Hash[:]) != hash:
		return nil, fault.New(fault.PolicyVersionExists, "%s exists with other bytes, and a version never changes. Give the document a new version number and send it again.", version).
			With("policy_version", version).With("hash", hex.EncodeToString(v.Hash[:]))
	case v.Status == event.PolicyRejectedStatus:
		return nil, invalidFault(version, hash, v.Status, v.RejectedReason, json.RawMessage(v.Findings))
	}
	entry, err := g.entryOf(view, &v)
	return &CandidateAnswer{VersionEntry: entry, Warnings: []policy.Finding{}}, err
}

// candidate is what a judgement makes of a document.
func (j *judgement) candidate(document []byte, note, by string) commands.Candidate {
	r := &j.report
	n := commands.Candidate{PolicyVersion: r.PolicyVersion, RuleCount: r.RuleCount, SemanticHash: decodeHash(r.SemanticHash),
		Document: document, Note: note, By: by, Rejected: j.failed}
	if j.failed != "" {
		n.Findings = string(appendValue(nil, j.recorded()))
	}
	return n
}

// recorded are the findings that the log keeps, and that every answer about the
// version gives.
func (j *judgement) recorded() []policy.Finding {
	return j.report.Findings[:min(len(j.report.Findings), maxRecordedFindings)]
}

// decodeHash reads a hash of our own making; "" is zero.
func decodeHash(text string) (hash [32]byte) {
	if raw, err := hex.DecodeString(text); err == nil {
		copy(hash[:], raw)
	}
	return hash
}

// A PolicyChangeRequest asks for an activation or a rollback (design/policy.md
// part 8). Hashes are 64 hex digits, with or without sha256: in front.
type PolicyChangeRequest struct {
	Rollback           bool
	PolicyVersion      string
	ExpectedHash       string // of an activation; required there
	ExpectedActiveHash string // "" = whatever is active
	Impact             *ImpactClaim
	Reason             string
	By                 string // label of the operator token
}

// An ImpactClaim is the replay that the operator looked at.
type ImpactClaim struct {
	FromSeq, ToSeq uint64
	ImpactHash     string
}

// A PolicyChangeAnswer is the answer of an activation and of a rollback.
type PolicyChangeAnswer struct {
	PolicyVersion  string           `json:"policy_version"`
	Status         string           `json:"status"`
	Hash           string           `json:"hash"`
	Previous       *VersionStatus   `json:"previous"` // null: none was active
	RolledBackFrom string           `json:"rolled_back_from,omitempty"`
	ActivatedAt    string           `json:"activated_at"`
	ActivatedSeq   uint64           `json:"activated_seq"`
	ActivatedBy    string           `json:"activated_by"`
	Tests          caseCounts       `json:"tests"`
	Corpus         corpusCounts     `json:"corpus"`
	Warnings       []policy.Finding `json:"warnings"`
}

// A VersionStatus is a version and where it stands.
type VersionStatus struct {
	PolicyVersion string `json:"policy_version"`
	Status        string `json:"status"`
}

// ChangePolicy makes a candidate, or with Rollback an archived version, the
// active one: the bytes of the log, the folder, the manifest and the request
// must be the same, and all its cases pass once more. The old version decides
// until the change is durable.
//
// Errors: validation_failed, policy_not_found, policy_activation_failed with
// details.reason, and those of the log.
func (g *Gate) ChangePolicy(ctx context.Context, r PolicyChangeRequest) (*PolicyChangeAnswer, error) {
	if err := g.checkRequest(ctx, &r); err != nil {
		return nil, err
	}
	if err := g.policyWork.lock(ctx); err != nil {
		return nil, err
	}
	defer g.policyWork.unlock()
	target, base, err := g.chosen(ctx, &r)
	if err != nil {
		return nil, err
	}
	if err := g.checkFolder(ctx, target); err != nil {
		return nil, err
	}
	impact, err := g.checkImpact(ctx, r.Impact, target, base)
	if err != nil {
		return nil, err
	}
	j, err := g.judge(ctx, target.document, policy.Options{})
	if err != nil {
		return nil, err
	}
	next := g.runnable(target, j)
	change := commands.PolicyChange{Rollback: r.Rollback, Verdict: g.verdict(next), Failed: j.failed, Impact: impact, By: r.By, Reason: r.Reason}
	if r.ExpectedActiveHash != "" || impact != nil {
		change.Base = &base.hash
	}
	change.Around = func(write func() error) error {
		g.inForce.Lock()
		defer g.inForce.Unlock()
		if err := write(); err != nil {
			return err
		}
		g.Step("policy.appended")
		g.running.Store(next)
		return nil
	}
	changed, err := g.Commands.ChangePolicy(ctx, change) // COMMIT POINT inside: from here on the new version is the active one
	if err != nil {
		return nil, withFindings(err, j.report.Findings)
	}
	g.Step("policy.swapped")
	warnings := append(next.report.Warnings, g.writePolicies()...)
	g.Step("policy.written")
	g.chain.take(g.passed(next))
	g.Logger.Info("another policy version decides", "source", "gate", "policy_version", next.version, "previous", changed.Previous, "rollback", r.Rollback, "by", r.By)
	return r.answer(next, changed, warnings), nil
}

// withFindings tells what a failed validation found.
func withFindings(err error, findings []policy.Finding) error {
	f := fault.Of(err)
	if len(findings) > 0 && f.Code == fault.PolicyActivationFailed {
		return f.With("findings", findings)
	}
	return err
}

func (r *PolicyChangeRequest) answer(next *runningPolicy, changed commands.PolicyChanged, warnings []policy.Finding) *PolicyChangeAnswer {
	a := &PolicyChangeAnswer{
		PolicyVersion: next.version, Status: event.PolicyActiveStatus, Hash: hex.EncodeToString(next.hash[:]),
		ActivatedAt: event.Timestamp(changed.At), ActivatedSeq: changed.Seq, ActivatedBy: r.By,
		Tests:    caseCounts{next.report.Tests.Cases, next.report.Tests.Passed},
		Corpus:   corpusCounts{next.report.Corpus.Cases, next.report.Corpus.Passed, next.report.Corpus.Hash},
		Warnings: warnings,
	}
	if changed.Previous != "" {
		a.Previous = &VersionStatus{changed.Previous, event.PolicyArchivedStatus}
	}
	if r.Rollback {
		a.RolledBackFrom = changed.Previous
	}
	return a
}

// checkRequest reads the request itself. Where no version is active there is no
// impact to look at, so none is asked for.
func (g *Gate) checkRequest(ctx context.Context, r *PolicyChangeRequest) error {
	if !g.RequireImpact {
		return r.check(false)
	}
	view := g.Store.ViewWithin(ctx)
	defer view.Close()
	_, found, err := view.ActivePolicy()
	if err != nil {
		return err
	}
	return r.check(found)
}

func (r *PolicyChangeRequest) check(requireImpact bool) error {
	fields := map[string]string{}
	hash := func(field, value string, required bool) {
		switch {
		case value == "" && required:
			fields[field] = "is required: the SHA-256 of the file that was reviewed, in 64 hex digits"
		case value != "" && !isHash(value):
			fields[field] = "must be a SHA-256 in 64 hex digits"
		}
	}
	hash("expected_hash", r.ExpectedHash, !r.Rollback)
	hash("expected_active_hash", r.ExpectedActiveHash, false)
	if problem := noteProblem(r.Reason); problem != "" {
		fields["reason"] = problem
	}
	switch {
	case r.Impact == nil && requireImpact && !r.Rollback:
		fields["impact"] = "is required here (GATE_POLICY_REQUIRE_IMPACT): from_seq, to_seq and impact_hash of a replay by POST /policy/diff"
	case r.Impact != nil && (r.Impact.FromSeq == 0 || r.Impact.ToSeq < r.Impact.FromSeq):
		fields["impact"] = "must name a range: from_seq from 1, to_seq not before it"
	case r.Impact != nil && !isHash(r.Impact.ImpactHash):
		fields["impact.impact_hash"] = "must be a SHA-256 in 64 hex digits"
	}
	if len(fields) > 0 {
		return FieldsFault(fields)
	}
	return nil
}

func isHash(text string) bool {
	raw, err := hex.DecodeString(policy.NormalHash(text))
	return err == nil && len(raw) == 32
}

// chosen finds the version that a request is about, and the active one (zero
// where there is none), and compares both with what the request expects.
func (g *Gate) chosen(ctx context.Context, r *PolicyChangeRequest) (target, base sourced, err error) {
	view := g.Store.ViewWithin(ctx)
	defer view.Close()
	active, _, err := view.ActivePolicy()
	if err != nil {
		return target, base, err
	}
	base.version, base.hash = active.PolicyVersion, active.Hash
	if r.ExpectedActiveHash != "" && decodeHash(policy.NormalHash(r.ExpectedActiveHash)) != base.hash {
		return target, base, commands.ActivationFault("active_changed", "The active version is %s by now, not the one with the hash %s. Look at the difference again.", orNone(base.version), r.ExpectedActiveHash).
			With("active", orNull(base.version)).With("active_hash", base.hexHash())
	}
	name := r.PolicyVersion
	if name == "" {
		if name, err = r.implied(view); err != nil {
			return target, base, err
		}
	}
	v, found, err := view.PolicyVersion(name)
	if err != nil {
		return target, base, err
	}
	if !found {
		return target, base, versionNotFound(name)
	}
	if err := r.checkStatus(v.PolicyVersion, v.Status); err != nil {
		return target, base, err
	}
	if r.ExpectedHash != "" && decodeHash(policy.NormalHash(r.ExpectedHash)) != v.Hash {
		return target, base, commands.ActivationFault("hash_mismatch", "%s has the hash %x, not the one expected. Look at the version that is there (GET /policy/versions/%s) and activate what you reviewed.", name, v.Hash, name).
			With("hash", hex.EncodeToString(v.Hash[:]))
	}
	target, err = findVersion(view, name)
	return target, base, err
}

func orNone(version string) string {
	if version == "" {
		return "none"
	}
	return version
}

func (r *PolicyChangeRequest) checkStatus(version, status string) error {
	want, reason, hint := event.PolicyCandidateStatus, "not_candidate", "POST /policy/rollback takes an archived version."
	if r.Rollback {
		want, reason, hint = event.PolicyArchivedStatus, "not_archived", "POST /policy/activate takes a candidate."
	}
	if status == want {
		return nil
	}
	return commands.ActivationFault(reason, "%s is %s, and only a version that is %s can be taken here. %s", version, status, want, hint).With("status", status)
}

// implied finds the version that a request without a name is about: the
// candidate with the expected hash, or the version that was archived last.
func (r *PolicyChangeRequest) implied(view *projections.View) (string, error) {
	if r.Rollback {
		found, err := lastArchived(view)
		if err == nil && found == "" {
			err = fault.New(fault.PolicyNotFound, "No version is archived, so there is nothing to go back to.")
		}
		return found, err
	}
	found := ""
	err := eachVersion(view, projections.PolicyFilter{Status: event.PolicyCandidateStatus}, func(v *projections.PolicyVersion) error {
		if v.Hash == decodeHash(policy.NormalHash(r.ExpectedHash)) {
			found = v.PolicyVersion
		}
		return nil
	})
	if err == nil && found == "" {
		err = commands.ActivationFault("hash_mismatch", "No candidate has the hash %s. GET /policy/versions?status=candidate lists those there are.", r.ExpectedHash)
	}
	return found, err
}

// lastArchived is the version that was archived last, by the number of the event;
// "" where none is.
func lastArchived(view *projections.View) (string, error) {
	var last projections.PolicyVersion
	err := eachVersion(view, projections.PolicyFilter{Status: event.PolicyArchivedStatus}, func(v *projections.PolicyVersion) error {
		if v.ArchivedSeq > last.ArchivedSeq {
			last = *v
		}
		return nil
	})
	return last.PolicyVersion, err
}

// checkImpact replays the range that the operator looked at and compares.
func (g *Gate) checkImpact(ctx context.Context, claim *ImpactClaim, target, base sourced) (*event.Impact, error) {
	if claim == nil {
		return nil, nil
	}
	report, err := g.Replay(ctx, ReplayRequest{Base: Source{PolicyVersion: ActiveVersion}, Target: Source{PolicyVersion: target.version},
		FromSeq: claim.FromSeq, ToSeq: claim.ToSeq, Limit: MaxReplay})
	switch {
	case err != nil:
		return nil, err
	case report.ImpactHash == nil:
		return nil, fault.New(fault.Internal, "The replay of events %d to %d did not end in time, so the impact could not be checked and nothing was changed. Look at a shorter range.", claim.FromSeq, claim.ToSeq)
	case decodeHash(*report.ImpactHash) != decodeHash(policy.NormalHash(claim.ImpactHash)):
		return nil, commands.ActivationFault("impact_mismatch", "The replay of events %d to %d between %s and %s gives another impact than the one that was reviewed. Look at it again (POST /policy/diff).",
			claim.FromSeq, claim.ToSeq, orNone(base.version), target.version).With("impact_hash", *report.ImpactHash)
	}
	return &event.Impact{FromSeq: claim.FromSeq, ToSeq: claim.ToSeq, ImpactHash: decodeHash(policy.NormalHash(claim.ImpactHash))}, nil
}

// runnable is a version as the gate runs it.
func (g *Gate) runnable(v sourced, j judgement) *runningPolicy {
	return &runningPolicy{policy: j.policy, version: v.version, hash: v.hash, path: g.pathOf(v.version), report: j.report}
}

// passed is a chain in which every step is all right under a version.
func (g *Gate) passed(p *runningPolicy) *Chain {
	c := newChain()
	c.pass(StepAuditLog, "The event log is continuous.")
	c.pass(StepManifest, "The manifest was written from the event log.")
	c.pass(StepPolicyHash, hashMessage(p))
	passCases(c, p)
	return c
}

func hashMessage(p *runningPolicy) string {
	return "The active file, the manifest and the log agree on " + hex.EncodeToString(p.hash[:]) + "."
}

func passCases(c *Chain, p *runningPolicy) {
	c.pass(StepPolicyValidation, validMessage(p))
	c.pass(StepCorpus, fmt.Sprintf("%d of %d corpus case(s) passed.", p.report.Corpus.Passed, p.report.Corpus.Cases))
}

func validMessage(p *runningPolicy) string {
	r := &p.report
	return fmt.Sprintf("%s is valid: %d rule(s), %d of %d own test(s) passed.", p.version, r.RuleCount, r.Tests.Passed, r.Tests.Cases)
}
