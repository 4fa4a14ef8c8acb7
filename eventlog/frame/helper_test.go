package frame_test

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"io/fs"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/frame"
)

// image is a file in memory. What is written to it is not the business of these
// tests, so only reading does something.
type image []byte

func (m image) Pread(b []byte, off int64) (int, error) {
	if off >= int64(len(m)) {
		return 0, io.EOF
	}
	n := copy(b, m[off:])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

func (m image) Pwrite(b []byte, off int64) (int, error) { return copy(m[off:], b), nil }
func (image) NextData(off int64) int64                  { return off }
func (m image) Size() (int64, error)                    { return int64(len(m)), nil }
func (image) Datasync() error                           { return nil }
func (image) Sync() error                               { return nil }
func (image) Cut(int64) error                           { return io.ErrClosedPipe }
func (image) Named(string) (bool, error)                { return true, nil }
func (image) DropCache() error                          { return nil }
func (image) Flock() error                              { return nil }
func (image) Close() error                              { return nil }

// sample is a log that a correct writer could have left.
type sample struct {
	header frame.Header
	bytes  []byte
	frames []frame.Placed // by seq-1
	starts []int64        // of batches
	ends   []int64
	last   [][32]byte // event_hash at the end of each batch
}

// newSample begins a log with segment 0.
func newSample(t testing.TB, origin string) *sample {
	return newSegment(t, frame.Header{CreatedNS: 1, FirstSeq: 1, Origin: origin, LogID: [16]byte{1}, Nonce: [32]byte{2}})
}

func newSegment(t testing.TB, h frame.Header) *sample {
	b, err := h.Encode()
	require.NoError(t, err)
	h, err = frame.ParseHeader(b)
	require.NoError(t, err)
	return &sample{header: h, bytes: b}
}

// batch appends one batch with records of these sizes.
func (s *sample) batch(t testing.TB, sizes ...int) *sample {
	s.bytes = append(s.bytes, s.encode(t, sizes...)...)
	s.ends = append(s.ends, int64(len(s.bytes)))
	s.last = append(s.last, s.frames[len(s.frames)-1].Hash)
	return s
}

// record appends a batch of one event with a record of the test's own.
func (s *sample) record(t testing.TB, record []byte) {
	f, off := s.next(1), int64(len(s.bytes))
	f.Record = record
	f.Hash = frame.EventHash(f.Seq, f.PreviousHash, f.Record)
	b := frame.Append(nil, &f)
	require.NoError(t, frame.SealBatch(b, uint64(off)))
	s.frames, s.starts = append(s.frames, frame.Placed{Off: off, Size: int64(len(b)), Frame: f}), append(s.starts, off)
	s.bytes = append(s.bytes, b...)
	s.ends, s.last = append(s.ends, int64(len(s.bytes))), append(s.last, f.Hash)
}

// encode gives the next batch and notes its frames, without appending it.
func (s *sample) encode(t testing.TB, sizes ...int) []byte {
	start := int64(len(s.bytes))
	var b []byte
	for i, n := range sizes {
		f := s.next(n)
		if i%2 == 0 && i+1 < len(sizes) {
			f.Flags = frame.FlagMore
		}
		off := start + int64(len(b))
		b = frame.Append(b, &f)
		s.frames = append(s.frames, frame.Placed{Off: off, Size: start + int64(len(b)) - off, Frame: f})
	}
	require.NoError(t, frame.SealBatch(b, uint64(start)))
	s.starts = append(s.starts, start)
	return b
}

func (s *sample) next(n int) frame.Frame {
	seq, prev := s.header.FirstSeq, s.header.PrevHash
	if s.header.Segment == 0 {
		prev = s.header.Hash
	}
	if k := len(s.frames); k > 0 {
		seq, prev = s.frames[k-1].Seq+1, s.frames[k-1].Hash
	}
	record := make([]byte, n)
	for i := range record {
		record[i] = byte(seq*31 + uint64(i)*7 + 1)
	}
	return frame.Frame{Seq: seq, PreviousHash: prev, Record: record, Hash: frame.EventHash(seq, prev, record)}
}

// threeBatches is the small log of the exhaustive tests.
func threeBatches(t testing.TB) *sample {
	return newSample(t, "gate.example").batch(t, 50).batch(t, 20, 33, 40).batch(t, 41, 8)
}

// anchor is what an anchor knows after the batch with this index.
func (s *sample) anchor(level frame.Level, batch int) frame.Anchor {
	last := s.frames[0]
	for _, f := range s.frames {
		if f.Off < s.ends[batch] {
			last = f
		}
	}
	return frame.Anchor{Level: level, LogID: s.header.LogID, Seq: last.Seq, Hash: last.Hash}
}

// set is the log as a lone active file.
func set(b []byte) frame.Set {
	return frame.Set{Path: "audit.wal", Active: frame.Segment{Name: "audit.wal", File: image(b), Size: int64(len(b))}}
}

func verify(t testing.TB, s frame.Set, anchors ...frame.Anchor) frame.Report {
	r, err := frame.Verify(context.Background(), s, frame.Options{Workers: 1, Anchors: anchors})
	require.NoError(t, err)
	requireSound(t, r)
	return r
}

// requireSound holds what every report must hold, whatever it says.
func requireSound(t testing.TB, r frame.Report) {
	if len(r.NotExcluded) == 0 {
		t.Fatalf("not_excluded is empty: %+v", r)
	}
	if (r.Status == frame.OK) != (r.FaultsTotal == 0) {
		t.Fatalf("status %s with %d faults", r.Status, r.FaultsTotal)
	}
	sum := 0
	for _, c := range r.Checks {
		sum += c.Faults
		if c.Faults > 0 && c.Status != frame.Fail {
			t.Fatalf("check %s has faults and says %s", c.Name, c.Status)
		}
	}
	if sum != r.FaultsTotal {
		t.Fatalf("%d faults by check, %d in all", sum, r.FaultsTotal)
	}
}

func kinds(r frame.Report) []frame.Kind {
	var ks []frame.Kind
	for _, f := range r.Faults {
		ks = append(ks, f.Kind)
	}
	return ks
}

func explain(r frame.Report) string {
	s := string(r.Status)
	for _, f := range r.Faults {
		s += fmt.Sprintf("\n  %s/%s at %d+%d seq %d: %s", f.Check, f.Kind, f.Offset, f.Length, f.Seq, f.Detail)
	}
	return s
}

func clone(b []byte) []byte { return append([]byte(nil), b...) }

func flip(b []byte, bit int) []byte {
	c := clone(b)
	c[bit/8] ^= 1 << (bit % 8)
	return c
}

var errNotExist = &frame.OpError{Op: "open", Name: "x", Err: fs.ErrNotExist}

func put64(b []byte, v uint64) { binary.LittleEndian.PutUint64(b, v) }

func headerHash(b []byte) [32]byte {
	return sha256.Sum256(append([]byte("gate.wal.header.v1\x00"), b[:4056]...))
}
