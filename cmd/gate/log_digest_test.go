package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/eventlog"
	"writegate/eventlog/event"
	"writegate/projections"
)

func (d gateDir) digest(t *testing.T, want int) (r digestResult) {
	t.Helper()
	code, out, errs := d.command(t, "log", "digest", "--json")
	require.Equal(t, want, code, errs)
	require.NoError(t, json.Unmarshal([]byte(out), &r))
	return r
}

// TestADigestOfEachCleanRunIsInTheLogAndAReplayReachesIt: the gate runs twice,
// and the digest is asked for while it runs and when it does not.
func TestADigestOfEachCleanRunIsInTheLogAndAReplayReachesIt(t *testing.T) {
	t.Parallel()
	d := newNotes(t)
	for run := range 2 {
		g := startGate(t, d, patience...)
		g.query(t, insertOpen("a"))
		g.resolve(t, g.hold(t, insertHeld("b")), "reject")
		r := d.digest(t, exitOK)
		require.Equal(t, "ok", r.Status)
		require.Equal(t, run, r.Compared)
		g.end(t)
	}
	r := d.digest(t, exitOK)
	require.Equal(t, 2, r.Compared)
	require.Equal(t, projections.ProjectorVersion, r.Projectors)

	events := d.events(t)
	require.Len(t, events, int(r.Seq))
	var p event.Shutdown
	require.NoError(t, p.Parse(events[len(events)-1].Payload))
	require.Less(t, p.DigestSeq, events[len(events)-1].Seq)
	require.NotEqual(t, hex.EncodeToString(p.Digest[:]), r.Digest, "the shutdown event itself is in the index of events")
}

// TestADivergenceIsToldApartFromCorruption: a digest that no replay reaches, in a
// log that is whole.
func TestADivergenceIsToldApartFromCorruption(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	g.query(t, ask("SELECT 1"))
	g.end(t)
	log := g.openLog(t)
	now := time.Now()
	draft := event.New(now, event.Context{Actor: "system", Operation: "shutdown"}, &event.Shutdown{
		Reason: "from a test", Digest: [32]byte{1}, DigestSeq: 3, DigestProjectors: projections.ProjectorVersion,
	})
	_, err := log.Append(context.Background(), eventlog.Group{Drafts: []event.Draft{draft}})
	require.NoError(t, err)
	require.NoError(t, log.Close(context.Background()))

	r := g.digest(t, exitFailed)
	require.Equal(t, projectionDivergence, r.Status)
	require.Len(t, r.Divergences, 1)
	require.EqualValues(t, 3, r.Divergences[0].AsOf)
	code, out, _ := g.command(t, "log", "digest")
	require.Equal(t, exitFailed, code)
	require.Contains(t, out, "The log is not at fault")
	code, out, _ = g.command(t, "log", "verify")
	require.Zero(t, code, "the chain is whole: %s", out)
}
