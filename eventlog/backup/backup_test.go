package backup_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/eventlog"
	"writegate/eventlog/backup"
	"writegate/eventlog/event"
	"writegate/eventlog/frame"
	"writegate/projections"
)

func placesIn(dir string) backup.Places {
	return backup.Places{
		Log: filepath.Join(dir, "gate.wal"), JSONL: filepath.Join(dir, "gate.log"),
		Store: filepath.Join(dir, "store"), Policies: filepath.Join(dir, "policies"),
	}
}

func open(t testing.TB, p backup.Places) *eventlog.Log {
	t.Helper()
	l, rec, err := eventlog.Open(context.Background(), eventlog.Options{Path: p.Log, JSONLPath: p.JSONL, SegmentBytes: 12 << 10, PreallocateBytes: 16 << 10})
	require.NoError(t, err)
	require.NoError(t, l.Serving())
	require.Empty(t, rec.Tails)
	t.Cleanup(func() { l.Close(context.Background()) })
	return l
}

func fill(t testing.TB, l *eventlog.Log, n int) {
	t.Helper()
	for i := range n {
		_, err := appendTwo(l, fmt.Sprint(i))
		require.NoError(t, err)
	}
}

func appendTwo(l *eventlog.Log, step string) (eventlog.Committed, error) {
	d := event.Draft{
		ID: event.NewID(time.Now()), Type: event.TypeHealthFail, TypeVersion: 1, Time: time.Now(), Context: event.Context{Actor: "system"},
		Payload: (&event.HealthFail{Step: step, Message: strings.Repeat("x", 300)}).Fields(),
	}
	return l.Append(context.Background(), eventlog.Group{Drafts: []event.Draft{d, d}})
}

// stopped makes the files of a gate that was stopped: a log of some segments, its
// JSONL file and store, a quarantined tail, a checkpoint, a policy.
func stopped(t testing.TB) backup.Places {
	t.Helper()
	p := placesIn(t.TempDir())
	l := open(t, p)
	fill(t, l, 80)
	store, err := projections.Open(projections.Options{Dir: p.Store})
	require.NoError(t, err)
	require.NoError(t, store.Connect(context.Background(), l))
	require.NoError(t, store.Close())
	require.NoError(t, l.Close(context.Background()))
	put(t, p.Log+frame.QuarantineSuffix+"/5-4096-00.bin", "torn")
	put(t, p.Log+frame.CheckpointsSuffix+"/000000/00000000000000000009.note", "note")
	put(t, p.Policies+"/v1.json", "{}")
	put(t, p.Policies+"/manifest.json", `{"active":"v1"}`)
	return p
}

func put(t testing.TB, path, text string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
}

// contents gives the bytes of all files below a folder, but for locks.
func contents(t testing.TB, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || e.Name() == "LOCK" || strings.HasSuffix(path, frame.LockSuffix) {
			return err
		}
		b, err := os.ReadFile(path)
		files[strings.TrimPrefix(path, dir)] = string(b)
		return err
	}))
	return files
}

func mustMake(t testing.TB, p backup.Places) (string, backup.Manifest) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "backup")
	m, report, err := backup.Make(context.Background(), p, dir, nil)
	require.NoError(t, err, "%+v", report.Faults)
	return dir, m
}

func TestAStoppedGateComesBackByteForByte(t *testing.T) {
	p := stopped(t)
	dir, m := mustMake(t, p)
	require.False(t, m.Running)
	require.False(t, m.Projections)
	require.EqualValues(t, 160, m.LastSeq)
	head, err := frame.ReadHead(frame.OS{}, dir+"/log/audit.wal.head")
	require.NoError(t, err)
	require.EqualValues(t, 160, head.Seq)
	require.False(t, head.Clean, "a copy can't say that nothing followed the log")

	to := placesIn(filepath.Join(t.TempDir(), "new", "place"))
	again, err := backup.Restore(context.Background(), dir, to, nil)
	require.NoError(t, err)
	require.Equal(t, m, again)
	want, got := contents(t, filepath.Dir(p.Log)), contents(t, filepath.Dir(to.Log))
	for name := range want {
		if strings.HasPrefix(name, "/store/") {
			delete(want, name) // folded anew
		}
	}
	// The zeros that were laid ahead are not copied.
	want["/gate.wal"] = strings.TrimRight(want["/gate.wal"], "\x00")
	got["/gate.wal"] = strings.TrimRight(got["/gate.wal"], "\x00")
	delete(want, "/gate.wal.head") // one of two slots is kept
	delete(got, "/gate.wal.head")
	require.Equal(t, want, got)

	l, rec, err := eventlog.Open(context.Background(), eventlog.Options{Path: to.Log})
	require.NoError(t, err)
	require.NoError(t, l.Serving())
	require.True(t, rec.Clean)
	require.Equal(t, frame.L1, rec.Report.AnchorLevel)
	store, err := projections.Open(projections.Options{Dir: to.Store})
	require.NoError(t, err)
	require.NoError(t, store.Connect(context.Background(), l))
	require.EqualValues(t, 160, store.Applied().Seq)
	require.NoError(t, store.Close())
	require.NoError(t, l.Close(context.Background()))
}

// TestALogIsBackedUpWhileItIsWritten: each copy verifies, and ends where the log
// was durable at some moment of the copying.
func TestALogIsBackedUpWhileItIsWritten(t *testing.T) {
	p := placesIn(t.TempDir())
	l := open(t, p)
	fill(t, l, 1)
	var acknowledged atomic.Uint64
	stop, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				ended <- nil
				return
			default:
			}
			c, err := appendTwo(l, "on")
			if err != nil {
				ended <- err
				return
			}
			acknowledged.Store(c.Last)
		}
	}()
	for range 10 {
		from := acknowledged.Load()
		dir, m := mustMake(t, p)
		require.True(t, m.Running)
		require.False(t, m.Projections)
		require.GreaterOrEqual(t, m.LastSeq, from)
		require.LessOrEqual(t, m.LastSeq, l.Head().Seq)
		to := placesIn(t.TempDir())
		_, err := backup.Restore(context.Background(), dir, to, nil)
		require.NoError(t, err)
		restored := open(t, to)
		head := restored.Head()
		require.Equal(t, m.LastSeq, head.Seq)
		e, err := l.At(context.Background(), head.Seq)
		require.NoError(t, err)
		require.Equal(t, e.Hash, head.Hash)
		require.NoError(t, restored.Close(context.Background()))
	}
	close(stop)
	require.NoError(t, <-ended)
	require.NoError(t, l.Close(context.Background()))
}

// TestAnEndThatACrashToreIsLeftOut: it was never acknowledged.
func TestAnEndThatACrashToreIsLeftOut(t *testing.T) {
	p := stopped(t)
	f, err := os.OpenFile(p.Log, os.O_RDWR, 0)
	require.NoError(t, err)
	r, err := eventlog.Verify(context.Background(), eventlog.Options{Path: p.Log})
	require.NoError(t, err)
	_, err = f.WriteAt([]byte("half a write"), r.Head.EndOffset)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	dir, m := mustMake(t, p)
	require.EqualValues(t, 160, m.LastSeq)
	_, err = backup.Check(context.Background(), dir)
	require.NoError(t, err)
}

// soon is a context that ends when it has been looked at so often.
type soon struct {
	context.Context
	looks *atomic.Int64
}

func (s soon) Err() error {
	if s.looks.Add(-1) < 0 {
		return context.Canceled
	}
	return nil
}

// A file may be lengthened to terabytes and cost nothing; to read it takes hours.
func TestCopyingAndHashingEndWithTheirContext(t *testing.T) {
	ends := func() context.Context {
		s := soon{context.Background(), new(atomic.Int64)}
		s.looks.Store(500)
		return s
	}
	p := stopped(t)
	dir, m := mustMake(t, p)
	i := slices.IndexFunc(m.Files, func(f backup.File) bool { return strings.HasSuffix(f.Path, ".bin") })
	require.NoError(t, os.Truncate(filepath.Join(dir, m.Files[i].Path), 4<<40))
	_, err := backup.Check(ends(), dir)
	require.ErrorIs(t, err, context.Canceled)

	require.NoError(t, os.Truncate(p.Log+frame.QuarantineSuffix+"/5-4096-00.bin", 4<<40))
	_, _, err = backup.Make(ends(), p, filepath.Join(t.TempDir(), "backup"), nil)
	require.ErrorIs(t, err, context.Canceled)
}

func TestADamagedLogIsNotBackedUp(t *testing.T) {
	p := stopped(t)
	segments, err := filepath.Glob(p.Log + frame.SegmentsSuffix + "/*")
	require.NoError(t, err)
	b, err := os.ReadFile(segments[0])
	require.NoError(t, err)
	b[frame.HeaderSize+100] ^= 1
	require.NoError(t, os.WriteFile(segments[0], b, 0o600))
	dir := t.TempDir()
	_, report, err := backup.Make(context.Background(), p, dir, nil)
	require.ErrorIs(t, err, backup.ErrLog)
	require.Equal(t, frame.Corruption, report.Status)
	require.Empty(t, contents(t, dir))

	_, _, err = backup.Make(context.Background(), placesIn(t.TempDir()), t.TempDir(), nil)
	require.ErrorIs(t, err, backup.ErrLog, "there is no log")

	p = stopped(t)
	require.NoError(t, os.MkdirAll(p.Log+frame.RetiredSuffix, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(p.Log+frame.RetiredSuffix, frame.RetiringName), []byte("{}"), 0o600))
	_, _, err = backup.Make(context.Background(), p, t.TempDir(), nil)
	require.ErrorContains(t, err, "not to the end")
}

func TestABackupIsWrittenIntoAnEmptyFolderOnly(t *testing.T) {
	p := stopped(t)
	dir, _ := mustMake(t, p)
	before := contents(t, dir)
	_, _, err := backup.Make(context.Background(), p, dir, nil)
	require.ErrorIs(t, err, backup.ErrNotEmpty)
	require.Equal(t, before, contents(t, dir))
}

// TestNotesAndLinesBeyondTheHeadAreLeftOut of the copy of a log that is being written:
// they would accuse it.
func TestNotesAndLinesBeyondTheHeadAreLeftOut(t *testing.T) {
	p := stopped(t)
	l, _, err := eventlog.Open(t.Context(), eventlog.Options{Path: p.Log})
	require.NoError(t, err)
	t.Cleanup(func() { l.Close(context.Background()) })
	put(t, p.Log+frame.CheckpointsSuffix+"/000000/00000000000000000161.note", "later")
	put(t, p.Log+frame.CheckpointsSuffix+"/000000/00000000000000000160.note", "now")
	jsonl, err := os.ReadFile(p.JSONL)
	require.NoError(t, err)
	put(t, p.JSONL, string(jsonl)+`{"seq":161,"event_id":"x"}`+"\n"+`{"seq":1`)
	dir, _ := mustMake(t, p)
	got := contents(t, dir)
	require.Equal(t, string(jsonl), got["/audit.jsonl"])
	require.Contains(t, got, "/log/audit.wal.checkpoints/000000/00000000000000000160.note")
	require.NotContains(t, got, "/log/audit.wal.checkpoints/000000/00000000000000000161.note")
}

// TestAStoppedLogIsCopiedWithAllItsNotes: none of them is younger than the log.
func TestAStoppedLogIsCopiedWithAllItsNotes(t *testing.T) {
	p := stopped(t)
	put(t, p.Log+frame.CheckpointsSuffix+"/000000/00000000000000000161.note", "of a log that was cut")
	dir, _ := mustMake(t, p)
	require.Contains(t, contents(t, dir), "/log/audit.wal.checkpoints/000000/00000000000000000161.note")
}

func TestABackupThatIsNotWholeIsNotRestored(t *testing.T) {
	p := stopped(t)
	dir, m := mustMake(t, p)
	for name, spoil := range map[string]func(string) error{
		"no manifest":    func(d string) error { return os.Remove(d + "/backup.json") },
		"manifest cut":   func(d string) error { return os.Truncate(d+"/backup.json", 100) },
		"other format":   manifest(m, func(m *backup.Manifest) { m.Format = "gate.backup.v2" }),
		"other head":     manifest(m, func(m *backup.Manifest) { m.LastSeq-- }),
		"path outside":   manifest(m, func(m *backup.Manifest) { m.Files[0].Path = "../x" }),
		"file missing":   func(d string) error { return os.Remove(d + "/log/audit.wal") },
		"file cut":       func(d string) error { return os.Truncate(d+"/log/audit.wal", 8192) },
		"file too much":  func(d string) error { return os.WriteFile(d+"/log/audit.wal.segments/x", nil, 0o600) },
		"policy changed": func(d string) error { return os.WriteFile(d+"/policies/v1.json", []byte("[]"), 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			spoilt := filepath.Join(t.TempDir(), "b")
			require.NoError(t, os.CopyFS(spoilt, os.DirFS(dir)))
			require.NoError(t, spoil(spoilt))
			to := placesIn(t.TempDir())
			_, err := backup.Restore(context.Background(), spoilt, to, nil)
			require.Error(t, err)
			require.Empty(t, contents(t, filepath.Dir(to.Log)), "nothing was put in place")
		})
	}
}

// Nothing in a store of projections is signed or hashed, and a start believes it. So
// one that an older version copied, or anybody put into a backup, stays there.
func TestARestoreMakesTheProjectionsAnew(t *testing.T) {
	p := stopped(t)
	dir, m := mustMake(t, p)
	require.NoError(t, os.CopyFS(filepath.Join(dir, "projections"), os.DirFS(p.Store)))
	for name, text := range contents(t, p.Store) {
		sum := sha256.Sum256([]byte(text))
		m.Files = append(m.Files, backup.File{Path: "projections" + name, Bytes: int64(len(text)), SHA256: hex.EncodeToString(sum[:])})
	}
	m.Projections = true
	require.NoError(t, os.Remove(filepath.Join(dir, "projections", "LOCK")))
	require.NoError(t, manifest(m, func(*backup.Manifest) {})(dir))
	to := placesIn(filepath.Join(t.TempDir(), "new"))
	_, err := backup.Restore(context.Background(), dir, to, nil)
	require.NoError(t, err)
	require.NoDirExists(t, to.Store)
}

// A manifest is signed by nobody: whoever hands over a backup may write into it what
// he likes, with files that agree.
func TestARestoreWritesNowhereElse(t *testing.T) {
	p := stopped(t)
	dir, m := mustMake(t, p)
	planted := sha256.Sum256([]byte("planted"))
	file := backup.File{Path: "", Bytes: 7, SHA256: hex.EncodeToString(planted[:])}
	for _, path := range []string{
		"log/audit.wal.checkpoints/../../ssh/keys", "projections/a/../../ssh/keys", "policies/a/../../ssh/keys", "log/../policies/v9.json", "log/audit.wal.segments/./x",
		"log/audit.wal.retired/begun.json", "log/audit.wal.retired/x", "log/audit.wal.retired/begun.json/x", "log/audit.wal.retired/00/audit.wal",
		"log/audit.wal.retired/" + strings.Repeat("AA", 16) + "/audit.wal", "log/audit.wal.retired/" + strings.Repeat("aa", 16), "log//audit.wal.head", "policies//v9.json", "ssh/keys", "log/audit.walx", "log/audit.wal.lock", "log/audit.wal.next", "policies", "policies/",
	} {
		t.Run(path, func(t *testing.T) {
			spoilt := filepath.Join(t.TempDir(), "b")
			require.NoError(t, os.CopyFS(spoilt, os.DirFS(dir)))
			at := filepath.Join(spoilt, filepath.Clean(path))
			require.NoError(t, os.MkdirAll(filepath.Dir(at), 0o700))
			if st, err := os.Stat(at); errors.Is(err, fs.ErrNotExist) || err == nil && !st.IsDir() {
				require.NoError(t, os.RemoveAll(at))
				require.NoError(t, os.WriteFile(at, []byte("planted"), 0o600))
			}
			extra := file
			extra.Path = path
			require.NoError(t, manifest(m, func(m *backup.Manifest) { m.Files = append(m.Files, extra) })(spoilt))
			home := t.TempDir()
			_, err := backup.Restore(context.Background(), spoilt, placesIn(filepath.Join(home, "data")), nil)
			require.ErrorIs(t, err, backup.ErrBackup)
			require.Empty(t, contents(t, home), "nothing was put anywhere")
		})
	}
	for name, change := range map[string]func(spoilt string) error{
		"a file twice": manifest(m, func(m *backup.Manifest) { m.Files = append(m.Files, m.Files[0]) }),
		"a pipe": func(spoilt string) error {
			return errors.Join(os.Remove(spoilt+"/log/audit.wal.head"), syscall.Mkfifo(spoilt+"/log/audit.wal.head", 0o600))
		},
		"a link out of it": func(spoilt string) error {
			outside := filepath.Join(t.TempDir(), "v1.json")
			return errors.Join(os.WriteFile(outside, []byte("{}"), 0o600), os.Remove(spoilt+"/policies/v1.json"), os.Symlink(outside, spoilt+"/policies/v1.json"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			spoilt := filepath.Join(t.TempDir(), "b")
			require.NoError(t, os.CopyFS(spoilt, os.DirFS(dir)))
			require.NoError(t, change(spoilt))
			to := placesIn(t.TempDir())
			_, err := backup.Restore(context.Background(), spoilt, to, nil)
			require.ErrorIs(t, err, backup.ErrBackup)
			require.Empty(t, contents(t, filepath.Dir(to.Log)))
		})
	}
}

func manifest(m backup.Manifest, change func(*backup.Manifest)) func(string) error {
	return func(dir string) error {
		m.Files = append([]backup.File(nil), m.Files...)
		change(&m)
		b, err := json.Marshal(m)
		if err != nil {
			return err
		}
		return os.WriteFile(dir+"/backup.json", b, 0o600)
	}
}

func TestNothingIsOverwritten(t *testing.T) {
	p := stopped(t)
	dir, _ := mustMake(t, p)
	for _, name := range []string{
		"gate.wal", "gate.wal.head", "gate.wal.segments/000000-00000000000000000001-00000000000000000002.wal", "gate.wal.quarantine/x",
		"gate.wal.checkpoints/000000/x", "gate.log", "store/CURRENT", "policies/v1.json",
	} {
		t.Run(name, func(t *testing.T) {
			to := placesIn(t.TempDir())
			put(t, filepath.Join(filepath.Dir(to.Log), name), "here before")
			_, err := backup.Restore(context.Background(), dir, to, nil)
			require.ErrorIs(t, err, backup.ErrNotEmpty)
			require.Equal(t, map[string]string{"/" + name: "here before"}, contents(t, filepath.Dir(to.Log)))
		})
	}
	to := placesIn(t.TempDir())
	put(t, to.Policies+"/v1.json", "{}") // the same bytes
	_, err := backup.Restore(context.Background(), dir, to, nil)
	require.NoError(t, err)
	_, err = backup.Restore(context.Background(), dir, to, nil)
	require.ErrorIs(t, err, backup.ErrNotEmpty, "not twice")
}

// Whoever was cut short is told what to remove, and can repeat it after that.
func TestWhatWasCutShortCanBeRepeated(t *testing.T) {
	p := stopped(t)
	broken := filepath.Join(p.Policies, "v2.json")
	require.NoError(t, os.Symlink("nowhere", broken))
	dir := t.TempDir()
	_, _, err := backup.Make(context.Background(), p, dir, nil)
	require.ErrorContains(t, err, dir+" is no backup: remove what is in it")
	_, _, err = backup.Make(context.Background(), p, dir, nil)
	require.ErrorContains(t, err, "left of a backup that was cut short")
	require.NoError(t, os.Mkdir(filepath.Join(dir, "2026-11-22"), 0o700)) // a whole one, say
	_, _, err = backup.Make(context.Background(), p, dir, nil)
	require.ErrorContains(t, err, "name one that is empty or missing")
	require.NotContains(t, err.Error(), "remove")
	require.NoError(t, os.Remove(broken))
	dir, _ = mustMake(t, p)

	to := placesIn(t.TempDir())
	to.JSONL = filepath.Join(filepath.Dir(to.Log), "link", "gate.log")
	require.NoError(t, os.Symlink("nowhere", filepath.Dir(to.JSONL)))
	_, err = backup.Restore(context.Background(), dir, to, nil)
	_, list, told := strings.Cut(fmt.Sprint(err), "may use: remove ")
	require.True(t, told, "%v", err)
	list, _, _ = strings.Cut(list, " before you repeat")
	_, err = backup.Restore(context.Background(), dir, to, nil)
	require.ErrorContains(t, err, "remove what one that was cut short left there")
	for _, path := range append(strings.Split(list, ", "), filepath.Dir(to.JSONL)) {
		require.NoError(t, os.RemoveAll(path))
	}
	_, err = backup.Restore(context.Background(), dir, to, nil)
	require.NoError(t, err)
}

func TestARestoreKeepsGatesAway(t *testing.T) {
	p := stopped(t)
	dir, _ := mustMake(t, p)
	to := placesIn(t.TempDir())
	lock, err := frame.OS{}.OpenLock(to.Log+frame.LockSuffix, frame.ReadWrite)
	require.NoError(t, err)
	require.NoError(t, lock.Lock(context.Background(), frame.WriterByte, frame.Exclusive))
	_, err = backup.Restore(context.Background(), dir, to, nil)
	require.ErrorIs(t, err, backup.ErrBusy)
	require.NoError(t, lock.Close())
	_, err = backup.Restore(context.Background(), dir, to, nil)
	require.NoError(t, err)
}

// TestALogThatAnotherFollowsIsPutAside: the log goes where it is told to, the logs
// before it stay in their folder, and nothing takes the log's own place.
func TestALogThatAnotherFollowsIsPutAside(t *testing.T) {
	p := stopped(t)
	earlier := frame.RetiredSuffix + "/" + strings.Repeat("00", 16) + "/audit.wal"
	put(t, p.Log+earlier, "a file that no log names")
	put(t, p.Log+frame.RetiredSuffix+"/notes.txt", "not a log's: a restore would refuse it")
	nowhere := filepath.Join(filepath.Dir(p.Log+earlier), "audit.jsonl")
	require.NoError(t, os.Symlink("../nowhere", nowhere))
	dir, m := mustMake(t, p)
	require.NoError(t, os.Remove(nowhere))
	to := placesIn(t.TempDir())
	aside := filepath.Join(filepath.Dir(to.Log), "aside", "audit.wal")
	settled := errors.New("settled")
	_, err := backup.Restore(context.Background(), dir, to, &backup.Behind{
		Place: func(w string, given *backup.Manifest) (log, jsonl string, err error) {
			require.Equal(t, m.LogID, given.LogID)
			return aside, filepath.Join(filepath.Dir(aside), "audit.jsonl"), nil
		},
		Settle: func(*backup.Manifest) error {
			_, _, err := eventlog.Open(context.Background(), eventlog.Options{Path: to.Log})
			require.ErrorIs(t, err, eventlog.ErrLocked, "no gate starts meanwhile")
			return settled
		},
	})
	require.ErrorIs(t, err, settled)
	require.NoFileExists(t, to.Log)
	require.NoFileExists(t, to.Log+frame.HeadSuffix)
	require.NoDirExists(t, to.Log+frame.SegmentsSuffix)
	require.NoFileExists(t, to.JSONL)
	require.FileExists(t, to.Log+earlier)
	require.NoFileExists(t, to.Log+frame.RetiredSuffix+"/notes.txt")
	got := contents(t, filepath.Dir(aside))
	require.NotEmpty(t, got["/audit.jsonl"])
	require.Equal(t, contents(t, filepath.Dir(p.Log))["/"+filepath.Base(p.JSONL)], got["/audit.jsonl"])
	l, _, err := eventlog.Open(context.Background(), eventlog.Options{Path: aside})
	require.NoError(t, err)
	require.NoError(t, l.Serving())
	require.Equal(t, m.LastSeq, l.Head().Seq)
	require.NoError(t, l.Close(context.Background()))
}

// A start on a restored log folds the logs before it.
func TestALogIsNotBackedUpOrRestoredWithoutThoseBeforeIt(t *testing.T) {
	p := stopped(t)
	r, err := eventlog.Retire(context.Background(), eventlog.Options{Path: p.Log, JSONLPath: p.JSONL}, eventlog.Successor{
		Reason: "r", Store: p.Store, Mode: "enforce", Start: event.Startup{Version: "1", Profile: "local", Fsync: "batch", VerifyOnStart: "active", OnTornTail: "truncate"},
	})
	require.NoError(t, err)
	l := open(t, p)
	fill(t, l, 3)
	require.NoError(t, l.Close(context.Background()))
	dir, m := mustMake(t, p)
	sealed, err := filepath.Glob(filepath.Join(r.Folder, "audit.wal"+frame.SegmentsSuffix, "*"))
	require.NoError(t, err)
	require.NotEmpty(t, sealed)
	path := sealed[0]
	folder := filepath.Join("log", "audit.wal"+frame.RetiredSuffix, filepath.Base(r.Folder))
	inside := filepath.Join(folder, "audit.wal"+frame.SegmentsSuffix, filepath.Base(path))
	to := placesIn(t.TempDir())
	_, err = backup.Restore(context.Background(), dir, to, nil)
	require.NoError(t, err)

	whole, err := os.ReadFile(path)
	require.NoError(t, err)
	spoilt := append([]byte(nil), whole...)
	spoilt[frame.HeaderSize+60] ^= 1
	ofFile := func(name string) func(f backup.File) bool {
		return func(f backup.File) bool { return f.Path == name }
	}
	below := func(f backup.File) bool { return strings.HasPrefix(f.Path, folder+"/") }
	for name, c := range map[string]struct {
		there func() error // at the gate
		kept  func(d string) error
		m     func(m *backup.Manifest) // what somebody who spoilt it without knowing says of it
	}{
		"a bit flipped": {
			func() error { return os.WriteFile(path, spoilt, 0o600) },
			func(d string) error { return os.WriteFile(filepath.Join(d, inside), spoilt, 0o600) },
			func(m *backup.Manifest) {
				sum := sha256.Sum256(spoilt)
				m.Files[slices.IndexFunc(m.Files, ofFile(inside))].SHA256 = hex.EncodeToString(sum[:])
			},
		},
		"it is gone": {
			func() error { return os.Rename(r.Folder, r.Folder+"-away") },
			func(d string) error { return os.RemoveAll(filepath.Join(d, folder)) },
			func(m *backup.Manifest) { m.Files = slices.DeleteFunc(m.Files, below) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			kept := filepath.Join(t.TempDir(), "b")
			require.NoError(t, os.CopyFS(kept, os.DirFS(dir)))
			require.NoError(t, c.kept(kept))
			require.NoError(t, manifest(m, c.m)(kept))
			to := placesIn(t.TempDir())
			_, err := backup.Restore(context.Background(), kept, to, nil)
			require.ErrorIs(t, err, backup.ErrLog)
			require.ErrorIs(t, err, eventlog.ErrAncestor)
			require.Empty(t, contents(t, filepath.Dir(to.Log)), "nothing was put in place")

			require.NoError(t, c.there())
			made := filepath.Join(t.TempDir(), "made")
			_, _, err = backup.Make(context.Background(), p, made, nil)
			require.ErrorIs(t, err, backup.ErrLog)
			require.ErrorIs(t, err, eventlog.ErrAncestor)
			require.NoFileExists(t, filepath.Join(made, backup.ManifestName), "a folder without one is no backup")
			if _, err := os.Stat(r.Folder); err != nil {
				require.NoError(t, os.Rename(r.Folder+"-away", r.Folder))
			}
			require.NoError(t, os.WriteFile(path, whole, 0o600))
		})
	}
}

// No start reads a log of which nothing could be saved, so a backup goes on without it too.
func TestALogBehindOneOfWhichNothingCouldBeSavedIsBackedUpAndRestored(t *testing.T) {
	p := stopped(t)
	sealed, err := filepath.Glob(filepath.Join(p.Log+frame.SegmentsSuffix, "*"))
	require.NoError(t, err)
	require.NoError(t, os.Remove(sealed[0]))
	r, err := eventlog.Retire(context.Background(), eventlog.Options{Path: p.Log, JSONLPath: p.JSONL}, eventlog.Successor{
		Reason: "r", Store: p.Store, Mode: "enforce", Start: event.Startup{Version: "1", Profile: "local", Fsync: "batch", VerifyOnStart: "active", OnTornTail: "truncate"},
	})
	require.NoError(t, err)
	require.Zero(t, r.Last)
	l := open(t, p)
	fill(t, l, 3)
	require.NoError(t, l.Close(context.Background()))
	for range 2 {
		dir, _ := mustMake(t, p)
		to := placesIn(t.TempDir())
		_, err = backup.Restore(context.Background(), dir, to, nil)
		require.NoError(t, err)
		require.NoError(t, os.RemoveAll(r.Folder)) // for the second round
	}
}

// TestABackupOfAnOlderVersionIsRestored: in it the copy's head file says that the log was closed.
func TestABackupOfAnOlderVersionIsRestored(t *testing.T) {
	dir, m := mustMake(t, stopped(t))
	const head = "log/audit.wal.head"
	require.NoError(t, frame.MarkHead(frame.OS{}, filepath.Join(dir, head), true))
	content, err := os.ReadFile(filepath.Join(dir, head))
	require.NoError(t, err)
	sum := sha256.Sum256(content)
	require.NoError(t, manifest(m, func(m *backup.Manifest) {
		i := slices.IndexFunc(m.Files, func(f backup.File) bool { return f.Path == head })
		m.Files[i].SHA256 = hex.EncodeToString(sum[:])
	})(dir))
	to := placesIn(t.TempDir())
	_, err = backup.Restore(t.Context(), dir, to, nil)
	require.NoError(t, err)
	l, rec, err := eventlog.Open(t.Context(), eventlog.Options{Path: to.Log})
	require.NoError(t, err)
	require.True(t, rec.Clean)
	require.NoError(t, l.Close(context.Background()))
}

// What a volume has at its root, and what was put aside in the store's folder, keeps
// nobody from a restore, nor lost+found from a backup to the root of a volume. It may be
// a folder that only root may read.
func TestTheRootOfAVolumeIsAnEmptyFolder(t *testing.T) {
	p := stopped(t)
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "lost+found"), 0))
	_, _, err := backup.Make(context.Background(), p, dir, nil)
	require.NoError(t, err)
	to := placesIn(t.TempDir())
	for _, path := range []string{"store/lost+found", "store/aside-1", "gate.wal.segments/lost+found"} {
		require.NoError(t, os.MkdirAll(filepath.Join(filepath.Dir(to.Log), path), 0o700))
	}
	_, err = backup.Restore(context.Background(), dir, to, nil)
	require.NoError(t, err)
	require.DirExists(t, to.Store+"/aside-1")
	put(t, dir+"/log/lost+found", "x")
	_, err = backup.Check(context.Background(), dir)
	require.ErrorIs(t, err, backup.ErrBackup, "at the root alone")
}
