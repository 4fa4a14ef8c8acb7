package projections_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
	"writegate/projections"
)

func aTool(id, name string, agents ...string) event.Tool {
	return event.Tool{ToolID: id, Name: name, Type: "mcp", Enabled: true, Status: event.ToolIsRegistered, Revision: 1, Agents: agents,
		Endpoint: event.ToolEndpoint{URL: "https://tools.test/mcp", ToolName: name, ProbeExpect: []int{200, 204}}, Auth: event.ToolAuth{Type: "bearer", Secret: "RUNSQL"},
		InputSchema: `{"type":"object"}`, Annotations: event.ToolAnnotations{Destructive: true}, Metadata: map[string]string{"owner": "finance"}}
}

func (w *world) toolRegistered(t event.Tool) {
	w.do(event.Context{Project: project}, &event.ToolRegistered{Tool: t})
}

// verified records a verification that made the tool what status says.
func (w *world) toolVerified(id, status string, staleAfter time.Time) {
	p := event.ToolVerified{VerificationID: "ver_1", ToolID: id, Status: map[string]string{event.ToolIsVerified: event.VerificationPassed}[status], CheckedAt: w.now.UnixNano(),
		Pinned: [32]byte{1}, Current: [32]byte{2}, PinnedParts: `{"/title":"00"}`, Steps: "[]", ToolStatus: status, Revision: 2}
	if p.Status == "" {
		p.Status, p.ErrorCode = event.VerificationFailed, "timeout"
	} else {
		p.StaleAfter = staleAfter.UnixNano()
	}
	w.do(event.Context{Project: project}, &p)
}

func (w *world) tool(id string) *projections.Tool {
	w.t.Helper()
	v, ok, err := w.view().Tool(project, id)
	require.NoError(w.t, err)
	require.True(w.t, ok)
	return &v
}

func TestAToolIsWhatItsLastVerificationMadeOfIt(t *testing.T) {
	w := newWorld(t)
	w.toolRegistered(aTool("tool_1", "run_sql", "agt_1"))
	require.Equal(t, aTool("tool_1", "run_sql", "agt_1"), w.tool("tool_1").Tool)
	require.False(t, w.tool("tool_1").VerifiedAt(w.now))

	stale := w.now.Add(24 * time.Hour)
	w.toolVerified("tool_1", event.ToolIsVerified, stale)
	v := w.tool("tool_1")
	require.Equal(t, event.ToolIsVerified, v.Status)
	require.Equal(t, [32]byte{1}, v.Pinned)
	require.Equal(t, `{"/title":"00"}`, v.PinnedParts)
	require.Equal(t, 2, v.Revision)
	require.True(t, v.VerifiedAt(stale.Add(-1)))
	require.False(t, v.VerifiedAt(stale), "too old is not verified")
	require.True(t, v.Checked.StaleAt(stale))

	renamed := v.Tool
	renamed.Description, renamed.Revision = "Runs SQL.", 3
	w.do(event.Context{Project: project}, &event.ToolUpdated{Tool: renamed})
	require.Equal(t, "ver_1", w.tool("tool_1").Checked.VerificationID, "the same target was verified")

	elsewhere := renamed
	elsewhere.Endpoint.URL, elsewhere.Status, elsewhere.Pinned = "https://other.test/", event.ToolIsRegistered, [32]byte{}
	w.do(event.Context{Project: project}, &event.ToolUpdated{Tool: elsewhere})
	v = w.tool("tool_1")
	require.Zero(t, v.Checked)
	require.Empty(t, v.PinnedParts)

	w.toolVerified("tool_1", event.ToolIsFailed, stale)
	require.Equal(t, "timeout", w.tool("tool_1").Checked.ErrorCode)
	_, ok, err := w.view().Tool("other", "tool_1")
	require.NoError(t, err)
	require.False(t, ok, "another project does not see it")
	w.compare()
}

func TestToolsAreListedWhereTheyStand(t *testing.T) {
	w := newWorld(t)
	w.toolRegistered(aTool("tool_1", "run_sql", "agt_1"))
	w.toolRegistered(aTool("tool_2", "send_mail", "agt_1", "agt_2"))
	disabled := aTool("tool_3", "run_shell")
	disabled.Type, disabled.Status, disabled.Enabled = "http", event.ToolIsDisabled, false
	w.toolRegistered(disabled)
	w.toolVerified("tool_2", event.ToolIsVerified, w.now.Add(time.Hour))
	for want, f := range map[string]projections.ToolFilter{
		"tool_3 tool_2 tool_1 ": {}, "tool_2 ": {Status: event.ToolIsVerified}, "tool_1 ": {Status: event.ToolIsRegistered},
		"tool_3 tool_1 ": {NamePrefix: "run_"}, "tool_3 ": {Type: "http"}, "tool_2 tool_1 ": {AgentID: "agt_1"}, "": {AgentID: "agt_9"},
	} {
		f.Project = project
		found, _, err := w.view().Tools(f, projections.Page{})
		require.NoError(t, err)
		ids := ""
		for _, v := range found {
			ids += v.ToolID + " "
		}
		require.Equal(t, want, ids, "%+v", f)
	}
	w.compare()
}

func TestAnAgentsToolsAreVerifiedWhenEachIsAndThereIsOne(t *testing.T) {
	w := newWorld(t)
	verified := func(agent string, at time.Time) bool {
		ok, err := w.view().ToolsVerified(agent, at)
		require.NoError(t, err)
		return ok
	}
	require.False(t, verified("agt_1", w.now), "it has none")
	stale := w.now.Add(24 * time.Hour)
	w.toolRegistered(aTool("tool_1", "run_sql", "agt_1", "agt_2"))
	require.False(t, verified("agt_1", w.now))
	w.toolVerified("tool_1", event.ToolIsVerified, stale)
	require.True(t, verified("agt_1", w.now))
	require.True(t, verified("agt_2", w.now))
	require.False(t, verified("agt_1", stale))
	require.False(t, verified("agt_", w.now), "a prefix of an id is another id")

	w.toolRegistered(aTool("tool_2", "send_mail", "agt_1"))
	require.False(t, verified("agt_1", w.now), "one of two")
	off := w.tool("tool_2").Tool
	off.Enabled, off.Status, off.Revision = false, event.ToolIsDisabled, 2
	w.do(event.Context{Project: project}, &event.ToolUpdated{Tool: off})
	require.True(t, verified("agt_1", w.now), "what is out of service does not count")

	unbound := w.tool("tool_1").Tool
	unbound.Agents, unbound.Revision = []string{"agt_2"}, 3
	w.do(event.Context{Project: project}, &event.ToolUpdated{Tool: unbound})
	require.False(t, verified("agt_1", w.now), "it has none in service any more")
	require.True(t, verified("agt_2", w.now))
	w.compare()
}
