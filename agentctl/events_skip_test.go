package agentctl

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/eventlog"
	"writegate/eventlog/event"
)

// given is the world's log with a count of the events that it gave.
type given struct {
	*world
	n int
}

func (g *given) Stream(ctx context.Context, seq uint64) iter.Seq2[eventlog.Batch, error] {
	return func(yield func(eventlog.Batch, error) bool) {
		for b, err := range g.log.Stream(ctx, seq) {
			g.n += len(b.Events)
			if !yield(b, err) {
				return
			}
		}
	}
}

// A stream that catches up reads where its filter finds something, gives all of that
// once and in order, and goes on with what comes.
func TestAStreamSkipsWhatItsFilterDoesNotFind(t *testing.T) {
	w := begin(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var wanted []uint64
	head := uint64(0)
	add := func(agent string, n int) {
		drafts := make([]event.Draft, n)
		for i := range drafts {
			drafts[i] = event.New(w.Now(), event.Context{Actor: "a", Project: "p", AgentID: agent, RequestID: fmt.Sprintf("req_%d", i)}, &event.RequestReceived{})
		}
		for some := range slices.Chunk(drafts, 500) {
			appended, err := w.log.Append(ctx, eventlog.Group{Drafts: some})
			require.NoError(t, err)
			head = appended.Last
			for i := range some {
				if agent == "agt_1" {
					wanted = append(wanted, head-uint64(len(some)-1-i))
				}
			}
		}
	}
	for range 3 {
		add("agt_2", 8000)
		add("agt_1", 2)
		add("agt_2", 100)
		add("agt_1", 1500)
	}
	add("agt_2", 8000)
	require.Eventually(t, func() bool {
		view := w.Store.View()
		defer view.Close()
		return view.Applied().Seq >= head
	}, time.Minute, time.Millisecond)

	caller := Caller{Project: "p", KeyID: "key_1", whole: true}
	log := &given{world: w}
	var got []string
	last := ""
	err := w.Follow(ctx, &caller, EventFilter{AgentID: "agt_1"}, log, Place{}, func(id, kind string, _ []byte) error {
		require.Equal(t, "request_received", kind)
		if got = append(got, id); len(got) == len(wanted) && last == "" {
			last = id
			add("agt_2", 10)
			add("agt_1", 1)
		} else if len(got) == len(wanted) {
			cancel()
		}
		return nil
	})
	require.ErrorIs(t, err, context.Canceled)
	want := make([]string, len(wanted))
	for i, seq := range wanted {
		want[i] = fmt.Sprintf("%d.0", seq)
	}
	require.Equal(t, want, got)
	require.Less(t, log.n, 20_000, "of %d events", head)
}
