package eventlog

import (
	"context"
	"iter"
	"slices"

	"writegate/eventlog/event"
	"writegate/eventlog/frame"
)

// Bounds of a chunk, and of the memory that a used one keeps.
const (
	chunkEvents = 128
	chunkBytes  = 256 << 10 // of records; the last one may go beyond
	chunkKept   = 2 * chunkBytes
)

// A Chunk is a run of events that share memory, so that reading a long log takes
// little of it. Whoever was given one owns it, and says by handing it to Chunks
// again that nobody looks at its events any more. Their texts and payloads outlast
// that and may be kept: see event.Decoder. A payload is bytes until a method of its
// draft reads it.
type Chunk struct {
	Events []event.Envelope

	decoder event.Decoder
	records []byte // what the events' payloads lie in
}

// Chunks gives the events that From gives, with the same checks and the same
// errors, some at a time: those before an error are given before it. room gives
// the chunk to fill next, a new one or one that is used no more.
func (l *Log) Chunks(ctx context.Context, seq uint64, room func() *Chunk) iter.Seq2[*Chunk, error] {
	return func(yield func(*Chunk, error) bool) {
		seq = max(seq, 1)
		c := &chunking{room: room, yield: yield}
		l.read(ctx, &reading{seq: seq, next: seq, yield: c.take}, l.Head())
		c.give()
	}
}

// A chunking is one run of Chunks.
type chunking struct {
	room  func() *Chunk
	yield func(*Chunk, error) bool
	chunk *Chunk // in the making; nil where there is none, as when the run is over
}

// take adds an event, or tells why there are no more. It gives false when the run
// is over.
func (c *chunking) take(p frame.Placed, err error) bool {
	if err == nil {
		if c.chunk != nil && c.chunk.full() && !c.give() {
			return false
		}
		if c.chunk == nil {
			c.chunk = c.room()
			c.chunk.reset()
		}
		err = c.chunk.add(&p)
	}
	if err != nil && c.give() {
		c.yield(nil, err)
	}
	return err == nil
}

// give hands on what was taken. It gives false when the run is over.
func (c *chunking) give() bool {
	chunk := c.chunk
	c.chunk = nil
	return chunk == nil || len(chunk.Events) == 0 || c.yield(chunk, nil)
}

func (c *Chunk) reset() {
	if cap(c.records) > chunkKept {
		c.records = nil
	}
	c.decoder.Reset()
	c.Events, c.records = slices.Grow(c.Events[:0], chunkEvents), c.records[:0]
}

func (c *Chunk) full() bool { return len(c.Events) == chunkEvents || len(c.records) >= chunkBytes }

// add takes an event, and a copy of its record: the one it has is the reader's.
func (c *Chunk) add(p *frame.Placed) error {
	at := len(c.records)
	c.records = append(c.records, p.Record...) // where it moves, earlier events keep what they have
	c.Events = c.Events[:len(c.Events)+1]
	e := &c.Events[len(c.Events)-1] // it is what a chunk before has left
	if err := c.decoder.Decode(c.records[at:], &e.Draft); err != nil {
		c.Events = c.Events[:len(c.Events)-1]
		return undecoded(p.Seq, err)
	}
	e.Seq, e.PreviousHash, e.Hash = p.Seq, p.PreviousHash, p.Hash
	return nil
}
