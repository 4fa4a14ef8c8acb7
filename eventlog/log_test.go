package eventlog

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
	"writegate/eventlog/frame"
)

func TestANewLogTakesEventsAndGivesThemBack(t *testing.T) {
	o := memOptions(newMem(t))
	l, rec := mustOpen(t, o)
	require.True(t, rec.New)
	require.Empty(t, rec.Tails)
	require.Equal(t, "test", l.Header().Origin)
	require.NoError(t, l.Serving())
	require.True(t, l.Health().OK)
	require.Equal(t, Head{Hash: l.Header().Hash, Offset: frame.HeaderSize, Time: testTime}, l.Head())

	one := mustAppend(t, l, "a")
	two := mustAppend(t, l, "b", "c")
	require.Equal(t, uint64(1), one.First)
	require.Equal(t, uint64(2), two.First)
	require.Equal(t, uint64(3), two.Last)
	require.Equal(t, two.Hashes[1], l.Head().Hash)
	require.Equal(t, []string{"a", "b", "c"}, names(t, l))

	e, err := l.At(context.Background(), 2)
	require.NoError(t, err)
	require.Equal(t, two.Hashes[0], e.Hash)
	require.Equal(t, one.Hashes[0], e.PreviousHash)
	require.Equal(t, testTime, e.Time)
	for _, seq := range []uint64{0, 4} {
		_, err = l.At(context.Background(), seq)
		require.ErrorIs(t, err, ErrNotFound)
	}
	mustClose(t, l)
	mustVerify(t, o, frame.OK)
}

func TestTheFirstEventLinksToTheHeader(t *testing.T) {
	l, _ := mustOpen(t, memOptions(newMem(t)))
	mustAppend(t, l, "a")
	e, err := l.At(context.Background(), 1)
	require.NoError(t, err)
	require.Equal(t, l.Header().Hash, e.PreviousHash)
}

func TestALogGoesOnWhereItWasClosed(t *testing.T) {
	o := memOptions(newMem(t))
	for i := range 5 {
		l, rec := mustOpen(t, o)
		require.Equal(t, i == 0, rec.New)
		require.True(t, rec.Clean)
		mustAppend(t, l, fmt.Sprint(i))
		mustClose(t, l)
	}
	l, rec := mustOpen(t, o)
	require.Equal(t, []string{"0", "1", "2", "3", "4"}, names(t, l))
	require.Equal(t, frame.OK, rec.Report.Status)
	require.Equal(t, []event.Anchor{{Level: "L1", Result: frame.AnchorMatch, Seq: 5}}, rec.Anchors)
}

func TestCreateRefusesALogThatExists(t *testing.T) {
	o := memOptions(newMem(t))
	l, err := Create(context.Background(), o)
	require.NoError(t, err)
	mustClose(t, l)
	_, err = Create(context.Background(), o)
	require.Error(t, err)
	mustVerify(t, o, frame.OK)
}

func TestGroupsOfManyAppendersAreWholeAndInOrder(t *testing.T) {
	for _, fsync := range []string{FsyncRequired, FsyncOff} {
		t.Run(fsync, func(t *testing.T) {
			o := memOptions(newMem(t))
			o.Fsync = fsync
			l, _ := mustOpen(t, o)
			const appenders, rounds = 64, 20
			var wg sync.WaitGroup
			for a := range appenders {
				wg.Go(func() {
					var last uint64
					for r := range rounds {
						c, err := l.Append(context.Background(), group(fmt.Sprintf("%d.%d.0", a, r), fmt.Sprintf("%d.%d.1", a, r)))
						if err != nil || c.First <= last || c.Last != c.First+1 {
							t.Errorf("appender %d: %v %v", a, c, err)
							return
						}
						last = c.Last
						e, err := l.At(context.Background(), c.Last)
						if err != nil || e.Hash != c.Hashes[1] {
							t.Errorf("an acknowledged event can't be read: %v", err)
							return
						}
					}
				})
			}
			wg.Wait()
			got := names(t, l)
			require.Len(t, got, 2*appenders*rounds)
			for i := 0; i < len(got); i += 2 {
				require.Equal(t, strings.TrimSuffix(got[i], "0")+"1", got[i+1], "a group was split")
			}
			mustClose(t, l)
			r := mustVerify(t, o, frame.OK)
			require.Equal(t, uint64(len(got)), r.EventCount)
		})
	}
}

func TestAGroupOverTheLimitsIsRefusedAndLeavesNoTrace(t *testing.T) {
	l, _ := mustOpen(t, memOptions(newMem(t)))
	for name, drafts := range map[string][]event.Draft{
		"none":        nil,
		"too many":    slices.Repeat([]event.Draft{draft("a", 1)}, MaxGroupEvents+1),
		"huge record": {draft("a", frame.MaxRecord)},
		"huge group":  slices.Repeat([]event.Draft{draft("a", 1<<20-1024)}, 9),
	} {
		_, err := l.Append(context.Background(), Group{Drafts: drafts})
		require.ErrorIs(t, err, ErrTooLarge, name)
	}
	_, err := l.Append(context.Background(), Group{Drafts: []event.Draft{{}}})
	require.Error(t, err, "a draft that has no record")
	require.Equal(t, uint64(1), mustAppend(t, l, "a").First)
}

func TestAGroupLargerThanABatchIsNotSplit(t *testing.T) {
	o := memOptions(newMem(t))
	l, _ := mustOpen(t, o)
	g := Group{Drafts: slices.Repeat([]event.Draft{draft("big", 4000)}, 1000)}
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if _, err := l.Append(context.Background(), g); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	require.Equal(t, uint64(3000), l.Head().Seq)
	mustClose(t, l)
	mustVerify(t, o, frame.OK)
}

func TestAClosedLogRefuses(t *testing.T) {
	l, _ := mustOpen(t, memOptions(newMem(t)))
	mustAppend(t, l, "a")
	mustClose(t, l)
	_, err := l.Append(context.Background(), group("b"))
	require.ErrorIs(t, err, ErrClosed)
	_, err = l.At(context.Background(), 1)
	require.ErrorIs(t, err, ErrClosed)
	_, err = l.Verify(context.Background())
	require.ErrorIs(t, err, ErrClosed)
	require.NoError(t, l.Close(context.Background()), "a second close gives the first one's answer")
}

func TestACancelledContextCountsOnlyWhileTheGroupWaitsForRoom(t *testing.T) {
	l, _ := mustOpen(t, memOptions(newMem(t)))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := l.Append(ctx, group("a"))
	require.NoError(t, err, "it had its place at once, so it waits for what happens")
}
