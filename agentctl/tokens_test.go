package agentctl

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/commands"
	"writegate/commands/fault"
	"writegate/eventlog/event"
	"writegate/projections"
	"writegate/sqlgate"
	"writegate/sqlgate/scram"
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
			require.NotNil(t, w.tokenBody(&a, &tokens[i], nil, w.Now()).RevokedAt)
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

// A token of a release that kept no verifier is none for the wire listener, which is said of
// it; the next one of its agent is.
func TestATokenWithoutAVerifierIsNoPasswordOfTheWire(t *testing.T) {
	w := begin(t)
	agent := w.agent(t, "default")
	old := &event.AgentTokenIssued{TokenID: event.NewIDOf(event.TokenIDKind, w.Now()), AgentID: agent, TokenSHA256: [32]byte{1}, Hint: "h", Scopes: defaultTokenScopes,
		ExpiresAt: w.Now().Add(time.Hour).UnixNano()}
	_, err := w.Commands.Change(t.Context(), commands.Change{Decide: func(*projections.View, time.Time) ([]event.Draft, error) {
		return []event.Draft{event.New(w.Now(), event.Context{Project: "default", AgentID: agent}, old)}, nil
	}})
	require.NoError(t, err)
	wire := func() (list []bool) {
		_, err := w.Tokens(t.Context(), &key("default").Caller, agent, projections.Page{Asc: true}, func(b TokenBody) (bool, error) {
			list = append(list, b.WireLogin)
			return true, nil
		})
		require.NoError(t, err)
		return list
	}
	verifiers := func() []sqlgate.AgentVerifier {
		list, err := w.Verifiers(t.Context(), agent)
		require.NoError(t, err)
		return list
	}
	require.Equal(t, []bool{false}, wire())
	require.Empty(t, verifiers())

	narrow, err := w.IssueToken(t.Context(), key("default"), agent, &TokenInput{Scopes: []string{"events:read"}})
	require.NoError(t, err)
	issued, err := w.IssueToken(t.Context(), key("default"), agent, &TokenInput{})
	require.NoError(t, err)
	body := issued.Body.(IssuedBody)
	require.True(t, body.WireLogin)
	require.False(t, narrow.Body.(IssuedBody).WireLogin, "it has no scope for statements")
	require.Equal(t, []bool{false, false, true}, wire())
	list := verifiers()
	require.Len(t, list, 2)
	require.Equal(t, list[0].Verifier.Salt, list[1].Verifier.Salt)
	require.Equal(t, sqlgate.Agent{ID: agent, Project: "default", CredentialID: body.TokenID}, list[1].Agent)
	again, err := scram.New(*body.Token, list[1].Verifier.Salt, scram.Iterations)
	require.NoError(t, err)
	require.Equal(t, again, list[1].Verifier)

	w.now.Add(int64(91 * 24 * time.Hour))
	_, err = w.AgentNow(t.Context(), list[1].Agent)
	require.Equal(t, fault.TokenExpired, fault.CodeOf(err))
	require.Equal(t, []bool{false, false, false}, wire())
	_, err = w.IssueToken(t.Context(), key("default"), agent, &TokenInput{})
	require.NoError(t, err)
	require.Len(t, verifiers(), 1, "those that ended make room")
}
