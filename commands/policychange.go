package commands

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"time"

	"writegate/commands/fault"
	"writegate/eventlog"
	"writegate/eventlog/event"
	"writegate/projections"
)

// Why a candidate is rejected, or an activation refused after its version was
// validated again (design/policy.md part 7).
const (
	PolicyValidationFailed = "validation_failed"
	PolicyTestsFailed      = "tests_failed"
	PolicyCorpusFailed     = "corpus_failed"
)

// A Candidate is a document that somebody hands in as a new version.
type Candidate struct {
	PolicyVersion string // name@major.minor.patch
	SemanticHash  [32]byte
	RuleCount     int
	Document      []byte // the exact bytes
	Note          string
	By            string // label of the operator token
	Rejected      string // "", or one of the three reasons above
	Findings      string // JSON array, of a rejected one
}

// CreateCandidate records a new version, as a candidate or, in the same append,
// as rejected. created is false when the log holds the version with the same
// bytes already; nothing is written then.
//
// Errors: policy_version_exists where the log holds other bytes under the
// version, and those of the log.
func (c *Commands) CreateCandidate(ctx context.Context, n Candidate) (created bool, err error) {
	unlock, err := c.lock(ctx, policyKey)
	if err != nil {
		return false, err
	}
	defer unlock()
	known, err := c.policyHash(ctx, n.PolicyVersion)
	if err != nil {
		return false, err
	}
	c.step("commands.decide")
	drafts, err := decideCandidate(n, known, c.now())
	if err != nil || drafts == nil {
		return false, err
	}
	_, err = c.commit(ctx, eventlog.Group{Drafts: drafts})
	return err == nil, err
}

// policyHash is the hash of a version's bytes, nil when nobody knows it.
func (c *Commands) policyHash(ctx context.Context, version string) (hash *[32]byte, err error) {
	err = c.look(ctx, func(view *projections.View) error {
		p, found, err := view.PolicyVersion(version)
		if found {
			hash = &p.Hash
		}
		return err
	})
	return hash, err
}

// decideCandidate is the pure heart of CreateCandidate; no drafts mean that
// there is nothing to write.
func decideCandidate(n Candidate, known *[32]byte, now time.Time) ([]event.Draft, error) {
	hash := sha256.Sum256(n.Document)
	switch {
	case known != nil && *known == hash:
		return nil, nil
	case known != nil:
		return nil, fault.New(fault.PolicyVersionExists, "%s exists with other bytes, and a version never changes. Give the document a new version number and send it again.", n.PolicyVersion).
			With("policy_version", n.PolicyVersion).With("hash", hex.EncodeToString(known[:]))
	}
	drafts := []event.Draft{operatorEvent(now, n.By, "create_policy_candidate", n.PolicyVersion, &event.PolicyCandidateCreated{
		PolicyVersion: n.PolicyVersion, Hash: hash, SemanticHash: n.SemanticHash, RuleCount: n.RuleCount,
		Document: bytes.Clone(n.Document), Note: n.Note, By: n.By,
	})}
	if n.Rejected == "" {
		return drafts, nil
	}
	rejected := operatorEvent(now, n.By, "create_policy_candidate", n.PolicyVersion,
		&event.PolicyCandidateRejected{PolicyVersion: n.PolicyVersion, Hash: hash, Reason: n.Rejected, Findings: n.Findings})
	rejected.Context.ReasonCode = n.Rejected
	return append(drafts, rejected), nil
}

func operatorEvent(now time.Time, by, operation, version string, p event.Typed) event.Draft {
	return event.New(now, event.Context{Actor: by, Operation: operation, PolicyVersion: version}, p)
}

// A PolicyChange asks that a version become the active one: a candidate by an
// activation, an archived one by a rollback.
type PolicyChange struct {
	Rollback bool
	// Verdict names the version and what its validation, run again just now,
	// found.
	Verdict PolicyVerdict
	// Failed is why a verdict is not valid, one of the three reasons above.
	Failed string
	// Base is the active version that the caller looked at, nil where it does
	// not matter. Another one in its place ends the change.
	Base   *[32]byte
	Impact *event.Impact // of an activation; nil = none
	By     string        // label of the operator token
	Reason string
	// Around writes the change, and makes it known before anything else is written
	// that depends on it. It may be nil.
	Around func(write func() error) error
}

// A PolicyChanged says what a change did.
type PolicyChanged struct {
	Seq          uint64 // of the event that changed the active version
	At           time.Time
	Previous     string // the version that is archived now; "" = there was none
	PreviousHash [32]byte
}

// ChangePolicy makes a version the active one, in one append with the verdict.
// Where the verdict is not valid it records that and refuses.
//
// Errors: policy_not_found; policy_activation_failed with details.reason
// not_candidate, not_archived, hash_mismatch, active_changed or the verdict's
// own; and those of the log.
func (c *Commands) ChangePolicy(ctx context.Context, n PolicyChange) (PolicyChanged, error) {
	unlock, err := c.lock(ctx, policyKey)
	if err != nil {
		return PolicyChanged{}, err
	}
	defer unlock()
	version, err := c.versionState(ctx, n.Verdict.PolicyVersion)
	if err != nil {
		return PolicyChanged{}, err
	}
	active, err := c.activePolicy(ctx)
	if err != nil {
		return PolicyChanged{}, err
	}
	c.step("commands.decide")
	now := c.now()
	drafts, refused := decideChange(n, version, active, now)
	if len(drafts) == 0 {
		return PolicyChanged{}, refused
	}
	if refused != nil {
		n.Around = nil
	}
	done, err := c.commitWithin(ctx, eventlog.Group{Drafts: drafts}, n.Around)
	if err == nil {
		err = refused
	}
	if err != nil {
		return PolicyChanged{}, err
	}
	return PolicyChanged{Seq: done.Last, At: drafts[len(drafts)-1].Time, Previous: active.version, PreviousHash: active.hash}, nil
}

// versionState is what the log says of a version; status is "" when nobody
// knows it.
type versionState struct {
	status string
	hash   [32]byte
}

func (c *Commands) versionState(ctx context.Context, version string) (s versionState, err error) {
	err = c.look(ctx, func(view *projections.View) error {
		p, found, err := view.PolicyVersion(version)
		if found {
			s = versionState{status: p.Status, hash: p.Hash}
		}
		return err
	})
	return s, err
}

// decideChange is the pure heart of ChangePolicy. With drafts and an error the
// drafts are written, and the change is refused all the same.
func decideChange(n PolicyChange, version versionState, active activePolicy, now time.Time) ([]event.Draft, error) {
	v := n.Verdict
	from, reason := event.PolicyCandidateStatus, "not_candidate"
	if n.Rollback {
		from, reason = event.PolicyArchivedStatus, "not_archived"
	}
	switch {
	case version.status == "":
		return nil, fault.New(fault.PolicyNotFound, "There is no policy version %s. GET /policy/versions lists those there are.", v.PolicyVersion).With("policy_version", v.PolicyVersion)
	case version.status != from:
		return nil, ActivationFault(reason, "%s is %s, and only a version that is %s can be taken here.", v.PolicyVersion, version.status, from).With("status", version.status)
	case version.hash != v.Hash:
		return nil, ActivationFault("hash_mismatch", "The log holds %s with the hash %x, not %x.", v.PolicyVersion, version.hash, v.Hash)
	case n.Base != nil && *n.Base != active.hash:
		return nil, ActivationFault("active_changed", "The active version is %s (hash %x) by now, not the one that this was meant for. Look at the difference again.", active.version, active.hash).
			With("active", active.version).With("active_hash", hex.EncodeToString(active.hash[:]))
	}
	cause, operation := "activate", "activate_policy"
	if n.Rollback {
		cause, operation = "rollback", "rollback_policy"
	}
	drafts := []event.Draft{operatorEvent(now, n.By, operation, v.PolicyVersion, v.payload(cause))}
	if !v.Valid {
		drafts[0].Context.ReasonCode = n.Failed
		return drafts, ActivationFault(n.Failed, "%s does not pass its validation any more, so the active version stays. The findings say what is wrong.", v.PolicyVersion)
	}
	return append(drafts, operatorEvent(now, n.By, operation, v.PolicyVersion, n.payload(active))), nil
}

func (n *PolicyChange) payload(active activePolicy) event.Typed {
	v := &n.Verdict
	if n.Rollback {
		return &event.PolicyRollback{PolicyVersion: v.PolicyVersion, Hash: v.Hash, From: active.version, FromHash: active.hash, By: n.By, Reason: n.Reason}
	}
	return &event.PolicyActivated{PolicyVersion: v.PolicyVersion, Hash: v.Hash, Previous: active.version, PreviousHash: active.hash,
		Impact: n.Impact, By: n.By, Reason: n.Reason}
}

// ActivationFault is policy_activation_failed with the reason in its details
// (design/policy.md part 8).
func ActivationFault(reason, format string, args ...any) *fault.Fault {
	return fault.New(fault.PolicyActivationFailed, format, args...).With("reason", reason)
}
