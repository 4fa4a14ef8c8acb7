package frame_test

import (
	"bytes"
	"context"
	"testing"

	"writegate/eventlog/frame"
)

// What is accepted encodes to the same bytes; nothing panics; no length makes
// anything large.

func FuzzHeader(f *testing.F) {
	s := threeBatches(f)
	f.Add(s.bytes[:frame.HeaderSize])
	f.Add(chainOf(f)[2].bytes[:frame.HeaderSize])
	f.Add([]byte("GATEWAL\x01"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= frame.HeaderSize {
			b = clone(b)
			fixHeader(b) // or the fuzzer would never come past the sums
		}
		h, err := frame.ParseHeader(b)
		if err != nil {
			return
		}
		again, err := h.Encode()
		if err != nil || !bytes.Equal(again, b[:frame.HeaderSize]) {
			t.Fatalf("accepted and encoded differently: %v", err)
		}
	})
}

func FuzzFrame(f *testing.F) {
	s := threeBatches(f)
	for _, p := range s.frames {
		f.Add(s.bytes[p.Off:p.Off+p.Size], true)
		f.Add(s.bytes[p.Off:p.Off+p.Size-1], false)
	}
	f.Fuzz(func(t *testing.T, b []byte, fix bool) {
		if fix && len(b) >= frame.HeadSize {
			b = clone(b)
			fixHead(b)
		}
		fr, size, err := frame.ParseFrame(b)
		if err != nil {
			return
		}
		if again := frame.Append(nil, &fr); !bytes.Equal(again, b[:size]) {
			t.Fatal("accepted and encoded differently")
		}
	})
}

func FuzzHeadSlot(f *testing.F) {
	f.Add(frame.Head{Seq: 3, Clean: true, Counter: 9}.Encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := frame.ParseHead(b)
		if err == nil && !bytes.Equal(h.Encode()[:100], b[:100]) {
			t.Fatal("accepted and encoded differently")
		}
	})
}

// FuzzVerify judges whole files. The seed is a good log; what the fuzzer makes
// of it may be anything, but ok only when it is a log that a writer could leave.
func FuzzVerify(f *testing.F) {
	s := threeBatches(f)
	f.Add(s.bytes)
	f.Add(s.bytes[:5000-80])
	f.Add(append(clone(s.bytes), s.bytes[frame.HeaderSize:]...))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := frame.Verify(context.Background(), set(b), frame.Options{Workers: 2, Anchors: []frame.Anchor{s.anchor(frame.L1, 2)}})
		if err != nil {
			t.Fatal(err)
		}
		requireSound(t, r)
		if r.Status == frame.OK && !bytes.Equal(bytes.TrimRight(b, "\x00"), bytes.TrimRight(s.bytes, "\x00")) && r.LastSeq <= 6 {
			t.Fatalf("ok for another log: %s", explain(r))
		}
	})
}
