package projections

import (
	"slices"

	"writegate/eventlog/event"
)

// tagsOf are the values that a payload adds to the index: credentials, and the
// policies, tools, agents and sessions that it names. A payload that can't be
// read has none; its projector says so.
func tagsOf(e *event.Envelope) []tag {
	var tags []tag
	switch e.Type {
	case event.TypeRequestReceived, event.TypeQueryRejected:
		return textTags(nil, e.Payload, fieldCredential, "credential_ids")
	case event.TypeDecisionRecorded:
		if layer, ok := e.Payload.Get("agent_layer"); ok {
			return layerTags(layer)
		}
		return nil
	case event.TypeTelemetryReceived:
		tags = telemetryTags(e.Payload)
	case event.TypeUsageRecorded:
		return usageTags(e.Payload)
	}
	origin, ok := e.Payload.Get("origin")
	if !ok {
		return nil
	}
	if fields, ok := origin.AsMap(); ok {
		tags = textTags(tags, fields, fieldCredential, "credential_ids")
	}
	tags = textTags(tags, e.Payload, fieldAgentPolicy, "policy_id")
	return textTags(tags, e.Payload, fieldTool, "tool_id")
}

// textTags adds the text, or the texts, under a key, once each.
func textTags(tags []tag, p event.Payload, f field, key string) []tag {
	v, ok := p.Get(key)
	if !ok {
		return tags
	}
	if s, ok := v.AsString(); ok {
		return addTag(tags, f, s)
	}
	items, _ := v.AsList()
	for _, item := range items {
		if s, ok := item.AsString(); ok {
			tags = addTag(tags, f, s)
		}
	}
	return tags
}

func addTag(tags []tag, f field, value string) []tag {
	if t := (tag{f, value}); value != "" && !slices.Contains(tags, t) {
		tags = append(tags, t)
	}
	return tags
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

func layerTags(layer event.Value) (tags []tag) {
	fields, _ := layer.AsMap()
	for _, matched := range mapsOf(fields, "matched") {
		tags = textTags(tags, matched, fieldAgentPolicy, "policy_id")
	}
	return tags
}

func telemetryTags(p event.Payload) (tags []tag) {
	for _, e := range mapsOf(p, "events") {
		tags = textTags(tags, e, fieldAgentID, "agent_id")
		tags = textTags(tags, e, fieldTelemetryType, "type")
		tags = textTags(tags, e, fieldSessionID, "session_id")
		if tool, ok := e.Get("tool"); ok {
			if fields, ok := tool.AsMap(); ok {
				tags = textTags(tags, fields, fieldTool, "id")
			}
		}
	}
	for _, o := range mapsOf(p, "outcomes") {
		for _, v := range mapsOf(o, "violations") {
			tags = textTags(tags, v, fieldAgentPolicy, "policy_id")
		}
	}
	return tags
}

func usageTags(p event.Payload) (tags []tag) {
	for _, u := range mapsOf(p, "credentials") {
		tags = textTags(tags, u, fieldCredential, "credential_id")
		tags = textTags(tags, u, fieldAgentID, "agent_id")
	}
	return tags
}
