package sqlgate

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"writegate/commands"
	"writegate/commands/fault"
	"writegate/eventlog/event"
	"writegate/projections"
	"writegate/sqlgate/classify"
	"writegate/sqlgate/policy"
	"writegate/sqlgate/policyfolder"
)

// A PolicySource says where policy versions lie.
type PolicySource struct {
	Dir        string // GATE_POLICY_DIR
	Manifest   string // GATE_POLICY_MANIFEST, relative to Dir
	DefaultTTL int    // seconds, for rules without a TTL of their own
}

// runningPolicy is the version that decides. It never changes; another version
// is another value behind the pointer.
type runningPolicy struct {
	policy  *policy.Policy
	version string
	hash    [32]byte
	path    string
	report  policy.Report
}

// RunChain walks the startup chain and loads the policy. audit is what keeps
// the log from serving, nil when nothing does. After a failure the gate refuses
// every statement and says why, until RetryChain or a change of the policy
// finds it mended.
func (g *Gate) RunChain(ctx context.Context, audit error) {
	if audit != nil {
		g.chain.AuditFailed(auditCode(audit), "The event log does not serve: "+audit.Error())
		return
	}
	g.walkChain(ctx)
}

// RetryChain walks the chain again where the policy keeps the gate from
// serving: a folder that a person mended is taken without a restart. What
// failed before in the same words is not recorded once more.
func (g *Gate) RetryChain(ctx context.Context) {
	if f := g.chain.walked(); f != nil && f.Step != StepAuditLog {
		g.walkChain(ctx)
	}
}

// retryEvery is how often a folder is looked at again while the policy keeps
// the gate from serving.
const retryEvery = 2 * time.Second

// KeepTrying retries the chain until ctx ends.
func (g *Gate) KeepTrying(ctx context.Context) {
	ticker := time.NewTicker(retryEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			g.RetryChain(ctx)
		}
	}
}

func (g *Gate) walkChain(ctx context.Context) {
	if g.policyWork.lock(ctx) != nil {
		return
	}
	defer g.policyWork.unlock()
	before := g.chain.walked()
	walk := newChain()
	walk.pass(StepAuditLog, "The event log is continuous.")
	failure := g.loadPolicy(ctx, walk)
	if failure != nil {
		walk.fail(failure)
	}
	if ctx.Err() != nil {
		return // the gate ends, and what failed may have failed of that
	}
	g.chain.take(walk)
	switch {
	case failure == nil:
		g.Logger.Info("the startup chain passed", "source", "gate", "policy_version", g.PolicyVersion())
	case before == nil || before.Step != failure.Step || before.Message != failure.Message:
		g.recordFailure(ctx, failure)
	}
}

// recordFailure leaves evidence of a step that failed: what the validation of
// the active version found, where it was that, and the step itself.
func (g *Gate) recordFailure(ctx context.Context, f *ChainFailure) {
	g.Logger.Error("the startup chain failed, so no statement is accepted", "source", "gate", "step", f.Step, "cause", f.Message)
	var err error
	if f.verdict != nil {
		err = g.Commands.RecordPolicyLoaded(ctx, *f.verdict)
	}
	err = errors.Join(err, g.Commands.RecordHealthFail(ctx, f.Step, f.Message, string(f.code)))
	if err != nil {
		g.Logger.Error("the failed step could not be written to the event log", "source", "gate", "cause", err.Error())
	}
}

func auditCode(err error) fault.Code {
	if code := fault.CodeOf(err); code != "" {
		return code
	}
	return fault.AuditUnavailable
}

// loadPolicy walks the chain from the manifest on.
func (g *Gate) loadPolicy(ctx context.Context, chain *Chain) *ChainFailure {
	known, err := g.knownVersions(ctx)
	if err != nil {
		return failed(StepManifest, "The policy versions cannot be read from the projections: %v", err)
	}
	folder, failure := g.agreeingFolder(known)
	if failure != nil {
		if failure.Step == StepPolicyHash {
			chain.pass(StepManifest, "The manifest and the list of files hold together.")
		}
		return failure
	}
	listed := "1 file, as it is on disk"
	if n := len(folder.Manifest.Files); n != 1 {
		listed = fmt.Sprintf("%d files, all as they are on disk", n)
	}
	chain.pass(StepManifest, "The manifest lists "+listed+".")
	active, failure := g.activeVersion(folder, known)
	if failure != nil {
		return failure
	}
	chain.pass(StepPolicyHash, hashMessage(active))
	if failure := g.validate(ctx, chain, active, folder.Documents[active.version]); failure != nil {
		if known.Active == "" {
			failure.verdict = nil // nothing is imported yet, so the log has no version to speak of
		}
		return failure
	}
	if err := g.recordLoaded(ctx, active, folder, known); err != nil {
		return failed(StepPolicyValidation, "The policy could not be recorded as loaded: %s", fault.Of(err).Error())
	}
	g.running.Store(active)
	passCases(chain, active)
	return nil
}

func failed(step, format string, args ...any) *ChainFailure {
	return &ChainFailure{Step: step, Message: fmt.Sprintf(format, args...), code: fault.PolicyNotLoaded}
}

// knownVersions are the versions that the log holds, none before the import.
func (g *Gate) knownVersions(ctx context.Context) (policyfolder.State, error) {
	view := g.Store.ViewWithin(ctx)
	defer view.Close()
	state := policyfolder.State{Seq: view.LastPolicySeq()}
	page := projections.Page{Limit: 1000, Asc: true}
	for {
		versions, next, err := view.PolicyVersions(projections.PolicyFilter{}, page)
		if err != nil {
			return state, err
		}
		for _, v := range versions {
			document, found, err := view.PolicyDocument(v.Hash)
			if err != nil {
				return state, err
			}
			if !found {
				return state, fmt.Errorf("the bytes of %s are not in the log", v.PolicyVersion)
			}
			state.Versions = append(state.Versions, policyfolder.Version{PolicyVersion: v.PolicyVersion, Status: v.Status, Document: document})
			if v.Status == event.PolicyActiveStatus {
				state.Active = v.PolicyVersion
			}
		}
		if next == "" {
			return state, nil
		}
		page.Cursor = next
	}
}

// agreeingFolder reads the folder and makes it agree with the log, in the cases
// that design/policy.md part 1 lists; in every other case it says what differs.
func (g *Gate) agreeingFolder(known policyfolder.State) (*policyfolder.Folder, *ChainFailure) {
	if known.Seq == 0 {
		return g.readFolder()
	}
	if known.Active == "" {
		return g.withoutActive(known)
	}
	standing, findings, err := policyfolder.Compare(g.Policies.Dir, g.Policies.Manifest, known)
	switch {
	case err != nil:
		return nil, failed(StepManifest, "The policy folder cannot be read: %v", err)
	case standing == policyfolder.Agrees:
		return g.readFolder()
	case standing == policyfolder.Absent || standing == policyfolder.Behind:
		return g.writeFolder(known)
	}
	return nil, g.disagreement(findings)
}

// folderFailure is the step that findings about the folder fail: files with
// other bytes than they should have are no fault of the manifest.
func folderFailure(findings []policy.Finding, format string, args ...any) *ChainFailure {
	step := StepManifest
	if policyfolder.OnlyHashes(findings) {
		step = StepPolicyHash
	}
	f := failed(step, format, args...)
	f.Findings = findings
	return f
}

// withoutActive stands for a log that has versions and no active one: an import
// that was cut short is carried on, and candidates wait for their activation.
func (g *Gate) withoutActive(known policyfolder.State) (*policyfolder.Folder, *ChainFailure) {
	folder, findings, err := policyfolder.Read(g.Policies.Dir, g.Policies.Manifest)
	if err == nil && !hasErrors(findings) && folder.Manifest.Seq == 0 {
		return folder, nil
	}
	standing, findings, err := policyfolder.Compare(g.Policies.Dir, g.Policies.Manifest, known)
	if err == nil && standing != policyfolder.Agrees && standing != policyfolder.Differs {
		err = policyfolder.Write(g.Policies.Dir, g.Policies.Manifest, known)
	}
	switch {
	case err != nil:
		return nil, failed(StepManifest, "The policy folder cannot be brought to what the event log says: %v", err)
	case standing == policyfolder.Differs:
		return nil, g.disagreement(findings)
	}
	return nil, failed(StepPolicyHash, "The event log holds %d policy version(s), and none is active. POST /policy/activate makes a candidate the active one.", len(known.Versions))
}

// disagreement is a folder that is neither what the log says nor on the way there.
func (g *Gate) disagreement(findings []policy.Finding) *ChainFailure {
	return folderFailure(findings, "The policy folder %s and the event log disagree: %s. The log is the truth: `gate policy rebuild` shows the differences and writes what the log says, beside the running gate.",
		g.Policies.Dir, listFindings(findings))
}

// readFolder reads a folder that must be what its manifest says.
func (g *Gate) readFolder() (*policyfolder.Folder, *ChainFailure) {
	folder, findings, err := policyfolder.Read(g.Policies.Dir, g.Policies.Manifest)
	switch {
	case errors.Is(err, policyfolder.ErrNoManifest):
		return nil, failed(StepManifest, "There is no policy manifest in %s. `gate policy init` writes a starting policy there.", g.Policies.Dir)
	case err != nil:
		return nil, failed(StepManifest, "The policy folder cannot be read: %v", err)
	case hasErrors(findings):
		return nil, folderFailure(findings, "The policy folder %s is not what its manifest says: %s", g.Policies.Dir, listFindings(findings))
	}
	return folder, nil
}

// writeFolder writes the folder from the log.
func (g *Gate) writeFolder(known policyfolder.State) (*policyfolder.Folder, *ChainFailure) {
	if err := policyfolder.Write(g.Policies.Dir, g.Policies.Manifest, known); err != nil {
		return nil, failed(StepManifest, "The policy folder could not be written from the event log: %v", err)
	}
	g.Logger.Info("the policy folder was written from the event log", "source", "gate", "seq", known.Seq)
	return g.readFolder()
}

func hasErrors(findings []policy.Finding) bool {
	return slices.ContainsFunc(findings, func(f policy.Finding) bool { return f.Severity == policy.SeverityError })
}

// maxListed is how many findings a message names; all are beside it.
const maxListed = 10

func listFindings(findings []policy.Finding) string {
	var lines []string
	for _, f := range findings[:min(len(findings), maxListed)] {
		lines = append(lines, f.String())
	}
	if more := len(findings) - maxListed; more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(lines, "; ")
}

// activeVersion finds the active file and compares it with the log.
func (g *Gate) activeVersion(folder *policyfolder.Folder, known policyfolder.State) (*runningPolicy, *ChainFailure) {
	version, document, ok := folder.Active()
	if !ok {
		return nil, failed(StepPolicyHash, "The manifest names no active version. Set \"active\" in %s to one of its files.", g.Policies.Manifest)
	}
	if known.Active != "" && known.Active != version {
		return nil, failed(StepPolicyHash, "The manifest says that %s is active, the event log says %q.", version, known.Active)
	}
	return &runningPolicy{version: version, hash: sha256.Sum256(document), path: g.pathOf(version)}, nil
}

// validate loads the active document and runs its tests and the corpora. A
// policy that passes its own tests and fails a corpus has passed one step more.
func (g *Gate) validate(ctx context.Context, chain *Chain, active *runningPolicy, document []byte) *ChainFailure {
	j, err := g.judge(ctx, document, policy.Options{FileName: filepath.Base(active.path)})
	if err != nil {
		return failed(StepPolicyValidation, "%s could not be validated: %v", active.version, err)
	}
	active.policy, active.report = j.policy, j.report
	step, what := StepPolicyValidation, "is not valid"
	switch j.failed {
	case "":
		return nil
	case commands.PolicyTestsFailed:
		what = "does not do what its tests expect"
	case commands.PolicyCorpusFailed:
		chain.pass(StepPolicyValidation, validMessage(active))
		step, what = StepCorpus, "does not do what the corpora expect"
	}
	f := failed(step, "%s %s: %s", active.version, what, listFindings(j.report.Findings))
	verdict := g.verdict(active)
	f.Findings, f.verdict = j.report.Findings, &verdict
	return f
}

// recordLoaded puts the import or the load into the log, and the folder at the
// seq that reflects it.
func (g *Gate) recordLoaded(ctx context.Context, active *runningPolicy, folder *policyfolder.Folder, known policyfolder.State) error {
	verdict := g.verdict(active)
	if known.Active != "" {
		return g.Commands.RecordPolicyLoaded(ctx, verdict)
	}
	files := make([]commands.PolicyFile, len(folder.Manifest.Files))
	for i, f := range folder.Manifest.Files {
		files[i] = commands.PolicyFile{PolicyVersion: f.PolicyVersion, Document: folder.Documents[f.PolicyVersion], Status: f.Status}
	}
	if err := g.Commands.ImportPolicies(ctx, files, verdict); err != nil {
		return err
	}
	state, err := g.knownVersions(ctx)
	if err != nil {
		return err
	}
	return policyfolder.Write(g.Policies.Dir, g.Policies.Manifest, state)
}

func (g *Gate) verdict(active *runningPolicy) commands.PolicyVerdict {
	r := &active.report
	v := commands.PolicyVerdict{
		PolicyVersion: active.version, Hash: active.hash, Valid: r.Valid,
		Counts: event.FindingCounts{Error: r.Counts.Error, Warning: r.Counts.Warning, Info: r.Counts.Info},
		Tests:  event.TestCounts{Cases: r.Tests.Cases, Passed: r.Tests.Passed},
		Corpus: event.CorpusCounts{Cases: r.Corpus.Cases, Passed: r.Corpus.Passed},
		Engine: EngineRecord(),
	}
	if hash, err := hex.DecodeString(r.Corpus.Hash); err == nil {
		copy(v.Corpus.Hash[:], hash)
	}
	return v
}

// EngineRecord names the versions of everything that decides, for evidence.
func EngineRecord() map[string]string {
	return map[string]string{"facts": policy.FactsVersion, "classifier": classify.Version, "pg_query": classify.PgQueryVersion, "cel": policy.CELVersion, "rules": policy.RulesVersion}
}

// ClassifyFunc is the real classifier in the form that policy cases run through.
func ClassifyFunc(ctx context.Context, c *classify.Classifier) policy.Classifier {
	return func(sql string) (policy.Facts, error) {
		classification, err := c.Classify(ctx, sql)
		if err != nil {
			return policy.Facts{}, err
		}
		s := submission{Request: &Request{}, classification: classification}
		return s.facts(), nil
	}
}
