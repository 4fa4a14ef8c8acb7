package eventlog

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/frame"
)

// TestALogWhoseFileIsTakenAwayTakesNoMoreCommands: what was removed, moved or
// replaced goes on taking writes, and is gone with the process.
func TestALogWhoseFileIsTakenAwayTakesNoMoreCommands(t *testing.T) {
	for name, take := range map[string]func(t *testing.T, path string){
		"removed": func(t *testing.T, path string) { require.NoError(t, os.Remove(path)) },
		"moved":   func(t *testing.T, path string) { require.NoError(t, os.Rename(path, path+".1")) },
		"removed under another name that is left": func(t *testing.T, path string) {
			require.NoError(t, os.Link(path, path+".1"))
			require.NoError(t, os.Remove(path))
		},
		"replaced by a copy": func(t *testing.T, path string) {
			b, err := os.ReadFile(path)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(path+".1", b, 0o600))
			require.NoError(t, os.Rename(path+".1", path))
		},
		"its folder moved": func(t *testing.T, path string) {
			require.NoError(t, os.Rename(filepath.Dir(path), filepath.Dir(path)+".1"))
		},
		"a sealed segment removed": func(t *testing.T, path string) {
			names, err := os.ReadDir(path + frame.SegmentsSuffix)
			require.NoError(t, err)
			require.NoError(t, os.Remove(filepath.Join(path+frame.SegmentsSuffix, names[0].Name())))
		},
		"the folder of sealed segments removed": func(t *testing.T, path string) {
			require.NoError(t, os.RemoveAll(path+frame.SegmentsSuffix))
		},
	} {
		for _, seen := range []string{"at the health", "by itself"} {
			t.Run(name+", seen "+seen, func(t *testing.T) {
				o := memOptions(frame.OS{})
				o.Path = filepath.Join(t.TempDir(), "log", "audit.wal")
				require.NoError(t, os.Mkdir(filepath.Dir(o.Path), 0o700))
				o.SegmentBytes, o.PreallocateBytes = 8<<10, 0
				var said bytes.Buffer
				o.Logger = slog.New(slog.NewTextHandler(&said, nil))
				told := make(chan frame.Report, 2)
				var l *Log
				o.OnCorruption = func(r frame.Report) {
					_, err := l.Append(t.Context(), Group{Drafts: group("what happened").Drafts, Reserve: true})
					require.NoError(t, err)
					told <- r
				}
				l, _ = mustOpen(t, o)
				for l.Head().Segment < 2 {
					mustAppend(t, l, numbered("e", 3)...)
				}
				mustAppend(t, l, "last")
				require.True(t, l.Health().OK)
				before := l.Head().Seq
				take(t, o.Path)
				if seen == "at the health" {
					require.False(t, l.Health().OK)
				}
				r := <-told
				require.Equal(t, frame.MissingLog, r.Faults[0].Kind)
				require.Contains(t, said.String(), "Do not stop this process")
				require.Equal(t, "serving", l.Health().Step)
				_, err := l.Append(t.Context(), group("more"))
				require.ErrorIs(t, err, ErrCorrupt)
				require.Equal(t, before+1, l.Head().Seq, "what has happened is written where it may still be found")
				for range 100 { // no rotation moves what has the name now
					_, err := l.Append(t.Context(), Group{Drafts: group("e", "e").Drafts, Reserve: true})
					require.NoError(t, err)
				}
				require.NoError(t, l.Close(t.Context()))
				require.Empty(t, told)
			})
		}
	}
}

// What does not take the log away raises no alarm: other names of its files, copies, and rotations.
func TestALogInItsPlaceIsNotAccused(t *testing.T) {
	o := memOptions(frame.OS{})
	dir := t.TempDir()
	o.Path = filepath.Join(dir, "link.wal")
	real := filepath.Join(dir, "audit.wal")
	require.NoError(t, os.Symlink(real, o.Path))
	o.SegmentBytes = 8 << 10
	o.OnCorruption = func(r frame.Report) { t.Errorf("accused: %+v", r.Faults) }
	l, _ := mustOpen(t, o)
	require.NoError(t, os.Link(real, real+".backup"))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for l.Head().Segment < 5 {
			if _, err := l.Append(t.Context(), group("a", "b", "c")); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	for looking := true; looking; {
		require.True(t, l.Health().OK)
		select {
		case <-done:
			looking = false
		default:
		}
	}
	require.NoError(t, os.Remove(real+".backup"))
	require.NoError(t, os.Remove(o.Path), "the link is the way to it, not the log")
	require.True(t, l.Health().OK)
	mustClose(t, l)
	require.True(t, l.Health().OK, "files that are closed are nobody's loss")
}
