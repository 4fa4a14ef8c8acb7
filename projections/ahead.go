package projections

import (
	"context"
	"iter"
	"slices"

	"writegate/eventlog"
	"writegate/eventlog/event"
)

// Bounds of what is read ahead.
const (
	chunkEvents = 128
	chunksAhead = 4
)

type events = iter.Seq2[event.Envelope, error]

// chunks reads a log in chunks. room gives the one to fill next.
type chunks func(ctx context.Context, room func() *eventlog.Chunk) iter.Seq2[*eventlog.Chunk, error]

// A chunked source gives the events of From in chunks that are filled again and
// again, as *eventlog.Log does.
type chunked interface {
	Chunks(ctx context.Context, seq uint64, room func() *eventlog.Chunk) iter.Seq2[*eventlog.Chunk, error]
}

// chunksOf reads a source from an event on.
func chunksOf(src Source, seq uint64) chunks {
	if c, ok := src.(chunked); ok {
		return func(ctx context.Context, room func() *eventlog.Chunk) iter.Seq2[*eventlog.Chunk, error] {
			return c.Chunks(ctx, seq, room)
		}
	}
	return gathered(func(ctx context.Context) events { return src.From(ctx, seq) })
}

// gathered makes chunks of events that come one by one.
func gathered(from func(context.Context) events) chunks {
	return func(ctx context.Context, room func() *eventlog.Chunk) iter.Seq2[*eventlog.Chunk, error] {
		return func(yield func(*eventlog.Chunk, error) bool) {
			c := emptied(room())
			for e, err := range from(ctx) {
				if err != nil {
					if len(c.Events) == 0 || yield(c, nil) {
						yield(nil, err)
					}
					return
				}
				if c.Events = append(c.Events, e); len(c.Events) == chunkEvents {
					if !yield(c, nil) {
						return
					}
					c = emptied(room())
				}
			}
			if len(c.Events) > 0 {
				yield(c, nil)
			}
		}
	}
}

func emptied(c *eventlog.Chunk) *eventlog.Chunk {
	c.Events = slices.Grow(c.Events[:0], chunkEvents)
	return c
}

// An aheadChunk is what was read of the log, or why there is no more.
type aheadChunk struct {
	chunk *eventlog.Chunk
	err   error
}

// readAhead reads a log in a goroutine that ends with the log, an error or ctx;
// it closes the channel then. Whoever is done with a chunk may give it to used,
// for other events to be put in their place.
func readAhead(ctx context.Context, log chunks) (ahead chan aheadChunk, used chan *eventlog.Chunk) {
	ahead = make(chan aheadChunk, chunksAhead)
	used = make(chan *eventlog.Chunk, chunksAhead+2) // one is being filled, one folded
	room := func() *eventlog.Chunk {
		select {
		case c := <-used:
			return c
		default:
			return new(eventlog.Chunk)
		}
	}
	go func() {
		defer close(ahead)
		for c, err := range log(ctx, room) {
			select {
			case ahead <- aheadChunk{c, err}:
			case <-ctx.Done():
				return
			}
		}
	}()
	return ahead, used
}
