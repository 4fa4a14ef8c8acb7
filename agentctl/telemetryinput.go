package agentctl

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"writegate/eventlog/event"
)

// Bounds of a batch (spec/v1.md part 8).
const (
	MaxTelemetryEvents = 1000
	MaxTelemetryBytes  = 64 << 10 // of one event, as it was sent

	telemetryBack  = 7 * 24 * time.Hour // how old an event may be
	telemetryAhead = 5 * time.Minute    // how far ahead its clock may be
)

// Codes of what is wrong with one event of a batch.
const (
	eventInvalid        = "event_invalid"
	eventTooLarge       = "event_too_large"
	timestampOutOfRange = "timestamp_out_of_range"
	agentMissing        = "agent_missing"
	agentUnknown        = "agent_not_found"
	agentNotActive      = "agent_inactive"
	agentNotOwn         = "agent_mismatch"
)

// TelemetryInput is one event of POST /v1/telemetry, and the payload of an item of
// GET /v1/events: what was not sent is left out.
type TelemetryInput struct {
	ID           *string         `json:"id,omitempty"`
	Type         string          `json:"type"`
	Timestamp    *string         `json:"timestamp,omitempty"`
	AgentID      string          `json:"agent_id,omitempty"`
	SessionID    string          `json:"session_id,omitempty"`
	TraceID      string          `json:"trace_id,omitempty"`
	SpanID       string          `json:"span_id,omitempty"`
	ParentSpanID string          `json:"parent_span_id,omitempty"`
	Name         string          `json:"name,omitempty"`
	Status       *string         `json:"status,omitempty"`
	DurationMS   *int64          `json:"duration_ms,omitempty"`
	Model        ModelInput      `json:"model,omitzero"`
	Usage        ConsumedInput   `json:"usage,omitzero"`
	Tool         CalledInput     `json:"tool,omitzero"`
	SQL          StatementInput  `json:"sql,omitzero"`
	Error        FailureInput    `json:"error,omitzero"`
	Attributes   json.RawMessage `json:"attributes,omitempty"`
}

// ModelInput names the model that was called.
type ModelInput struct {
	Provider string `json:"provider,omitempty"`
	Name     string `json:"name,omitempty"`
}

// ConsumedInput is what an event consumed.
type ConsumedInput struct {
	InputTokens       int64  `json:"input_tokens,omitempty"`
	OutputTokens      int64  `json:"output_tokens,omitempty"`
	CachedInputTokens int64  `json:"cached_input_tokens,omitempty"`
	CostUSD           string `json:"cost_usd,omitempty"`
}

// CalledInput names the tool that was called.
type CalledInput struct {
	ID              string `json:"id,omitempty"`
	Name            string `json:"name,omitempty"`
	CallID          string `json:"call_id,omitempty"`
	ArgumentsSHA256 string `json:"arguments_sha256,omitempty"`
}

// StatementInput leads to a statement at the gate.
type StatementInput struct {
	RequestID string `json:"request_id,omitempty"`
}

// FailureInput is why something failed.
type FailureInput struct {
	Type    string `json:"type,omitempty"`
	Message string `json:"message,omitempty"`
}

// A SentEvent is one event of a batch as it arrived: what it says, or what kept
// it from being read.
type SentEvent struct {
	Bytes   int
	Input   *TelemetryInput
	Problem *FieldError // pointer inside the event
}

// Limits of an event's fields.
const (
	maxTelemetryID  = 128
	maxTelemetryRef = 128     // ids of sessions, traces, spans, calls, requests
	maxErrorMessage = 1024    // characters
	maxTokensUsed   = 1 << 32 // a sum of a thousand million such events is still a number
	maxDurationMS   = 1 << 40 // 34 years
	maxAttributes   = 64
)

var (
	telemetryType = regexp.MustCompile(`^[a-z][a-z0-9_.]{0,63}$`)
	hexDigest     = regexp.MustCompile(`^[0-9a-f]{64}$`)
	dollars       = regexp.MustCompile(`^([0-9]{1,6})(?:\.([0-9]{1,6}))?$`)
)

// read checks an event and gives what is kept of it. Its id may be "", its time
// 0: they are filled in when it is accepted.
func (in *TelemetryInput) read() (t event.TelemetryEvent, problems fieldErrors) {
	f := &problems
	t = event.TelemetryEvent{Type: in.Type, AgentID: in.AgentID, SessionID: in.SessionID, TraceID: in.TraceID, SpanID: in.SpanID, ParentSpanID: in.ParentSpanID,
		Name: in.Name, DurationMS: in.DurationMS, Model: event.TelemetryModel{Provider: in.Model.Provider, Name: in.Model.Name},
		Tool:         event.TelemetryTool{ID: in.Tool.ID, Name: in.Tool.Name, CallID: in.Tool.CallID, ArgumentsSHA256: in.Tool.ArgumentsSHA256},
		SQLRequestID: in.SQL.RequestID, ErrorType: in.Error.Type, ErrorMessage: in.Error.Message}
	if in.ID != nil {
		t.ID = *in.ID
		f.add(!plainText(t.ID, maxTelemetryID), "/id", "must have 1 to 128 characters and no control characters")
	}
	f.add(!telemetryType.MatchString(in.Type), "/type", "must begin with a lower-case letter and have at most 64 of a-z, 0-9, _ and .")
	if in.Status != nil {
		t.Status = *in.Status
		f.add(!slices.Contains([]string{"ok", "error", "cancelled"}, t.Status), "/status", "must be ok, error or cancelled")
	}
	if in.Timestamp != nil {
		at, err := time.Parse(time.RFC3339Nano, *in.Timestamp)
		f.add(err != nil || at.Year() < 1970 || at.Year() > 2200, "/timestamp", "must be a moment like 2026-01-31T18:00:00Z")
		t.Timestamp = at.UnixNano()
	}
	in.checkTexts(f)
	in.checkNumbers(f, &t)
	t.Attributes = in.attributes(f)
	return t, problems
}

// sentForm is an event of the log as it was sent, with the id, the time and the agent
// that it got where it had none.
func sentForm(t *event.TelemetryEvent) ([]byte, error) {
	at := event.Timestamp(time.Unix(0, t.Timestamp))
	in := TelemetryInput{ID: &t.ID, Type: t.Type, Timestamp: &at, AgentID: t.AgentID, SessionID: t.SessionID, TraceID: t.TraceID, SpanID: t.SpanID, ParentSpanID: t.ParentSpanID,
		Name: t.Name, DurationMS: t.DurationMS, Model: ModelInput(t.Model), Tool: CalledInput(t.Tool), SQL: StatementInput{t.SQLRequestID}, Error: FailureInput{t.ErrorType, t.ErrorMessage},
		Usage:      ConsumedInput{InputTokens: t.Usage.InputTokens, OutputTokens: t.Usage.OutputTokens, CachedInputTokens: t.Usage.CachedInputTokens},
		Attributes: json.RawMessage(t.Attributes)}
	if t.Status != "" {
		in.Status = &t.Status
	}
	if t.Usage.CostMicros != 0 {
		in.Usage.CostUSD = strings.TrimRight(strings.TrimRight(Dollars(t.Usage.CostMicros), "0"), ".")
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	err := enc.Encode(&in)
	return bytes.TrimSuffix(out.Bytes(), []byte("\n")), err
}

func (in *TelemetryInput) checkTexts(f *fieldErrors) {
	for _, c := range []struct {
		value, pointer string
		most           int
	}{
		{in.AgentID, "/agent_id", maxTelemetryRef}, {in.SessionID, "/session_id", maxTelemetryRef}, {in.TraceID, "/trace_id", maxTelemetryRef},
		{in.SpanID, "/span_id", maxTelemetryRef}, {in.ParentSpanID, "/parent_span_id", maxTelemetryRef}, {in.Name, "/name", maxModel},
		{in.Model.Provider, "/model/provider", maxModel}, {in.Model.Name, "/model/name", maxModel}, {in.Tool.ID, "/tool/id", maxTelemetryRef},
		{in.Tool.Name, "/tool/name", maxModel}, {in.Tool.CallID, "/tool/call_id", maxTelemetryRef}, {in.SQL.RequestID, "/sql/request_id", maxTelemetryRef},
		{in.Error.Type, "/error/type", maxTelemetryRef},
	} {
		f.add(c.value != "" && !plainText(c.value, c.most), c.pointer, fmt.Sprintf("must have at most %d characters and no control characters", c.most))
	}
	f.add(utf8.RuneCountInString(in.Error.Message) > maxErrorMessage, "/error/message", "must have at most 1024 characters")
	digest := in.Tool.ArgumentsSHA256
	f.add(digest != "" && !hexDigest.MatchString(digest), "/tool/arguments_sha256", "must be 64 hex digits: the arguments' SHA-256, never the arguments")
}

func (in *TelemetryInput) checkNumbers(f *fieldErrors, t *event.TelemetryEvent) {
	outside := func(n, most int64) bool { return n < 0 || n > most }
	f.add(in.DurationMS != nil && outside(*in.DurationMS, maxDurationMS), "/duration_ms", "must be a whole number of milliseconds from 0")
	for _, c := range []struct {
		n       int64
		pointer string
	}{{in.Usage.InputTokens, "/usage/input_tokens"}, {in.Usage.OutputTokens, "/usage/output_tokens"}, {in.Usage.CachedInputTokens, "/usage/cached_input_tokens"}} {
		f.add(outside(c.n, maxTokensUsed), c.pointer, "must be a whole number from 0 to 4294967296")
	}
	micros, ok := microsOf(in.Usage.CostUSD)
	f.add(!ok, "/usage/cost_usd", `must be dollars as a text with at most six places, like "0.0041"`)
	t.Usage = event.TelemetryUsage{InputTokens: in.Usage.InputTokens, OutputTokens: in.Usage.OutputTokens, CachedInputTokens: in.Usage.CachedInputTokens, CostMicros: micros}
}

// microsOf reads an amount of money; "" is none.
func microsOf(text string) (micros int64, ok bool) {
	if text == "" {
		return 0, true
	}
	parts := dollars.FindStringSubmatch(text)
	if parts == nil {
		return 0, false
	}
	micros, err := strconv.ParseInt(parts[1]+parts[2]+strings.Repeat("0", 6-len(parts[2])), 10, 64)
	return micros, err == nil
}

// attributes checks them and gives them without spaces; "" where there are none.
func (in *TelemetryInput) attributes(f *fieldErrors) string {
	if len(in.Attributes) == 0 || string(in.Attributes) == "null" {
		return ""
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(in.Attributes, &fields); err != nil {
		f.add(true, "/attributes", "must be an object")
		return ""
	}
	f.add(len(fields) > maxAttributes, "/attributes", "must have at most 64 keys")
	for key, value := range fields {
		f.add(!plainText(key, maxTelemetryRef), "/attributes", "keys must have 1 to 128 characters and no control characters")
		f.add(strings.ContainsRune("{[n", rune(value[0])), "/attributes", "values must be texts, numbers, true or false")
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, in.Attributes); err != nil {
		f.add(true, "/attributes", "must be an object")
	}
	if len(fields) == 0 {
		return ""
	}
	return compact.String()
}
