package eventlog

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/frame"
	"writegate/eventlog/frame/frametest"
)

// What waits behind a batch that the disk holds is given up whole when the fence is not
// confirmed any more by the time that it would be written, results of the reserve too. The
// chain goes on where it was once the fence is back.
func TestNothingIsWrittenWithoutTheFence(t *testing.T) {
	var fence atomic.Pointer[error]
	l, k, _ := guarded(t, func(o *Options) {
		o.Fence = func() error {
			if err := fence.Load(); err != nil {
				return *err
			}
			return nil
		}
	})
	mustAppend(t, l, "before")
	held, release := k.holdOn(frametest.Datasync)
	first, second := make(chan error, 1), make(chan error, 2)
	go func() { _, err := l.Append(context.Background(), group("written")); first <- err }()
	<-held
	for _, reserve := range []bool{false, true} {
		g := group("waits")
		g.Reserve = reserve
		go func() { _, err := l.Append(context.Background(), g); second <- err }()
	}
	require.Eventually(t, func() bool { return queued(l) == 2 }, time.Minute, time.Millisecond)
	lapsed := fmt.Errorf("%w: for a test", ErrFenceUnconfirmed)
	fence.Store(&lapsed)
	release()
	require.NoError(t, <-first, "what was being written when the fence was still confirmed")
	for range 2 {
		err := <-second
		require.ErrorIs(t, err, ErrNotWritten)
		require.ErrorIs(t, err, ErrFenceUnconfirmed)
	}
	_, err := l.Append(context.Background(), Group{Drafts: group("refused").Drafts, Reserve: true})
	require.ErrorIs(t, err, ErrFenceUnconfirmed)
	require.ErrorIs(t, l.Refuses(), ErrFenceUnconfirmed)
	require.Equal(t, "fence", l.Health().Step)

	fence.Store(nil)
	require.True(t, l.Health().OK)
	mustAppend(t, l, "after")
	require.Equal(t, []string{"before", "written", "after"}, names(t, l))
	mustClose(t, l)
	mustVerify(t, l.o, frame.OK)
}
