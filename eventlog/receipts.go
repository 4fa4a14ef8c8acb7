package eventlog

import (
	"fmt"
	"time"

	"writegate/eventlog/checkpoint"
)

// A signature is that of one batch, made while the batch is synced. It is handed
// out with the outcome, so whoever holds it knows that the batch is durable.
type signature struct {
	made  chan struct{}     // closed when batch is there
	batch *checkpoint.Batch // not to be read before
}

// unsigned gathers what the receipts of a batch need; nil where there are none:
// without a key, and without fsync, since a receipt says that an event is durable.
// Its errors are faults of the log itself, found before anything is written.
func (l *Log) unsigned(b *batch) (*checkpoint.Accumulator, error) {
	if l.o.SigningKey == nil || l.o.Fsync == FsyncOff {
		return nil, nil
	}
	a := checkpoint.NewAccumulator(l.header.LogID, l.o.SigningKey)
	for i := range b.groups {
		for j, hash := range b.groups[i].hashes {
			if err := a.Add(b.groups[i].first+uint64(j), hash); err != nil {
				return nil, err
			}
		}
	}
	return a, nil
}

// signBeside signs a batch on another thread than the flusher's: the sync never
// waits for it, and neither does the next batch.
func signBeside(a *checkpoint.Accumulator, now func() time.Time) *signature {
	if a == nil {
		return nil
	}
	s := &signature{made: make(chan struct{})}
	go func() {
		defer close(s.made)
		s.batch = a.Sign(now())
	}()
	return s
}

// HasReceipt reports whether Receipt gives one.
func (c *Committed) HasReceipt() bool { return c.signature != nil }

// Receipt is the text of the receipt for the group's last event
// (design/eventlog.md part 9): whoever keeps it can show later that the event
// was in the log. It is "" where the log signs nothing, and for a group that was
// only Written, which is not durable yet. It is made anew by each call.
func (c *Committed) Receipt() (string, error) {
	if c.signature == nil {
		return "", nil
	}
	<-c.signature.made
	r, err := c.signature.batch.Receipt(c.Last)
	if err != nil {
		return "", fmt.Errorf("receipt of event %d: %w", c.Last, err)
	}
	return r.Text()
}
