package agentctl

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/eventlog"
	"writegate/eventlog/event"
	"writegate/projections"
	"writegate/sqlgate"
	"writegate/sqlgate/policy"
)

// counts is what the rules of an agent would read now, and what its throttles would say.
func (w *world) counts(t testing.TB, s *Service, agent string) *event.AgentLayer {
	t.Helper()
	d, err := s.Decide(t.Context(), sqlgate.Agent{ID: agent, Project: "default"}, &policy.Facts{Class: "write"}, false)
	require.NoError(t, err)
	return d.Layer
}

// asAfterAStart demands that what an agent's meter holds is what one has that is filled
// from the log.
func (w *world) asAfterAStart(t testing.TB, agent string, said ...any) {
	t.Helper()
	fresh, err := New(w.Options)
	require.NoError(t, err)
	require.Equal(t, w.counts(t, fresh, agent), w.counts(t, w.Service, agent), said...)
}

// throttled makes an agent whose statements and telemetry are throttled by several windows.
func (w *world) throttled(t testing.TB) (agent, policyID string) {
	t.Helper()
	always, in := "", &PolicyInput{Name: "p"}
	for _, action := range []string{"throttle:3/1m", "throttle:5/5m", "throttle:9/1h", "throttle:40/24h"} {
		in.Rules = append(in.Rules, RuleInput{Action: action, Condition: &always})
	}
	a, err := w.CreatePolicy(t.Context(), key("default"), in)
	require.NoError(t, err)
	agent, policyID = w.agent(t, "default"), a.Location[len("/v1/policies/"):]
	w.apply(t, "default", policyID, agent)
	return agent, policyID
}

// record decides one statement, again as often as it is told, and records the decision
// or gives it up. Time passes in between.
func (w *world) record(ctx context.Context, agent string, again int, pass time.Duration, recorded bool) error {
	for ; ; again-- {
		d, err := w.Decide(ctx, sqlgate.Agent{ID: agent, Project: "default"}, &policy.Facts{Class: "write"}, true)
		if err != nil {
			return err
		}
		w.now.Add(int64(pass))
		if again > 0 || !recorded {
			d.Counted(time.Time{})
			if again > 0 {
				continue
			}
			return nil
		}
		p, at := &event.DecisionRecorded{Facts: event.DecisionFacts{Class: "write"}, AgentLayer: d.Layer}, w.Now()
		_, err = w.log.Append(ctx, eventlog.Group{Drafts: []event.Draft{event.New(at, event.Context{Project: "default", AgentID: agent, Decision: "ALLOW"}, p)}})
		d.Counted(at)
		return err
	}
}

// Statements that are recorded, decided anew or given up, batches that are kept or not,
// requests and flushes, at once and in any order: a meter holds what one has after a
// start, and no window of the log holds more than its throttle lets through.
func TestMetersHoldWhatTheLogSaysUnderAnySchedule(t *testing.T) {
	for seed := range uint64(3) {
		draw := rand.New(rand.NewPCG(seed, 3))
		w := begin(t)
		agent, policyID := w.throttled(t)
		batches := 0
		for round := range 25 {
			var running sync.WaitGroup
			for range 1 + draw.IntN(6) {
				kind, again, pass, recorded := draw.IntN(8), draw.IntN(3), time.Duration(draw.Int64N(int64(3*time.Second))), draw.IntN(2) == 0
				batches++
				batch := batches
				list := sent(1+draw.IntN(3), agent)
				for i := range list {
					*list[i].Input.ID = fmt.Sprintf("e%d-%d", batch, i)
				}
				running.Go(func() {
					switch kind {
					case 0:
						w.Admit(&Caller{Project: "default", TokenID: "tok_1", AgentID: agent})
					case 1:
						if err := w.FlushUsage(t.Context(), false); err != nil {
							t.Error(err)
						}
					case 2, 3:
						if !recorded { // refused once its events were counted
							list = list[:1]
							list[0].Bytes = MaxTelemetryBytes
							for i := range 200 {
								one, id := list[0], fmt.Sprintf("x%d-%d", batch, i)
								input := *one.Input
								one.Input, input.ID = &input, &id
								list = append(list, one)
							}
						}
						if _, err := w.Telemetry(t.Context(), key("default"), list); (err == nil) != recorded {
							t.Errorf("a batch: %v", err)
						}
					default:
						if err := w.record(t.Context(), agent, again, pass, recorded); err != nil {
							t.Error(err)
						}
					}
				})
			}
			running.Wait()
			require.NoError(t, w.FlushUsage(t.Context(), true))
			w.asAfterAStart(t, agent, "seed %d, round %d", seed, round)
			steps := []time.Duration{time.Second, 30 * time.Second, 3 * time.Minute, 40 * time.Minute}
			w.now.Add(draw.Int64N(int64(steps[draw.IntN(len(steps))])))
		}
		recorded := w.did(t, agent, nil, w.Now()).throttles
		for i, window := range []struct {
			length time.Duration
			limit  int
		}{{time.Minute, 3}, {5 * time.Minute, 5}, {time.Hour, 9}, {24 * time.Hour, 40}} {
			times := recorded[throttleKey{policyID, fmt.Sprintf("r%d", i+1)}]
			require.NotEmpty(t, times)
			for k := window.limit; k < len(times); k++ {
				require.GreaterOrEqual(t, times[k].Sub(times[k-window.limit]), window.length, "seed %d, rule %d", seed, i)
			}
		}
	}
}

// A batch that the disk has no space for is not counted either.
func TestABatchThatWasNotWrittenIsNotCounted(t *testing.T) {
	w := begin(t)
	agent, _ := w.throttled(t)
	w.full.Store(true)
	list := sent(400, agent) // more than what is preallocated holds
	_, err := w.Telemetry(t.Context(), key("default"), list)
	require.Error(t, err)
	w.asAfterAStart(t, agent)
	w.full.Store(false)
	require.Eventually(t, func() bool { return w.Commands.Takes() == nil }, time.Minute, 10*time.Millisecond)
	_, err = w.Telemetry(t.Context(), key("default"), list)
	require.NoError(t, err)
	w.asAfterAStart(t, agent)
	require.EqualValues(t, 400, w.counts(t, w.Service, agent).Usage.Events1h)
}

// Nor does what was counted ahead stay for as long as the clock was ahead.
func TestAClockThatIsSetBackGivesNoUsageAnew(t *testing.T) {
	m, now := newMeter(), time.Unix(1_000_000, 0)
	for range 3 {
		m.add(minuteOf(now), &projections.AgentSums{Writes: 1, Decisions: 1})
	}
	m.match(throttleKey{"pol_1", "r"}, now)
	matches := func(at time.Time) int { return len(m.within(throttleKey{"pol_1", "r"}, time.Minute, at)) }
	l := newLimiter()
	_, ok := l.admit([]string{"key"}, now)
	require.True(t, ok)
	for _, back := range []time.Duration{0, time.Second, time.Minute, time.Hour, 48 * time.Hour, 500 * 24 * time.Hour} {
		now := now.Add(-back)
		require.EqualValues(t, 3, m.usage(now).SQLWrites1h, back)
		require.Equal(t, 1, matches(now), back)
		quota := l.look("key", now)
		require.Equal(t, RequestLimit-1, quota.Remaining, back)
		require.LessOrEqual(t, quota.ResetSeconds, 3600+120)
	}
	now = now.Add(-500 * 24 * time.Hour)
	require.EqualValues(t, 3, m.usage(now.Add(time.Hour)).SQLWrites1h)
	require.Zero(t, m.usage(now.Add(time.Hour+time.Minute)).SQLWrites1h, "they end a window later")
	require.Zero(t, matches(now.Add(time.Minute)))
	require.Zero(t, l.look("key", now.Add(time.Hour+time.Minute)).ResetSeconds)
}

// Who waited for a meter while it was forgotten takes the one in its place.
func TestAMeterThatWasForgottenIsNotCountedIn(t *testing.T) {
	m := newMeters()
	for range 500 {
		one := m.lock("agt_1")
		one.filled = true
		one.mu.Unlock()
		var running sync.WaitGroup
		for range 4 {
			running.Go(func() {
				one := m.lock("agt_1")
				defer one.mu.Unlock()
				if one.forgotten {
					t.Error("the meter is no agent's")
				}
			})
		}
		m.forget(time.Unix(0, 0))
		running.Wait()
	}
	one := m.lock("agt_1")
	one.filled = true
	one.mu.Unlock()
	m.forget(time.Unix(0, 0))
	require.True(t, one.forgotten)
	require.Empty(t, m.agents)
}
