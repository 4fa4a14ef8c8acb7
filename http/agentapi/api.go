// Package agentapi is the HTTP API for agents, under /v1 (spec/v1.md): each
// endpoint a few lines between JSON and package agentctl; and, beside these, the
// endpoints of operators that bind subjects to agents. What all under /v1
// share stands here once: credentials, the rate limit and its headers, scopes,
// revisions, idempotency keys, and the headers that lead to the evidence.
package agentapi

import (
	"context"
	"encoding/hex"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"writegate/agentctl"
	"writegate/commands"
	"writegate/commands/fault"
	"writegate/docs"
	"writegate/http/httpd"
	"writegate/projections"
)

// Version is the X-Api-Version of every answer under /v1.
const Version = "1.0"

// Options are what the endpoints stand on; all are required.
type Options struct {
	Agents   *agentctl.Service
	Commands *commands.Commands
	Store    *projections.Store
	Log      agentctl.Log
	Health   func(context.Context) Health // of GET /v1/health
	Now      func() time.Time

	Follower         agentctl.Follower // the event log, for those who follow it
	Head             func() uint64     // its last event
	Reaches          func(seq uint64) (last uint64, ok bool)
	StreamsPerClient int             // of GET /v1/events at once, of one key or agent
	Stopping         context.Context // ends when the service is told to stop: streams must not hold it up
}

type api struct {
	Options
	failures       *httpd.Limiter // failed authentications by remote address
	streams        *httpd.Slots   // of those who follow the log, by key or agent
	projectStreams *httpd.Slots   // of the same, by project
}

// failuresPerMinute is how many failed authentications an address has.
const failuresPerMinute = 60

// A Guard puts an endpoint behind what all under /v1 are behind: a credential, whose
// failures count against their address, and the rate limit with its headers.
type Guard func(serve func(c *httpd.Call, caller *agentctl.Caller) error) httpd.Handler

// Register adds the endpoints under /v1 to a mux, and gives their guard for others.
func Register(mux *httpd.Mux, o Options) (Guard, error) {
	failures, err := httpd.NewLimiter(failuresPerMinute, failuresPerMinute, o.Now)
	if err != nil {
		return nil, err
	}
	a := &api{Options: o, failures: failures, streams: httpd.NewSlots(maxStreams, o.StreamsPerClient),
		projectStreams: httpd.NewSlots(maxStreams, maxProjectStreams)}
	mux.Stamp("/v1/", "X-Api-Version", Version)
	for _, r := range a.routes() {
		mux.HandleUnchecked(r.method, r.path, a.guarded(r))
	}
	a.registerSubjects(mux)
	mux.Handle(http.MethodGet, "/v1/openapi.json", httpd.Document(docs.OpenAPIV1)) // how to get in is no secret
	return a.guard, nil
}

// A route is one endpoint and the scope that it needs; "" is any credential.
type route struct {
	method, path string
	scope        agentctl.Scope
	serve        func(*call) error
}

func (a *api) routes() []route {
	return []route{
		{http.MethodGet, "/v1/agents", agentctl.ScopeAgentsRead, a.listAgents},
		{http.MethodPost, "/v1/agents", agentctl.ScopeAgentsWrite, a.registerAgent},
		{http.MethodGet, "/v1/agents/:id", agentctl.ScopeAgentsRead, a.getAgent},
		{http.MethodPut, "/v1/agents/:id", agentctl.ScopeAgentsWrite, a.updateAgent},
		{http.MethodDelete, "/v1/agents/:id", agentctl.ScopeAgentsWrite, a.deactivateAgent},
		{http.MethodGet, "/v1/agents/:id/tokens", agentctl.ScopeAgentsRead, a.listTokens},
		{http.MethodPost, "/v1/agents/:id/tokens", agentctl.ScopeTokensWrite, a.issueToken},
		{http.MethodDelete, "/v1/agents/:id/tokens/:token_id", agentctl.ScopeTokensWrite, a.revokeToken},

		{http.MethodGet, "/v1/policies", agentctl.ScopePoliciesRead, a.listPolicies},
		{http.MethodPost, "/v1/policies", agentctl.ScopePoliciesWrite, a.createPolicy},
		{http.MethodGet, "/v1/policies/:id", agentctl.ScopePoliciesRead, a.getPolicy},
		{http.MethodPut, "/v1/policies/:id", agentctl.ScopePoliciesWrite, a.updatePolicy},
		{http.MethodPost, "/v1/policies/:id/apply", agentctl.ScopePoliciesApply, a.applyPolicy},
		{http.MethodDelete, "/v1/policies/:id/apply", agentctl.ScopePoliciesApply, a.detachPolicy},

		{http.MethodPost, "/v1/telemetry", agentctl.ScopeTelemetryWrite, a.telemetry},
		{http.MethodGet, "/v1/metrics", agentctl.ScopeMetricsRead, a.metrics},
		{http.MethodGet, "/v1/events", agentctl.ScopeEventsRead, a.listEvents},
		{http.MethodGet, "/v1/events/:event_id", agentctl.ScopeEventsRead, a.getEvent},
		{http.MethodGet, "/v1/usage", agentctl.ScopeUsageRead, a.usage},
		{http.MethodGet, "/v1/tools", agentctl.ScopeToolsRead, a.listTools},
		{http.MethodPost, "/v1/tools", agentctl.ScopeToolsWrite, a.registerTool},
		{http.MethodGet, "/v1/tools/:id", agentctl.ScopeToolsRead, a.getTool},
		{http.MethodPut, "/v1/tools/:id", agentctl.ScopeToolsWrite, a.updateTool},
		{http.MethodPost, "/v1/tools/:id/verify", agentctl.ScopeToolsVerify, a.verifyTool},

		{http.MethodGet, "/v1/health", "", a.health},
	}
}

// queryParams are those of the endpoints that change something and have any.
var queryParams = map[string][]httpd.Param{
	"DELETE /v1/agents/:id":         {{Name: "reason"}},
	"POST /v1/policies/:id/apply":   {{Name: "dry_run", For: []string{"preview", "simulate", "validate_only", "mode"}, Write: "dry_run=true"}},
	"DELETE /v1/policies/:id/apply": {{Name: "agent_id"}},
}

// conditional are the endpoints that change what has a revision: they honour If-Match.
var conditional = map[string]bool{
	"PUT /v1/agents/:id": true, "DELETE /v1/agents/:id": true, "PUT /v1/policies/:id": true, "PUT /v1/tools/:id": true,
}

// honoured are the headers that a request may be made safe with. A PUT or DELETE
// that is sent again does no more than the first, so a key changes nothing there.
func honoured(r route) []string {
	if conditional[r.method+" "+r.path] {
		return []string{"Idempotency-Key", "If-Match"}
	}
	return []string{"Idempotency-Key"}
}

// A call is a request whose caller is known.
type call struct {
	*httpd.Call
	caller agentctl.Caller
}

func (a *api) guard(serve func(c *httpd.Call, caller *agentctl.Caller) error) httpd.Handler {
	return func(c *httpd.Call) (err error) {
		if err := oneOfEach(c.Request.Header); err != nil {
			return a.refused(c, err)
		}
		if len(c.Request.Header["Authorization"]) > 0 && c.Bearer() == "" { // beside a key it would be taken for absent
			return a.refused(c, fault.New(fault.CredentialsInvalid, "The header Authorization holds no bearer token. Send an agent's token as Authorization: Bearer, or leave the header out."))
		}
		caller, err := a.Agents.Authenticate(c.Request.Context(), c.Bearer(), c.Request.Header.Get("X-Api-Key"))
		if err != nil {
			return a.refused(c, err)
		}
		c.HoldAs(caller.Holder())
		quota, ok := a.Agents.Admit(&caller)
		if !ok {
			return a.overLimit(c, &caller, quota)
		}
		setQuota(c.Writer().Header(), quota, a.Now())
		defer func() {
			if err != nil || c.Status() >= http.StatusBadRequest {
				a.Agents.NoteError(&caller)
			}
		}()
		return serve(c, &caller)
	}
}

// guarded puts an endpoint behind the guard and its scope.
func (a *api) guarded(r route) httpd.Handler {
	return a.guard(func(c *httpd.Call, caller *agentctl.Caller) error {
		if r.scope != "" {
			used, err := caller.Use(r.scope)
			if err != nil {
				return err
			}
			caller = &used
		}
		if r.method != http.MethodGet {
			if err := c.CheckWords(honoured(r), queryParams[r.method+" "+r.path]...); err != nil {
				return asList(err)
			}
		}
		if r.method == http.MethodDelete { // what is asked of one stands in the query string, so its body says nothing
			if err := c.Decode(&struct{}{}); err != nil {
				return err
			}
		}
		return r.serve(&call{c, *caller})
	})
}

// oneOfEach refuses a credential that is there twice, and one whose value was
// lost on the way: with the other one alone the request would be somebody else's.
func oneOfEach(h http.Header) error {
	for _, name := range []string{"Authorization", "X-Api-Key"} {
		values := h[name]
		if len(values) > 1 {
			return fault.New(fault.CredentialsInvalid, "The header %s is there %d times. Send it once.", name, len(values))
		}
		if len(values) == 1 && (values[0] == "" || strings.EqualFold(strings.TrimSpace(values[0]), "Bearer")) {
			return fault.New(fault.CredentialsInvalid, "The header %s is empty. Send a credential in it, or leave it out.", name)
		}
	}
	return nil
}

// refused counts a failed authentication against its address.
func (a *api) refused(c *httpd.Call, reason error) error {
	if httpd.Status(fault.CodeOf(reason)) != http.StatusUnauthorized {
		return reason
	}
	wait, ok := a.failures.Allow(c.Holder())
	if ok {
		return reason
	}
	seconds := max(1, int(wait/time.Second)+1)
	return fault.New(fault.RateLimitExceeded, "Too many requests without a valid credential from this address. Wait %d s.", seconds).With("retry_after_seconds", seconds)
}

// overLimit answers 429. The limit is told by headers too.
func (a *api) overLimit(c *httpd.Call, caller *agentctl.Caller, q agentctl.Quota) error {
	a.Agents.NoteLimit(c.Request.Context(), caller, q, c.RequestID, c.Request.URL.Path)
	setQuota(c.Writer().Header(), q, a.Now())
	return fault.New(fault.RateLimitExceeded, "This credential has used its %d requests an hour. Wait %d s.", agentctl.RequestLimit, q.ResetSeconds).
		With("retry_after_seconds", q.ResetSeconds).With("limit", agentctl.RequestLimit).With("window_seconds", agentctl.WindowSeconds).With("credential_id", q.CredentialID)
}

// setQuota writes the headers of the rate limit (spec/v1.md part 3).
func setQuota(h http.Header, q agentctl.Quota, now time.Time) {
	h["RateLimit-Policy"] = []string{fmt.Sprintf(`"default";q=%d;w=%d`, agentctl.RequestLimit, agentctl.WindowSeconds)}
	h["RateLimit"] = []string{fmt.Sprintf(`"default";r=%d;t=%d`, q.Remaining, q.ResetSeconds)}
	h.Set("X-RateLimit-Limit", strconv.Itoa(agentctl.RequestLimit))
	h.Set("X-RateLimit-Remaining", strconv.Itoa(q.Remaining))
	h.Set("X-RateLimit-Reset", strconv.FormatInt(now.Unix()+int64(q.ResetSeconds), 10))
}

// reply answers with what agentctl gave.
func (c *call) reply(answer agentctl.Answer, err error) error {
	if err != nil {
		return err
	}
	if n := len(answer.Events); n > 0 {
		last := answer.Events[n-1]
		setEvent(c.Writer().Header(), last.Seq, last.Hash)
	}
	tag := c.mark(answer.Location, answer.Revision)
	if tag != "" && c.Request.Method == http.MethodGet && matches(c.Request.Header.Get("If-None-Match"), tag) {
		c.Writer().WriteHeader(http.StatusNotModified)
		return nil
	}
	c.JSON(answer.Status, answer.Body)
	return nil
}

// mark sets the headers that say where something lies and which revision it
// has; tag is the latter, "" without one.
func (c *call) mark(location string, revision int) (tag string) {
	h := c.Writer().Header()
	if location != "" {
		h.Set("Location", location)
	}
	if revision > 0 {
		tag = strconv.Quote(strconv.Itoa(revision))
		h["ETag"] = []string{tag}
	}
	return tag
}

func setEvent(h http.Header, seq uint64, hash [32]byte) {
	h.Set("X-Event-Seq", strconv.FormatUint(seq, 10))
	h.Set("X-Event-Hash", hex.EncodeToString(hash[:]))
}

func matches(header, tag string) bool {
	for one := range strings.SplitSeq(header, ",") {
		if one = strings.TrimSpace(one); one == tag || one == "*" || one == "W/"+tag {
			return true
		}
	}
	return false
}

// asker is the caller with what its request says about writing.
func (c *call) asker() *agentctl.Asker {
	return &agentctl.Asker{Caller: c.caller, RequestID: c.RequestID, IfMatch: strings.Join(c.Request.Header["If-Match"], ",")}
}

// write decodes a body and hands it on. A POST with an Idempotency-Key is
// answered as the first one was.
func write[In any](a *api, c *call, do func(by *agentctl.Asker, in *In) (agentctl.Answer, error)) error {
	body, err := c.Body("application/json")
	if err != nil {
		return err
	}
	by := c.asker()
	if c.Request.Method == http.MethodPost {
		lease, replayed, err := a.beginKey(c, by, body)
		if err != nil || replayed {
			return err
		}
		defer lease.Release()
	}
	in := new(In)
	if err := httpd.DecodeJSON(body, in); err != nil {
		return err
	}
	return c.reply(do(by, in))
}

// page reads the filters named and the page of a list. What is wrong with them
// comes as a list of fields, as everywhere under /v1.
func (c *call) page(filters ...string) (map[string]string, projections.Page, error) {
	query, p, err := c.List(filters...)
	if err != nil {
		return nil, projections.Page{}, asList(err)
	}
	values := map[string]string{}
	for _, name := range filters {
		values[name] = query.Get(name)
	}
	return values, projections.Page{Limit: p.Limit, Cursor: p.Cursor, Asc: p.Asc, Work: projections.PageWork}, nil
}

// asList turns the fields that httpd names into the form of /v1.
func asList(err error) error {
	f, ok := fault.As(err)
	if !ok {
		return err
	}
	named, ok := f.Details["fields"].(map[string]string)
	if !ok {
		return err
	}
	var fields []agentctl.FieldError
	for name, problem := range named {
		if name == "cursor" {
			return fault.New(fault.CursorInvalid, "The cursor does not belong to this list with these filters and this order. Begin again without it.")
		}
		fields = append(fields, agentctl.FieldError{Pointer: "/" + name, Message: problem})
	}
	return agentctl.InvalidFields(fields...)
}

// list answers with a page: read hands its items to take, until there is no room.
func list[T any](c *call, read func(take func(T) (room bool, err error)) (next string, err error)) error {
	l := c.NewList()
	next, err := read(func(item T) (bool, error) { return l.Add(item) })
	if err != nil {
		return err
	}
	l.Send(next)
	return nil
}

// oneOf refuses a value outside a closed set.
func oneOf(name, value string, set ...string) error {
	for _, s := range set {
		if s == value {
			return nil
		}
	}
	return agentctl.InvalidFields(agentctl.FieldError{Pointer: "/" + name, Message: "must be one of " + strings.Join(set, ", ")})
}
