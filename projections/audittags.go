package projections

import (
	"slices"

	"writegate/eventlog/event"
)

// A tag is one value of a field that an event may have several of.
type tag struct {
	field field
	value string
}

// tags are those of one event, once each. A telemetry batch may have thousands.
type tags struct {
	list []tag
	seen map[tag]bool // nil while there are few
}

func (t *tags) add(f field, value string) {
	one := tag{f, value}
	switch {
	case value == "":
		return
	case len(t.list) < fewValues:
		if slices.Contains(t.list, one) {
			return
		}
	case t.seen == nil:
		t.seen = map[tag]bool{}
		for _, known := range t.list {
			t.seen[known] = true
		}
		fallthrough
	default:
		if t.seen[one] {
			return
		}
		t.seen[one] = true
	}
	t.list = append(t.list, one)
}

// tagsOf are the values that a payload adds to the index: credentials, and the
// tables, policies, tools, agents and sessions that it names. A payload that can't be
// read has none; its projector says so.
//
// It looks for no key that the type does not have: most events have no tags, and
// each of them comes by here. A test holds that against all types.
func tagsOf(e *event.Envelope) []tag {
	var t tags
	switch e.Type {
	case event.TypeRequestReceived, event.TypeQueryRejected:
		t.key(e, fieldCredential, "credential_ids")
	case event.TypeDecisionRecorded:
		t.layer(e)
		t.tables(e)
	case event.TypeUsageRecorded:
		t.usage(e.Fields())
	case event.TypeTelemetryReceived:
		t.telemetry(e.Fields())
		t.origin(e)
	case event.TypeAgentRegistered, event.TypeAgentUpdated, event.TypeAgentTokenIssued, event.TypeAgentTokenRevoked, event.TypeGrantCreated:
		t.origin(e)
	case event.TypeAgentDeactivated,
		event.TypeAgentPolicyCreated, event.TypeAgentPolicyUpdated, event.TypeAgentPolicyApplied, event.TypeAgentPolicyDetached:
		t.origin(e)
		t.key(e, fieldAgentPolicy, "policy_id")
	case event.TypeToolRegistered, event.TypeToolUpdated, event.TypeToolVerified:
		t.origin(e)
		t.key(e, fieldTool, "tool_id")
	}
	return t.list
}

// origin adds the credentials of a request under /v1.
func (t *tags) origin(e *event.Envelope) {
	origin, _ := e.Get("origin")
	fields, _ := origin.AsMap()
	t.text(fields, fieldCredential, "credential_ids")
}

// key adds the text, or the texts, under a key of the payload.
func (t *tags) key(e *event.Envelope, f field, key string) {
	v, _ := e.Get(key)
	t.value(f, v)
}

// text adds the text, or the texts, under a key of a map inside it.
func (t *tags) text(p event.Payload, f field, key string) {
	v, _ := p.Get(key)
	t.value(f, v)
}

// value adds texts. A value that is not there adds none.
func (t *tags) value(f field, v event.Value) {
	if s, ok := v.AsString(); ok {
		t.add(f, s)
		return
	}
	items, _ := v.AsList()
	for _, item := range items {
		if s, ok := item.AsString(); ok {
			t.add(f, s)
		}
	}
}

// maps gives the maps of a list under a key.
func mapsOf(p event.Payload, key string) []event.Payload {
	v, ok := p.Get(key)
	if !ok {
		return nil
	}
	items, _ := v.AsList()
	var out []event.Payload
	for _, item := range items {
		if m, ok := item.AsMap(); ok {
			out = append(out, m)
		}
	}
	return out
}

// tables adds those that the statement of a decision reads and writes.
func (t *tags) tables(e *event.Envelope) {
	for _, key := range [...]string{"tables_read", "tables_written"} {
		v, _ := e.Get("facts", key)
		t.value(fieldTable, v)
	}
}

func (t *tags) layer(e *event.Envelope) {
	layer, _ := e.Get("agent_layer")
	fields, _ := layer.AsMap()
	for _, matched := range mapsOf(fields, "matched") {
		t.text(matched, fieldAgentPolicy, "policy_id")
	}
}

func (t *tags) telemetry(p event.Payload) {
	for _, e := range mapsOf(p, "events") {
		t.text(e, fieldAgentID, "agent_id")
		t.text(e, fieldTelemetryType, "type")
		t.text(e, fieldSessionID, "session_id")
		if tool, ok := e.Get("tool"); ok {
			if fields, ok := tool.AsMap(); ok {
				t.text(fields, fieldTool, "id")
			}
		}
	}
	for _, o := range mapsOf(p, "outcomes") {
		for _, v := range mapsOf(o, "violations") {
			t.text(v, fieldAgentPolicy, "policy_id")
		}
	}
}

func (t *tags) usage(p event.Payload) {
	for _, u := range mapsOf(p, "credentials") {
		t.text(u, fieldCredential, "credential_id")
		t.text(u, fieldAgentID, "agent_id")
	}
}
