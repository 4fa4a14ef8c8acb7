package controlplane

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"writegate/http/httpd"
)

// runsUnder finds what stands behind an approval's parameters and is none (parameters in
// docs/openapi.yaml). A parameter is a constant, so none begins like that.
var runsUnder = regexp.MustCompile(`^(TimeZone = |types of the parameters: |\d+ more before these in its transaction$|before it in its transaction[:,] )`)

// shownBytes is how much of a statement a line of a list shows.
const shownBytes = 400

// inboxLimit is how many pending approvals are read for the inbox, and put in order.
const inboxLimit = 1000

// inboxPage is how many of them a page shows: the worst first, and the page under 100 KB.
const inboxPage = 40

// An approvalRow is an approval in a list.
type approvalRow struct {
	approval
	Effect string
	Risk   string
	Left   int64 // seconds
	Line   sqlView
	Claims []string // what is wrong with the letters of its claims
	Proven []claim  // what was checked of who asks
	Who    []claim  // what nobody checked
	Behind bool     // another policy became active since
	rank   int
}

// A claim is what a list says of who asks.
type claim struct {
	Name, Value, Checked string
	Differs              bool // from those of its group
}

// asker is all that is known of who asks: what was checked, and the claims, of which a list
// shows the first three and those that differ.
func (r *approvalRow) asker() (proven, claims []claim) {
	c := &r.Context
	return []claim{{"agent", r.AgentID, "its token was checked", false}, {"", r.Principal, "its password or certificate was checked", false}},
		[]claim{{Value: c.Actor}, {Name: "in", Value: c.App}, {Value: c.Env}, {Name: "tenant", Value: c.Tenant}, {Name: "role", Value: c.Role}, {Name: "host", Value: c.Host}, {Name: "session", Value: c.SessionID}}
}

// shownClaims is how many of the claims a list shows in any case.
const shownClaims = 3

func (s *Server) rows(items []approval) []approvalRow {
	rows := make([]approvalRow, len(items))
	for i, a := range items {
		a.named()
		r := approvalRow{approval: a, Effect: effect(&a.Classification, a.SQL), Left: remaining(a.ExpiresAt, s.now()), Line: lineOf(a.SQL, shownBytes), rank: risk(&a.Classification)}
		for _, claim := range []string{a.Context.Actor, a.Context.App, a.Context.Tenant, a.Context.Role, a.Context.Host, a.Context.Env, a.Context.SessionID} {
			r.Claims = append(r.Claims, viewClaim(claim).Warnings...)
		}
		if len(r.Claims) > 0 || viewSQL(a.SQL).Misread || viewSQL(a.PreparedSQL).Misread {
			r.rank = max(r.rank, misleading)
		}
		if slices.ContainsFunc(a.Impact.tables(), func(t reached) bool { return t.How != "named" || len(t.Triggers) > 0 }) || r.unlooked() != "" || r.unseen() != "" || r.guess() != "" {
			r.rank = max(r.rank, 10) // what that comes to, the text does not say
		}
		if changed, _ := changeDangers(&a.Classification, a.SQL); len(changed) > 0 || r.cascades() != "" || a.Renewed != nil && len(a.Renewed.Changed) > 0 {
			r.rank = max(r.rank, misleading) // more goes than its text names, or than it asked for
		}
		if all, _ := r.all(); r.manyByKey() || all != nil || r.Impact != nil && float64(r.Impact.Rows)+r.Impact.taken() >= manyRows || len(r.besides("rule")) > 0 {
			r.rank = max(r.rank, misleading) // its text says less than it is expected to do
		}
		r.Risk = riskWord(r.rank)
		rows[i] = r
		markClaims(rows[i : i+1])
	}
	return rows
}

// Usable tells whether what was approved can be sent: nothing of it was applied yet.
func (r approvalRow) Usable() bool { return r.unused() && r.Left > 0 }

// First names the gravest of what a person must not miss; "": there is nothing.
func (r approvalRow) First() string {
	if list := dangers(&r, r.Line.Warnings); len(list) > 0 {
		return list[0].Name
	}
	return ""
}

// Expects is the number that PostgreSQL expects, where no danger of the card says it; "": it
// was not asked.
func (v approvalView) Expects() string {
	switch p := v.Impact; {
	case p == nil || p.Node == "" && p.Unplanned == "" || len(expected(&v.approvalRow)) > 0:
		return ""
	case p.Node == "":
		return "not estimated"
	default:
		if table, rows := v.everyRow(); table != "" {
			return "every row, about " + thousands(rows)
		}
		return "about " + plural(int(p.Rows), "row", "rows")
	}
}

// Lapsed tells whether that was not done in its time.
func (r approvalRow) Lapsed() bool { return r.unused() && r.Left == 0 }

func (r approvalRow) unused() bool {
	return r.Resolution == "approve" && r.Use == "free" && !r.Withdrawn
}

// lineOf is what a list shows of a statement: its beginning, and of a longer one the first
// passage that writes behind that, too. It says how much it cuts, and what kinds of parts.
func lineOf(sql string, most int) sqlView {
	if len(sql) <= most {
		return viewSQL(sql)
	}
	v := piecesOf(cutRunes(sql, searchedBytes))
	all := contracted(v.Pieces)
	v.Pieces = nil
	cut := func(hidden []sqlPiece, rest string, bytes int) {
		note := "cut: " + plural(bytes, "byte", "bytes") + rest
		if words := leftOut(hidden); words != "" {
			note += ", with " + words
		}
		v.Pieces = append(v.Pieces, sqlPiece{Kind: "blank", Note: note})
	}
	from, to, passages := writeBehind(all, most)
	head, shown := begin(all[:from], most)
	v.Pieces = append(v.Pieces, shown...)
	if from == len(all) { // no passage writes behind it
		lost := 0
		for _, p := range shown {
			if p.Kind == "string" {
				lost += p.Lost
			}
		}
		if head < len(all) || len(sql) > v.Bytes {
			cut(all[head:], " more", len(sql)-bytesOf(shown)+lost)
		} else if lost > 0 {
			cut(nil, " of a long string", lost)
		}
		return v
	}
	if head < from {
		cut(all[head:from], "", bytesOf(all[head:from]))
	}
	n, shown := begin(all[from:to], most)
	v.Pieces = append(v.Pieces, shown...)
	rest := " in all"
	if passages > 1 {
		rest += ", with " + plural(passages-1, "more passage that writes", "more passages that write")
	}
	cut(all[from+n:], rest, len(sql))
	return v
}

// begin gives the first pieces that are so wide, with what of the next there is room for, and
// how many are whole.
func begin(pieces []sqlPiece, most int) (whole int, shown []sqlPiece) {
	for i, p := range pieces {
		if p.width() > most {
			if p.Kind != "blank" && most > 0 {
				p.Text = cutRunes(p.Text, most)
				shown = append(shown, p)
			}
			return i, shown
		}
		most -= p.width()
		shown = append(shown, p)
	}
	return len(pieces), shown
}

// bytesOf is how long the text of pieces is.
func bytesOf(pieces []sqlPiece) (n int) {
	for _, p := range pieces {
		n += len(p.Text) + p.Lost
	}
	return n
}

// writeBehind is the first passage that writes and begins behind so much of a text, or so
// near to that that its table is behind it, and how many do; from the end where none does.
func writeBehind(pieces []sqlPiece, most int) (from, to, passages int) {
	at, next := 0, 0
	parts := writingParts(pieces)
	for i, part := range parts {
		for ; next < part.from; next++ {
			at += pieces[next].width()
		}
		if at > most-nearBytes {
			return part.from, len(pieces), len(parts) - i
		}
	}
	return len(pieces), len(pieces), 0
}

// triage puts what could do most harm first, and of that what ends soonest.
func triage(a, b approvalRow) int {
	return cmp.Or(cmp.Compare(riskOrder[b.Risk], riskOrder[a.Risk]), a.ExpiresAt.Compare(b.ExpiresAt), cmp.Compare(a.ApprovalID, b.ApprovalID))
}

var riskOrder = map[string]int{"high": 2, "elevated": 1}

// A group is the approvals of one shape of statement.
type group struct {
	Fingerprint string
	Rows        []approvalRow // those on this page
	Of          int           // those on all pages
	// Alone is why they are not approved by one action: not each is shown whole, or there is
	// something to say of it that stands on its card alone.
	Alone []string
}

// alone is why an approval is given on its card, and not in the inbox.
func (r *approvalRow) alone() (why []string) {
	if r.Behind {
		why = append(why, "another policy is active by now")
	}
	if !r.whole() {
		why = append(why, "not all that runs is shown here")
	}
	for _, m := range dangers(r, r.Line.Warnings) {
		why = append(why, strings.ToLower(m.Name[:1])+m.Name[1:])
	}
	if len(why) == 0 && r.Risk == "high" {
		why = []string{"high risk"}
	}
	return why
}

type approvalsView struct {
	Tab            string
	Groups         []group
	Count          int // of all that wait, filtered or not
	From, To, Of   int // the part of the filtered ones on this page; From counts from 1
	Earlier, Later string
	Filters        []filterLink
	Kept           string // the filter, behind the address of a card
	History        []approvalRow
	Next           string
}

// A filterLink is a part of the inbox, or all of it.
type filterLink struct {
	Words, Address string
	Count          int
	Chosen         bool
	Claim          bool // the words are what callers say of themselves
}

// approvals is the inbox, or what became of earlier ones.
func (s *Server) approvals(c *httpd.Call, p *page) error {
	query := c.Request.URL.Query()
	v := approvalsView{Tab: query.Get("show")}
	ctx, _ := s.looking(c)
	switch v.Tab {
	case "approved", "rejected", "expired":
		got, err := read[approval](ctx, s, "/approvals", 50, "status", v.Tab, "cursor", query.Get("cursor"))
		if err != nil {
			return err
		}
		v.History, v.Next = s.rows(got.Items), got.next()
	case "", "pending":
		v.Tab = "pending"
		got, err := read[approval](ctx, s, "/approvals", inboxLimit, "status", "pending", "cursor", query.Get("cursor"))
		if err != nil {
			return err
		}
		rows := s.rows(got.Items)
		for i := range rows {
			rows[i].Behind = p.Policy != "" && p.Policy != rows[i].PolicyVersion
		}
		v.Count, v.Next = len(rows), got.next()
		if risk := query.Get("risk"); query.Has("risk") && riskWords[risk] == "" {
			return httpd.Invalid(map[string]string{"risk": "must be high, elevated or ordinary"})
		}
		rows, v.Filters = filtered(rows, query)
		v.Kept = keptFilter(query)
		from, err := strconv.Atoi(cmp.Or(query.Get("from"), "1"))
		if err != nil || from < 1 {
			return httpd.Invalid(map[string]string{"from": "must be the number of a row, from 1"})
		}
		v.Of = len(rows)
		v.From = min(from-1, max(v.Of-1, 0))/inboxPage*inboxPage + 1 // decided ones move the rest up
		v.To = min(v.From-1+inboxPage, v.Of)
		v.Groups = window(grouped(rows), v.From-1, v.To)
		for _, g := range v.Groups {
			s.nameAgents(ctx, g.Rows)
		}
		at := func(from int) string {
			query.Set("from", strconv.Itoa(from))
			return "/approvals?" + query.Encode()
		}
		if v.From > 1 {
			v.Earlier = at(v.From - inboxPage)
		}
		if v.To < v.Of {
			v.Later = at(v.To + 1)
		}
	default:
		return httpd.Invalid(map[string]string{"show": "must be pending, approved, rejected or expired"})
	}
	p.Live, p.Body = "approval_created approval_resolved approval_expired approval_used approvals_purged", v
	return nil
}

// mostActors bounds how many callers the inbox has a link for.
const mostActors = 8

// filtered keeps the rows that a query asks for, and names what it could ask for.
func filtered(rows []approvalRow, query url.Values) ([]approvalRow, []filterLink) {
	risks, actors := make(map[string]int), make(map[string]int)
	for _, r := range rows {
		risks[r.Risk]++
		actors[r.Context.Actor]++
	}
	chosen := query.Get("risk") + query.Get("actor")
	links := []filterLink{{"All", "/approvals", len(rows), chosen == "", false}}
	add := func(name, value, words string, count int) {
		links = append(links, filterLink{words, "/approvals?" + url.Values{name: {value}}.Encode(), count, query.Get(name) == value, name == "actor"})
	}
	if len(risks) > 1 || query.Has("risk") {
		for _, risk := range []string{"high", "elevated", "ordinary"} {
			if risks[risk] > 0 || query.Get("risk") == risk {
				add("risk", risk, riskWords[risk], risks[risk])
			}
		}
	}
	if len(actors) > 1 || query.Has("actor") {
		names := slices.SortedFunc(maps.Keys(actors), func(a, b string) int { return cmp.Or(cmp.Compare(actors[b], actors[a]), cmp.Compare(a, b)) })
		for _, actor := range names[:min(len(names), mostActors)] {
			add("actor", actor, actor, actors[actor])
		}
	}
	return slices.DeleteFunc(rows, func(r approvalRow) bool {
		return query.Has("risk") && r.Risk != query.Get("risk") || query.Has("actor") && r.Context.Actor != query.Get("actor")
	}), links
}

var riskWords = map[string]string{"high": "High risk", "elevated": "Look closely", "ordinary": "Ordinary"}

// grouped puts statements of one shape together, in the order of triage of the first of
// each, and marks in what they differ.
func grouped(rows []approvalRow) []group {
	slices.SortFunc(rows, triage)
	at := make(map[string]int)
	var groups []group
	for _, r := range rows {
		key := r.Fingerprint + " " + r.Effect // tables may differ in digits that a fingerprint leaves out
		i, ok := at[key]
		if !ok {
			i = len(groups)
			at[key] = i
			groups = append(groups, group{Fingerprint: r.Fingerprint})
		}
		g := &groups[i]
		g.Rows = append(g.Rows, r)
		for _, why := range r.alone() {
			if !slices.Contains(g.Alone, why) {
				g.Alone = append(g.Alone, why)
			}
		}
	}
	for i := range groups {
		markDifferences(groups[i].Rows)
		markClaims(groups[i].Rows)
		groups[i].Of = len(groups[i].Rows)
	}
	return groups
}

// window keeps the rows of a page, as they are counted through all groups.
func window(groups []group, from, to int) []group {
	var shown []group
	before := 0
	for _, g := range groups {
		if first, last := max(from-before, 0), min(to-before, g.Of); first < last {
			g.Rows = g.Rows[first:last]
			shown = append(shown, g)
		}
		before += g.Of
	}
	return shown
}

// whole tells whether a line of a list shows all that an approval is for.
func (r *approvalRow) whole() bool {
	return len(r.SQL) <= shownBytes && r.PreparedSQL == "" && len(r.Parameters) == 0 && r.Profile != "bulk"
}

// markClaims gives rows what a list says of who asks, and marks what is not the same in all.
func markClaims(rows []approvalRow) {
	firstProven, firstClaims := rows[0].asker()
	differ := make(map[int]bool) // those proven count on from -1 downwards
	for _, r := range rows[1:] {
		proven, claims := r.asker()
		for i := range proven {
			differ[-1-i] = differ[-1-i] || proven[i] != firstProven[i]
		}
		for i := range claims {
			differ[i] = differ[i] || claims[i] != firstClaims[i]
		}
	}
	for at := range rows {
		r := &rows[at]
		proven, claims := r.asker()
		r.Proven, r.Who = nil, nil
		for i, c := range proven {
			if c.Differs = differ[-1-i]; c.Value != "" {
				r.Proven = append(r.Proven, c)
			}
		}
		for i, c := range claims {
			c.Differs = differ[i]
			if c.Differs || i < shownClaims && (i > 0 || r.AgentID == "") { // a name of one's own says nothing beside that of a token
				r.Who = append(r.Who, c)
			}
		}
	}
}

// mostNames bounds how many agents are asked for only to name them.
const mostNames = 5

// agentNames names agents by their ids, each asked for once, where the dashboard has a key; the id is
// the name of one that it can't name.
func (s *Server) agentNames(ctx context.Context) func(id string) string {
	names := make(map[string]string)
	return func(id string) string {
		name, known := names[id]
		if !known && len(names) < mostNames {
			if agent, err := ask[agentRecord](ctx, s, request{path: "/v1/agents/" + id, project: true}); err == nil {
				name = agent.Name
			}
			names[id] = name
		}
		return cmp.Or(name, id)
	}
}

// nameAgents puts names in the place of the ids of agents.
func (s *Server) nameAgents(ctx context.Context, rows []approvalRow) {
	named := s.agentNames(ctx)
	for _, r := range rows {
		for i, c := range r.Proven {
			if c.Name == "agent" {
				r.Proven[i].Value = named(c.Value)
			}
		}
	}
}

// markDifferences marks the pieces that are not the same in all rows, as far as the rows
// have the same number of pieces.
func markDifferences(rows []approvalRow) {
	for _, r := range rows[1:] {
		if len(r.Line.Pieces) != len(rows[0].Line.Pieces) {
			return
		}
	}
	for i, first := range rows[0].Line.Pieces {
		if slices.ContainsFunc(rows, func(r approvalRow) bool { return r.Line.Pieces[i].Text != first.Text }) {
			for _, r := range rows {
				r.Line.Pieces[i].Differs = true
			}
		}
	}
}

// nextAfter is the address of what to decide after an approval: the next in the order of
// the inbox, or the inbox where that was the last one, or "" where nothing else waits. With
// a filter it is of those that the filter shows.
func (s *Server) nextAfter(ctx context.Context, id string, query url.Values) (string, error) {
	got, err := read[approval](ctx, s, "/approvals", 200, "status", "pending")
	var rows []approvalRow
	shown, _ := filtered(s.rows(got.Items), query)
	kept := keptFilter(query)
	for _, g := range grouped(shown) {
		rows = append(rows, g.Rows...)
	}
	at := slices.IndexFunc(rows, func(r approvalRow) bool { return r.ApprovalID == id })
	switch {
	case at >= 0 && at+1 < len(rows):
		return "/approvals/" + rows[at+1].ApprovalID + kept, err
	case len(rows) > 1 || kept != "":
		return "/approvals" + kept, err
	}
	return "", err
}

// keptFilter is the filter of an inbox, for the addresses of its cards; "": there is none.
func keptFilter(query url.Values) string {
	kept := make(url.Values)
	for _, name := range []string{"risk", "actor"} {
		if query.Has(name) {
			kept.Set(name, query.Get(name))
		}
	}
	if len(kept) == 0 {
		return ""
	}
	return "?" + kept.Encode()
}

type approvalView struct {
	approvalRow
	Deed      string // what it asks for, as the rest of a sentence
	Text      sqlView
	Prepared  *sqlView  // what an EXECUTE runs
	Params    []sqlView // what $1, $2 and so on are
	Under     []sqlView // what the statement runs under besides
	Dangers   []meaning // gravest first
	Reach     string
	Estimate  string
	Closely   string // why to look, where nothing of the above says it
	Agent     *agentRecord
	Habits    map[string]int // the last decisions about its actor, by what they were
	Before    []precedent
	Approved  int // of those before
	Rejected  int
	Partly    bool // those before are not all that there were
	Execution *execution
	Tried     *auditEvent // when it was sent again last and ended before it was an execution
	Did       string      // what the database did, where it ran
	Events    []auditEvent
	Next      string // the one to decide after this
	Missing   []string
	Kept      string // the filter of the inbox that it was opened from
	Since     *since // what another policy says that is active by now
	Offer     int    // equal approvals of its agent within an hour, where a grant is offered; 0: none is
	Why       string // as the request says; "": it does not
}

// Unseen is unseen, for its page.
func (v approvalView) Unseen() string { return v.unseen() }

// Looked tells whether the catalogues were asked what it reaches.
func (v approvalView) Looked() bool { return len(v.Impact.tables()) > 0 }

// A precedent is an approval of the same shape.
type precedent struct {
	resolution
	ApprovalID, Actor string
	At                time.Time
	Same              bool       // its values are these, too
	Ended             auditEvent // how its execution ended, where it had one
}

// precedents is how far back earlier decisions are counted.
const precedents = 7 * 24 * time.Hour

// approval is the card: everything that a person needs to decide, and what
// became of it.
func (s *Server) approval(c *httpd.Call, p *page) error {
	ctx, _ := s.looking(c)
	a, err := fetch[approval](ctx, s, "/approvals/"+c.Params.ByName("id"), "reach", "now")
	if err != nil {
		return err
	}
	a.renew()
	v := approvalView{approvalRow: s.rows([]approval{a})[0], Text: s.shownSQL(a.SQL), Reach: reach(&a.Classification)}
	v.Estimate = v.estimated()
	if v.Since = s.sinceOf(ctx, &v.approvalRow, p.Policy); v.Since != nil && v.Since.MaxRows != nil {
		v.MaxRows = v.Since.MaxRows
		v.OverLimit = a.Impact != nil && a.Impact.Rows > *v.MaxRows
	}
	if a.PreparedSQL != "" {
		prepared := s.shownSQL(a.PreparedSQL)
		v.Prepared = &prepared
		v.Text.Warnings, prepared.Warnings = append(v.Text.Warnings, prepared.Warnings...), nil
	}
	v.Deed, v.Dangers = deed(&v.approvalRow), dangers(&v.approvalRow, v.Text.Warnings)
	v.Text.Warnings = nil // they stand above
	v.Closely = v.closely()
	for _, value := range a.Parameters {
		if runsUnder.MatchString(value) {
			v.Under = append(v.Under, viewSQL(value))
		} else {
			v.Params = append(v.Params, viewSQL(value))
		}
	}
	var all gather
	get := func(path string, query url.Values, answer any) error {
		raw, err := ask[json.RawMessage](ctx, s, request{path: path, query: query})
		if err != nil {
			return err
		}
		if err := json.Unmarshal(raw, answer); err != nil {
			return broken(err)
		}
		return nil
	}
	together(&all, ctx, func(context.Context) error { return s.precedents(get, &v) })
	together(&all, ctx, func(context.Context) error { return v.tried(get) })
	together(&all, ctx, func(context.Context) error { return v.told(get) })
	together(&all, ctx, func(ctx context.Context) error {
		got, err := read[auditEvent](ctx, s, "/audit", 40, "event_type", "decision_recorded", "actor", a.Context.Actor, "app", a.Context.App)
		v.Habits = make(map[string]int)
		last := slices.DeleteFunc(got.Items, func(e auditEvent) bool { return e.RequestID == a.RequestID || describes(e) })
		for _, e := range last[:min(len(last), 10)] {
			v.Habits[e.Decision]++
		}
		return err
	})
	together(&all, ctx, func(ctx context.Context) error {
		got, err := read[auditEvent](ctx, s, "/audit", 50, "approval_id", a.ApprovalID, "order", "asc")
		v.Events = got.Items
		for _, e := range got.Items {
			v.Did = cmp.Or(didWords(e), v.Did)
		}
		return err
	})
	if a.ExecutionID != "" {
		together(&all, ctx, func(ctx context.Context) error {
			return into(&v.Execution)(fetch[execution](ctx, s, "/executions/"+a.ExecutionID))
		})
	}
	if a.AgentID != "" {
		together(&all, ctx, func(ctx context.Context) error {
			_ = into(&v.Agent)(ask[agentRecord](ctx, s, request{path: "/v1/agents/" + a.AgentID, project: true})) // needs a key; the id is shown without
			return nil
		})
	}
	if a.Status == "pending" {
		together(&all, ctx, func(ctx context.Context) (err error) {
			v.Offer, err = s.offered(ctx, &a)
			return err
		})
		together(&all, ctx, func(ctx context.Context) (err error) {
			v.Next, err = s.nextAfter(ctx, a.ApprovalID, c.Request.URL.Query())
			return err
		})
	}
	v.Missing, v.Kept = all.wait(), keptFilter(c.Request.URL.Query())
	p.Title = v.Effect
	p.Live, p.Body = "policy_activated policy_rollback approval_resolved approval_expired approval_used execution_success execution_failure execution_state_unknown execution_outcome_resolved", v
	return nil
}

// told finds why the request was sent. The request stands two events before its approval, in the
// same append: by its id alone it might be another's, since clients choose those.
func (v *approvalView) told(get Get) error {
	var created, received list[auditEvent]
	err := get("/audit", url.Values{"approval_id": {v.ApprovalID}, "event_type": {"approval_created"}, "limit": {"1"}}, &created)
	if err != nil || len(created.Items) == 0 || created.Items[0].Seq < 3 {
		return err
	}
	at := strconv.FormatUint(created.Items[0].Seq-2, 10)
	if err := get("/audit", url.Values{"from_seq": {at}, "to_seq": {at}, "event_type": {"request_received"}, "limit": {"1"}}, &received); err != nil {
		return err
	}
	for _, e := range received.Items {
		if e.RequestID == v.RequestID {
			v.Why = cameBy(e).Reason
		}
	}
	return nil
}

// shownBefore is how many earlier decisions the card shows, with how each ended.
const shownBefore = 3

// precedents reads what became of approvals of the same shape, of the same tables.
func (s *Server) precedents(get Get, v *approvalView) error {
	if err := v.weigh(get, s.now()); err != nil {
		return err
	}
	for i := range v.Before[:min(len(v.Before), shownBefore)] {
		var ended list[auditEvent]
		err := get("/audit", url.Values{"approval_id": {v.Before[i].ApprovalID}, "limit": {"1"}, "event_type": {"execution_success", "execution_failure", "execution_state_unknown"}}, &ended)
		if err != nil {
			return err
		}
		if len(ended.Items) > 0 {
			v.Before[i].Ended = ended.Items[0]
		}
	}
	return nil
}

// A Get asks the gate for one thing and reads the answer.
type Get func(path string, query url.Values, answer any) error

// weigh reads what was decided of approvals of the same shape and the same tables.
// Decisions are asked for by themselves: no number of requests that only wait hides one.
func (v *approvalView) weigh(get Get, now time.Time) error {
	since := now.Add(-precedents).UTC().Format(time.RFC3339)
	events := func(eventType string) (got list[auditEvent], err error) {
		return got, get("/audit", url.Values{"fingerprint": {v.Fingerprint}, "since": {since}, "limit": {"200"}, "event_type": {eventType}}, &got)
	}
	v.Partly = true // until all is read
	decided, err := events("approval_resolved")
	if err != nil {
		return err
	}
	asked, err := events("approval_created")
	if err != nil {
		return err
	}
	alike, same := make(map[string]bool), make(map[string]bool)
	look := func(id string, c *classification, sql string, parameters []string) {
		alike[id] = v.like(c, sql)
		same[id] = slices.Equal(constants(sql), constants(v.SQL)) && slices.Equal(parameters, v.Parameters)
	}
	for _, e := range asked.Items {
		var asked struct {
			SQL, Classification string
			Parameters          []string
		}
		var c classification
		if json.Unmarshal(e.Payload, &asked) == nil && json.Unmarshal([]byte(asked.Classification), &c) == nil {
			look(e.ApprovalID, &c, asked.SQL, asked.Parameters)
		}
	}
	v.Partly = decided.Damaged != nil || decided.next() != ""
	lookups := 0
	for _, e := range decided.Items {
		r := resolved(e)
		if r.By == "" || e.ApprovalID == v.ApprovalID {
			continue
		}
		if _, known := alike[e.ApprovalID]; !known { // it was asked for before the requests that were read
			var a approval
			if lookups++; lookups > mostLookups || get("/approvals/"+url.PathEscape(e.ApprovalID), nil, &a) != nil {
				v.Partly = true
				continue
			}
			look(e.ApprovalID, &a.Classification, a.SQL, a.Parameters)
		}
		if !alike[e.ApprovalID] {
			continue
		}
		v.Before = append(v.Before, precedent{r, e.ApprovalID, e.Actor, e.Timestamp, same[e.ApprovalID], auditEvent{}})
		if r.Resolution == "approve" {
			v.Approved++
		} else {
			v.Rejected++
		}
	}
	return nil
}

// like tells whether a statement of the same fingerprint does the same with as many values:
// a fingerprint leaves out how many a list has.
func (v *approvalView) like(c *classification, sql string) bool {
	return effect(c, sql) == v.Effect && len(constants(sql)) == len(constants(v.SQL))
}

// constants are the strings and numbers of a text.
func constants(sql string) (all []string) {
	for _, p := range scanned(sql, nil).pieces {
		if p.Kind == "string" || p.Kind == "number" {
			all = append(all, p.Text)
		}
	}
	return all
}

// Other is how many of those before had other values.
func (v approvalView) Other() (n int) {
	for _, one := range v.Before {
		if !one.Same {
			n++
		}
	}
	return n
}

// Failed is how many of those approved that a card shows did not do what they were for.
func (v approvalView) Failed() (n int) {
	for _, one := range v.Before {
		if one.Ended.EventType == "execution_failure" {
			n++
		}
	}
	return n
}

// tried finds the newest attempt to use what can be used, where it ended before its dispatch:
// the record of an approval does not know of it.
func (v *approvalView) tried(get Get) error {
	since := cmp.Or(v.UsedAt, v.ResolvedAt)
	if !v.unused() || since == nil {
		return nil
	}
	var got list[auditEvent]
	err := get("/audit", url.Values{"approval_id": {v.ApprovalID}, "since": {since.UTC().Format(time.RFC3339Nano)}, "limit": {"20"}, "event_type": {"query_rejected", "decision_recorded", "execution_failure"}}, &got)
	if i := slices.IndexFunc(got.Items, func(e auditEvent) bool {
		return e.EventType == "query_rejected" && e.ReasonCode != "approval_pending" || e.Decision == "BLOCK" && !describes(e) || e.EventType == "execution_failure" && (e.ExecutionID == "" || e.ExecutionID != v.ExecutionID)
	}); i >= 0 {
		v.Tried = &got.Items[i]
	}
	return err
}

// mostLookups bounds how many approvals are looked up by themselves for a card.
const mostLookups = 20

// A Card is what the page of an approval says first, for who decides elsewhere.
type Card struct {
	Asks     string   // what for, as the rest of a sentence
	Risk     string   // as the inbox marks it
	Dangers  []Danger // what a person must not miss, gravest first
	Besides  []string // all tables and triggers that it reaches besides, where the dangers cut their list
	Expected string   // what the database expects; "" where it was not asked
	DryRun   []string // what it changed when it was tried, a line each; none: it was not
	Before   string   // what was decided of the same shape; "" where nothing was
	Why      string   // as the request says; "": it does not
	Tried    string   // when it was sent again and did not run, and why; "" where it was not
}

// A Danger is what a person must not miss of an approval.
type Danger struct {
	Words string
	Grave bool // high risk, or it will not run as it stands; else it is to be looked at
}

// CardOf is the card of a record of GET /approvals/{id}?reach=now.
func CardOf(record json.RawMessage, get Get, now time.Time) (Card, error) {
	var a approval
	if err := json.Unmarshal(record, &a); err != nil {
		return Card{}, broken(err)
	}
	a.renew()
	s := &Server{now: func() time.Time { return now }}
	v := approvalView{approvalRow: s.rows([]approval{a})[0]}
	card := Card{Asks: deed(&v.approvalRow), Risk: riskWords[v.Risk], Besides: v.Reaches(), Expected: v.estimated()}
	for _, m := range dangers(&v.approvalRow, slices.Concat(viewSQL(a.SQL).Warnings, viewSQL(a.PreparedSQL).Warnings)) {
		words := m.Name + ": " + m.Words
		if m.Subjects != "" {
			words += " (" + m.Subjects + ")"
		}
		card.Dangers = append(card.Dangers, Danger{words, m.Severity != "medium"})
	}
	if d := a.DryRun; d != nil {
		card.DryRun = append(card.DryRun, fmt.Sprintf("it %s; that is no promise. With max_rows %d it would just run", d.Words(), d.MaxRows))
		card.DryRun = append(card.DryRun, d.Counts()...)
		for _, t := range d.Shown.Tables {
			for _, row := range t.Before {
				card.DryRun = append(card.DryRun, t.Table+" before: "+triedRow(row))
			}
			for _, row := range t.After {
				card.DryRun = append(card.DryRun, t.Table+" behind: "+triedRow(row))
			}
		}
	}
	if err := v.weigh(get, now); err != nil {
		return Card{}, err
	}
	var before []string
	if len(v.Before) > 0 {
		before = append(before, fmt.Sprintf("%d approved and %d rejected in the last 7 days, of this shape and these tables", v.Approved, v.Rejected))
		if v.Partly {
			before[0] = "at least " + before[0]
		}
		if other := v.Other(); other > 0 {
			before = append(before, fmt.Sprintf("%d of these with other values", other))
		}
	}
	if v.Partly {
		before = append(before, "not all that was decided could be read")
	}
	card.Before = strings.Join(before, "; ")
	if err := v.tried(get); err != nil {
		return Card{}, err
	}
	if err := v.told(get); err != nil {
		return Card{}, err
	}
	card.Why = v.Why
	if e := v.Tried; e != nil {
		card.Tried = e.Timestamp.UTC().Format("2006-01-02 15:04:05 UTC") + ", and did not run: " + whyNot(*e) + "."
		if v.Usable() {
			card.Tried += " The approval may still be used."
		}
	}
	return card, nil
}

// deed is what an approval asks for, as the rest of a sentence.
func deed(r *approvalRow) string {
	said := strings.ToLower(r.Effect[:1]) + r.Effect[1:]
	if words := reach(&r.Classification); words != "" {
		said += " (" + words + ")"
	}
	if below := r.besides("child"); len(below) > 0 {
		said += ", with " + few(below) + " below it"
	}
	if emptied := r.besides("emptied"); len(emptied) > 0 {
		said += ": " + few(emptied)
	}
	if taken := r.besides("cascade"); len(taken) > 0 {
		said += " and, by cascade, from " + few(taken)
	}
	if ruled := r.besides("rule"); len(ruled) > 0 {
		said += ", where a rule may write " + few(ruled)
	}
	if read := r.Reads(); len(read) > 0 {
		said += ", reading " + few(read)
	}
	return said
}

// Reads are the tables that a statement reads besides those that it writes.
func (r approvalRow) Reads() []string {
	if len(r.Classification.TablesWritten) == 0 {
		return nil // then its effect names them
	}
	var names []string
	for _, t := range r.Classification.TablesRead {
		if !slices.Contains(r.Classification.TablesWritten, t) {
			names = append(names, tableNames([]string{t}))
		}
	}
	return names
}

// besides are the tables that a statement reaches in some ways without their names, or in
// any but by them.
func (r *approvalRow) besides(how ...string) (names []string) {
	for _, t := range r.Impact.tables() {
		if (slices.Contains(how, t.How) || len(how) == 0 && t.How != "named") && !slices.Contains(names, t.Table) {
			names = append(names, t.Table)
		}
	}
	return names
}

// Reaches are those tables, each with its size, and all triggers, where the dangers name a
// few of many.
func (v approvalView) Reaches() (all []string) {
	folded := false
	number := make(map[string]int)
	for _, t := range v.Impact.tables() {
		if t.How != "named" {
			all = append(all, t.Table+" ("+sizeOf(t)+")")
			number[t.How]++
			folded = folded || number[t.How] > 3
		}
		for _, trigger := range t.Triggers {
			all = append(all, t.Table+" fires "+trigger)
			number["trigger"]++
			folded = folded || number["trigger"] > 3
		}
	}
	if !folded {
		return nil
	}
	return all
}

// dangers are what a person must not miss, gravest first.
func dangers(r *approvalRow, warnings []string) []meaning {
	list := expected(r)
	if n := r.Renewed; n != nil && len(n.Changed) > 0 {
		list = append(list, meaning{"Changed since it was asked for", "high", strings.Join(n.Changed, " "), ""})
	} else if n != nil && n.Failed != "" && len(r.Impact.tables()) > 0 {
		list = append(list, meaning{"Not looked at again", "medium", "What it reaches is as it was when it was asked for: " + n.Failed + ".", ""})
	}
	if why := r.unlooked(); why != "" {
		list = append(list, meaning{"Not looked at", "medium", "Whether it cascades, or fires triggers, is not known: " + why + ".", ""})
	}
	for _, words := range r.Claims {
		list = append(list, meaning{"A claim is written to be misread", "high", words, ""})
	}
	if len(warnings) > 0 { // one line, for the statement stands below them
		list = append(list, meaning{"Read with care", "medium", strings.Join(warnings, " "), ""})
	}
	changed, noRights := changeDangers(&r.Classification, r.SQL)
	list = append(list, changed...)
	for _, m := range meanings(&r.Classification) {
		if m.Name == "privilege_change" && noRights {
			continue
		}
		if words := r.cascades(); m.Name == "cascade" && words != "" {
			m.Severity, m.Words = "high", words
		}
		list = append(list, m)
	}
	if !slices.ContainsFunc(list, func(m meaning) bool { return m.Name == "write_without_where" || m.Name == "tautological_where" }) &&
		(slices.Contains(r.Classification.Where, "none") || slices.Contains(r.Classification.Where, "tautology")) {
		list = append(list, meaning{"Every row", "high", "A part of it touches every row.", ""})
	}
	var ways, triggers []string
	taken, from := make(map[string][]string), make(map[string][]string)
	for _, t := range r.Impact.tables() {
		if takenWords[t.How][0] != "" && !(t.How == "view" && r.Classification.Class == "ddl") { // which changes the view, and nothing behind it
			if len(taken[t.How]) == 0 {
				ways = append(ways, t.How)
			}
			more := perRow(r.Impact.each(t))
			if t.Table == t.From {
				more = ", and those that belong to them, and so on"
			}
			taken[t.How] = append(taken[t.How], fmt.Sprintf("%s (%s%s)", t.Table, sizeOf(t), more))
			if !slices.Contains(from[t.How], t.From) {
				from[t.How] = append(from[t.How], t.From)
			}
		}
		for _, trigger := range t.Triggers {
			triggers = append(triggers, fmt.Sprintf("A write of %s fires %s.", t.Table, trigger))
		}
	}
	for _, how := range ways { // one line for each, however many tables there are
		severity := "medium"
		if how == "emptied" || how == "rule" { // of which the text says nothing
			severity = "high"
		}
		list = append(list, meaning{takenWords[how][0], severity, fmt.Sprintf("Rows of %s %s %s.", few(taken[how]), takenWords[how][1], few(from[how])), ""})
	}
	switch n := len(triggers); {
	case n == 1:
		list = append(list, meaning{"Trigger", "medium", triggers[0] + " It may write elsewhere.", ""})
	case n > 1:
		words := strings.Join(triggers[:min(n, 3)], " ")
		if n > 3 {
			words += " " + plural(n-3, "more fires.", "more fire.")
		}
		list = append(list, meaning{"Triggers", "medium", words + " They may write elsewhere.", ""})
	}
	if p := r.Impact; p != nil && p.More > 0 {
		list = append(list, meaning{"More than is listed", "high", fmt.Sprintf("It reaches %s besides, which are not listed.", plural(p.More, "more table", "more tables")), ""})
	}
	for _, words := range advice(&r.Classification, r.SQL) {
		list = append(list, meaning{"While it runs", "medium", words, ""})
	}
	for i := range list {
		list[i].Name = capital(signalNames.Replace(list[i].Name))
	}
	slices.SortStableFunc(list, func(a, b meaning) int { return cmp.Compare(severityRank[b.Severity], severityRank[a.Severity]) })
	return list
}
