package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/eventlog"
	"writegate/eventlog/checkpoint"
	"writegate/eventlog/event"
	"writegate/eventlog/evidence"
	"writegate/eventlog/frame"
)

// judgeBundle verifies a bundle as somebody would who has these keys.
func judgeBundle(t testing.TB, bundle []byte, keys ...checkpoint.PublicKey) frame.Report {
	t.Helper()
	report, err := evidence.Verify(context.WithoutCancel(t.Context()), bytes.NewReader(bundle), evidence.Options{Keys: keys})
	require.NoError(t, err)
	return report
}

func TestTheSigningKeyIsToldInEveryForm(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	r := g.get(t, "/audit/evidence/signing-public-key")
	require.Equal(t, http.StatusOK, r.status, "%s", r.body)
	key := g.signing.key
	require.Equal(t, []any{"Ed25519", key.ID(), key.Base64()}, pick(r.json(t), "algorithm", "key_id", "public_key"))
	origin, told, err := checkpoint.ParseVKey(r.text(t, "vkey"))
	require.NoError(t, err)
	require.Equal(t, key, told)
	g.end(t)
	require.Equal(t, []string{r.text(t, "vkey")}, g.startupKeys(t))
	log := g.openLog(t)
	require.Equal(t, log.Header().Origin, origin)
	require.NoError(t, log.Close(context.Background()))
}

func TestABundleIsSignedWithACheckpointAndProofs(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	g.busy(t)
	head := g.head(t)
	other := newSigningPair(t).key
	for _, r := range [][2]uint64{{1, head}, {2, head - 3}, {5, 5}} {
		bundle := g.post(t, "/audit/evidence", fmt.Sprintf(`{"start_seq":%d,"end_seq":%d,"reason":"yearly audit"}`, r[0], r[1]))
		require.Equal(t, http.StatusOK, bundle.status, "%s", bundle.body)
		report := judgeBundle(t, bundle.body, g.signing.key)
		require.Empty(t, report.Faults)
		require.Equal(t, frame.OK, report.Status)
		require.Equal(t, frame.L4, report.AnchorLevel)
		require.Equal(t, r[1]-r[0]+1, report.EventCount)

		require.Contains(t, strings.Join(judgeBundle(t, bundle.body).NotExcluded, " "), "self-asserted")
		require.Equal(t, frame.Corruption, judgeBundle(t, bundle.body, other).Status, "another one's key")
		changed := bytes.Replace(bundle.body, []byte("yearly"), []byte("weekly"), 1)
		require.Equal(t, frame.Corruption, judgeBundle(t, changed, g.signing.key).Status, "the reason is signed")
	}
}

func TestAGateWithoutAKeySignsNothingAndSaysSo(t *testing.T) {
	t.Parallel()
	g := startShop(t, "GATE_EVIDENCE_SIGNING_ENABLED=false")
	g.busy(t)
	requireFault(t, g.get(t, "/audit/evidence/signing-public-key"), http.StatusNotFound, "not_found")
	bundle := g.post(t, "/audit/evidence", fmt.Sprintf(`{"start_seq":1,"end_seq":%d,"reason":"yearly audit"}`, g.head(t)))
	report := judgeBundle(t, bundle.body)
	require.Equal(t, frame.OK, report.Status, "%+v", report.Faults)
	require.Contains(t, strings.Join(report.NotExcluded, ";"), "signature: none")
	changed := bytes.Replace(bundle.body, []byte("yearly"), []byte("weekly"), 1)
	require.Equal(t, frame.OK, judgeBundle(t, changed).Status, "nobody signed the reason")
	require.Equal(t, frame.Corruption, judgeBundle(t, bundle.body, g.signing.key).Status, "a key was given, so a signature is missing")
	file := filepath.Join(t.TempDir(), "bundle.json")
	out := new(lockedBuffer)
	require.Zero(t, Run(t.Context(), []string{"evidence", "export", file}, streams{strings.NewReader(""), out, out}, g.environ("GATE_EVIDENCE_SIGNING_ENABLED=false")), out)
	require.Contains(t, out.String(), "not signed")
}

// A bundle needs a checkpoint that covers it, which the gate makes: nobody's
// answer wrote that event, so none has its receipt. What the answer vouches for
// is the trace of the export.
func TestACheckpointForABundleIsNobodysReceipt(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	g.busy(t)
	bundle := g.post(t, "/audit/evidence", fmt.Sprintf(`{"start_seq":1,"end_seq":%d}`, g.head(t)))
	require.Equal(t, http.StatusOK, bundle.status, "%s", bundle.body)
	receipt, err := checkpoint.ParseReceipt(bundle.header.Get(checkpoint.Header))
	require.NoError(t, err)
	require.EqualValues(t, g.eventsOf(t, event.TypeEvidenceExported)[0]["seq"], receipt.Seq)
}

func TestABundleFromTheCommandLineIsSignedBesideARunningGate(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	g.busy(t)
	head := g.head(t)
	dir := t.TempDir()
	for i, from := range []uint64{1, 4, head} {
		file := filepath.Join(dir, strconv.Itoa(i)+".json")
		code, out, errs := g.command(t, "evidence", "export", file, "--from-seq", strconv.FormatUint(from, 10), "--to-seq", strconv.FormatUint(head, 10))
		require.Zero(t, code, errs)
		require.Contains(t, out, "signed by "+g.signing.key.ID())
		code, out, errs = g.command(t, "evidence", "verify", file, "--key", g.signing.public)
		require.Zero(t, code, "%s%s", out, errs)
		code, out, _ = g.command(t, "evidence", "verify", file, "--key", newSigningPair(t).public)
		require.Equal(t, exitFailed, code, out)
		code, _, errs = g.command(t, "evidence", "verify", file, "--key", "nonsense")
		require.Equal(t, exitUsage, code)
		require.Contains(t, errs, "--key nonsense")
		g.busy(t) // its tree grows; earlier checkpoints stay right
	}
	require.NoError(t, os.Chmod(g.signing.private, 0o644))
	code, _, errs := g.command(t, "evidence", "export", filepath.Join(dir, "open.json"))
	require.Equal(t, exitConfigured, code)
	require.Contains(t, errs, "chmod 600")
	require.NoFileExists(t, filepath.Join(dir, "open.json"))
}

// The service's own readable copy has to begin as its log does.
func TestTheReadableCopyIsHeldAgainstTheLogsHeader(t *testing.T) {
	t.Parallel()
	stranger := startShop(t)
	stranger.busy(t)
	stranger.end(t)
	text, err := os.ReadFile(stranger.file("audit.log"))
	require.NoError(t, err)
	dir := t.TempDir()
	copied := filepath.Join(dir, "copy.log")
	require.NoError(t, os.WriteFile(copied, text, 0o600))

	g := startShop(t, "GATE_AUDIT_VERIFY_DIRS="+dir)
	g.busy(t)
	g.awaitCopy(t)
	verify := func(file string) reply { return g.post(t, "/audit/verify", `{"audit_file":`+strconv.Quote(file)+`}`) }
	own := verify(g.file("audit.log"))
	require.Equal(t, "ok", own.text(t, "status"), "%s", own.body)
	require.NotContains(t, string(own.body), "chain_start\",\"status\":\"not_run")
	require.Equal(t, "ok", verify(copied).text(t, "status"), "a log of somebody else is no fault")
	require.NoError(t, os.WriteFile(g.file("audit.log"), text, 0o600))
	r := verify(g.file("audit.log"))
	require.Equal(t, "corruption_detected", r.text(t, "status"), "%s", r.body)
	require.Contains(t, string(r.body), "chain_start")
}

// keepReceipts writes receipts into a folder, as a client keeps them.
func (b *receiptBook) keepReceipts(t testing.TB, from, to int) (dir string) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	dir = t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "receipts"), []byte(strings.Join(b.texts[from:to], "\n")+"\n"), 0o600))
	return dir
}

// cutAfter takes everything after an event away from a log of one segment, as
// one would who wants it to look like an ordinary end: at a batch's end, with
// zeros behind it, and with the checkpoints, the head file and the projections gone.
func (d gateDir) cutAfter(t testing.TB, last uint64) {
	t.Helper()
	set, err := frame.Discover(t.Context(), frame.OS{}, d.file("audit.wal"))
	require.NoError(t, err)
	end := int64(0)
	for p, err := range set.Frames(t.Context(), last) {
		require.NoError(t, err)
		if end = p.Off + p.Size; p.Seq == last {
			require.Zero(t, p.BatchLeft, "event %d does not end a batch", last)
		}
	}
	require.NoError(t, set.Close())
	require.NoError(t, os.Truncate(d.file("audit.wal"), end))
	require.NoError(t, os.RemoveAll(d.file("audit.wal"+frame.CheckpointsSuffix)))
	require.NoError(t, os.Remove(d.file("audit.wal"+frame.HeadSuffix)))
	require.NoError(t, os.RemoveAll(d.file("approvals.db")))
}

// buildVerifier builds the auditor's program, as it is shipped.
func buildVerifier(t testing.TB, path string) {
	t.Helper()
	build := exec.Command("go", "build", "-o", path, "../logverify")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// runVerifier runs it and expects an exit code.
func runVerifier(t testing.TB, program string, code int, args ...string) string {
	t.Helper()
	cmd := exec.Command(program, args...)
	out, err := cmd.CombinedOutput()
	require.Equal(t, code, cmd.ProcessState.ExitCode(), "%v: %v\n%s", args, err, out)
	return string(out)
}

// TestACutLogIsFoundOutByAnyReceiptBehindTheCut: what was cut at the end of an
// answer looks whole on its own, and is not to whoever kept a later answer.
func TestACutLogIsFoundOutByAnyReceiptBehindTheCut(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	const answers = 6
	for i := range answers {
		require.Equal(t, http.StatusOK, g.query(t, ask(fmt.Sprintf("UPDATE orders SET status = 'paid' WHERE id = %d", i+1))).status)
	}
	g.end(t)
	verifier := filepath.Join(t.TempDir(), "logverify")
	buildVerifier(t, verifier)
	for cut := range answers {
		d := g.copyTo(t, filepath.Join(t.TempDir(), "cut"))
		at, err := checkpoint.ParseReceipt(g.kept.texts[cut])
		require.NoError(t, err)
		d.cutAfter(t, at.Seq)
		wal := d.file("audit.wal")
		code, out, errs := d.command(t, "log", "verify", wal)
		require.Zero(t, code, "a chain does not see its own end cut off: %s%s", out, errs)
		before := g.kept.keepReceipts(t, 0, cut+1)
		code, out, errs = d.command(t, "log", "verify", wal, "--receipts", before, "--key", g.signing.public)
		require.Zero(t, code, "receipts of what is there: %s%s", out, errs)
		runVerifier(t, verifier, 0, "wal", wal, "--receipts", before, "--key", g.signing.public)
		for kept := cut + 1; kept < answers; kept++ {
			behind := g.kept.keepReceipts(t, kept, kept+1)
			for _, key := range [][]string{nil, {"--key", g.signing.public}} { // the log's header names its key
				code, out, _ = d.command(t, append([]string{"log", "verify", wal, "--json", "--receipts", behind}, key...)...)
				require.Equal(t, exitFailed, code, out)
				require.Contains(t, out, string(frame.AnchorBeyondEnd))
			}
			require.Contains(t, runVerifier(t, verifier, exitFailed, "wal", wal, "--receipts", behind, "--key", g.signing.public), string(frame.AnchorBeyondEnd))
		}
	}
	all := filepath.Join(g.kept.keepReceipts(t, 0, answers), "receipts")
	require.Equal(t, answers, strings.Count(runVerifier(t, verifier, 0, "receipt", all, "--key", g.signing.public, "--json"), `"status":"ok"`))
	require.Contains(t, runVerifier(t, verifier, exitPartial, "receipt", all, "--key", newSigningPair(t).public), "signed by none of the known keys")
	code, out, _ := g.command(t, "log", "verify", "--receipts", filepath.Join(t.TempDir(), "none"))
	require.Equal(t, exitPartial, code)
	require.Contains(t, out, "none: no such file")
}

func TestAReceiptOfAChangedLogAccusesIt(t *testing.T) {
	t.Parallel()
	one, two := startShop(t), startShop(t)
	require.Equal(t, http.StatusOK, one.query(t, ask("SELECT 1")).status)
	require.Equal(t, http.StatusOK, two.query(t, ask("SELECT 1")).status)
	one.end(t)
	two.end(t)
	foreign := one.kept.keepReceipts(t, 0, 1)
	code, out, _ := two.command(t, "log", "verify", "--json", "--receipts", foreign)
	var report frame.Report
	require.NoError(t, json.Unmarshal([]byte(out), &report))
	require.Equal(t, exitPartial, code, "a key that nobody gave accuses nobody, and proves nothing: %s", out)
	require.Contains(t, out, string(frame.UntrustedAnchor))
	require.Contains(t, out, "with --key")
	code, out, _ = two.command(t, "log", "verify", "--json", "--receipts", foreign, "--key", one.signing.public)
	require.Equal(t, exitFailed, code, out)
}

// TestReceiptsOfLogsBeforeTheLogAreHeldAgainstThose, through the gate and the
// verifier, also where another log lies in the place of one of them.
func TestReceiptsOfLogsBeforeTheLogAreHeldAgainstThose(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	all := newReceiptBook()
	for n := range 3 {
		require.Equal(t, http.StatusOK, g.query(t, ask("SELECT 1")).status)
		g.end(t)
		all.texts = append(all.texts, g.kept.texts...)
		if n < 2 {
			code, out, errs := g.command(t, "log", "new", "--accept-loss", "it is tried out")
			require.Zero(t, code, "%s%s", out, errs)
			d := g.gateDir
			d.kept = newReceiptBook() // a book is of one log
			g = startGate(t, d)
		}
	}
	kept := all.keepReceipts(t, 0, len(all.texts))
	verifier := filepath.Join(t.TempDir(), "logverify")
	buildVerifier(t, verifier)
	verify := func(expected int, wal string) string {
		t.Helper()
		args := []string{wal, "--receipts", kept, "--key", g.signing.public}
		code, out, errs := g.command(t, append([]string{"log", "verify"}, args...)...)
		require.Equal(t, expected, code, "%s%s", out, errs)
		return out + runVerifier(t, verifier, expected, append([]string{"wal"}, args...)...)
	}
	first, err := checkpoint.ParseReceipt(all.texts[0])
	require.NoError(t, err)
	wal, name := g.file("audit.wal"), hex.EncodeToString(first.LogID[:])
	require.Equal(t, 2, strings.Count(verify(exitOK, wal), fmt.Sprintf("is of log %s before this one, and agrees with its event %d", name, first.Seq)))
	require.Contains(t, verify(exitPartial, eventlog.RetiredLog(wal, first.LogID)), "followed by others")

	alone := filepath.Join(t.TempDir(), "alone.wal")
	require.NoError(t, os.WriteFile(alone, mustRead(t, wal), 0o600))
	require.Contains(t, verify(exitPartial, alone), alone+".retired")

	old := eventlog.RetiredLog(wal, first.LogID)
	for _, args := range [][]string{{"serve"}, {"log", "new", "--accept-loss", "a stale variable"}} {
		code, output := runGate(t, g.environ("GATE_AUDIT_WAL_PATH="+old), args...)
		require.NotZero(t, code, output)
		require.Contains(t, output, "nothing is written to it any more", "%v", args)
	}
	require.NoError(t, os.WriteFile(old, mustRead(t, wal), 0o600))
	require.Contains(t, verify(exitPartial, wal), "put that log's own folder there")
}
