package gateapi

import (
	"net/http"
	"regexp"
	"strings"

	"writegate/commands/fault"
	"writegate/eventlog/event"
	"writegate/http/httpd"
	"writegate/sqlgate"
	"writegate/sqlgate/pgexec"
	"writegate/sqlgate/policy"
)

var incidentTypes = map[httpd.Incident]event.Type{
	httpd.OversizedRequest:   event.TypeOversizedRequest,
	httpd.OperatorAuthFailed: event.TypeOperatorAuthFailed,
	httpd.RateLimitHit:       event.TypeRateLimitHit,
}

// queryBody is the body of POST /query (spec/gate.md part 2.1).
type queryBody struct {
	Actor            string  `json:"actor"`
	App              string  `json:"app"`
	Tenant           string  `json:"tenant"`
	Role             string  `json:"role"`
	Host             string  `json:"host"`
	Env              string  `json:"env"`
	SQL              *string `json:"sql"`
	SessionID        *string `json:"session_id"`
	ApprovalID       *string `json:"approval_id"`
	ExecutionProfile *string `json:"execution_profile"`
	Reason           *string `json:"reason"` // why, where a rule asks for it
}

// query is POST /query. The order of the checks is that of spec/decisions.md
// part 3: body size, JSON, required fields, SQL size, rate limit; Submit goes on.
func (a *api) query(c *httpd.Call) error {
	var body queryBody
	if err := c.Decode(&body); err != nil {
		return err
	}
	request, err := a.queryRequest(c, &body)
	if err != nil {
		return err
	}
	if err := request.Validate(a.MaxSQLBytes); err != nil {
		if fault.CodeOf(err) == fault.OversizedSQL {
			c.Report(httpd.OversizedRequest, int64(a.MaxSQLBytes), int64(len(request.SQL)))
		}
		return err
	}
	if err := c.Limit(); err != nil {
		return err
	}
	if err := c.ReadsAnswers(); err != nil {
		return err
	}
	answer, err := a.Gate.Submit(pgexec.ForClient(c.Request.Context(), clientOf(c, request.Operator)), request)
	if err != nil {
		return err
	}
	c.Raw(queryStatus(answer), append(answer.AppendJSON(nil), '\n'))
	return nil
}

// clientOf is who a statement counts for. An operator has a share beside those
// without a token.
func clientOf(c *httpd.Call, operator string) string {
	if operator != "" {
		return "operator " + operator
	}
	return c.Holder()
}

var agentToken = regexp.MustCompile(httpd.AgentTokenPrefix + "[0-9A-Za-z]{36}")

// misplacedToken reports a credential that may be an agent's and is not read as
// one: an Authorization that is neither an agent's token (read) nor an operator's,
// whatever its scheme and also when it is empty; a key that stands in for it; a
// token in another header or in a second one. Who sends it relies on the agent's
// rules, so it is not taken for absent.
func misplacedToken(c *httpd.Call, read bool) bool {
	h, operators := c.Request.Header, c.BearerIsOperators()
	if len(h["Authorization"]) > 1 || len(h["Authorization"]) == 1 && !read && !operators || len(h["X-Api-Key"]) > 0 && !read {
		return true
	}
	for name, values := range h {
		for _, value := range values {
			if (name != "Authorization" || !read) && (agentToken.MatchString(value) || c.HoldsAgentJWT(value)) || name != "Authorization" && strings.HasSuffix(name, "Authorization") && strings.Contains(value, httpd.AgentTokenPrefix) {
				return true
			}
		}
	}
	return false
}

// queryRequest joins body and query parameters.
func (a *api) queryRequest(c *httpd.Call, body *queryBody) (*sqlgate.Request, error) {
	query, err := c.Query("mode", "idempotency_key") // not sql: bytes that are no text are the classifier's to refuse, as parser_error
	if err != nil {
		return nil, err
	}
	fields := map[string]string{}
	r := &sqlgate.Request{
		RequestID: c.RequestID,
		Claims: sqlgate.Claims{
			Actor: body.Actor, App: body.App, Tenant: body.Tenant, Role: body.Role, Host: body.Host, Env: body.Env,
		},
		IdempotencyKey: query.Get("idempotency_key"),
		TLSSubject:     httpd.TLSSubject(c.Request), Trace: c.Trace.String(), ReceivedAt: c.Start, Stands: c.CertificateStands,
	}
	// Empty is not absent: a client that lost a value would run without it.
	for _, f := range []struct {
		name    string
		from    *string
		to      *string
		problem string
	}{
		{"session_id", body.SessionID, &r.SessionID, "must have 1 to 256 characters, or be left out"},
		{"approval_id", body.ApprovalID, &r.ApprovalID, "must be the id of an approval, or be left out"},
		{"reason", body.Reason, &r.Reason, "must have 1 to 256 characters, or be left out"},
		{"execution_profile", body.ExecutionProfile, &r.ExecutionProfile, "must be default, latency or bulk, or be left out"},
	} {
		if f.from == nil {
			continue
		}
		if *f.to = *f.from; *f.from == "" {
			fields[f.name] = f.problem
		}
	}
	if !c.BearerIsOperators() {
		r.AgentToken = c.AgentCredential()
	}
	if misplacedToken(c, r.AgentToken != "") {
		r.AgentToken = httpd.AgentTokenPrefix // none that is good: it is refused with evidence
	} else if r.Operator, err = c.OperatorLabel(); err != nil && fault.CodeOf(err) != fault.UnauthorizedOperator {
		return nil, err // a wrong operator token is recorded and counted, and the statement is anybody's (spec/decisions.md part 2)
	}
	switch mode := query.Get("mode"); {
	case mode == "preview":
		r.Preview = true
	case mode == "dry_run":
		r.DryRun = true
	case query.Has("mode") && mode != "live": // empty is no mode either
		fields["mode"] = "must be live, preview or dry_run"
	}
	switch {
	case body.SQL == nil && !query.Has("sql"):
		fields["sql"] = "is required, in the body or as the query parameter"
	case body.SQL == nil:
		r.SQL = query.Get("sql")
	case query.Has("sql") && query.Get("sql") != *body.SQL:
		fields["sql"] = "stands in the body and in the query parameter, and the two differ; send it once"
	default:
		r.SQL = *body.SQL
	}
	keys := c.Request.Header.Values("Idempotency-Key")
	switch {
	case len(keys) > 1:
		fields["idempotency_key"] = "must be one header Idempotency-Key at most"
	case len(keys) == 1 && query.Has("idempotency_key") && keys[0] != r.IdempotencyKey:
		fields["idempotency_key"] = "stands in the header Idempotency-Key and in the query parameter, and the two differ; send it once"
	case len(keys) == 1:
		r.IdempotencyKey = keys[0]
	}
	if (len(keys) > 0 || query.Has("idempotency_key")) && r.IdempotencyKey == "" {
		fields["idempotency_key"] = "must be 1 to 255 visible ASCII characters"
	}
	if len(fields) > 0 {
		return nil, httpd.Invalid(fields)
	}
	return r, nil
}

// queryStatus is the status of a decision (spec/gate.md part 2.2). What ran
// answers 200 whatever was decided: shadow mode and a bypass say so in the body.
func queryStatus(a *sqlgate.Answer) int {
	switch {
	case a.Kept != nil:
		return a.Kept.Status
	case a.Preview || a.Executed || a.Result.Decision == policy.Allow:
		return http.StatusOK
	case a.Result.Decision == policy.RequireApproval:
		return http.StatusAccepted
	}
	return http.StatusForbidden
}
