package projections

import (
	"slices"
	"time"

	"writegate/eventlog/event"
)

func toolKey(id string) []byte { return []byte(keyTool + id) }

func toolOfKey(agent, tool string) []byte { return []byte(keyToolOf + agent + "/" + tool) }

func toolRegistered(t *tx, e *event.Envelope, p *event.ToolRegistered) {
	v := Tool{Tool: p.Tool, Project: e.Context.Project, Seq: e.Seq, CreatedAt: e.Time, UpdatedAt: e.Time}
	t.put(toolKey(v.ToolID), &v)
	t.keep(listKey(keyToolList, inProject(v.Project, v.Status), v.Seq), []byte(v.ToolID))
	t.bindTool(v.ToolID, nil, v.Agents)
}

// bindTool keeps which tools an agent has.
func (t *tx) bindTool(id string, before, after []string) {
	for _, agent := range before {
		if !slices.Contains(after, agent) {
			t.delete(toolOfKey(agent, id))
		}
	}
	for _, agent := range after {
		t.keep(toolOfKey(agent, id), nil)
	}
}

// tool hands a tool to change and writes it back.
func (t *tx) tool(id string, change func(*Tool)) {
	var v Tool
	if !t.get(toolKey(id), &v) {
		return
	}
	before, agents := v.Status, v.Agents
	change(&v)
	t.put(toolKey(id), &v)
	t.bindTool(id, agents, v.Agents)
	if v.Status != before {
		t.delete(listKey(keyToolList, inProject(v.Project, before), v.Seq))
		t.keep(listKey(keyToolList, inProject(v.Project, v.Status), v.Seq), []byte(v.ToolID))
	}
}

// toolUpdated keeps what was found of the tool where the update leaves its
// target as it was.
func toolUpdated(t *tx, e *event.Envelope, p *event.ToolUpdated) {
	t.tool(p.Tool.ToolID, func(v *Tool) {
		if !v.SameTarget(&p.Tool) {
			v.Checked, v.PinnedParts = ToolCheck{}, ""
		}
		v.Tool, v.UpdatedAt = p.Tool, e.Time
	})
}

func toolVerified(t *tx, e *event.Envelope, p *event.ToolVerified) {
	t.useVerification(e, p)
	t.tool(p.ToolID, func(v *Tool) {
		v.Status, v.Pinned, v.Revision, v.UpdatedAt = p.ToolStatus, p.Pinned, p.Revision, e.Time
		if p.PinnedParts != "" {
			v.PinnedParts = p.PinnedParts
		}
		v.Checked = ToolCheck{VerificationID: p.VerificationID, Status: p.Status, ErrorCode: p.ErrorCode, Current: p.Current, CheckedAt: time.Unix(0, p.CheckedAt).UTC()}
		if p.StaleAfter != 0 {
			v.Checked.StaleAfter = time.Unix(0, p.StaleAfter).UTC()
		}
	})
}
