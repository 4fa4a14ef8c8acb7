package agentctl

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
	"writegate/projections"
	"writegate/sqlgate"
)

// A statement may wait for its connection while its token is revoked.
func TestATokenThatIsRevokedMeanwhileRunsNothing(t *testing.T) {
	w := begin(t)
	agent := w.agent(t, "default")
	issued, err := w.IssueToken(t.Context(), key("default"), agent, &TokenInput{})
	require.NoError(t, err)
	id := issued.Body.(IssuedBody).TokenID
	settle := func() error {
		return w.view(t.Context(), func(view *projections.View) error {
			_, err := w.Settle(sqlgate.Agent{Project: "default", ID: agent, CredentialID: id}, sqlgate.LayerDecision{}, "req_1", true)(view, w.Now())
			return err
		})
	}
	require.NoError(t, settle())
	_, err = w.RevokeToken(t.Context(), key("default"), agent, id)
	require.NoError(t, err)
	w.now.Add(int64(time.Second))
	require.Equal(t, fault.TokenRevoked, fault.CodeOf(settle()))
}
