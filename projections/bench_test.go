package projections

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/stretchr/testify/require"

	"writegate/eventlog"
	"writegate/eventlog/event"
)

// benchEvents are those of plain allowed writes: four events a statement, of
// which one in sixteen carries a key.
func benchEvents(b *testing.B, statements int) sliceSource {
	b.Helper()
	var events sliceSource
	at := time.Unix(1735689600, 0)
	for i := range statements {
		at = at.Add(time.Millisecond)
		ctx := event.Context{PolicyVersion: "core@1.0.0", Operation: "INSERT", Fingerprint: fmt.Sprint("f", i%40), Decision: "ALLOW", Actor: fmt.Sprint("svc-", i%10),
			App: "orders", Tenant: "acme", Env: "prod", RequestID: event.NewRequestID(at), ExecutionID: event.NewExecutionID(at)}
		dispatch := &event.ExecutionDispatched{Path: event.PathTx, Upstream: event.Upstream{Host: "db", Role: "writer"}, XID: uint64(i + 700)}
		if i%16 == 0 {
			dispatch.Idempotency = &event.Idempotency{Key: "k", ScopeDigest: [32]byte{byte(i), byte(i >> 8), byte(i >> 16)}, ExpiresAt: at.Add(24 * time.Hour).UnixNano()}
		}
		for _, p := range []event.Typed{&event.RequestReceived{SQLBytes: 200}, &event.DecisionRecorded{Enforced: true, RuleID: "app-dml", Layer: "policy", Run: "transaction"},
			dispatch, &event.ExecutionSuccess{CommandTag: "INSERT 0 1", RowCount: 1, Basis: "commit_acknowledged"}} {
			e := event.Envelope{Seq: uint64(len(events) + 1), Draft: event.New(at, ctx, p), Hash: [32]byte{byte(i), byte(len(events))}}
			if n := len(events); n > 0 {
				e.PreviousHash = events[n-1].Hash
			}
			events = append(events, e)
		}
	}
	return events
}

type sliceSource []event.Envelope

func (sliceSource) LogID() [16]byte { return [16]byte{1} }

func (sliceSource) Ancestors(context.Context) ([]eventlog.Ancestor, error) { return nil, nil }

func (s sliceSource) From(_ context.Context, seq uint64) iter.Seq2[event.Envelope, error] {
	return func(yield func(event.Envelope, error) bool) {
		for _, e := range s[seq-1:] {
			if !yield(e, nil) {
				return
			}
		}
	}
}

// BenchmarkRebuild measures goal L6: events/s of a rebuild of all projections,
// against Pebble applying batches of the same keys and nothing else. The two
// take turns in one run, on the host's own file system; the ratio is what counts.
func BenchmarkRebuild(b *testing.B) {
	events := benchEvents(b, 25_000)
	for range b.N {
		var fold time.Duration
		var shares []float64
		for round := range 5 {
			start := time.Now()
			s, err := Open(Options{Dir: fmt.Sprintf("%s/fold%d", b.TempDir(), round)})
			require.NoError(b, err)
			require.NoError(b, s.Connect(b.Context(), events))
			require.NoError(b, s.Flush())
			folded := time.Since(start)
			fold += folded
			batches := batchesOf(b, s, events)
			require.NoError(b, s.Close())

			start = time.Now()
			db, err := Open(Options{Dir: fmt.Sprintf("%s/bare%d", b.TempDir(), round)})
			require.NoError(b, err)
			for _, repr := range batches {
				batch := db.db.NewBatch()
				require.NoError(b, batch.SetRepr(repr))
				require.NoError(b, batch.Commit(pebble.NoSync))
			}
			require.NoError(b, db.Flush())
			shares = append(shares, time.Since(start).Seconds()/folded.Seconds())
			require.NoError(b, db.Close())
		}
		b.ReportMetric(float64(5*len(events))/fold.Seconds(), "events/s")
		slices.Sort(shares)
		b.ReportMetric(shares[len(shares)/2], "of-pebble")
		b.ReportMetric(shares[0], "of-pebble-min")
		b.ReportMetric(shares[len(shares)-1], "of-pebble-max")
	}
}

// batchesOf folds the events once more, into a second space of s, and keeps
// the batches in the form in which Pebble takes them.
func batchesOf(b *testing.B, s *Store, events sliceSource) (batches [][]byte) {
	b.Helper()
	t := begin(s.db, newSpace(nextSpace(s.space.id)))
	t.known = newRegister()
	for len(events) > 0 {
		n := min(replayEvents, len(events))
		for i := range events[:n] {
			require.NoError(b, t.fold(&events[i]))
		}
		require.NoError(b, errors.Join(t.seal(), t.write()))
		batches = append(batches, append([]byte(nil), t.batch.Repr()...))
		require.NoError(b, t.batch.Commit(pebble.NoSync))
		t, events = t.next(), events[n:]
	}
	return batches
}

// BenchmarkApply measures the live path: one commit batch of 64 events.
func BenchmarkApply(b *testing.B) {
	events := benchEvents(b, 16*(b.N%4096+1))
	s, err := Open(Options{Dir: b.TempDir() + "/store"})
	require.NoError(b, err)
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		at := i * 64 % len(events)
		if at == 0 {
			s.space.applied, s.space.block, s.space.growth = Applied{}, block{}, newSpace(1).growth // fold the same events again
		}
		require.NoError(b, s.apply(events[at:at+64]))
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(64*b.N), "ns/event")
	require.NoError(b, s.Close())
}

// BenchmarkAuditPage measures one page of a filter that few events meet, in a
// store that grows tenfold (goal S2 asks for the ratio of the two).
func BenchmarkAuditPage(b *testing.B) {
	for _, statements := range []int{2_500, 25_000} {
		b.Run(fmt.Sprint(4*statements, "-events"), func(b *testing.B) {
			events := benchEvents(b, statements)
			s, err := Open(Options{Dir: b.TempDir() + "/store"})
			require.NoError(b, err)
			require.NoError(b, s.Connect(b.Context(), events))
			v := s.View()
			f := AuditFilter{Actor: "svc-3", EventTypes: []string{"execution_success"}}
			b.ReportAllocs()
			for b.Loop() {
				seqs, _, err := v.Audit(f, Page{})
				if err != nil || len(seqs) != 100 {
					b.Fatal(len(seqs), err)
				}
			}
			require.NoError(b, v.Close())
			require.NoError(b, s.Close())
		})
	}
}
