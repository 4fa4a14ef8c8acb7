package eventlog

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Whatever the settings name, and whatever name is derived from them: a file that
// begins as an event log is not written over, cut, moved or removed for another.
func TestNoOtherLogIsWrittenOver(t *testing.T) {
	victim := filepath.Join(t.TempDir(), "victim.wal")
	v, _ := mustOpen(t, Options{Path: victim})
	mustAppend(t, v, "one", "two")
	mustClose(t, v)
	evidence, err := os.ReadFile(victim)
	require.NoError(t, err)
	for _, name := range []string{"index", "index.tmp", "audit.log", "audit.log.tmp", "audit.wal.head", "audit.wal.next"} {
		for _, clean := range []bool{true, false} {
			dir := t.TempDir()
			o := Options{Path: filepath.Join(dir, "audit.wal"), JSONLPath: filepath.Join(dir, "audit.log"), IndexPath: filepath.Join(dir, "index"), SegmentBytes: 64 << 10}
			l, _ := mustOpen(t, o)
			mustAppend(t, l, "first")
			mustClose(t, l)
			if !clean {
				require.NoError(t, os.Remove(filepath.Join(dir, "audit.wal.head")))
			}
			place := filepath.Join(dir, name)
			require.NoError(t, os.WriteFile(place, evidence, 0o600))
			ctx := context.Background()
			if l, _, err := Open(ctx, o); err == nil {
				for range 100 {
					_, _ = l.Append(ctx, group("a", "b", "c", "d", "e", "f", "g", "h"))
				}
				_, _ = l.RebuildIndex(ctx, o.IndexPath, nil)
				_, _ = l.RebuildJSONL(ctx, o.JSONLPath, nil)
				_ = l.Close(ctx)
			} else {
				require.ErrorIs(t, err, ErrInvalidOptions, name)
			}
			now, err := os.ReadFile(place)
			require.NoError(t, err, "%s, clean %v", name, clean)
			require.Equal(t, evidence, now, "%s, clean %v", name, clean)
		}
	}
}

// A file without one line of an event is not cut for the readable copy: it may be
// anybody's.
func TestAFileOfAnotherKindIsMovedAsideForTheReadableCopy(t *testing.T) {
	for _, content := range []string{"a secret without an end of line", "{", `{"sequence":1`} {
		dir := t.TempDir()
		path := filepath.Join(dir, "audit.log")
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		l, _ := mustOpen(t, Options{Path: filepath.Join(dir, "audit.wal"), JSONLPath: path})
		mustAppend(t, l, "first")
		mustClose(t, l)
		aside, err := filepath.Glob(path + ".disagrees-*")
		require.NoError(t, err)
		if content == "{" { // as the first line may begin
			require.Empty(t, aside)
			continue
		}
		require.Len(t, aside, 1, content)
		kept, err := os.ReadFile(aside[0])
		require.NoError(t, err)
		require.Equal(t, content, string(kept))
	}
}
