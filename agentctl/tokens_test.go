package agentctl

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
	"writegate/projections"
)

// A token that is expired by a clock that is ahead is revoked with its agent: it would be
// good again once the clock is right.
func TestADeactivationRevokesTokensThatMayNotBeExpired(t *testing.T) {
	for name, end := range map[string]func(*world, string) error{
		"by request": func(w *world, agent string) error {
			_, err := w.Deactivate(t.Context(), key("default"), agent, "it leaked")
			return err
		},
		"behind a loss": func(w *world, agent string) error {
			return w.EndInherited(t.Context(), []projections.Agent{{Agent: event.Agent{AgentID: agent}, Project: "default"}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := begin(t)
			agent := w.agent(t, "default")
			for _, days := range []int{1, 30} {
				_, err := w.IssueToken(t.Context(), key("default"), agent, &TokenInput{ExpiryDays: &days})
				require.NoError(t, err)
			}
			ahead := int64(400 * 24 * time.Hour)
			w.now.Add(ahead)
			require.NoError(t, end(w, agent))
			w.now.Add(-ahead)
			require.NoError(t, w.view(t.Context(), func(view *projections.View) error {
				tokens, err := view.AllTokens(agent)
				require.Len(t, tokens, 2)
				for i := range tokens {
					require.Equal(t, projections.TokenRevoked, tokens[i].StatusAt(w.Now()))
				}
				return err
			}))
		})
	}
}

// A deactivation fits into the log however many tokens the agent had.
func TestADeactivationOfAnAgentWithManyTokensIsWritten(t *testing.T) {
	w := begin(t)
	agent := w.agent(t, "default")
	day := 1
	for range 2 * mostRevoked {
		w.now.Add(int64(3 * time.Hour))
		_, err := w.IssueToken(t.Context(), key("default"), agent, &TokenInput{ExpiryDays: &day})
		require.NoError(t, err)
	}
	_, err := w.Deactivate(t.Context(), key("default"), agent, "")
	require.NoError(t, err)
	require.NoError(t, w.view(t.Context(), func(view *projections.View) error {
		tokens, err := view.AllTokens(agent)
		require.Len(t, tokens, 2*mostRevoked)
		for i := range tokens {
			require.Equal(t, tokens[i].CreatedAt.After(tokens[mostRevoked-1].CreatedAt), !tokens[i].RevokedAt.IsZero(), i)
		}
		return err
	}))
}
