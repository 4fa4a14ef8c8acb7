package sqlgate

import (
	"context"
	"encoding/hex"
	"path/filepath"

	"writegate/eventlog/event"
	"writegate/projections"
	"writegate/sqlgate/classify"
	"writegate/sqlgate/policy"
	"writegate/sqlgate/policyfolder"
)

// PolicyStatus is GET /policy/status (spec/gate.md part 2.5, design/policy.md part 8).
type PolicyStatus struct {
	Loaded              bool             `json:"loaded"`
	PolicyVersion       *string          `json:"policy_version"`
	Path                *string          `json:"path"`
	RuleCount           int              `json:"rule_count"`
	OperatorAuthEnabled bool             `json:"operator_auth_enabled"`
	Hash                *string          `json:"hash"`
	SemanticHash        *string          `json:"semantic_hash"`
	Mode                string           `json:"mode"`
	ActivatedAt         *string          `json:"activated_at"`
	ActivatedSeq        *uint64          `json:"activated_seq"`
	MaxGrantSeconds     int              `json:"max_grant_seconds"` // of a grant that a rule takes; 0: none takes any
	Candidates          []string         `json:"candidates"`
	RollbackVersion     *string          `json:"rollback_version"` // what POST /policy/rollback takes that names none; nil: no version is archived
	Manifest            ManifestStatus   `json:"manifest"`
	Tests               caseCounts       `json:"tests"`
	Corpus              corpusCounts     `json:"corpus"`
	Engine              engineStatus     `json:"engine"`
	Warnings            []policy.Finding `json:"warnings"`
	Failure             *ChainFailure    `json:"failure"`
}

// ManifestStatus says what the manifest reflects, and whether that is what runs.
type ManifestStatus struct {
	Path    string `json:"path"`
	Seq     uint64 `json:"seq"`
	Matches bool   `json:"matches"`
}

type caseCounts struct {
	Cases  int `json:"cases"`
	Passed int `json:"passed"`
}

type corpusCounts struct {
	Cases  int    `json:"cases"`
	Passed int    `json:"passed"`
	Hash   string `json:"hash"`
}

type engineStatus struct {
	Facts      string `json:"facts"`
	Classifier string `json:"classifier"`
	PgQuery    string `json:"pg_query"`
	CEL        string `json:"cel"`
}

// PolicyVersion is the version that decides, "" when none is loaded.
func (g *Gate) PolicyVersion() string {
	if p := g.running.Load(); p != nil {
		return p.version
	}
	return ""
}

// PolicyTexts are the rules of the version that decides, in words; none where none is loaded.
func (g *Gate) PolicyTexts() (version string, rules []policy.RuleText) {
	if p := g.running.Load(); p != nil {
		return p.version, p.policy.RuleTexts()
	}
	return "", nil
}

// PolicyStatus says which policy decides, and what keeps it from doing so.
func (g *Gate) PolicyStatus(ctx context.Context) (*PolicyStatus, error) {
	s := &PolicyStatus{
		Mode: g.ModeNow(), Candidates: []string{}, Warnings: []policy.Finding{}, Failure: g.chain.Failure(),
		Engine: engineStatus{policy.FactsVersion, classify.Version, classify.PgQueryVersion, policy.CELVersion},
	}
	view := g.Store.ViewWithin(ctx)
	defer view.Close()
	err := s.fromLog(view)
	if err != nil {
		return nil, err
	}
	if s.Manifest, err = g.manifestStatus(ctx); err != nil {
		return nil, err
	}
	if p := g.running.Load(); p != nil && s.Failure == nil {
		s.fromRunning(p)
		err = s.fromActivation(view, p.version)
	}
	return s, err
}

func (s *PolicyStatus) fromLog(view *projections.View) error {
	err := eachVersion(view, projections.PolicyFilter{Status: event.PolicyCandidateStatus}, func(v *projections.PolicyVersion) error {
		s.Candidates = append(s.Candidates, v.PolicyVersion)
		return nil
	})
	if err != nil {
		return err
	}
	back, err := lastArchived(view)
	if err == nil && back != "" {
		s.RollbackVersion = &back
	}
	return err
}

// fromActivation says since when the version that decides is the active one.
func (s *PolicyStatus) fromActivation(view *projections.View, version string) error {
	v, found, err := view.PolicyVersion(version)
	if err != nil || !found {
		return err
	}
	at, seq := event.Timestamp(v.ActivatedAt), view.OwnSeq(v.ActivatedSeq)
	s.ActivatedAt, s.ActivatedSeq = &at, &seq
	return nil
}

func (s *PolicyStatus) fromRunning(p *runningPolicy) {
	hash, semantic := hex.EncodeToString(p.hash[:]), p.policy.SemanticHash()
	s.Loaded, s.PolicyVersion, s.Path = true, &p.version, &p.path
	s.RuleCount, s.Hash, s.SemanticHash = p.policy.RuleCount(), &hash, &semantic
	s.MaxGrantSeconds = p.policy.TakesGrants()
	s.Tests = caseCounts{p.report.Tests.Cases, p.report.Tests.Passed}
	s.Corpus = corpusCounts{p.report.Corpus.Cases, p.report.Corpus.Passed, p.report.Corpus.Hash}
	s.Warnings = append(s.Warnings, p.report.Warnings...)
}

// manifestStatus looks at the folder as it is on disk now, and holds it against
// the log. A folder that cannot be read matches nothing.
func (g *Gate) manifestStatus(ctx context.Context) (ManifestStatus, error) {
	m := ManifestStatus{Path: filepath.Join(g.Policies.Dir, g.Policies.Manifest)}
	known, err := g.knownVersions(ctx)
	if err != nil {
		return m, err
	}
	if folder, _, err := policyfolder.Read(g.Policies.Dir, g.Policies.Manifest); err == nil {
		m.Seq = folder.Manifest.Seq
	}
	standing, _, err := policyfolder.Compare(g.Policies.Dir, g.Policies.Manifest, known)
	m.Matches = err == nil && standing == policyfolder.Agrees
	return m, nil
}
