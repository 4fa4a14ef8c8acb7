package projections_test

import (
	"bytes"
	"errors"
	"fmt"
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

// However a table of a store is damaged: a look says so and comes to its end, and a start
// begins anew. Pebble gives a table up that has another size than it wrote, or whose
// blocks do not fit their sums, in several ways.
func TestALookAtADamagedStoreEndsAndAStartBeginsAnew(t *testing.T) {
	whole := filepath.Join(t.TempDir(), "store")
	log := projectionstest.NewLog()
	s := &stream{now: time.Unix(0, 1735689600000000000).UTC(), r: newRand(1)}
	for range 20 {
		log.Append(t, s.batch()...)
	}
	store, err := projections.Open(projections.Options{Dir: whole})
	require.NoError(t, err)
	require.NoError(t, store.Connect(t.Context(), log))
	_, want, err := store.Digest(t.Context())
	require.NoError(t, err)
	require.NoError(t, store.Close())
	tables, err := filepath.Glob(filepath.Join(whole, "*.sst"))
	require.NoError(t, err)
	require.NotEmpty(t, tables)

	damages := map[string]func([]byte) []byte{
		"empty": func([]byte) []byte { return nil },
		"cut":   func(b []byte) []byte { return b[:len(b)-1] },
		"half":  func(b []byte) []byte { return b[:len(b)/2] },
		"grown": func(b []byte) []byte { return append(b, 0) },
		"zeros": func(b []byte) []byte { return make([]byte, len(b)) },
		"other": func(b []byte) []byte { return bytes.Repeat([]byte("x"), len(b)) },
	}
	for part := range 8 {
		damages[fmt.Sprintf("a bit in part %d", part)] = func(b []byte) []byte { b[len(b)*part/8] ^= 4; return b }
	}
	for name, damage := range damages {
		for _, table := range tables {
			dir := filepath.Join(t.TempDir(), "store")
			require.NoError(t, os.CopyFS(dir, os.DirFS(whole)))
			path := filepath.Join(dir, filepath.Base(table))
			b, err := os.ReadFile(path)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(path, damage(b), 0o600))

			_, _ = projections.Peek(dir) // what it needs may be whole
			for range 2 {                // damage that is found in use is told to the next start
				store, err = projections.Open(projections.Options{Dir: dir})
				require.NoError(t, err, name)
				var got [32]byte
				if err = store.Connect(t.Context(), log); err == nil {
					_, got, err = store.Digest(t.Context())
				}
				if err = errors.Join(err, store.Close()); err == nil {
					require.Equal(t, want, got, name)
					break
				}
			}
			require.NoError(t, err, name)
		}
	}
}
