package projections

import (
	"encoding/binary"
	"time"

	"writegate/eventlog/event"
)

func toolKey(id string) []byte { return []byte(keyTool + id) }

func toolFactsKey(id string) []byte { return []byte(keyToolFacts + id) }

func toolOfKey(agent string, until int64, tool string) []byte {
	return append(binary.BigEndian.AppendUint64(toolOfPrefix(agent), uint64(until)), tool...)
}

func toolOfPrefix(agent string) []byte { return []byte(keyToolOf + agent + "/") }

func toolRegistered(t *tx, e *event.Envelope, p *event.ToolRegistered) {
	v := Tool{Tool: p.Tool, Project: e.Context.Project, Seq: e.Seq, CreatedAt: e.Time, UpdatedAt: e.Time}
	t.put(toolKey(v.ToolID), &v)
	t.keep(listKey(keyToolList, inProject(v.Project, v.Status), v.Seq), []byte(v.ToolID))
	t.decidable(&Tool{}, &v)
}

// decidable keeps what decisions read of a tool that was another before: its facts, and
// for its agents until when it is verified.
func (t *tx) decidable(before, v *Tool) {
	t.put(toolFactsKey(v.ToolID), v.facts())
	if before.Enabled {
		for _, agent := range before.Agents {
			t.delete(toolOfKey(agent, before.verifiedUntil(), v.ToolID))
		}
	}
	if v.Enabled {
		for _, agent := range v.Agents {
			t.keep(toolOfKey(agent, v.verifiedUntil(), v.ToolID), nil)
		}
	}
}

// tool hands a tool to change and writes it back.
func (t *tx) tool(id string, change func(*Tool)) {
	var v Tool
	if !t.get(toolKey(id), &v) {
		return
	}
	before := v
	change(&v)
	t.put(toolKey(id), &v)
	t.decidable(&before, &v)
	if v.Status != before.Status {
		t.delete(listKey(keyToolList, inProject(v.Project, before.Status), v.Seq))
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
