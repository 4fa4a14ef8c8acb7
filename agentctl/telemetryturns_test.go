package agentctl

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/commands"
	"writegate/commands/fault"
	"writegate/projections"
)

// agents registers agents of a project and gives them as who sends telemetry.
func (w *world) agents(t *testing.T, project string, n int) (list []*Asker) {
	t.Helper()
	key := &Asker{Caller: Caller{Project: project, KeyID: "key_1"}, RequestID: "req_1"}
	for i := range n {
		name := fmt.Sprint("a", i)
		no := false
		_, err := w.Register(t.Context(), key, &RegisterInput{AgentInput: AgentInput{Name: name, Type: "worker"}, IssueToken: &no})
		require.NoError(t, err)
	}
	_, err := w.Agents(t.Context(), &key.Caller, projections.AgentFilter{Project: project}, projections.Page{Limit: n}, func(a AgentBody) (bool, error) {
		by := *key
		by.AgentID = a.ID
		list = append(list, &by)
		return true, nil
	})
	require.NoError(t, err)
	require.Len(t, list, n)
	return list
}

// sentEvents are n events of an agent.
func sentEvents(by *Asker, n int) []SentEvent {
	list := make([]SentEvent, n)
	for i := range list {
		list[i] = SentEvent{Bytes: 100, Input: &TelemetryInput{Type: "heartbeat", AgentID: by.AgentID}}
	}
	return list
}

// A batch that is not folded yet keeps the next one of its project out of the log,
// so that what everybody waits for is bounded; and who waits can leave.
func TestTelemetryWaitsUntilWhatWasSentBeforeItIsFolded(t *testing.T) {
	w := begin(t)
	agents := w.agents(t, "default", 3)
	require.NoError(t, w.Store.WaitApplied(t.Context(), w.log.Head().Seq))
	w.hold.Lock()
	release := sync.OnceFunc(w.hold.Unlock)
	t.Cleanup(release)
	before := w.log.Head().Seq
	var sending sync.WaitGroup
	sending.Go(func() {
		_, err := w.Telemetry(context.Background(), agents[0], sentEvents(agents[0], MaxTelemetryEvents))
		require.NoError(t, err)
	})
	require.Eventually(t, func() bool { return w.log.Head().Seq > before }, time.Minute, time.Millisecond)
	written := w.log.Head().Seq

	gone, leave := context.WithCancelCause(t.Context())
	leave(fmt.Errorf("the client left"))
	_, err := w.Telemetry(gone, agents[1], sentEvents(agents[1], 1))
	require.Equal(t, fault.AuditUnavailable, fault.CodeOf(err))
	require.ErrorContains(t, err, "waited for its turn")
	require.Equal(t, written, w.log.Head().Seq)

	// Others than telemetry have no turn to wait for, and leave in the same way.
	_, err = w.Commands.ResolveApproval(gone, commands.ResolveApproval{ID: "apr_1", Decision: "approve", By: "op"})
	require.Equal(t, fault.AuditUnavailable, fault.CodeOf(err))
	require.ErrorContains(t, err, "follow its log")
	_, err = w.AgentOf(gone, NewSecret(TokenPrefix))
	require.Equal(t, fault.AuditUnavailable, fault.CodeOf(err))

	release()
	sending.Wait()
	_, err = w.Telemetry(t.Context(), agents[1], sentEvents(agents[1], 1))
	require.NoError(t, err)
	require.Empty(t, w.folding.projects, "nothing is kept of who is done")
}

// What waits is bounded for each project, and one project leaves room for another.
func TestTurnsOfTelemetryAreSharedByProjects(t *testing.T) {
	turns := newTurns(telemetryOfOne)
	done, err := turns.take(t.Context(), "a", telemetryOfOne)
	require.NoError(t, err)
	var waiting sync.WaitGroup
	for range turnsWaiting - 1 {
		waiting.Go(func() {
			next, err := turns.take(context.Background(), "a", telemetryOfOne)
			require.NoError(t, err)
			next()
		})
	}
	require.Eventually(t, func() bool {
		turns.mu.Lock()
		defer turns.mu.Unlock()
		return turns.projects["a"].cost == turnsWaiting*telemetryOfOne
	}, time.Minute, time.Millisecond)
	_, err = turns.take(t.Context(), "a", 1)
	require.Equal(t, fault.RateLimitExceeded, fault.CodeOf(err))
	other, err := turns.take(t.Context(), "b", telemetryOfOne)
	require.NoError(t, err)
	other()
	done()
	waiting.Wait()
	require.Empty(t, turns.projects)
}

// What a batch costs grows with its events and with what they are read from.
func TestALargeBatchCostsMoreThanASmallOne(t *testing.T) {
	small, large := make([]SentEvent, 10), make([]SentEvent, 10)
	for i := range large {
		small[i].Bytes, large[i].Bytes = 200, MaxTelemetryBytes
	}
	require.EqualValues(t, 10, costOf(small))
	require.EqualValues(t, 50, costOf(large))
	require.EqualValues(t, telemetryOfOne, costOf(make([]SentEvent, MaxTelemetryEvents)))
}

// Rules are asked about a bounded number of events at once, over all agents and projects.
func TestRulesAreAskedInTurns(t *testing.T) {
	w := begin(t)
	agent := w.agent(t, "default")
	w.apply(t, "default", w.policy(t, "default", "log", `event.name.matches("(?:.?.?){80}Q1")`, 20), agent)
	b := telemetryBatch{service: w.Service, by: key("default"), sent: make([]telemetryItem, 3)}
	for i, e := range sent(3, agent) {
		b.read(i, &e)
	}
	require.NoError(t, w.Store.WaitApplied(t.Context(), w.log.Head().Seq))
	var free []func()
	for _, project := range []string{"a", "b"} {
		done, err := w.asking.take(t.Context(), project, stepsOfOne-1)
		require.NoError(t, err)
		free = append(free, done)
	}
	err := b.evaluate(untilItWaits(t, w.asking, "default", 1))
	require.Equal(t, fault.AuditUnavailable, fault.CodeOf(err))
	require.ErrorContains(t, err, "waited for its turn")
	require.Empty(t, b.matches)
	for _, done := range free {
		done()
	}
	require.NoError(t, b.evaluate(t.Context()))
	require.Len(t, b.matches, 3)
	require.Empty(t, w.asking.projects)
}

// untilItWaits is a context that ends when so much of a project has its turn or
// waits for it.
func untilItWaits(t testing.TB, turns *turns, project string, cost int64) context.Context {
	ctx, leave := context.WithCancel(t.Context())
	go func() {
		for ctx.Err() == nil {
			turns.mu.Lock()
			if p := turns.projects[project]; p != nil && p.cost >= cost {
				leave()
			}
			turns.mu.Unlock()
			time.Sleep(time.Millisecond)
		}
	}()
	return ctx
}
