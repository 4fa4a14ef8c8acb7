package agentctl

import (
	"context"
	"net/http"

	"writegate/eventlog/event"
)

// TelemetryBody is the answer of POST /v1/telemetry.
type TelemetryBody struct {
	BatchID    string            `json:"batch_id"`
	Accepted   int               `json:"accepted"`
	Duplicates int               `json:"duplicates"`
	Rejected   int               `json:"rejected"`
	FirstSeq   *uint64           `json:"first_seq"`
	LastSeq    *uint64           `json:"last_seq"`
	Results    []TelemetryResult `json:"results"`
	Suspended  []string          `json:"agents_suspended"`
}

// TelemetryResult is what became of one event.
type TelemetryResult struct {
	Index      int             `json:"index"`
	ID         string          `json:"id,omitempty"`
	Status     string          `json:"status"`
	Violations []ViolationBody `json:"violations,omitzero"` // of an accepted one, also where there are none
	ErrorCode  string          `json:"error_code,omitempty"`
	Pointer    string          `json:"pointer,omitempty"`
	Message    string          `json:"message,omitempty"`
}

// ViolationBody is a rule that matched an event.
type ViolationBody struct {
	PolicyID    string `json:"policy_id"`
	RuleID      string `json:"rule_id"`
	Action      string `json:"action"`
	ReasonCode  string `json:"reason_code"`
	NeedsReview bool   `json:"needs_review"`
}

func (b *TelemetryBody) status() int {
	if b.Rejected > 0 {
		return http.StatusMultiStatus
	}
	return http.StatusOK
}

// telemetryBody renders the outcomes of a batch.
func telemetryBody(batchID string, outcomes []event.TelemetryOutcome, suspended []string) *TelemetryBody {
	body := &TelemetryBody{BatchID: batchID, Results: make([]TelemetryResult, len(outcomes)), Suspended: suspended}
	for i := range outcomes {
		o := &outcomes[i]
		r := TelemetryResult{Index: o.Index, ID: o.ID, Status: o.Status, ErrorCode: o.ErrorCode, Pointer: o.Pointer, Message: o.Message}
		switch o.Status {
		case event.TelemetryAccepted:
			body.Accepted++
			r.Violations = make([]ViolationBody, len(o.Violations))
			for j, v := range o.Violations {
				r.Violations[j] = ViolationBody{v.PolicyID, v.RuleID, v.Action, v.ReasonCode, v.NeedsReview}
			}
		case event.TelemetryDuplicate:
			body.Duplicates++
		default:
			body.Rejected++
		}
		body.Results[i] = r
	}
	return body
}

// TelemetryAgain rebuilds the answer to a batch from its records, of which the
// first one is at seq.
func (s *Service) TelemetryAgain(ctx context.Context, seq uint64) (*TelemetryBody, error) {
	var outcomes []event.TelemetryOutcome
	var p event.TelemetryReceived
	suspended := []string{}
	last := seq
	for parts := 1; last < seq+uint64(parts); last++ {
		e, _, err := s.at(ctx, last)
		if err != nil {
			return nil, err
		}
		p = event.TelemetryReceived{}
		if err := e.Parse(&p); err != nil {
			return nil, err
		}
		parts = max(1, p.Parts)
		outcomes, suspended = append(outcomes, p.Outcomes...), append(suspended, p.Suspended...)
	}
	last--
	body := telemetryBody(p.BatchID, outcomes, suspended)
	body.FirstSeq, body.LastSeq = &seq, &last
	return body, nil
}
