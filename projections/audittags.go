package projections

import (
	"slices"

	"writegate/eventlog/event"
)

// tagsOf are the values that a payload adds to the index: credentials, and the
// policies, tools, agents and sessions that it names. A payload that can't be
// read has none; its projector says so.
//
// It looks for no key that the type does not have: most events have no tags, and
// each of them comes by here. A test holds that against all types.
func tagsOf(e *event.Envelope) []tag {
	switch e.Type {
	case event.TypeRequestReceived, event.TypeQueryRejected:
		return keyTags(nil, e, fieldCredential, "credential_ids")
	case event.TypeDecisionRecorded:
		return layerTags(e)
	case event.TypeUsageRecorded:
		return usageTags(e.Fields())
	case event.TypeTelemetryReceived:
		return originTags(telemetryTags(e.Fields()), e)
	case event.TypeAgentRegistered, event.TypeAgentUpdated, event.TypeAgentTokenIssued, event.TypeAgentTokenRevoked:
		return originTags(nil, e)
	case event.TypeAgentDeactivated,
		event.TypeAgentPolicyCreated, event.TypeAgentPolicyUpdated, event.TypeAgentPolicyApplied, event.TypeAgentPolicyDetached:
		return keyTags(originTags(nil, e), e, fieldAgentPolicy, "policy_id")
	case event.TypeToolRegistered, event.TypeToolUpdated, event.TypeToolVerified:
		return keyTags(originTags(nil, e), e, fieldTool, "tool_id")
	}
	return nil
}

// originTags adds the credentials of a request under /v1.
func originTags(tags []tag, e *event.Envelope) []tag {
	origin, _ := e.Get("origin")
	fields, _ := origin.AsMap()
	return textTags(tags, fields, fieldCredential, "credential_ids")
}

// keyTags adds the text, or the texts, under a key of the payload.
func keyTags(tags []tag, e *event.Envelope, f field, key string) []tag {
	v, _ := e.Get(key)
	return valueTags(tags, f, v)
}

// textTags adds the text, or the texts, under a key of a map inside it.
func textTags(tags []tag, p event.Payload, f field, key string) []tag {
	v, _ := p.Get(key)
	return valueTags(tags, f, v)
}

// valueTags adds texts, once each. A value that is not there adds none.
func valueTags(tags []tag, f field, v event.Value) []tag {
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

func layerTags(e *event.Envelope) (tags []tag) {
	layer, _ := e.Get("agent_layer")
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
