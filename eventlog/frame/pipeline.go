package frame

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"io"
	"sync"
)

// A piece is what the reader found next in a segment: a run of whole frames
// with right heads, or a gap.
type piece struct {
	off   int64
	data  []byte
	marks []mark        // one for each frame, by a worker
	done  chan struct{} // closed when marks are there
	gap   *gap          // instead of frames
}

// A mark is a worker's finding about one frame.
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

// pipeline reads one segment with one reader and several workers, and gives the
// pieces back in the order of the file.
type pipeline struct {
	f           File
	from, limit int64
	ordered     chan *piece
	work        chan *piece
	free        chan []byte
	ask         int // bytes of the next job
	sync        *resync
	err         error // set before ordered is closed
}

// start begins to read [from, limit) with that many workers. The caller ranges
// over ordered, waits for each piece's done and gives it to release; after
// cancelling ctx it drains.
func startPipeline(ctx context.Context, f File, from, limit int64, workers int) *pipeline {
	p := &pipeline{
		f: f, from: from, limit: limit, ask: MaxFrame, sync: newResync(f, limit),
		ordered: make(chan *piece, 2*workers),
		work:    make(chan *piece, 2*workers),
		free:    make(chan []byte, 4*workers+4),
	}
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for pc := range p.work {
				pc.check()
				close(pc.done)
			}
		})
	}
	go func() {
		p.err = p.read(ctx)
		close(p.work)
		wg.Wait()
		close(p.ordered)
	}()
	return p
}

// release gives a piece's memory back to the reader.
func (p *pipeline) release(pc *piece) {
	if pc.data == nil {
		return
	}
	select {
	case p.free <- pc.data[:0]:
	default:
	}
}

// read cuts the segment at the borders of frames.
func (p *pipeline) read(ctx context.Context) error {
	for off := p.from; off < p.limit; {
		data, bad, isIO := p.run(off)
		if len(data) > 0 {
			pc := &piece{off: off, data: data, done: make(chan struct{})}
			if !p.send(ctx, pc) {
				return ctx.Err()
			}
			off += int64(len(data))
		}
		if bad == nil {
			continue
		}
		g, err := p.gapAt(ctx, off, bad, isIO)
		if g == nil || err != nil {
			return err
		}
		if !p.sendGap(ctx, g) {
			return ctx.Err()
		}
		off, p.ask = g.next, pageSize
	}
	return nil
}

func (p *pipeline) sendGap(ctx context.Context, g *gap) bool {
	pc := &piece{off: g.off, gap: g, done: make(chan struct{})}
	close(pc.done)
	select {
	case p.ordered <- pc:
		return true
	case <-ctx.Done():
		return false
	}
}

// send hands a piece to the workers and, at the same place in line, to the judge.
func (p *pipeline) send(ctx context.Context, pc *piece) bool {
	select {
	case p.ordered <- pc:
	case <-ctx.Done():
		return false
	}
	select {
	case p.work <- pc:
		return true
	case <-ctx.Done():
		close(pc.done) // nobody will: the judge drains without looking
		return false
	}
}

// run reads one job at off: the whole frames it begins with, and what is wrong
// after them where it is not just that the job ends.
func (p *pipeline) run(off int64) (data []byte, bad error, isIO bool) {
	buf := p.block()
	n, rerr := p.f.Pread(buf[:min(int64(p.ask), int64(cap(buf)), p.limit-off)], off)
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
	return min(2*p.ask, MaxFrame)
}

// block gives a buffer of length 0: a job of about 1 MiB, in which every frame
// fits. Larger ones would gain nothing and leave the processor's cache.
func (p *pipeline) block() []byte {
	select {
	case b := <-p.free:
		return b
	default:
		return make([]byte, 0, min(MaxFrame, p.limit-p.from))
	}
}

// gapAt looks what follows bytes that are no frame: nil where only zeros do.
func (p *pipeline) gapAt(ctx context.Context, off int64, bad error, isIO bool) (*gap, error) {
	if !isIO {
		zero, err := zeroUpTo(p.f, off, p.limit)
		if zero {
			return nil, nil
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

// check is a worker's part: sums and hashes of every frame of the piece.
func (pc *piece) check() {
	pc.marks = make([]mark, 0, len(pc.data)/256+1)
	for at := 0; at < len(pc.data); {
		size := Size(int(binary.LittleEndian.Uint32(pc.data[at+offRecLen:])))
		b := pc.data[at : at+size]
		m := mark{at: at, err: bodyError(b)}
		m.forged = m.err == nil && !intactInPlace(b)
		pc.marks = append(pc.marks, m)
		at += size
	}
}

// intactInPlace is Frame.Intact without copying the record: the hashed prefix
// is put for a moment where the head stands. b is one whole frame that nobody
// else looks at meanwhile; it is the same afterwards.
func intactInPlace(b []byte) bool {
	n := int(binary.LittleEndian.Uint32(b[offRecLen:]))
	seq := binary.LittleEndian.Uint64(b[offSeq:])
	msg := b[recordAt-hashPrefix : recordAt+n]
	saved := [hashPrefix]byte(msg)
	putHashPrefix(msg, seq, saved[hashPrefix-hashLen:], n)
	sum := sha256.Sum256(msg)
	copy(msg, saved[:])
	return sum == [32]byte(b[recordAt+n:])
}
