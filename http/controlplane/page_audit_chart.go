package controlplane

import (
	"cmp"
	"context"
	"maps"
	"net/url"
	"slices"
	"time"
)

// A decisionChart counts decisions that fit a filter, over time and by rule.
type decisionChart struct {
	Steps           []chartStep
	Every           time.Duration
	From, Until     time.Time // of the steps
	Allow, Approval int
	Block, Most     int // Most are the decisions of the step that has most
	Cut             bool
	Rules           []ruleCount
	Others          int           // rules that are not shown
	Kept            []filterField // what a form for another span of time sends along
}

// A chartStep is one bar, in units of the picture: decisions stand on one another.
type chartStep struct {
	Start, End             time.Time
	Allow, Approval, Block int
	X                      int
	Layers                 []chartLayer
}

type chartLayer struct {
	Tone      string
	Y, Height int
}

type ruleCount struct {
	ID, Layer, Address string
	Count, Width       int // Width is its share of the longest, in hundredths
}

// Sizes of the chart. Decisions are read from the log, so it counts the newest of them.
const (
	chartPages = 3 // of a thousand decisions each, or of fewer that are large
	mostSteps  = 30
	stepWidth  = 10 // in units of the picture, a fifth of which stays free
	stepHeight = 100
	mostRules  = 8
)

// stepLengths are those that people count in; longer ones double the last.
var stepLengths = []time.Duration{time.Second, 5 * time.Second, 15 * time.Second, time.Minute, 5 * time.Minute, 15 * time.Minute, time.Hour, 3 * time.Hour, 6 * time.Hour, 12 * time.Hour, 24 * time.Hour}

// A decided is what a chart reads of a decision.
type decided struct {
	Timestamp time.Time `json:"timestamp"`
	Decision  string    `json:"decision"`
	Payload   struct {
		RuleID string `json:"rule_id"`
		Layer  string `json:"layer"`
		Run    string `json:"run"`
	} `json:"payload"`
}

// decisionsChart counts the newest decisions that fit the filter of what is shown,
// whatever types of events it names; nil: there are none.
func (s *Server) decisionsChart(ctx context.Context, filter, shown url.Values) (*decisionChart, error) {
	asked := s.askedOf(filter, "1000")
	asked["event_type"] = []string{"decision_recorded"}
	var all []decided
	more := true
	for range chartPages {
		page, err := ask[list[decided]](ctx, s, request{path: "/audit", query: asked})
		if err != nil {
			return nil, err
		}
		all = append(all, slices.DeleteFunc(page.Items, func(d decided) bool { return d.Payload.Run == "describe" })...) // see describes
		if asked.Set("cursor", page.next()); page.next() == "" {
			more = false
			break
		}
	}
	if len(all) == 0 {
		return nil, nil //nolint:nilnil // there is no chart of nothing
	}
	since, _ := time.Parse(time.RFC3339, asked.Get("since"))
	until, _ := time.Parse(time.RFC3339, asked.Get("until"))
	if more {
		since = time.Time{} // what lies before those that were read is not known
	}
	if now := s.now(); until.After(now) || until.IsZero() && !since.IsZero() {
		until = now
	}
	v := newDecisionChart(all, since, until)
	v.Cut = more
	v.rules(all, shown)
	for _, name := range slices.Sorted(maps.Keys(shown)) {
		for _, value := range shown[name] {
			if name != "since" && name != "until" {
				v.Kept = append(v.Kept, filterField{Name: name, Value: value})
			}
		}
	}
	return v, nil
}

// newDecisionChart lays out steps over all decisions and over the span that was asked
// for, as far as it is not much longer than the one that they fill.
func newDecisionChart(all []decided, since, until time.Time) *decisionChart {
	byTime := func(a, b decided) int { return a.Timestamp.Compare(b.Timestamp) }
	first, last := slices.MinFunc(all, byTime).Timestamp, slices.MaxFunc(all, byTime).Timestamp
	if !since.IsZero() && since.After(first.AddDate(-1, 0, 0)) && since.Before(first) {
		first = since
	}
	if until.After(last) && until.Before(last.AddDate(1, 0, 0)) {
		last = until.Add(-1) // which is no part of the span
	}
	v := &decisionChart{}
	for i := 0; i == 0 || last.Sub(v.From)/mostSteps >= v.Every; i++ {
		if v.Every *= 2; i < len(stepLengths) {
			v.Every = stepLengths[i]
		}
		v.From = first.UTC().Truncate(v.Every)
	}
	for v.Until = v.From; !v.Until.After(last); {
		at := v.Until
		v.Until = at.Add(v.Every)
		v.Steps = append(v.Steps, chartStep{Start: at, End: v.Until, X: len(v.Steps) * stepWidth})
	}
	for _, d := range all {
		switch at := &v.Steps[d.Timestamp.Sub(v.From)/v.Every]; d.Decision {
		case "ALLOW":
			at.Allow, v.Allow = at.Allow+1, v.Allow+1
		case "BLOCK":
			at.Block, v.Block = at.Block+1, v.Block+1
		case "REQUIRE_APPROVAL":
			at.Approval, v.Approval = at.Approval+1, v.Approval+1
		}
	}
	for _, at := range v.Steps {
		v.Most = max(v.Most, at.Allow+at.Approval+at.Block)
	}
	for i := range v.Steps {
		v.Steps[i].stack(v.Most)
	}
	return v
}

// Width is that of the picture, Seconds the length of a step.
func (v *decisionChart) Width() int     { return len(v.Steps) * stepWidth }
func (v *decisionChart) Seconds() int64 { return int64(v.Every / time.Second) }

// stack puts the layers of a bar on one another. The least is seen, too.
func (c *chartStep) stack(most int) {
	top := stepHeight
	for _, layer := range []struct {
		tone  string
		count int
	}{{"good", c.Allow}, {"warn", c.Approval}, {"bad", c.Block}} {
		if layer.count > 0 {
			height := min(top, max(2, layer.count*stepHeight/most))
			top -= height
			c.Layers = append(c.Layers, chartLayer{layer.tone, top, height})
		}
	}
}

// rules counts by rule, those with most decisions first.
func (v *decisionChart) rules(all []decided, shown url.Values) {
	counts := make(map[ruleCount]int)
	for _, d := range all {
		counts[ruleCount{ID: d.Payload.RuleID, Layer: d.Payload.Layer}]++
	}
	most := 0
	for _, rule := range slices.SortedFunc(maps.Keys(counts), func(a, b ruleCount) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a.ID, b.ID), cmp.Compare(a.Layer, b.Layer))
	}) {
		if len(v.Rules) == mostRules {
			v.Others = len(counts) - mostRules
			break
		}
		count := counts[rule]
		if len(v.Rules) == 0 {
			most = count
		}
		rule.Count, rule.Width = count, max(1, count*100/most)
		rule.Address = addressOf(shown, "rule_id", rule.ID)
		v.Rules = append(v.Rules, rule)
	}
}
