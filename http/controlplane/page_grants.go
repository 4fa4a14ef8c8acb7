package controlplane

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"writegate/commands/fault"
	"writegate/http/httpd"
)

// A grant as GET /grants has it (docs/openapi.yaml).
type grant struct {
	GrantID      string     `json:"grant_id"`
	Status       string     `json:"status"`
	AgentID      string     `json:"agent_id"`
	Condition    string     `json:"condition"`
	CreatedAt    time.Time  `json:"created_at"`
	CreatedBy    string     `json:"created_by"`
	Until        time.Time  `json:"until"`
	Reason       string     `json:"reason"`
	Uses         int64      `json:"uses"`
	UsesLeft     int64      `json:"uses_left"`
	Rows         int64      `json:"rows"`
	RowsLeft     int64      `json:"rows_left"`
	RowsChanged  int64      `json:"rows_changed"`
	RowsReserved int64      `json:"rows_reserved"`
	LastUsedAt   *time.Time `json:"last_used_at"`
	RevokedAt    *time.Time `json:"revoked_at"`
	RevokedBy    string     `json:"revoked_by"`
	Note         string     `json:"note"`
	Withdrawn    bool       `json:"withdrawn"`
}

// grantEvents have the pages of grants look again.
const grantEvents = "grant_created grant_used grant_revoked grant_expired"

var grantStatuses = []string{"active", "used_up", "expired", "revoked"}

type grantsView struct {
	Status   string
	Statuses []string
	Items    []grant
	Names    map[string]string // of agents, by id
	Next     string
	Takes    bool // a rule of the policy in force takes grants
}

// grants lists what operators gave ahead.
func (s *Server) grants(c *httpd.Call, p *page) error {
	ctx := c.Request.Context()
	query := c.Request.URL.Query()
	v := grantsView{Status: query.Get("status"), Statuses: grantStatuses, Takes: s.longestGrant(ctx) > 0}
	got, err := read[grant](ctx, s, "/grants", 50, "status", v.Status, "cursor", query.Get("cursor"))
	if err != nil {
		return err
	}
	v.Items, v.Next = got.Items, got.next()
	named := s.agentNames(ctx)
	v.Names = make(map[string]string)
	for _, g := range v.Items {
		v.Names[g.AgentID] = named(g.AgentID)
	}
	p.Live, p.Body = grantEvents+" execution_success execution_failure execution_outcome_resolved", v
	return nil
}

// longestGrant is for how many seconds the policy in force takes a grant at most; 0: it takes
// none, or that is not known.
func (s *Server) longestGrant(ctx context.Context) int {
	status, err := fetch[policyStatus](ctx, s, "/policy/status")
	if err != nil {
		return 0
	}
	return status.GrantSeconds
}

type grantView struct {
	grant
	Agent   string // its name, or its id
	Used    []grantUse
	More    bool // there are uses before these
	Missing []string
	Events  []auditEvent // of the grant itself
}

// A grantUse is a statement that ran under a grant.
type grantUse struct {
	auditEvent
	Use  int   // the how many-eth
	Kept int64 // rows that were kept for it
	Ran  *execution
	Did  string
}

// shownUses is how many uses of a grant its page shows, the newest first, and of how many of
// them it says what became of them.
const (
	shownUses = 50
	toldUses  = 20
)

// grant is one of them: what is left of it, and what ran under it.
func (s *Server) grant(c *httpd.Call, p *page) error {
	ctx := c.Request.Context()
	g, err := fetch[grant](ctx, s, "/grants/"+c.Params.ByName("id"))
	if err != nil {
		return err
	}
	v := grantView{grant: g, Agent: s.agentNames(ctx)(g.AgentID)}
	var all gather
	together(&all, ctx, func(ctx context.Context) error {
		got, err := read[auditEvent](ctx, s, "/audit", 500, "agent_id", g.AgentID, "event_type", "grant_used", "since", g.CreatedAt.Format(time.RFC3339Nano))
		for _, e := range got.Items {
			var used struct {
				GrantID string `json:"grant_id"`
				Use     int    `json:"use"`
				Rows    int64  `json:"rows"`
			}
			if json.Unmarshal(e.Payload, &used) == nil && used.GrantID == g.GrantID {
				v.Used = append(v.Used, grantUse{auditEvent: e, Use: used.Use, Kept: used.Rows})
			}
		}
		v.More = got.next() != "" || len(v.Used) > shownUses
		v.Used = v.Used[:min(len(v.Used), shownUses)]
		return err
	})
	together(&all, ctx, func(ctx context.Context) error {
		got, err := read[auditEvent](ctx, s, "/audit", 200, "agent_id", g.AgentID, "event_type", "grant_created", "event_type", "grant_revoked", "event_type", "grant_expired", "since", g.CreatedAt.Format(time.RFC3339Nano), "order", "asc")
		for _, e := range got.Items {
			var of struct {
				GrantID string `json:"grant_id"`
			}
			if json.Unmarshal(e.Payload, &of) == nil && of.GrantID == g.GrantID {
				v.Events = append(v.Events, e)
			}
		}
		return err
	})
	v.Missing = all.wait()
	for i := range v.Used[:min(len(v.Used), toldUses)] {
		together(&all, ctx, func(ctx context.Context) error {
			return into(&v.Used[i].Ran)(fetch[execution](ctx, s, "/executions/"+v.Used[i].ExecutionID))
		})
	}
	v.Missing = append(v.Missing, all.wait()...)
	p.Title = "Grant " + short(g.GrantID)
	p.Live, p.Body = grantEvents+" execution_success execution_failure execution_state_unknown execution_outcome_resolved", v
	return nil
}

type grantNewView struct {
	Form     map[string]string
	Agents   []agentRecord // to choose from; none: the id is typed
	Agent    string        // the name of the one chosen, or its id
	Spans    []int         // minutes, as long as the policy takes them
	Takes    bool
	Report   *coverage // what it would have covered; nil: nothing was asked
	Problem  string
	Approval string // that it was offered at
}

// A coverage is what a grant would have covered (POST /grants/replay).
type coverage struct {
	Evaluated    int            `json:"evaluated"`
	Unreplayable int            `json:"unreplayable"`
	Complete     bool           `json:"complete"`
	Covered      int            `json:"covered"`
	ByRule       map[string]int `json:"by_rule"`
	Statements   []struct {
		Seq           uint64    `json:"seq"`
		At            time.Time `json:"timestamp"`
		RequestID     string    `json:"request_id"`
		Recorded      string    `json:"recorded"`
		RuleID        string    `json:"rule_id"`
		QueryType     string    `json:"query_type"`
		TablesWritten []string  `json:"tables_written"`
	} `json:"statements"`
}

// grantFields are those of the form, with what they are when nobody fills them in.
var grantFields = []struct{ name, value string }{{"agent_id", ""}, {"condition", ""}, {"minutes", "60"}, {"uses", "10"}, {"rows", "10"}, {"reason", ""}}

// grantSpans are for how long a grant is offered, in minutes.
var grantSpans = []int{15, 60, 240, 480, 1440, 7 * 1440, 30 * 1440}

// grantNewPage begins a grant, filled in where it was offered at an approval.
func (s *Server) grantNewPage(c *httpd.Call, p *page) error {
	form := formValues{}
	id := c.Request.URL.Query().Get("approval")
	if id != "" {
		a, err := fetch[approval](c.Request.Context(), s, "/approvals/"+id)
		if err != nil {
			return err
		}
		condition := grantCondition(&a.Classification)
		if condition == "" || a.AgentID == "" {
			return fault.New(fault.ValidationFailed, "No grant can be filled in from this approval: it is no agent's, or what it does can't be told by names. Write the condition by hand, on the page of grants.")
		}
		form.Values = map[string][]string{"agent_id": {a.AgentID}, "condition": {condition}, "minutes": {"60"}, "approval": {id}}
	} else if agent := c.Request.URL.Query().Get("agent"); agent != "" {
		form.Values = map[string][]string{"agent_id": {agent}}
	}
	return s.grantNew(c, p, form)
}

// grantNew shows what a grant would have covered in the last day. Nothing is written: it is
// given by the script of the page, as it was replayed.
func (s *Server) grantNew(c *httpd.Call, p *page, form formValues) error {
	ctx := c.Request.Context()
	longest := s.longestGrant(ctx)
	v := grantNewView{Form: make(map[string]string), Takes: longest > 0, Approval: form.text("approval")}
	for _, f := range grantFields {
		v.Form[f.name] = f.value
		if form.Has(f.name) {
			v.Form[f.name] = strings.ReplaceAll(form.text(f.name), "\r\n", "\n") // what a browser makes of the lines of a text box
		}
	}
	for _, minutes := range grantSpans {
		if minutes*60 <= longest {
			v.Spans = append(v.Spans, minutes)
		}
	}
	if len(v.Spans) == 0 && longest >= 60 {
		v.Spans = []int{longest / 60}
	}
	if got, err := projectList[agentRecord](ctx, s, "/v1/agents", agentsLimit); err == nil {
		v.Agents = got.Items
	}
	v.Agent = v.Form["agent_id"]
	if i := slices.IndexFunc(v.Agents, func(a agentRecord) bool { return a.ID == v.Agent }); i >= 0 {
		v.Agent = v.Agents[i].Name
	} else if v.Agent != "" {
		v.Agents = nil // one that is not in the list is typed
	}
	p.Body = &v
	if v.Form["condition"] == "" || v.Form["agent_id"] == "" {
		return nil
	}
	for _, name := range []string{"minutes", "uses", "rows"} {
		if n, err := strconv.ParseInt(v.Form[name], 10, 64); err != nil || n < 0 || n < 1 && name != "rows" {
			v.Problem = fmt.Sprintf("%s must be a whole number%s.", capital(name), map[bool]string{true: "", false: " from 1 on"}[name == "rows"])
			return nil
		}
	}
	minutes, _ := strconv.Atoi(v.Form["minutes"])
	report, err := s.covered(ctx, v.Form["agent_id"], v.Form["condition"], minutes*60, "24h")
	if err != nil {
		v.Problem = wordsOf(err)
		return nil
	}
	v.Report = &report
	return nil
}

// covered asks the gate which statements of an agent a grant would have covered.
func (s *Server) covered(ctx context.Context, agent, condition string, seconds int, last string) (coverage, error) {
	body, err := jsonBody(map[string]any{"agent_id": agent, "condition": condition, "seconds": seconds, "replay": map[string]string{"last": last}})
	if err != nil {
		return coverage{}, err
	}
	return ask[coverage](ctx, s, request{method: http.MethodPost, path: "/grants/replay", body: body, media: "application/json"})
}

// plainFact is a fact that can stand in a condition as it is; what stands for objects without
// their names (?.*) can't, and a star at the end is the whole of a table's columns.
var plainFact = regexp.MustCompile(`^[\p{L}_][\p{L}\p{N}_$ ]*(\.[\p{L}_][\p{L}\p{N}_$ ]*)*(\.\*)?$`)

// mostOffered is how many names of one kind a condition is filled in with.
const mostOffered = 20

// grantCondition is the condition of a grant that covers what does exactly as a classification
// says, with other values; "" where none should be offered. It never goes by the fingerprint, and by
// no claim of the client's: by the verbs, tables, columns and functions, and what binds the rows.
func grantCondition(c *classification) string {
	if c.Class != "write" || len(c.RiskSignals) > 0 || len(c.TablesWritten) == 0 || len(c.QueryTypes) == 0 {
		return ""
	}
	parts := []string{`class == "write"`, "size(risk_signals) == 0"}
	for _, fact := range []struct {
		name   string
		values []string
	}{{"query_types", c.QueryTypes}, {"tables_written", c.TablesWritten}, {"columns_written", c.ColumnsWritten}, {"tables_read", c.TablesRead}, {"functions", c.Functions}, {"where", c.Where}} {
		if len(fact.values) > mostOffered || slices.ContainsFunc(fact.values, func(v string) bool { return !plainFact.MatchString(v) }) {
			return ""
		}
		if len(fact.values) == 0 {
			parts = append(parts, "size("+fact.name+") == 0")
			continue
		}
		values := make([]string, len(fact.values))
		for i, v := range fact.values {
			values[i] = strconv.Quote(v)
		}
		parts = append(parts, fact.name+" == ["+strings.Join(values, ", ")+"]")
	}
	return strings.Join(parts, " && ")
}

// A grant is offered at the third equal approval of an agent within an hour.
const (
	equalApprovals = 3
	equalWithin    = time.Hour
)

// offered counts the equal approvals that an agent asked for within the hour before one that
// waits, itself included. It is 0 where no grant is offered: what can't be told by names, what
// the agent's own rules hold, where one of the equal was rejected, and where a grant would not
// have covered them: the rule that holds them has to take grants.
func (s *Server) offered(ctx context.Context, a *approval) (int, error) {
	condition := grantCondition(&a.Classification)
	if a.Status != "pending" || a.Withdrawn || a.AgentID == "" || a.DecidedBy.PolicyID != "" || condition == "" {
		return 0, nil
	}
	longest := s.longestGrant(ctx)
	if longest == 0 {
		return 0, nil
	}
	since := a.CreatedAt.Add(-equalWithin).UTC().Format(time.RFC3339Nano)
	asked, err := read[auditEvent](ctx, s, "/audit", 200, "event_type", "approval_created", "agent_id", a.AgentID, "since", since)
	if err != nil {
		return 0, err
	}
	equal := map[string]bool{}
	for _, e := range asked.Items {
		var created struct{ Classification string }
		var of classification
		if !e.Timestamp.After(a.CreatedAt) && json.Unmarshal(e.Payload, &created) == nil && json.Unmarshal([]byte(created.Classification), &of) == nil && grantCondition(&of) == condition {
			equal[e.ApprovalID] = true
		}
	}
	equal[a.ApprovalID] = true
	if len(equal) < equalApprovals {
		return 0, nil
	}
	decided, err := read[auditEvent](ctx, s, "/audit", 200, "event_type", "approval_resolved", "agent_id", a.AgentID, "since", since)
	if err != nil {
		return 0, err
	}
	for _, e := range decided.Items {
		if equal[e.ApprovalID] && cmp.Or(resolved(e).Resolution, "reject") != "approve" {
			return 0, nil
		}
	}
	would, err := s.covered(ctx, a.AgentID, condition, min(longest, int(equalWithin.Seconds())), "1h")
	if err != nil || would.Covered < equalApprovals {
		return 0, err
	}
	return len(equal), nil
}
