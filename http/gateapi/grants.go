package gateapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"time"

	"writegate/commands"
	"writegate/commands/fault"
	"writegate/eventlog/event"
	"writegate/http/httpd"
	"writegate/projections"
	"writegate/sqlgate"
	"writegate/sqlgate/policy"
)

// GrantBody is a grant: for a time and within a budget, statements of an agent that meet the
// condition need no approval of their own.
type GrantBody struct {
	GrantID      string  `json:"grant_id"`
	Status       string  `json:"status"` // active, used_up, expired, revoked
	AgentID      string  `json:"agent_id"`
	Project      string  `json:"project"`
	Condition    string  `json:"condition"`
	CreatedAt    *string `json:"created_at"`
	CreatedBy    string  `json:"created_by"`
	Until        *string `json:"until"`
	Reason       string  `json:"reason"`
	Uses         int     `json:"uses"`
	UsesLeft     int     `json:"uses_left"`
	Rows         int64   `json:"rows"`
	RowsLeft     int64   `json:"rows_left"`
	RowsChanged  int64   `json:"rows_changed"`
	RowsReserved int64   `json:"rows_reserved"` // kept for executions that run, or whose outcome is not known
	LastUsedAt   *string `json:"last_used_at"`
	RevokedAt    *string `json:"revoked_at"`
	RevokedBy    *string `json:"revoked_by"`
	Note         *string `json:"note"`
	Withdrawn    bool    `json:"withdrawn"`
}

func grantBody(g *projections.Grant, now time.Time) GrantBody {
	return GrantBody{GrantID: g.ID, Status: g.StatusAt(now), AgentID: g.AgentID, Project: g.Project, Condition: g.Condition,
		CreatedAt: timestamp(g.CreatedAt), CreatedBy: g.CreatedBy, Until: timestamp(g.Until), Reason: g.Reason,
		Uses: g.Uses, UsesLeft: g.UsesLeft(), Rows: g.Rows, RowsLeft: g.RowsLeft(), RowsChanged: g.Changed, RowsReserved: g.Reserved,
		LastUsedAt: timestamp(g.UsedAt), RevokedAt: timestamp(g.RevokedAt), RevokedBy: optional(g.RevokedBy), Note: optional(g.Note), Withdrawn: g.Withdrawn != ""}
}

// createGrantBody is the body of POST /grants. All of it is required: nothing of a budget is
// without end because somebody left it out.
type createGrantBody struct {
	AgentID   string `json:"agent_id"`
	Condition string `json:"condition"`
	Until     string `json:"until"`
	Uses      *int   `json:"uses"`
	Rows      *int64 `json:"rows"`
	Reason    string `json:"reason"`
}

// createGrant is POST /grants. The evidence is durable before the answer. Sent again under its
// Idempotency-Key it is answered as it was.
func (a *api) createGrant(c *httpd.Call) error {
	raw, err := c.Body("application/json")
	if err != nil {
		return err
	}
	query, err := c.Query("idempotency_key")
	if err != nil {
		return err
	}
	key := c.Request.Header.Get("Idempotency-Key")
	if other := query.Get("idempotency_key"); key == "" {
		key = other
	} else if other != "" && other != key {
		return fieldFault("idempotency_key", "differs from the header Idempotency-Key; send one of them")
	}
	var kept *event.KeptAnswer
	if key != "" || len(c.Request.Header["Idempotency-Key"]) > 0 || query.Has("idempotency_key") {
		if len(c.Request.Header["Idempotency-Key"]) > 1 || !httpd.VisibleASCII(key, 255) {
			return fieldFault("idempotency_key", "must be one text of 1 to 255 visible ASCII characters")
		}
		kept = &event.KeptAnswer{Key: key, ScopeDigest: httpd.DigestOf("gate.grants.key", c.Operator(), key), RequestSHA256: httpd.DigestOf("gate.grants.request", string(raw)),
			ExpiresAt: a.Now().Add(commands.KeyLifetime).UnixNano(), Status: http.StatusCreated}
		lease, first, err := a.Commands.BeginKey(c.Request.Context(), kept.ScopeDigest, kept.RequestSHA256, a.Now())
		if err != nil {
			return err
		}
		if first != nil {
			var made GrantBody
			if err := json.Unmarshal([]byte(first.Body), &made); err != nil {
				return fault.Of(err)
			}
			c.Writer().Header().Set("Idempotency-Replayed", "true")
			c.Writer().Header().Set("Location", "/grants/"+made.GrantID)
			c.Raw(first.Status, append([]byte(first.Body), '\n'))
			return nil
		}
		defer lease.Release()
	}
	var body createGrantBody
	if err := httpd.DecodeJSON(raw, &body); err != nil {
		return err
	}
	r, err := a.grantOf(&body)
	if err != nil {
		return err
	}
	r.By, r.RequestID = c.Operator(), c.RequestID
	if kept != nil {
		r.Keep = func(g projections.Grant) (*event.KeptAnswer, error) {
			text, err := json.Marshal(grantBody(&g, g.CreatedAt))
			kept.Body = string(text)
			return kept, err
		}
	}
	g, err := a.Commands.CreateGrant(c.Request.Context(), r)
	if err != nil {
		return err
	}
	c.Writer().Header().Set("Location", "/grants/"+g.ID)
	c.JSON(http.StatusCreated, grantBody(&g, g.CreatedAt))
	return nil
}

// grantOf checks what the commands can't: that it is complete, what the condition says, and
// that the policy in force takes grants.
func (a *api) grantOf(body *createGrantBody) (*commands.CreateGrant, error) {
	fields := map[string]string{}
	if body.AgentID == "" {
		fields["agent_id"] = "is required: the agent that the grant is for"
	}
	if body.Uses == nil {
		fields["uses"] = "is required: how many statements may run under it"
	}
	if body.Rows == nil {
		fields["rows"] = "is required: how many rows these may change together; 0 covers statements that change none"
	}
	if body.Reason == "" {
		fields["reason"] = "is required"
	}
	until, err := time.Parse(time.RFC3339Nano, body.Until)
	if err != nil {
		fields["until"] = "must be a time as in RFC 3339, such as 2026-01-02T15:04:05Z"
	}
	grantCondition(body.Condition, fields)
	if len(fields) > 0 {
		return nil, httpd.Invalid(fields)
	}
	longest, err := a.Gate.TakesGrants()
	if err != nil {
		return nil, err
	}
	if longest == 0 {
		return nil, fault.New(fault.ValidationFailed, "No rule of the policy in force takes grants, so this one would cover nothing. Activate a policy whose rule says approval: {grants: true} first.")
	}
	return &commands.CreateGrant{AgentID: body.AgentID, Condition: body.Condition, Until: until.UTC(), Uses: *body.Uses, Rows: *body.Rows, Reason: body.Reason, MaxSeconds: longest}, nil
}

// grantCondition compiles the condition of a grant; what is wrong with it goes to fields.
func grantCondition(text string, fields map[string]string) *policy.GrantCondition {
	condition, faults := policy.CompileGrant(text)
	if len(faults) > 0 {
		f := faults[0]
		fields["condition"] = fmt.Sprintf("%s: %s (line %d, column %d)", f.Code, f.Message, f.Line, f.Column)
	}
	return condition
}

var grantStatuses = []string{"", projections.GrantActive, projections.GrantUsedUp, projections.GrantExpired, projections.GrantRevoked}

// listGrants is GET /grants.
func (a *api) listGrants(c *httpd.Call) error {
	query, page, err := readList(c, "status", "agent_id")
	if err != nil {
		return err
	}
	filter := projections.GrantFilter{Status: query.Get("status"), AgentID: query.Get("agent_id"), Now: a.Now()}
	if !slices.Contains(grantStatuses, filter.Status) {
		return fieldFault("status", "must be active, used_up, expired or revoked")
	}
	view := a.Store.ViewWithin(c.Request.Context())
	defer view.Close()
	list := c.NewList()
	next, err := view.EachGrant(filter, page, func(g *projections.Grant) (bool, error) { return list.Add(grantBody(g, filter.Now)) })
	return sendList(list, view, next, err)
}

// getGrant is GET /grants/:grant_id.
func (a *api) getGrant(c *httpd.Call) error {
	view := a.Store.ViewWithin(c.Request.Context())
	defer view.Close()
	g, found, err := view.Grant(c.Params.ByName("grant_id"))
	switch {
	case err != nil:
		return commands.ViewFault(err)
	case !found:
		return commands.GrantNotFound(c.Params.ByName("grant_id"))
	}
	c.JSON(http.StatusOK, grantBody(&g, a.Now()))
	return nil
}

// revokeGrant is POST /grants/:grant_id/revoke. The evidence is durable before the answer.
func (a *api) revokeGrant(c *httpd.Call) error {
	var body struct {
		Note string `json:"note"`
	}
	if err := c.Decode(&body); err != nil {
		return err
	}
	g, err := a.Commands.RevokeGrant(c.Request.Context(), commands.RevokeGrant{ID: c.Params.ByName("grant_id"), Note: body.Note, By: c.Operator(), RequestID: c.RequestID})
	if err != nil {
		return err
	}
	c.JSON(http.StatusOK, grantBody(&g, a.Now()))
	return nil
}

// replayGrant is POST /grants/replay: which statements a grant would have covered. Nothing is
// written.
func (a *api) replayGrant(c *httpd.Call) error {
	var body struct {
		AgentID   string      `json:"agent_id"`
		Condition string      `json:"condition"`
		Seconds   *int        `json:"seconds"`
		Replay    *replayBody `json:"replay"`
	}
	if err := c.Decode(&body); err != nil {
		return err
	}
	r, err := body.Replay.request()
	if err == nil && r != nil {
		err = a.reached(r.FromSeq, "replay.from_seq")
	}
	if err != nil {
		return err
	}
	if r == nil {
		r = &sqlgate.ReplayRequest{Last: 24 * time.Hour, Limit: sqlgate.DefaultReplay}
	}
	fields, seconds := map[string]string{}, 1
	if body.AgentID == "" {
		fields["agent_id"] = "is required: the agent that the grant would be for"
	}
	if body.Seconds != nil {
		if seconds = *body.Seconds; seconds < 1 {
			fields["seconds"] = "must be how long the grant would be for, from 1 on"
		}
	}
	condition := grantCondition(body.Condition, fields)
	if len(fields) > 0 {
		return httpd.Invalid(fields)
	}
	ctx, release, err := a.compiling(c, true)
	if err != nil {
		return err
	}
	defer release()
	report, err := a.Gate.ReplayGrant(ctx, body.AgentID, condition, seconds, *r)
	if err != nil {
		return commands.ViewFault(err)
	}
	c.JSON(http.StatusOK, report)
	return nil
}
