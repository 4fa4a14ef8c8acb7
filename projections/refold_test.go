package projections_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
	"writegate/projections"
	"writegate/projections/projectionstest"
)

// shutDown writes the event that carries the digest of now.
func (w *world) shutDown() event.Envelope {
	w.t.Helper()
	require.NoError(w.t, w.store.WaitApplied(context.Background(), uint64(w.log.Len())))
	seq, digest, err := w.store.Digest(context.Background())
	require.NoError(w.t, err)
	return w.do(event.Context{Actor: "system"}, &event.Shutdown{Reason: "test", Digest: digest, DigestSeq: seq, DigestProjectors: projections.ProjectorVersion})
}

func refold(t *testing.T, src projections.Source) (projections.Refolded, error) {
	t.Helper()
	return projections.Refold(context.Background(), projections.Options{Dir: "again", FS: vfs.NewMem()}, src)
}

func TestAReplayReachesEveryDigestThatTheLogCarries(t *testing.T) {
	w := newWorld(t)
	for round := range 5 {
		w.scenario(uint64(round), 300)
		w.shutDown()
	}
	size := uint64(w.log.Len())
	w.do(event.Context{Actor: "system"}, &event.CheckpointSigned{Size: size, Digest: digestAt(t, w.log, size), DigestProjectors: projections.ProjectorVersion})
	r, err := refold(t, w.log)
	require.NoError(t, err)
	require.Equal(t, 6, r.Compared)
	require.Empty(t, r.Divergences)
	require.EqualValues(t, w.log.Len(), r.Applied.Seq)
	require.NoError(t, w.store.WaitApplied(context.Background(), r.Applied.Seq))
	require.Equal(t, projectionstest.DigestOf(t, w.store), r.Digest)
}

func digestAt(t *testing.T, log *projectionstest.Log, n uint64) [32]byte {
	t.Helper()
	r, err := refold(t, log.Cut(int(n)))
	require.NoError(t, err)
	return r.Digest
}

// TestADivergenceNamesTheDigestAndIsNoFaultOfTheLog: the projector of one event
// type is another one now.
func TestADivergenceNamesTheDigestAndIsNoFaultOfTheLog(t *testing.T) {
	w := newWorld(t)
	w.scenario(1, 100)
	first := w.shutDown()
	w.do(event.Context{Actor: "system"}, &event.HealthFail{Step: "x", Message: "y"})
	second := w.shutDown()
	projections.Replace(t, event.TypeHealthFail, func(e *event.Envelope, set func(key, value string)) { set("x/new", "other") })
	r, err := refold(t, w.log)
	require.NoError(t, err)
	require.Equal(t, 2, r.Compared)
	require.Len(t, r.Divergences, 1, "the first digest is older than the event")
	require.Equal(t, second.Seq, r.Divergences[0].Event)
	require.Equal(t, second.Seq-1, r.Divergences[0].AsOf)
	require.NotEqual(t, r.Divergences[0].Digest, r.Divergences[0].Replayed)
	require.Less(t, first.Seq, second.Seq)
}

// TestAProjectorThatDependsOnTheOrderOfAMapIsFound: the same events give another
// store each time, and the digest sees it.
func TestAProjectorThatDependsOnTheOrderOfAMapIsFound(t *testing.T) {
	names := map[int]bool{}
	for i := range 64 {
		names[i] = true
	}
	projections.Replace(t, event.TypeHealthFail, func(e *event.Envelope, set func(key, value string)) {
		for name := range names {
			set("x/last", fmt.Sprint(name))
			set(fmt.Sprint("x/", e.Seq), fmt.Sprint(name))
		}
	})
	w := newWorld(t)
	for range 20 {
		w.do(event.Context{Actor: "system"}, &event.HealthFail{Step: "x", Message: "y"})
	}
	w.shutDown()
	r, err := refold(t, w.log)
	require.NoError(t, err)
	require.Len(t, r.Divergences, 1)
}

func TestDigestsOfOtherProjectorsAreNotCompared(t *testing.T) {
	w := newWorld(t)
	w.scenario(2, 50)
	for _, p := range []*event.Shutdown{
		{Reason: "another version", Digest: [32]byte{1}, DigestSeq: 3, DigestProjectors: projections.ProjectorVersion + 1},
		{Reason: "no event said", Digest: [32]byte{1}},
		{Reason: "of the future", Digest: [32]byte{1}, DigestSeq: 1 << 40, DigestProjectors: projections.ProjectorVersion},
		{Reason: "no digest"},
	} {
		w.do(event.Context{Actor: "system"}, p)
	}
	r, err := refold(t, w.log)
	require.NoError(t, err)
	require.Equal(t, 1, r.Skipped)
	require.Zero(t, r.Compared)
	require.Empty(t, r.Divergences)
}
