package eventlog

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
	"writegate/eventlog/frame"
	"writegate/eventlog/frame/frametest"
)

func TestVerifyBesideAWriterSeesADurableHeadAndNothingTorn(t *testing.T) {
	mem := newMem(t)
	l, _ := mustOpen(t, memOptions(mem))
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					if _, err := l.Append(context.Background(), group("a", "b", "c")); err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	var last uint64
	for i := 0; i < 20 || last < 100; i++ {
		before := l.Head().Seq
		inside, err := l.Verify(context.Background())
		require.NoError(t, err)
		require.Equal(t, frame.OK, inside.Status, "%+v", inside.Faults)
		require.GreaterOrEqual(t, inside.LastSeq, before)
		outside := mustVerify(t, memOptions(mem), frame.OK)
		require.GreaterOrEqual(t, outside.LastSeq, last)
		last = outside.LastSeq
	}
	close(stop)
	wg.Wait()
}

func TestConcurrentVerificationsShareOneRun(t *testing.T) {
	mem := newMem(t)
	var opens atomic.Int32
	hold := make(chan struct{})
	var holding atomic.Bool
	l, _ := mustOpen(t, memOptions(frametest.Inject(mem, func(op frametest.Op) error {
		if holding.Load() && op.Name == testLog && op.Kind == frametest.Open {
			opens.Add(1)
			<-hold
		}
		return nil
	})))
	mustAppend(t, l, "a")
	holding.Store(true)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			r, err := l.Verify(context.Background())
			if err != nil || r.Status != frame.OK {
				t.Error(r.Status, err)
			}
		})
	}
	require.Eventually(t, func() bool { return opens.Load() == 1 }, time.Minute, time.Millisecond)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := l.Verify(ctx)
	require.ErrorIs(t, err, context.Canceled, "only the waiting ends")
	close(hold)
	wg.Wait()
	require.LessOrEqual(t, opens.Load(), int32(8))
}

func TestCorruptionFoundWhileRunningStopsCommandsAndIsToldOnce(t *testing.T) {
	mem := newMem(t)
	o := memOptions(mem)
	var told []frame.Report
	o.OnCorruption = func(r frame.Report) { told = append(told, r) }
	l, _ := mustOpen(t, o)
	for range 3 {
		mustAppend(t, l, "a")
	}
	change(t, mem, startOf(t, mem, 2)+50, 1)
	for range 2 {
		r, err := l.Verify(context.Background())
		require.NoError(t, err)
		require.Equal(t, frame.Corruption, r.Status)
	}
	require.ErrorIs(t, l.Serving(), ErrCorrupt)
	require.Equal(t, "serving", l.Health().Step)
	_, err := l.Append(context.Background(), group("command"))
	require.ErrorIs(t, err, ErrCorrupt)

	d := draft("", 0)
	d.Type = event.TypeAuditCorruptionDetected
	d.Payload = (&event.AuditCorruptionDetected{Kind: "linkage", Detail: "x"}).Fields()
	c, err := l.Append(context.Background(), Group{Drafts: []event.Draft{d}, Reserve: true})
	require.NoError(t, err, "the finding itself is evidence")
	require.Equal(t, uint64(4), c.First)
	_, err = l.At(2)
	require.ErrorIs(t, err, ErrCorrupt)
	mustClose(t, l)
	require.Len(t, told, 1)
	require.Equal(t, frame.Corruption, told[0].Status)
}
