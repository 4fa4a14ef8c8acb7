package commands

import (
	"context"
	"crypto/sha256"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
	"writegate/eventlog/event"
	"writegate/projections"
)

func candidate(version, document string) Candidate {
	return Candidate{PolicyVersion: version, Document: []byte(document), RuleCount: 3, SemanticHash: [32]byte{7}, Note: "why", By: "operator"}
}

func verdictOf(version, document string) PolicyVerdict {
	return PolicyVerdict{PolicyVersion: version, Hash: sha256.Sum256([]byte(document)), Valid: true, Engine: map[string]string{"facts": "facts/v1"}}
}

func TestWhatBecomesOfADocumentThatIsHandedIn(t *testing.T) {
	hash := sha256.Sum256([]byte("text"))
	other := sha256.Sum256([]byte("other"))
	for _, c := range []struct {
		name     string
		known    *[32]byte
		rejected string
		types    []event.Type
		code     fault.Code
	}{
		{name: "new and good", types: []event.Type{event.TypePolicyCandidateCreated}},
		{name: "new and bad", rejected: PolicyTestsFailed, types: []event.Type{event.TypePolicyCandidateCreated, event.TypePolicyCandidateRejected}},
		{name: "the same bytes again", known: &hash},
		{name: "the same bad bytes again", known: &hash, rejected: PolicyTestsFailed},
		{name: "other bytes", known: &other, code: fault.PolicyVersionExists},
		{name: "other bytes that are bad", known: &other, rejected: PolicyTestsFailed, code: fault.PolicyVersionExists},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := candidate("core@1.5.0", "text")
			n.Rejected, n.Findings = c.rejected, "[]"
			drafts, err := decideCandidate(n, c.known, moment)
			require.Equal(t, c.code, fault.CodeOf(err))
			require.Equal(t, c.types, types(drafts))
			if len(drafts) > 0 {
				require.Equal(t, &event.PolicyCandidateCreated{PolicyVersion: "core@1.5.0", Hash: hash, SemanticHash: [32]byte{7}, RuleCount: 3,
					Document: []byte("text"), Note: "why", By: "operator"}, payload(t, &drafts[0]))
				require.Equal(t, event.Context{Actor: "operator", Operation: "create_policy_candidate", PolicyVersion: "core@1.5.0"}, drafts[0].Context)
			}
			if len(drafts) > 1 {
				require.Equal(t, &event.PolicyCandidateRejected{PolicyVersion: "core@1.5.0", Hash: hash, Reason: c.rejected, Findings: "[]"}, payload(t, &drafts[1]))
			}
		})
	}
}

func TestWhenAVersionBecomesTheActiveOne(t *testing.T) {
	active := activePolicy{version: "core@1.4.0", hash: [32]byte{4}}
	hash := sha256.Sum256([]byte("text"))
	validated := []event.Type{event.TypePolicyValidated}
	for _, c := range []struct {
		name    string
		version versionState
		change  func(n *PolicyChange)
		types   []event.Type
		code    fault.Code
		reason  string
	}{
		{name: "a candidate", version: versionState{"candidate", hash}, types: append(validated, event.TypePolicyActivated)},
		{name: "a candidate on the base that was looked at", version: versionState{"candidate", hash},
			change: func(n *PolicyChange) { n.Base = &active.hash }, types: append(validated, event.TypePolicyActivated)},
		{name: "an archived one", version: versionState{"archived", hash}, change: func(n *PolicyChange) { n.Rollback = true },
			types: append(validated, event.TypePolicyRollback)},
		{name: "nobody knows it", code: fault.PolicyNotFound},
		{name: "other bytes", version: versionState{"candidate", [32]byte{9}}, code: fault.PolicyActivationFailed, reason: "hash_mismatch"},
		{name: "the active one", version: versionState{"active", hash}, code: fault.PolicyActivationFailed, reason: "not_candidate"},
		{name: "a rejected one", version: versionState{"rejected", hash}, code: fault.PolicyActivationFailed, reason: "not_candidate"},
		{name: "an archived one by activation", version: versionState{"archived", hash}, code: fault.PolicyActivationFailed, reason: "not_candidate"},
		{name: "a candidate by rollback", version: versionState{"candidate", hash}, change: func(n *PolicyChange) { n.Rollback = true },
			code: fault.PolicyActivationFailed, reason: "not_archived"},
		{name: "another base", version: versionState{"candidate", hash}, change: func(n *PolicyChange) { n.Base = &[32]byte{5} },
			code: fault.PolicyActivationFailed, reason: "active_changed"},
		{name: "a verdict that is not valid", version: versionState{"candidate", hash},
			change: func(n *PolicyChange) { n.Verdict.Valid, n.Failed = false, PolicyCorpusFailed },
			types:  validated, code: fault.PolicyActivationFailed, reason: "corpus_failed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := PolicyChange{Verdict: verdictOf("core@1.5.0", "text"), By: "operator", Reason: "because"}
			if c.change != nil {
				c.change(&n)
			}
			drafts, err := decideChange(n, c.version, active, moment)
			require.Equal(t, c.code, fault.CodeOf(err))
			require.Equal(t, c.types, types(drafts))
			if c.reason != "" {
				require.Equal(t, c.reason, fault.Of(err).Details["reason"])
			}
			if len(drafts) != 2 {
				return
			}
			if n.Rollback {
				require.Equal(t, &event.PolicyRollback{PolicyVersion: "core@1.5.0", Hash: hash, From: "core@1.4.0", FromHash: active.hash, By: "operator", Reason: "because"}, payload(t, &drafts[1]))
			} else {
				require.Equal(t, &event.PolicyActivated{PolicyVersion: "core@1.5.0", Hash: hash, Previous: "core@1.4.0", PreviousHash: active.hash, By: "operator", Reason: "because"}, payload(t, &drafts[1]))
			}
		})
	}
}

func TestAVersionsLifeFromCandidateToRollback(t *testing.T) {
	ctx := context.Background()
	w := begin(t, setup{})
	files, verdict := folder()
	require.NoError(t, w.ImportPolicies(ctx, files, verdict))

	created, err := w.CreateCandidate(ctx, candidate("core@2.0.0", "new"))
	require.NoError(t, err)
	require.True(t, created)
	created, err = w.CreateCandidate(ctx, candidate("core@2.0.0", "new"))
	require.NoError(t, err)
	require.False(t, created, "the same bytes are the same version")

	changed, err := w.ChangePolicy(ctx, PolicyChange{Verdict: verdictOf("core@2.0.0", "new"), By: "operator"})
	require.NoError(t, err)
	require.Equal(t, "core@1.1.0", changed.Previous)
	require.Equal(t, w.events()[changed.Seq-1].Type, event.TypePolicyActivated)
	w.standing("core@2.0.0", event.PolicyActiveStatus)
	w.standing("core@1.1.0", event.PolicyArchivedStatus)

	_, err = w.ChangePolicy(ctx, PolicyChange{Rollback: true, Verdict: verdictOf("core@1.1.0", "two"), By: "operator"})
	require.NoError(t, err)
	w.standing("core@1.1.0", event.PolicyActiveStatus)
	w.standing("core@2.0.0", event.PolicyArchivedStatus)

	bad := verdictOf("core@2.0.0", "new")
	bad.Valid = false
	_, err = w.ChangePolicy(ctx, PolicyChange{Rollback: true, Verdict: bad, Failed: PolicyTestsFailed, By: "operator"})
	require.Equal(t, PolicyTestsFailed, fault.Of(err).Details["reason"])
	require.Equal(t, event.TypePolicyValidated, w.events()[len(w.events())-1].Type, "the failed validation is evidence")
	w.standing("core@1.1.0", event.PolicyActiveStatus)
	w.check()
}

func (w *world) standing(version, status string) {
	w.t.Helper()
	require.NoError(w.t, w.look(context.Background(), func(v *projections.View) error {
		p, found, err := v.PolicyVersion(version)
		require.True(w.t, found)
		require.Equal(w.t, status, p.Status)
		return err
	}))
}

func TestOfManyActivationsOnOneBaseOneWins(t *testing.T) {
	ctx := context.Background()
	w := begin(t, setup{})
	files, verdict := folder()
	require.NoError(t, w.ImportPolicies(ctx, files, verdict))
	const n = 16
	for i := range n {
		_, err := w.CreateCandidate(ctx, candidate(fmt.Sprintf("core@3.0.%d", i), fmt.Sprint(i)))
		require.NoError(t, err)
	}
	errs := make([]error, n)
	var wait sync.WaitGroup
	for i := range n {
		wait.Go(func() {
			_, errs[i] = w.ChangePolicy(ctx, PolicyChange{Verdict: verdictOf(fmt.Sprintf("core@3.0.%d", i), fmt.Sprint(i)), Base: &verdict.Hash, By: "operator"})
		})
	}
	wait.Wait()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
		} else {
			require.Equal(t, "active_changed", fault.Of(err).Details["reason"])
		}
	}
	require.Equal(t, 1, won)
	require.Equal(t, 2, w.count(event.TypePolicyActivated), "the import and the one that won")
	w.check()
}
