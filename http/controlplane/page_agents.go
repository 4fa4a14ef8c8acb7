package controlplane

import (
	"context"
	"errors"
	"image/color"
	"net/http"
	"strings"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

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

type agentsView struct {
	Closed   string // why /v1 can't be read
	Agents   []agentRecord
	Policies map[string]agentPolicy
	Tools    []toolRecord
	Missing  []string
	Stamp    string
}

// agents lists who writes through the gate under a token of its own.
func (s *Server) agents(c *httpd.Call, p *page) error {
	v := agentsView{Policies: make(map[string]agentPolicy), Stamp: stampOf(s.now())}
	ctx := c.Request.Context()
	got, err := project[list[agentRecord]](ctx, s, "/v1/agents", "status", "all", "limit", "200")
	if closed := closedWords(err); closed != "" {
		v.Closed = closed
		p.Body = v
		return nil
	}
	if err != nil {
		return err
	}
	v.Agents = got.Items
	var all gather
	var policies []agentPolicy
	together(&all, ctx, func(ctx context.Context) error {
		got, err := project[list[agentPolicy]](ctx, s, "/v1/policies", "limit", "500")
		policies = got.Items
		return err
	})
	together(&all, ctx, func(ctx context.Context) error {
		got, err := project[list[toolRecord]](ctx, s, "/v1/tools", "limit", "200")
		v.Tools = got.Items
		return err
	})
	v.Missing = all.wait()
	for _, one := range policies {
		v.Policies[one.ID] = one
	}
	p.Live, p.Body = "agent_registered agent_updated agent_deactivated agent_policy_applied agent_policy_detached tool_verified", v
	return nil
}

// closedWords explain the two ways in which /v1 is not open to this page.
func closedWords(err error) string {
	var refused *refusal
	if !errors.As(err, &refused) {
		return ""
	}
	switch {
	case refused.status == http.StatusNotFound && refused.ErrorCode == string(fault.NotFound):
		return "This gate does not have the agent API."
	case refused.status == http.StatusUnauthorized || refused.status == http.StatusForbidden:
		return "The agent API needs a project key. Make one with `gate keys create`, add its entry to GATE_PROJECT_KEYS of the gate, and give the key itself to this process as CONTROL_PLANE_PROJECT_KEY."
	}
	return ""
}

type agentView struct {
	agentRecord
	Policies []agentPolicy
	Events   []agentEvent
	Tools    []toolRecord
	Missing  []string
}

type agentEvent struct {
	EventID       string    `json:"event_id"`
	Seq           uint64    `json:"seq"`
	Timestamp     time.Time `json:"timestamp"`
	EventType     string    `json:"event_type"`
	TelemetryType string    `json:"telemetry_type"`
	RequestID     string    `json:"request_id"`
}

// agent is one of them: what it may do, and what it did.
func (s *Server) agent(c *httpd.Call, p *page) error {
	id := c.Params.ByName("id")
	ctx := c.Request.Context()
	one, err := project[agentRecord](ctx, s, "/v1/agents/"+id)
	if err != nil {
		return err
	}
	v := agentView{agentRecord: one}
	var all gather
	together(&all, ctx, func(ctx context.Context) error {
		got, err := project[list[agentPolicy]](ctx, s, "/v1/policies", "agent_id", id, "limit", "100")
		v.Policies = got.Items
		return err
	})
	together(&all, ctx, func(ctx context.Context) error {
		got, err := project[list[agentEvent]](ctx, s, "/v1/events", "agent_id", id, "limit", "50")
		v.Events = got.Items
		return err
	})
	together(&all, ctx, func(ctx context.Context) error {
		got, err := project[list[toolRecord]](ctx, s, "/v1/tools", "agent_id", id, "limit", "100")
		v.Tools = got.Items
		return err
	})
	v.Missing = all.wait()
	p.Title, p.Body = one.Name, v
	p.Live = "agent_updated agent_deactivated agent_policy_applied agent_policy_detached telemetry_received decision_recorded"
	return nil
}

type metricItem struct {
	Start  time.Time `json:"start"`
	Events int64     `json:"events"`
	Errors int64     `json:"errors"`
}

// telemetryChart draws a day of telemetry, an hour a bar.
func (s *Server) telemetryChart(c *httpd.Call, t theme) (*plot.Plot, error) {
	since := s.now().UTC().Truncate(time.Hour).Add(-23 * time.Hour)
	got, err := project[list[metricItem]](c.Request.Context(), s, "/v1/metrics", "since", since.Format(time.RFC3339), "interval", "1h",
		"agent_id", strings.TrimSpace(c.Request.URL.Query().Get("agent_id")))
	if err != nil && closedWords(err) == "" {
		return nil, asFault(err)
	}
	fine, failed := make(plotter.Values, 24), make(plotter.Values, 24)
	top := 0.0
	for _, m := range got.Items {
		i := int(m.Start.Sub(since) / time.Hour)
		if i < 0 || i >= len(fine) {
			continue
		}
		fine[i], failed[i] = float64(m.Events-m.Errors), float64(m.Errors)
		top = max(top, float64(m.Events))
	}
	p := newPlot(t, top*1.05)
	var ticks plot.ConstantTicks
	for i := 0; i < len(fine); i += 6 {
		ticks = append(ticks, plot.Tick{Value: float64(i), Label: since.Add(time.Duration(i)*time.Hour).Format("15:04") + " UTC"})
	}
	p.X.Tick.Marker = ticks
	return p, stack(p, vg.Points(14), part{fine, t.quiet}, part{failed, t.block})
}

// A part is one layer of a stacked bar chart.
type part struct {
	values plotter.Values
	color  color.Color
}

func stack(p *plot.Plot, width vg.Length, parts ...part) error {
	var below *plotter.BarChart
	for _, one := range parts {
		bars, err := plotter.NewBarChart(one.values, width)
		if err != nil {
			return err
		}
		bars.Color, bars.LineStyle.Width = one.color, 0
		if below != nil {
			bars.StackOn(below)
		}
		below = bars
		p.Add(bars)
	}
	return nil
}
