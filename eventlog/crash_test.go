package eventlog

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"writegate/eventlog/checkpoint"
	"writegate/eventlog/event"
	"writegate/eventlog/frame"
	"writegate/eventlog/frame/frametest"
)

// ledger is what clients know: which events were acknowledged, and where.
type ledger struct {
	mu    sync.Mutex
	acked map[string]uint64
	sizes map[string]int // events of the group that a name begins with

	receipts []string // of acknowledged groups, where the log signs
}

func newLedger() *ledger { return &ledger{acked: map[string]uint64{}, sizes: map[string]int{}} }

func (k *ledger) snapshot() *ledger {
	k.mu.Lock()
	defer k.mu.Unlock()
	return &ledger{acked: maps.Clone(k.acked), sizes: maps.Clone(k.sizes), receipts: slices.Clone(k.receipts)}
}

// append sends a group of n events and notes the acknowledgement.
func (k *ledger) append(l *Log, name string, n int) error {
	k.mu.Lock()
	k.sizes[name] = n
	k.mu.Unlock()
	g := Group{}
	for i := range n {
		g.Drafts = append(g.Drafts, draft(fmt.Sprintf("%s/%d", name, i), 100))
	}
	c, err := l.Append(context.Background(), g)
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := range n {
		k.acked[fmt.Sprintf("%s/%d", name, i)] = c.First + uint64(i)
	}
	if c.HasReceipt() {
		text, err := c.Receipt()
		k.receipts = append(k.receipts, text)
		return err
	}
	return nil
}

// check holds a log against what clients know: acknowledged events are there,
// at their place; a group is whole or absent.
func (k *ledger) check(t *testing.T, l *Log) {
	t.Helper()
	found, whole := map[string]uint64{}, map[string]int{}
	for e, err := range l.From(context.Background(), 1) {
		require.NoError(t, err)
		if e.Type != event.TypeHealthFail {
			continue
		}
		name := stepOf(t, e)
		if at, twice := found[name]; twice {
			t.Fatalf("%s is there twice, at %d and %d", name, at, e.Seq)
		}
		found[name] = e.Seq
		group, _, _ := strings.Cut(name, "/")
		whole[group]++
	}
	for name, seq := range k.acked {
		require.Equal(t, seq, found[name], "acknowledged event %s", name)
	}
	for group, n := range whole {
		require.Equal(t, k.sizes[group], n, "group %s was split", group)
	}
	for _, text := range k.receipts {
		requireReceipt(t, l, text)
	}
}

// requireReceipt holds a receipt against the log that it is of.
func requireReceipt(t testing.TB, l *Log, text string) checkpoint.Anchor {
	t.Helper()
	r, err := checkpoint.ParseReceipt(text)
	require.NoError(t, err)
	a, err := r.Check(testKey.Public())
	require.NoError(t, err)
	require.Equal(t, l.LogID(), a.LogID)
	require.LessOrEqual(t, a.Last, l.Head().Seq, "a receipt is beyond the end")
	e, err := l.At(context.Background(), a.Seq)
	require.NoError(t, err)
	require.Equal(t, e.Hash, a.Hash)
	return a
}

// reopen opens what a crash left, names discarded tails as the service does,
// and holds the log against what clients know. It gives the number of tails.
func (k *ledger) reopen(t *testing.T, o Options) int {
	t.Helper()
	before := mustNotAccuse(t, o)
	l, rec, err := Open(context.Background(), o)
	require.NoError(t, err)
	require.NoError(t, l.Serving(), "%+v", before.Faults)
	nameTails(t, l, rec)
	k.check(t, l)
	require.NoError(t, k.append(l, fmt.Sprintf("after%d", l.Head().Seq), 2))
	k.check(t, l)
	mustClose(t, l)
	mustVerify(t, o, frame.OK)
	l, again := mustOpen(t, o)
	require.Empty(t, again.Tails, "every tail has its event")
	k.check(t, l)
	mustClose(t, l)
	return len(rec.Tails)
}

// mustNotAccuse verifies without repairing: an honest crash is never corruption.
func mustNotAccuse(t *testing.T, o Options) frame.Report {
	t.Helper()
	r, err := Verify(context.Background(), o)
	require.NoError(t, err)
	require.NotEqual(t, frame.Corruption, r.Status, "%+v", r.Faults)
	return r
}

// nameTails appends log_tail_recovered, as the service does before anything else.
func nameTails(t *testing.T, l *Log, rec Recovery) {
	t.Helper()
	if len(rec.Tails) == 0 {
		return
	}
	d := draft("", 1)
	d.Type, d.Payload = event.TypeLogTailRecovered, (&event.LogTailRecovered{Tails: rec.Tails}).Fields()
	_, err := l.Append(context.Background(), Group{Drafts: []event.Draft{d}})
	require.NoError(t, err)
}

// clones takes a crash clone before each call that changes the file system.
type clones struct {
	mem    *frametest.Mem
	ledger *ledger
	mu     sync.Mutex
	seed   uint64
	taken  []clone
}

type clone struct {
	op     frametest.Op
	mem    *frametest.Mem
	ledger *ledger
}

func (c *clones) hook(op frametest.Op) error {
	switch op.Kind {
	case frametest.Pread, frametest.Open, frametest.List, frametest.OpenLock, frametest.Lock:
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, percent := range []int{0, 40, 80, 100} {
		known := c.ledger.snapshot() // before the clone: what is acknowledged by now has to be in it
		c.seed++
		c.taken = append(c.taken, clone{op, c.mem.Crash(percent, c.seed), known})
	}
	return nil
}

// TestAPowerCutAtAnyCall runs the life of a log and cuts the power before each
// call that changes the file system, with none, some and all of the unsynced
// blocks kept: creation, appends, preallocation, close, reopening.
func TestAPowerCutAtAnyCall(t *testing.T) {
	mem := newMem(t)
	known := newLedger()
	c := &clones{mem: mem, ledger: known}
	o := memOptions(frametest.Inject(mem, c.hook))
	o.IndexPath, o.JSONLPath = "/log/audit_index_v1.json", "/log/audit.log"
	for run := range 2 {
		l, _, err := Open(context.Background(), o)
		require.NoError(t, err)
		for i := range 8 {
			require.NoError(t, known.append(l, fmt.Sprintf("g%d.%d", run, i), 1+i*11%40))
		}
		mustClose(t, l)
	}
	tails := 0
	for _, clone := range c.taken {
		t.Run("", func(t *testing.T) {
			t.Logf("before %s %s", clone.op.Kind, clone.op.Name)
			o := memOptions(clone.mem)
			o.IndexPath, o.JSONLPath = "/log/audit_index_v1.json", "/log/audit.log"
			tails += clone.ledger.reopen(t, o)
		})
	}
	require.Greater(t, tails, 5, "the cuts should have torn some batches")
}

// TestPowerCutsUnderLoad lets many clients append and cuts the power at random,
// again and again in the same log.
func TestPowerCutsUnderLoad(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 1))
			mem, known := newMem(t), newLedger()
			for round := range 6 {
				mem, known = loadAndCut(t, rng, mem, known, round)
			}
			known.reopen(t, memOptions(mem))
		})
	}
}

// loadAndCut appends from eight goroutines until a randomly chosen call and
// gives the file system and the clients' knowledge of that moment.
func loadAndCut(t *testing.T, rng *rand.Rand, mem *frametest.Mem, known *ledger, round int) (*frametest.Mem, *ledger) {
	t.Helper()
	var (
		mu     sync.Mutex
		calls  int
		at     = 20 + rng.IntN(60)
		kept   = rng.IntN(101)
		cut    *frametest.Mem
		left   *ledger
		stop   = make(chan struct{})
		seed   = rng.Uint64()
		acking = known
	)
	hook := func(op frametest.Op) error {
		if op.Kind == frametest.Pread {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		if calls++; calls == at {
			left = acking.snapshot()
			cut = mem.Crash(kept, seed)
			close(stop)
		}
		return nil
	}
	mustNotAccuse(t, memOptions(mem))
	l, rec, err := Open(context.Background(), memOptions(frametest.Inject(mem, hook)))
	require.NoError(t, err)
	require.NoError(t, l.Serving())
	nameTails(t, l, rec)
	known.check(t, l)
	var wg sync.WaitGroup
	for a := range 8 {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				if err := known.append(l, fmt.Sprintf("r%d.%d.%d", round, a, i), 1+(a+i)%5); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	mustClose(t, l)
	return cut, left
}

// TestAKilledProcessAndThenAPowerCut: the process dies before any call, the next
// one finds what only the page cache has, and the power goes before any call of
// its start. The head file must not speak of what the disk never got.
func TestAKilledProcessAndThenAPowerCut(t *testing.T) {
	died := errors.New("the process is gone")
	for at := 1; ; at++ {
		mem, known := newMem(t), newLedger()
		calls := 0
		var mu sync.Mutex
		l, _, err := Open(context.Background(), memOptions(frametest.Inject(mem, func(op frametest.Op) error {
			mu.Lock()
			defer mu.Unlock()
			if op.Kind == frametest.Pread {
				return nil
			}
			if calls++; calls >= at {
				return died
			}
			return nil
		})))
		for i := 0; err == nil && i < 6; i++ {
			err = known.append(l, fmt.Sprint("g", i), 1+7*i)
		}
		if l != nil {
			err = errors.Join(err, l.Close(context.Background()))
		}
		if err == nil {
			require.Greater(t, at, 20, "it lived through everything")
			return
		}
		c := &clones{mem: frametest.Over(mem.VFS), ledger: known} // locks end with their process
		o := memOptions(frametest.Inject(c.mem, c.hook))
		l, rec, err := Open(context.Background(), o)
		require.NoError(t, err)
		require.NoError(t, l.Serving())
		nameTails(t, l, rec)
		require.NoError(t, known.append(l, "second", 3))
		mustClose(t, l)
		for _, clone := range c.taken {
			clone.ledger.reopen(t, memOptions(clone.mem))
		}
	}
}

// tornLog makes a log with three events whose unfinished end is tail, as a
// crash leaves it.
func tornLog(t *testing.T, makeTail func(*testing.T, *Log) []byte) (*frametest.Mem, *ledger, []byte) {
	t.Helper()
	mem, known := newMem(t), newLedger()
	o := memOptions(mem)
	l, _ := mustOpen(t, o)
	require.NoError(t, known.append(l, "a", 1))
	require.NoError(t, known.append(l, "b", 2))
	end, tail := l.Head().Offset, bytes.TrimRight(makeTail(t, l), "\x00")
	cut := mem.Crash(0, 1)
	f, err := cut.Open(testLog, frame.ReadWrite)
	require.NoError(t, err)
	_, err = f.Pwrite(tail, end)
	require.NoError(t, err)
	require.NoError(t, f.Sync())
	return cut, known, tail
}

// incomplete gives the first frames of a batch whose end is missing.
func incomplete(t *testing.T, l *Log) []byte {
	t.Helper()
	head := l.Head()
	var buf []byte
	prev := head.Hash
	for i := range 3 {
		d := draft("lost", 10)
		rec, err := event.Encode(nil, &d)
		require.NoError(t, err)
		f := frame.Frame{Seq: head.Seq + 1 + uint64(i), PreviousHash: prev, Record: rec}
		f.Hash = frame.EventHash(f.Seq, prev, rec)
		buf, prev = frame.Append(buf, &f), f.Hash
	}
	require.NoError(t, frame.SealBatch(buf, uint64(head.Offset)))
	return buf[:2*len(buf)/3]
}

// tornTails are what may follow the last complete batch.
var tornTails = map[string]func(*testing.T, *Log) []byte{
	"garbage":          fixed(bytes.Repeat([]byte("garbage!"), 100)),
	"one byte":         fixed([]byte{1}),
	"late garbage":     fixed(append(make([]byte, 9000), "rest"...)),
	"incomplete batch": incomplete,
}

func fixed(tail []byte) func(*testing.T, *Log) []byte {
	return func(*testing.T, *Log) []byte { return tail }
}

func TestATornTailIsKeptZeroedAndNamed(t *testing.T) {
	for name, makeTail := range tornTails {
		t.Run(name, func(t *testing.T) {
			mem, known, tail := tornLog(t, makeTail)
			o := memOptions(mem)
			mustVerify(t, o, frame.Partial)
			l, rec := mustOpen(t, o)
			require.NoError(t, l.Serving())
			require.Len(t, rec.Tails, 1)
			kept, err := mem.ReadFile(path.Join(testLog+frame.QuarantineSuffix, rec.Tails[0].File))
			require.NoError(t, err)
			require.Equal(t, tail, kept)
			require.Equal(t, l.Head().Offset, rec.Tails[0].Offset)
			require.EqualValues(t, len(tail), rec.Tails[0].Length)
			require.True(t, strings.HasPrefix(rec.Tails[0].File, "4-"))
			about, err := mem.ReadFile(path.Join(testLog+frame.QuarantineSuffix, strings.Replace(rec.Tails[0].File, ".bin", ".json", 1)))
			require.NoError(t, err)
			require.Contains(t, string(about), `"last_seq":3`)
			mustClose(t, l)
			known.reopen(t, o)
		})
	}
}

// TestRecoveryMayDieAnywhere cuts the power before each call of a recovery:
// the next one finds the torn bytes in the file or in quarantine, and in the
// end exactly one event names each tail.
func TestRecoveryMayDieAnywhere(t *testing.T) {
	for name, makeTail := range tornTails {
		t.Run(name, func(t *testing.T) {
			mem, known, tail := tornLog(t, makeTail)
			c := &clones{mem: mem, ledger: known}
			l, rec, err := Open(context.Background(), memOptions(frametest.Inject(mem, c.hook)))
			require.NoError(t, err)
			nameTails(t, l, rec)
			mustClose(t, l)
			for _, clone := range c.taken {
				o := memOptions(clone.mem)
				clone.ledger.reopen(t, o)
				require.True(t, tailSurvives(t, clone.mem, tail), "torn bytes were lost before %s %s", clone.op.Kind, clone.op.Name)
			}
		})
	}
}

// What lies behind holes is put aside and taken away without the holes being written.
func TestATornTailBehindATerabyteOfHoles(t *testing.T) {
	o := memOptions(frame.OS{})
	o.Path = filepath.Join(t.TempDir(), "audit.wal")
	l, _ := mustOpen(t, o)
	_, err := l.Append(t.Context(), group("a"))
	require.NoError(t, err)
	require.NoError(t, l.Close(t.Context()))
	f, err := os.OpenFile(o.Path, os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteAt([]byte("x"), 1<<40-1)
	require.NoError(t, errors.Join(err, f.Close()))
	l, rec := mustOpen(t, o)
	require.Len(t, rec.Tails, 1)
	require.EqualValues(t, 1<<40, rec.Tails[0].Offset+rec.Tails[0].Length)
	kept := filepath.Join(o.Path+frame.QuarantineSuffix, rec.Tails[0].File)
	for name, size := range map[string]int64{o.Path: 1 << 40, kept: rec.Tails[0].Length} {
		var stat unix.Stat_t
		require.NoError(t, unix.Stat(name, &stat))
		require.Equal(t, size, stat.Size, name)
		require.Less(t, stat.Blocks*512, int64(64<<20), name)
	}
	require.Contains(t, rec.Tails[0].File, hex.EncodeToString(rec.Tails[0].SHA256[:8]))
	_, err = l.Append(t.Context(), group("b"))
	require.NoError(t, err)
}

// tailSurvives looks for the torn bytes among the quarantined tails that an
// event names. A zeroing cut short leaves a second tail, which is kept as well.
func tailSurvives(t *testing.T, mem *frametest.Mem, tail []byte) bool {
	t.Helper()
	l, _ := mustOpen(t, memOptions(mem))
	defer mustClose(t, l)
	for e, err := range l.From(context.Background(), 1) {
		require.NoError(t, err)
		var p event.LogTailRecovered
		if e.Type != event.TypeLogTailRecovered {
			continue
		}
		require.NoError(t, e.Parse(&p))
		for _, q := range p.Tails {
			kept, err := mem.ReadFile(path.Join(testLog+frame.QuarantineSuffix, q.File))
			require.NoError(t, err)
			if bytes.Equal(kept, tail) {
				return true
			}
		}
	}
	return false
}
