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
				for i := range tokens { // by an event of its own
					require.Equal(t, projections.TokenRevoked, tokens[i].StatusAt(w.Now()))
				}
				return err
			}))
		})
	}
}

// A deactivation fits into the log however many tokens the agent had, also where a clock that
// was set back makes what had expired live again. None of them is good any more once the agent
// is back, whatever the clock says then.
func TestADeactivationOfAnAgentWithManyTokensIsWritten(t *testing.T) {
	for name, back := range map[string]time.Duration{"the clock is right": 0, "the clock was set back": 4000 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			w := begin(t)
			agent := w.agent(t, "default")
			day := 1
			for range 1100 {
				w.now.Add(int64(3 * time.Hour))
				_, err := w.IssueToken(t.Context(), key("default"), agent, &TokenInput{ExpiryDays: &day})
				require.NoError(t, err)
			}
			w.now.Add(-int64(back))
			_, err := w.Deactivate(t.Context(), key("default"), agent, "")
			require.NoError(t, err)
			require.Equal(t, mostRevoked, w.ended(t, agent, 1100))
			active := event.AgentActive
			_, err = w.Update(t.Context(), key("default"), agent, &UpdateInput{AgentInput: AgentInput{Name: "bot", Type: "worker"}, Status: &active})
			require.NoError(t, err)
			w.now.Add(-int64(4000 * time.Hour))
			require.Equal(t, mostRevoked, w.ended(t, agent, 1100))
			_, err = w.IssueToken(t.Context(), key("default"), agent, &TokenInput{ExpiryDays: &day})
			require.NoError(t, err)
		})
	}
}

// ended tells how many tokens of an agent are revoked by events of their own, all being revoked.
func (w *world) ended(t *testing.T, agent string, all int) (revoked int) {
	t.Helper()
	require.NoError(t, w.view(t.Context(), func(view *projections.View) error {
		a, _, err := view.Agent("default", agent)
		require.NoError(t, err)
		tokens, err := view.AllTokens(agent)
		require.Len(t, tokens, all)
		for i := range tokens {
			require.Equal(t, projections.TokenRevoked, a.TokenStatus(&tokens[i], w.Now()))
			if !tokens[i].RevokedAt.IsZero() {
				revoked++
			}
			require.NotNil(t, w.tokenBody(&a, &tokens[i], w.Now()).RevokedAt)
		}
		return err
	}))
	return revoked
}

// A token that was replaced without a grace stays ended, whatever the clock says later.
func TestAReplacedTokenStaysEndedWhereTheClockIsSetBack(t *testing.T) {
	w := begin(t)
	agent := w.agent(t, "default")
	day := 1
	old, err := w.IssueToken(t.Context(), key("default"), agent, &TokenInput{ExpiryDays: &day})
	require.NoError(t, err)
	id := old.Body.(IssuedBody).TokenID
	_, err = w.IssueToken(t.Context(), key("default"), agent, &TokenInput{ExpiryDays: &day, Replaces: &id})
	require.NoError(t, err)
	w.now.Add(-int64(time.Hour))
	require.NoError(t, w.view(t.Context(), func(view *projections.View) error {
		k, _, err := view.AgentToken(id)
		require.Equal(t, projections.TokenExpired, k.StatusAt(w.Now()))
		return err
	}))
}
