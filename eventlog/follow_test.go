package eventlog

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
	"writegate/eventlog/frame/frametest"
)

// TestFollowersGetEveryEventOnceFromTheFileAndLive starts followers at all
// moments of a log's life and compares what they got with the file.
func TestFollowersGetEveryEventOnceFromTheFileAndLive(t *testing.T) {
	l, _ := mustOpen(t, memOptions(newMem(t)))
	type got struct {
		from   uint64
		events []event.Envelope
		err    error
	}
	const appends = followerBatches - 16 // a reader that sleeps through all of them has not lost any
	results := make(chan got, 10)
	follow := func(from uint64) {
		g := got{from: from}
		for b, err := range l.Follow(context.Background(), from) {
			if err != nil {
				g.err = err
				break
			}
			g.events = append(g.events, b.Events...)
		}
		results <- g
	}
	started := 0
	for i := range appends {
		if i%60 == 0 {
			go follow(1)
			go follow(uint64(i))
			started += 2
		}
		mustAppend(t, l, numbered(fmt.Sprint(i), 1+i%4)...)
	}
	var want []event.Envelope
	for e, err := range l.From(context.Background(), 1) {
		require.NoError(t, err)
		want = append(want, e)
	}
	mustClose(t, l)
	for range started {
		g := <-results
		if errors.Is(g.err, ErrClosed) {
			continue // it was still reading the file
		}
		require.NoError(t, g.err)
		require.Equal(t, want[max(g.from, 1)-1:], g.events, "live events are what the file says")
	}
}

// TestALiveEventIsWhatTheFileSays holds the one shortcut to account: followers
// get the drafts of the appender, never decoded.
func TestALiveEventIsWhatTheFileSays(t *testing.T) {
	l, _ := mustOpen(t, memOptions(newMem(t)))
	live := make(chan Batch)
	ready := make(chan struct{})
	go func() {
		defer close(live)
		for b, err := range l.Follow(context.Background(), 1) {
			if err != nil {
				t.Error(err)
				return
			}
			if b.Events[0].Seq == 1 {
				close(ready)
				continue
			}
			live <- b
		}
	}()
	mustAppend(t, l, "first")
	<-ready
	at := time.Now() // monotonic reading, local zone, zero-length parts
	d := event.Draft{
		ID: event.NewID(at), Type: event.TypeDecisionRecorded, TypeVersion: 1, Time: at,
		Context: event.Context{Actor: "someone", Decision: "ALLOW", ApprovalID: event.NewApprovalID(at)},
		Payload: (&event.DecisionRecorded{Enforced: true, RuleID: "r", Layer: "rule", Matched: []string{"a", ""}}).Fields(),
	}
	c, err := l.Append(context.Background(), Group{Drafts: []event.Draft{d, draft("", 0)}})
	require.NoError(t, err)
	b := <-live
	for i, seq := range []uint64{c.First, c.Last} {
		e, err := l.At(seq)
		require.NoError(t, err)
		require.Equal(t, e, b.Events[i])
	}
	require.Equal(t, c.Last, b.Last())
	mustClose(t, l)
	_, open := <-live
	require.False(t, open)
}

func TestASlowFollowerIsEndedWithItsLastEventAndNeverSkips(t *testing.T) {
	l, _ := mustOpen(t, memOptions(newMem(t)))
	mustAppend(t, l, "0")
	asleep := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { // runs ahead while the reader sleeps over its first live batch
		defer close(asleep)
		for !followed(l) {
			time.Sleep(time.Millisecond)
		}
		for range followerBatches + 10 {
			if _, err := l.Append(context.Background(), group("x")); err != nil {
				t.Error(err)
			}
		}
	})
	var seen []uint64
	var slow *SlowReaderError
	for b, err := range l.Follow(context.Background(), 1) {
		if err != nil {
			require.ErrorAs(t, err, &slow)
			break
		}
		for _, e := range b.Events {
			seen = append(seen, e.Seq)
		}
		if b.Last() > 1 {
			<-asleep
		}
	}
	wg.Wait()
	require.NotNil(t, slow)
	for i, seq := range seen {
		require.EqualValues(t, i+1, seq)
	}
	require.EqualValues(t, len(seen), slow.Last)
	for b, err := range l.Follow(context.Background(), slow.Last+1) {
		require.NoError(t, err)
		require.Equal(t, slow.Last+1, b.Events[0].Seq)
		break
	}
}

func followed(l *Log) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.followers.set) > 0
}

func TestFollowEndsWithItsContext(t *testing.T) {
	l, _ := mustOpen(t, memOptions(newMem(t)))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	mustAppend(t, l, "a")
	for b, err := range l.Follow(ctx, 1) {
		if err != nil {
			require.ErrorIs(t, err, context.Canceled)
			break
		}
		require.Equal(t, uint64(1), b.Last())
		cancel()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	require.Empty(t, l.followers.set, "a follower that is gone costs nothing")
}

func TestReadersSeeNothingBeforeItIsDurable(t *testing.T) {
	l, k, _ := guarded(t, nil)
	held, release := k.holdOn(frametest.Datasync)
	defer release()
	pending := appendLater(l, group("a"))
	<-held
	require.Empty(t, names(t, l))
	_, err := l.At(1)
	require.ErrorIs(t, err, ErrNotFound)
	release()
	require.NoError(t, <-pending)
	require.Equal(t, []string{"a"}, names(t, l))
}

func TestFromGivesTheRestOfTheLogFromAnyEvent(t *testing.T) {
	l, _ := mustOpen(t, memOptions(newMem(t)))
	for i := range 100 {
		mustAppend(t, l, numbered(fmt.Sprint(i, "/"), 1+i%7)...)
	}
	last := l.Head().Seq
	for from := range last + 3 {
		next := max(from, 1)
		for e, err := range l.From(context.Background(), from) {
			require.NoError(t, err)
			require.Equal(t, next, e.Seq)
			next++
		}
		require.Equal(t, max(last+1, from), next)
		if from >= 1 && from <= last {
			e, err := l.At(from)
			require.NoError(t, err)
			require.Equal(t, from, e.Seq)
		}
	}
}
