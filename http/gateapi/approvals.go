package gateapi

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"writegate/commands"
	"writegate/commands/fault"
	"writegate/http/httpd"
	"writegate/projections"
	"writegate/sqlgate"
	"writegate/sqlgate/classify"
	"writegate/sqlgate/pgexec"
	"writegate/sqlgate/policy"
)

// ApprovalBody is an approval record (spec/gate.md part 2.4 and
// spec/decisions.md part 5).
type ApprovalBody struct {
	ApprovalID     string          `json:"approval_id"`
	Status         string          `json:"status"`
	Resolution     *string         `json:"resolution"`
	SQL            string          `json:"sql"`
	PreparedSQL    *string         `json:"prepared_sql"`
	Parameters     []string        `json:"parameters"`
	Classification json.RawMessage `json:"classification"`
	Context        claimsBody      `json:"context"`
	CreatedAt      *string         `json:"created_at"`
	ExpiresAt      *string         `json:"expires_at"`
	ResolvedAt     *string         `json:"resolved_at"`
	ResolvedBy     *string         `json:"resolved_by"`
	Note           *string         `json:"note"`
	Profile        string          `json:"execution_profile"`
	Fingerprint    string          `json:"fingerprint"`
	PolicyVersion  string          `json:"policy_version"`
	ReasonCode     string          `json:"reason_code"`
	RuleID         string          `json:"rule_id"`
	DecidedBy      decidedBy       `json:"decided_by"`
	Message        *string         `json:"message"` // of the rule
	MaxRows        *int64          `json:"max_rows"`
	Principal      *string         `json:"principal"`
	AgentID        *string         `json:"agent_id"`
	Impact         json.RawMessage `json:"impact"`
	ReachedNow     json.RawMessage `json:"reached_now,omitempty"`     // for operators who ask for it
	OverLimit      bool            `json:"estimate_exceeds_max_rows"` // as Impact, for operators
	NotCountable   string          `json:"not_countable,omitempty"`
	Use            string          `json:"use"` // free, used or unknown
	ExecutionID    *string         `json:"execution_id"`
	ExecutionState *string         `json:"execution_state,omitempty"` // of that execution, where it is still known
	UsedAt         *string         `json:"used_at"`
	RequestID      string          `json:"request_id"`
	Withdrawn      bool            `json:"withdrawn"`
}

// decidedBy names the layer that asks and its rule (spec/v1.md part 7).
type decidedBy struct {
	Layer         string `json:"layer"`
	PolicyVersion string `json:"policy_version,omitempty"`
	PolicyID      string `json:"policy_id,omitempty"`
	RuleID        string `json:"rule_id"`
}

// claimsBody is the request context of an approval: unverified claims.
type claimsBody struct {
	Actor     string `json:"actor"`
	App       string `json:"app"`
	Tenant    string `json:"tenant"`
	Role      string `json:"role"`
	Host      string `json:"host"`
	Env       string `json:"env"`
	SessionID string `json:"session_id"`
}

// ApprovalBody is an approval as the operator of a label sees it; "" is everybody else.
func (a *api) approvalBody(p *projections.Approval, label string) ApprovalBody {
	by := decidedBy{Layer: policy.LayerPolicy, PolicyVersion: p.PolicyVersion, RuleID: p.RuleID}
	if p.AgentPolicyID != "" {
		by = decidedBy{Layer: policy.LayerAgent, PolicyID: p.AgentPolicyID, RuleID: p.RuleID}
	}
	impact, over := a.impactOf(p, label, false)
	return ApprovalBody{
		ApprovalID: p.ID, Status: p.StatusAt(a.Now()), Resolution: optional(p.Resolution), SQL: p.SQL, PreparedSQL: optional(p.PreparedSQL), Parameters: orNone(p.Parameters),
		Classification: json.RawMessage(p.Classification),
		Context:        claimsBody{p.Actor, p.App, p.Tenant, p.Role, p.Host, p.Env, p.SessionID},
		CreatedAt:      timestamp(p.CreatedAt), ExpiresAt: timestamp(p.ExpiresAt), ResolvedAt: timestamp(p.ResolvedAt),
		ResolvedBy: optional(p.ResolvedBy), Note: optional(p.Note), Profile: cmp.Or(p.Profile, sqlgate.ProfileDefault), Fingerprint: p.Fingerprint, PolicyVersion: p.PolicyVersion,
		ReasonCode: p.ReasonCode, RuleID: p.RuleID, DecidedBy: by, Message: optional(p.Message), MaxRows: p.MaxRows, Principal: optional(p.Principal), AgentID: optional(p.AgentID), ExecutionID: optional(p.ExecutionID), UsedAt: timestamp(p.UsedAt),
		RequestID: p.RequestID, Impact: impact, OverLimit: over, NotCountable: notCountable(p), Use: cmp.Or(string(p.Use), "free"), Withdrawn: p.Withdrawn != "",
	}
}

// approvalAnswer is approvalBody with how its execution stands.
func (a *api) approvalAnswer(view *projections.View, p *projections.Approval, label string) (ApprovalBody, error) {
	b := a.approvalBody(p, label)
	if p.ExecutionID == "" {
		return b, nil
	}
	x, found, err := view.Execution(p.ExecutionID)
	if found {
		b.ExecutionState = &x.State
	}
	return b, err
}

// notCountable is sqlgate.Uncounted of an approval's statement, whatever its limit: that of
// a policy that becomes active later binds it, too.
func notCountable(p *projections.Approval) string {
	var c classify.Classification
	if json.Unmarshal([]byte(p.Classification), &c) != nil || c.Run == "" || c.Run == classify.RunNone || policy.SessionControl(c.QueryType) {
		return "" // of an earlier form, or nothing that is sent as it is
	}
	return sqlgate.Uncounted(&c, cmp.Or(p.PreparedSQL, p.SQL))
}

func orNone(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}

// impactOf is what an operator is shown of what a statement would do, since it tells what is in
// the tables; null for others, and where nothing is known. While it is pending that is what its
// last dry run has found, too, and with rows the rows of it. over reports whether a dry run, or
// else PostgreSQL's estimate, has more rows than the approval lets change: it would be rolled back.
func (a *api) impactOf(p *projections.Approval, label string, rows bool) (impact json.RawMessage, over bool) {
	null := json.RawMessage("null")
	if label == "" {
		return null, false
	}
	fields := map[string]json.RawMessage{"tables": null}
	known := p.Impact != "" && json.Unmarshal([]byte(p.Impact), &fields) == nil
	impact = json.RawMessage(p.Impact)
	if p.StatusAt(a.Now()) == projections.StatusPending {
		if o := a.Gate.DryRunOf(p.RequestDigest, p.ExpiresAt); o != nil {
			if !rows {
				o.Shown = nil
			}
			if text, err := json.Marshal(o); err == nil {
				fields["dry_run"] = text
			}
			if text, err := json.Marshal(fields); err == nil {
				impact, known = text, true
			}
		}
	}
	if !known {
		return null, false
	}
	var of struct {
		pgexec.Plan
		DryRun *sqlgate.DryRunOutcome `json:"dry_run"`
	}
	if p.MaxRows == nil || json.Unmarshal(impact, &of) != nil {
		return impact, false
	}
	if of.DryRun != nil {
		return impact, of.DryRun.RowsChanged > *p.MaxRows
	}
	return impact, of.Rows > *p.MaxRows
}

var approvalStatuses = []string{"", "pending", "expired", "resolved", "approved", "rejected"}

// listApprovals is GET /approvals.
func (a *api) listApprovals(c *httpd.Call) error {
	query, page, err := readList(c, "status", "env", "app", "actor")
	if err != nil {
		return err
	}
	filter := projections.ApprovalFilter{
		Status: query.Get("status"), Env: query.Get("env"), App: query.Get("app"), Actor: query.Get("actor"), Now: a.Now(),
	}
	if !slices.Contains(approvalStatuses, filter.Status) {
		return fieldFault("status", "must be pending, expired, resolved, approved or rejected")
	}
	if unknown := map[string]string{}; !closedSet(unknown, "env", filter.Env, environments...) {
		return httpd.Invalid(unknown)
	}
	label, err := c.OperatorLabel()
	if err != nil {
		return err
	}
	view := a.Store.ViewWithin(c.Request.Context())
	defer view.Close()
	list := c.NewList()
	next, err := view.EachApproval(filter, page, func(p *projections.Approval) (bool, error) {
		b, err := a.approvalAnswer(view, p, label)
		if err != nil {
			return false, err
		}
		return list.Add(b)
	})
	return sendList(list, view, next, err)
}

// longestWait is the most of ?wait, in seconds.
const longestWait = int(sqlgate.LongestApprovalWait / time.Second)

// NewWaits bounds how many requests and statements wait for approvals at once, and how many
// of one client.
func NewWaits() httpd.Shares { return httpd.NewShares(256, 64) }

// getApproval is GET /approvals/:approval_id. With ?wait=SECONDS the answer of one that is
// pending comes when it is no more, or when so much time is over. With ?reach=now an operator
// learns what one that is pending reaches now: impact is of the moment when it was asked for.
func (a *api) getApproval(c *httpd.Call) error {
	label, err := c.OperatorLabel()
	if err != nil {
		return err
	}
	query, err := c.Query("wait", "reach")
	if err != nil {
		return err
	}
	if unknown := map[string]string{}; !closedSet(unknown, "reach", query.Get("reach"), "now") {
		return httpd.Invalid(unknown)
	}
	if text := query.Get("wait"); text != "" {
		seconds, err := strconv.Atoi(text)
		if err != nil || seconds < 0 || seconds > longestWait {
			return fieldFault("wait", fmt.Sprintf("must be a number of seconds from 0 to %d", longestWait))
		}
		release, err := a.Waits.Take(c, "requests that wait for an approval", 1)
		if err != nil {
			return err
		}
		c.Await(func(ctx context.Context) {
			defer release()
			ctx, cancel := context.WithTimeout(ctx, time.Duration(seconds)*time.Second)
			defer cancel()
			defer context.AfterFunc(a.Stopping, cancel)()
			a.Commands.AwaitResolution(ctx, c.Params.ByName("approval_id"))
		})
	}
	view := a.Store.ViewWithin(c.Request.Context())
	defer view.Close()
	id := c.Params.ByName("approval_id")
	p, found, err := view.Approval(id)
	switch {
	case err != nil:
		return commands.ViewFault(err)
	case !found:
		return fault.New(fault.ApprovalNotFound, "There is no approval with this id; an expired one may have been purged. GET /approvals lists those that there are.").With("approval_id", id)
	}
	b, err := a.approvalAnswer(view, &p, label)
	if err != nil {
		return commands.ViewFault(err)
	}
	b.Impact, _ = a.impactOf(&p, label, true)
	var of classify.Classification
	if label != "" && query.Get("reach") == "now" && b.Status == projections.StatusPending && json.Unmarshal(b.Classification, &of) == nil {
		view.Close()
		c.Await(func(ctx context.Context) { b.ReachedNow = a.Gate.ReachedNow(ctx, p.SQL, &of) })
	}
	c.JSON(http.StatusOK, b)
	return nil
}

type resolveBody struct {
	Decision string `json:"decision"`
	Note     string `json:"note"`
}

// resolveApproval is POST /approvals/:approval_id/resolve. The evidence is
// durable before the answer.
func (a *api) resolveApproval(c *httpd.Call) error {
	var body resolveBody
	if err := c.Decode(&body); err != nil {
		return err
	}
	p, err := a.Commands.ResolveApproval(c.Request.Context(), commands.ResolveApproval{
		ID: c.Params.ByName("approval_id"), Decision: body.Decision, Note: body.Note, By: c.Operator(),
	})
	if err != nil {
		return err
	}
	c.JSON(http.StatusOK, a.approvalBody(&p, c.Operator()))
	return nil
}

// onlyOf serves a POST to the one word that stands where an id does, such as POST
// /approvals/purge, which httprouter cannot tell from the id of an approval, and refuses the
// method for every id.
func onlyOf(param, word string, serve httpd.Handler) httpd.Handler {
	return func(c *httpd.Call) error {
		if c.Params.ByName(param) != word {
			return httpd.NotAllowed(c, http.MethodGet, http.MethodHead)
		}
		return serve(c)
	}
}

// purgeApprovals is POST /approvals/purge.
func (a *api) purgeApprovals(c *httpd.Call) error {
	if err := c.Decode(&struct{}{}); err != nil {
		return err
	}
	purged, err := a.Commands.PurgeApprovals(c.Request.Context(), c.Operator())
	if err != nil {
		return err
	}
	c.JSON(http.StatusOK, map[string]int{"purged": purged})
	return nil
}
