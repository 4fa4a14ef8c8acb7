package frame

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
)

// A Tail is what follows the last complete batch of a segment, up to its last
// byte that is not zero. It was never acknowledged.
type Tail struct {
	Segment        uint32
	Offset         int64    // where it begins: the end of the last complete batch
	Length         int64    // 0: nothing but zeros follow
	SHA256         [32]byte // of its bytes, the first MaxHashed; zero where Length is 0
	ReadableFrames int      // whole frames in it, by sums
}

// MaxHashed is how many bytes of a tail its sum is of: an unfinished write is shorter, and
// a file that was lengthened to terabytes would be hashed for hours.
const MaxHashed = 256 << 20

// ScanTail reads the tail of a segment that begins at off; limit is where the
// segment ends. A tail that can't be read whole is an error: what is not known
// is not zero.
func ScanTail(ctx context.Context, f File, segment uint32, off, limit int64) (Tail, error) {
	t := Tail{Segment: segment, Offset: off}
	last, err := lastNonZero(ctx, f, off, limit)
	t.Length = last - off
	if err != nil || t.Length == 0 {
		return t, err
	}
	if t.SHA256, err = hashRange(ctx, f, off, min(last, off+MaxHashed)); err != nil {
		return t, err
	}
	sync, w := newResync(f, limit), &frameWindow{f: f, limit: limit}
	for at := off; at < last; {
		if _, size, err := w.frame(at); whole(err) {
			t.ReadableFrames++
			at += int64(size)
			continue
		}
		if at, err = sync.find(ctx, at+Align); err != nil {
			return t, err
		}
	}
	return t, nil
}

func hashRange(ctx context.Context, f File, from, to int64) (sum [32]byte, err error) {
	h := sha256.New()
	buf := make([]byte, min(window, to-from))
	for off := from; off < to; {
		if err := ctx.Err(); err != nil {
			return sum, err
		}
		n, err := f.Pread(buf[:min(int64(len(buf)), to-off)], off)
		if err != nil && err != io.EOF {
			return sum, err
		}
		if n == 0 {
			return sum, errors.New("the file became shorter")
		}
		h.Write(buf[:n]) // a hash never returns an error
		off += int64(n)
	}
	return [32]byte(h.Sum(nil)), nil
}

func (t Tail) report() TailReport {
	r := TailReport{Segment: t.Segment, Offset: t.Offset, Length: t.Length, ReadableFrames: t.ReadableFrames}
	if t.Length > 0 {
		r.SHA256 = hexHash(t.SHA256)
	}
	if t.Length > MaxHashed {
		r.SHA256Bytes = MaxHashed
	}
	return r
}

// lookAhead finds what later batches of a segment promise about earlier bytes.
// It reads forward once, only after a first gap was met and only as far as the
// question needs.
type lookAhead struct {
	w      *frameWindow
	sync   *resync
	cursor int64
	bound  int64 // everything below it was synced before some later batch
	limit  int64
}

func newLookAhead(f File, limit int64) *lookAhead {
	return &lookAhead{w: &frameWindow{f: f, limit: limit}, sync: newResync(f, limit), limit: limit}
}

// lands reports whether a damaged frame ends where another begins, or where
// nothing does: only then is its length to be believed.
func (a *lookAhead) lands(at int64) bool {
	b, err := a.w.bytes(at, HeadSize)
	if err != nil || at >= a.limit {
		return err == nil
	}
	size, _ := wholeHead(b)
	return size > 0 || allZero(b[:min(HeadSize, len(b))])
}

// vouches reports whether a frame after the gap has a durable_off beyond where
// the gap begins: then a crash can't be what made it.
func (a *lookAhead) vouches(ctx context.Context, g gap) (bool, error) {
	if a.bound <= g.off && a.cursor <= g.off {
		a.cursor = g.next
		if g.body && !a.lands(g.next) {
			var err error
			if a.cursor, err = a.sync.find(ctx, g.off+Align); err != nil {
				return false, err
			}
		}
	}
	for a.bound <= g.off && a.cursor < a.limit {
		f, size, err := a.w.frame(a.cursor)
		if whole(err) {
			if plausible(&f, a.cursor) && f.Intact() {
				a.bound = max(a.bound, int64(f.DurableOff))
			}
			a.cursor += int64(size)
			continue
		}
		if a.cursor, err = a.sync.find(ctx, a.cursor+Align); err != nil {
			return false, err
		}
	}
	return a.bound > g.off, nil
}
