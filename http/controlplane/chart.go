package controlplane

import (
	"bytes"
	"fmt"
	"image/color"
	"net/http"
	"strconv"
	"strings"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	_ "gonum.org/v1/plot/vg/vgsvg" // the format that WriterTo is asked for

	"writegate/commands/fault"
	"writegate/http/httpd"
)

// A theme is the colours of a chart on a light or on a dark page. They are those
// of assets/style.css; each pair has a contrast of 3:1 and more to the ground.
type theme struct {
	ink, line                     color.Color
	allow, block, approval, quiet color.Color
}

var themes = map[string]theme{
	"light": {ink: rgb(0x4a5464), line: rgb(0xd5dbe3), allow: rgb(0x1f7a4d), block: rgb(0xb3261e), approval: rgb(0x9a6700), quiet: rgb(0x2f5bb7)},
	"dark":  {ink: rgb(0xa9b4c4), line: rgb(0x323a47), allow: rgb(0x4cc38a), block: rgb(0xff8a80), approval: rgb(0xe3b341), quiet: rgb(0x8fb4ff)},
}

func rgb(value uint32) color.Color {
	return color.NRGBA{R: uint8(value >> 16), G: uint8(value >> 8), B: uint8(value), A: 0xff}
}

// chart draws one of the charts as SVG. Pages show it as an image, with a table
// of the same numbers behind it.
func (s *Server) chart(c *httpd.Call) error {
	if _, err := s.signedIn(c); err != nil {
		return err
	}
	t, ok := themes[c.Request.URL.Query().Get("theme")]
	if !ok {
		t = themes["light"]
	}
	var p *plot.Plot
	var err error
	switch c.Params.ByName("chart") {
	case "decisions.svg":
		p, err = decisionsChart(s.samples.hour(), t, chartWidth(c.Request))
	case "latency.svg":
		p, err = latencyChart(s.samples.hour(), t)
	case "telemetry.svg", "statements.svg", "durations.svg":
		p, err = s.telemetryChart(c, c.Params.ByName("chart"), t)
	default:
		return fault.New(fault.NotFound, "There is no such chart.")
	}
	if err != nil {
		return err
	}
	return s.drawn(c, p)
}

// Sizes of charts: about those of the cards that they stand in, so that text in
// them is as large as text beside them.
const (
	chartHeight = 2 * vg.Inch
	wideChart   = 5.6 * vg.Inch
	narrowChart = 3.4 * vg.Inch
)

func chartWidth(r *http.Request) vg.Length {
	if r.URL.Query().Get("width") == "narrow" {
		return narrowChart
	}
	return wideChart
}

// drawn answers with a plot.
func (s *Server) drawn(c *httpd.Call, p *plot.Plot) error {
	out, err := p.WriterTo(chartWidth(c.Request), chartHeight, "svg")
	if err != nil {
		return fmt.Errorf("chart: %w", err)
	}
	var svg bytes.Buffer
	if _, err := out.WriteTo(&svg); err != nil {
		return fmt.Errorf("chart: %w", err)
	}
	c.Writer().Header().Set("Content-Type", mediaTypes[".svg"])
	c.Writer().WriteHeader(http.StatusOK)
	s.deliver(c, []byte(strings.NewReplacer("font-family:Liberation Serif;", "font-family:system-ui,sans-serif;").Replace(svg.String())))
	return nil
}

// newPlot is an empty plot; unit stands behind the highest number of its axis.
func newPlot(t theme, top float64, unit string) *plot.Plot {
	p := plot.New()
	p.BackgroundColor = color.Transparent
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		axis.Color, axis.Label.TextStyle.Color, axis.Tick.Label.Color, axis.Tick.Color = t.line, t.ink, t.ink, t.line
		axis.LineStyle.Width, axis.Tick.LineStyle.Width = vg.Points(0.5), vg.Points(0.5)
		axis.Tick.Label.Font.Size = vg.Points(9.5)
	}
	p.Y.Min, p.Y.Max = 0, max(top, 1)
	p.Y.LineStyle.Width, p.Y.Tick.LineStyle.Width, p.Y.Tick.Length = 0, 0, 0
	p.X.Tick.Length = vg.Points(3)
	p.Y.Tick.Marker = plot.ConstantTicks(steps(p.Y.Max, unit))
	grid := plotter.NewGrid()
	grid.Vertical.Width = 0
	grid.Horizontal.Color, grid.Horizontal.Width, grid.Horizontal.Dashes = t.line, vg.Points(0.5), nil
	p.Add(grid)
	return p
}

// steps are three or four round numbers up to a maximum.
func steps(top float64, unit string) []plot.Tick {
	step := 1.0
	for top/step > 4 {
		switch first := strconv.FormatFloat(step, 'e', 0, 64)[0]; first {
		case '1':
			step *= 2
		case '2':
			step *= 2.5
		default:
			step *= 2
		}
	}
	var list []plot.Tick
	for v := 0.0; v <= top; v += step {
		label := shortNumber(v)
		if unit != "" {
			label = strconv.FormatFloat(v, 'f', -1, 64)
		}
		list = append(list, plot.Tick{Value: v, Label: label})
	}
	list[len(list)-1].Label += unit
	return list
}

// shortNumber keeps an axis narrow: 2 k, 1.5 M.
func shortNumber(v float64) string {
	for _, scale := range []struct {
		of   float64
		name string
	}{{1e9, " G"}, {1e6, " M"}, {1e3, " k"}} {
		if v >= scale.of {
			return strconv.FormatFloat(v/scale.of, 'f', -1, 64) + scale.name
		}
	}
	return strconv.FormatFloat(v, 'f', -1, 64)
}

// agoTicks marks a time axis of n steps, every few of them, counted back from now.
func agoTicks(n, every int, unit string) plot.ConstantTicks {
	var list plot.ConstantTicks
	for back := every; back < n; back += every {
		list = append(list, plot.Tick{Value: float64(n - 1 - back), Label: fmt.Sprintf("−%d %s", back, unit)})
	}
	return list
}

func decisionsChart(hour []minute, t theme, width vg.Length) (*plot.Plot, error) {
	var allow, block, approval plotter.Values
	top := 0.0
	for _, m := range hour {
		allow, block, approval = append(allow, float64(m.Allow)), append(block, float64(m.Block)), append(approval, float64(m.Approval))
		top = max(top, float64(m.Allow+m.Block+m.Approval))
	}
	p := newPlot(t, top*1.05, "")
	p.X.Tick.Marker = agoTicks(len(hour), 15, "min")
	return p, stack(p, width, part{allow, t.allow}, part{approval, t.approval}, part{block, t.block})
}

func latencyChart(hour []minute, t theme) (*plot.Plot, error) {
	var gate, database plotter.XYs
	for i, m := range hour {
		if m.GateP95 == 0 && m.DatabaseP95 == 0 {
			continue
		}
		gate, database = append(gate, plotter.XY{X: float64(i), Y: m.GateP95}), append(database, plotter.XY{X: float64(i), Y: m.DatabaseP95})
	}
	return linesChart(t, " ms", len(hour), agoTicks(len(hour), 15, "min"), line{gate, t.quiet, nil}, line{database, t.approval, dashes})
}

// A line is one of a chart of lines.
type line struct {
	points plotter.XYs
	color  color.Color
	dashes []vg.Length
}

var dashes = []vg.Length{vg.Points(4), vg.Points(3)}

// linesChart draws lines over n steps of time.
func linesChart(t theme, unit string, n int, ticks plot.ConstantTicks, lines ...line) (*plot.Plot, error) {
	top := 0.0
	for _, one := range lines {
		for _, at := range one.points {
			top = max(top, at.Y)
		}
	}
	p := newPlot(t, top*1.1, unit)
	p.X.Min, p.X.Max = 0, float64(n-1)
	p.X.Tick.Marker = ticks
	for _, one := range lines {
		if len(one.points) == 0 {
			continue
		}
		if err := addLine(p, one.points, draw.LineStyle{Color: one.color, Width: vg.Points(1.6), Dashes: one.dashes}); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// addLine adds a line; a single point would not be seen, so it becomes a dot.
func addLine(p *plot.Plot, points plotter.XYs, style draw.LineStyle) error {
	line, dots, err := plotter.NewLinePoints(points)
	if err != nil {
		return err
	}
	line.LineStyle = style
	p.Add(line)
	if len(points) < 3 {
		dots.GlyphStyle = draw.GlyphStyle{Color: style.Color, Radius: vg.Points(2), Shape: draw.CircleGlyph{}}
		p.Add(dots)
	}
	return nil
}

// stampOf makes a chart's address new each time its picture is.
func stampOf(now time.Time) string {
	return strconv.FormatInt(now.Unix()/int64(sampleEvery/time.Second), 36)
}

// A part is one layer of a stacked bar chart.
type part struct {
	values plotter.Values
	color  color.Color
}

// stack puts bars on one another; a third of the room stays between them.
func stack(p *plot.Plot, width vg.Length, parts ...part) error {
	const margins = 0.6 * vg.Inch
	p.X.Min, p.X.Max = -0.6, float64(len(parts[0].values))-0.4
	var below *plotter.BarChart
	for _, one := range parts {
		bars, err := plotter.NewBarChart(one.values, (width-margins)/vg.Length(len(one.values))*2/3)
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
	p.X.Min, p.X.Max = -0.6, float64(len(parts[0].values))-0.4
	return nil
}
