package main

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTheEndOfTheLogIsFollowed: the last events first, then each new one, until
// the command is interrupted.
func TestTheEndOfTheLogIsFollowed(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	require.Equal(t, 200, g.query(t, ask("SELECT 1")).status)
	ctx, interrupt := context.WithCancel(context.Background())
	out, errs := &lockedBuffer{}, &lockedBuffer{}
	a := &app{streams: streams{strings.NewReader(""), out, errs}, environ: g.environ()}
	ended := make(chan int, 1)
	go func() { ended <- a.run(ctx, []string{"log", "tail", "-n", "2"}) }()
	lines := func(n int) func() bool {
		return func() bool { return strings.Count(out.String(), "\n") >= n }
	}
	require.Eventually(t, lines(2), startPatience, tick, errs)
	require.Equal(t, 200, g.query(t, ask("SELECT 2")).status)
	require.Eventually(t, lines(5), startPatience, tick, errs)
	interrupt()
	require.Zero(t, <-ended, errs)
	seqs := dumped(t, out.String())
	for i, seq := range seqs {
		require.Equal(t, seqs[0]+uint64(i), seq)
	}
	g.end(t)
	all := g.events(t)
	last := all[len(all)-1].Seq
	require.Greater(t, last, seqs[len(seqs)-1], "the last event is that of the end")

	for _, command := range []string{"dump", "tail"} {
		code, out, errs := g.command(t, "log", command, "--from-seq", fmt.Sprint(last+2))
		require.Equal(t, exitPartial, code, "%s: an event behind the next one is of another log", command)
		require.Empty(t, out)
		require.Contains(t, errs, fmt.Sprintf("ends at event %d", last))
	}
	code, printed, said := g.command(t, "log", "dump", "--from-seq", fmt.Sprint(last+1))
	require.Zero(t, code, "%s: nothing new", said)
	require.Empty(t, printed)
}

func TestADamagedLogIsNotFollowed(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	d, _ := crashCopy(t, g)
	spoilFirstEvent(t, d)
	code, _, errs := d.command(t, "log", "tail")
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "corruption_detected after event 0")
}
