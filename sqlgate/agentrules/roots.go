package agentrules

import (
	"strings"

	"writegate/eventlog/event"
	"writegate/sqlgate/policy"
)

// A Tool is the root tool: the tool that an event names. The zero Tool, with
// Destructive, is one that nobody registered.
type Tool struct {
	ID, Name, Type                  string
	Verified, ReadOnly, Destructive bool
}

// UnknownTool is what is known of a tool that nobody registered.
var UnknownTool = Tool{Destructive: true}

// roots give the variables their values. A root that is nil has empty ones:
// no rule that reads it runs there.
type roots struct {
	agent *event.AgentRoot
	usage *event.AgentUsage
	facts *policy.Facts
	event *event.TelemetryEvent
	tool  *Tool
}

// value gives a variable by its full name.
func (v *roots) value(name string) (any, bool) {
	root, field, _ := strings.Cut(name, ".")
	switch {
	case root == "agent" && v.agent != nil:
		return agentValue(v.agent, field)
	case root == "usage" && v.usage != nil:
		return usageValue(v.usage, field)
	case (root == "sql" || root == "request") && v.facts != nil:
		return v.facts.Fact(field)
	case root == "event" && v.event != nil:
		return eventValue(v.event, field)
	case root == "tool" && v.tool != nil:
		return toolValue(v.tool, field)
	}
	return nil, false
}

func agentValue(a *event.AgentRoot, field string) (any, bool) {
	switch field {
	case "id":
		return a.ID, true
	case "name":
		return a.Name, true
	case "type":
		return a.Type, true
	case "environment":
		return a.Environment, true
	case "version":
		return a.Version, true
	case "model":
		return a.Model, true
	case "max_tokens":
		return int64(a.MaxTokens), true
	case "temperature_milli":
		return int64(a.TemperatureMilli), true
	case "tools_verified":
		return a.ToolsVerified, true
	}
	return nil, false
}

func usageValue(u *event.AgentUsage, field string) (any, bool) {
	switch field {
	case "requests_1h":
		return u.Requests1h, true
	case "events_1h":
		return u.Events1h, true
	case "errors_1h":
		return u.Errors1h, true
	case "tokens_1h":
		return u.Tokens1h, true
	case "tokens_24h":
		return u.Tokens24h, true
	case "cost_micros_24h":
		return u.CostMicros24h, true
	case "tool_calls_1h":
		return u.ToolCalls1h, true
	case "sql_decisions_1h":
		return u.SQLDecisions1h, true
	case "sql_writes_1h":
		return u.SQLWrites1h, true
	}
	return nil, false
}

func eventValue(e *event.TelemetryEvent, field string) (any, bool) {
	switch field {
	case "type":
		return e.Type, true
	case "name":
		return e.Name, true
	case "status":
		return e.Status, true
	case "model":
		return e.Model.Name, true
	case "tool_id":
		return e.Tool.ID, true
	case "tool_name":
		return e.Tool.Name, true
	case "error_type":
		return e.ErrorType, true
	case "session_id":
		return e.SessionID, true
	case "duration_ms":
		if e.DurationMS == nil {
			return int64(0), true
		}
		return *e.DurationMS, true
	case "input_tokens":
		return e.Usage.InputTokens, true
	case "output_tokens":
		return e.Usage.OutputTokens, true
	case "total_tokens":
		return e.Usage.InputTokens + e.Usage.OutputTokens, true
	case "cost_micros":
		return e.Usage.CostMicros, true
	}
	return nil, false
}

func toolValue(t *Tool, field string) (any, bool) {
	switch field {
	case "id":
		return t.ID, true
	case "name":
		return t.Name, true
	case "type":
		return t.Type, true
	case "verified":
		return t.Verified, true
	case "read_only":
		return t.ReadOnly, true
	case "destructive":
		return t.Destructive, true
	}
	return nil, false
}
