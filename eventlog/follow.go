package eventlog

import (
	"context"
	"iter"
	"sync"
	"sync/atomic"

	"writegate/eventlog/event"
)

// What waits for one follower in memory: so many committed batches, and so many bytes
// of their records, which as events take up to ten times as much. One that is slower
// reads on from the file. The log itself never waits for a reader.
const (
	followerBatches = 256
	followerBytes   = 8 << 20
	streamBytes     = 128 << 10
)

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
	ch      chan *live
	most    int          // bytes that may wait
	waiting atomic.Int64 // bytes that do
	lost    bool         // set before ch is closed: it was too slow, and reads the file
}

// live is one committed batch on its way to its followers.
type live struct {
	bytes  int
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

func (fs *followers) add(most int) *follower {
	f := &follower{ch: make(chan *live, followerBatches), most: most}
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

// send hands a batch to every follower. One that has too much waiting is left to the
// file, and what waits for it is given up.
func (fs *followers) send(b *batch) {
	if len(fs.set) == 0 {
		return
	}
	v := &live{bytes: len(b.buf), groups: b.groups}
	b.groups = nil
	for f := range fs.set {
		if f.waiting.Load()+int64(v.bytes) <= int64(f.most) {
			select {
			case f.ch <- v:
				f.waiting.Add(int64(v.bytes))
				continue
			default:
			}
		}
		f.lost = true
		fs.drop(f)
		for range f.ch {
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
// and then as they are committed, without a gap; a reader that falls behind gets them
// from the file again. It ends without an error when the log is closed and everything
// was delivered, or with the error of ctx or of a read.
func (l *Log) Follow(ctx context.Context, seq uint64) iter.Seq2[Batch, error] {
	return l.follow(ctx, seq, followerBytes)
}

// Stream is Follow for a client, of which there may be many that read slowly: little is
// kept for it, and what one sync made durable comes in several batches where it is large.
func (l *Log) Stream(ctx context.Context, seq uint64) iter.Seq2[Batch, error] {
	return l.follow(ctx, seq, streamBytes)
}

func (l *Log) follow(ctx context.Context, seq uint64, most int) iter.Seq2[Batch, error] {
	return func(yield func(Batch, error) bool) {
		t := &tail{l: l, next: max(seq, 1), most: most, yield: yield}
		for again := true; again; {
			again = t.fromFile(ctx) && t.live(ctx)
		}
	}
}

// tail is one run of Follow.
type tail struct {
	l     *Log
	next  uint64
	most  int
	yield func(Batch, error) bool
}

// fromFile catches up while the end is far: nothing live is kept meanwhile.
func (t *tail) fromFile(ctx context.Context) bool {
	for t.l.Head().Seq >= t.next {
		if !t.catchUp(ctx) {
			return false
		}
	}
	return true
}

// catchUp gives what the file holds up to the durable head. It gives false when
// the run is over.
func (t *tail) catchUp(ctx context.Context) bool {
	var events []event.Envelope
	bytes := 0
	for p, err := range t.l.frames(ctx, t.next, t.l.Head()) {
		if err != nil {
			t.yield(Batch{}, err)
			return false
		}
		e, err := envelope(&p.Frame)
		if err != nil {
			t.yield(Batch{}, err)
			return false
		}
		events, bytes = append(events, e), bytes+len(p.Record)
		if p.BatchLeft > 0 && bytes < t.most {
			continue
		}
		if !t.give(events) {
			return false
		}
		events, bytes = nil, 0
	}
	return len(events) == 0 || t.give(events)
}

func (t *tail) give(events []event.Envelope) bool {
	t.next = events[len(events)-1].Seq + 1
	return t.yield(Batch{Events: events}, nil)
}

// live gives committed batches as they come. A batch that the file has already
// given, wholly or in part, is not given twice. It gives true where it fell behind.
func (t *tail) live(ctx context.Context) (again bool) {
	t.l.mu.Lock()
	f := t.l.followers.add(t.most)
	t.l.mu.Unlock()
	defer func() {
		t.l.mu.Lock()
		defer t.l.mu.Unlock()
		t.l.followers.drop(f)
	}()
	if !t.catchUp(ctx) {
		return false
	}
	for {
		select {
		case <-ctx.Done():
			t.yield(Batch{}, ctx.Err())
			return false
		case v, open := <-f.ch:
			if !open {
				return f.lost
			}
			f.waiting.Add(-int64(v.bytes))
			events := v.batch()
			if last := events[len(events)-1].Seq; last < t.next {
				continue
			}
			switch first := events[0].Seq; {
			case first > t.next: // those before it were given up meanwhile
				return true
			case first < t.next:
				events = events[t.next-first:]
			}
			if !t.give(events) {
				return false
			}
		}
	}
}
