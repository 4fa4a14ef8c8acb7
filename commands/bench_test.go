package commands

import (
	"context"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/eventlog"
	"writegate/eventlog/event"
	"writegate/projections"
)

// onDisk is a world on the host's file system, for figures that mean something.
func onDisk(b *testing.B) *Commands {
	b.Helper()
	dir := b.TempDir()
	store, err := projections.Open(projections.Options{Dir: filepath.Join(dir, "approvals.db")})
	require.NoError(b, err)
	log, _, err := eventlog.Open(context.Background(), eventlog.Options{Path: filepath.Join(dir, "audit.wal"), PreallocateBytes: 16 << 20})
	require.NoError(b, err)
	require.NoError(b, store.Connect(context.Background(), log))
	c, err := New(Options{Log: log, Store: store})
	require.NoError(b, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- store.Run(ctx, log) }()
	b.Cleanup(func() {
		cancel()
		require.ErrorIs(b, <-ended, context.Canceled)
		require.NoError(b, log.Close(context.Background()))
		require.NoError(b, store.Close())
	})
	require.NoError(b, c.Start(context.Background(), Startup{Mode: "enforce", Event: event.Startup{Version: "0.6.0"}}))
	return c
}

// statement is what one allowed write leaves: a decision with its dispatch,
// then its result.
func statement(b *testing.B, c *Commands) {
	r := recording(dispatching, func(r *RecordDecision) { r.ExecutionID = "" })
	recorded, err := c.RecordDecision(context.Background(), r)
	if err != nil {
		b.Error(err)
		return
	}
	result := succeeded(r, recorded.ExecutionID)
	result.Success.Answer = nil
	if _, err := c.RecordResult(context.Background(), result); err != nil {
		b.Error(err)
	}
}

func BenchmarkAllowedStatement1(b *testing.B) {
	c := onDisk(b)
	b.ReportAllocs()
	for b.Loop() {
		statement(b, c)
	}
}

func BenchmarkAllowedStatement64(b *testing.B) {
	c := onDisk(b)
	b.ReportAllocs()
	b.SetParallelism(64 / runtime.GOMAXPROCS(0)) // 64 clients
	before := c.log.Head()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			statement(b, c)
		}
	})
	b.ReportMetric(float64(c.log.Head().Offset-before.Offset)/float64(b.N), "log-bytes/op")
}

func BenchmarkBlockedStatement64(b *testing.B) {
	c := onDisk(b)
	r := recording(blocked)
	b.ReportAllocs()
	b.SetParallelism(64 / runtime.GOMAXPROCS(0)) // 64 clients
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := c.RecordDecision(context.Background(), r); err != nil {
				b.Error(err)
			}
		}
	})
}

// BenchmarkDecide is the part of a plain decision before the log: no I/O, no lock.
func BenchmarkDecide(b *testing.B) {
	r := recording(dispatching)
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := decideRecord(r, decisionFacts{engine: 1}, DefaultTTL, time.Now()); err != nil {
			b.Fatal(err)
		}
	}
}
