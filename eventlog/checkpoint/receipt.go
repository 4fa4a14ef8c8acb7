package checkpoint

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"writegate/eventlog/event"
)

// Header is the HTTP header that carries a receipt.
const Header = "X-Gate-Receipt"

const (
	receiptType  = "gate.receipt.v1"
	receiptItems = 11

	// MaxBatch bounds the events of a batch that a receipt may speak of: a frame
	// counts those after it in 16 bits. It keeps paths at 16 hashes.
	MaxBatch = 1 << 16
	// maxReceipt bounds the text of a receipt: 16 hashes and the fixed fields
	// are about 900 bytes before base64.
	maxReceipt = 2 << 10
)

// Errors of receipts and checkpoints.
var (
	// ErrMalformed says that bytes are not what they are read as.
	ErrMalformed = errors.New("malformed")
	// ErrUnknownKey says that none of the keys given has signed. It is no fault:
	// what is signed by somebody unknown is worth nothing, and accuses nobody.
	ErrUnknownKey = errors.New("signed by none of the known keys")
	// ErrSignature says that a known key is named and its signature is wrong.
	ErrSignature = errors.New("wrong signature")
	// ErrProof says that a proof does not lead to the root it is held against.
	ErrProof = errors.New("the proof does not hold")
)

// A Receipt says that event Seq of a log had EventHash, and that it was
// durable: it is given out with the answer that reports the event. Root is the
// root over the event hashes of one batch, FirstSeq to FirstSeq+Count-1, and is
// what KeyID's Signature covers; Path leads from the event to Root.
type Receipt struct {
	LogID     [16]byte
	Seq       uint64
	EventHash [32]byte
	FirstSeq  uint64
	Count     uint32
	Root      [32]byte
	Path      Proof
	Time      time.Time // when the batch was signed; UTC
	KeyID     string
	Signature [64]byte
}

// An Anchor is what a receipt vouches for once it is checked: at Seq the
// event_hash was Hash, and the log reached Last.
type Anchor struct {
	LogID [16]byte
	Seq   uint64
	Hash  [32]byte
	Last  uint64 // end of the batch: it was durable as a whole
	Time  time.Time
}

// batchMessage is what is signed for a batch. The tag keeps it apart from
// everything else that the key signs.
func batchMessage(logID [16]byte, first uint64, count uint32, root [32]byte, ns int64) []byte {
	m := append([]byte(receiptType+"\x00"), logID[:]...)
	m = binary.BigEndian.AppendUint64(m, first)
	m = binary.BigEndian.AppendUint32(m, count)
	m = append(m, root[:]...)
	return binary.BigEndian.AppendUint64(m, uint64(ns))
}

// Append appends the receipt's bytes, gate-msgpack-1, to dst. It fails, with dst
// as it was, where the key's id is not UTF-8.
func (r *Receipt) Append(dst []byte) ([]byte, error) {
	if !utf8.ValidString(r.KeyID) {
		return dst, fmt.Errorf("%w: key id %q is not UTF-8", ErrMalformed, r.KeyID)
	}
	dst = packText(packList(dst, receiptItems), receiptType)
	dst = packInt(packBytes(dst, r.LogID[:]), int64(r.Seq))
	dst = packInt(packBytes(dst, r.EventHash[:]), int64(r.FirstSeq))
	dst = packBytes(packInt(dst, int64(r.Count)), r.Root[:])
	dst = packList(dst, len(r.Path))
	for i := range r.Path {
		dst = packBytes(dst, r.Path[i][:])
	}
	dst = packText(packInt(dst, r.Time.UnixNano()), r.KeyID)
	return packBytes(dst, r.Signature[:]), nil
}

// Text is the receipt as it stands in the header: base64url without padding.
func (r *Receipt) Text() (string, error) {
	b, err := r.Append(make([]byte, 0, 320+34*len(r.Path)))
	return base64.RawURLEncoding.EncodeToString(b), err
}

// ParseReceipt reads the text of a receipt and checks its form alone; it
// vouches for nothing before Check. There is one text for one receipt. Errors
// wrap ErrMalformed.
func ParseReceipt(text string) (*Receipt, error) {
	if len(text) > maxReceipt {
		return nil, fmt.Errorf("%w: a receipt of %d characters", ErrMalformed, len(text))
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || base64.RawURLEncoding.EncodeToString(b) != text {
		return nil, fmt.Errorf("%w: a receipt is base64url without padding", ErrMalformed)
	}
	v, err := event.ParseValue(b)
	if err != nil {
		return nil, fmt.Errorf("%w: receipt: %w", ErrMalformed, err)
	}
	items, ok := v.AsList()
	if !ok || len(items) != receiptItems {
		return nil, fmt.Errorf("%w: a receipt is a list of %d items", ErrMalformed, receiptItems)
	}
	return receiptOf(items)
}

func receiptOf(items []event.Value) (*Receipt, error) {
	f := &fields{items: items}
	if f.text("type") != receiptType {
		f.fail("type is not %s", receiptType)
	}
	r := new(Receipt)
	f.bytes("log_id", r.LogID[:])
	r.Seq = f.number("seq", 1, MaxSize)
	f.bytes("event_hash", r.EventHash[:])
	r.FirstSeq = f.number("first_seq", 1, MaxSize)
	r.Count = uint32(f.number("count", 1, MaxBatch))
	f.bytes("root", r.Root[:])
	r.Path = f.path(r)
	r.Time = f.moment("time_ns")
	r.KeyID = f.text("key_id")
	f.bytes("signature", r.Signature[:])
	return r, f.err
}

// Check verifies the signature against the key with the receipt's key_id, and
// the path; it gives what the receipt vouches for. Errors wrap ErrUnknownKey,
// ErrSignature, ErrProof or, for a receipt made by hand, ErrMalformed.
func (r *Receipt) Check(keys ...PublicKey) (Anchor, error) {
	if r.Seq < r.FirstSeq || r.Seq-r.FirstSeq >= uint64(r.Count) {
		return Anchor{}, fmt.Errorf("%w: event %d is not in its batch", ErrMalformed, r.Seq)
	}
	key, ok := keyWithID(keys, r.KeyID)
	if !ok {
		return Anchor{}, fmt.Errorf("receipt of event %d: %w: %q", r.Seq, ErrUnknownKey, r.KeyID)
	}
	if !key.Verify(batchMessage(r.LogID, r.FirstSeq, r.Count, r.Root, r.Time.UnixNano()), r.Signature[:]) {
		return Anchor{}, fmt.Errorf("receipt of event %d: %w by %s", r.Seq, ErrSignature, r.KeyID)
	}
	if err := CheckInclusion(r.Path, uint64(r.Count), r.Root, r.Seq-r.FirstSeq+1, r.EventHash); err != nil {
		return Anchor{}, fmt.Errorf("receipt of event %d: %w", r.Seq, err)
	}
	return Anchor{LogID: r.LogID, Seq: r.Seq, Hash: r.EventHash, Last: r.FirstSeq + uint64(r.Count) - 1, Time: r.Time}, nil
}

func keyWithID(keys []PublicKey, id string) (PublicKey, bool) {
	for _, k := range keys {
		if k.ID() == id {
			return k, true
		}
	}
	return PublicKey{}, false
}

// fields takes the items of a receipt off in order and keeps the first error.
type fields struct {
	items []event.Value
	err   error
}

func (f *fields) next() event.Value {
	v := f.items[0]
	f.items = f.items[1:]
	return v
}

func (f *fields) fail(format string, args ...any) {
	if f.err == nil {
		f.err = fmt.Errorf("%w: receipt: "+format, append([]any{ErrMalformed}, args...)...)
	}
}

func (f *fields) text(name string) string {
	s, ok := f.next().AsString()
	if !ok {
		f.fail("%s is not a text", name)
	}
	return s
}

// bytes fills dst, whose length is the one length that is right.
func (f *fields) bytes(name string, dst []byte) { f.fill(name, f.next(), dst) }

func (f *fields) fill(name string, v event.Value, dst []byte) {
	b, ok := v.AsBytes()
	if !ok || len(b) != len(dst) {
		f.fail("%s is not %d bytes", name, len(dst))
		return
	}
	copy(dst, b)
}

func (f *fields) number(name string, least, most uint64) uint64 {
	n, ok := f.next().AsInt()
	if !ok || n < 0 || uint64(n) < least || uint64(n) > most {
		f.fail("%s is not a number from %d to %d", name, least, most)
		return 0
	}
	return uint64(n)
}

func (f *fields) moment(name string) time.Time {
	n, ok := f.next().AsInt()
	if !ok {
		f.fail("%s is not a number of nanoseconds", name)
	}
	return time.Unix(0, n).UTC()
}

func (f *fields) path(r *Receipt) Proof {
	items, ok := f.next().AsList()
	if !ok || r.Count > 0 && len(items) > pathBound(r.Count) {
		f.fail("path is no list of hashes, or is longer than its batch allows")
		return nil
	}
	path := make(Proof, len(items))
	for i := range items {
		f.fill("path", items[i], path[i][:])
	}
	return path
}
