package commands

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAKeyIsHeldByOneCommandAtATime(t *testing.T) {
	locks := newKeyedLocks()
	var group sync.WaitGroup
	counter := 0
	for range 64 {
		group.Go(func() {
			unlock, err := locks.lock(context.Background(), "a")
			if err != nil {
				t.Error(err)
				return
			}
			counter++ // the race detector objects unless the lock orders this
			unlock()
		})
	}
	group.Wait()
	require.Equal(t, 64, counter)
	require.Empty(t, locks.keys, "a lock that nobody uses is gone")
}

func TestSeveralKeysInAnyOrderNeverDeadlock(t *testing.T) {
	locks := newKeyedLocks()
	counters := make([]int, 5)
	var group sync.WaitGroup
	for seed := range uint64(16) {
		group.Go(func() {
			random := rand.New(rand.NewPCG(seed, 1))
			for range 200 {
				picked := random.Perm(len(counters))[:3]
				keys := make([]string, len(picked))
				for i, p := range picked {
					keys[i] = strconv.Itoa(p)
				}
				unlock, err := locks.lock(context.Background(), keys...)
				if err != nil {
					t.Error(err)
					return
				}
				for _, p := range picked {
					counters[p]++
				}
				unlock()
			}
		})
	}
	group.Wait()
	total := 0
	for _, c := range counters {
		total += c
	}
	require.Equal(t, 16*200*3, total)
	require.Empty(t, locks.keys)
}

func TestADoubledOrEmptyKeyIsTakenOnce(t *testing.T) {
	locks := newKeyedLocks()
	unlock, err := locks.lock(context.Background(), "a", "", "a")
	require.NoError(t, err)
	require.Len(t, locks.keys, 1)
	unlock()
	unlock() // releasing twice is harmless
	require.Empty(t, locks.keys)
}

func TestWaitingForALockEndsWithTheContextAndHoldsNothing(t *testing.T) {
	locks := newKeyedLocks()
	unlock, err := locks.lock(context.Background(), "b")
	require.NoError(t, err)

	gone := errors.New("client gone")
	ctx, cancel := context.WithCancelCause(context.Background())
	failed := make(chan error)
	go func() {
		_, err := locks.lock(ctx, "a", "b")
		failed <- err
	}()
	cancel(gone)
	require.ErrorIs(t, <-failed, gone)

	free, err := locks.lock(context.Background(), "a")
	require.NoError(t, err, "the key taken before the wait is free again")
	free()
	unlock()
	require.Empty(t, locks.keys)
}

func TestAFreeLockIsTakenEvenWhenTheContextHasEnded(t *testing.T) {
	locks := newKeyedLocks()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	unlock, err := locks.lock(ctx, "a")
	require.NoError(t, err)
	unlock()
}
