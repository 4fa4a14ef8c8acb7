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
	records []byte         // what the frames' records lie in
	frames  []frame.Placed // not yet events
	segment uint32         // of all frames
}

// Chunks gives the events that From gives, with the same checks and the same
// errors, some at a time: those before an error are given before it. room gives
// the chunk to fill next, a new one or one that is used no more.
func (l *Log) Chunks(ctx context.Context, seq uint64, room func() *Chunk) iter.Seq2[*Chunk, error] {
	return func(yield func(*Chunk, error) bool) {
		seq = max(seq, 1)
		c := &chunking{room: room, yield: yield, checker: frame.NewChecker()}
		c.pass = reading{seq: seq, next: seq, hashes: true, yield: c.take}
		l.read(ctx, &c.pass, l.Head())
		c.give()
	}
}

// A chunking is one run of Chunks.
type chunking struct {
	pass    reading
	room    func() *Chunk
	yield   func(*Chunk, error) bool
	checker *frame.Checker
	chunk   *Chunk // in the making; nil where there is none, as when the run is over
}

// take adds a frame, or tells why there are no more. It gives false when the run
// is over.
func (c *chunking) take(p frame.Placed, err error) bool {
	if err != nil {
		if c.give() {
			c.yield(nil, err)
		}
		return false
	}
	if c.chunk != nil && (c.chunk.full() || c.chunk.segment != c.pass.segment) && !c.give() {
		return false
	}
	if c.chunk == nil {
		c.chunk = c.room()
		c.chunk.reset(c.pass.segment)
	}
	c.chunk.add(&p)
	return true
}

// give checks and decodes what was taken, and hands it on. It gives false when the
// run is over.
func (c *chunking) give() bool {
	chunk := c.chunk
	if c.chunk = nil; chunk == nil {
		return true
	}
	err := chunk.open(c.checker)
	if len(chunk.Events) > 0 && !c.yield(chunk, nil) {
		return false
	}
	if err != nil {
		c.yield(nil, err)
		return false
	}
	return true
}

func (c *Chunk) reset(segment uint32) {
	if cap(c.records) > chunkKept {
		c.records = nil
	}
	clear(c.frames)
	c.decoder.Reset()
	c.Events = slices.Grow(c.Events[:0], chunkEvents)
	c.frames = slices.Grow(c.frames[:0], chunkEvents)
	c.records, c.segment = c.records[:0], segment
}

func (c *Chunk) full() bool { return len(c.frames) == chunkEvents || len(c.records) >= chunkBytes }

// add takes a frame, and a copy of its record: the one it has is the reader's.
func (c *Chunk) add(p *frame.Placed) {
	at := len(c.records)
	c.records = append(c.records, p.Record...) // where it moves, earlier frames keep what they have
	c.frames = append(c.frames, *p)
	c.frames[len(c.frames)-1].Record = c.records[at:]
}

// open makes events of the frames, up to the first one that is none.
func (c *Chunk) open(checker *frame.Checker) error {
	intact := checker.Intact(c.frames)
	c.Events = c.Events[:intact]
	for i := range c.Events {
		f, e := &c.frames[i], &c.Events[i] // e is what a chunk before has left
		if err := c.decoder.Decode(f.Record, &e.Draft); err != nil {
			c.Events = c.Events[:i]
			return undecoded(f.Seq, err)
		}
		e.Seq, e.PreviousHash, e.Hash = f.Seq, f.PreviousHash, f.Hash
	}
	if intact < len(c.frames) {
		f := &c.frames[intact]
		return unchained(f.Seq, f.Off, c.segment)
	}
	return nil
}
