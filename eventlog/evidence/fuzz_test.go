package evidence_test

import (
	"bytes"
	"context"
	"testing"

	"writegate/eventlog/event"
	"writegate/eventlog/evidence"
	"writegate/eventlog/evidence/evidencetest"
	"writegate/eventlog/frame"
)

// No bundle breaks the judge, and one whose form it takes is written down again
// with the same bytes.
func FuzzVerify(f *testing.F) {
	l := evidencetest.New(3)
	whole, part := signed(f, l, 1, 3), write(f, l, request(2, 2), nil)
	for _, seed := range [][]byte{whole, part, whole[:500], bytes.ReplaceAll(part, []byte(":"), []byte(": ")), []byte(`{"bundle_type":"gate.evidence_bundle.v1"`), nil} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := evidence.Verify(context.Background(), bytes.NewReader(b), evidence.Options{})
		if err != nil {
			t.Fatal(err)
		}
		again, ok := evidence.Again(b)
		if ok && !bytes.Equal(b, again) {
			t.Fatalf("%q is written down as %q", b, again)
		}
		if r.Status == frame.OK && !ok {
			t.Fatal("ok, and not the form of a bundle")
		}
	})
}

// No file of lines breaks the judge, and what it counts as events, without a
// fault of form, is rendered again with the same bytes.
func FuzzVerifyJSONL(f *testing.F) {
	lines := evidencetest.New(3).JSONL(1)
	for _, seed := range [][]byte{lines, lines[:len(lines)-1], bytes.ReplaceAll(lines, []byte("\n"), []byte("\r\n")), []byte("\n\n"), nil} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := evidence.VerifyJSONL(context.Background(), bytes.NewReader(b), evidence.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if r.Status != frame.OK {
			return
		}
		var again []byte
		for line := range bytes.Lines(b) {
			e, err := event.ParseJSON(bytes.TrimSuffix(line, []byte("\n")))
			if err != nil {
				t.Fatal(err)
			}
			again = append(event.AppendJSON(again, &e), '\n')
		}
		if !bytes.Equal(b, again) {
			t.Fatalf("%q is rendered as %q", b, again)
		}
	})
}
