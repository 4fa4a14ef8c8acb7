package main

import (
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/agentctl"
	"writegate/eventlog/event"
)

// What binds an agent stands in a log before this one, behind a restore and behind
// `gate log new`.
func TestDecisionsUnderPoliciesOfEarlierLogsAreRecomputed(t *testing.T) {
	t.Parallel()
	d, key := newNotes(t), agentctl.NewSecret(agentctl.KeyPrefix)
	start := func() *agentWorld {
		return &agentWorld{startGate(t, d, append([]string{"GATE_PROJECT_KEYS=shop/ops=" + key}, patience...)...), key}
	}
	activated := func(w *agentWorld, id string) string {
		code, out, errs := w.agents(t, "", "activate", id)
		require.Zero(t, code, errs)
		return regexp.MustCompile(`wga_\S+`).FindString(out)
	}
	counting := ask("SELECT count(*) FROM open_notes")
	decided := func(w *agentWorld, token string, inserts, reads int) {
		require.Equal(t, inserts, w.as(t, token, insertOpen("bound")).status)
		require.Equal(t, reads, w.as(t, token, counting).status)
	}
	equal := func() {
		verdict, found := decidedOtherwise(t, d, exitOK)
		require.Empty(t, found)
		require.EqualValues(t, 2, verdict["decisions"])
	}

	w := start()
	id, token := w.register(t, "bot")
	writes := w.rule(t, "block", `"INSERT" in sql.query_types`)
	w.apply(t, writes, id)
	decided(w, token, http.StatusForbidden, http.StatusOK)
	copied := filepath.Join(t.TempDir(), "backup")
	code, _, errs := d.command(t, "log", "backup", copied)
	require.Zero(t, code, errs)
	w.end(t)
	d.destroy(t)
	d.kept = newReceiptBook()
	code, _, errs = d.command(t, "log", "restore", copied)
	require.Zero(t, code, errs)

	w = start()
	decided(w, activated(w, id), http.StatusForbidden, http.StatusOK)
	equal()
	require.Equal(t, http.StatusOK, w.v1(t, http.MethodDelete, "/policies/"+writes+"/apply?agent_id="+id, "").status)
	w.apply(t, w.rule(t, "block", `"SELECT" in sql.query_types`), id)
	w.end(t)

	code, _, errs = d.command(t, "log", "new", "--accept-loss", "once more")
	require.Zero(t, code, errs)
	w = start()
	decided(w, activated(w, id), http.StatusOK, http.StatusForbidden)
	w.end(t)
	equal()

	// Each forgery allows what was blocked, and says the same as a decision that was.
	var allowed event.DecisionRecorded
	var reason string
	w = start()
	require.Equal(t, http.StatusOK, w.query(t, counting).status)
	w.end(t)
	for _, e := range d.events(t) {
		if e.Type == event.TypeDecisionRecorded {
			allowed = event.DecisionRecorded{}
			require.NoError(t, e.Parse(&allowed))
			reason = e.Context.ReasonCode
		}
	}
	require.Nil(t, allowed.AgentLayer)
	open := func(l *event.AgentLayer) *event.AgentLayer {
		return &event.AgentLayer{AgentID: l.AgentID, AppliedSeq: l.AppliedSeq, Agent: l.Agent, Usage: l.Usage, Decision: "ALLOW"}
	}
	for name, layer := range map[string]func(*event.AgentLayer) *event.AgentLayer{
		"its policies": open,
		"the layer":    func(*event.AgentLayer) *event.AgentLayer { return nil },
		"the agent": func(l *event.AgentLayer) *event.AgentLayer {
			l = open(l)
			l.AgentID, l.Agent.ID = "agt_other", "agt_other"
			return l
		},
	} {
		t.Run("leaves out "+name, func(t *testing.T) {
			forged := rewritten(t, d, func(e *event.Envelope) {
				if e.Type != event.TypeDecisionRecorded || e.Context.Decision != "BLOCK" {
					return
				}
				var p event.DecisionRecorded
				require.NoError(t, e.Parse(&p))
				p.AgentLayer = layer(p.AgentLayer)
				p.RuleID, p.Layer, p.Matched = allowed.RuleID, allowed.Layer, allowed.Matched
				e.Payload, e.Context.Decision, e.Context.ReasonCode = p.Fields(), "ALLOW", reason
			})
			require.NoError(t, os.CopyFS(forged.file("audit.wal.retired"), os.DirFS(d.file("audit.wal.retired"))))
			_, found := decidedOtherwise(t, forged, exitFailed)
			require.Len(t, found, 1)
			require.Contains(t, found[0]["fields"].([]any)[0], "agent_layer")
		})
	}
}
