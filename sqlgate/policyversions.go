package sqlgate

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"strings"
	"time"

	"writegate/commands/fault"
	"writegate/eventlog/event"
	"writegate/projections"
	"writegate/sqlgate/policy"
)

// A VersionEntry is one policy version in a list (design/policy.md part 8).
type VersionEntry struct {
	PolicyVersion  string  `json:"policy_version"`
	Name           string  `json:"name"`
	Version        string  `json:"version"`
	Status         string  `json:"status"`
	Hash           string  `json:"hash"`
	SemanticHash   *string `json:"semantic_hash"` // null: the document does not load
	RuleCount      int     `json:"rule_count"`
	Bytes          int     `json:"bytes"`
	CreatedAt      *string `json:"created_at"`
	CreatedBy      string  `json:"created_by"`
	CreatedSeq     uint64  `json:"created_seq"`
	ActivatedAt    *string `json:"activated_at"`
	ArchivedAt     *string `json:"archived_at"`
	RejectedReason *string `json:"rejected_reason"`
	Note           string  `json:"note"`
}

// A VersionDetail is one version whole.
type VersionDetail struct {
	VersionEntry
	Document string           `json:"document"`
	Findings json.RawMessage  `json:"findings"` // of a rejected one
	Warnings []policy.Finding `json:"warnings"`
}

// PolicyVersions lists versions, newest first unless the page says otherwise, one
// by one; the page ends before the first that take has no room for.
func (g *Gate) PolicyVersions(view *projections.View, f projections.PolicyFilter, page projections.Page, take func(*VersionEntry) (room bool, err error)) (next string, err error) {
	return view.EachPolicyVersion(f, page, func(v *projections.PolicyVersion) (bool, error) {
		entry, err := g.entryOf(view, v)
		if err != nil {
			return false, err
		}
		return take(&entry)
	})
}

// PolicyVersionDetail gives one version with its bytes. Error: policy_not_found.
func (g *Gate) PolicyVersionDetail(ctx context.Context, name string) (*VersionDetail, error) {
	view := g.Store.ViewWithin(ctx)
	defer view.Close()
	found, err := findVersion(view, name)
	if err != nil {
		return nil, err
	}
	v, ok, err := view.PolicyVersion(found.version)
	if err != nil || !ok {
		return nil, fault.Of(err)
	}
	entry, err := g.entryOf(view, &v)
	if err != nil {
		return nil, err
	}
	_, report := policy.Load(found.document, policy.Options{DefaultTTLSeconds: g.Policies.DefaultTTL})
	d := &VersionDetail{VersionEntry: entry, Document: string(found.document), Findings: json.RawMessage("[]"), Warnings: report.Warnings}
	if v.Findings != "" {
		d.Findings = json.RawMessage(v.Findings)
	}
	return d, nil
}

func (g *Gate) versionEntry(ctx context.Context, name string) (VersionEntry, error) {
	view := g.Store.ViewWithin(ctx)
	defer view.Close()
	v, found, err := view.PolicyVersion(name)
	if err != nil || !found {
		return VersionEntry{}, fault.Of(err)
	}
	return g.entryOf(view, &v)
}

func (g *Gate) entryOf(view *projections.View, v *projections.PolicyVersion) (VersionEntry, error) {
	name, version, _ := strings.Cut(v.PolicyVersion, "@")
	e := VersionEntry{
		PolicyVersion: v.PolicyVersion, Name: name, Version: version, Status: v.Status, Hash: hex.EncodeToString(v.Hash[:]),
		RuleCount: v.RuleCount, Bytes: v.Bytes, CreatedAt: optionalTime(v.CreatedAt), CreatedBy: v.CreatedBy, CreatedSeq: view.OwnSeq(v.Seq),
		ActivatedAt: optionalTime(v.ActivatedAt), ArchivedAt: optionalTime(v.ArchivedAt), Note: v.Note,
	}
	if v.RejectedReason != "" {
		e.RejectedReason = &v.RejectedReason
	}
	if v.SemanticHash != [32]byte{} {
		text := hex.EncodeToString(v.SemanticHash[:])
		e.SemanticHash = &text
		return e, nil
	}
	return e, g.fromDocument(view, v.Hash, &e)
}

// fromDocument fills in what the event of an import does not say.
func (g *Gate) fromDocument(view *projections.View, hash [32]byte, e *VersionEntry) error {
	document, found, err := view.PolicyDocument(hash)
	if err != nil || !found {
		return err
	}
	_, report := policy.Load(document, policy.Options{})
	e.RuleCount = report.RuleCount
	if report.SemanticHash != "" {
		e.SemanticHash = &report.SemanticHash
	}
	return nil
}

// optionalTime renders a moment; nil where there is none.
func optionalTime(t time.Time) *string {
	if t.IsZero() {
		return nil
	}
	text := event.Timestamp(t)
	return &text
}
