package classify

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// testWork does as its request says.
var testWork = ChildWork{Name: "gate-test", CPU: 200 * time.Millisecond, Do: func(request []byte) any {
	switch string(request) {
	case "spin":
		for {
		}
	case "panic":
		panic("a text that nobody foresaw")
	case "memory":
		for held := [][]byte{}; ; {
			held = append(held, make([]byte, 256<<20))
		}
	case "unreadable":
		return 7
	}
	return strings.ToUpper(string(request))
}}

func init() { testWork.ServeIfChild() }

func TestWorkOfAChildEndsAtItsBoundsAndTheNextGoesOn(t *testing.T) {
	c := testWork.Children(1)
	defer c.Close()
	for _, request := range []string{"spin", "panic", "memory", "unreadable"} {
		if request == "memory" && raceDetector { // no address space is counted there
			continue
		}
		var answer string
		require.NoError(t, c.Ask(t.Context(), "", []byte("text"), &answer))
		require.Equal(t, "TEXT", answer)
		place, err := c.s.free.take(t.Context(), "", time.Minute)
		require.NoError(t, err)
		worked := place.child
		c.s.free.give(place)
		require.ErrorIs(t, c.Ask(t.Context(), "", []byte(request), &answer), ErrChildEnded, request)
		require.True(t, worked.ended(), "%s: nothing goes on", request)
	}
}

func TestAWaitForAChildHasItsEnd(t *testing.T) {
	c := testWork.Children(1)
	defer c.Close()
	require.Zero(t, c.s.restarts.Load())
	place, err := c.s.free.take(t.Context(), "", time.Minute)
	require.NoError(t, err)
	require.Nil(t, place.child, "none is started before it is asked for")
	var answer string
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, c.Ask(ctx, "a", []byte("text"), &answer), context.Canceled)
	c.s.wait = time.Millisecond
	require.ErrorIs(t, c.Ask(t.Context(), "a", []byte("text"), &answer), ErrChildBusy)
	c.s.wait = time.Minute

	var group sync.WaitGroup
	for i, client := range []string{"many", "many", "one"} {
		group.Go(func() {
			var answer string
			require.NoError(t, c.Ask(t.Context(), client, []byte("text"), &answer))
		})
		require.Eventually(t, func() bool { return c.s.free.waiting() == i+1 }, time.Minute, time.Millisecond)
	}
	require.Len(t, c.s.free.lines, 2, "clients wait by turns")
	c.s.free.give(place)
	group.Wait()

	c.Close()
	require.Error(t, c.Ask(t.Context(), "a", []byte("text"), &answer))
}
