package classify

import (
	"context"
	"errors"
	"sync"
	"time"

	"writegate/commands/fault"
)

// maxQueueWait bounds the wait for a parser. With turns between clients it is as long
// only where a client asks for more at once than a parser does in that time, or
// where very many clients do.
const maxQueueWait = 15 * time.Second

// A queue hands out what there is only so much of. Whoever waits gets it by turns
// between clients, and of one client in the order in which its requests came: so one
// that asks for much at once waits for itself, and others for one of its requests.
type queue[T any] struct {
	mu    sync.Mutex
	free  []T
	lines map[string]*waitingOf[T] // of those who wait, by client
	turns []*waitingOf[T]          // the same; the first is next
}

type waitingOf[T any] struct {
	client  string
	waiting []chan T
}

func newQueue[T any](free ...T) *queue[T] {
	return &queue[T]{free: free, lines: map[string]*waitingOf[T]{}}
}

// errNoTurn tells that a wait came to its end.
var errNoTurn = errors.New("classify: no turn came within the wait")

// take waits for one, for most at most: then the error is errNoTurn.
func (q *queue[T]) take(ctx context.Context, client string, most time.Duration) (one T, err error) {
	q.mu.Lock()
	if n := len(q.free); n > 0 {
		one, q.free = q.free[n-1], q.free[:n-1]
		q.mu.Unlock()
		return one, nil
	}
	given := q.enter(client)
	q.mu.Unlock()
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case one = <-given:
		return one, nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-timer.C:
		err = errNoTurn
	}
	if !q.leave(client, given) {
		q.give(<-given) // it came at the same moment
	}
	return one, err
}

func (q *queue[T]) enter(client string) chan T {
	l := q.lines[client]
	if l == nil {
		l = &waitingOf[T]{client: client}
		q.lines[client] = l
		q.turns = append(q.turns, l)
	}
	given := make(chan T, 1)
	l.waiting = append(l.waiting, given)
	return given
}

// leave takes a wait out of its line; false where it was given one already.
func (q *queue[T]) leave(client string, given chan T) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.lines[client]
	if l == nil {
		return false
	}
	for i, other := range l.waiting {
		if other != given {
			continue
		}
		l.waiting = append(l.waiting[:i], l.waiting[i+1:]...)
		if len(l.waiting) == 0 {
			q.forget(l)
		}
		return true
	}
	return false
}

func (q *queue[T]) forget(l *waitingOf[T]) {
	delete(q.lines, l.client)
	for i, other := range q.turns {
		if other == l {
			q.turns = append(q.turns[:i], q.turns[i+1:]...)
			return
		}
	}
}

// give hands one on, or keeps it.
func (q *queue[T]) give(one T) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.turns) == 0 {
		q.free = append(q.free, one)
		return
	}
	l := q.turns[0]
	given := l.waiting[0]
	l.waiting = l.waiting[1:]
	q.turns = q.turns[1:]
	if len(l.waiting) == 0 {
		delete(q.lines, l.client)
	} else {
		q.turns = append(q.turns, l)
	}
	given <- one
}

func refuseBusy() *fault.Fault {
	return fault.New(fault.RateLimitExceeded, "The statement waited %d s for a parser, and others go first. Nothing was executed; send it again, and fewer long statements at once.", int(maxQueueWait.Seconds())).
		With("limit", limitParserWait).With("retry_after_seconds", 1)
}
