package controlplane

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Whatever clocks and filters say, every decision stands in the one step that holds its
// time, and there are not more steps than fit.
func TestAChartOfDecisionsHoldsThemAll(t *testing.T) {
	at := func(text string) time.Time {
		moment, err := time.Parse(time.RFC3339Nano, text)
		require.NoError(t, err)
		return moment
	}
	now := at("2026-01-31T08:00:00.123456789Z")
	for name, c := range map[string]struct {
		times        []time.Time
		since, until time.Time
		every        time.Duration
	}{
		"one":                       {times: []time.Time{now}, every: time.Second},
		"on a boundary":             {times: []time.Time{now.Truncate(time.Second), now.Truncate(time.Second).Add(29 * time.Second)}, every: time.Second},
		"behind it":                 {times: []time.Time{now.Truncate(time.Second), now.Truncate(time.Second).Add(30 * time.Second)}, every: 5 * time.Second},
		"the newest is not first":   {times: []time.Time{now, now.Add(time.Hour), now.Add(-time.Hour)}, every: 5 * time.Minute},
		"an hour that was asked":    {times: []time.Time{now}, since: now.Add(-time.Hour), until: now, every: 5 * time.Minute},
		"since ever, until the end": {times: []time.Time{now, now.Add(time.Minute)}, since: at("0001-01-01T00:00:00Z"), until: at("9999-12-31T23:59:59Z"), every: 5 * time.Second},
		"clocks that went far":      {times: []time.Time{time.Unix(0, 0), now, time.Unix(0, 1<<63-1)}, every: 24 * time.Hour << 12},
	} {
		all := make([]decided, 0, len(c.times))
		for _, moment := range c.times {
			all = append(all, decided{Timestamp: moment, Decision: "ALLOW"})
		}
		v := newDecisionChart(all, c.since, c.until)
		require.Equal(t, c.every, v.Every, name)
		require.LessOrEqual(t, len(v.Steps), mostSteps, name)
		require.Equal(t, len(all), v.Allow, name)
		require.Equal(t, v.Until, v.Steps[len(v.Steps)-1].End, name)
		for _, step := range v.Steps {
			count := 0
			for _, moment := range c.times {
				if !moment.Before(step.Start) && moment.Before(step.End) {
					count++
				}
			}
			require.Equal(t, count, step.Allow, "%s: %s", name, step.Start)
			require.Equal(t, count > 0, len(step.Layers) > 0, name)
		}
	}
}
