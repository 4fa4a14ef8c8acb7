package sqlgate

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"

	"writegate/commands"
	"writegate/commands/fault"
	"writegate/projections"
	"writegate/sqlgate/policy"
	"writegate/sqlgate/policyfolder"
)

// ActiveVersion is the name under which a source asks for the active version.
const ActiveVersion = "active"

// A Source names a policy: a version that exists, the active one, or a document
// itself (design/policy.md part 8). Exactly one field is set.
type Source struct {
	PolicyVersion string
	Document      []byte
}

// sourced is what a source names.
type sourced struct {
	version  string // "" where the document has no readable name and version
	hash     [32]byte
	document []byte
}

func (s sourced) hexHash() string { return hex.EncodeToString(s.hash[:]) }

// resolve finds the bytes that a source names. Its errors are
// validation_failed and policy_not_found.
func (g *Gate) resolve(ctx context.Context, s Source) (sourced, error) {
	switch {
	case (s.PolicyVersion == "") == (s.Document == nil):
		return sourced{}, FieldsFault(map[string]string{"policy_version": "give either policy_version or document, and not both"})
	case s.Document != nil:
		return sourced{hash: sha256.Sum256(s.Document), document: s.Document}, nil
	}
	view := g.Store.ViewWithin(ctx)
	defer view.Close()
	return findVersion(view, s.PolicyVersion)
}

func findVersion(view *projections.View, name string) (sourced, error) {
	find := func() (projections.PolicyVersion, bool, error) { return view.PolicyVersion(name) }
	if name == ActiveVersion {
		find = view.ActivePolicy
	}
	v, found, err := find()
	switch {
	case err != nil:
		return sourced{}, err
	case !found && name == ActiveVersion:
		return sourced{}, fault.New(fault.PolicyNotFound, "No policy version is active. GET /policy/status says why.")
	case !found:
		return sourced{}, versionNotFound(name)
	}
	document, found, err := view.PolicyDocument(v.Hash)
	if err == nil && !found {
		err = errors.New("the bytes of " + v.PolicyVersion + " are not in the projections")
	}
	return sourced{v.PolicyVersion, v.Hash, document}, err
}

func versionNotFound(name string) *fault.Fault {
	return fault.New(fault.PolicyNotFound, "There is no policy version %s. GET /policy/versions lists those there are.", name).With("policy_version", name)
}

// compiled loads what a source names, and refuses what is not valid: nothing
// can be decided with it.
func (g *Gate) compiled(ctx context.Context, s Source) (*policy.Policy, sourced, error) {
	found, err := g.resolve(ctx, s)
	if err != nil {
		return nil, found, err
	}
	p, report := policy.Load(found.document, policy.Options{DefaultTTLSeconds: g.Policies.DefaultTTL})
	if p == nil {
		return nil, found, invalidFault(report.PolicyVersion, found.hexHash(), "", commands.PolicyValidationFailed, report.Findings)
	}
	found.version = p.Version()
	return p, found, nil
}

// invalidFault is policy_invalid (design/policy.md part 8); status is "" where
// the document was not recorded.
func invalidFault(version, hash, status, reason string, findings any) *fault.Fault {
	return fault.New(fault.PolicyInvalid, "The policy is not valid; details.findings names everything that is wrong, with line and column. Mend it and send it under a new version number where this one was recorded.").
		With("policy_version", orNull(version)).With("hash", hash).With("status", orNull(status)).With("reason", reason).With("findings", findings)
}

func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// A judgement is a validation: the report, and why it is not valid.
type judgement struct {
	policy *policy.Policy
	report policy.Report
	failed string // "", or a reason of design/policy.md part 7
	// unusable: it failed of corpus files that cannot be read, and of nothing
	// else. That says nothing about the document.
	unusable bool
}

// judge validates a document whole: the language, the baseline, the corpora of
// the folder, its own tests. A classifier that fails, or a caller that goes
// away, is an error and no verdict.
func (g *Gate) judge(ctx context.Context, document []byte, o policy.Options) (judgement, error) {
	return g.judgeWithin(ctx, document, o, 0)
}

// judgeWithin is judge with a bound of what the cases may cost, as policy.Check has it.
func (g *Gate) judgeWithin(ctx context.Context, document []byte, o policy.Options, mostCost int) (judgement, error) {
	o.DefaultTTLSeconds = g.Policies.DefaultTTL
	var j judgement
	p, report := policy.Load(document, o)
	j.report = report
	if p == nil {
		j.failed = commands.PolicyValidationFailed
		return j, nil
	}
	corpora, findings, err := policyfolder.Corpora(g.Policies.Dir, g.Policies.Manifest)
	if err != nil {
		return j, err
	}
	j.report.Add(findings...)
	classify := ClassifyFunc(ctx, g.Classifier)
	p.Check(&j.report, corpora, func(sql string) (policy.Facts, error) {
		facts, failure := classify(sql)
		if own := ownFailure(ctx, failure); own != nil {
			err = own
		}
		return facts, failure
	}, mostCost)
	switch {
	case err != nil:
		return j, err
	case j.report.Valid:
		j.policy = p
	case len(j.report.Tests.Failed) > 0:
		j.failed = commands.PolicyTestsFailed
	case len(j.report.Corpus.Failed) > 0:
		j.failed = commands.PolicyCorpusFailed
	case hasErrors(findings):
		j.failed, j.unusable = commands.PolicyCorpusFailed, true
	default:
		j.failed = commands.PolicyValidationFailed
	}
	return j, nil
}

// ownFailure is a failure of the classifier that says nothing about the text.
func ownFailure(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if code := fault.CodeOf(err); code == "" || code == fault.Internal {
		return err
	}
	return nil
}

// ValidatePolicy is POST /policy/validate: nothing is written. The tests of a
// document that does not come from an operator are bounded in what they cost.
func (g *Gate) ValidatePolicy(ctx context.Context, s Source, operator bool) (*policy.Report, error) {
	found, err := g.resolve(ctx, s)
	if err != nil {
		return nil, err
	}
	known, err := g.knownHashes(ctx)
	if err != nil {
		return nil, err
	}
	most := policy.MaxCheckCost
	if operator {
		most = 0
	}
	j, err := g.judgeWithin(ctx, found.document, policy.Options{Known: known}, most)
	return &j.report, err
}

// knownHashes are the hashes of all versions by name.
func (g *Gate) knownHashes(ctx context.Context) (map[string]string, error) {
	view := g.Store.ViewWithin(ctx)
	defer view.Close()
	known := map[string]string{}
	err := eachVersion(view, projections.PolicyFilter{}, func(v *projections.PolicyVersion) error {
		known[v.PolicyVersion] = hex.EncodeToString(v.Hash[:])
		return nil
	})
	return known, err
}

// eachVersion walks the versions in the order in which they came.
func eachVersion(view *projections.View, f projections.PolicyFilter, do func(*projections.PolicyVersion) error) error {
	page := projections.Page{Limit: 1000, Asc: true}
	for {
		versions, next, err := view.PolicyVersions(f, page)
		if err != nil {
			return err
		}
		for i := range versions {
			if err := do(&versions[i]); err != nil {
				return err
			}
		}
		if next == "" {
			return nil
		}
		page.Cursor = next
	}
}
