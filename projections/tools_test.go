package projections_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
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

// What decisions read of tools is kept beside them, and is the same as what they say.
func TestWhatDecisionsReadOfToolsIsWhatTheToolsSay(t *testing.T) {
	w := newWorld(t)
	rng := rand.New(rand.NewPCG(1, 2))
	statuses := []string{event.ToolIsRegistered, event.ToolIsVerified, event.ToolIsVerified, event.ToolIsVerified, event.ToolIsFailed, event.ToolIsDrifted}
	someAgents := func() (list []string) {
		for _, i := range rng.Perm(4)[:rng.IntN(3)] {
			list = append(list, fmt.Sprint("agt_", i))
		}
		return list
	}
	const tools = 6
	for i := range tools {
		w.toolRegistered(aTool(fmt.Sprint("tool_", i), "run_sql", someAgents()...))
	}
	seen := map[bool]int{}
	for range 300 {
		id := fmt.Sprint("tool_", rng.IntN(tools))
		if rng.IntN(3) > 0 {
			w.toolVerified(id, statuses[rng.IntN(len(statuses))], w.now.Add(time.Duration(rng.IntN(20)-2)*time.Minute))
		} else {
			changed := w.tool(id).Tool
			changed.Agents, changed.Enabled, changed.Name = someAgents(), rng.IntN(4) > 0, fmt.Sprint("t", rng.IntN(9))
			changed.Annotations.ReadOnly = !changed.Annotations.ReadOnly
			if rng.IntN(4) == 0 {
				changed.Endpoint.URL, changed.Status, changed.Pinned = fmt.Sprint("https://", rng.IntN(1000), ".test/"), event.ToolIsRegistered, [32]byte{}
			}
			w.do(event.Context{Project: project}, &event.ToolUpdated{Tool: changed})
		}
		view := w.view()
		for _, at := range []time.Time{w.now, w.now.Add(5 * time.Minute), w.now.Add(15 * time.Minute)} {
			bound, verified := map[string]int{}, map[string]int{}
			for i := range tools {
				v := w.tool(fmt.Sprint("tool_", i))
				f, ok, err := view.ToolFacts(project, v.ToolID)
				require.NoError(t, err)
				require.True(t, ok)
				isVerified := v.Enabled && v.Status == event.ToolIsVerified && !v.Checked.StaleAfter.IsZero() && at.Before(v.Checked.StaleAfter)
				require.Equal(t, []any{v.Project, v.Name, v.Type, v.Annotations.ReadOnly, v.Annotations.Destructive, isVerified},
					[]any{f.Project, f.Name, f.Type, f.ReadOnly, f.Destructive, f.VerifiedAt(at)})
				for _, agent := range v.Agents {
					if v.Enabled {
						bound[agent]++
					}
					if isVerified {
						verified[agent]++
					}
				}
			}
			for i := range 4 {
				agent := fmt.Sprint("agt_", i)
				got, err := view.ToolsVerified(agent, at)
				require.NoError(t, err)
				require.Equal(t, bound[agent] > 0 && bound[agent] == verified[agent], got, "%s has %d tools, %d verified", agent, bound[agent], verified[agent])
				seen[got]++
			}
		}
	}
	require.Greater(t, min(seen[true], seen[false]), 100)
	_, ok, err := w.view().ToolFacts("other", "tool_1")
	require.NoError(t, err)
	require.False(t, ok, "another project does not see it")
	w.compare()
}

// A statement of an agent asks whether its tools are verified, however many it has
// and however long their schemas are.
func TestWhetherToolsAreVerifiedIsOneLook(t *testing.T) {
	w := newWorld(t)
	stale := w.now.Add(24 * time.Hour)
	add := func(from, to int) {
		for i := from; i < to; i++ {
			tool := aTool(fmt.Sprint("tool_", i), "run_sql", "agt_1")
			tool.InputSchema = `{"description":"` + strings.Repeat("a", 4000) + `"}`
			w.toolRegistered(tool)
			w.toolVerified(tool.ToolID, event.ToolIsVerified, stale)
		}
	}
	cost := func() (bytes uint64) {
		view := w.view()
		var before, behind runtime.MemStats
		runtime.ReadMemStats(&before)
		for range 100 {
			ok, err := view.ToolsVerified("agt_1", w.now)
			require.NoError(t, err)
			require.True(t, ok)
		}
		runtime.ReadMemStats(&behind)
		return (behind.TotalAlloc - before.TotalAlloc) / 100
	}
	add(0, 1)
	one := cost()
	add(1, 200)
	require.Less(t, cost(), one+100_000, "200 tools have 800,000 bytes of schemas")
}
