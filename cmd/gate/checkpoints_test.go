package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/checkpoint"
	"writegate/eventlog/event"
	"writegate/fixtures/witness/witnesstest"
)

// A vouched gate signs under a fixed origin, so that witnesses can know it
// before it begins, and has a checkpoint due with every few events.
type vouchedGate struct {
	gateDir
	vkey string
}

const vouchedOrigin = "gate.example/shop"

func newVouchedGate(t testing.TB) vouchedGate {
	t.Helper()
	d := newGateDir(t, nil)
	d.execute(t, shopTables)
	return d.vouched(t)
}

func (d gateDir) vouched(t testing.TB) vouchedGate {
	t.Helper()
	vkey, err := d.signing.key.VKey(vouchedOrigin)
	require.NoError(t, err)
	return vouchedGate{d, vkey}
}

// settings sign and ask the witnesses.
func (v vouchedGate) settings(witnesses ...*witnesstest.Witness) []string {
	s := append(v.signing.environ(), "GATE_AUDIT_ORIGIN="+vouchedOrigin, "GATE_AUDIT_CHECKPOINT_EVERY_SECONDS=1")
	urls, keys := "", ""
	for _, w := range witnesses {
		urls, keys = urls+w.URL+",", keys+w.VKey+","
	}
	if len(witnesses) > 0 {
		s = append(s, "GATE_WITNESS_URLS="+urls, "GATE_WITNESS_KEYS="+keys)
	}
	return s
}

// notes are the stored checkpoints, oldest first.
func (v vouchedGate) notes(t testing.TB, witnesses ...*witnesstest.Witness) (notes []*checkpoint.Note) {
	t.Helper()
	keys := checkpoint.Keys{Log: []checkpoint.PublicKey{v.signing.key}}
	for _, w := range witnesses {
		keys.Witnesses = append(keys.Witnesses, w.VKey)
	}
	list, err := checkpoint.NewFolder(v.file("audit.wal.checkpoints")).List()
	require.NoError(t, err)
	for _, s := range list {
		n, err := s.Open(keys)
		require.NoError(t, err)
		require.True(t, n.Trusted)
		notes = append(notes, n)
	}
	return notes
}

// replaceBy puts a copy of a folder in the place of the gate's.
func (v vouchedGate) replaceBy(t testing.TB, copied gateDir) {
	t.Helper()
	entries, err := os.ReadDir(v.path)
	require.NoError(t, err)
	for _, e := range entries {
		require.NoError(t, os.RemoveAll(filepath.Join(v.path, e.Name())))
	}
	copied.copyTo(t, v.path)
	*v.kept = *newReceiptBook() // what clients keep of the later history is another test's
}

func requireRefused(t testing.TB, g *testGate, kind string) {
	t.Helper()
	r := g.query(t, ask("SELECT 1"))
	require.Equal(t, http.StatusServiceUnavailable, r.status, "%s", r.body)
	require.Equal(t, "audit_corruption_detected", r.text(t, "error_code"))
	health := g.get(t, "/health")
	require.Equal(t, http.StatusServiceUnavailable, health.status, "%s", health.body)
	require.Equal(t, http.StatusOK, g.get(t, "/executions").status, "it is up for reading")
	report := g.get(t, "/evidence/verify")
	require.Equal(t, "corruption_detected", report.text(t, "status"), "%s", report.body)
	require.Contains(t, string(report.body), kind)
}

func TestCheckpointsAreSignedKeptNamedAndCosigned(t *testing.T) {
	t.Parallel()
	v := newVouchedGate(t)
	w := witnesstest.Start(t, t.TempDir(), v.vkey)
	g := startGate(t, v.gateDir, v.settings(w)...)
	require.Equal(t, http.StatusOK, g.query(t, ask("SELECT 1")).status)
	head := uint64(g.get(t, "/health").json(t)["log"].(map[string]any)["seq"].(float64))
	require.Eventually(t, func() bool {
		notes := v.notes(t, w)
		return len(notes) > 0 && notes[len(notes)-1].Size >= head && len(notes[len(notes)-1].Cosignatures) == 1
	}, startPatience, pollEvery)
	report := g.get(t, "/evidence/verify")
	require.Equal(t, "ok", report.text(t, "status"), "%s", report.body)
	require.Equal(t, "L4", report.text(t, "anchor_level"), "%s", report.body)
	g.end(t)

	named := map[uint64][32]byte{}
	events := v.events(t)
	for _, e := range events {
		if e.Type != event.TypeCheckpointSigned {
			continue
		}
		var p event.CheckpointSigned
		require.NoError(t, e.Parse(&p))
		named[p.Size] = p.Root
	}
	require.Equal(t, event.TypeShutdown, events[len(events)-1].Type, "nothing comes after it")
	notes := v.notes(t, w)
	last := notes[len(notes)-1]
	require.EqualValues(t, len(events), last.Size, "a clean end is vouched for")
	require.Len(t, last.Cosignatures, 1)
	for _, n := range notes[:len(notes)-1] {
		require.Equal(t, n.Root, named[n.Size], "the checkpoint of %d events is named in the log", n.Size)
	}

	g = startGate(t, v.gateDir, v.settings(w)...)
	g.end(t)
	var named2 bool
	var startup event.Startup
	for _, e := range v.events(t)[len(events):] {
		switch e.Type {
		case event.TypeCheckpointSigned:
			var p event.CheckpointSigned
			require.NoError(t, e.Parse(&p))
			named2 = named2 || p.Size == last.Size && p.Root == last.Root
		case event.TypeStartup:
			require.NoError(t, e.Parse(&startup))
		}
	}
	require.True(t, named2, "the next start names the last one")
	require.Contains(t, startup.Anchors, event.Anchor{Level: "L4", Result: "match", Seq: last.Size})
}

func TestAWholeHostThatWasRolledBackIsFoundByItsWitness(t *testing.T) {
	t.Parallel()
	v := newVouchedGate(t)
	w := witnesstest.Start(t, t.TempDir(), v.vkey)
	g := startGate(t, v.gateDir, v.settings(w)...)
	g.query(t, ask("SELECT 1"))
	g.end(t)
	older := v.copyTo(t, t.TempDir())

	g = startGate(t, v.gateDir, v.settings(w)...)
	g.query(t, ask("UPDATE orders SET status = 'paid' WHERE id = 1"))
	g.end(t)

	v.replaceBy(t, older)
	before := len(v.events(t))
	g = startGate(t, v.gateDir, v.settings(w)...)
	g.accused = true
	requireRefused(t, g, "anchor_beyond_end")
	require.Contains(t, string(g.get(t, "/health").body), "anchor_beyond_end")
	g.end(t)
	require.Len(t, v.events(t), before, "nothing was appended to it")

	w.Stop(t)
	g = startGate(t, v.gateDir, v.settings(w)...)
	report := g.get(t, "/evidence/verify")
	require.Equal(t, "ok", report.text(t, "status"), "without the witness nothing shows it: %s", report.body)
	require.Contains(t, string(report.body), "the witness "+w.URL+" gave no cosignature at", "but it is said that it was not asked")
}

// checkpointsOf is what GET /health says about checkpoints.
func checkpointsOf(t testing.TB, g *testGate) (c struct {
	Size      uint64
	Status    string
	Message   string
	Witnesses []struct {
		URL     string
		Status  string
		Size    uint64
		Message string
	}
}) {
	t.Helper()
	var body struct{ Checkpoints *json.RawMessage }
	unmarshal(t, g.get(t, "/health").body, &body)
	require.NotNil(t, body.Checkpoints)
	unmarshal(t, *body.Checkpoints, &c)
	return c
}

func TestHealthAndMetricsTellHowCheckpointsStand(t *testing.T) {
	t.Parallel()
	v := newVouchedGate(t)
	near, far := witnesstest.Start(t, t.TempDir(), v.vkey), witnesstest.Start(t, t.TempDir(), v.vkey)
	far.Stop(t)
	g := startGate(t, v.gateDir, v.settings(near, far)...)
	c := checkpointsOf(t, g)
	require.Equal(t, "ok", c.Status, c.Message)
	require.Positive(t, c.Size)
	require.Equal(t, []string{near.URL, "ok"}, []string{c.Witnesses[0].URL, c.Witnesses[0].Status})
	require.Equal(t, []string{far.URL, "unavailable"}, []string{c.Witnesses[1].URL, c.Witnesses[1].Status})
	require.NotEmpty(t, c.Witnesses[1].Message)
	metrics := string(g.get(t, "/metrics").body)
	for _, line := range []string{
		"gate_checkpoint_ok 1\n", "gate_checkpoint_size ",
		fmt.Sprintf("gate_witness_ok{witness=%q} 1\n", near.URL), fmt.Sprintf("gate_witness_ok{witness=%q} 0\n", far.URL),
		fmt.Sprintf("gate_witness_cosigned_size{witness=%q} 0\n", far.URL),
	} {
		require.Contains(t, metrics, line)
	}
	report := g.get(t, "/evidence/verify")
	require.Equal(t, "ok", report.text(t, "status"))
	require.Contains(t, string(report.body), "the witness "+far.URL+" gave no cosignature at")
	g.end(t)

	g = startGate(t, v.gateDir, "GATE_EVIDENCE_SIGNING_ENABLED=false")
	require.NotContains(t, g.get(t, "/health").json(t), "checkpoints")
	require.NotContains(t, string(g.get(t, "/metrics").body), "gate_checkpoint")
	require.Equal(t, "L4", g.get(t, "/evidence/verify").text(t, "anchor_level"), "what was signed before is still an anchor")
}

func TestALogAndItsProjectionsRolledBackAreFoundByAKeptCheckpoint(t *testing.T) {
	t.Parallel()
	v := newVouchedGate(t)
	g := startGate(t, v.gateDir, v.settings()...)
	g.end(t)
	older := v.copyTo(t, t.TempDir())
	g = startGate(t, v.gateDir, v.settings()...)
	g.query(t, ask("SELECT 1"))
	g.end(t)
	notes := v.copyTo(t, t.TempDir())
	v.replaceBy(t, older)
	require.NoError(t, os.RemoveAll(v.file("audit.wal.checkpoints")))
	require.NoError(t, os.CopyFS(v.file("audit.wal.checkpoints"), os.DirFS(notes.file("audit.wal.checkpoints"))))
	g = startGate(t, v.gateDir, v.settings()...)
	g.accused = true
	requireRefused(t, g, "anchor_beyond_end")
}

func TestALogWhoseHeaderIsDamagedIsUpForReadersWithSigningOn(t *testing.T) {
	t.Parallel()
	v := newVouchedGate(t)
	g := startGate(t, v.gateDir, v.settings()...)
	g.end(t)
	f, err := os.OpenFile(v.file("audit.wal"), os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteAt([]byte{0xff}, 130)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	g = startGate(t, v.gateDir, v.settings()...)
	g.accused = true
	health := g.get(t, "/health")
	require.Equal(t, http.StatusServiceUnavailable, health.status)
	require.Equal(t, "corruption_detected", g.get(t, "/evidence/verify").text(t, "status"))
	require.Equal(t, http.StatusServiceUnavailable, g.query(t, ask("SELECT 1")).status)
}

func TestABackupCarriesItsCheckpointsAndIsVouchedForByThem(t *testing.T) {
	t.Parallel()
	v := newVouchedGate(t)
	w := witnesstest.Start(t, t.TempDir(), v.vkey)
	g := startGate(t, v.gateDir, v.settings(w)...)
	g.query(t, ask("SELECT 1"))
	g.end(t)
	to := filepath.Join(t.TempDir(), "backup")
	code, output := runGate(t, v.environ(v.settings(w)...), "log", "backup", to)
	require.Zero(t, code, output)
	before := v.notes(t, w)
	entries, err := os.ReadDir(v.path)
	require.NoError(t, err)
	old := t.TempDir()
	for _, e := range entries {
		require.NoError(t, os.Rename(v.file(e.Name()), filepath.Join(old, e.Name())))
	}
	code, output = runGate(t, v.environ(v.settings(w)...), "log", "restore", to, "--old-log", filepath.Join(old, "audit.wal"))
	require.Zero(t, code, output)
	require.NotContains(t, output, "witness")
	require.Equal(t, before, v.notes(t, w))
	g = startGate(t, v.gateDir, v.settings(w)...)
	require.Equal(t, http.StatusOK, g.query(t, ask("SELECT 1")).status, "the witness knows no more than the backup")
	g.end(t)
}

func TestALogThatIsReachedThroughALinkIsHeldAgainstItsCheckpoints(t *testing.T) {
	t.Parallel()
	v := newVouchedGate(t)
	g := startGate(t, v.gateDir, v.settings()...)
	g.end(t)
	link := filepath.Join(t.TempDir(), "linked.wal")
	require.NoError(t, os.Symlink(v.file("audit.wal"), link))
	for _, path := range []string{v.file("audit.wal"), link} {
		code, output := runGate(t, v.environ(v.settings()...), "log", "verify", path, "--json")
		require.Zero(t, code, output)
		require.Contains(t, output, `"anchor_level":"L4"`)
	}
}
