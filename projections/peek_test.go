package projections_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
	"writegate/projections"
	"writegate/projections/projectionstest"
)

// TestALookAtAStoreTellsHowFarItGot, is in nobody's way and waits for nobody.
func TestALookAtAStoreTellsHowFarItGot(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	peek := func() (projections.Applied, error) { return projections.Peek(dir) }
	nowhere := func() {
		t.Helper()
		applied, err := peek()
		require.NoError(t, err)
		require.Zero(t, applied)
	}
	nowhere()
	require.NoError(t, os.Mkdir(dir, 0o700))
	nowhere()

	log := projectionstest.NewLog()
	s := &stream{now: time.Unix(0, 1735689600000000000).UTC(), r: newRand(1)}
	log.Append(t, s.batch()...)
	open := func() *projections.Store {
		store, err := projections.Open(projections.Options{Dir: dir})
		require.NoError(t, err)
		require.NoError(t, store.Connect(t.Context(), log))
		return store
	}
	store := open()
	_, err := peek()
	require.Error(t, err, "while it is in use")
	want := store.Applied()
	require.NotZero(t, want.Seq)
	require.NoError(t, store.Close())
	for range 2 {
		applied, err := peek()
		require.NoError(t, err)
		require.Equal(t, want, applied)
	}
	log.Append(t, event.New(s.now, event.Context{}, &event.HealthFail{Step: "x"}))
	store = open()
	require.Greater(t, store.Applied().Seq, want.Seq)
	require.NoError(t, store.Close())

	names, err := filepath.Glob(filepath.Join(dir, "OPTIONS-*"))
	require.NoError(t, err)
	require.NotEmpty(t, names)
	require.NoError(t, os.Remove(names[0]))
	require.NoError(t, syscall.Mkfifo(names[0], 0o600))
	_, err = peek()
	require.ErrorContains(t, err, "no regular file")
}
