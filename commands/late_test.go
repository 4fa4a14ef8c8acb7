package commands

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
	"writegate/eventlog"
	"writegate/eventlog/event"
)

// A statement runs while the fence of the log lapses: its client is told that what became
// of it could not be written, nothing else is decided meanwhile, and once the fence is
// confirmed its result is in the log.
func TestAResultThatComesWithoutTheFenceIsWrittenOnceItIsBack(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var lapsed, lost atomic.Bool
	w := begin(t, setup{fence: func() error {
		switch {
		case lost.Load():
			return fmt.Errorf("%w: for a test", eventlog.ErrFenceLost)
		case lapsed.Load():
			return fmt.Errorf("%w: for a test", eventlog.ErrFenceUnconfirmed)
		}
		return nil
	}})
	refused := func(err error, reason string) {
		t.Helper()
		f, ok := fault.As(err)
		require.True(t, ok)
		require.Equal(t, fault.AuditUnavailable, f.Code)
		require.Equal(t, reason, f.Details["reason"])
		require.Equal(t, "not_written", f.Details["outcome"])
	}
	request := recording(dispatching)
	running, err := w.RecordDecision(ctx, request)
	require.NoError(t, err)
	lapsed.Store(true)
	_, err = w.RecordResult(ctx, succeeded(request, running.ExecutionID))
	refused(err, "fence_unconfirmed")
	_, err = w.RecordDecision(ctx, recording(dispatching))
	refused(err, "fence_unconfirmed")
	refused(w.Takes(), "fence_unconfirmed")
	require.Zero(t, w.count(event.TypeExecutionSuccess))

	done := make(chan struct{})
	go func() { defer close(done); w.RunLate(ctx) }()
	lapsed.Store(false)
	require.Eventually(t, func() bool { return w.count(event.TypeExecutionSuccess) == 1 }, time.Minute, time.Millisecond)
	lost.Store(true)
	_, err = w.RecordDecision(ctx, recording(dispatching))
	refused(err, "fence_lost")
	cancel()
	<-done
	w.check()
}
