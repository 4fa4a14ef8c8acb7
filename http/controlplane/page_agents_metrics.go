package controlplane

import (
	"context"
	"image/color"
	"net/http"
	"strings"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"

	"writegate/http/httpd"
)

// dayHours is how far back telemetry is shown.
const dayHours = 24

// metrics are what GET /v1/metrics answers, as far as the pages show it.
type metrics struct {
	Items  []metricItem `json:"items"`
	Totals measures     `json:"totals"`
}

type metricItem struct {
	Start time.Time `json:"start"`
	Group struct {
		AgentID string `json:"agent_id"`
	} `json:"group"`
	measures
}

type measures struct {
	Events    int64  `json:"events"`
	Errors    int64  `json:"errors"`
	ToolCalls int64  `json:"tool_calls"`
	CostUSD   string `json:"cost_usd"`
	LatencyMS struct {
		P50 *int64 `json:"p50"`
		P95 *int64 `json:"p95"`
	} `json:"latency_ms"`
	Tokens struct {
		Input  int64 `json:"input"`
		Output int64 `json:"output"`
	} `json:"tokens"`
	SQL struct {
		Allow    int64 `json:"allow"`
		Block    int64 `json:"block"`
		Approval int64 `json:"require_approval"`
	} `json:"sql"`
}

// A day is the telemetry of the last hours, an hour a step, the oldest first.
// Hours in which nothing came are there and empty.
type day struct {
	Hours  []metricItem
	Totals measures
}

// telemetryDay asks for a day of an agent, or of all of them.
func (s *Server) telemetryDay(ctx context.Context, agentID string) (day, error) {
	since := s.now().UTC().Truncate(time.Hour).Add(-(dayHours - 1) * time.Hour)
	got, err := project[metrics](ctx, s, "/v1/metrics", "since", since.Format(time.RFC3339), "interval", "1h", "agent_id", agentID)
	d := day{Hours: make([]metricItem, dayHours), Totals: got.Totals}
	for i := range d.Hours {
		d.Hours[i].Start = since.Add(time.Duration(i) * time.Hour)
	}
	for _, m := range got.Items {
		if i := int(m.Start.Sub(since) / time.Hour); i >= 0 && i < dayHours {
			d.Hours[i] = m
		}
	}
	return d, err
}

// telemetryToday is what each agent did since midnight UTC: one bucket each.
func (s *Server) telemetryToday(ctx context.Context) (map[string]measures, error) {
	midnight := s.now().UTC().Truncate(24 * time.Hour)
	got, err := project[metrics](ctx, s, "/v1/metrics", "since", midnight.Format(time.RFC3339), "interval", "1d", "group_by", "agent_id")
	today := make(map[string]measures)
	for _, m := range got.Items {
		today[m.Group.AgentID] = m.measures
	}
	return today, err
}

// telemetryChart draws a day: what came, what was decided, how long it took.
func (s *Server) telemetryChart(c *httpd.Call, name string, t theme) (*plot.Plot, error) {
	ctx, seen := s.looking(c)
	seen.demand = wantKept // the numbers of the page that it stands in
	d, err := s.telemetryDay(ctx, strings.TrimSpace(c.Request.URL.Query().Get("agent_id")))
	if err != nil && closedWords(err) == "" {
		return nil, asFault(err)
	}
	ticks := agoTicks(dayHours, 6, "h")
	switch name {
	case "statements.svg":
		return d.bars(c.Request, t, ticks, []color.Color{t.allow, t.approval, t.block}, func(m *metricItem) []int64 { return []int64{m.SQL.Allow, m.SQL.Approval, m.SQL.Block} })
	case "durations.svg":
		half, most := d.durations()
		return linesChart(t, " ms", dayHours, ticks, line{most, t.approval, dashes}, line{half, t.quiet, nil})
	}
	return d.bars(c.Request, t, ticks, []color.Color{t.quiet, t.block}, func(m *metricItem) []int64 { return []int64{m.Events - m.Errors, m.Errors} })
}

// bars stacks numbers of each hour, each in its colour.
func (d *day) bars(r *http.Request, t theme, ticks plot.ConstantTicks, colors []color.Color, of func(*metricItem) []int64) (*plot.Plot, error) {
	parts := make([]part, len(colors))
	top := int64(0)
	for hour := range d.Hours {
		sum := int64(0)
		for i, n := range of(&d.Hours[hour]) {
			parts[i].color, parts[i].values = colors[i], append(parts[i].values, float64(n))
			sum += n
		}
		top = max(top, sum)
	}
	p := newPlot(t, float64(top)*1.05, "")
	p.X.Tick.Marker = ticks
	return p, stack(p, chartWidth(r), parts...)
}

func (d *day) durations() (half, most plotter.XYs) {
	for i, m := range d.Hours {
		if m.LatencyMS.P50 != nil && m.LatencyMS.P95 != nil {
			half, most = append(half, plotter.XY{X: float64(i), Y: float64(*m.LatencyMS.P50)}), append(most, plotter.XY{X: float64(i), Y: float64(*m.LatencyMS.P95)})
		}
	}
	return half, most
}
