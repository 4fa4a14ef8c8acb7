package frame_test

import (
	"context"
	"encoding/binary"
	"errors"
	"math/bits"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"writegate/eventlog/frame"
)

func drawHeader(t *rapid.T) frame.Header {
	h := frame.Header{
		CreatedNS: rapid.Int64().Draw(t, "created"),
		Flags:     rapid.SampledFrom([]uint32{0, frame.FlagReplicated}).Draw(t, "flags"),
		Origin:    rapid.StringN(-1, -1, frame.MaxOrigin).Draw(t, "origin"),
		Signer:    rapid.StringN(-1, -1, frame.MaxSigner).Draw(t, "signer"),
		FirstSeq:  1,
	}
	copy(h.LogID[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "log_id"))
	copy(h.Nonce[:], rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "nonce"))
	if h.Segment = rapid.Uint32Range(0, 1<<20).Draw(t, "segment"); h.Segment > 0 {
		h.FirstSeq = uint64(h.Segment) + rapid.Uint64Range(1, 1<<40).Draw(t, "first")
		copy(h.PrevHash[:], rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "prev"))
	}
	return h
}

func TestHeaderReadsBackAsItWasWritten(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		h := drawHeader(rt)
		b, err := h.Encode()
		require.NoError(rt, err)
		got, err := frame.ParseHeader(b)
		require.NoError(rt, err)
		h.Hash = got.Hash
		require.Equal(rt, h, got)
	})
}

func TestHeaderThatCouldNotBeReadIsNotWritten(t *testing.T) {
	good := frame.Header{FirstSeq: 1}
	for name, edit := range map[string]func(h *frame.Header){
		"long origin":                  func(h *frame.Header) { h.Origin = strings.Repeat("o", frame.MaxOrigin+1) },
		"long signer":                  func(h *frame.Header) { h.Signer = strings.Repeat("s", frame.MaxSigner+1) },
		"origin that is not UTF-8":     func(h *frame.Header) { h.Origin = "\xff" },
		"signer that is not UTF-8":     func(h *frame.Header) { h.Signer = "\xff" },
		"unknown flags":                func(h *frame.Header) { h.Flags = 1 },
		"segment 0 from event 2":       func(h *frame.Header) { h.FirstSeq = 2 },
		"segment 0 that links":         func(h *frame.Header) { h.PrevHash[0] = 1 },
		"segment after an empty one":   func(h *frame.Header) { h.Segment, h.FirstSeq = 3, 3 },
		"no first event":               func(h *frame.Header) { h.FirstSeq = 0 },
		"later segment from the start": func(h *frame.Header) { h.Segment = 1 },
	} {
		h := good
		edit(&h)
		_, err := h.Encode()
		assert.ErrorIs(t, err, frame.ErrHeader, name)
	}
	_, err := good.Encode()
	assert.NoError(t, err)
	_, err = frame.ParseHeader(make([]byte, frame.HeaderSize-1))
	assert.ErrorIs(t, err, frame.ErrHeader)
}

func TestFrameReadsBackAsItWasWritten(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		f := frame.Frame{
			Seq: rapid.Uint64().Draw(rt, "seq"), DurableOff: rapid.Uint64().Draw(rt, "durable"), BatchLeft: rapid.Uint16().Draw(rt, "left"),
			Flags: rapid.Uint8Range(0, 1).Draw(rt, "flags"), Epoch: rapid.Uint32().Draw(rt, "epoch"),
			Record: rapid.SliceOfN(rapid.Byte(), 1, 2000).Draw(rt, "record"),
		}
		f.Hash = frame.EventHash(f.Seq, f.PreviousHash, f.Record)
		b := frame.Append([]byte("before"), &f)[6:]
		require.Zero(rt, len(b)%frame.Align)
		require.Equal(rt, frame.Size(len(f.Record)), len(b))
		got, size, err := frame.ParseFrame(append(clone(b), "after"...))
		require.NoError(rt, err)
		require.Equal(rt, len(b), size)
		require.Equal(rt, f, got)
		require.True(rt, got.Intact())
	})
}

func TestErrorNamesThePartThatIsWrong(t *testing.T) {
	record := make([]byte, 50) // six bytes of padding
	f := frame.Frame{Seq: 1, Record: record}
	whole := frame.Append(nil, &f)
	for _, c := range []struct {
		name string
		edit func(b []byte) []byte
		want error
	}{
		{"nothing", func(b []byte) []byte { return nil }, frame.ErrTruncated},
		{"half a head", func(b []byte) []byte { return b[:39] }, frame.ErrTruncated},
		{"half a record", func(b []byte) []byte { return b[:100] }, frame.ErrTruncated},
		{"without padding", func(b []byte) []byte { return b[:154] }, frame.ErrTruncated},
		{"magic", func(b []byte) []byte { b[3] ^= 1; return b }, frame.ErrMagic},
		{"seq", func(b []byte) []byte { b[8] ^= 1; return b }, frame.ErrHeadCRC},
		{"length zero", func(b []byte) []byte { binary.LittleEndian.PutUint32(b[4:], 0); fixHead(b); return b }, frame.ErrLength},
		{"length too large", func(b []byte) []byte { binary.LittleEndian.PutUint32(b[4:], 1<<20+1); fixHead(b); return b }, frame.ErrLength},
		{"length beyond the bytes", func(b []byte) []byte { binary.LittleEndian.PutUint32(b[4:], 1<<20); fixHead(b); return b }, frame.ErrTruncated},
		{"previous_hash", func(b []byte) []byte { b[40] ^= 1; return b }, frame.ErrBodyCRC},
		{"record", func(b []byte) []byte { b[72] ^= 1; return b }, frame.ErrBodyCRC},
		{"event_hash", func(b []byte) []byte { b[153] ^= 1; return b }, frame.ErrBodyCRC},
		{"padding", func(b []byte) []byte { b[159] ^= 1; return b }, frame.ErrPadding},
		{"kind", func(b []byte) []byte { b[26] = 2; fixHead(b); return b }, frame.ErrRule},
		{"flags", func(b []byte) []byte { b[27] = 4; fixHead(b); return b }, frame.ErrRule},
	} {
		_, _, err := frame.ParseFrame(c.edit(clone(whole)))
		assert.Equal(t, c.want, err, c.name)
	}
}

func TestSealBatchCountsDownAndPromises(t *testing.T) {
	var b []byte
	for i := range 5 {
		b = frame.Append(b, &frame.Frame{Seq: uint64(i + 1), Record: make([]byte, 10*i+1), Flags: frame.FlagMore * uint8(i%2)})
	}
	require.NoError(t, frame.SealBatch(b, 12345))
	for i := range 5 {
		f, size, err := frame.ParseFrame(b)
		require.NoError(t, err)
		assert.Equal(t, uint16(4-i), f.BatchLeft)
		assert.Equal(t, uint64(12345), f.DurableOff)
		assert.Equal(t, frame.FlagMore*uint8(i%2), f.Flags, "what the command set stays")
		b = b[size:]
	}
	assert.Error(t, frame.SealBatch(nil, 0), "a batch has a frame")
	assert.ErrorIs(t, frame.SealBatch([]byte("not a frame, but as long as the head of one would be"), 0), frame.ErrMagic)

	one := frame.Append(nil, &frame.Frame{Seq: 1, Record: []byte{1}})
	many := make([]byte, 0, len(one)*(frame.MaxBatch+1))
	for range frame.MaxBatch {
		many = append(many, one...)
	}
	assert.NoError(t, frame.SealBatch(many, 4096))
	assert.Error(t, frame.SealBatch(append(many, one...), 4096), "batch_left has 16 bits")
}

func TestEventHashIsTheSameForEveryLength(t *testing.T) {
	// The short and the long way of hashing meet at 1 KiB.
	for _, n := range []int{1, 400, 1023, 1024, 1025, 1 << 20} {
		record := make([]byte, n)
		f := frame.Frame{Seq: 7, Record: record, Hash: frame.EventHash(7, [32]byte{}, record)}
		b := frame.Append(nil, &f)
		require.NoError(t, frame.SealBatch(b, frame.HeaderSize))
		log := newSample(t, "x")
		f.Seq, f.PreviousHash = 1, log.header.Hash
		f.Hash = frame.EventHash(1, log.header.Hash, record)
		b = frame.Append(nil, &f)
		require.NoError(t, frame.SealBatch(b, frame.HeaderSize))
		r := verify(t, set(append(log.bytes, b...)))
		require.Equal(t, frame.OK, r.Status, "%d bytes: %s", n, explain(r))
	}
}

func TestEveryFlippedBitOfARecordIsExplained(t *testing.T) {
	s := newSample(t, "x").batch(t, 4096).batch(t, 1)
	f := s.frames[0]
	for at := range int(f.Size) {
		b := clone(s.bytes)
		bit := at % 8
		b[int(f.Off)+at] ^= 1 << bit
		r := verify(t, set(b))
		require.Equal(t, frame.Corruption, r.Status)
		if at >= 104+4096 {
			assert.Equal(t, frame.CheckPadding, r.Faults[0].Check)
			continue
		}
		want := "byte " + itoa(at) + " of the frame, bit " + itoa(bit)
		require.True(t, strings.HasSuffix(r.Faults[0].Detail, want), "%s: %s", want, r.Faults[0].Detail)
	}
	two := clone(s.bytes)
	two[f.Off+100] ^= 3
	assert.NotContains(t, verify(t, set(two)).Faults[0].Detail, "flipped", "two bits are not one: %d", bits.OnesCount8(3))
}

func itoa(n int) string {
	var b []byte
	for ; n > 9; n /= 10 {
		b = append([]byte{byte('0' + n%10)}, b...)
	}
	return string(append([]byte{byte('0' + n)}, b...))
}

func TestScanGivesEveryFrameUpToTheBound(t *testing.T) {
	s := newSample(t, "x")
	for i := range 40 {
		s.batch(t, 50000, 1, i+1)
	}
	padded := image(append(clone(s.bytes), make([]byte, 3000)...))
	var got []frame.Placed
	for f, err := range frame.Scan(context.Background(), padded, frame.HeaderSize, int64(len(padded))) {
		require.NoError(t, err)
		f.Record = clone(f.Record)
		got = append(got, f)
	}
	require.Len(t, got, 120)
	for i, f := range got {
		require.Equal(t, s.frames[i].Off, f.Off)
		require.Equal(t, s.frames[i].Size, f.Size)
		require.Equal(t, s.frames[i].Record, f.Record)
		require.True(t, f.Intact())
	}
	one, size, err := frame.ReadFrameAt(padded, s.frames[3].Off, int64(len(s.bytes)))
	require.NoError(t, err)
	assert.Equal(t, uint64(4), one.Seq)
	assert.Equal(t, int(s.frames[3].Size), size, "longer than what is read at first")
}

func TestScanStopsAtWhatIsNoFrame(t *testing.T) {
	s := threeBatches(t)
	damaged := flip(s.bytes, int(s.frames[3].Off+80)*8)
	seen := 0
	var stop *frame.ScanError
	for _, err := range frame.Scan(context.Background(), image(damaged), frame.HeaderSize, int64(len(damaged))) {
		if err != nil {
			require.True(t, errors.As(err, &stop))
			continue
		}
		seen++
	}
	require.NotNil(t, stop)
	assert.Equal(t, 3, seen)
	assert.Equal(t, s.frames[3].Off, stop.Off)
	assert.ErrorIs(t, stop, frame.ErrBodyCRC)

	for _, err := range frame.Scan(context.Background(), image(s.bytes), frame.HeaderSize, s.frames[3].Off+8) {
		if err != nil {
			assert.ErrorIs(t, err, frame.ErrTruncated, "a bound inside a frame")
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for _, err := range frame.Scan(ctx, image(s.bytes), frame.HeaderSize, int64(len(s.bytes))) {
		assert.ErrorIs(t, err, context.Canceled)
	}
}

func TestTailIsMeasuredToItsLastByte(t *testing.T) {
	s := threeBatches(t)
	cut := append(clone(s.bytes[:s.frames[5].Off+30]), make([]byte, 4096)...)
	tail, err := frame.ScanTail(context.Background(), image(cut), 0, s.ends[1], int64(len(cut)))
	require.NoError(t, err)
	assert.Equal(t, 1, tail.ReadableFrames)
	assert.Equal(t, s.ends[1], tail.Offset)
	assert.LessOrEqual(t, tail.Length, s.frames[5].Off+30-s.ends[1])
	assert.Positive(t, tail.Length)

	tail, err = frame.ScanTail(context.Background(), image(make([]byte, 9000)), 4, 4096, 9000)
	require.NoError(t, err)
	assert.Equal(t, frame.Tail{Segment: 4, Offset: 4096}, tail)

	_, err = frame.ScanTail(context.Background(), badPages{image(cut), map[int64]bool{1: true}}, 0, s.ends[1], int64(len(cut)))
	assert.Error(t, err, "what is not known is not zero")
}
