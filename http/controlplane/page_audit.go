package controlplane

import (
	"cmp"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"writegate/commands/fault"
	"writegate/http/httpd"
)

// auditFilters are those of GET /audit (spec/decisions.md part 7), in the order
// of the form.
var auditFilters = []string{"event_type", "decision", "actor", "app", "tenant", "env", "table", "fingerprint", "rule_id", "policy_version",
	"approval_id", "session_id", "execution_id", "request_id", "agent_id", "since", "until", "from_seq", "to_seq"}

type auditView struct {
	Rows     []auditRow
	Filters  []filterField
	Problem  string // why nothing is shown
	Ranges   []rangeLink
	Sorts    []rangeLink
	Sort     string // column that the rows of this page are sorted by; "": by time, as pages are
	Other    string // address of the other order
	Types    []string
	Chosen   []string
	Active   bool
	Whole    string   // address without a choice of event types
	Narrowed []string // the filters in words
	Partial  bool     // they leave out events of requests that they find
	Next     string   // address of the next page
	Saved    string   // query of the filtered set
	Damaged  *damage
	Chart    *decisionChart
	Asc      bool
}

type filterField struct {
	Name, Label, Value, Hint string
	Choices                  []string
	Long                     bool // what is typed there is
}

// A rangeLink is a time to look back over, or a column to sort by, with all else as it is.
type rangeLink struct {
	Words, Address string
	Chosen         bool
}

var quickRanges = []string{"last 15 min", "last 1 h", "last 24 h", "last 7 days"}

var filterLabels = map[string]string{"app": "application", "env": "environment", "rule_id": "rule", "from_seq": "from event", "to_seq": "to event"}

var filterChoices = map[string][]string{"decision": {"ALLOW", "BLOCK", "REQUIRE_APPROVAL"}, "env": {"shadow", "staging", "prod"}}

var filterHints = map[string]string{
	"since": "last 2 h, or 2026-01-31T08:00:00Z", "until": "1 h, or 2026-01-31T09:00:00Z", "policy_version": "name@1.2.3", "from_seq": "1", "to_seq": "1000", "fingerprint": "16 hex digits", "table": "public.orders",
}

// audit is the list of events.
func (s *Server) audit(c *httpd.Call, p *page) error {
	query := c.Request.URL.Query()
	ctx := c.Request.Context()
	v := auditView{Types: typesByWord(), Chosen: query["event_type"], Asc: query.Get("order") == "asc", Sort: query.Get("sort")}
	filter := chosenFilters(query)
	shown := maps.Clone(filter)
	for _, name := range []string{"order", "sort"} {
		shown[name] = query[name]
	}
	for _, name := range auditFilters[1:] {
		v.Filters = append(v.Filters, filterField{name, cmp.Or(filterLabels[name], strings.ReplaceAll(name, "_", " ")), query.Get(name), filterHints[name], filterChoices[name], name == "since" || name == "until" || strings.HasSuffix(name, "_id") || name == "table"})
	}
	v.Active = len(filter) > 0
	v.Whole = addressOf(shown, "event_type", "")
	for _, name := range []string{"event_type", "decision", "rule_id", "table"} {
		v.Partial = v.Partial || filter.Get(name) != ""
	}
	for _, name := range auditFilters {
		for _, value := range filter[name] {
			words := cmp.Or(filterLabels[name], strings.ReplaceAll(name, "_", " ")) + " " + value
			switch name {
			case "event_type":
				words = eventWord(value)
			case "decision":
				words = wordOr(decisionWords, value)
			}
			v.Narrowed = append(v.Narrowed, words)
		}
	}
	v.Saved = filter.Encode()
	for _, words := range quickRanges {
		v.Ranges = append(v.Ranges, rangeLink{words, addressOf(shown, "since", words, "until", ""), filter.Get("since") == words})
	}
	v.Other = addressOf(shown, "order", "asc")
	if v.Asc {
		v.Other = addressOf(shown, "order", "")
	}
	for _, name := range sortNames {
		at := addressOf(shown, "sort", name, "cursor", query.Get("cursor"))
		v.Sorts = append(v.Sorts, rangeLink{cmp.Or(name, "time"), at, v.Sort == name})
	}
	limit := "100" // of which several are one request's
	if v.Active {
		limit = "40"
	}
	asked := s.askedOf(filter, limit)
	for _, name := range []string{"cursor", "order"} {
		if query.Get(name) != "" {
			asked.Set(name, query.Get(name))
		}
	}
	p.Body = &v
	if !slices.Contains(sortNames, v.Sort) {
		v.Problem = "Sort must be one of " + strings.Join(sortNames[1:], ", ") + ", or left out."
		return nil
	}
	for _, name := range []string{"since", "until"} {
		if _, err := time.Parse(time.RFC3339Nano, asked.Get(name)); asked.Has(name) && err != nil {
			v.Problem = capital(name) + " must be a moment like 2026-01-31T18:00:00Z, or how far back from now: last 15 min, last 2 h, last 7 days."
			return nil
		}
	}
	got, err := ask[list[auditEvent]](ctx, s, request{path: "/audit", query: asked})
	if refused, ok := err.(*refusal); ok && refused.status == http.StatusBadRequest { //nolint:errorlint // ask returns it bare
		v.Problem = refused.Message
		return nil
	}
	if err != nil {
		return err
	}
	v.Rows, v.Damaged = rowsOf(got.Items, v.Asc), got.Damaged
	if v.Active {
		if err := s.statements(ctx, v.Rows); err != nil {
			return err
		}
	}
	if next := got.next(); next != "" {
		asked.Set("cursor", next)
		asked.Del("limit")
		v.Next = addressOf(asked, "sort", v.Sort)
	}
	sortRows(v.Rows, v.Sort)
	if query.Get("cursor") == "" && !v.Asc {
		p.Live = "*"
	}
	if c.Request.Header.Get(backgroundHeader) != "" {
		return nil // the chart stays as it was when the page was opened: somebody may be dragging over it
	}
	v.Chart, err = s.decisionsChart(ctx, filter, shown)
	return err
}

// addressOf is the page that shows this, with some of it changed.
func addressOf(shown url.Values, changed ...string) string {
	query := maps.Clone(shown)
	for i := 0; i+1 < len(changed); i += 2 {
		query[changed[i]] = slices.DeleteFunc([]string{changed[i+1]}, func(value string) bool { return value == "" })
	}
	return "/audit?" + query.Encode()
}

// askedOf is what the gate is asked for these filters.
func (s *Server) askedOf(filter url.Values, limit string) url.Values {
	asked := url.Values{"limit": {limit}}
	for name, values := range filter {
		asked[name] = values
	}
	for _, name := range []string{"since", "until"} {
		if asked.Has(name) {
			asked.Set(name, momentOf(asked.Get(name), s.now()))
		}
	}
	return asked
}

// typesByWord are the event types in the order of their words.
func typesByWord() []string {
	return slices.SortedFunc(maps.Keys(eventWords), func(a, b string) int { return cmp.Compare(eventWords[a], eventWords[b]) })
}

// chosenFilters are the filters of a query that are filled in.
func chosenFilters(query url.Values) url.Values {
	filter := make(url.Values)
	for _, name := range auditFilters {
		for _, value := range query[name] {
			if value = strings.TrimSpace(value); value != "" {
				filter.Add(name, value)
			}
		}
	}
	return filter
}

// download sends the filtered set, oldest first, a line of JSON an event, or with
// format=csv a table for a spreadsheet. The gate renders events in the log's own form, so
// a line of JSON here is a line of the log.
func (s *Server) download(c *httpd.Call) error {
	one, err := s.signedIn(c)
	if err != nil {
		return s.toLogin(c)
	}
	out, release, err := s.stream(c, &one)
	if err != nil {
		return err
	}
	defer release()
	query := s.askedOf(chosenFilters(c.Request.URL.Query()), "1000")
	query.Set("order", "asc")
	form, media := "jsonl", "application/jsonl"
	if c.Request.URL.Query().Get("format") == "csv" {
		form, media = "csv", "text/csv; charset=utf-8"
	}
	ctx, cancel := s.whileSignedIn(c)
	defer cancel()
	first, err := ask[list[json.RawMessage]](ctx, s, request{path: "/audit", query: query})
	if err != nil {
		return asFault(err)
	}
	h := c.Writer().Header()
	h.Set("Content-Type", media)
	name := "gate-events"
	if first.Damaged != nil { // a part must not pass for the whole, in a folder either
		name += fmt.Sprint("-of-a-damaged-log-verified-to-", first.Damaged.VerifiedTo)
	}
	h.Set("Content-Disposition", `attachment; filename="`+name+`.`+form+`"`)
	c.Writer().WriteHeader(http.StatusOK)
	for page, begun := first, false; ; begun = true {
		if form == "csv" {
			if err := writeCSV(out, page.Items, !begun); err != nil {
				panic(http.ErrAbortHandler) // a part must not pass for the whole
			}
			page.Items = nil
		}
		for _, line := range page.Items {
			if _, err := out.Write(append(line, '\n')); err != nil {
				return nil
			}
		}
		next := page.next()
		if next == "" {
			return nil
		}
		query.Set("cursor", next)
		if page, err = ask[list[json.RawMessage]](ctx, s, request{path: "/audit", query: query}); err != nil {
			panic(http.ErrAbortHandler) // a part must not pass for the whole
		}
		if page.Damaged != nil && first.Damaged == nil { // found meanwhile: events may be left out, and the file's name does not say so
			panic(http.ErrAbortHandler)
		}
	}
}

// asFault makes the error object of a refusal, for what is no page.
func asFault(err error) error {
	if refused, ok := err.(*refusal); ok { //nolint:errorlint // ask returns it bare
		return fault.New(fault.Code(refused.ErrorCode), "%s", refused.Message)
	}
	return err
}

type storyView struct {
	RequestID string
	Several   int  // requests that bear this id, where they are more than one; then nothing below is of one request
	Cut       bool // there are more events
	Damaged   *damage
	Claims    *auditEvent
	Events    []storyEvent
	SQL       *sqlView
	Whole     bool // each event links to the one before, as far as they are neighbours
	Came      came
	Approval  string
	Decided   approval // as far as it is decided
	Execution string
}

// A storyEvent is an event with the text of its payload.
type storyEvent struct {
	Event  auditEvent
	JSON   string // "" = left out
	Said   string // what the database said
	Linked bool   // the event before it in the story is the one before it in the log, and the hashes say so
}

// storyBytes is how much of payloads a page shows: a client names its requests, and
// many large ones may bear one name.
const storyBytes = 2 << 20

// story is everything that one request left in the log, in its order.
func (s *Server) story(c *httpd.Call, p *page) error {
	id := c.Params.ByName("id")
	if id == anyRequest {
		id = c.Request.URL.Query().Get("id")
	}
	if id == "" {
		return fault.New(fault.NotFound, "The address names no request. Open it from a list.")
	}
	got, err := read[auditEvent](c.Request.Context(), s, "/audit", 200, "request_id", id, "order", "asc")
	if err != nil {
		return err
	}
	if len(got.Items) == 0 {
		return fault.New(fault.NotFound, "The log holds nothing of a request %q.", cutRunes(id, 80))
	}
	v := storyView{RequestID: id, Claims: &got.Items[0], Whole: true, Cut: got.next() != "", Damaged: got.Damaged}
	begun, shown := 0, 0
	for i, e := range got.Items {
		if e.EventType == "request_received" && !describes(e) {
			begun++
		}
		one := storyEvent{Event: e, Said: didWords(e)}
		if shown += len(e.Payload); shown <= storyBytes || i == 0 {
			one.JSON = indented(e.Payload)
		}
		if i > 0 && e.Seq == got.Items[i-1].Seq+1 {
			one.Linked = e.PreviousHash == got.Items[i-1].EventHash
			v.Whole = v.Whole && one.Linked
		}
		v.Events = append(v.Events, one)
		v.note(e)
	}
	if begun > 1 { // a client names its requests, so what several of them did is not told as of one
		v.Several, v.Claims, v.SQL, v.Approval, v.Execution = begun, nil, nil, "", ""
	}
	if v.Approval != "" {
		v.Decided, _ = fetch[approval](c.Request.Context(), s, "/approvals/"+v.Approval) // an expired one may be purged
	}
	p.Title = "Request " + short(id)
	p.Live, p.Body = "execution_success execution_failure execution_state_unknown execution_outcome_resolved approval_resolved", v
	return nil
}

// anyRequest stands in a path for an id that the query names.
const anyRequest = "-"

// storyPath is the page of a request. A client's own id may hold what no path can.
func storyPath(id string) string {
	if id == anyRequest || strings.Trim(id, ".") == "" || strings.Trim(id, plainInPath) != "" {
		return "/requests/" + anyRequest + "?id=" + url.QueryEscape(id)
	}
	return "/requests/" + id
}

// didWords is PostgreSQL's word for what a statement did, such as DELETE 1, and how many
// rows changed where that was counted and the word says another number.
func didWords(e auditEvent) string {
	var payload struct {
		CommandTag  string `json:"command_tag"`
		RowsChanged int    `json:"rows_changed"`
	}
	if json.Unmarshal(e.Payload, &payload) != nil {
		return ""
	}
	if payload.RowsChanged == 0 || strings.HasSuffix(payload.CommandTag, fmt.Sprint(" ", payload.RowsChanged)) {
		return payload.CommandTag
	}
	return payload.CommandTag + ": " + plural(payload.RowsChanged, "row", "rows") + " changed in all, with those of cascades and triggers"
}

// DidOf is that of an event of GET /audit, with the execution that it ended.
func DidOf(raw json.RawMessage) (executionID, words string) {
	var e auditEvent
	if json.Unmarshal(raw, &e) != nil {
		return "", ""
	}
	return e.ExecutionID, didWords(e)
}

// InAll is what a list or a page says that an execution did: what its result in the log
// says, or the word of PostgreSQL, which leaves out what cascades and triggers changed.
func InAll(did, tag, path string) string {
	kind, rows, _ := strings.Cut(tag, " ")
	if path == "dry_run" {
		return cmp.Or(did, tag) + ", and was rolled back"
	}
	if did != "" || rows == "" || path == "read" || !slices.Contains([]string{"INSERT", "UPDATE", "DELETE", "MERGE", "SELECT", "COPY"}, kind) {
		return cmp.Or(did, tag)
	}
	return tag + "; how many rows changed in all is not known, for its result could not be read in the log"
}

// note picks what the page shows above its events.
func (v *storyView) note(e auditEvent) {
	if e.ApprovalID != "" {
		v.Approval = e.ApprovalID
	}
	if e.ExecutionID != "" {
		v.Execution = e.ExecutionID
	}
	if v.SQL == nil {
		v.SQL = loggedSQL(e)
	}
	c := cameBy(e)
	v.Came = came{cmp.Or(v.Came.Channel, c.Channel), cmp.Or(v.Came.Client, c.Client), cmp.Or(v.Came.Reason, c.Reason)}
}

// came is how a statement came in, and what an MCP client says of itself and of why.
type came struct{ Channel, Client, Reason string }

func cameBy(e auditEvent) came {
	var payload struct {
		Client  string `json:"client"`
		Reason  string `json:"reason"`
		Channel string `json:"channel"`
		Facts   struct {
			Channel string `json:"channel"`
		} `json:"facts"`
	}
	switch e.EventType {
	case "request_received", "query_rejected", "decision_recorded":
	default:
		return came{} // theirs are other words
	}
	if json.Unmarshal(e.Payload, &payload) != nil {
		return came{}
	}
	return came{channelWords[cmp.Or(payload.Channel, payload.Facts.Channel)], payload.Client, payload.Reason}
}

// channelWords say how statements come in.
var channelWords = map[string]string{"http": "POST /query", "wire": "the wire listener", "mcp": "an agent’s tools (MCP)"}

// channels counts the decisions among events by how their statements came in; "" where no
// record says.
func channels(events []auditEvent) string {
	counts := map[string]int{}
	for _, e := range events {
		if c := cameBy(e); e.EventType == "decision_recorded" && c.Channel != "" {
			counts[c.Channel]++
		}
	}
	var parts []string
	for _, words := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%d by %s", counts[words], words))
	}
	return strings.Join(parts, ", ")
}

// loggedSQL is the statement of a received request as the log has it: its shape,
// or its text, or nothing, as GATE_AUDIT_SQL_TEXT says. Its length and digest are
// those of the text that came.
func loggedSQL(e auditEvent) *sqlView {
	var payload struct {
		Text   string `json:"sql_text"`
		Bytes  int    `json:"sql_bytes"`
		Digest struct {
			Bytes []byte `json:"$b"` // how the readable log writes bytes
		} `json:"sql_digest"`
	}
	if json.Unmarshal(e.Payload, &payload) != nil || payload.Text == "" {
		return nil
	}
	view := viewSQL(payload.Text)
	digest := hex.EncodeToString(payload.Digest.Bytes)
	view.Shape = view.Digest != digest
	view.Bytes, view.Digest = payload.Bytes, digest
	return &view
}

// formValues is a form with the spaces around its values cut off.
type formValues struct{ url.Values }

func (f formValues) text(name string) string { return strings.TrimSpace(f.Get(name)) }

func (f formValues) String() string { return fmt.Sprint(len(f.Values), " fields") } // values of a form are not for logs
