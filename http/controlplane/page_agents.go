package controlplane

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"time"

	"writegate/commands/fault"
	"writegate/http/httpd"
)

// What /v1 answers, as far as these pages show it (spec/v1.md).
type agentRecord struct {
	ID       string            `json:"id"`
	Name     string            `json:"name"`
	Type     string            `json:"type"`
	Status   string            `json:"status"`
	Metadata map[string]string `json:"metadata"`
	Config   struct {
		Model string `json:"model"`
	} `json:"config"`
	Applied []struct {
		PolicyID string `json:"policy_id"`
		Priority string `json:"priority"`
	} `json:"applied_policies"`
	CreatedAt     time.Time  `json:"created_at"`
	LastSeenAt    *time.Time `json:"last_seen_at"`
	DeactivatedAt *time.Time `json:"deactivated_at"`
}

// PriorityOf is the one that a policy was applied with, "" for one that is not applied.
func (a agentRecord) PriorityOf(policy string) string {
	for _, one := range a.Applied {
		if one.PolicyID == policy {
			return one.Priority
		}
	}
	return ""
}

type agentPolicy struct {
	ID      string `json:"id"`
	Name    string `json:"name"`
	Enabled bool   `json:"enabled"`
	Mode    string `json:"mode"`
	Rules   []struct {
		ID        string `json:"id"`
		Action    string `json:"action"`
		Condition string `json:"condition"`
		Message   string `json:"message"`
	} `json:"rules"`
}

type toolRecord struct {
	ID           string   `json:"id"`
	Name         string   `json:"name"`
	Type         string   `json:"type"`
	Status       string   `json:"status"`
	Agents       []string `json:"agents"`
	Verification *struct {
		Status    string    `json:"status"`
		CheckedAt time.Time `json:"checked_at"`
		Stale     bool      `json:"stale"`
	} `json:"verification"`
}

// project asks an endpoint of /v1.
func project[T any](ctx context.Context, s *Server, path string, pairs ...string) (T, error) {
	return ask[T](ctx, s, request{path: path, query: pairsOf(pairs), project: true})
}

// projectList is whole for a list under /v1.
func projectList[T any](ctx context.Context, s *Server, path string, limit int, pairs ...string) (list[T], error) {
	return whole[T](ctx, s, request{path: path, query: pairsOf(pairs), project: true}, limit)
}

type agentsView struct {
	Closed   string // why /v1 can't be read
	Status   string // of the agents that are listed
	Agents   []agentRecord
	Next     string // more of them, "" where there are none
	Policies map[string]agentPolicy
	Tools    []toolRecord
	Day      day
	Today    map[string]measures
	Missing  []string
	Stamp    string
	Look     *look
}

// agents lists who writes through the gate under a token of its own.
func (s *Server) agents(c *httpd.Call, p *page) error {
	ctx, seen := s.looking(c)
	defer seen.tellAge(c)
	query := c.Request.URL.Query()
	v := agentsView{Status: cmp.Or(query.Get("status"), "active"), Policies: make(map[string]agentPolicy), Stamp: stampOf(s.now()), Look: seen}
	got, err := projectList[agentRecord](ctx, s, "/v1/agents", agentsLimit, "status", v.Status, "cursor", query.Get("cursor"))
	if closed := closedWords(err); closed != "" {
		v.Closed = closed
		p.Body = v
		return nil
	}
	if err != nil {
		return err
	}
	v.Agents, v.Next = got.Items, got.next()
	var all gather
	var policies []agentPolicy
	together(&all, ctx, func(ctx context.Context) error {
		got, err := projectList[agentPolicy](ctx, s, "/v1/policies", 500)
		policies = got.Items
		return err // of what more there are, a row shows the id for the name
	})
	together(&all, ctx, func(ctx context.Context) error {
		got, err := projectList[toolRecord](ctx, s, "/v1/tools", 200)
		v.Tools = got.Items
		return restOf(got, err, "tools")
	})
	together(&all, ctx, func(ctx context.Context) (err error) {
		v.Day, err = s.telemetryDay(ctx, "")
		return err
	})
	together(&all, ctx, func(ctx context.Context) (err error) {
		v.Today, err = s.telemetryToday(ctx)
		return err
	})
	v.Missing = all.wait()
	slices.SortStableFunc(v.Agents, func(a, b agentRecord) int { return cmp.Compare(a.Name, b.Name) })
	for _, one := range policies {
		v.Policies[one.ID] = one
	}
	p.Live, p.Body = "agent_registered tool_registered tool_updated tool_verified", v
	p.LiveShown = "agent_updated agent_deactivated agent_policy_applied agent_policy_detached telemetry_received"
	return nil
}

// agentsLimit is how many agents a page has.
const agentsLimit = 200

// restOf is an error where a list that a page shows goes on behind what was read.
func restOf[T any](got list[T], err error, what string) error {
	if err == nil && got.next() != "" {
		return fault.New(fault.ResultTooLarge, "Only the newest %d %s are shown here; the agent API lists all.", len(got.Items), what)
	}
	return err
}

// closedWords explain the two ways in which /v1 is not open to this page.
func closedWords(err error) string {
	var refused *refusal
	if !errors.As(err, &refused) {
		return ""
	}
	const closedToUs = "The agent API needs a project key. Make one with “gate keys create”, add its entry to GATE_PROJECT_KEYS of the gate, and give the key itself to this process as CONTROL_PLANE_PROJECT_KEY."
	switch {
	case refused.status == http.StatusNotFound && refused.ErrorCode == string(fault.NotFound):
		return "This gate does not have the agent API."
	case refused.status == http.StatusUnauthorized || refused.status == http.StatusForbidden:
		return closedToUs
	}
	return ""
}

type agentView struct {
	agentRecord
	Policies  []agentPolicy
	Bound     bool              // whether these are known
	Offered   []agentPolicy     // what may be tried, and applied
	Chosen    map[string]string // of it
	Trial     *trial
	Asked     []auditEvent // decisions on its statements, and what became of it itself
	Telemetry []agentEvent
	Tools     []toolRecord
	Tokens    []tokenRecord
	Day       day
	Stamp     string
	Missing   []string
	Look      *look
}

type tokenRecord struct {
	TokenID    string     `json:"token_id"`
	Hint       string     `json:"hint"`
	Scopes     []string   `json:"scopes"`
	Status     string     `json:"status"`
	ExpiresAt  time.Time  `json:"expires_at"`
	CreatedAt  time.Time  `json:"created_at"`
	RevokedAt  *time.Time `json:"revoked_at"`
	LastUsedAt *time.Time `json:"last_used_at"`
}

type agentEvent struct {
	EventID       string    `json:"event_id"`
	Seq           uint64    `json:"seq"`
	Timestamp     time.Time `json:"timestamp"`
	TelemetryType string    `json:"telemetry_type"`
	Sent          struct {
		Timestamp  time.Time `json:"timestamp"`
		Name       string    `json:"name"`
		Status     string    `json:"status"`
		DurationMS int64     `json:"duration_ms"`
		Model      struct {
			Name string `json:"name"`
		} `json:"model"`
		Tool struct {
			Name string `json:"name"`
		} `json:"tool"`
	} `json:"payload"`
}

// askedTypes are the events of an agent other than its telemetry, which comes by
// the thousand and would leave no room for them.
var askedTypes = []string{"event_type", "decision_recorded", "event_type", "execution_state_unknown", "event_type", "execution_failure",
	"event_type", "agent_registered", "event_type", "agent_updated", "event_type", "agent_deactivated", "event_type", "agent_token_issued", "event_type", "agent_token_revoked", "event_type", "agent_subject_bound", "event_type", "agent_subject_unbound",
	"event_type", "agent_policy_applied", "event_type", "agent_policy_detached"}

// A trial is what a policy would have done in an agent's last day.
type trial struct {
	Policy   agentPolicy
	Priority string // as it was asked for
	Preview  struct {
		Events         int `json:"events"`
		EventsMatching int `json:"events_matching"`
		Decisions      int `json:"sql_decisions"`
		WouldChange    int `json:"sql_would_change"`
		Changes        []struct {
			RequestID string `json:"request_id"`
			Seq       uint64 `json:"seq"`
			From      string `json:"from"`
			To        string `json:"to"`
			RuleID    string `json:"rule_id"`
		} `json:"sql_changes"`
	} `json:"preview"`
	Warnings []struct {
		Message string `json:"message"`
	} `json:"warnings"`
	Problem string
}

// try asks the gate what a policy would have done to an agent. Nothing is written.
func (s *Server) try(ctx context.Context, agent, policy, priority string) (*trial, error) {
	body, err := jsonBody(map[string]string{"agent_id": agent, "priority": priority})
	if err != nil {
		return nil, err
	}
	t, err := ask[trial](ctx, s, request{method: http.MethodPost, path: "/v1/policies/" + policy + "/apply", query: url.Values{"dry_run": {"true"}}, body: body, media: "application/json", project: true})
	var refused *refusal
	if errors.As(err, &refused) {
		return &trial{Problem: wordsOf(err)}, nil
	}
	return &t, err
}

// agent is one of them: what it may do, and what it did.
func (s *Server) agent(c *httpd.Call, p *page) error {
	id := c.Params.ByName("id")
	ctx, seen := s.looking(c)
	defer seen.tellAge(c)
	one, err := project[agentRecord](ctx, s, "/v1/agents/"+id)
	if err != nil {
		return err
	}
	query := c.Request.URL.Query()
	chosen, priority := query.Get("policy"), cmp.Or(query.Get("priority"), "normal")
	v := agentView{agentRecord: one, Chosen: map[string]string{"policy": chosen, "priority": priority}, Stamp: stampOf(s.now()), Look: seen}
	var all gather
	together(&all, ctx, func(ctx context.Context) error {
		got, err := projectList[agentPolicy](ctx, s, "/v1/policies", 100, "agent_id", id)
		v.Policies, v.Bound = got.Items, err == nil
		return restOf(got, err, "policies")
	})
	if one.Status == "active" && c.Request.Header.Get(backgroundHeader) == "" { // this part of the page stays as it is
		together(&all, ctx, func(ctx context.Context) error {
			got, err := projectList[agentPolicy](ctx, s, "/v1/policies", 500, "enabled", "true")
			v.Offered = got.Items
			return restOf(got, err, "policies")
		})
		if chosen != "" {
			together(&all, ctx, func(ctx context.Context) (err error) {
				v.Trial, err = s.try(ctx, id, chosen, priority)
				return err
			})
		}
	}
	together(&all, ctx, func(ctx context.Context) error {
		got, err := projectList[auditEvent](ctx, s, "/v1/events", 25, append([]string{"agent_id", id}, askedTypes...)...)
		v.Asked = got.Items
		return err
	})
	together(&all, ctx, func(ctx context.Context) error {
		got, err := projectList[agentEvent](ctx, s, "/v1/events", 10, "agent_id", id, "event_type", "telemetry_received")
		v.Telemetry = got.Items
		return err
	})
	together(&all, ctx, func(ctx context.Context) (err error) {
		v.Day, err = s.telemetryDay(ctx, id)
		return err
	})
	together(&all, ctx, func(ctx context.Context) error {
		got, err := projectList[toolRecord](ctx, s, "/v1/tools", 100, "agent_id", id)
		v.Tools = got.Items
		return restOf(got, err, "tools")
	})
	together(&all, ctx, func(ctx context.Context) error {
		got, err := projectList[tokenRecord](ctx, s, "/v1/agents/"+id+"/tokens", 100)
		v.Tokens = got.Items
		return restOf(got, err, "tokens")
	})
	v.Missing = all.wait()
	slices.SortStableFunc(v.Offered, func(a, b agentPolicy) int { return cmp.Compare(a.Name, b.Name) })
	if v.Trial != nil {
		v.Trial.Priority, v.Trial.Policy = priority, agentPolicy{Name: chosen}
		if i := slices.IndexFunc(v.Offered, func(p agentPolicy) bool { return p.ID == chosen }); i >= 0 {
			v.Trial.Policy = v.Offered[i]
		}
	}
	p.Title, p.Body = one.Name, v
	p.LiveShown = "agent_updated agent_token_issued agent_token_revoked agent_subject_bound agent_subject_unbound agent_deactivated agent_policy_applied agent_policy_detached telemetry_received decision_recorded"
	return nil
}
