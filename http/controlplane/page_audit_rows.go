package controlplane

import (
	"cmp"
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// An auditRow is a request as far as a page of the log has it, or an event of none.
type auditRow struct {
	Events []auditEvent // in the order of the log
	Text   string       // its statement, as the log has it
	Line   *sqlView     // as much of that as a row shows
	Tables []string     // what it reaches; those that it writes, where it writes
	Did    string       // what the database did
	By     string       // who decided about an approval, how, and with which note
}

// describes tells whether an event says only that the server was to describe a statement, or
// to plan it for who approves: nothing runs under it, and a run has a decision of its own.
func describes(e auditEvent) bool {
	var payload struct {
		Purpose string `json:"purpose"`
		Run     string `json:"run"`
	}
	if json.Unmarshal(e.Payload, &payload) != nil {
		return false
	}
	return e.EventType == "request_received" && payload.Purpose == "describe" || e.EventType == "decision_recorded" && payload.Run == "describe"
}

// unenforced says of a decision that the statement ran all the same why it did.
func unenforced(e auditEvent) string {
	var payload struct {
		Enforced *bool `json:"enforced"`
		Bypass   bool  `json:"bypass"`
	}
	switch {
	case e.EventType != "decision_recorded" || e.Decision == "ALLOW" || describes(e) || json.Unmarshal(e.Payload, &payload) != nil || payload.Enforced == nil || *payload.Enforced:
		return ""
	case payload.Bypass:
		return " (bypass: not enforced)"
	}
	return " (not enforced)"
}

// Lead is the event that says most about the row: the decision about its run where there is one.
func (r *auditRow) Lead() *auditEvent {
	lead := &r.Events[len(r.Events)-1]
	for i := range r.Events {
		if r.Events[i].EventType == "decision_recorded" {
			if lead = &r.Events[i]; !describes(*lead) {
				break
			}
		}
	}
	return lead
}

// Described tells whether nothing was to run.
func (r *auditRow) Described() bool { return describes(*r.Lead()) }

// Ended is the last event of a row, where it says more than the one that leads.
func (r *auditRow) Ended() *auditEvent {
	if last := &r.Events[len(r.Events)-1]; last != r.Lead() && last.EventType != "approval_created" {
		return last
	}
	return nil
}

// Tone is how the row ended, as far as it did.
func (r *auditRow) Tone() string {
	if last := r.Ended(); last != nil && unenforced(*r.Lead()) == "" {
		if tone := toneOfEvent(*last); tone != "calm" {
			return tone
		}
	}
	if r.Described() {
		return "calm"
	}
	return toneOfEvent(*r.Lead())
}

// rowsOf puts the events of a page together by request. A client chooses the id of its
// request, so it joins nothing by itself: what was written in one append stands side by
// side in the log, and results name the execution. What the server was asked about a
// statement before belongs to the request with its id and its words that comes next.
func rowsOf(events []auditEvent, asc bool) []auditRow {
	events = slices.Clone(events)
	slices.SortFunc(events, func(a, b auditEvent) int { return cmp.Compare(a.Seq, b.Seq) })
	var rows []auditRow
	open, ran := -1, make(map[string]int) // the row that the event before belongs to, and those of executions
	described := make(map[string]int)     // rows in which nothing was to run so far, by their request
	for _, e := range events {
		at, known := ran[e.ExecutionID]
		if e.ExecutionID == "" {
			known = false
		}
		beside := open >= 0 && e.RequestID != "" && e.EventType != "request_received"
		if beside {
			last := rows[open].Events[len(rows[open].Events)-1]
			beside = last.Seq+1 == e.Seq && last.RequestID == e.RequestID && (!refusals[e.EventType] || last.EventType == "request_received")
		}
		switch {
		case known:
		case beside:
			at = open
		default:
			var before bool
			if at, before = described[e.RequestID]; !before || describes(e) || !rows[at].sameWords(e) {
				rows, at = append(rows, auditRow{}), len(rows)
			}
		}
		rows[at].add(e)
		if delete(described, e.RequestID); e.RequestID != "" && describes(e) {
			described[e.RequestID] = at
		}
		if e.ExecutionID != "" {
			ran[e.ExecutionID] = at
		}
		open = at
	}
	if !asc {
		slices.SortStableFunc(rows, func(a, b auditRow) int {
			return cmp.Compare(b.Events[len(b.Events)-1].Seq, a.Events[len(a.Events)-1].Seq)
		})
	}
	return rows
}

// sameWords tells whether an event begins a request for the statement of a row.
func (r *auditRow) sameWords(e auditEvent) bool {
	var one auditRow
	one.add(e)
	return e.EventType == "request_received" && one.Text == r.Text || e.EventType == "decision_recorded" && e.Fingerprint == r.Lead().Fingerprint
}

// sortNames are the columns that the rows of a page can be sorted by; "" is by time.
var sortNames = []string{"", "decision", "table", "requester", "reason"}

// sortRows sorts by a column; rows that are alike in it stay in their order of time.
func sortRows(rows []auditRow, column string) {
	of := map[string]func(*auditRow) string{
		"decision":  func(r *auditRow) string { return cmp.Or(r.Lead().Decision, "~"+r.Lead().EventType) }, // what is decided first
		"table":     func(r *auditRow) string { return cmp.Or(strings.Join(r.Tables, " "), "~") },
		"requester": func(r *auditRow) string { return r.Lead().Actor + "\x00" + r.Lead().App },
		"reason":    func(r *auditRow) string { return cmp.Or(r.Lead().ReasonCode, r.Lead().ErrorCode, "~") },
	}[column]
	if of != nil {
		slices.SortStableFunc(rows, func(a, b auditRow) int { return cmp.Compare(of(&a), of(&b)) })
	}
}

// refusals end a request that got no further, so behind a decision they are another one's
// that bears the same id.
var refusals = map[string]bool{"query_rejected": true, "rate_limit_hit": true, "oversized_request": true}

// lineBytes is how much of a statement stands in a row.
const lineBytes = 240

func (r *auditRow) add(e auditEvent) {
	r.Events = append(r.Events, e)
	var payload struct {
		Text       string `json:"sql_text"`
		By         string `json:"by"`
		Note       string `json:"note"`
		Resolution string `json:"resolution"`
		Facts      struct {
			Read    []string `json:"tables_read"`
			Written []string `json:"tables_written"`
		} `json:"facts"`
	}
	if json.Unmarshal(e.Payload, &payload) != nil {
		return
	}
	switch e.EventType {
	case "request_received":
		if r.Text = payload.Text; r.Text != "" {
			line := lineOf(r.Text, lineBytes)
			r.Line = &line
		}
	case "decision_recorded":
		if r.Tables = payload.Facts.Written; len(r.Tables) == 0 {
			r.Tables = payload.Facts.Read
		}
	case "approval_resolved":
		r.By = wordOr(stateWords, payload.Resolution) + " by " + payload.By
		if payload.Note != "" {
			r.By += ": “" + payload.Note + "”"
		}
	}
	if did := didWords(e); did != "" {
		r.Did = did
	}
}

// statements finds what was asked for rows whose decision a filter showed without it: it
// is the event before.
func (s *Server) statements(ctx context.Context, rows []auditRow) error {
	wanted := make(map[uint64]*auditRow)
	first, last := uint64(0), uint64(0)
	for i := range rows {
		if e := rows[i].Events[0]; e.EventType == "decision_recorded" && e.Seq > 1 {
			wanted[e.Seq-1], last = &rows[i], max(last, e.Seq)
			if first == 0 || e.Seq-1 < first {
				first = e.Seq - 1
			}
		}
	}
	if len(wanted) == 0 {
		return nil
	}
	got, err := read[auditEvent](ctx, s, "/audit", 1000, "event_type", "request_received", "from_seq", strconv.FormatUint(first, 10), "to_seq", strconv.FormatUint(last, 10))
	for _, e := range got.Items {
		if row := wanted[e.Seq]; row != nil && row.Events[0].RequestID == e.RequestID {
			events := row.Events
			row.Events = nil
			for _, one := range append([]auditEvent{e}, events...) {
				row.add(one)
			}
		}
	}
	return err
}

var backFrom = regexp.MustCompile(`^(?:last )?(\d{1,5}) ?(s|m|min|h|d|w|hours?|minutes?|days?|weeks?)$`)

// momentOf reads what a person writes for a time: RFC 3339 as the gate takes it, or how
// far back from now ("last 2 h"). What is neither is left to the gate to refuse.
func momentOf(text string, now time.Time) string {
	m := backFrom.FindStringSubmatch(strings.ToLower(text))
	if m == nil {
		return text
	}
	n, _ := strconv.Atoi(m[1]) // five digits
	unit := map[byte]time.Duration{'s': time.Second, 'm': time.Minute, 'h': time.Hour, 'd': 24 * time.Hour, 'w': 7 * 24 * time.Hour}[m[2][0]]
	return now.Add(-time.Duration(n) * unit).UTC().Format(time.RFC3339)
}

// csvColumns are those of a set that is saved for a spreadsheet.
var csvColumns = []string{"seq", "timestamp", "event_type", "decision", "operation", "actor", "app", "tenant", "env", "reason_code", "error_code",
	"request_id", "approval_id", "execution_id", "fingerprint", "policy_version", "did", "event_hash", "agent_id", "tables", "statement"}

func writeCSV(out io.Writer, events []json.RawMessage, head bool) error {
	w := csv.NewWriter(out)
	if head {
		_ = w.Write(csvColumns) // Flush tells
	}
	for _, raw := range events {
		var e auditEvent
		if err := json.Unmarshal(raw, &e); err != nil {
			return broken(err)
		}
		var row auditRow
		row.add(e)
		cells := []string{fmt.Sprint(e.Seq), e.Timestamp.UTC().Format(time.RFC3339Nano), e.EventType, e.Decision, e.Operation, e.Actor, e.App, e.Tenant, e.Env, e.ReasonCode, e.ErrorCode,
			e.RequestID, e.ApprovalID, e.ExecutionID, e.Fingerprint, e.PolicyVersion, row.Did, e.EventHash, e.AgentID, strings.Join(row.Tables, " "), row.Text}
		for i := range cells {
			cells[i] = noFormula(cells[i])
		}
		_ = w.Write(cells)
	}
	w.Flush()
	return w.Error()
}

// noFormula keeps a spreadsheet from running what a client claims to be called
// (https://owasp.org/www-community/attacks/CSV_Injection).
func noFormula(cell string) string {
	if strings.IndexAny(strings.TrimLeft(cell, " "), "=+-@\t\r\n＝＋－＠") == 0 {
		return "'" + cell
	}
	return cell
}
