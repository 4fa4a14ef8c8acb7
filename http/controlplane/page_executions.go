package controlplane

import (
	"cmp"
	"context"
	"maps"
	"net/url"
	"slices"
	"strconv"

	"writegate/http/httpd"
)

type executionsView struct {
	Did     map[string]string    // by execution, what the database did where the log says more than its word
	Ran     map[string]*auditRow // by execution, its request
	State   string
	States  []string
	Items   []execution
	Unknown []execution
	Next    string
}

var executionStates = []string{"unknown", "failure", "success", "dispatched"}

// executions shows what is not known first.
func (s *Server) executions(c *httpd.Call, p *page) error {
	query := c.Request.URL.Query()
	v := executionsView{State: query.Get("state"), States: executionStates}
	ctx := c.Request.Context()
	var all gather
	var unread, failed error
	if v.State == "" {
		together(&all, ctx, func(ctx context.Context) error {
			got, err := read[execution](ctx, s, "/executions", 100, "execution_state", "unknown")
			v.Unknown, unread = got.Items, err
			return err
		})
	}
	together(&all, ctx, func(ctx context.Context) error {
		got, err := read[execution](ctx, s, "/executions", 50, "execution_state", v.State, "cursor", query.Get("cursor"))
		v.Items, v.Next, failed = got.Items, got.next(), err
		return err
	})
	all.wait()
	if err := cmp.Or(failed, unread); err != nil { // that nothing is unknown must not be said for want of an answer
		return err
	}
	v.Did, v.Ran = s.didOf(ctx, v.Items), s.requestsOf(ctx, v.Items)
	maps.Copy(v.Ran, s.requestsOf(ctx, v.Unknown))
	p.Live = "execution_dispatched execution_success execution_failure execution_state_unknown execution_outcome_resolved"
	p.Body = v
	return nil
}

// didOf looks for what executions of a page changed in all, as far as their results lie
// among the newest of that part of the log: the list is worth showing without it.
func (s *Server) didOf(ctx context.Context, items []execution) map[string]string {
	did := make(map[string]string)
	first, last := partOf(items)
	if last == 0 {
		return did
	}
	got, _ := read[auditEvent](ctx, s, "/audit", 1000, "event_type", "execution_success", "from_seq", strconv.FormatUint(first, 10), "to_seq", strconv.FormatUint(last, 10))
	for _, e := range got.Items {
		did[e.ExecutionID] = didWords(e)
	}
	return did
}

// partOf is the part of the log with the events of executions.
func partOf(items []execution) (first, last uint64) {
	for _, e := range items {
		for _, seq := range e.EventSeqs {
			if first == 0 || seq < first {
				first = seq
			}
			last = max(last, seq)
		}
	}
	return first, last
}

// requestsOf looks in the log for the requests of executions, as far as they lie among the
// newest of its part: the list is worth showing without them.
func (s *Server) requestsOf(ctx context.Context, items []execution) map[string]*auditRow {
	requests := make(map[string]*auditRow)
	first, last := partOf(items)
	if last == 0 {
		return requests
	}
	begun := max(first, 4) - 3 // what was asked and decided stands before what was sent
	got, _ := ask[list[auditEvent]](ctx, s, request{path: "/audit", query: url.Values{"limit": {"1000"}, "from_seq": {strconv.FormatUint(begun, 10)}, "to_seq": {strconv.FormatUint(last, 10)},
		"event_type": {"request_received", "decision_recorded", "approval_used", "execution_dispatched"}}})
	rows := rowsOf(got.Items, true)
	for i := range rows {
		for _, e := range rows[i].Events {
			if e.ExecutionID != "" {
				requests[e.ExecutionID] = &rows[i]
			}
		}
	}
	return requests
}

type executionView struct {
	execution
	SQL    *sqlView // as the log has it
	Advice []string

	Did     string   // what the database did, where the log says more than its word
	Decided approval // of the approval that it ran under
	Several bool     // other requests bear the id of its own, so its statement is not shown
	Events  []auditEvent
}

func (s *Server) execution(c *httpd.Call, p *page) error {
	ctx := c.Request.Context()
	e, err := fetch[execution](ctx, s, "/executions/"+c.Params.ByName("id"))
	if err != nil {
		return err
	}
	v := executionView{execution: e, Advice: whatNext(&e)}
	if got, err := read[auditEvent](ctx, s, "/audit", 50, "execution_id", e.ExecutionID, "order", "asc"); err == nil {
		v.Events = got.Items
		for _, e := range got.Items {
			v.Did = cmp.Or(didWords(e), v.Did)
		}
	}
	if e.RequestID != "" {
		// A client chooses the id: where several requests bear it, which of their
		// statements this one ran is not known by it.
		if got, err := read[auditEvent](ctx, s, "/audit", 10, "request_id", e.RequestID, "event_type", "request_received"); err == nil {
			runs := slices.DeleteFunc(got.Items, describes)
			if v.Several = len(runs) > 1; len(runs) == 1 {
				v.SQL = loggedSQL(runs[0])
			}
		}
	}
	if e.ApprovalID != "" {
		v.Decided, _ = fetch[approval](ctx, s, "/approvals/"+e.ApprovalID) // the page is worth showing without it
	}
	p.Title = "Execution " + short(e.ExecutionID)
	p.Live, p.Body = "execution_success execution_failure execution_state_unknown execution_outcome_resolved", v
	return nil
}

// whatNext says what a person does about an execution (spec/decisions.md part 4).
func whatNext(e *execution) []string {
	switch {
	case e.ExecutionState == "unknown" && e.Outcome == "in_progress":
		return []string{"The database still works on it, or waits for a standby. Do not end it and do not send it again: ask once more in a minute."}
	case e.ExecutionState == "unknown" && e.Outcome == "not_knowable":
		return []string{"The database cannot tell any more: it was restarted after a crash, failed over, or forgot so old a transaction.",
			"Compare the rows by hand. Look for what the statement would have changed, and decide with whoever owns the data.",
			"It is never run again by itself, and its approval stays used."}
	case e.ExecutionState == "unknown" && e.Path == "alone":
		return []string{"It ran outside a transaction, so a part of it can stay. Look at the object that it names: an index may be there and be invalid."}
	case e.ExecutionState == "unknown":
		return []string{"The answer to its COMMIT never came. Ask the database what became of the transaction: that is safe, the statement is never sent again.",
			"Until that is known, do not send it again: it may have been applied."}
	case e.Outcome == "aborted" && e.ApprovalID == "":
		return []string{"It was not applied, and may be sent again."}
	case e.Outcome == "aborted":
		return []string{"It was not applied. Under the same approval, within its time, it may be sent again, unless it had run in a transaction block that failed later: then it needs a new one."}
	case e.Outcome == "committed":
		return []string{"It was applied. Do not send it again."}
	}
	return nil
}
