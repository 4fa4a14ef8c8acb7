package eventlog

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/frame"
)

// refusedAtHealth asks for the health until it says so: a look that has begun before is
// not repeated by another one at the same time.
func refusedAtHealth(t *testing.T, l *Log) {
	t.Helper()
	require.Eventually(t, func() bool { return !l.Health().OK }, time.Minute, time.Millisecond)
}

// writeOver writes a file anew in place, as cp does.
func writeOver(t *testing.T, path string, change func(b []byte) []byte) {
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, change(b), 0o600))
}

// sealedFiles gives the paths of the sealed segments, in order.
func sealedFiles(t *testing.T, path string) (names []string) {
	entries, err := os.ReadDir(path + frame.SegmentsSuffix)
	require.NoError(t, err)
	for _, e := range entries {
		names = append(names, filepath.Join(path+frame.SegmentsSuffix, e.Name()))
	}
	return names
}

// TestALogWhoseFileIsTakenAwayTakesNoMoreCommands: what was removed, moved or
// replaced goes on taking writes, and is gone with the process; what was emptied or
// written over goes on behind a hole.
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
			require.NoError(t, os.Remove(sealedFiles(t, path)[0]))
		},
		"a sealed segment replaced by another file": func(t *testing.T, path string) {
			name := sealedFiles(t, path)[1]
			require.NoError(t, os.Rename(name, path+".1"))
			require.NoError(t, os.WriteFile(name, make([]byte, 100), 0o600))
		},
		"a sealed segment emptied": func(t *testing.T, path string) {
			require.NoError(t, os.Truncate(sealedFiles(t, path)[0], 0))
		},
		"emptied": func(t *testing.T, path string) { require.NoError(t, os.Truncate(path, 0)) },
		"cut behind its header": func(t *testing.T, path string) {
			require.NoError(t, os.Truncate(path, frame.HeaderSize))
		},
		"its last bytes cut": func(t *testing.T, path string) {
			writeOver(t, path, func(b []byte) []byte { return b[:len(b)-frame.Align] })
		},
		"an older copy of it written over it": func(t *testing.T, path string) {
			writeOver(t, path, func(b []byte) []byte { return b[:frame.HeaderSize+(len(b)-frame.HeaderSize)/2] })
		},
		"an older copy with the zeros behind it written over it": func(t *testing.T, path string) {
			writeOver(t, path, func(b []byte) []byte {
				clear(b[frame.HeaderSize+(len(b)-frame.HeaderSize)/2:])
				return append(b, make([]byte, 4096)...)
			})
		},
		"a sealed segment written over it": func(t *testing.T, path string) {
			sealed, err := os.ReadFile(sealedFiles(t, path)[0])
			require.NoError(t, err)
			writeOver(t, path, func(b []byte) []byte {
				return append(sealed[:frame.HeaderSize:frame.HeaderSize], b[frame.HeaderSize:]...)
			})
		},
		"its header written over": func(t *testing.T, path string) {
			writeOver(t, path, func(b []byte) []byte { clear(b[:frame.HeaderSize]); return b })
		},
		"its lock file removed": func(t *testing.T, path string) {
			require.NoError(t, os.Remove(path+frame.LockSuffix))
		},
		"its lock file replaced": func(t *testing.T, path string) {
			require.NoError(t, os.WriteFile(path+".1", nil, 0o600))
			require.NoError(t, os.Rename(path+".1", path+frame.LockSuffix))
		},
		"the folder of sealed segments removed": func(t *testing.T, path string) {
			require.NoError(t, os.RemoveAll(path+frame.SegmentsSuffix))
		},
	} {
		for _, seen := range []string{"at the health", "by itself"} {
			t.Run(name+", seen "+seen, func(t *testing.T) {
				t.Parallel()
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
					refusedAtHealth(t, l)
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
	touch := func(name string) {
		require.NoError(t, os.Chtimes(name, testTime, testTime))
		require.NoError(t, os.Chmod(name, 0o640))
	}
	touch(real)
	touch(real + frame.LockSuffix)
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
	for _, name := range sealedFiles(t, real) {
		touch(name)
		require.NoError(t, os.Link(name, filepath.Join(dir, filepath.Base(name))))
	}
	require.True(t, l.Health().OK)
	_, err := l.Verify(t.Context())
	require.NoError(t, err)
	require.NoError(t, os.Remove(o.Path), "the link is the way to it, not the log")
	require.True(t, l.Health().OK)
	mustClose(t, l)
	require.True(t, l.Health().OK, "files that are closed are nobody's loss")
}

// openSegments opens a log with sealed segments on the disk, on which a look has been
// made at its end. What is reported goes to told.
// What is said of a log that is read anew goes to said.
func openSegments(t *testing.T, segments uint32) (l *Log, path string, told chan frame.Report, said saidAnew) {
	o := memOptions(frame.OS{})
	o.Path = filepath.Join(t.TempDir(), "audit.wal")
	o.SegmentBytes = 5 << 10
	told, said = make(chan frame.Report, 2), make(saidAnew, 100)
	o.OnCorruption = func(r frame.Report) { told <- r }
	o.Logger = slog.New(slog.NewTextHandler(said, nil))
	l, _ = mustOpen(t, o)
	for l.Head().Segment < segments {
		mustAppend(t, l, numbered("e", 3)...)
	}
	mustAppend(t, l, "a")
	mustAppend(t, l, "b")
	for looked := false; !looked; {
		require.True(t, l.Health().OK)
		l.looking.Lock()
		looked = l.seen.at == l.Head()
		l.looking.Unlock()
	}
	return l, o.Path, told, said
}

// saidAnew takes what a logger says of reading the log anew.
type saidAnew chan string

func (l saidAnew) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte("read anew")) {
		l <- string(b)
	}
	return len(b), nil
}

// TestAFileThatIsWrittenOnAfterItWasEmptiedIsNoticed: the file is long enough by then,
// and where it was written over by an older copy of itself has the right header, too.
func TestAFileThatIsWrittenOnAfterItWasEmptiedIsNoticed(t *testing.T) {
	for name, take := range map[string]func(t *testing.T, path string, head Head){
		"emptied": func(t *testing.T, path string, _ Head) { require.NoError(t, os.Truncate(path, 0)) },
		"an older copy": func(t *testing.T, path string, head Head) {
			writeOver(t, path, func(b []byte) []byte { return b[:head.Offset-8] })
		},
	} {
		t.Run(name, func(t *testing.T) {
			l, path, told, _ := openSegments(t, 0)
			take(t, path, l.Head())
			for range 100 { // beyond what was laid ahead
				if _, err := l.Append(t.Context(), group("behind a hole")); err != nil {
					require.ErrorIs(t, err, ErrCorrupt) // it was seen meanwhile
				}
			}
			refusedAtHealth(t, l)
			require.Equal(t, frame.MissingLog, (<-told).Faults[0].Kind)
		})
	}
}

// TestAFileThatIsCutBehindTheLastLookIsNoticed by the next one: what the last one has
// seen is whole.
func TestAFileThatIsCutBehindTheLastLookIsNoticed(t *testing.T) {
	l, path, told, _ := openSegments(t, 0)
	before := l.Head()
	mustAppend(t, l, "since")
	require.NoError(t, os.Truncate(path, before.Offset))
	l.looking.Lock()
	lost := l.overwritten()
	l.looking.Unlock()
	require.Contains(t, lost, "cut")
	refusedAtHealth(t, l)
	require.Equal(t, frame.MissingLog, (<-told).Faults[0].Kind)
}

// TestASealedSegmentThatIsReplacedByOneOfItsLengthIsRead: only its bytes tell whether
// it is a copy, and a copy is as good.
func TestASealedSegmentThatIsReplacedByOneOfItsLengthIsRead(t *testing.T) {
	replace := func(t *testing.T, name string, change func([]byte)) {
		b, err := os.ReadFile(name)
		require.NoError(t, err)
		st, err := os.Stat(name)
		require.NoError(t, err)
		change(b)
		require.NoError(t, os.WriteFile(name+".1", b, 0o600))
		require.NoError(t, os.Chtimes(name+".1", st.ModTime(), st.ModTime()))
		require.NoError(t, os.Rename(name+".1", name))
	}
	damage := func(b []byte) { b[frame.HeaderSize+frame.Overhead]++ }
	for name, c := range map[string]struct {
		take    func(t *testing.T, name string)
		damaged bool
	}{
		"a copy with its times":       {take: func(t *testing.T, name string) { replace(t, name, func([]byte) {}) }},
		"another file with its times": {take: func(t *testing.T, name string) { replace(t, name, damage) }, damaged: true},
		"changed in place": {take: func(t *testing.T, name string) {
			writeOver(t, name, func(b []byte) []byte { damage(b); return b })
		}, damaged: true},
		"touched": {take: func(t *testing.T, name string) {
			require.NoError(t, os.Chtimes(name, testTime, testTime))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			l, path, told, said := openSegments(t, sealedAtOnce+3)
			names := sealedFiles(t, path)
			require.Greater(t, len(names), sealedAtOnce)
			c.take(t, names[len(names)/2])
			if c.damaged {
				for l.Health().OK {
				}
				require.NotEqual(t, frame.MissingLog, (<-told).Faults[0].Kind)
				return
			}
			for noticed := false; !noticed || l.reread.Load(); {
				require.True(t, l.Health().OK)
				select {
				case <-said:
					require.False(t, noticed, "once only")
					noticed = true
				default:
				}
			}
			r, err := l.Verify(t.Context())
			require.NoError(t, err)
			require.Equal(t, frame.OK, r.Status)
			for range 5 {
				require.True(t, l.Health().OK)
			}
			require.Empty(t, said, "once only")
			require.Empty(t, told)
		})
	}
}

// TestALogWhoseLockFileIsGoneIsNotRetiredUnderItsGate: the log's own file is locked, too.
func TestALogWhoseLockFileIsGoneIsNotRetiredUnderItsGate(t *testing.T) {
	o := memOptions(frame.OS{})
	o.Path = filepath.Join(t.TempDir(), "audit.wal")
	l, _ := mustOpen(t, o)
	mustAppend(t, l, "a")
	require.NoError(t, os.Remove(o.Path+frame.LockSuffix))
	_, err := JudgeForRetirement(t.Context(), o)
	require.ErrorIs(t, err, ErrLocked)
	_, err = Retire(t.Context(), o, Successor{Reason: "none", Mode: "enforce", Start: successor.Start})
	require.ErrorIs(t, err, ErrLocked)
	require.FileExists(t, o.Path)
}
