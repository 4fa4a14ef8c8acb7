package evidence_test

import (
	"context"
	"io"
	"iter"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
	"writegate/eventlog/evidence"
	"writegate/eventlog/evidence/evidencetest"
	"writegate/eventlog/frame"
)

// endless is a log that makes its events when they are read, so that a test sees
// the memory of who reads them. Live is asked for near the end of a reading.
type endless struct {
	header frame.Header
	draft  event.Draft
	live   func()
}

func (e *endless) Header() frame.Header { return e.header }

func (e *endless) Frames(_ context.Context, first, last uint64) iter.Seq2[frame.Frame, error] {
	return func(yield func(frame.Frame, error) bool) {
		prev, record := e.header.Hash, []byte(nil)
		for seq := first; seq <= last; seq++ {
			var err error
			if record, err = event.Encode(record[:0], &e.draft); err != nil {
				yield(frame.Frame{}, err)
				return
			}
			f := frame.Frame{Seq: seq, PreviousHash: prev, Record: record, Hash: frame.EventHash(seq, prev, record)}
			if prev = f.Hash; !yield(f, nil) {
				return
			}
			if seq == last-last/10 {
				e.live()
			}
		}
	}
}

// heap is what is alive now.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// peak writes a bundle of n events straight into its verifier and gives the most
// that was alive when both were nearly done.
func peak(t *testing.T, n uint64) (most uint64) {
	e := &endless{header: evidencetest.New(0).Header(), draft: evidencetest.Draft(2), live: func() { most = max(most, heap()) }}
	r, w := io.Pipe()
	go func() {
		w.CloseWithError(evidence.Write(context.Background(), w, e, evidence.Request{First: 1, Last: n, CreatedAt: time.Unix(1, 0)}, nil))
	}()
	report, err := evidence.Verify(context.Background(), r, evidence.Options{})
	require.NoError(t, err)
	require.Equal(t, frame.OK, report.Status, report.Faults)
	require.Equal(t, n, report.EventCount)
	return most
}

func TestMemoryDoesNotGrowWithTheRange(t *testing.T) {
	few, many := peak(t, 500), peak(t, 20_000) // 24 MB of text
	t.Logf("%d bytes alive with 500 events, %d with 20,000", few, many)
	assert.Less(t, many, few+1<<20)
}

func BenchmarkPrepareAndWrite(b *testing.B) {
	l := evidencetest.New(1000)
	p, err := evidence.Prepare(context.Background(), l, request(1, 1000), nil)
	require.NoError(b, err)
	b.SetBytes(p.Size())
	for b.Loop() {
		require.NoError(b, evidence.Write(context.Background(), io.Discard, l, request(1, 1000), nil))
	}
}

func BenchmarkVerify(b *testing.B) {
	bundle := write(b, evidencetest.New(1000), request(1, 1000), nil)
	b.SetBytes(int64(len(bundle)))
	for b.Loop() {
		verify(b, bundle)
	}
}

func BenchmarkVerifyJSONL(b *testing.B) {
	lines := evidencetest.New(1000).JSONL(1)
	b.SetBytes(int64(len(lines)))
	for b.Loop() {
		verifyLines(b, lines, nil)
	}
}
