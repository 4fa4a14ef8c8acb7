package projections

import "sync"

// waiters are the commands whose events are durable and not yet applied.
type waiters struct {
	mu   sync.Mutex
	list []*waiter // by seq
	pool sync.Pool
}

type waiter struct {
	seq  uint64
	done chan struct{} // capacity 1: waking never blocks
}

// add queues a waiter behind all of a lower seq. Commands come nearly in
// order, so this looks at few of them.
func (q *waiters) add(seq uint64) *waiter {
	w, ok := q.pool.Get().(*waiter)
	if !ok {
		w = &waiter{done: make(chan struct{}, 1)}
	}
	w.seq = seq
	q.mu.Lock()
	defer q.mu.Unlock()
	i := len(q.list)
	q.list = append(q.list, w)
	for ; i > 0 && q.list[i-1].seq > seq; i-- {
		q.list[i] = q.list[i-1]
	}
	q.list[i] = w
	return w
}

// wake lets all go that wait for seq or less, in their order.
func (q *waiters) wake(seq uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := 0
	for n < len(q.list) && q.list[n].seq <= seq {
		q.list[n].done <- struct{}{}
		n++
	}
	rest := copy(q.list, q.list[n:])
	clear(q.list[rest:])
	q.list = q.list[:rest]
}

// free takes back a waiter that was woken and has seen it.
func (q *waiters) free(w *waiter) { q.pool.Put(w) }

// remove takes out one that waits no more. It is not reused, because it may
// have been woken meanwhile.
func (q *waiters) remove(w *waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range q.list {
		if q.list[i] == w {
			q.list = append(q.list[:i], q.list[i+1:]...)
			return
		}
	}
}
