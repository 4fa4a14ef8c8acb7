package projections_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
	"writegate/projections"
)

func TestASnapshotOfTheCataloguesIsKnownWithItsLastPart(t *testing.T) {
	w := newWorld(t)
	known := func(w *world, hash byte) (s projections.CatalogSnapshot, ok bool) {
		t.Helper()
		s, ok, err := w.view().CatalogSnapshot([32]byte{hash})
		require.NoError(t, err)
		return s, ok
	}
	part := func(hash, base byte, n, of int) event.Typed {
		return &event.CatalogRecorded{Hash: [32]byte{hash}, Base: [32]byte{base}, Content: []byte("x"), Part: n, Parts: of}
	}
	w.do(event.Context{}, part(1, 0, 1, 2))
	_, ok := known(w, 1)
	require.False(t, ok, "a part is missing")
	last := w.do(event.Context{}, part(1, 0, 2, 2))
	s, ok := known(w, 1)
	require.True(t, ok)
	require.Equal(t, projections.CatalogSnapshot{Seq: last.Seq}, s)
	w.do(event.Context{}, part(2, 1, 1, 1))
	last = w.do(event.Context{}, part(3, 2, 1, 1))
	s, _ = known(w, 3)
	require.Equal(t, projections.CatalogSnapshot{Seq: last.Seq, Bases: 2}, s)
	w.compare()

	next := w.after(w.log.Len())
	_, ok = known(next, 3)
	require.False(t, ok, "a log that follows another one has to have it itself")
	next.do(event.Context{}, part(3, 0, 1, 1))
	s, _ = known(next, 3)
	require.Zero(t, s.Bases)
	next.compare()
}
