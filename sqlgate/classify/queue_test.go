package classify

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
)

// waiting is how many wait in all.
func (q *queue[T]) waiting() (n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, l := range q.lines {
		n += len(l.waiting)
	}
	return n
}

func TestClientsTakeTurns(t *testing.T) {
	q := newQueue(0)
	_, err := q.take(t.Context(), "a", time.Minute)
	require.NoError(t, err)
	var got []string
	var group sync.WaitGroup
	for i, client := range []string{"a", "a", "a", "b", "a", "c", "b"} {
		group.Go(func() {
			one, err := q.take(t.Context(), client, time.Minute)
			require.NoError(t, err)
			got = append(got, client) // one at a time has it
			q.give(one)
		})
		require.Eventually(t, func() bool { return q.waiting() == i+1 }, time.Minute, time.Millisecond)
	}
	q.give(0)
	group.Wait()
	require.Equal(t, []string{"a", "b", "c", "a", "b", "a", "a"}, got)
	require.Equal(t, []int{0}, q.free)
	require.Empty(t, q.lines)
	require.Empty(t, q.turns)
}

func TestAWaitForAParserHasItsEnd(t *testing.T) {
	q := newQueue(0)
	_, err := q.take(t.Context(), "a", time.Minute)
	require.NoError(t, err)
	_, err = q.take(t.Context(), "b", time.Millisecond)
	err = statementFault(err)
	requireFault(t, err, fault.RateLimitExceeded, limitParserWait)
	require.Equal(t, 1, fault.Of(err).Details["retry_after_seconds"])
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = q.take(ctx, "b", time.Minute)
	require.ErrorIs(t, err, context.Canceled)
	require.Zero(t, q.waiting())
	q.give(0)
	_, err = q.take(t.Context(), "b", time.Minute)
	require.NoError(t, err, "who left took none along")
}

type clientKey struct{}

func TestTextsWaitInTheLineOfTheirClient(t *testing.T) {
	c := byCPUAlone(newClassifier(t, Config{ClientOf: func(ctx context.Context) string { return ctx.Value(clientKey{}).(string) }}))
	_, giveBack := takeChild(t, c)
	var group sync.WaitGroup
	for i, client := range []string{"many", "many", "one"} {
		group.Go(func() {
			_, err := c.Classify(context.WithValue(t.Context(), clientKey{}, client), longText(10_000))
			require.NoError(t, err)
		})
		require.Eventually(t, func() bool { return c.children.free.waiting() == i+1 }, time.Minute, time.Millisecond)
	}
	require.Len(t, c.children.free.lines["many"].waiting, 2)
	require.Len(t, c.children.free.lines["one"].waiting, 1)
	giveBack()
	group.Wait()
}
