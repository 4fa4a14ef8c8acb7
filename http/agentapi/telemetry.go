package agentapi

import (
	"encoding/json"
	"strings"

	"writegate/agentctl"
	"writegate/commands/fault"
	"writegate/http/httpd"
	"writegate/projections"
)

// telemetryBody is the body of POST /v1/telemetry. Its events are read one by
// one: a bad one does not sink the batch.
type telemetryBody struct {
	Events []json.RawMessage `json:"events"`
}

func (a *api) telemetry(c *call) error {
	return write(a, c, func(by *agentctl.Asker, in *telemetryBody) (agentctl.Answer, error) {
		if err := agentctl.BatchSize(len(in.Events)); err != nil { // before they are read: an event takes much more than its bytes
			return agentctl.Answer{}, err
		}
		sent := make([]agentctl.SentEvent, len(in.Events))
		for i, text := range in.Events {
			sent[i] = sentEvent(text)
		}
		return a.Agents.Telemetry(c.Request.Context(), by, sent)
	})
}

func sentEvent(text []byte) agentctl.SentEvent {
	sent := agentctl.SentEvent{Bytes: len(text)}
	if sent.Bytes > agentctl.MaxTelemetryBytes {
		return sent
	}
	in := new(agentctl.TelemetryInput)
	if err := httpd.DecodeJSON(text, in); err != nil {
		sent.Problem = unreadable(err)
		return sent
	}
	sent.Input = in
	return sent
}

// unreadable says what is wrong inside an event.
func unreadable(err error) *agentctl.FieldError {
	f := fault.Of(err)
	field, _ := f.Details["field"].(string)
	p := agentctl.FieldError{Message: strings.Replace(f.Message, "The request body can't be read", "The event can't be read", 1)}
	switch top, _, _ := strings.Cut(field, "."); {
	case top == "attributes": // names of attributes have dots of their own
		p.Pointer = "/attributes"
	case field != "":
		p.Pointer = "/" + strings.ReplaceAll(field, ".", "/")
	}
	return &p
}

// replayTelemetry rebuilds the answer to a batch from the log.
func (a *api) replayTelemetry(c *call, first *projections.IdempotencyRecord, seq uint64) error {
	if seq == 0 {
		return fault.New(fault.IdempotencyConflict, "The first answer under this key stands in a log before this one, and can't be given again. Send the batch without the key: what was accepted then is a duplicate now.")
	}
	body, err := a.Agents.TelemetryAgain(c.Request.Context(), seq)
	if err != nil {
		return err
	}
	if err := a.replayed(c, seq); err != nil {
		return err
	}
	c.JSON(first.Status, body)
	return nil
}
