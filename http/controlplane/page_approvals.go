package controlplane

import (
	"cmp"
	"context"
	"regexp"
	"slices"
	"time"

	"writegate/http/httpd"
)

// runsUnder finds what stands behind an approval's parameters and is none (parameters in
// docs/openapi.yaml). A parameter is a constant, so none begins like that.
var runsUnder = regexp.MustCompile(`^(TimeZone = |types of the parameters: |\d+ more before these in its transaction$|before it in its transaction[:,] )`)

// inboxLimit is how many pending approvals a page of the inbox has.
const inboxLimit = 1000

// An approvalRow is an approval in a list.
type approvalRow struct {
	approval
	Effect string
	Risk   string
	Left   int64 // seconds
	Line   sqlView
	Claims []string // what is wrong with the letters of its claims
	rank   int
}

func (s *Server) rows(items []approval) []approvalRow {
	rows := make([]approvalRow, len(items))
	for i, a := range items {
		r := approvalRow{approval: a, Effect: effect(&a.Classification, a.SQL), Left: remaining(a.ExpiresAt, s.now()), Line: viewSQL(cutRunes(a.SQL, 400)), rank: risk(&a.Classification)}
		for _, claim := range []string{a.Context.Actor, a.Context.App, a.Context.Tenant, a.Context.Role, a.Context.Host, a.Context.Env, a.Context.SessionID} {
			r.Claims = append(r.Claims, viewClaim(claim).Warnings...)
		}
		if len(r.Claims) > 0 {
			r.rank = max(r.rank, misleading)
		}
		r.Risk = riskWord(r.rank)
		rows[i] = r
	}
	return rows
}

// A group is the approvals of one shape of statement.
type group struct {
	Fingerprint string
	Rows        []approvalRow
	rank        int
	newest      time.Time
}

type approvalsView struct {
	Tab     string
	Groups  []group
	Count   int
	History []approvalRow
	Next    string
}

// approvals is the inbox, or what became of earlier ones.
func (s *Server) approvals(c *httpd.Call, p *page) error {
	query := c.Request.URL.Query()
	v := approvalsView{Tab: query.Get("show")}
	ctx := c.Request.Context()
	switch v.Tab {
	case "approved", "rejected", "expired":
		got, err := read[approval](ctx, s, "/approvals", 50, "status", v.Tab, "cursor", query.Get("cursor"))
		if err != nil {
			return err
		}
		v.History, v.Next = s.rows(got.Items), got.next()
	default:
		v.Tab = "pending"
		got, err := read[approval](ctx, s, "/approvals", inboxLimit, "status", "pending", "cursor", query.Get("cursor"))
		if err != nil {
			return err
		}
		v.Groups, v.Count, v.Next = grouped(s.rows(got.Items)), len(got.Items), got.next()
	}
	p.Live, p.Body = "approval_created approval_resolved approval_expired approval_used approvals_purged", v
	return nil
}

// grouped puts statements of one shape together: those with the highest risk
// first, and of equal risk the newest.
func grouped(rows []approvalRow) []group {
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
		g.Rows, g.rank = append(g.Rows, r), max(g.rank, r.rank)
		if r.CreatedAt.After(g.newest) {
			g.newest = r.CreatedAt
		}
	}
	for _, g := range groups {
		slices.SortStableFunc(g.Rows, func(a, b approvalRow) int { return b.CreatedAt.Compare(a.CreatedAt) })
	}
	slices.SortStableFunc(groups, func(a, b group) int { return cmp.Or(cmp.Compare(b.rank, a.rank), b.newest.Compare(a.newest)) })
	return groups
}

type approvalView struct {
	approvalRow
	Text      sqlView
	Prepared  *sqlView  // what an EXECUTE runs
	Params    []sqlView // what $1, $2 and so on are
	Under     []sqlView // what the statement runs under besides
	Meanings  []meaning
	Advice    []string
	Reach     string
	Estimate  string
	Similar   []auditEvent
	Execution *execution
	Events    []auditEvent
	Missing   []string
}

// approval is the card: everything that a person needs to decide, and what
// became of it.
func (s *Server) approval(c *httpd.Call, p *page) error {
	ctx := c.Request.Context()
	a, err := fetch[approval](ctx, s, "/approvals/"+c.Params.ByName("id"))
	if err != nil {
		return err
	}
	v := approvalView{approvalRow: s.rows([]approval{a})[0], Text: s.shownSQL(a.SQL), Meanings: meanings(&a.Classification),
		Advice: advice(&a.Classification), Reach: reach(&a.Classification), Estimate: estimate(a.Impact)}
	if a.PreparedSQL != "" {
		prepared := s.shownSQL(a.PreparedSQL)
		v.Prepared = &prepared
	}
	for _, value := range a.Parameters {
		if runsUnder.MatchString(value) {
			v.Under = append(v.Under, viewSQL(value))
		} else {
			v.Params = append(v.Params, viewSQL(value))
		}
	}
	var all gather
	together(&all, ctx, func(ctx context.Context) error {
		got, err := read[auditEvent](ctx, s, "/audit", 15, "event_type", "decision_recorded", "fingerprint", a.Fingerprint)
		for _, e := range got.Items {
			if e.RequestID != a.RequestID && e.ApprovalID != a.ApprovalID && len(v.Similar) < 10 {
				v.Similar = append(v.Similar, e)
			}
		}
		return err
	})
	together(&all, ctx, func(ctx context.Context) error {
		got, err := read[auditEvent](ctx, s, "/audit", 50, "approval_id", a.ApprovalID, "order", "asc")
		v.Events = got.Items
		return err
	})
	if a.ExecutionID != "" {
		together(&all, ctx, func(ctx context.Context) error {
			return into(&v.Execution)(fetch[execution](ctx, s, "/executions/"+a.ExecutionID))
		})
	}
	v.Missing = all.wait()
	p.Title = v.Effect
	p.Live, p.Body = "approval_resolved approval_expired approval_used execution_success execution_failure execution_state_unknown execution_outcome_resolved", v
	return nil
}
