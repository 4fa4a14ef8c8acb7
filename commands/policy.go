package commands

import (
	"bytes"
	"context"
	"crypto/sha256"
	"time"

	"writegate/commands/fault"
	"writegate/eventlog"
	"writegate/eventlog/event"
	"writegate/projections"
)

// A PolicyFile is one version as the policy folder holds it.
type PolicyFile struct {
	PolicyVersion string // name@major.minor.patch
	Document      []byte // the exact bytes
	Status        string // as the manifest says
}

// A PolicyVerdict is what a validation found, as plain data: this package can't
// see the policy language and checks only that the verdict is about the very
// bytes in question.
type PolicyVerdict struct {
	PolicyVersion string
	Hash          [32]byte // SHA-256 of the document's bytes
	Valid         bool
	Counts        event.FindingCounts
	Tests         event.TestCounts
	Corpus        event.CorpusCounts
	Engine        map[string]string
}

func (v *PolicyVerdict) payload(cause string) *event.PolicyValidated {
	return &event.PolicyValidated{Cause: cause, PolicyVersion: v.PolicyVersion, Hash: v.Hash, Valid: v.Valid,
		Counts: v.Counts, Tests: v.Tests, Corpus: v.Corpus, Engine: v.Engine}
}

// importer is who activates the first policy: `gate`, no operator.
const importer = "gate"

// ImportPolicies brings the policy folder into a log that has no active policy
// yet: the bytes of every file, then the verdict and the activation of the
// version the verdict is about. It is one append, and more only where the log's
// group limit asks for it, the active version last; an import that was cut
// short between two of them is carried on.
//
// Errors: policy_activation_failed when a version is active already or the
// verdict does not fit, policy_version_exists when the log knows other bytes
// under a version, and those of the log.
func (c *Commands) ImportPolicies(ctx context.Context, files []PolicyFile, verdict PolicyVerdict) error {
	unlock, err := c.lock(ctx, policyKey)
	if err != nil {
		return err
	}
	defer unlock()
	facts, err := c.importFacts(ctx, files)
	if err != nil {
		return err
	}
	c.step("commands.decide")
	groups, err := decideImport(files, verdict, facts, c.now())
	if err != nil {
		return err
	}
	for _, drafts := range groups {
		if _, err := c.commit(ctx, eventlog.Group{Drafts: drafts}); err != nil {
			return err
		}
	}
	return nil
}

// importFacts are what the view shows of the versions in a folder.
type importFacts struct {
	active string              // "" = none
	known  map[string][32]byte // hashes of the versions the log has
}

func (c *Commands) importFacts(ctx context.Context, files []PolicyFile) (importFacts, error) {
	facts := importFacts{known: make(map[string][32]byte)}
	err := c.look(ctx, func(view *projections.View) error {
		active, found, err := view.ActivePolicy()
		if found {
			facts.active = active.PolicyVersion
		}
		for i := 0; i < len(files) && err == nil; i++ {
			var v projections.PolicyVersion
			if v, found, err = view.PolicyVersion(files[i].PolicyVersion); found {
				facts.known[v.PolicyVersion] = v.Hash
			}
		}
		return err
	})
	return facts, err
}

// decideImport is the pure heart of ImportPolicies.
func decideImport(files []PolicyFile, verdict PolicyVerdict, facts importFacts, now time.Time) ([][]event.Draft, error) {
	if facts.active != "" {
		return nil, fault.New(fault.PolicyActivationFailed, "The log has an active policy (%s) already; a folder is imported only once.", facts.active).With("reason", "active_changed")
	}
	if !verdict.Valid {
		return nil, fault.New(fault.PolicyActivationFailed, "%s is not valid, so it can't become active.", verdict.PolicyVersion).With("reason", "validation_failed")
	}
	var groups groupedDrafts
	activeSeen := false
	for _, f := range files {
		hash := sha256.Sum256(f.Document)
		if f.PolicyVersion == verdict.PolicyVersion {
			activeSeen = hash == verdict.Hash
			continue
		}
		if f.Status == event.PolicyActiveStatus {
			return nil, fault.New(fault.PolicyActivationFailed, "The folder calls %s active, but the verdict is about %s.", f.PolicyVersion, verdict.PolicyVersion).With("reason", "manifest_mismatch")
		}
		if err := loadInto(&groups, f, hash, facts, now); err != nil {
			return nil, err
		}
	}
	if !activeSeen {
		return nil, fault.New(fault.PolicyActivationFailed, "The verdict is not about the bytes of %s in the folder.", verdict.PolicyVersion).With("reason", "hash_mismatch")
	}
	return groups.withActive(files, verdict, facts, now)
}

// loadInto adds the bytes of one version, unless the log has them.
func loadInto(groups *groupedDrafts, f PolicyFile, hash [32]byte, facts importFacts, now time.Time) error {
	if known, ok := facts.known[f.PolicyVersion]; ok {
		if known == hash {
			return nil
		}
		return fault.New(fault.PolicyVersionExists, "The log knows %s with other bytes. A version never changes.", f.PolicyVersion)
	}
	groups.add(len(f.Document), policyEvent(now, "import_policy", f.PolicyVersion,
		&event.PolicyLoaded{Origin: event.PolicyOriginImport, PolicyVersion: f.PolicyVersion, Hash: hash, Status: f.Status, Document: bytes.Clone(f.Document)}))
	return nil
}

func policyEvent(now time.Time, operation, version string, p event.Typed) event.Draft {
	return event.New(now, event.Context{Actor: systemActor, Operation: operation, PolicyVersion: version}, p)
}

// groupedDrafts cuts drafts into appends within the log's limits.
type groupedDrafts struct {
	groups [][]event.Draft
	bytes  int // documents in the last group
}

const (
	maxImportEvents = eventlog.MaxGroupEvents / 2
	maxImportBytes  = eventlog.MaxGroupBytes / 2 // leaves room for everything that is not a document
)

func (g *groupedDrafts) add(documentBytes int, drafts ...event.Draft) {
	last := len(g.groups) - 1
	if last < 0 || len(g.groups[last])+len(drafts) > maxImportEvents || g.bytes+documentBytes > maxImportBytes {
		g.groups = append(g.groups, nil)
		g.bytes, last = 0, last+1
	}
	g.groups[last] = append(g.groups[last], drafts...)
	g.bytes += documentBytes
}

// withActive ends the import with the active version: bytes, verdict and
// activation in one group. It is loaded as a candidate, since only
// policy_activated makes a version active.
func (g *groupedDrafts) withActive(files []PolicyFile, verdict PolicyVerdict, facts importFacts, now time.Time) ([][]event.Draft, error) {
	version := verdict.PolicyVersion
	var load groupedDrafts
	size := 0
	for _, f := range files {
		if f.PolicyVersion != version {
			continue
		}
		f.Status = event.PolicyCandidateStatus
		size = len(f.Document)
		if err := loadInto(&load, f, verdict.Hash, facts, now); err != nil {
			return nil, err
		}
	}
	var drafts []event.Draft
	for _, group := range load.groups {
		drafts = append(drafts, group...)
	}
	g.add(size, append(drafts, policyEvent(now, "import_policy", version, verdict.payload("startup")),
		policyEvent(now, "import_policy", version, &event.PolicyActivated{PolicyVersion: version, Hash: verdict.Hash, By: importer}))...)
	return g.groups, nil
}

// RecordPolicyLoaded says, at a start, which active version the log held and
// what its validation found. A verdict that is not valid is recorded too: the
// startup chain fails then.
func (c *Commands) RecordPolicyLoaded(ctx context.Context, verdict PolicyVerdict) error {
	unlock, err := c.lock(ctx, policyKey)
	if err != nil {
		return err
	}
	defer unlock()
	active, err := c.activePolicy(ctx)
	if err != nil {
		return err
	}
	drafts, err := decideLoaded(active, verdict, c.now())
	if err != nil {
		return err
	}
	_, err = c.commit(ctx, eventlog.Group{Drafts: drafts})
	return err
}

// activePolicy is the active version's name and hash; "" when there is none.
type activePolicy struct {
	version string
	hash    [32]byte
}

func (c *Commands) activePolicy(ctx context.Context) (active activePolicy, err error) {
	err = c.look(ctx, func(view *projections.View) error {
		p, found, err := view.ActivePolicy()
		if found {
			active = activePolicy{version: p.PolicyVersion, hash: p.Hash}
		}
		return err
	})
	return active, err
}

func decideLoaded(active activePolicy, verdict PolicyVerdict, now time.Time) ([]event.Draft, error) {
	if active.version != verdict.PolicyVersion || active.hash != verdict.Hash {
		return nil, fault.New(fault.PolicyActivationFailed, "The verdict is about %s, but the log's active policy is another.", verdict.PolicyVersion).With("reason", "active_changed")
	}
	return []event.Draft{
		policyEvent(now, "load_policy", active.version, &event.PolicyLoaded{Origin: event.PolicyOriginLog, PolicyVersion: active.version,
			Hash: active.hash, Status: event.PolicyActiveStatus}),
		policyEvent(now, "load_policy", active.version, verdict.payload("startup")),
	}, nil
}
