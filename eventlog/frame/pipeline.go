package frame

import (
	"context"
	"encoding/binary"
	"io"
	"sync"
)

// jobSize is how many bytes a worker takes at a time. A few of them fit a processor's
// own cache, so that what was read is still near when it is hashed. A longer frame
// makes a longer job.
const jobSize = 256 << 10

// readAhead is how many pieces that were read may wait for a worker.
const readAhead = 2

// judgedAtOnce is how many pieces may wait for the judge, so that it is woken for
// several.
const judgedAtOnce = 12

// A piece is what comes next in a segment: a run of whole frames with right
// heads, or a gap.
type piece struct {
	off  int64
	data []byte
	bad  []mark        // the frames that are not right, in order
	done chan struct{} // closed when bad is there
	gap  *gap          // instead of frames
	run  stretch       // how the frames follow each other, where bad is empty
}

// A mark is a worker's finding about a frame that is not right.
type mark struct {
	at     int   // where the frame begins in the piece's data
	err    error // what is wrong with the bytes
	forged bool  // the event_hash is not the hash of the record
}

// A gap is a stretch where no frame could be read.
type gap struct {
	off, next int64 // [off, next); next is the limit where nothing follows
	err       error // why the frame at off is none
	io        bool  // err is of the medium and not of the bytes
	body      bool  // the head was right, and next is what it says
}

// pipeline reads one segment with several workers and gives the pieces back in
// the order of the file. Where a job begins is known when the one before was read,
// so one goroutine reads all of them, a little ahead; the rest is the workers'.
type pipeline struct {
	f       File
	limit   int64
	ordered chan *piece
	free    chan []byte

	// Of the goroutine that reads.
	off  int64 // where the next job begins
	ask  int   // bytes of the next job
	bad  error // what is wrong at off, found at the end of the last job
	io   bool  // bad is of the medium
	over bool  // nothing follows but zeros
	sync *resync
	err  error // ended the reading; read it after ordered is closed
}

// startPipeline begins to read [from, limit). The caller ranges over ordered,
// waits for each piece's done and gives it to release; after it cancelled ctx it
// drains.
func startPipeline(ctx context.Context, f File, from, limit int64, workers int) *pipeline {
	p := &pipeline{
		f: f, off: from, limit: limit, ask: jobSize, sync: newResync(f, limit),
		ordered: make(chan *piece, 2*workers+judgedAtOnce),
		free:    make(chan []byte, 4*workers+judgedAtOnce),
	}
	jobs := make(chan *piece, readAhead)
	go func() {
		for pc := p.next(ctx); pc != nil; pc = p.next(ctx) {
			jobs <- pc
		}
		close(jobs)
	}()
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for pc := range jobs {
				pc.check()
				close(pc.done)
			}
		})
	}
	go func() {
		wg.Wait()
		close(p.ordered)
	}()
	return p
}

// release gives a piece's memory back.
func (p *pipeline) release(pc *piece) {
	if pc.data == nil {
		return
	}
	select {
	case p.free <- pc.data[:0]:
	default:
	}
}

// next cuts the next piece, puts it in line for the judge and gives it for a worker;
// nil when there is none.
func (p *pipeline) next(ctx context.Context) *piece {
	for p.err == nil && !p.over && (p.bad != nil || p.off < p.limit) {
		pc := p.cut(ctx)
		if pc == nil {
			continue
		}
		select {
		case p.ordered <- pc:
			return pc
		case <-ctx.Done():
			p.err = ctx.Err()
		}
	}
	return nil
}

// cut makes the piece at off; nil where there was nothing to make one of.
func (p *pipeline) cut(ctx context.Context) *piece {
	pc := &piece{off: p.off, done: make(chan struct{})}
	if p.bad == nil {
		pc.data, p.bad, p.io = p.run(p.off)
		if p.off += int64(len(pc.data)); len(pc.data) == 0 {
			return nil
		}
		return pc
	}
	g, err := p.gapAt(ctx, p.off, p.bad, p.io)
	p.err, p.over, p.bad = err, g == nil, nil
	if g == nil {
		return nil
	}
	pc.gap = g
	p.off, p.ask = g.next, pageSize
	return pc
}

// run reads one job at off: the whole frames it begins with, and what is wrong
// after them where it is not just that the job ends.
func (p *pipeline) run(off int64) (data []byte, bad error, isIO bool) {
	ask := int(min(int64(p.ask), p.limit-off))
	buf := p.block(ask)
	n, rerr := p.f.Pread(buf, off)
	buf = buf[:n]
	end := 0
	for end < n && bad == nil {
		size, err := wholeHead(buf[end:])
		if err != nil {
			bad = err
			break
		}
		end += size
	}
	inside := off+int64(n) < p.limit // the job ended, the segment did not
	ended := bad == ErrTruncated || end == n
	switch {
	case rerr != nil && rerr != io.EOF && ended:
		return buf[:end], rerr, true
	case rerr == io.EOF && ended && inside:
		return buf[:end], ErrTruncated, false
	case bad == ErrTruncated && inside:
		// A frame that the job cuts is read again at the head of the next one.
		p.ask, bad = p.nextAsk(end), nil
	case bad == nil:
		p.ask = p.nextAsk(end)
	}
	return buf[:end], bad, false
}

// nextAsk grows the jobs again after a gap made them small, so that a file of
// many gaps is not read many times over; a frame longer than a job asks for all.
func (p *pipeline) nextAsk(end int) int {
	if end == 0 {
		return MaxFrame
	}
	return min(2*p.ask, jobSize)
}

// block gives a buffer of n bytes.
func (p *pipeline) block(n int) []byte {
	select {
	case b := <-p.free:
		if cap(b) >= n {
			return b[:n]
		}
	default:
	}
	return make([]byte, n)
}

// gapAt looks what follows bytes that are no frame: nil where only zeros do.
func (p *pipeline) gapAt(ctx context.Context, off int64, bad error, isIO bool) (*gap, error) {
	if !isIO {
		zero, err := zeroUpTo(ctx, p.f, off, p.limit)
		if zero || ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			bad, isIO = err, true
		}
	}
	next, err := p.sync.find(ctx, off+Align)
	if err != nil {
		return nil, err
	}
	return &gap{off: off, next: next, err: bad, io: isIO}, nil
}

// check looks at sums and hashes of every frame of the piece, and at how the frames
// follow each other.
func (pc *piece) check() {
	for at := 0; at < len(pc.data); {
		b := pc.data[at : at+sizeAt(pc.data, at)]
		if err := bodyError(b); err != nil {
			pc.bad = append(pc.bad, mark{at: at, err: err})
		} else if f := decode(b); !f.Intact() {
			pc.bad = append(pc.bad, mark{at: at, forged: true})
		}
		if len(pc.bad) == 0 && !pc.run.broken {
			pc.run.add(b, pc.off+int64(at))
		}
		at += len(b)
	}
}

// sizeAt is the size of the frame at that place; its head was checked.
func sizeAt(b []byte, at int) int {
	return Size(int(binary.LittleEndian.Uint32(b[at+offRecLen:])))
}
