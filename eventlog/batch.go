package eventlog

import (
	"fmt"
	"sync"
	"time"

	"writegate/eventlog/event"
	"writegate/eventlog/frame"
)

// An Ack says when Append answers.
type Ack uint8

const (
	// Durable answers after the sync. It is the default and the only one that
	// decision evidence may use.
	Durable Ack = iota
	// Written answers after the write and before the sync: it survives the death
	// of the process, not a power cut. Only result evidence of the latency
	// profile uses it.
	Written
)

// A Group is the events of one command: all of them are appended or none is.
// The log keeps Drafts and hands them to followers, so the caller must not
// change them any more.
type Group struct {
	Drafts []event.Draft
	Ack    Ack
	// Reserve marks evidence of what has already happened (results of running
	// executions, shutdown, health_fail, audit_corruption_detected). It is taken
	// where new commands are refused: on a full volume, and after corruption was found.
	Reserve bool
}

// Committed is the place of a group in the chain.
type Committed struct {
	First, Last uint64
	Hashes      [][32]byte // one for each draft

	signature *signature // nil where there are no receipts
}

// A placed group is one with its sequence numbers, kept for the followers.
type placed struct {
	drafts   []event.Draft
	first    uint64
	previous [32]byte
	hashes   [][32]byte
}

// A waiter is one Append that waits for its outcome.
type waiter struct {
	done chan error // capacity 1: the flusher never waits for a reader
	ack  Ack

	signature *signature // of the batch, once it is durable
}

var waiters = sync.Pool{New: func() any { return &waiter{done: make(chan error, 1)} }}

// A batch is what one write and one sync make durable.
type batch struct {
	buf     []byte
	frames  int
	start   int64 // offset of its first byte in the segment
	waiters []*waiter
	written bool // at least one waiter asked for Written
	command bool // at least one group is not marked Reserve
	groups  []placed
	last    uint64
	hash    [32]byte

	signature *signature // nil until its making begins, and where the log signs nothing
}

func (b *batch) end() int64 { return b.start + int64(len(b.buf)) }

// takes tells whether a group still belongs into this batch. An empty batch
// takes any group, so that a large one is never stuck.
func (b *batch) takes(frames, bytes int) bool {
	return b.frames == 0 || b.frames+frames <= batchFrames && len(b.buf)+bytes <= batchBytes
}

// reset empties the batch for reuse behind another one. What the followers got is not reused, and
// a buffer that one large group has grown is given back.
func (b *batch) reset(start int64, last uint64, hash [32]byte) {
	if cap(b.buf) > 4*batchBytes {
		b.buf = nil
	}
	clear(b.groups)
	clear(b.waiters)
	*b = batch{buf: b.buf[:0], start: start, last: last, hash: hash, waiters: b.waiters[:0], groups: b.groups[:0]}
}

// records holds the encoded drafts of one group, one after the other.
type records struct {
	buf   []byte
	ends  []int
	bytes int // what they take as frames
}

var recordPool = sync.Pool{New: func() any { return new(records) }}

// release gives the buffers back unless one huge group has grown them.
func (r *records) release() {
	if cap(r.buf) <= batchBytes {
		recordPool.Put(r)
	}
}

// encode fills r with the records of the drafts, outside any lock.
func (r *records) encode(drafts []event.Draft) error {
	r.buf, r.ends, r.bytes = r.buf[:0], r.ends[:0], 0
	if len(drafts) == 0 || len(drafts) > MaxGroupEvents {
		return fmt.Errorf("%w: a group of %d events, not 1 to %d", ErrTooLarge, len(drafts), MaxGroupEvents)
	}
	for i := range drafts {
		start := len(r.buf)
		buf, err := event.Encode(r.buf, &drafts[i])
		if err != nil {
			return fmt.Errorf("event %d of the group (%s): %w", i, drafts[i].Type, err)
		}
		if n := len(buf) - start; n > frame.MaxRecord {
			return fmt.Errorf("%w: a record (%s) of %d bytes, more than %d", ErrTooLarge, drafts[i].Type, n, frame.MaxRecord)
		}
		r.buf, r.ends, r.bytes = buf, append(r.ends, len(buf)), r.bytes+frame.Size(len(buf)-start)
		if r.bytes > MaxGroupBytes {
			return fmt.Errorf("%w: a group of more than %d bytes", ErrTooLarge, MaxGroupBytes)
		}
	}
	return nil
}

// envelopes gives the events of placed groups as a reader of the file would
// get them: the codec keeps everything of a draft but the form of its time.
func envelopes(groups []placed) []event.Envelope {
	n := 0
	for i := range groups {
		n += len(groups[i].drafts)
	}
	out := make([]event.Envelope, 0, n)
	for i := range groups {
		g := &groups[i]
		previous := g.previous
		for j := range g.drafts {
			e := event.Envelope{Seq: g.first + uint64(j), PreviousHash: previous, Hash: g.hashes[j], Draft: g.drafts[j]}
			e.Time = time.Unix(0, e.Time.UnixNano()).UTC()
			out = append(out, e)
			previous = e.Hash
		}
	}
	return out
}
