package frame

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"iter"
)

// window is how much a sequential reader asks for at once. A frame always fits.
const window = 1<<20 + pageSize

// firstWindow is what Scan asks for first; each further read is twice as long, up
// to a window: who wants one small frame does not wait for the large one behind it.
const firstWindow = 32 << 10

const pageSize = 4096

// ErrStopped is the cause of a *ScanError where the frames end before the bound.
var ErrStopped = errors.New("the frames end before the bound")

// A ScanError says where a sequential read found bytes that are no frame.
type ScanError struct {
	Off int64 // file offset of the frame that could not be read
	Err error // one of ParseFrame's, or the error of the read
}

func (e *ScanError) Error() string { return fmt.Sprintf("offset %d: %v", e.Off, e.Err) }

// Unwrap gives the cause to errors.Is and errors.As.
func (e *ScanError) Unwrap() error { return e.Err }

// A Placed is a frame and where it lies.
type Placed struct {
	Off  int64 // file offset of the frame's first byte
	Size int64 // bytes it takes, padding included
	Frame
}

// Scan reads the frames of a segment from offset from up to to, in order, by
// pread in windows of up to about 1 MiB: a file that is cut meanwhile gives an error
// and kills nobody. It stops quietly at to, or where only zeros follow up to
// to; at anything else that is no frame it yields a *ScanError and ends. A
// record is valid until the next step of the loop. Sums are checked, hashes and
// links are not: that is Verify's work.
func Scan(ctx context.Context, f File, from, to int64) iter.Seq2[Placed, error] {
	return func(yield func(Placed, error) bool) {
		w := &frameWindow{f: f, limit: to, ask: firstWindow}
		for off := from; off < to; {
			if err := ctx.Err(); err != nil {
				yield(Placed{}, err)
				return
			}
			fr, size, err := w.frame(off)
			if err != nil {
				zero, zerr := zeroUpTo(ctx, f, off, to)
				switch {
				case ctx.Err() != nil:
					yield(Placed{}, ctx.Err())
				case !zero || zerr != nil:
					yield(Placed{}, errors.Join(&ScanError{Off: off, Err: err}, zerr))
				}
				return
			}
			if !yield(Placed{Off: off, Size: int64(size), Frame: fr}, nil) {
				return
			}
			off += int64(size)
		}
	}
}

// ReadFrameAt reads the one frame at off; limit bounds what may be read.
func ReadFrameAt(f File, off, limit int64) (Frame, int, error) {
	w := &frameWindow{f: f, limit: limit, ask: pageSize}
	return w.frame(off)
}

// frameWindow is a buffer that follows a sequential reader through a file.
type frameWindow struct {
	f     File
	limit int64
	ask   int // bytes to read next; window if 0
	off   int64
	buf   []byte
}

// frame parses the frame at off. It aliases the window.
func (w *frameWindow) frame(off int64) (Frame, int, error) {
	b, err := w.bytes(off, HeadSize)
	if err != nil {
		return Frame{}, 0, err
	}
	need, err := wholeHead(b)
	if err == ErrTruncated && need > 0 {
		if b, err = w.bytes(off, need); err != nil {
			return Frame{}, 0, err
		}
	}
	return ParseFrame(b)
}

// bytes gives what the window has from off: at least n bytes, or fewer where
// the limit or the file ends, or fewer and the error of the read.
func (w *frameWindow) bytes(off int64, n int) ([]byte, error) {
	if have := w.cached(off); len(have) >= n {
		return have, nil
	}
	if w.ask == 0 {
		w.ask = window
	}
	size := min(int64(max(w.ask, n)), max(w.limit-off, 0))
	w.ask = min(2*w.ask, window)
	if int64(cap(w.buf)) < size {
		w.buf = make([]byte, size)
	}
	got, err := w.f.Pread(w.buf[:size], off)
	w.off, w.buf = off, w.buf[:got]
	if err != nil && err != io.EOF && got < n {
		return w.buf, err
	}
	return w.buf, nil
}

func (w *frameWindow) cached(off int64) []byte {
	if off < w.off || off > w.off+int64(len(w.buf)) {
		return nil
	}
	return w.buf[off-w.off:]
}

// holesAfter is how many zeros are read before the file system is asked where the next
// data lies. What a writer lays ahead is read in any case; a file that was lengthened to
// terabytes without being written would be read for hours.
const holesAfter = 64 << 20

// zeroUpTo reports whether [from, to) holds zeros alone. The end of the file
// counts as zeros: a length is not synced with every batch.
func zeroUpTo(ctx context.Context, f File, from, to int64) (bool, error) {
	// Most gaps are told by their first page; only a real end is read through.
	buf, begin := make([]byte, pageSize), from
	for ; from < to; buf = grown(buf, to-from) {
		if err := ctx.Err(); err != nil {
			return false, err
		}
		n, err := f.Pread(buf[:min(int64(len(buf)), to-from)], from)
		if err != nil && err != io.EOF {
			return false, err
		}
		if !allZero(buf[:n]) {
			return false, nil
		}
		if n == 0 {
			break
		}
		if from += int64(n); from-begin >= holesAfter {
			from = f.NextData(from)
		}
	}
	return true, nil
}

// grown gives a buffer of a whole window for the left bytes, or b where it is
// one already.
func grown(b []byte, left int64) []byte {
	if len(b) > pageSize || left <= int64(len(b)) {
		return b
	}
	return make([]byte, min(window, left))
}

// lastNonZero gives the offset after the last byte in [from, to) that is not
// zero, or from. It reads forward, because that is what disks like, and stops
// at nothing.
func lastNonZero(ctx context.Context, f File, from, to int64) (int64, error) {
	buf := make([]byte, min(window, max(to-from, 0)))
	last, ask := from, len(buf)
	for off := from; off < to; {
		if err := ctx.Err(); err != nil {
			return last, err
		}
		n, err := f.Pread(buf[:min(int64(ask), to-off)], off)
		if err != nil && err != io.EOF {
			return last, err
		}
		if n == 0 {
			return last, nil
		}
		if !allZero(buf[:n]) {
			last = off + int64(len(bytes.TrimRight(buf[:n], "\x00")))
		}
		off, ask = off+int64(n), min(2*ask, len(buf))
		if next := f.NextData(off); off > last && next > off {
			off, ask = next, min(pageSize, len(buf))
		}
	}
	return last, nil
}

// resync finds where reading can go on after bytes that are no frame.
type resync struct {
	f     File
	limit int64
	off   int64  // of buf in the file, aligned
	buf   []byte // a stretch of it
	end   bool   // what lies behind the stretch can't be read with it
	ask   int    // bytes to read next
	sums  []uint32
}

// longestStretch is read at once in the end: frames within three quarters of it lie in it whole.
const longestStretch = 4 << 20

func newResync(f File, limit int64) *resync { return &resync{f: f, limit: limit, ask: pageSize} }

// bytes gives the stretch from off, with at least n bytes unless it ends where no more can
// be read.
func (r *resync) bytes(off int64, n int) ([]byte, error) {
	if have := r.cached(off); len(have) >= n || r.end && len(have) >= HeadSize {
		return have, nil
	}
	size := min(int64(max(r.ask, n)), max(r.limit-off, 0))
	r.ask = min(2*r.ask, longestStretch)
	if int64(cap(r.buf)) < size {
		r.buf = make([]byte, size)
	}
	got, err := r.f.Pread(r.buf[:size], off)
	r.off, r.buf, r.sums = off, r.buf[:got], r.sums[:0]
	r.end = int64(got) < size || off+size >= r.limit
	if err != nil && err != io.EOF && got < n {
		return r.buf, err
	}
	return r.buf, nil
}

func (r *resync) cached(off int64) []byte {
	if off < r.off || off > r.off+int64(len(r.buf)) {
		return nil
	}
	return r.buf[off-r.off:]
}

// find gives the first offset at or after from, 8-byte aligned, where a whole
// frame lies (pages that can't be read are stepped over): right sums and a right event_hash, and a durable_off that it
// could have. The hash is asked for because a client's text inside a lost frame
// may look like a frame; nothing that only looks like one may hide or accuse
// what follows. It gives the limit when there is none.
//
// Text may be made of heads alone, so none may cost more than another: a body's sum is
// that of two stretches, and what is whole but not genuine is passed over with all its bytes.
func (r *resync) find(ctx context.Context, from int64) (int64, error) {
	for off := (from + Align - 1) &^ (Align - 1); off < r.limit; {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		if len(r.cached(off)) < HeadSize { // no frame begins in a hole
			if next := r.f.NextData(off) &^ (Align - 1); next > off {
				off, r.ask = next, pageSize
				continue
			}
		}
		b, err := r.bytes(off, HeadSize)
		if err == nil && len(b) < HeadSize {
			break
		}
		if err != nil {
			off = (off + pageSize) &^ (pageSize - 1)
			continue
		}
		i := bytes.Index(b, []byte(frameMagic))
		if i < 0 {
			off += max(int64(len(b)-len(frameMagic)+1)&^(Align-1), Align)
			continue
		}
		at := off + int64(i)
		if off = (at + Align) &^ (Align - 1); at%Align > 0 {
			continue
		}
		f, size := r.whole(at)
		switch {
		case size == 0:
		case plausible(&f, at) && f.Intact():
			return at, nil
		default:
			off = at + size
		}
	}
	return r.limit, nil
}

// whole gives the frame at off and its size; 0: there is none with right sums.
func (r *resync) whole(off int64) (Frame, int64) {
	b, err := r.bytes(off, HeadSize)
	if err != nil {
		return Frame{}, 0
	}
	need, err := wholeHead(b)
	if err == ErrTruncated && need > 0 {
		b, _ = r.bytes(off, need)
		need, err = wholeHead(b)
	}
	if err != nil {
		return Frame{}, 0
	}
	end := Overhead + int(binary.LittleEndian.Uint32(b[offRecLen:]))
	if at := int(off - r.off); r.sum(at+HeadSize, at+end) != binary.LittleEndian.Uint32(b[offBodyCRC:]) || !allZero(b[end:need]) {
		return Frame{}, 0
	}
	return decode(b), int64(need)
}

// sum is the CRC-32C of buf[from:to]: that of all before to, less that of all before from.
// from is aligned.
func (r *resync) sum(from, to int) uint32 {
	if len(r.sums) == 0 {
		r.sums = append(r.sums, 0)
		for rest, sum := r.buf, uint32(0); len(rest) >= Align; rest = rest[Align:] {
			sum = crc32.Update(sum, castagnoli, rest[:Align])
			r.sums = append(r.sums, sum)
		}
	}
	upTo := crc32.Update(r.sums[to/Align], castagnoli, r.buf[to&^(Align-1):to])
	return upTo ^ behind(r.sums[from/Align], to-from)
}

// behind is what a CRC-32C adds to that of n more bytes: it times x to the power 8n, modulo
// the polynomial.
func behind(sum uint32, n int) uint32 {
	for power := eightBits; n > 0; n, power = n>>1, times(power, power) {
		if n&1 > 0 {
			sum = times(power, sum)
		}
	}
	return sum
}

// eightBits is x to the power 8, the bit of the lowest power first as in all of a CRC-32C.
const eightBits uint32 = 1 << (31 - 8)

// times multiplies polynomials modulo the one of CRC-32C.
func times(a, b uint32) (product uint32) {
	for ; a > 0; a <<= 1 {
		product ^= b & -(a >> 31)
		b = b>>1 ^ crc32.Castagnoli&-(b&1)
	}
	return product
}

// plausible reports whether a frame's durable_off can be true where it lies.
func plausible(f *Frame, off int64) bool {
	return f.DurableOff >= HeaderSize && f.DurableOff <= uint64(off)
}
