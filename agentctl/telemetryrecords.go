package agentctl

import (
	"writegate/commands/fault"
	"writegate/eventlog"
	"writegate/eventlog/event"
	"writegate/eventlog/frame"
	"writegate/sqlgate/agentrules"
)

// Sizes of records. What is estimated is never less than what is written.
const (
	recordRoom = frame.MaxRecord - 64<<10 // for the envelope and the origin
	groupRoom  = eventlog.MaxGroupBytes - 1<<20
	itemRoom   = 768 // fields that no client sends: ids, times, names of fields
	usageRoom  = 512
	ruleRoom   = agentrules.OutcomeBytes
)

func (it *telemetryItem) size() int {
	n := itemRoom + len(it.outcome.ID) + len(it.outcome.Message) + len(it.outcome.Pointer)
	if it.accepted() {
		n += it.bytes + usageRoom
	}
	for _, v := range it.outcome.Violations {
		n += ruleRoom + len(v.PolicyID) + len(v.RuleID) + len(v.Action) + len(v.ReasonCode)
	}
	for _, t := range it.outcome.Throttle {
		n += ruleRoom + len(t.PolicyID) + len(t.RuleID)
	}
	return n
}

// records are the events of the batch: one, or several where one would pass the
// limit of a record.
func (b *telemetryBatch) records() ([]pending, error) {
	var parts []*event.TelemetryReceived
	size, total := 0, 0
	for i := range b.items {
		it := &b.items[i]
		n := it.size()
		total += n
		if n > recordRoom || total > groupRoom {
			return nil, tooMuchTelemetry()
		}
		if len(parts) == 0 || size+n > recordRoom {
			parts, size = append(parts, &event.TelemetryReceived{BatchID: b.id}), 0
		}
		size += n
		b.add(parts[len(parts)-1], it)
	}
	records := make([]pending, len(parts))
	for i, p := range parts {
		if len(parts) > 1 {
			p.Part, p.Parts = i+1, len(parts)
		}
		records[i] = pending{agentID: b.agentOf(p), operation: "receive_telemetry", payload: p}
	}
	return records, nil
}

// add puts an event into a record, with what was read of its agent.
func (b *telemetryBatch) add(p *event.TelemetryReceived, it *telemetryItem) {
	p.Outcomes = append(p.Outcomes, it.outcome)
	switch {
	case it.rejected():
		p.Rejected++
		return
	case !it.accepted():
		p.Duplicates++
		return
	}
	p.Events = append(p.Events, it.event)
	if it.suspend != nil {
		p.Suspended = append(p.Suspended, it.event.AgentID)
	}
	for _, u := range p.Usage {
		if u.AgentID == it.event.AgentID {
			return
		}
	}
	p.Usage = append(p.Usage, event.AgentUsageRead{AgentID: it.event.AgentID, Usage: b.asked[it.event.AgentID].usage})
}

// agentOf is the agent of a record, where all of its events are of one.
func (b *telemetryBatch) agentOf(p *event.TelemetryReceived) string {
	if len(p.Usage) == 1 {
		return p.Usage[0].AgentID
	}
	return ""
}

func tooMuchTelemetry() error {
	return fault.New(fault.OversizedRequest, "The batch, with what the rules say of it, is more than one append to the log takes. Send fewer events at once.")
}
