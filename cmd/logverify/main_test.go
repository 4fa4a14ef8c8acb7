package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"writegate/eventlog/frame"
)

// writeLog makes a log of n events, each its own batch, and gives its path.
func writeLog(t *testing.T, n int) string {
	b, err := frame.Header{FirstSeq: 1, Origin: "gate.example", Nonce: [32]byte{1}, LogID: [16]byte{2}}.Encode()
	require.NoError(t, err)
	h, err := frame.ParseHeader(b)
	require.NoError(t, err)
	prev := h.Hash
	for seq := uint64(1); seq <= uint64(n); seq++ {
		record := bytes.Repeat([]byte{byte(seq)}, 100)
		f := frame.Frame{Seq: seq, PreviousHash: prev, Record: record, Hash: frame.EventHash(seq, prev, record)}
		batch := frame.Append(nil, &f)
		require.NoError(t, frame.SealBatch(batch, uint64(len(b))))
		b, prev = append(b, batch...), f.Hash
	}
	head := frame.Head{LogID: h.LogID, Seq: uint64(n), EventHash: prev, Clean: true, EndOff: uint64(len(b)), Counter: 1}
	path := filepath.Join(t.TempDir(), "audit.wal")
	require.NoError(t, os.WriteFile(path, b, 0o600))
	slots := append(make([]byte, frame.SlotSize), head.Encode()...)
	require.NoError(t, os.WriteFile(path+frame.HeadSuffix, slots, 0o600))
	return path
}

// call runs the command as a shell would.
func call(args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = run(context.Background(), args, &out, &errs)
	return code, out.String(), errs.String()
}

func damage(t *testing.T, path string, off int64) {
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	b[off] ^= 4
	require.NoError(t, os.WriteFile(path, b, 0o600))
}

func TestIntactLogExitsZeroAndSaysWhatItCanNotSay(t *testing.T) {
	path := writeLog(t, 5)
	code, out, errs := call("wal", path)
	assert.Equal(t, 0, code)
	assert.Empty(t, errs)
	assert.True(t, strings.HasPrefix(out, path+": ok\n"), out)
	assert.Contains(t, out, "1 to 5, 5 in all")
	assert.Contains(t, out, "L1 match, event 5")
	assert.Contains(t, out, "removal of whole batches after")
	assert.Contains(t, out, "every anchor is on this host")
}

func TestDamagedLogExitsOneAndNamesThePlace(t *testing.T) {
	path := writeLog(t, 5)
	damage(t, path, frame.HeaderSize+100)
	code, out, _ := call("wal", path)
	assert.Equal(t, 1, code)
	assert.Contains(t, out, "corruption_detected")
	assert.Contains(t, out, "durable_promise: segment 0, byte 4096, event 1")
	assert.Contains(t, out, "one flipped bit explains it: byte 100 of the frame, bit 2")
}

func TestUnfinishedWriteExitsTwo(t *testing.T) {
	path := writeLog(t, 5)
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, append(b, "half a write"...), 0o600))
	code, out, _ := call("wal", path)
	assert.Equal(t, 2, code)
	assert.Contains(t, out, "torn_tail")
	assert.Contains(t, out, "12 bytes from byte")
}

func TestMissingFileExitsTwoUnlessSomethingShowsThatThereWasALog(t *testing.T) {
	path := writeLog(t, 2)
	code, out, _ := call("wal", path+".none")
	assert.Equal(t, 2, code)
	assert.Contains(t, out, "there is no log here")

	require.NoError(t, os.Remove(path))
	code, out, _ = call("wal", path)
	assert.Equal(t, 1, code)
	assert.Contains(t, out, "audit.wal.head shows that there was one")
}

func TestWrongUsageExitsSixtyFour(t *testing.T) {
	path := writeLog(t, 1)
	for _, args := range [][]string{
		{}, {"wal"}, {"wal", path, path}, {"nonsense"}, {"wal", path, "--nonsense"}, {"wal", path, "--workers", "many"},
		{"wal", path, "--workers", "-1"}, {"wal", path, "--from-seq", "9", "--to-seq", "3"}, {"wal", path, "--from-seq", "-1"},
		{"jsonl", path, "--wal", ""}, {"wal", path, "--receipts="}, {"wal", path, "--checkpoint", ""}, {"bundle", path, "--key="}, {"checkpoint", path, "--witness="},
	} {
		code, out, errs := call(args...)
		assert.Equal(t, 64, code, "%q", args)
		assert.Empty(t, out, "%q", args)
		assert.Contains(t, errs, "--help", "%q", args)
	}
}

func TestHelpExitsZeroAndExplainsTheVerdicts(t *testing.T) {
	for _, args := range [][]string{{"--help"}, {"help"}, {"wal", "--help"}, {"help", "wal"}} {
		code, out, errs := call(args...)
		assert.Equal(t, 0, code, "%q", args)
		assert.Empty(t, errs, "%q", args)
		assert.NotEmpty(t, out, "%q", args)
	}
	_, out, _ := call("--help")
	for _, word := range []string{"ok ", "corruption_detected", "partial", "64"} {
		assert.Contains(t, out, word)
	}
	_, out, _ = call("wal", "--help")
	for _, c := range frame.NewReport("wal", "").Checks {
		assert.Contains(t, out, string(c.Name), "every check is explained")
	}
}

func TestJSONIsTheReportOfTheContract(t *testing.T) {
	path := writeLog(t, 3)
	code, out, _ := call("wal", path, "--json")
	require.Equal(t, 0, code)
	var got map[string]any
	require.NoError(t, json.Unmarshal([]byte(out), &got))
	for _, key := range []string{"status", "source", "path", "log_id", "origin", "first_seq", "last_seq", "event_count", "head",
		"verified_to", "anchor_level", "anchors", "checks", "faults_total", "faults", "tail", "warnings", "not_excluded", "started_at", "duration_ms"} {
		assert.Contains(t, got, key)
	}
	assert.Len(t, got, 20, "and nothing else")
	assert.Equal(t, "ok", got["status"])
	assert.Equal(t, "wal", got["source"])
	assert.Equal(t, "L1", got["anchor_level"])
	assert.Len(t, got["checks"], 11)
}

func TestRangeIsAtBestPartial(t *testing.T) {
	path := writeLog(t, 9)
	code, out, _ := call("wal", path, "--from-seq", "4", "--to-seq", "6", "--json")
	require.Equal(t, 2, code, out)
	var r frame.Report
	require.NoError(t, json.Unmarshal([]byte(out), &r))
	assert.Equal(t, []uint64{4, 6, 3}, []uint64{r.FirstSeq, r.LastSeq, r.EventCount})
	assert.Equal(t, frame.RangeLimited, r.Faults[0].Kind)
}

func TestInterruptionJudgesNothing(t *testing.T) {
	path := writeLog(t, 3)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	var out, errs bytes.Buffer
	assert.Equal(t, 2, run(ctx, []string{"wal", path}, &out, &errs))
	assert.Empty(t, out.String())
	assert.Contains(t, errs.String(), "interrupted")
}

// fullDisk refuses what is written to it.
type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, os.ErrClosed }

func TestReportThatCanNotBePrintedIsNeverOk(t *testing.T) {
	path := writeLog(t, 3)
	var errs bytes.Buffer
	assert.Equal(t, 2, run(context.Background(), []string{"wal", path}, fullDisk{}, &errs))
	damage(t, path, frame.HeaderSize+100)
	assert.NotZero(t, run(context.Background(), []string{"wal", path, "--json"}, fullDisk{}, &errs))
}
