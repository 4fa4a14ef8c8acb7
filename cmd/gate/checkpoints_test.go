package main

import (
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
	*v.kept = *newReceiptBook(v.signing.key) // what clients keep of the later history is another test's
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
		require.NoError(t, p.Parse(e.Payload))
		named[p.Size] = p.Root
	}
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
			require.NoError(t, p.Parse(e.Payload))
			named2 = named2 || p.Size == last.Size && p.Root == last.Root
		case event.TypeStartup:
			require.NoError(t, startup.Parse(e.Payload))
		}
	}
	require.True(t, named2, "the next start names the last one")
	require.Contains(t, startup.Anchors, event.Anchor{Level: "L4", Result: "match", Seq: last.Size})
}

func TestAWholeHostThatWasRolledBackIsFoundByItsWitness(t *testing.T) {
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
