package evidence

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"iter"
	"time"
	"unicode/utf8"

	"writegate/eventlog/checkpoint"
	"writegate/eventlog/event"
	"writegate/eventlog/frame"
)

// Errors of Prepare and Write that a caller tells apart.
var (
	// ErrCorrupt: the range itself is damaged, so there is nothing to vouch for.
	ErrCorrupt = errors.New("the range is damaged")
	// ErrReason: the reason is not UTF-8 of at most MaxReason bytes.
	ErrReason = errors.New("the reason is too long or not UTF-8")
	// ErrSign: the Signer has no checkpoint or no proof of the range.
	ErrSign = errors.New("the bundle can't be signed")
)

// A RangeError says that a range is not one of the log's.
type RangeError struct{ First, Last uint64 }

func (e *RangeError) Error() string {
	return fmt.Sprintf("events %d to %d are no range of this log", e.First, e.Last)
}

// A TooLargeError says that a bundle would be over a limit. Bytes are those of
// the events that were measured before the limit was met; SuggestedEnd is the
// last event that a bundle from the same beginning has room for, 0 when not
// even the first has.
type TooLargeError struct {
	Events, MaxEvents uint64
	Bytes, MaxBytes   int64
	SuggestedEnd      uint64
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("%d events and at least %d bytes are over the limit of %d events and %d bytes", e.Events, e.Bytes, e.MaxEvents, e.MaxBytes)
}

// A Source is a log that can be read again and again.
type Source interface {
	// Header is the header of segment 0.
	Header() frame.Header
	// Frames gives the frames from first to last, both included, in order. A
	// record is valid until the next step of the loop.
	Frames(ctx context.Context, first, last uint64) iter.Seq2[frame.Frame, error]
}

// A Signer vouches for bundles with one Ed25519 key and the log's tree.
type Signer interface {
	// Public is the key that Sign and the checkpoints use.
	Public() checkpoint.PublicKey
	// Sign signs a message with Ed25519 (RFC 8032).
	Sign(message []byte) []byte
	// Checkpoint gives a signed note of a tree of at least size events.
	Checkpoint(ctx context.Context, size uint64) (note []byte, err error)
	// Prove gives the inclusion proof of the event seq in the tree of size events.
	Prove(ctx context.Context, size, seq uint64) (checkpoint.Proof, error)
}

// A Request says what a bundle is to hold.
type Request struct {
	First, Last uint64 // events, both included
	Reason      string
	CreatedAt   time.Time
	MaxEvents   uint64 // 0 is no limit
	MaxBytes    int64  // of the whole document; 0 is no limit

	// Open is a bundle for everybody: one that would hold what event.Draft.WithoutData
	// leaves out fails with *DataError.
	Open bool
}

// A DataError says that an event holds what is for operators alone.
type DataError struct{ Seq uint64 }

func (e *DataError) Error() string {
	return fmt.Sprintf("event %d holds an idempotency key, the verifier of a token, or rows, a text or an estimate of the database", e.Seq)
}

// A Bundle is a range that was checked and signed, and has yet to be written.
type Bundle struct {
	src  Source
	head head
	size int64
}

// Write prepares a bundle and writes it; s is nil where signing is off. Errors
// are those of Prepare, with nothing written, or those of Bundle.Write.
func Write(ctx context.Context, w io.Writer, src Source, req Request, s Signer) error {
	b, err := Prepare(ctx, src, req, s)
	if err != nil {
		return err
	}
	return b.Write(ctx, w)
}

// Prepare reads the range once, checks every hash, link and number of it,
// measures the document, and has it signed; s is nil where signing is off. It
// fails with *RangeError, ErrReason, *TooLargeError, *DataError, ErrCorrupt, ErrSign, or an
// error of src. That the range is the log's, and durable, is the caller's promise.
func Prepare(ctx context.Context, src Source, req Request, s Signer) (*Bundle, error) {
	if err := req.check(); err != nil {
		return nil, err
	}
	hdr := src.Header()
	b := &Bundle{src: src, head: head{
		logID: hdr.LogID, origin: hdr.Origin, start: req.First, end: req.Last, count: req.Last - req.First + 1,
		reason: req.Reason, created: event.Timestamp(req.CreatedAt),
	}}
	if req.First == 1 {
		genesis, err := hdr.Encode()
		if err != nil {
			return nil, err
		}
		b.head.genesis, b.head.previous = genesis, hdr.Hash
	}
	if err := b.measure(ctx, &req); err != nil {
		return nil, err
	}
	if err := b.sign(ctx, s); err != nil {
		return nil, err
	}
	b.size += int64(len(b.head.append(nil)) + len(closePayload))
	if req.MaxBytes > 0 && b.size > req.MaxBytes {
		return nil, b.tooLarge(&req, b.size, req.Last-1)
	}
	return b, nil
}

func (q *Request) check() error {
	switch {
	case q.First < 1 || q.Last < q.First:
		return &RangeError{q.First, q.Last}
	case len(q.Reason) > MaxReason || !utf8.ValidString(q.Reason):
		return ErrReason
	case q.MaxEvents > 0 && q.Last-q.First >= q.MaxEvents:
		return &TooLargeError{Events: q.Last - q.First + 1, MaxEvents: q.MaxEvents, MaxBytes: q.MaxBytes, SuggestedEnd: q.First + q.MaxEvents - 1}
	}
	return nil
}

func (b *Bundle) tooLarge(q *Request, bytes int64, fits uint64) error {
	if fits < q.First {
		fits = 0
	}
	return &TooLargeError{Events: b.head.count, MaxEvents: q.MaxEvents, Bytes: bytes, MaxBytes: q.MaxBytes, SuggestedEnd: fits}
}

// measure is the first reading: it fills both end hashes and the size of the
// payloads.
func (b *Bundle) measure(ctx context.Context, q *Request) error {
	// What surrounds the payloads is small; its room is kept free from the start,
	// so that the suggested end is one that will fit.
	room := q.MaxBytes - int64(len(b.head.append(nil))) - surround
	return b.each(ctx, func(f *frame.Frame, item []byte) error {
		if f.Seq == b.head.start {
			b.head.first = f.Hash
		}
		b.head.last = f.Hash
		if q.Open {
			d, err := event.Decode(f.Record)
			if err != nil {
				return fmt.Errorf("%w: event %d: %w", ErrCorrupt, f.Seq, err)
			}
			if _, holds := d.WithoutData(); holds {
				return &DataError{f.Seq}
			}
		}
		if b.size += int64(len(item)); q.MaxBytes > 0 && b.size > room {
			return b.tooLarge(q, b.size, f.Seq-1)
		}
		return nil
	})
}

// surround bounds what signing adds to a head: key, signature, note and proofs.
const surround = 16 << 10

// each reads the range in order and gives every frame with its payload as it is
// written, comma included. It checks what it reads each time: what was right at
// the first reading is judged again at the second.
func (b *Bundle) each(ctx context.Context, yield func(f *frame.Frame, item []byte) error) error {
	h := &b.head
	next, prev := h.start, h.previous
	known := h.start == 1 || h.first != [32]byte{} // at the first reading of a later range its first link is taken as given
	var text, item []byte
	for f, err := range b.src.Frames(ctx, h.start, h.end) {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		if !known {
			h.previous, prev, known = f.PreviousHash, f.PreviousHash, true
		}
		if f.Seq != next || f.PreviousHash != prev || !f.Intact() {
			return fmt.Errorf("%w: event %d does not continue the chain", ErrCorrupt, next)
		}
		if text, err = readable(text[:0], &f); err != nil {
			return fmt.Errorf("%w: event %d: %w", ErrCorrupt, f.Seq, err)
		}
		item = item[:0]
		if f.Seq > h.start {
			item = append(item, ',')
		}
		item = appendItem(item, &f, text)
		if err := yield(&f, item); err != nil {
			return err
		}
		next, prev = next+1, f.Hash
	}
	if next != h.end+1 {
		return fmt.Errorf("%w: it ends before event %d", ErrCorrupt, next)
	}
	return nil
}

// sign adds checkpoint, proofs and signature, and checks them as an auditor
// will: a bundle that its own verifier refuses must not leave.
func (b *Bundle) sign(ctx context.Context, s Signer) error {
	if s == nil {
		return nil
	}
	h := &b.head
	note, err := s.Checkpoint(ctx, h.end)
	if err != nil {
		return fmt.Errorf("%w: checkpoint: %w", ErrSign, err)
	}
	h.signed, h.note, h.public, h.keyID = true, string(note), s.Public(), s.Public().ID()
	tree, err := openNote(h.origin, h.note, []checkpoint.PublicKey{h.public})
	if err != nil {
		return fmt.Errorf("%w: checkpoint: %w", ErrSign, err)
	}
	for _, seq := range h.ends() {
		p, err := s.Prove(ctx, tree.Size, seq)
		if err != nil {
			return fmt.Errorf("%w: inclusion proof of event %d: %w", ErrSign, seq, err)
		}
		h.proofs = append(h.proofs, inclusion{seq, tree.Size, p})
	}
	if err := h.checkProofs(tree); err != nil {
		return fmt.Errorf("%w: %w", ErrSign, err)
	}
	signature := s.Sign(h.message())
	if copy(h.signature[:], signature); !h.public.Verify(h.message(), signature) {
		return fmt.Errorf("%w: the signature is not of the signer's own key", ErrSign)
	}
	return nil
}

// ends are the events that need a proof: the first and the last, or the one.
func (h *head) ends() []uint64 {
	if h.start == h.end {
		return []uint64{h.start}
	}
	return []uint64{h.start, h.end}
}

// Size is how many bytes Write will write.
func (b *Bundle) Size() int64 { return b.size }

// Digest reads the range once more and gives the SHA-256 of the document, as
// Write will write it. Its errors are those of Write.
func (b *Bundle) Digest(ctx context.Context) (digest [32]byte, err error) {
	sum := sha256.New()
	if err := b.Write(ctx, sum); err != nil {
		return digest, err
	}
	return [32]byte(sum.Sum(nil)), nil
}

// SignedBy is the id of the key that signed the bundle, "" where none did.
func (b *Bundle) SignedBy() string { return b.head.keyID }

// Write streams the document in pieces of 64 KiB. After an error, which may be
// ErrCorrupt where the log changed since Prepare, what was written is no
// complete document and no verifier takes it.
func (b *Bundle) Write(ctx context.Context, w io.Writer) error {
	out := bufio.NewWriterSize(w, buffer)
	if _, err := out.Write(b.head.append(nil)); err != nil {
		return err
	}
	err := b.each(ctx, func(f *frame.Frame, item []byte) error {
		if f.Seq == b.head.end && f.Hash != b.head.last {
			return fmt.Errorf("%w: event %d is another one than before", ErrCorrupt, f.Seq)
		}
		_, err := out.Write(item)
		return err
	})
	if err != nil {
		return errors.Join(err, out.Flush())
	}
	if _, err := out.WriteString(closePayload); err != nil {
		return err
	}
	return out.Flush()
}
