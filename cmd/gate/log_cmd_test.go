package main

import (
	"bytes"
	"encoding/json"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
	"writegate/eventlog/evidence/evidencetest"
	"writegate/eventlog/frame"
)

// command runs the binary's command in this process, with the settings of d.
func (d gateDir) command(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	a := &app{streams: streams{strings.NewReader(""), &out, &errs}, environ: d.environ()}
	return a.run(t.Context(), args), out.String(), errs.String()
}

// dumped are the sequence numbers of a dump, each line of which must be JSON.
func dumped(t *testing.T, out string) (seqs []uint64) {
	t.Helper()
	for line := range strings.Lines(out) {
		var e struct {
			Seq  uint64 `json:"seq"`
			Type string `json:"event_type"`
		}
		require.NoError(t, json.Unmarshal([]byte(line), &e), "%s", line)
		require.NotEmpty(t, e.Type)
		seqs = append(seqs, e.Seq)
	}
	return seqs
}

func upTo(n uint64) (seqs []uint64) {
	for seq := uint64(1); seq <= n; seq++ {
		seqs = append(seqs, seq)
	}
	return seqs
}

// contents is every file below dir with its bytes.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		files[path] = string(b)
		return err
	}))
	return files
}

// crashCopy is what a power cut would leave of a running gate's log: no clean
// mark, and half a write behind the last batch. It gives the log's last event.
func crashCopy(t *testing.T, g *testGate) (d gateDir, last uint64) {
	t.Helper()
	d = gateDir{path: t.TempDir(), database: g.database}
	for _, name := range []string{"audit.wal.head", "audit.wal"} { // the head never knows more than the file
		b, err := os.ReadFile(g.file(name))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(d.file(name), b, 0o600))
	}
	set, err := frame.Discover(t.Context(), frame.OS{}, d.file("audit.wal"))
	require.NoError(t, err)
	report, err := frame.Verify(t.Context(), set, frame.Options{})
	require.NoError(t, err)
	require.NoError(t, set.Close())
	require.Equal(t, frame.OK, report.Status)
	log, err := os.OpenFile(d.file("audit.wal"), os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = log.WriteAt([]byte("half a write"), report.Head.EndOffset)
	require.NoError(t, err)
	require.NoError(t, log.Close())
	return d, report.LastSeq
}

func TestTheLogIsReadWhileTheGateGoesOn(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	require.Equal(t, 200, g.query(t, ask("SELECT 1")).status)

	code, out, errs := g.command(t, "log", "dump")
	require.Zero(t, code, errs)
	seqs := dumped(t, out)
	require.Equal(t, upTo(uint64(len(seqs))), seqs)
	require.Contains(t, out, `"execution_success"`)
	code, out, errs = g.command(t, "log", "verify", "--json")
	require.Zero(t, code, errs)
	require.Contains(t, out, `"status":"ok"`)

	require.Equal(t, 200, g.query(t, ask("SELECT 2")).status, "the gate still writes its log")
	_, out, _ = g.command(t, "log", "dump", "--from-seq", "3", "--to-seq", "5")
	require.Equal(t, []uint64{3, 4, 5}, dumped(t, out))
}

func TestReadingAnUncleanLogChangesNoByte(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	require.Equal(t, 200, g.query(t, ask("SELECT 1")).status)
	d, last := crashCopy(t, g)
	before := contents(t, d.path)

	code, out, errs := d.command(t, "log", "dump")
	require.Equal(t, exitPartial, code)
	require.Equal(t, upTo(last), dumped(t, out), "every acknowledged event and nothing else")
	require.Contains(t, errs, "partial after event")
	code, out, _ = d.command(t, "log", "verify")
	require.Equal(t, exitPartial, code)
	require.Contains(t, out, "torn_tail")
	code, _, errs = d.command(t, "log", "dump", d.file("none.wal"))
	require.Equal(t, exitPartial, code, errs)
	require.Equal(t, before, contents(t, d.path))
}

func TestADumpEndsWhereTheLogIsDamaged(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	require.Equal(t, 200, g.query(t, ask("SELECT 1")).status)
	d, _ := crashCopy(t, g)
	log, err := os.ReadFile(d.file("audit.wal"))
	require.NoError(t, err)
	second := bytes.Index(log[frame.HeaderSize+1:], log[frame.HeaderSize:frame.HeaderSize+4]) + frame.HeaderSize + 1
	log[second+200] ^= 1
	require.NoError(t, os.WriteFile(d.file("audit.wal"), log, 0o600))
	before := contents(t, d.path)

	code, out, errs := d.command(t, "log", "dump")
	require.Equal(t, exitFailed, code)
	require.Equal(t, []uint64{1}, dumped(t, out))
	require.Contains(t, errs, "corruption_detected after event 1")
	require.Equal(t, before, contents(t, d.path))

	code, _, errs = d.command(t, "log", "rebuild")
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "gate log verify")
	require.NoDirExists(t, d.file("approvals.db"), "nothing is built on a damaged log")
}

// A log is judged whatever its first event lacks, and what was found is the exit code
// also where it can't be told.
func TestALogIsJudgedWhateverItsFirstEventLacks(t *testing.T) {
	t.Parallel()
	l := evidencetest.New(0)
	begun := evidencetest.Startup("", nil)
	begun.Payload = event.NewPayload(event.Field{Key: "predecessor", Value: event.Map()})
	l.Append(begun)
	for seq := uint64(2); seq <= 9; seq++ {
		l.Append(evidencetest.Draft(seq))
	}
	first, size, err := frame.ParseFrame(l.WAL()[frame.HeaderSize:])
	require.NoError(t, err)
	_, second, err := frame.ParseFrame(l.WAL()[frame.HeaderSize+size:])
	require.NoError(t, err)
	require.EqualValues(t, 1, first.Seq)
	d := newNotes(t)
	path := d.file("odd.wal")
	require.NoError(t, os.WriteFile(path, slices.Concat(l.WAL()[:frame.HeaderSize+size], l.WAL()[frame.HeaderSize+size+second:]), 0o600))
	code, out, errs := d.command(t, "log", "verify", path)
	require.Equal(t, exitFailed, code, errs)
	require.Contains(t, out, "corruption_detected")
	require.Contains(t, out, "nobody can tell which logs came before this one")
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	require.NoError(t, err)
	defer full.Close()
	require.Equal(t, exitFailed, Run(t.Context(), []string{"log", "verify", path}, streams{strings.NewReader(""), full, io.Discard}, d.environ()))
}
