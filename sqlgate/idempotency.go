package sqlgate

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"writegate/commands"
	"writegate/commands/fault"
	"writegate/eventlog/event"
	"writegate/projections"
)

// beginKey reserves the request's idempotency key, or gives its first answer
// again (spec/decisions.md part 3). A key that is taken is a refusal, and leaves
// evidence as every refusal does.
func (g *Gate) beginKey(ctx context.Context, s *submission) (*commands.KeyLease, *Answer, error) {
	if s.IdempotencyKey == "" {
		return nil, nil, nil
	}
	lease, first, err := g.Commands.BeginKey(s.keyScope(), s.keyDigest(), g.Now())
	switch {
	case isRefusal(err):
		return nil, nil, g.refuse(ctx, s, err)
	case err != nil || first == nil:
		return lease, nil, err
	}
	kept, err := keptAnswer(first)
	if err != nil {
		return nil, nil, err
	}
	g.nameFailure(s, kept)
	return nil, &Answer{RequestID: s.RequestID, Kept: kept}, nil
}

// nameFailure gives a kept error object the error_id of this occurrence, and
// writes the log line that it leads to.
func (g *Gate) nameFailure(s *submission, kept *KeptAnswer) {
	var failure struct {
		Code string `json:"error_code"`
	}
	if json.Unmarshal(kept.Body, &failure) != nil || failure.Code == "" {
		return
	}
	kept.ErrorID = event.NewErrorID(g.Now())
	g.Logger.Info("the kept failure of an idempotency key was given again: "+failure.Code, "source", "gate",
		"error_id", kept.ErrorID, "request_id", s.RequestID)
}

// keptAnswer is the stored answer as it is given again.
func keptAnswer(first *projections.IdempotencyRecord) (*KeptAnswer, error) {
	if !first.Answered || len(first.Body) < 2 || first.Body[0] != '{' || !json.Valid([]byte(first.Body)) {
		return nil, fmt.Errorf("the execution %s keeps no answer for its idempotency key", first.ExecutionID)
	}
	return &KeptAnswer{Status: first.Status, Body: []byte(first.Body), RowsOmitted: first.RowsOmitted, Outcome: first.Outcome}, nil
}

// idempotency binds the dispatch to the client's key; nil without one.
func (s *submission) idempotency() *event.Idempotency {
	if s.IdempotencyKey == "" {
		return nil
	}
	return &event.Idempotency{Key: s.IdempotencyKey, ScopeDigest: s.keyScope(), RequestDigest: s.keyDigest()}
}

// keepAnswer is what the key keeps of an executed statement; nil without a key.
func (s *submission) keepAnswer(a *Answer) *event.Answer {
	if s.IdempotencyKey == "" {
		return nil
	}
	body, omitted := a.keptBody()
	status := http.StatusOK
	if !a.Executed {
		status = http.StatusForbidden // the read fence: a dispatched statement that ended as BLOCK
	}
	return &event.Answer{Status: status, Body: string(body), RowsOmitted: omitted}
}

// keepFault is what the key keeps of a failed or unknown execution. Its
// error_id is left out: each time the answer is given it is an occurrence of
// its own.
func (s *submission) keepFault(f *fault.Fault, statusOf func(fault.Code) int) *event.Answer {
	if s.IdempotencyKey == "" {
		return nil
	}
	body := map[string]any{"error_code": f.Code, "message": f.Message}
	for k, v := range f.Beside {
		body[k] = v
	}
	if len(f.Details) > 0 {
		body["details"] = f.Details
	}
	text, err := json.Marshal(body)
	if err != nil {
		text = fmt.Appendf(nil, `{"error_code":%q,"message":"The details of this answer could not be kept."}`, string(f.Code))
	}
	return &event.Answer{Status: statusOf(f.Code), Body: string(text)}
}
