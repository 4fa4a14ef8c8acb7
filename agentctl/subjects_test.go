package agentctl

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/commands"
	"writegate/commands/fault"
	"writegate/projections"
	"writegate/sqlgate"
)

// A statement may wait for its connection, and a request for a lock, while the JWT that it
// came with ends: by its time, by its binding or with its agent.
func TestAJWTThatEndsMeanwhileRunsNothing(t *testing.T) {
	for _, c := range []struct {
		name string
		code fault.Code
		end  func(w *world, agent, subject string)
	}{
		{"its time", fault.TokenExpired, func(w *world, _, _ string) { w.now.Add(int64(time.Minute)) }},
		{"its binding", fault.TokenRevoked, func(w *world, _, subject string) {
			_, err := w.Commands.UnbindSubject(t.Context(), commands.UnbindSubject{ID: subject, Reason: "gone", By: "ada"})
			require.NoError(t, err)
		}},
		{"its agent", fault.TokenRevoked, func(w *world, agent, _ string) {
			_, err := w.Deactivate(t.Context(), key("default"), agent, "")
			require.NoError(t, err)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := begin(t)
			agent := w.agent(t, "default")
			b, err := w.Commands.BindSubject(t.Context(), &commands.BindSubject{AgentID: agent, Issuer: "https://login.example.com", Subject: "client-7", Scopes: defaultTokenScopes, Reason: "its workload", By: "ada"})
			require.NoError(t, err)
			until := w.Now().Add(time.Minute)
			layer := w.counts(t, w.Service, agent)
			settle := func() error {
				return w.view(t.Context(), func(view *projections.View) error {
					extra, _ := w.Settle(sqlgate.Agent{Project: "default", ID: agent, CredentialID: b.ID, Until: until}, sqlgate.LayerDecision{Layer: layer}, "req_1", true)
					_, err := extra(view, w.Now())
					return err
				})
			}
			by := &Asker{Caller: Caller{Project: "default", TokenID: b.ID, AgentID: agent, until: until, tokenScopes: scopesOf([]Scope{ScopeToolsVerify})}, RequestID: "req_2"}
			writes := func() error {
				_, err := w.write(t.Context(), by, nil, func(*projections.View, time.Time) (plan, error) { return plan{}, nil })
				return err
			}
			require.NoError(t, settle())
			require.NoError(t, writes())
			c.end(w, agent, b.ID)
			require.Equal(t, c.code, fault.CodeOf(settle()))
			require.Equal(t, c.code, fault.CodeOf(writes()))
		})
	}
}

func TestABearerIsTheIssuersOnlyWhereThereIsOne(t *testing.T) {
	w := begin(t)
	_, err := w.AgentOf(t.Context(), "eyJhbGciOiJFUzI1NiJ9.e30.AAAA")
	require.Equal(t, fault.CredentialsInvalid, fault.CodeOf(err))
	require.False(t, w.takesJWT("eyJhbGciOiJFUzI1NiJ9.e30.AAAA"))
}

// What could be read as another subject, or can't be written as it is, is none that could be bound.
func TestASubjectIsBoundAsItsTokensHaveIt(t *testing.T) {
	w := begin(t)
	agent := w.agent(t, "default")
	bind := func(subject string) error {
		_, err := w.Commands.BindSubject(t.Context(), &commands.BindSubject{AgentID: agent, Issuer: "https://login.example.com", Subject: subject, Scopes: defaultTokenScopes, Reason: "its workload", By: "ada"})
		return err
	}
	for _, subject := range []string{"", " client", "client\n", "a\x00b", "\xff", "client \ufffd", strings.Repeat("x", commands.MaxSubjectBytes+1)} {
		require.Equal(t, fault.ValidationFailed, fault.CodeOf(bind(subject)), "%q", subject)
	}
	require.NoError(t, bind("клиент 7 ſ"))
}
