package projections

import (
	"context"
	"iter"

	"writegate/eventlog/event"
)

// Bounds of what is read ahead.
const (
	chunkEvents = 128
	chunksAhead = 4
)

// A chunk is a few events of the log, or why there are no more.
type chunk struct {
	events []event.Envelope
	err    error
}

type events = iter.Seq2[event.Envelope, error]

// readAhead reads a log in a goroutine that ends with the log, an error or ctx;
// it closes the channel then.
func readAhead(ctx context.Context, log events) <-chan chunk {
	chunks := make(chan chunk, chunksAhead)
	go func() {
		defer close(chunks)
		send := func(c chunk) bool {
			select {
			case chunks <- c:
				return true
			case <-ctx.Done():
				return false
			}
		}
		var events []event.Envelope
		for e, err := range log {
			if err != nil {
				if send(chunk{events: events}) {
					send(chunk{err: err})
				}
				return
			}
			if events = append(events, e); len(events) < chunkEvents {
				continue
			}
			if !send(chunk{events: events}) {
				return
			}
			events = make([]event.Envelope, 0, chunkEvents)
		}
		send(chunk{events: events})
	}()
	return chunks
}
