package eventlog

import (
	"context"
	"crypto/sha256"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/stretchr/testify/require"

	"writegate/eventlog/checkpoint"
	"writegate/eventlog/event"
	"writegate/eventlog/frame"
)

// The benchmarks compare the log with what it could have been, in one run and
// one folder, round by round, because an absolute figure of a shared disk says
// nothing. Each reports the median of its rounds and their spread.
const (
	benchRecord   = 400 // bytes of a record, about
	benchPrealloc = 16 << 20
	benchRounds   = 7
	benchRound    = 700 * time.Millisecond
)

// benchDraft makes an event whose record has benchRecord bytes.
func benchDraft(b *testing.B) event.Draft {
	d := draft("bench", 300)
	rec, err := event.Encode(nil, &d)
	require.NoError(b, err)
	d = draft("bench", 300+benchRecord-len(rec))
	return d
}

func benchLog(b *testing.B, dir string) *Log { return benchLogIn(b, dir, nil) }

// benchLogWith is a log in a folder of its own that signs with key, if any.
func benchLogWith(b *testing.B, key *checkpoint.PrivateKey) *Log {
	return benchLogIn(b, b.TempDir(), key)
}

func benchLogIn(b *testing.B, dir string, key *checkpoint.PrivateKey) *Log {
	l, _, err := Open(context.Background(), Options{Path: filepath.Join(dir, "audit.wal"), PreallocateBytes: benchPrealloc, SigningKey: key})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, l.Close(context.Background())) })
	return l
}

func benchPebble(b *testing.B, dir string) *pebble.DB {
	db, err := pebble.Open(filepath.Join(dir, "pebble"), &pebble.Options{FormatMajorVersion: pebble.FormatNewest, Logger: quiet{}})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, db.Close()) })
	return db
}

type quiet struct{}

func (quiet) Infof(string, ...any)         {}
func (quiet) Errorf(string, ...any)        {}
func (quiet) Fatalf(f string, args ...any) { panic(fmt.Sprintf(f, args...)) }

// rate runs clients for one round and gives their calls per second.
func rate(b *testing.B, clients int, call func(client int) error) float64 {
	var calls atomic.Int64
	var wg sync.WaitGroup
	start := time.Now()
	for c := range clients {
		wg.Go(func() {
			for time.Since(start) < benchRound {
				if err := call(c); err != nil {
					b.Error(err)
					return
				}
				calls.Add(1)
			}
		})
	}
	wg.Wait()
	return float64(calls.Load()) / time.Since(start).Seconds()
}

// p50 gives the median latency of one client, in seconds.
func p50(b *testing.B, call func() error) float64 {
	var took []time.Duration
	for start := time.Now(); time.Since(start) < benchRound; {
		t := time.Now()
		if err := call(); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(t))
	}
	slices.Sort(took)
	return took[len(took)/2].Seconds()
}

// report prints the median of the ratios of paired rounds, and their spread.
func report(b *testing.B, unit string, ours, theirs []float64) {
	ratios := make([]float64, len(ours))
	for i := range ours {
		ratios[i] = ours[i] / theirs[i]
	}
	slices.Sort(ratios)
	slices.Sort(ours)
	slices.Sort(theirs)
	b.ReportMetric(ratios[len(ratios)/2], "ratio")
	b.ReportMetric(ratios[0], "ratio-min")
	b.ReportMetric(ratios[len(ratios)-1], "ratio-max")
	b.ReportMetric(ours[len(ours)/2], "log-"+unit)
	b.ReportMetric(theirs[len(theirs)/2], "other-"+unit)
	b.ReportMetric(0, "ns/op")
}

// appendCall makes an appender that every client shares.
func appendCall(l *Log, d event.Draft) func(int) error {
	return func(int) error {
		_, err := l.Append(context.Background(), Group{Drafts: []event.Draft{d}})
		return err
	}
}

// receiptCall is appendCall with the receipt rendered, as every answer does.
func receiptCall(l *Log, d event.Draft) func(int) error {
	return func(int) error {
		c, err := l.Append(context.Background(), Group{Drafts: []event.Draft{d}})
		if err != nil {
			return err
		}
		_, err = c.Receipt()
		return err
	}
}

// BenchmarkAppendAgainstPebble is goal L1 and R3: durable events a second
// against Pebble's Set with Sync, with as many clients and as large values.
func BenchmarkAppendAgainstPebble(b *testing.B) {
	for _, clients := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprint(clients), func(b *testing.B) {
			dir := b.TempDir()
			l, db := benchLog(b, dir), benchPebble(b, dir)
			add := appendCall(l, benchDraft(b))
			value := make([]byte, benchRecord)
			var key atomic.Uint64
			set := func(int) error {
				return db.Set(fmt.Appendf(nil, "%016x", key.Add(1)), value, pebble.Sync)
			}
			var ours, theirs []float64
			for range benchRounds {
				ours = append(ours, rate(b, clients, add))
				theirs = append(theirs, rate(b, clients, set))
			}
			report(b, "events/s", ours, theirs)
		})
	}
}

// rawFile is a preallocated file and the calls of one commit, nothing else.
func rawFile(b *testing.B, dir string) func() error {
	f, err := frame.OS{}.Create(filepath.Join(dir, "raw"))
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, f.Close()) })
	const size = 64 << 20
	_, err = writeZeros(f, 0, size)
	require.NoError(b, err)
	require.NoError(b, f.Sync())
	block, off := make([]byte, 512), int64(0)
	for i := range block {
		block[i] = byte(i)
	}
	return func() error {
		if _, err := f.Pwrite(block, off); err != nil {
			return err
		}
		off = (off + 512) % size
		return f.Datasync()
	}
}

// BenchmarkAppendAgainstRaw is goal L3 and R1: the median latency of one
// durable append against one pwrite of 512 bytes and one fdatasync.
func BenchmarkAppendAgainstRaw(b *testing.B) {
	dir := b.TempDir()
	l := benchLog(b, dir)
	add, raw := appendCall(l, benchDraft(b)), rawFile(b, dir)
	var ours, theirs []float64
	for range benchRounds {
		ours = append(ours, 1e6*p50(b, func() error { return add(0) }))
		theirs = append(theirs, 1e6*p50(b, raw))
	}
	report(b, "us", ours, theirs)
}

// BenchmarkGrouping is goal R2: events a second of N clients against N/2 times
// the syncs a second that one thread can do.
func BenchmarkGrouping(b *testing.B) {
	for _, clients := range []int{8, 16, 32, 64} {
		b.Run(fmt.Sprint(clients), func(b *testing.B) {
			dir := b.TempDir()
			l := benchLog(b, dir)
			add, raw := appendCall(l, benchDraft(b)), rawFile(b, dir)
			var ours, theirs []float64
			for range benchRounds {
				ours = append(ours, rate(b, clients, add))
				theirs = append(theirs, float64(clients)/2*rate(b, 1, func(int) error { return raw() }))
			}
			report(b, "events/s", ours, theirs)
		})
	}
}

// BenchmarkSequence is goal R4: events chained without any I/O against SHA-256
// of 512 bytes, on one core.
func BenchmarkSequence(b *testing.B) {
	g := Group{Drafts: []event.Draft{benchDraft(b)}}
	l := newLog(Options{})
	rec := new(records)
	block := make([]byte, 512)
	var ours, theirs []float64
	for range benchRounds {
		ours = append(ours, rate(b, 1, func(int) error {
			for range 1000 {
				if err := rec.encode(g.Drafts); err != nil {
					return err
				}
				w := waiters.Get().(*waiter)
				l.sequence(&g, rec, make([][32]byte, 1), w)
				waiters.Put(w)
				if len(l.filling.buf) > batchBytes {
					l.filling.reset(0, l.filling.last, l.filling.hash)
					l.active.index.points = l.active.index.points[:0]
				}
			}
			return nil
		}))
		theirs = append(theirs, rate(b, 1, func(int) error {
			for range 1000 {
				sha256.Sum256(block)
			}
			return nil
		}))
	}
	report(b, "thousands/s", ours, theirs)
}

// BenchmarkAppendAllocations counts what one append allocates.
func BenchmarkAppendAllocations(b *testing.B) {
	o := memOptions(newMem(b))
	o.Fsync = FsyncOff
	l, _ := mustOpen(b, o)
	add := appendCall(l, benchDraft(b))
	b.ReportAllocs()
	for b.Loop() {
		if err := add(0); err != nil {
			b.Fatal(err)
		}
	}
}
