package agentctl

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/agentctl/toolcheck"
	"writegate/commands"
	"writegate/eventlog"
	"writegate/eventlog/event"
	"writegate/eventlog/frame/frametest"
	"writegate/projections"
)

// world is a service over a real log, on a disk that can be full.
type world struct {
	*Service
	log  *eventlog.Log
	now  atomic.Int64
	step atomic.Pointer[func(string)] // of commands
	full atomic.Bool
	hold sync.Mutex // keeps the projections from folding
}

// held is the world's log for its projections.
type held struct{ *world }

func (h held) LogID() [16]byte { return h.log.LogID() }

func (h held) Head() eventlog.Head { return h.log.Head() }

func (h held) From(ctx context.Context, seq uint64) iter.Seq2[event.Envelope, error] {
	return h.log.From(ctx, seq)
}

func (h held) Ancestors(ctx context.Context) ([]eventlog.Ancestor, error) {
	return h.log.Ancestors(ctx)
}

func (h held) Follow(ctx context.Context, seq uint64) iter.Seq2[eventlog.Batch, error] {
	return func(yield func(eventlog.Batch, error) bool) {
		for b, err := range h.log.Follow(ctx, seq) {
			h.hold.Lock()
			h.hold.Unlock() //nolint:staticcheck // it waits until nobody holds it
			if !yield(b, err) {
				return
			}
		}
	}
}

func begin(t testing.TB) *world {
	t.Helper()
	disk := frametest.NewMem()
	require.NoError(t, disk.MkdirAll("/data"))
	return beginOn(t, disk)
}

// beginOn is begin on a disk that may have a log.
func beginOn(t testing.TB, disk *frametest.Mem) *world {
	t.Helper()
	w := &world{}
	w.now.Store(noon.UnixNano())
	now := func() time.Time { return time.Unix(0, w.now.Load()).UTC() }
	fs := frametest.Inject(disk, func(op frametest.Op) error {
		// Only the zeros written ahead are this long and lengthen the file.
		if w.full.Load() && op.Kind == frametest.Pwrite && op.Name == "/data/audit.wal" && op.Len >= 16<<10 {
			return syscall.ENOSPC
		}
		return nil
	})
	store, err := projections.Open(projections.Options{Dir: "/data/approvals.db", FS: disk.VFS})
	require.NoError(t, err)
	w.log, _, err = eventlog.Open(context.Background(), eventlog.Options{Path: "/data/audit.wal", FS: fs, Now: now, Origin: "test", PreallocateBytes: 64 << 10})
	require.NoError(t, err)
	require.NoError(t, store.Connect(context.Background(), w.log))
	writer, err := commands.New(commands.Options{Log: w.log, Store: store, Now: now, Step: func(name string) {
		if step := w.step.Load(); step != nil {
			(*step)(name)
		}
	}})
	require.NoError(t, err)
	keys, err := ParseProjectKeys("")
	require.NoError(t, err)
	guard, err := NewToolGuard("", "", toolcheck.Secrets{}, nil)
	require.NoError(t, err)
	w.Service, err = New(Options{Commands: writer, Store: store, Log: w.log, Keys: keys, Tools: guard, Now: now})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := store.Run(ctx, held{w}); !errors.Is(err, context.Canceled) {
			t.Errorf("the projections ended: %v", err)
		}
	})
	t.Cleanup(func() {
		cancel()
		running.Wait()
		require.NoError(t, w.log.Close(context.Background()))
		require.NoError(t, store.Close())
	})
	require.NoError(t, writer.Start(context.Background(), commands.Startup{Mode: "enforce", Event: event.Startup{Version: "0.6.0", Profile: "development",
		Fsync: "required", VerifyOnStart: "active", OnTornTail: "record"}}))
	return w
}

// recorded adds up what the log says, by credential and minute.
func (w *world) recorded(t require.TestingT) map[string]int {
	sums := map[string]int{}
	for e, err := range w.log.From(context.Background(), 1) {
		require.NoError(t, err)
		if e.Type != event.TypeUsageRecorded {
			continue
		}
		var p event.UsageRecorded
		require.NoError(t, e.Parse(&p))
		for _, u := range p.Credentials {
			sums[fmt.Sprintf("%s %s %d", e.Context.Project, u.CredentialID, p.Minute/int64(time.Minute))] += u.Requests
		}
	}
	return sums
}

// use makes requests of many credentials, so that writing them takes several
// appends, and counts them as they were admitted.
func (w *world) use(admitted map[string]int, credentials int) {
	for i := range credentials {
		c := Caller{Project: fmt.Sprintf("p%d", i), KeyID: fmt.Sprintf("key_%d", i)}
		if _, ok := w.Admit(&c); ok {
			admitted[fmt.Sprintf("%s %s %d", c.Project, c.KeyID, minuteOf(w.Now()))]++
		}
	}
}

// flush writes everything, once the log has noticed that there is space again.
func (w *world) flush(t testing.TB) {
	t.Helper()
	w.full.Store(false)
	require.Eventually(t, func() bool { return w.FlushUsage(context.Background(), true) == nil }, time.Minute, 10*time.Millisecond)
}

func TestUsageThatTheLogRefusedInPartIsWrittenOnce(t *testing.T) {
	w := begin(t)
	admitted := map[string]int{}
	w.use(admitted, 200)
	require.NoError(t, w.FlushUsage(t.Context(), true))
	w.now.Add(int64(time.Minute))
	w.full.Store(true)
	w.use(admitted, 2000) // far more than what is preallocated holds
	require.Error(t, w.FlushUsage(t.Context(), true))
	inPart := len(w.recorded(t)) - 200
	require.Greater(t, inPart, 0, "some of it was written")
	require.Less(t, inPart, 2000, "and some was not")

	w.use(admitted, 200)
	w.flush(t)
	require.Equal(t, admitted, w.recorded(t))
	require.NoError(t, w.FlushUsage(t.Context(), true))
	require.Equal(t, admitted, w.recorded(t), "there is nothing left to write")
}

// Requests, writes, full disks and passing minutes in any order and at once:
// what the log says in the end is what was admitted.
func TestUsageInTheLogIsWhatWasAdmittedUnderAnySchedule(t *testing.T) {
	for seed := range uint64(6) {
		draw := rand.New(rand.NewPCG(seed, 1))
		w := begin(t)
		admitted := map[string]int{}
		for range 12 {
			w.full.Store(draw.IntN(2) == 0)
			w.now.Add(draw.Int64N(int64(90 * time.Second)))
			var flushing sync.WaitGroup
			for range draw.IntN(3) {
				flushing.Go(func() { _ = w.FlushUsage(context.Background(), false) }) // refused while the disk is full
			}
			w.use(admitted, 1+draw.IntN(150))
			flushing.Wait()
		}
		w.flush(t)
		require.Equal(t, admitted, w.recorded(t), "seed %d", seed)
	}
}

// While usage moves into the log, a meter that is filled finds each request in
// one of the two places.
func TestAMeterFilledWhileUsageIsWrittenCountsEachRequestOnce(t *testing.T) {
	w := begin(t)
	const agents = 150
	caller := func(i int) *Caller {
		return &Caller{Project: fmt.Sprintf("p%d", i), TokenID: fmt.Sprintf("tok_%d", i), AgentID: fmt.Sprintf("agt_%d", i)}
	}
	for i := range agents {
		for range 3 {
			w.Admit(caller(i))
		}
	}
	var flushing sync.WaitGroup
	flushing.Go(func() { require.NoError(t, w.FlushUsage(context.Background(), true)) })
	for i := range agents {
		usage, err := w.usageOf(t.Context(), caller(i).AgentID, w.Now())
		require.NoError(t, err)
		require.EqualValues(t, 3, usage.Requests1h, "agent %d", i)
	}
	flushing.Wait()
}
