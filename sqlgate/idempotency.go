package sqlgate

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"

	"writegate/commands"
	"writegate/commands/fault"
	"writegate/eventlog/event"
	"writegate/projections"
	"writegate/sqlgate/classify"
)

// beginKey reserves the request's idempotency key, or gives its first answer
// again (spec/decisions.md part 3). A key that is taken is a refusal, and leaves
// evidence as every refusal does.
func (g *Gate) beginKey(ctx context.Context, s *submission) (*commands.KeyLease, *Answer, error) {
	if s.IdempotencyKey == "" {
		return nil, nil, nil
	}
	lease, first, err := g.Commands.BeginKey(ctx, s.keyScope(), s.keyDigest(), g.Now())
	switch {
	case isRefusal(err):
		return nil, nil, g.refuse(ctx, s, err)
	case err != nil || first == nil:
		return lease, nil, err
	}
	if err := g.preparedAnew(ctx, s, first); err != nil {
		return nil, nil, g.refuse(ctx, s, err)
	}
	kept, err := keptAnswer(first)
	if err != nil {
		return nil, nil, err
	}
	g.nameFailure(s, kept)
	return nil, &Answer{RequestID: s.RequestID, Kept: kept}, nil
}

// preparedAnew refuses an EXECUTE that would send something else by now than the one
// that the key answers for: what is prepared is part of the request, as it is of an
// approval's. Where the session or the name is gone nothing else can be meant.
func (g *Gate) preparedAnew(ctx context.Context, s *submission, first *projections.IdempotencyRecord) error {
	if s.SessionID == "" {
		return nil
	}
	session := g.sessions.peek(s.sessionName())
	if session == nil {
		return nil
	}
	outer, err := g.Classifier.Classify(ctx, s.SQL)
	if err != nil || outer.QueryType != classify.TypeExecute {
		return err
	}
	p, err := g.sessions.find(session, outer.Session.Name)
	if err != nil {
		return nil
	}
	other := fault.New(fault.IdempotencyConflict, "The idempotency key was used for an EXECUTE of another prepared statement of this name. Use a new key.")
	b, err := p.bind(outer.Session.Args)
	if err != nil {
		return other
	}
	inner, err := g.Classifier.Classify(ctx, p.sql)
	if err != nil {
		return err
	}
	now := (&submission{Request: s.Request, classification: inner, execute: b}).statement()
	var params [32]byte
	if record := paramsRecord(&now); record != nil {
		params = record.SHA256
	}
	if sha256.Sum256([]byte(now.SQL)) != first.SQLDigest || params != first.ParamsDigest {
		return other
	}
	return nil
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
