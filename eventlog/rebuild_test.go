package eventlog

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/frame"
	"writegate/eventlog/frame/frametest"
)

// copiedLog makes a closed log of sealed segments and an active one, with the
// JSONL file and the index that one run has written beside it.
func copiedLog(t *testing.T) (mem *frametest.Mem, jsonl, points string) {
	t.Helper()
	mem = newMem(t)
	o := jsonlOptions(mem)
	o.IndexPath, o.SegmentBytes = testIndex, 256<<10
	l, _ := mustOpen(t, o)
	for l.Head().Segment < 2 {
		mustAppend(t, l, numbered("n", 500)...)
	}
	mustAppend(t, l, "line\nbreak", `quote " and \`)
	mustClose(t, l)
	return mem, contentOf(t, mem, testJSONL), contentOf(t, mem, testIndex)
}

func contentOf(t *testing.T, mem *frametest.Mem, name string) string {
	t.Helper()
	b, err := mem.ReadFile(name)
	require.NoError(t, err)
	return string(b)
}

// beside lists the names in the log's folder that begin as path does.
func beside(t *testing.T, mem *frametest.Mem, path string) (names []string) {
	t.Helper()
	all, err := mem.List("/log")
	require.NoError(t, err)
	for _, name := range all {
		if strings.HasPrefix("/log/"+name, path) {
			names = append(names, "/log/"+name)
		}
	}
	return names
}

// A rebuilder is RebuildJSONL or RebuildIndex, with what it has to write.
type rebuilder struct {
	path, want string
	run        func(l *Log, ctx context.Context, path string, progress func(uint64)) (Rebuilt, error)
}

func rebuilders(jsonl, points string) map[string]rebuilder {
	return map[string]rebuilder{
		"jsonl": {testJSONL, jsonl, (*Log).RebuildJSONL},
		"index": {testIndex, points, (*Log).RebuildIndex},
	}
}

// TestAFileIsRebuiltByteForByte, whatever is there before, and that is kept.
func TestAFileIsRebuiltByteForByte(t *testing.T) {
	mem, jsonl, points := copiedLog(t)
	require.Contains(t, points, ",1,", "there is a point in a later segment")
	for name, c := range rebuilders(jsonl, points) {
		for kind, before := range map[string]string{
			"whole": c.want, "empty": "", "cut": c.want[:len(c.want)/2], "edited": strings.Replace(c.want, "1", "2", 3), "no text": "\x00\xff\n",
		} {
			t.Run(name+" "+kind, func(t *testing.T) {
				require.NoError(t, mem.WriteFile(c.path, []byte(before)))
				l, _ := mustOpen(t, memOptions(mem))
				var told uint64
				r, err := c.run(l, context.Background(), c.path, func(seq uint64) {
					require.Equal(t, told+1, seq)
					told = seq
				})
				require.NoError(t, err)
				require.Equal(t, l.Head().Seq, told)
				require.Equal(t, c.want, contentOf(t, mem, c.path))
				require.Equal(t, Rebuilt{Path: c.path, Aside: c.path + ".aside-1"}, r)
				require.Equal(t, before, contentOf(t, mem, r.Aside))
				require.Equal(t, []string{c.path, r.Aside}, beside(t, mem, c.path), "nothing else is left")

				again, err := c.run(l, context.Background(), c.path, nil)
				require.NoError(t, err)
				require.Equal(t, c.path+".aside-2", again.Aside, "what was moved before stays")
				mustClose(t, l)
				require.NoError(t, mem.Remove(r.Aside))
				require.NoError(t, mem.Remove(again.Aside))
			})
		}
		t.Run(name+" missing", func(t *testing.T) {
			require.NoError(t, mem.Remove(c.path))
			l, _ := mustOpen(t, memOptions(mem))
			r, err := c.run(l, context.Background(), c.path, nil)
			require.NoError(t, err)
			require.Equal(t, Rebuilt{Path: c.path}, r)
			require.Equal(t, c.want, contentOf(t, mem, c.path))
			mustClose(t, l)
		})
	}
	mustVerify(t, memOptions(mem), frame.OK)
}

// TestTheLogGoesOnWithARebuiltJSONLFile: a start takes it up where it ends.
func TestTheLogGoesOnWithARebuiltJSONLFile(t *testing.T) {
	mem, _, _ := copiedLog(t)
	require.NoError(t, mem.WriteFile(testJSONL, []byte("hello\n")))
	l, _ := mustOpen(t, memOptions(mem))
	_, err := l.RebuildJSONL(context.Background(), testJSONL, nil)
	require.NoError(t, err)
	mustClose(t, l)

	l, _ = mustOpen(t, jsonlOptions(mem))
	mustAppend(t, l, "later")
	want := lines(t, l, 1)
	mustClose(t, l)
	require.Equal(t, want, readJSONL(t, mem))
	require.Equal(t, []string{testJSONL, testJSONL + ".aside-1"}, beside(t, mem, testJSONL), "it did not disagree")
}

// TestARebuildOfAnEmptyLogIsEmpty: a log that was made and never used.
func TestARebuildOfAnEmptyLogIsEmpty(t *testing.T) {
	mem := newMem(t)
	l, _ := mustOpen(t, memOptions(mem))
	_, err := l.RebuildJSONL(context.Background(), testJSONL, nil)
	require.NoError(t, err)
	require.Empty(t, contentOf(t, mem, testJSONL))
	_, err = l.RebuildIndex(context.Background(), testIndex, nil)
	require.NoError(t, err)
	var file indexFile
	require.NoError(t, json.Unmarshal([]byte(contentOf(t, mem, testIndex)), &file))
	require.Len(t, file.Segments, 1)
	require.Empty(t, file.Points)
}

// TestARebuildThatFailsLosesNothing: each call that it makes fails once. The old
// file is where it was or aside, whole; the new one is whole or not there.
func TestARebuildThatFailsLosesNothing(t *testing.T) {
	base, jsonl, points := copiedLog(t)
	broken := errors.New("broken")
	for name, c := range rebuilders(jsonl, points) {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, base.WriteFile(c.path, []byte("old")))
			require.NoError(t, base.SyncDir("/log"))
			failed := true
			for n := 1; failed; n++ {
				mem := base.Crash(100, 1) // a copy: nothing unsynced is lost
				failed = false
				calls := 0
				var armed atomic.Bool // the log's helpers ask as well
				o := memOptions(frametest.Inject(mem, func(op frametest.Op) error {
					if !armed.Load() || !strings.HasPrefix(op.Name, c.path) && op.Name != "/log" {
						return nil
					}
					if calls++; calls == n {
						failed = true
						return broken
					}
					return nil
				}))
				o.VerifyOnStart = VerifyFull // nothing else reads meanwhile
				l, _ := mustOpen(t, o)
				armed.Store(true)
				r, err := c.run(l, context.Background(), c.path, nil)
				armed.Store(false)
				if !failed {
					require.NoError(t, err)
				} else {
					require.ErrorIs(t, err, broken)
				}
				at := c.path
				if r.Aside != "" {
					at = r.Aside
					if there := beside(t, mem, c.path); there[0] == c.path {
						require.Equal(t, c.want, contentOf(t, mem, c.path))
					}
				}
				require.Equal(t, "old", contentOf(t, mem, at), "call %d", n)
				mustClose(t, l)
				require.Less(t, n, 200)
			}
		})
	}
}

// TestNothingIsRebuiltFromDamage: a fault in a sealed segment, which a start
// with `active` does not look at first, ends the rebuild.
func TestNothingIsRebuiltFromDamage(t *testing.T) {
	mem, jsonl, points := copiedLog(t)
	sealed := testLog + frame.SegmentsSuffix + "/" + sealedNames(t, mem)[0]
	b := []byte(contentOf(t, mem, sealed))
	b[len(b)/2] ^= 1
	require.NoError(t, mem.WriteFile(sealed, b))
	for name, c := range rebuilders(jsonl, points) {
		t.Run(name, func(t *testing.T) {
			l, _ := mustOpen(t, memOptions(mem))
			_, err := c.run(l, context.Background(), c.path, nil)
			require.ErrorIs(t, err, ErrCorrupt)
			require.Equal(t, c.want, contentOf(t, mem, c.path))
			require.Equal(t, []string{c.path}, beside(t, mem, c.path), "nothing half is left")
			mustClose(t, l)
		})
	}
}

func TestARebuildRefusesWhatIsNotItsToWrite(t *testing.T) {
	mem, jsonl, points := copiedLog(t)
	o := jsonlOptions(mem)
	o.IndexPath = testIndex
	for name, c := range rebuilders(jsonl, points) {
		l, _ := mustOpen(t, o)
		_, err := c.run(l, context.Background(), c.path, nil)
		require.ErrorIs(t, err, ErrInvalidOptions, "%s: the log keeps the file itself", name)
		mustClose(t, l)

		l, _ = mustOpen(t, memOptions(mem))
		_, err = c.run(l, context.Background(), "", nil)
		require.ErrorIs(t, err, ErrInvalidOptions)
		_, err = c.run(l, context.Background(), "/log", nil)
		require.ErrorIs(t, err, frame.ErrNotRegular, "a folder is not moved aside")
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		_, err = c.run(l, ended, c.path, nil)
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, []string{c.path}, beside(t, mem, c.path))
		mustClose(t, l)
	}
}
