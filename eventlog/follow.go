package eventlog

import (
	"context"
	"iter"
	"sync"

	"writegate/eventlog/event"
)

// followerBatches is how many committed batches wait for one follower before it
// is ended. The log itself never waits for a reader.
const followerBatches = 256

// A Batch is what one sync made durable, or the same piece of the log read
// again. The events are shared with other followers and must not be changed.
type Batch struct{ Events []event.Envelope }

// Last is the sequence number of the batch's last event.
func (b Batch) Last() uint64 { return b.Events[len(b.Events)-1].Seq }

// followers are the readers of the live end. Log.mu guards it.
type followers struct {
	set   map[*follower]struct{}
	ended bool
}

type follower struct {
	ch   chan *live
	lost bool // set before ch is closed: it was too slow
}

// live is one committed batch on its way to its followers.
type live struct {
	groups []placed
	once   sync.Once
	events []event.Envelope
}

// batch makes the envelopes once, on the goroutine of the first follower that
// wants them: the flusher has better things to do.
func (v *live) batch() []event.Envelope {
	v.once.Do(func() { v.events, v.groups = envelopes(v.groups), nil })
	return v.events
}

func (fs *followers) add() *follower {
	f := &follower{ch: make(chan *live, followerBatches)}
	if fs.ended {
		close(f.ch)
		return f
	}
	if fs.set == nil {
		fs.set = make(map[*follower]struct{})
	}
	fs.set[f] = struct{}{}
	return f
}

// send hands a batch to every follower. One whose channel is full is ended.
func (fs *followers) send(b *batch) {
	if len(fs.set) == 0 {
		return
	}
	v := &live{groups: b.groups}
	b.groups = nil
	for f := range fs.set {
		select {
		case f.ch <- v:
		default:
			f.lost = true
			fs.drop(f)
		}
	}
}

func (fs *followers) drop(f *follower) {
	if _, ok := fs.set[f]; ok {
		delete(fs.set, f)
		close(f.ch)
	}
}

// end ends all followers after what they still have in their channels.
func (fs *followers) end() {
	fs.ended = true
	for f := range fs.set {
		fs.drop(f)
	}
}

// Follow gives the durable events from seq on in batches, first from the file
// and then as they are committed, without a gap. It ends without an error when
// the log is closed and everything was delivered; with a *SlowReaderError when
// the reader fell too far behind; with the error of ctx or of a read.
func (l *Log) Follow(ctx context.Context, seq uint64) iter.Seq2[Batch, error] {
	return func(yield func(Batch, error) bool) {
		t := &tail{l: l, next: max(seq, 1), yield: yield}
		for l.Head().Seq >= t.next { // far behind: nothing live is kept for it yet
			if !t.catchUp(ctx) {
				return
			}
		}
		l.mu.Lock()
		f := l.followers.add()
		l.mu.Unlock()
		defer func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.followers.drop(f)
		}()
		if t.catchUp(ctx) {
			t.live(ctx, f)
		}
	}
}

// tail is one run of Follow.
type tail struct {
	l     *Log
	next  uint64
	yield func(Batch, error) bool
}

// catchUp gives what the file holds up to the durable head. It gives false when
// the run is over.
func (t *tail) catchUp(ctx context.Context) bool {
	var events []event.Envelope
	for p, err := range t.l.frames(ctx, t.next, t.l.Head(), false) {
		if err != nil {
			t.yield(Batch{}, err)
			return false
		}
		e, err := envelope(&p.Frame)
		if err != nil {
			t.yield(Batch{}, err)
			return false
		}
		if events = append(events, e); p.BatchLeft > 0 {
			continue
		}
		if !t.give(events) {
			return false
		}
		events = nil
	}
	return len(events) == 0 || t.give(events)
}

func (t *tail) give(events []event.Envelope) bool {
	t.next = events[len(events)-1].Seq + 1
	return t.yield(Batch{Events: events}, nil)
}

// live gives committed batches as they come. A batch that the file has already
// given, wholly or in part, is not given twice.
func (t *tail) live(ctx context.Context, f *follower) {
	for {
		select {
		case <-ctx.Done():
			t.yield(Batch{}, ctx.Err())
			return
		case v, open := <-f.ch:
			if !open {
				if f.lost {
					t.yield(Batch{}, &SlowReaderError{Last: t.next - 1})
				}
				return
			}
			events := v.batch()
			if last := events[len(events)-1].Seq; last < t.next {
				continue
			}
			if first := events[0].Seq; first < t.next {
				events = events[t.next-first:]
			}
			if !t.give(events) {
				return
			}
		}
	}
}
