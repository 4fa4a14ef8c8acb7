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
// it closes the channel then. Whoever is done with a chunk may give its events to
// used, for others to be put in their place.
func readAhead(ctx context.Context, log events) (chunks chan chunk, used chan []event.Envelope) {
	chunks, used = make(chan chunk, chunksAhead), make(chan []event.Envelope, chunksAhead)
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
			events = room(used)
		}
		send(chunk{events: events})
	}()
	return chunks, used
}

// room gives an empty chunk, of those that are used where there is one.
func room(used <-chan []event.Envelope) []event.Envelope {
	select {
	case events := <-used:
		return events[:0]
	default:
		return make([]event.Envelope, 0, chunkEvents)
	}
}
