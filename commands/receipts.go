package commands

import (
	"context"
	"sync"

	"writegate/eventlog"
)

// Receipts keeps, of all that commands make durable under one context, the
// receipt of the last event: it is what the answer to a client carries
// (design/eventlog.md part 9). A group that the log only wrote, as the result of
// the latency profile is, leaves the receipt of the decision in place.
type Receipts struct {
	mu   sync.Mutex
	last eventlog.Committed
}

type receiptsKey struct{}

// WithReceipts gives a context whose commands hand their receipts in. It may be
// used by many goroutines; contexts made from it hand in as well, also those
// that outlive a request.
func WithReceipts(ctx context.Context) (context.Context, *Receipts) {
	r := new(Receipts)
	return context.WithValue(ctx, receiptsKey{}, r), r
}

// ReceiptsOf are those that a context hands in to; nil where nobody keeps them.
func ReceiptsOf(ctx context.Context) *Receipts {
	r, _ := ctx.Value(receiptsKey{}).(*Receipts)
	return r
}

// Text is the receipt as it stands in a header; "" where nothing that has one
// was made durable.
func (r *Receipts) Text() (string, error) {
	r.mu.Lock()
	last := r.last
	r.mu.Unlock()
	return last.Receipt()
}

func handIn(ctx context.Context, done eventlog.Committed) {
	r := ReceiptsOf(ctx)
	if r == nil || !done.HasReceipt() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if done.Last > r.last.Last {
		r.last = done
	}
}
