package eventlog

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
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
		e, err := l.At(context.Background(), seq)
		require.NoError(t, err)
		require.Equal(t, e, b.Events[i])
	}
	require.Equal(t, c.Last, b.Last())
	mustClose(t, l)
	_, open := <-live
	require.False(t, open)
}

// A reader that is slower than the log gets every event once all the same, and what waits
// for it meanwhile is bounded: the rest is read from the file.
func TestASlowFollowerReadsOnFromTheFileAndNeverSkips(t *testing.T) {
	for name, c := range map[string]struct {
		follow  func(*Log) iter.Seq2[Batch, error]
		payload int // bytes of an event
		n       int
		most    int
	}{
		"more batches than may wait": {func(l *Log) iter.Seq2[Batch, error] { return l.Follow(context.Background(), 1) }, 1, followerBatches + 10, followerBytes},
		"more bytes":                 {func(l *Log) iter.Seq2[Batch, error] { return l.Follow(context.Background(), 1) }, 500 << 10, 40, followerBytes},
		"a client's stream":          {func(l *Log) iter.Seq2[Batch, error] { return l.Stream(context.Background(), 1) }, 10 << 10, 60, streamBytes},
	} {
		t.Run(name, func(t *testing.T) {
			l, _ := mustOpen(t, memOptions(newMem(t)))
			mustAppend(t, l, "0")
			asleep := make(chan struct{})
			var wg sync.WaitGroup
			wg.Go(func() { // runs ahead while the reader sleeps over its first live batch
				defer close(asleep)
				for !followed(l) {
					time.Sleep(time.Millisecond)
				}
				lost := false
				for range c.n {
					if _, err := l.Append(context.Background(), group(strings.Repeat("x", c.payload))); err != nil {
						t.Error(err)
					}
					f := oneFollower(l)
					if lost = lost || f == nil; f != nil && f.waiting.Load() > int64(c.most) {
						t.Errorf("%d bytes wait", f.waiting.Load())
					}
				}
				if !lost {
					t.Error("it was never too slow")
				}
			})
			next := uint64(1)
			for b, err := range c.follow(l) {
				require.NoError(t, err)
				for _, e := range b.Events {
					require.Equal(t, next, e.Seq)
					next++
				}
				if b.Last() > 1 {
					<-asleep
				}
				if b.Last() == uint64(c.n)+1 {
					break
				}
			}
			wg.Wait()
			mustClose(t, l)
		})
	}
}

// What waits for a reader that was too slow is given up at once, not when it comes back.
func TestNothingIsKeptForAFollowerThatIsTooSlow(t *testing.T) {
	var fs followers
	f := fs.add(100)
	send := func(bytes int) { fs.send(&batch{buf: make([]byte, bytes)}) }
	send(60)
	send(40)
	require.Len(t, f.ch, 2)
	send(1)
	require.True(t, f.lost)
	require.Empty(t, f.ch)
	require.Empty(t, fs.set)
	f = fs.add(100)
	send(101)
	require.True(t, f.lost, "what is too large is read from the file")
}

// One sync may make much durable: a client's stream gets it in pieces.
func TestAStreamGetsALargeBatchInPieces(t *testing.T) {
	l, _ := mustOpen(t, memOptions(newMem(t)))
	var drafts []event.Draft
	for range 64 {
		drafts = append(drafts, draft(strings.Repeat("x", 10<<10), 0))
	}
	_, err := l.Append(context.Background(), Group{Drafts: drafts})
	require.NoError(t, err)
	next := uint64(1)
	for b, err := range l.Stream(context.Background(), 1) {
		require.NoError(t, err)
		require.Equal(t, next, b.Events[0].Seq)
		require.LessOrEqual(t, len(b.Events), streamBytes/(10<<10)+1)
		if next = b.Last() + 1; next > 64 {
			break
		}
	}
	mustClose(t, l)
}

func oneFollower(l *Log) *follower {
	l.mu.Lock()
	defer l.mu.Unlock()
	for f := range l.followers.set {
		return f
	}
	return nil
}

func followed(l *Log) bool { return oneFollower(l) != nil }

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
	_, err := l.At(context.Background(), 1)
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
			e, err := l.At(context.Background(), from)
			require.NoError(t, err)
			require.Equal(t, from, e.Seq)
		}
	}
}
