package toolcheck_test

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/agentctl/toolcheck"
	"writegate/fixtures/loopback"
)

// waiting is a server that answers when the test says so.
func waiting(l *lab) (target toolcheck.Target, arrived chan struct{}, release chan struct{}) {
	arrived, release = make(chan struct{}, 100), make(chan struct{})
	port, _ := l.Serve(loopback.Public, true, func(_ http.ResponseWriter, req *http.Request) {
		arrived <- struct{}{}
		select {
		case <-release:
		case <-req.Context().Done():
		}
	})
	return toolcheck.Target{Type: toolcheck.TypeHTTP, URL: "https://tools.test:" + port}, arrived, release
}

func TestAToolIsVerifiedOnceAtATimeAndEightInAll(t *testing.T) {
	l := newLab(t)
	target, arrived, release := waiting(l)
	checker := l.checker()
	var running sync.WaitGroup
	for i := range toolcheck.MaxRunning {
		running.Go(func() {
			result, err := checker.Verify(context.Background(), fmt.Sprintf("tool_%d", i), target, 20*time.Second)
			require.NoError(t, err)
			require.Equal(t, toolcheck.Passed, result.Status)
		})
	}
	for range toolcheck.MaxRunning {
		<-arrived
	}
	_, err := checker.Verify(context.Background(), "tool_3", target, 20*time.Second)
	require.ErrorIs(t, err, toolcheck.ErrRunning)
	_, err = checker.Verify(context.Background(), "tool_9", target, time.Millisecond)
	require.ErrorIs(t, err, toolcheck.ErrBusy)
	require.Empty(t, arrived, "the ninth never went out")

	close(release)
	running.Wait()
	for _, id := range []string{"tool_3", "tool_9"} {
		_, err = checker.Verify(context.Background(), id, target, 20*time.Second)
		require.NoError(t, err, "a place that was left is free")
	}
}

func TestACancelledVerificationIsNoResult(t *testing.T) {
	l := newLab(t)
	target, arrived, _ := waiting(l)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { <-arrived; cancel() }()
	_, err := l.checker().Verify(ctx, "tool_1", target, 20*time.Second)
	require.ErrorIs(t, err, context.Canceled)
}

// A verification leaves nothing running, also when it failed in the middle.
func TestNothingKeepsRunningAfterAVerification(t *testing.T) {
	l, s := newLab(t), newMCPServer()
	s.http.Stateless = true
	good := mcpTarget(s.start(l))
	bad := failing(l, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = w.Write([]byte("data: {}\n\n"))
	})
	checker := l.checker()
	verify := func() {
		for _, target := range []toolcheck.Target{good, bad} {
			_, err := checker.Verify(context.Background(), "tool_1", target, 20*time.Second)
			require.NoError(t, err)
		}
	}
	verify()
	before := runtime.NumGoroutine()
	for range 20 {
		verify()
	}
	require.Eventually(t, func() bool { return runtime.NumGoroutine() <= before+10 }, 20*time.Second, 10*time.Millisecond, "%d goroutines before", before)
}
