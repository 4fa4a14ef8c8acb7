package sqlgate

import (
	"context"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"writegate/projections"
	"writegate/sqlgate/policy"
)

// A request that is gone does not wait for projections that lag behind the log.
func TestReadersForARequestWaitNoLongerThanItsContext(t *testing.T) {
	w := newChainWorld(t)
	behind, err := projections.Open(projections.Options{Dir: "behind", FS: vfs.NewMem()})
	require.NoError(t, err)
	require.NoError(t, behind.Connect(t.Context(), w.log)) // nobody folds what comes now
	w.create(t, policy.Sample())
	w.RunChain(t.Context(), nil)
	require.Nil(t, w.Chain().Failure())
	w.Store = behind
	w.RequireImpact = true
	gone, leave := context.WithCancel(t.Context())
	leave()
	active := Source{PolicyVersion: ActiveVersion}
	for name, read := range map[string]func() error{
		"status":       func() error { _, err := w.PolicyStatus(gone); return err },
		"a version":    func() error { _, err := w.PolicyVersionDetail(gone, ActiveVersion); return err },
		"an entry":     func() error { _, err := w.versionEntry(gone, "core-write-gate@1.0.0"); return err },
		"validate":     func() error { _, err := w.ValidatePolicy(gone, active, false); return err },
		"its hashes":   func() error { _, err := w.ValidatePolicy(gone, Source{Document: policy.Sample()}, false); return err },
		"diff":         func() error { _, err := w.DiffPolicies(gone, active, active, nil); return err },
		"replay":       func() error { _, err := w.Replay(gone, ReplayRequest{Base: active, Target: active}); return err },
		"its range":    func() error { _, _, _, err := w.replayRange(gone, ReplayRequest{FromSeq: 1}); return err },
		"a standing":   func() error { _, err := w.standing(gone, "core-write-gate@1.0.0", ""); return err },
		"a change":     func() error { _, err := w.ChangePolicy(gone, PolicyChangeRequest{}); return err },
		"its versions": func() error { _, _, err := w.chosen(gone, &PolicyChangeRequest{}); return err },
		"its folder":   func() error { return w.checkFolder(gone, sourced{}) },
		"an outcome":   func() error { _, err := w.CheckOutcome(gone, "exe_1", "operator"); return err },
	} {
		require.ErrorIs(t, read(), projections.ErrBehind, name)
	}
	require.NoError(t, behind.Close())
}
