package eventlog

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"syscall"
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
		require.ErrorIs(t, l.Serving(), ErrCorrupt, "whoever has the report finds commands stopped")
		require.Len(t, told, 1)
	}
	require.Equal(t, "serving", l.Health().Step)
	_, err := l.Append(context.Background(), group("command"))
	require.ErrorIs(t, err, ErrCorrupt)

	d := draft("", 0)
	d.Type = event.TypeAuditCorruptionDetected
	d.Payload = (&event.AuditCorruptionDetected{Kind: "linkage", Detail: "x"}).Fields()
	c, err := l.Append(context.Background(), Group{Drafts: []event.Draft{d}, Reserve: true})
	require.NoError(t, err, "the finding itself is evidence")
	require.Equal(t, uint64(4), c.First)
	_, err = l.At(context.Background(), 2)
	require.ErrorIs(t, err, ErrCorrupt)
	mustClose(t, l)
	require.Len(t, told, 1)
	require.Equal(t, frame.Corruption, told[0].Status)
}

// outside is what a test knows of a log.
type outside struct {
	anchors []frame.Anchor
	err     error
}

func (o outside) Anchors(context.Context, *frame.Set) ([]frame.Anchor, []string, error) {
	return o.anchors, []string{"a warning"}, o.err
}

func (outside) NotExcluded() []string { return []string{"a doubt"} }

func TestWhatIsKnownOutsideIsHeldAgainstTheLog(t *testing.T) {
	o := memOptions(newMem(t))
	l, _ := mustOpen(t, o)
	c := mustAppend(t, l, "a", "b")
	mustClose(t, l)
	for name, c := range map[string]struct {
		anchor frame.Anchor
		status frame.Status
	}{
		"the same":  {frame.Anchor{Level: frame.L4, Seq: 2, Hash: c.Hashes[1]}, frame.OK},
		"more":      {frame.Anchor{Level: frame.L4, Seq: 3, NoHash: true}, frame.Corruption},
		"otherwise": {frame.Anchor{Level: frame.L4, Seq: 2, Hash: [32]byte{1}}, frame.Corruption},
	} {
		t.Run(name, func(t *testing.T) {
			var asked []bool
			o.Outside = func(whole bool) (Outside, error) {
				asked = append(asked, whole)
				return outside{anchors: []frame.Anchor{c.anchor}}, nil
			}
			check := func(r frame.Report) {
				require.Equal(t, c.status, r.Status, "%+v", r.Faults)
				require.Contains(t, r.Warnings, "a warning")
				require.Contains(t, r.NotExcluded, "a doubt")
			}
			check(mustVerify(t, o, c.status))
			l, rec := mustOpen(t, o)
			check(rec.Report)
			require.Equal(t, c.status == frame.Corruption, errors.Is(l.Serving(), ErrCorrupt))
			r, err := l.Verify(t.Context())
			require.NoError(t, err)
			check(r)
			mustClose(t, l)
			require.Equal(t, []bool{true, false, true}, asked, "a start that looks at the ends asks for no more than it can use")
		})
	}
	broken := errors.New("broken")
	o.Outside = func(bool) (Outside, error) { return nil, broken }
	_, _, err := Open(t.Context(), o)
	require.ErrorIs(t, err, broken)
	o.Outside = func(bool) (Outside, error) { return outside{err: broken}, nil }
	_, err = Verify(t.Context(), o)
	require.ErrorIs(t, err, broken)
}

func TestALogThatIsAccusedTakesNoMoreCommands(t *testing.T) {
	o := memOptions(newMem(t))
	var told []frame.Report
	o.OnCorruption = func(r frame.Report) { told = append(told, r) }
	l, _ := mustOpen(t, o)
	mustAppend(t, l, "a")
	f := frame.Fault{Check: frame.CheckAnchors, Kind: frame.AnchorBeyondEnd, Seq: 9, Detail: "a witness knows more"}
	verified, damaged := l.Damaged()
	require.False(t, damaged)
	require.Equal(t, l.Head().Seq, verified)
	l.Accuse(f)
	l.Accuse(f)
	verified, damaged = l.Damaged()
	require.True(t, damaged, "readers are told before a verification has found from where on")
	require.Zero(t, verified)
	require.Len(t, told, 1, "once is enough")
	require.Equal(t, frame.Corruption, told[0].Status)
	require.Equal(t, f, told[0].Faults[0])
	require.ErrorIs(t, l.Serving(), ErrCorrupt)
	require.False(t, l.Health().OK)
	_, err := l.Append(t.Context(), group("b"))
	require.ErrorIs(t, err, ErrCorrupt)
	require.Equal(t, []string{"a"}, names(t, l))
}

func TestTheSegmentOfAnEventIsKnown(t *testing.T) {
	o := memOptions(newMem(t))
	o.SegmentBytes, o.PreallocateBytes = 8<<10, 0 // each rotation has its time, and none the last event's
	l, _ := mustOpen(t, o)
	require.Zero(t, l.SegmentOf(1), "of one that is yet to come as well")
	for range 100 {
		mustAppend(t, l, numbered("e", 3)...)
	}
	require.Positive(t, l.Head().Segment)
	require.Equal(t, l.Head().Segment, l.SegmentOf(l.Head().Seq))
	last := uint32(0)
	for seq := uint64(1); seq <= l.Head().Seq; seq++ {
		require.Contains(t, []uint32{last, last + 1}, l.SegmentOf(seq))
		last = l.SegmentOf(seq)
	}
	require.Equal(t, l.Head().Segment, last)
}

// Too many open files are no damage: nothing is said of the log, and it goes on.
func TestAVerificationWithoutFilesToOpenAccusesNobody(t *testing.T) {
	var none atomic.Bool
	o := memOptions(frametest.Inject(newMem(t), func(op frametest.Op) error {
		if none.Load() && op.Kind == frametest.Open {
			return &frame.OpError{Op: "open", Name: op.Name, Err: syscall.EMFILE}
		}
		return nil
	}))
	o.OnCorruption = func(frame.Report) { t.Error("it is called damage") }
	l, _ := mustOpen(t, o)
	mustAppend(t, l, "a", "b")
	none.Store(true)
	_, err := l.Verify(t.Context())
	require.ErrorIs(t, err, frame.ErrNoFiles)
	require.NoError(t, l.Serving())
	require.True(t, l.Health().OK)
	mustAppend(t, l, "c")
	none.Store(false)
	r, err := l.Verify(t.Context())
	if errors.Is(err, frame.ErrNoFiles) { // shared with one of the log's own, which began before
		r, err = l.Verify(t.Context())
	}
	require.NoError(t, err)
	require.Equal(t, frame.OK, r.Status)
}
