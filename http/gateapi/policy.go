package gateapi

import (
	"context"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"writegate/commands"
	"writegate/http/httpd"
	"writegate/projections"
	"writegate/sqlgate"
	"writegate/sqlgate/pgexec"
	"writegate/sqlgate/policy"
)

// yamlType is the media type of a policy document as a body.
const yamlType = "application/yaml"

// policyStatus is GET /policy/status (design/policy.md part 8).
func (a *api) policyStatus(c *httpd.Call) error {
	status, err := a.Gate.PolicyStatus(c.Request.Context())
	if err != nil {
		return commands.ViewFault(err)
	}
	status.OperatorAuthEnabled = a.Operators.Enabled()
	c.JSON(http.StatusOK, status)
	return nil
}

var versionStatuses = []string{"", "active", "candidate", "archived", "rejected"}

// listVersions is GET /policy/versions.
func (a *api) listVersions(c *httpd.Call) error {
	query, page, err := readList(c, "status", "name")
	if err != nil {
		return err
	}
	if !slices.Contains(versionStatuses, query.Get("status")) {
		return fieldFault("status", "must be active, candidate, archived or rejected")
	}
	list := c.NewList()
	view := a.Store.ViewWithin(c.Request.Context())
	defer view.Close()
	next, err := a.Gate.PolicyVersions(view, projections.PolicyFilter{Status: query.Get("status"), Name: query.Get("name")}, page,
		func(e *sqlgate.VersionEntry) (bool, error) { return list.Add(e) })
	return sendList(list, view, next, err)
}

// getVersion is GET /policy/versions/:version, as JSON or, for a client that
// prefers it, as the bytes themselves.
func (a *api) getVersion(c *httpd.Call) error {
	detail, err := a.Gate.PolicyVersionDetail(c.Request.Context(), c.Params.ByName("version"))
	if err != nil {
		return commands.ViewFault(err)
	}
	header := c.Writer().Header()
	header.Set("ETag", `"`+detail.Hash+`"`)
	header.Set("Vary", "Accept")
	if wantsYAML(c.Request.Header.Get("Accept")) {
		header.Set("Content-Type", yamlType)
		c.Raw(http.StatusOK, []byte(detail.Document))
		return nil
	}
	c.JSON(http.StatusOK, detail)
	return nil
}

func wantsYAML(accept string) bool {
	for _, part := range strings.Split(accept, ",") {
		if media, _, _ := strings.Cut(part, ";"); strings.TrimSpace(media) == yamlType {
			return true
		}
	}
	return false
}

// sourceBody names a policy (design/policy.md part 8, a source).
type sourceBody struct {
	PolicyVersion *string `json:"policy_version"`
	Document      *string `json:"document"`
}

func (b *sourceBody) source() sqlgate.Source { return sourceOf(b.PolicyVersion, b.Document) }

func sourceOf(version, document *string) sqlgate.Source {
	var s sqlgate.Source
	if version != nil {
		s.PolicyVersion = *version
	}
	if document != nil {
		s.Document = []byte(*document)
	}
	return s
}

// documentBody reads a body that is JSON, or a document itself.
func documentBody(c *httpd.Call, dst any) (document []byte, err error) {
	body, err := c.Body("application/json", yamlType)
	if err != nil {
		return nil, err
	}
	media, _, _ := strings.Cut(c.Request.Header.Get("Content-Type"), ";")
	if strings.EqualFold(strings.TrimSpace(media), yamlType) {
		return body, nil
	}
	return nil, httpd.DecodeJSON(body, dst)
}

// maxCompiles is how many requests to try policies or statements are worked on at once:
// a policy is compiled and its tests run, which may take seconds and megabytes, and a
// statement is parsed where those that are executed are.
const maxCompiles = 8

// compiling counts a request to try something against the rate of statements and takes
// a slot for it, and one of the few that there are where decisions are replayed.
// Anybody may send one. ctx says who waits for a parser.
func (a *api) compiling(c *httpd.Call, replay bool) (ctx context.Context, release func(), err error) {
	label, err := c.OperatorLabel()
	if err == nil && label == "" {
		err = c.Limit()
	}
	if err != nil {
		return nil, nil, err
	}
	ctx = pgexec.ForClient(c.Request.Context(), clientOf(c, label))
	tried, err := a.compiles.Take(c, "policies and statements that are being tried", 1)
	if err != nil || !replay {
		return ctx, tried, err
	}
	replayed, err := a.replays.Take(c, "replays of decisions", 1)
	if err != nil {
		tried()
		return nil, nil, err
	}
	return ctx, func() { replayed(); tried() }, nil
}

// validatePolicy is POST /policy/validate: 200 also for a policy that is not valid.
func (a *api) validatePolicy(c *httpd.Call) error {
	var body sourceBody
	document, err := documentBody(c, &body)
	if err != nil {
		return err
	}
	source := body.source()
	if document != nil {
		source = sqlgate.Source{Document: document}
	}
	ctx, release, err := a.compiling(c, false)
	if err != nil {
		return err
	}
	defer release()
	label, err := c.OperatorLabel()
	if err != nil {
		return err
	}
	report, err := a.Gate.ValidatePolicy(ctx, source, label != "")
	if err != nil {
		return commands.ViewFault(err)
	}
	c.JSON(http.StatusOK, report)
	return nil
}

// createCandidate is POST /policy/candidates.
func (a *api) createCandidate(c *httpd.Call) error {
	var body struct {
		Document *string `json:"document"`
		Note     string  `json:"note"`
	}
	document, err := documentBody(c, &body)
	if err != nil {
		return err
	}
	if body.Document != nil {
		document = []byte(*body.Document)
	}
	if document == nil {
		return fieldFault("document", "is required: the text of the policy, or the policy itself as the body with Content-Type: "+yamlType)
	}
	answer, err := a.Gate.CreateCandidate(c.Request.Context(), document, body.Note, c.Operator())
	if err != nil {
		return commands.ViewFault(err)
	}
	status := http.StatusOK
	if answer.Created {
		status = http.StatusCreated
	}
	c.JSON(status, answer)
	return nil
}

// activatePolicy is POST /policy/activate.
func (a *api) activatePolicy(c *httpd.Call) error {
	var body struct {
		PolicyVersion      *string `json:"policy_version"`
		ExpectedHash       string  `json:"expected_hash"`
		ExpectedActiveHash *string `json:"expected_active_hash"`
		Impact             *struct {
			FromSeq    uint64 `json:"from_seq"`
			ToSeq      uint64 `json:"to_seq"`
			ImpactHash string `json:"impact_hash"`
		} `json:"impact"`
		Reason string `json:"reason"`
	}
	if err := c.Decode(&body); err != nil {
		return err
	}
	r := sqlgate.PolicyChangeRequest{ExpectedHash: body.ExpectedHash, Reason: body.Reason, By: c.Operator()}
	if err := changeOf(&r, body.PolicyVersion, body.ExpectedActiveHash); err != nil {
		return err
	}
	if body.Impact != nil {
		for _, at := range []struct {
			seq   uint64
			field string
		}{{body.Impact.FromSeq, "impact.from_seq"}, {min(body.Impact.ToSeq, math.MaxInt64) + 1, "impact.to_seq"}} {
			if err := a.reached(at.seq, at.field); err != nil { // what was reviewed is of another log
				return err
			}
		}
		r.Impact = &sqlgate.ImpactClaim{FromSeq: body.Impact.FromSeq, ToSeq: body.Impact.ToSeq, ImpactHash: body.Impact.ImpactHash}
	}
	return a.changePolicy(c, r)
}

// rollbackPolicy is POST /policy/rollback.
func (a *api) rollbackPolicy(c *httpd.Call) error {
	var body struct {
		PolicyVersion      *string `json:"policy_version"`
		ExpectedActiveHash *string `json:"expected_active_hash"`
		Reason             string  `json:"reason"`
	}
	if err := c.Decode(&body); err != nil {
		return err
	}
	r := sqlgate.PolicyChangeRequest{Rollback: true, Reason: body.Reason, By: c.Operator()}
	if err := changeOf(&r, body.PolicyVersion, body.ExpectedActiveHash); err != nil {
		return err
	}
	return a.changePolicy(c, r)
}

// changeOf fills in what names the versions of a change. An empty text, as a
// script's empty variable gives, is not the same as leaving the check out.
func changeOf(r *sqlgate.PolicyChangeRequest, version, activeHash *string) error {
	fields := map[string]string{}
	if version != nil {
		if r.PolicyVersion = *version; *version == "" {
			fields["policy_version"] = "must be name@major.minor.patch, or be left out"
		}
	}
	if activeHash != nil {
		if r.ExpectedActiveHash = *activeHash; *activeHash == "" {
			fields["expected_active_hash"] = "must be a SHA-256 in 64 hex digits, or be left out"
		}
	}
	if len(fields) > 0 {
		return httpd.Invalid(fields)
	}
	return nil
}

func (a *api) changePolicy(c *httpd.Call, r sqlgate.PolicyChangeRequest) error {
	answer, err := a.Gate.ChangePolicy(c.Request.Context(), r)
	if err != nil {
		return commands.ViewFault(err)
	}
	c.JSON(http.StatusOK, answer)
	return nil
}

// replayBody says which recorded decisions to decide again.
type replayBody struct {
	Last    *string `json:"last"`
	FromSeq uint64  `json:"from_seq"`
	ToSeq   uint64  `json:"to_seq"`
	Limit   *int    `json:"limit"`
}

// request reads a replay; nil where the body has none.
func (b *replayBody) request() (*sqlgate.ReplayRequest, error) {
	if b == nil {
		return nil, nil
	}
	r := &sqlgate.ReplayRequest{FromSeq: b.FromSeq, ToSeq: b.ToSeq, Limit: sqlgate.DefaultReplay}
	fields := map[string]string{}
	switch {
	case b.Last != nil && (b.FromSeq != 0 || b.ToSeq != 0):
		fields["replay"] = "takes either last or a range of from_seq and to_seq, and not both"
	case b.Last != nil:
		d, err := time.ParseDuration(*b.Last)
		if err != nil || d <= 0 {
			fields["replay.last"] = "must be a duration such as 24h, 90m or 30s"
		}
		r.Last = d
	case b.FromSeq == 0:
		fields["replay"] = "needs last, such as 24h, or from_seq with to_seq"
	case b.ToSeq != 0 && b.ToSeq < b.FromSeq:
		fields["replay.to_seq"] = "must not be before from_seq"
	}
	if b.Limit != nil {
		r.Limit = *b.Limit
		if *b.Limit < 1 || *b.Limit > sqlgate.MaxReplay {
			fields["replay.limit"] = "must be a whole number from 1 to 100000"
		}
	}
	if len(fields) > 0 {
		return nil, httpd.Invalid(fields)
	}
	return r, nil
}

// diffPolicies is POST /policy/diff.
func (a *api) diffPolicies(c *httpd.Call) error {
	var body struct {
		Base           *string     `json:"base"`
		BaseDocument   *string     `json:"base_document"`
		Target         *string     `json:"target"`
		TargetDocument *string     `json:"target_document"`
		Replay         *replayBody `json:"replay"`
	}
	if err := c.Decode(&body); err != nil {
		return err
	}
	fields := map[string]string{}
	if (body.Base == nil) == (body.BaseDocument == nil) {
		fields["base"] = "give either base, a version, or base_document"
	}
	if (body.Target == nil) == (body.TargetDocument == nil) {
		fields["target"] = "give either target, a version, or target_document"
	}
	if len(fields) > 0 {
		return httpd.Invalid(fields)
	}
	replay, err := body.Replay.request()
	if err == nil && replay != nil {
		err = a.reached(replay.FromSeq, "replay.from_seq")
	}
	if err != nil {
		return err
	}
	ctx, release, err := a.compiling(c, replay != nil)
	if err != nil {
		return err
	}
	defer release()
	answer, err := a.Gate.DiffPolicies(ctx, sourceOf(body.Base, body.BaseDocument), sourceOf(body.Target, body.TargetDocument), replay)
	if err != nil {
		return commands.ViewFault(err)
	}
	c.JSON(http.StatusOK, answer)
	return nil
}

// contextBody is the context of a statement, under the names of POST /query.
type contextBody struct {
	Actor              *string `json:"actor"`
	App                *string `json:"app"`
	Tenant             *string `json:"tenant"`
	Role               *string `json:"role"`
	Host               *string `json:"host"`
	Env                *string `json:"env"`
	TLSSubject         *string `json:"tls_subject"`
	AgentID            *string `json:"agent_id"`
	AgentToolsVerified *bool   `json:"agent_tools_verified"`
	Approved           *bool   `json:"approved"`
	ReasonGiven        *bool   `json:"reason_given"`
	Mode               *string `json:"mode"`
	SessionID          *string `json:"session_id"`
	Channel            *string `json:"channel"`
}

// into fills a context with what is there.
func (b *contextBody) into(c *policy.CaseContext) {
	for _, f := range []struct {
		from *string
		to   *string
	}{
		{b.Actor, &c.Actor}, {b.App, &c.App}, {b.Tenant, &c.Tenant}, {b.Role, &c.Role}, {b.Host, &c.Host}, {b.Env, &c.Env},
		{b.TLSSubject, &c.TLSSubject}, {b.AgentID, &c.AgentID}, {b.Mode, &c.Mode}, {b.SessionID, &c.SessionID}, {b.Channel, &c.Channel},
	} {
		if f.from != nil {
			*f.to = *f.from
		}
	}
	if b.AgentToolsVerified != nil {
		c.AgentToolsVerified = *b.AgentToolsVerified
	}
	if b.Approved != nil {
		c.Approved = *b.Approved
	}
	if b.ReasonGiven != nil {
		c.ReasonGiven = *b.ReasonGiven
	}
}

// dryRunPolicy is POST /policy/dry-run.
func (a *api) dryRunPolicy(c *httpd.Call) error {
	var body struct {
		sourceBody
		contextBody
		SQL       *string      `json:"sql"`
		Context   *contextBody `json:"context"`
		CompareTo *string      `json:"compare_to"`
		Replay    *replayBody  `json:"replay"`
	}
	if err := c.Decode(&body); err != nil {
		return err
	}
	replay, err := body.Replay.request()
	if err == nil && replay != nil {
		err = a.reached(replay.FromSeq, "replay.from_seq")
	}
	if err != nil {
		return err
	}
	r := sqlgate.DryRunRequest{SQL: body.SQL, Policy: body.source(), Replay: replay,
		Context: policy.CaseContext{Env: "prod", Mode: a.Gate.FactMode(), Channel: policy.ChannelHTTP}}
	if body.PolicyVersion == nil && body.Document == nil {
		r.Policy = sqlgate.Source{PolicyVersion: sqlgate.ActiveVersion}
	}
	if body.CompareTo != nil {
		if r.CompareTo = *body.CompareTo; r.CompareTo == "" {
			return fieldFault("compare_to", "must be name@major.minor.patch or active, or be left out")
		}
	}
	body.into(&r.Context)
	if body.Context != nil {
		body.Context.into(&r.Context)
	}
	if err := checkContext(&r.Context, body.SQL, a.MaxSQLBytes); err != nil {
		return err
	}
	ctx, release, err := a.compiling(c, replay != nil)
	if err != nil {
		return err
	}
	defer release()
	answer, err := a.Gate.DryRun(ctx, r)
	if err != nil {
		return commands.ViewFault(err)
	}
	c.JSON(http.StatusOK, answer)
	return nil
}

// checkContext refuses what no request could carry.
func checkContext(c *policy.CaseContext, sql *string, maxSQL int) error {
	fields := map[string]string{}
	if !slices.Contains([]string{"", "shadow", "staging", "prod"}, c.Env) {
		fields["env"] = "must be shadow, staging or prod"
	}
	if c.Mode != policy.ModeEnforce && c.Mode != policy.ModeApprovalFirst {
		fields["mode"] = "must be enforce or approval_first: shadow and emergency_bypass decide as enforce does"
	}
	if !slices.Contains([]string{policy.ChannelHTTP, policy.ChannelWire, policy.ChannelMCP}, c.Channel) {
		fields["channel"] = "must be http, wire or mcp"
	}
	sqlgate.CheckContext(c, fields)
	if len(fields) > 0 {
		return httpd.Invalid(fields)
	}
	if sql != nil && len(*sql) > maxSQL {
		return sqlgate.OversizedSQL(len(*sql), maxSQL)
	}
	return nil
}
