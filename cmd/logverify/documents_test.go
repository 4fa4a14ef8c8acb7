package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"writegate/eventlog/evidence"
	"writegate/eventlog/evidence/evidencetest"
	"writegate/eventlog/frame"
)

// left is what a gate and its clients leave in a folder: the log with its head
// file, its readable copy, a bundle, the key, a receipt of each event and a
// checkpoint.
type left struct {
	dir string
	log *evidencetest.Log
	key string
}

func leave(t *testing.T, events int) left {
	l := left{dir: t.TempDir(), log: evidencetest.New(events)}
	key := evidencetest.Key("ours")
	pem, err := key.Public().PEM()
	require.NoError(t, err)
	l.key = l.put(t, "gate.pem", pem)
	l.put(t, "audit.wal", l.log.WAL())
	l.put(t, "audit.wal.head", l.log.Head())
	l.put(t, "audit.log", l.log.JSONL(1))
	var bundle bytes.Buffer
	signer := evidencetest.Signer{Log: l.log, Key: key}
	req := evidence.Request{First: 1, Last: uint64(events), Reason: "test", CreatedAt: time.Unix(0, evidencetest.Created)}
	require.NoError(t, evidence.Write(context.Background(), &bundle, l.log, req, signer))
	l.put(t, "bundle.json", bundle.Bytes())
	note, err := signer.Checkpoint(context.Background(), uint64(events))
	require.NoError(t, err)
	l.put(t, "newest.note", note)
	l.put(t, "receipts/all.txt", []byte(strings.Join(l.log.Receipts(key), "\n")+"\n"))
	return l
}

func (l left) path(name string) string { return filepath.Join(l.dir, name) }

func (l left) put(t *testing.T, name string, b []byte) string {
	require.NoError(t, os.MkdirAll(filepath.Dir(l.path(name)), 0o700))
	require.NoError(t, os.WriteFile(l.path(name), b, 0o600))
	return l.path(name)
}

// cut makes the log of fewer events, head file included, as somebody would who
// rolls everything on the host back.
func (l left) cut(t *testing.T, events int) {
	older := evidencetest.New(events)
	l.put(t, "audit.wal", older.WAL())
	l.put(t, "audit.wal.head", older.Head())
}

func TestEveryKindOfEvidenceIsJudged(t *testing.T) {
	l := leave(t, 7)
	other := l.put(t, "other.txt", []byte(evidencetest.Key("theirs").Public().Base64()))
	broken := func(name string, at int) string {
		b, err := os.ReadFile(l.path(name))
		require.NoError(t, err)
		b[at] ^= 1
		return l.put(t, "broken-"+filepath.Base(name), b)
	}
	vkey, err := evidencetest.Key("ours").Public().VKey("gate.example")
	require.NoError(t, err)
	anew := evidencetest.New(3)
	for seq := range uint64(4) {
		anew.Append(evidencetest.Draft(104 + seq))
	}
	longer := evidencetest.New(3)
	for seq := range uint64(5) {
		longer.Append(evidencetest.Draft(104 + seq))
	}
	var fittedWAL []byte
	for at, wal := frame.HeaderSize, l.log.WAL(); at < len(wal); {
		f, size, err := frame.ParseFrame(wal[at:])
		require.NoError(t, err)
		if at += size; f.Seq == 7 {
			f.Hash = anew.At(7).Hash // the record stays, so this is no hash of it
			fittedWAL = frame.Append(bytes.Clone(wal[:at-size]), &f)
		}
	}
	fitted := l.put(t, "fitted/audit.wal", fittedWAL)
	for _, c := range []struct {
		name string
		args []string
		code int
		out  string
	}{
		{"copy written anew, with a log of which one hash was made to fit", []string{"jsonl", l.put(t, "anew2", anew.JSONL(1)), "--wal", fitted}, 1, "the log has another event 6"},
		{"copy, with a log that is damaged in the middle", []string{"jsonl", l.path("audit.log"), "--wal", fitted}, 2, "the log ends with event 6, or is damaged behind it"},
		{"copy", []string{"jsonl", l.path("audit.log")}, 0, "not compared with the header"},
		{"copy with its log", []string{"jsonl", l.path("audit.log"), "--wal", l.path("audit.wal")}, 0, "origin \"gate.example\""},
		{"copy written anew", []string{"jsonl", l.put(t, "anew", anew.JSONL(1))}, 0, "a file written anew as a whole, would not show"},
		{"copy written anew, with its log", []string{"jsonl", l.path("anew"), "--wal", l.path("audit.wal")}, 1, "the log has another event 7"},
		{"copy cut, with its log", []string{"jsonl", l.put(t, "shorter", evidencetest.New(5).JSONL(1)), "--wal", l.path("audit.wal")}, 0, "removal of lines at the end would not show"},
		{"copy of more than its log", []string{"jsonl", l.put(t, "longer", evidencetest.New(8).JSONL(1)), "--wal", l.path("audit.wal")}, 2, "the log ends with event 7"},
		{"copy written anew and longer than its log", []string{"jsonl", l.put(t, "anew3", longer.JSONL(1)), "--wal", l.path("audit.wal")}, 1, "the log has another event 7"},
		{"copy written anew, from a later event on", []string{"jsonl", l.put(t, "anew4", anew.JSONL(5)), "--wal", l.path("audit.wal")}, 1, "the log has another event 7"},
		{"copy written anew, with half a line", []string{"jsonl", l.put(t, "anew5", append(anew.JSONL(1), '{')), "--wal", l.path("audit.wal")}, 1, "the log has another event 7"},
		{"copy of what is behind its log", []string{"jsonl", l.put(t, "behind", evidencetest.New(9).JSONL(8)), "--wal", l.path("audit.wal")}, 2, "the log ends with event 7"},
		{"copy edited", []string{"jsonl", broken("audit.log", 400)}, 1, ""},
		{"copy torn", []string{"jsonl", l.put(t, "torn", l.log.JSONL(1)[:900])}, 2, "torn_line"},
		{"copy of the end", []string{"jsonl", l.put(t, "end", l.log.JSONL(4))}, 2, "range_limited"},
		{"bundle with the key file", []string{"bundle", l.path("bundle.json"), "--key", l.key}, 0, "L4 match"},
		{"bundle with the vkey", []string{"bundle", l.path("bundle.json"), "--key", vkey}, 0, "L4 match"},
		{"bundle without a key", []string{"bundle", l.path("bundle.json")}, 0, "self-asserted"},
		{"bundle with another key", []string{"bundle", l.path("bundle.json"), "--key", other}, 1, "not a key that was given"},
		{"bundle edited", []string{"bundle", broken("bundle.json", 3000)}, 1, ""},
		{"bundle cut", []string{"bundle", l.put(t, "cut", []byte(`{"bundle_type":"gate`))}, 2, "cut_short"},
		{"receipts", []string{"receipt", l.path("receipts"), "--key", l.key}, 0, "of the batch"},
		{"receipts without the key", []string{"receipt", l.path("receipts")}, 2, "none of the known keys"},
		{"receipt edited", []string{"receipt", broken("receipts/all.txt", 30), "--key", l.key}, 1, ""},
		{"checkpoint", []string{"checkpoint", l.path("newest.note"), "--key", l.key}, 0, "root"},
		{"checkpoint without the key", []string{"checkpoint", l.path("newest.note")}, 2, "none of the known keys"},
		{"checkpoint edited", []string{"checkpoint", broken("newest.note", 13), "--key", l.key}, 1, "wrong signature"},
		{"log with all that was kept", []string{"wal", l.path("audit.wal"), "--receipts", l.path("receipts"), "--checkpoint", l.path("newest.note"), "--key", l.key}, 0, "L4 match, event 7"},
		{"log with papers that nobody vouches for", []string{"wal", l.path("audit.wal"), "--receipts", l.path("receipts"), "--key", other}, 2, "L3 untrusted"},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, out, errs := call(c.args...)
			assert.Equal(t, c.code, code, "%s%s", out, errs)
			assert.Contains(t, out, c.out)
			assert.Empty(t, errs)
			code, out, _ = call(append(c.args, "--json")...)
			assert.Equal(t, c.code, code)
			for line := range strings.Lines(out) {
				var report struct{ Status frame.Status }
				require.NoError(t, json.Unmarshal([]byte(line), &report))
				assert.NotEmpty(t, report.Status)
			}
		})
	}
}

// Rows 20 and 22 of the fault list: what is on the host agrees with itself, and
// what was kept elsewhere does not.
func TestWhatWasKeptElsewhereConvictsALogThatAgreesWithItself(t *testing.T) {
	for _, paper := range []string{"--receipts", "--checkpoint"} {
		l := leave(t, 7)
		kept := map[string]string{"--receipts": l.path("receipts"), "--checkpoint": l.path("newest.note")}[paper]
		args := []string{"wal", l.path("audit.wal"), paper, kept, "--key", l.key}
		l.cut(t, 6)
		code, out, _ := call("wal", l.path("audit.wal"))
		require.Equal(t, 0, code, "alone it looks well")
		assert.Contains(t, out, "removal of whole batches")
		code, out, _ = call(args...)
		assert.Equal(t, 1, code, out)
		assert.Contains(t, out, "anchor_beyond_end")

		forged := evidencetest.New(6)
		d := evidencetest.Draft(7)
		d.Context.Actor = "mallory"
		forged.Append(d)
		l.put(t, "audit.wal", forged.WAL())
		l.put(t, "audit.wal.head", forged.Head())
		code, out, _ = call(args...)
		assert.Equal(t, 1, code, out)
		assert.Contains(t, out, "history_rewritten")
	}
}

// Row 37 of the fault list: the copy is damaged, the log is not.
func TestADamagedCopyLeavesTheLogOk(t *testing.T) {
	l := leave(t, 7)
	lines := strings.SplitAfter(string(l.log.JSONL(1)), "\n")
	for name, text := range map[string]string{
		"edited":  strings.Replace(strings.Join(lines, ""), `"actor":"ana"`, `"actor":"eve"`, 1),
		"removed": strings.Join(append(lines[:3:3], lines[4:]...), ""),
		"CR LF":   strings.ReplaceAll(strings.Join(lines, ""), "\n", "\r\n"),
	} {
		l.put(t, "audit.log", []byte(text))
		code, out, _ := call("jsonl", l.path("audit.log"), "--wal", l.path("audit.wal"))
		assert.Equal(t, 1, code, "%s: %s", name, out)
		code, out, _ = call("wal", l.path("audit.wal"))
		assert.Equal(t, 0, code, "%s: %s", name, out)
	}
}

func TestCheckpointsBesideTheLogAreFound(t *testing.T) {
	l := leave(t, 7)
	note, err := os.ReadFile(l.path("newest.note"))
	require.NoError(t, err)
	l.put(t, "audit.wal.checkpoints/000000/00000000000000000007.note", note)
	_, out, _ := call("wal", l.path("audit.wal"), "--key", l.key)
	assert.Contains(t, out, "L4 match, event 7")
	l.cut(t, 5)
	code, out, _ := call("wal", l.path("audit.wal"), "--key", l.key)
	assert.Equal(t, 1, code)
	assert.Contains(t, out, "anchor_beyond_end")
}

// Whoever names a receipt, a checkpoint, a witness or a key is told ok only
// where it vouches for the log, and what to give where it does not. Nothing of
// it hides that the log itself is damaged.
func TestAnAnchorThatWasAskedForAndProvesNothingIsPartial(t *testing.T) {
	l := leave(t, 7)
	vkey, err := evidencetest.Key("ours").Public().VKey("gate.example")
	require.NoError(t, err)
	other := l.put(t, "other.txt", []byte(evidencetest.Key("theirs").Public().Base64()))
	junk := l.put(t, "junk.txt", []byte("this is no receipt\n"))
	receipts, note, empty, none := l.path("receipts"), l.path("newest.note"), t.TempDir(), l.path("none")
	elsewhere, err := evidencetest.Signer{Log: evidencetest.NewNamed("gate.elsewhere", 7), Key: evidencetest.Key("ours")}.Checkpoint(context.Background(), 7)
	require.NoError(t, err)
	foreign := l.put(t, "foreign.note", elsewhere)
	foreignReceipts := l.put(t, "foreign.txt", []byte(evidencetest.New(7).ReceiptsOf(evidencetest.Key("ours"), [16]byte{7})[6]+"\n"))
	cosigned, witness := evidencetest.Cosign(must(os.ReadFile(note)), "witness.example", evidencetest.Key("witness"), time.Unix(1735689700, 0))
	_, otherWitness := evidencetest.Cosign(must(os.ReadFile(note)), "witness.example", evidencetest.Key("theirs"), time.Unix(1735689700, 0))
	witnessed := l.put(t, "witnessed.note", cosigned)
	damaged := must(os.ReadFile(l.path("audit.wal")))
	damaged[len(damaged)-600] ^= 1
	l.put(t, "damaged.wal", damaged)
	log := []string{"wal", l.path("audit.wal")}
	for _, c := range []struct {
		name  string
		args  []string
		code  int
		first string // what the first line ends with
		says  string
	}{
		{"nothing asked", nil, 0, ": ok", "match"},
		{"receipts, the key", []string{"--receipts", receipts, "--key", l.key}, 0, ": ok", "L3 match, event 7"},
		{"receipts, the vkey", []string{"--receipts", receipts, "--key", vkey}, 0, ": ok", "L3 match, event 7"},
		{"receipts, the key beside another", []string{"--receipts", receipts, "--key", other, "--key", l.key}, 0, ": ok", "L3 match, event 7"},
		{"receipts, no key", []string{"--receipts", receipts}, 2, ": partial", "give the key that signed it with --key"},
		{"receipts, another key", []string{"--receipts", receipts, "--key", other}, 2, ": partial", "give the key that signed it with --key"},
		{"receipts that are not there", []string{"--receipts", none, "--key", l.key}, 2, ": partial", "no such file"},
		{"an empty folder", []string{"--receipts", empty, "--key", l.key}, 2, ": partial", "holds no receipt"},
		{"what is no receipt", []string{"--receipts", junk, "--key", l.key}, 2, ": partial", "malformed"},
		{"what is no receipt beside receipts", []string{"--receipts", junk, "--receipts", receipts, "--key", l.key}, 2, ": partial", "malformed"},
		{"receipts of another log", []string{"--receipts", foreignReceipts, "--key", l.key}, 1, ": corruption_detected", "history_rewritten"},
		{"receipts of another log, no key", []string{"--receipts", foreignReceipts}, 2, ": partial", "with --key"},
		{"a checkpoint, the key", []string{"--checkpoint", note, "--key", l.key}, 0, ": ok", "L4 match, event 7"},
		{"a checkpoint, no key", []string{"--checkpoint", note}, 2, ": partial", "give the key that signed it with --key"},
		{"a checkpoint, another key", []string{"--checkpoint", note, "--key", other}, 2, ": partial", "give the key that signed it with --key"},
		{"a checkpoint that is not there", []string{"--checkpoint", none, "--key", l.key}, 2, ": partial", "no such file"},
		{"a checkpoint that is none", []string{"--checkpoint", junk, "--key", l.key}, 2, ": partial", "malformed"},
		{"a checkpoint of another log", []string{"--checkpoint", foreign, "--key", l.key}, 2, ": partial", "gate.elsewhere"},
		{"a key and nothing that it signed", []string{"--key", l.key}, 2, ": partial", "--receipts"},
		{"a checkpoint, the witness", []string{"checkpoint", witnessed, "--key", l.key, "--witness", witness}, 0, ": ok", "witness.example"},
		{"a checkpoint, another witness", []string{"checkpoint", witnessed, "--key", l.key, "--witness", otherWitness}, 2, ": partial", "--witness"},
		{"a checkpoint, one of two witnesses of one name", []string{"checkpoint", witnessed, "--key", l.key, "--witness", otherWitness, "--witness", witness}, 2, ": partial", "--witness"},
		{"a checkpoint without its witness", []string{"checkpoint", note, "--key", l.key, "--witness", witness}, 2, ": partial", "--witness"},
		{"a checkpoint, the witness, no key", []string{"checkpoint", witnessed, "--witness", witness}, 2, ": partial", "--key"},
		{"a bundle, the key", []string{"bundle", l.path("bundle.json"), "--key", l.key}, 0, ": ok, signed by ed25519:134261e7eef6ebc2", ""},
		{"a bundle, no key", []string{"bundle", l.path("bundle.json")}, 0, ": ok, self-asserted: signed by ed25519:134261e7eef6ebc2, which is no key that was given (--key)", ""},
		{"a bundle, another key", []string{"bundle", l.path("bundle.json"), "--key", other}, 1, ": corruption_detected, self-asserted: signed by ed25519:134261e7eef6ebc2, which is no key that was given (--key)", ""},
		{"damage, receipts that are not there", []string{"wal", l.path("damaged.wal"), "--receipts", none}, 1, ": corruption_detected", "no such file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			args := c.args
			if len(args) == 0 || strings.HasPrefix(args[0], "--") {
				args = append(log[:2:2], args...)
			}
			code, out, errs := call(args...)
			assert.Equal(t, c.code, code, "%s%s", out, errs)
			first, _, _ := strings.Cut(out, "\n")
			assert.True(t, strings.HasSuffix(first, c.first), first)
			assert.Contains(t, out, c.says)
			assert.Empty(t, errs)
		})
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestWhatCanNotBeReadIsPartialAndWrongCallsAreSixtyFour(t *testing.T) {
	l := leave(t, 2)
	for _, c := range []struct {
		args []string
		code int
	}{
		{[]string{"jsonl", l.path("none")}, 2},
		{[]string{"bundle", l.dir}, 2},
		{[]string{"receipt", t.TempDir()}, 2},
		{[]string{"checkpoint", l.path("none")}, 2},
		{[]string{"bundle", l.path("bundle.json"), "--key", l.path("none")}, 64},
		{[]string{"bundle", l.path("bundle.json"), "--key", l.path("audit.log")}, 64},
		{[]string{"checkpoint", l.path("newest.note"), "--witness", "nonsense"}, 64},
		{[]string{"bundle"}, 64}, {[]string{"jsonl"}, 64}, {[]string{"receipt"}, 64}, {[]string{"checkpoint", "a", "b"}, 64},
	} {
		code, out, errs := call(c.args...)
		assert.Equal(t, c.code, code, "%q", c.args)
		assert.Empty(t, out)
		assert.NotEmpty(t, errs)
	}
}

func TestEveryCommandExplainsItselfWithExamples(t *testing.T) {
	for _, name := range []string{"wal", "jsonl", "bundle", "receipt", "checkpoint"} {
		code, out, errs := call(name, "--help")
		assert.Zero(t, code)
		assert.Empty(t, errs)
		assert.Contains(t, out, "Examples:\n  logverify "+name)
	}
}

// What an auditor has to trust: no cgo, nothing of the service, no database, no network.
func TestTheVerifierLinksOnlyThePackagesThatKnowTheBytes(t *testing.T) {
	list := exec.Command("go", "list", "-deps", ".")
	list.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := list.Output()
	require.NoError(t, err)
	allowed := map[string]bool{}
	for _, room := range []string{"cmd/logverify", "cmd/terminal", "eventlog/event", "eventlog/frame", "eventlog/checkpoint", "eventlog/evidence"} {
		allowed["writegate/"+room] = true
	}
	for path := range strings.Lines(string(out)) {
		path = strings.TrimSpace(path)
		if strings.HasPrefix(path, "writegate/") {
			assert.True(t, allowed[path], "%s is linked", path)
		}
		for _, no := range []string{"github.com/cockroachdb/pebble", "github.com/jackc/", "github.com/pganalyze/", "runtime/cgo"} {
			assert.False(t, strings.HasPrefix(path, no), "%s is linked", path)
		}
	}
}

func TestStandardInputIsReadForADash(t *testing.T) {
	l := leave(t, 3)
	for _, c := range [][]string{{"jsonl", "audit.log"}, {"bundle", "bundle.json"}, {"receipt", "receipts/all.txt"}, {"checkpoint", "newest.note"}} {
		in, err := os.Open(l.path(c[1]))
		require.NoError(t, err)
		var out, errs bytes.Buffer
		args := []string{c[0], "-"}
		if c[0] != "jsonl" {
			args = append(args, "--key", l.key)
		}
		assert.Zero(t, runWith(context.Background(), args, in, &out, &errs), "%q: %s%s", c, out.String(), errs.String())
		require.NoError(t, in.Close())
	}
}

// Of a file without a byte in it nothing can be said: a download that broke looks the
// same, whatever it was to be.
func TestAnEmptyFileIsPartialWhateverItShouldBe(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	for _, kind := range []string{"wal", "jsonl", "bundle", "receipt", "checkpoint"} {
		for _, args := range [][]string{{kind, empty}, {kind, empty, "--json"}} {
			code, out, errs := call(args...)
			assert.Equal(t, exitPartial, code, "%q: %s%s", args, out, errs)
			assert.NotContains(t, out, "corruption_detected", "%q", args)
		}
	}
	code, out, _ := call("checkpoint", empty)
	assert.Equal(t, exitPartial, code)
	assert.Contains(t, out, empty+": partial\n  it is empty")
	require.NoError(t, os.WriteFile(empty, []byte("\n"), 0o600))
	for _, kind := range []string{"jsonl", "bundle", "checkpoint"} {
		code, _, _ := call(kind, empty)
		assert.Equal(t, exitCorruption, code, kind)
	}
}
