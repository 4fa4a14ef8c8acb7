package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/frame"
	"writegate/projections"
)

const indexName = "audit_index_v1.json"

// restedGate is the folder of a gate that has run and was stopped, with segments.
func restedGate(t *testing.T) gateDir {
	t.Helper()
	d := newNotes(t)
	g := startGate(t, d, append([]string{smallSegments}, patience...)...)
	g.query(t, insertOpen("open"))
	for i := 0; d.sealed(t) == 0; i++ {
		g.hold(t, insertHeld(strings.Repeat("and more ", 8000)+string(rune('a'+i))))
	}
	g.resolve(t, g.hold(t, insertHeld("last")), "reject")
	g.end(t)
	return d
}

func (d gateDir) rebuild(t *testing.T, args ...string) (r rebuildResult) {
	t.Helper()
	code, out, errs := d.command(t, append([]string{"log", "rebuild", "--json"}, args...)...)
	require.Zero(t, code, errs)
	require.NoError(t, json.Unmarshal([]byte(out), &r))
	return r
}

func (d gateDir) read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(d.file(name))
	require.NoError(t, err)
	return string(b)
}

// names lists the folder.
func (d gateDir) names(t *testing.T) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(d.path)
	require.NoError(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// TestEachDerivedPartIsRebuiltAloneFromTheLog: each part is damaged or gone, is
// made anew alone, and the others are left as they are.
func TestEachDerivedPartIsRebuiltAloneFromTheLog(t *testing.T) {
	t.Parallel()
	d := restedGate(t)
	jsonl, index, last := d.read(t, "audit.log"), d.read(t, indexName), uint64(len(d.events(t)))
	digest := d.digest(t, exitOK).Digest

	t.Run("jsonl", func(t *testing.T) {
		require.NoError(t, os.WriteFile(d.file("audit.log"), []byte("damaged\n"), 0o600))
		store := contents(t, d.file("approvals.db"))
		r := d.rebuild(t, "--jsonl")
		require.Equal(t, last, r.LastSeq)
		require.Equal(t, &rebuiltPart{Path: d.file("audit.log"), MovedTo: d.file("audit.log.aside-1")}, r.JSONL)
		require.Nil(t, r.Index)
		require.Nil(t, r.Projections)
		require.Equal(t, jsonl, d.read(t, "audit.log"), "byte for byte what the gate wrote")
		require.Equal(t, "damaged\n", d.read(t, "audit.log.aside-1"))
		require.Equal(t, index, d.read(t, indexName))
		require.Equal(t, store, contents(t, d.file("approvals.db")))
	})
	t.Run("index", func(t *testing.T) {
		require.NoError(t, os.Remove(d.file(indexName)))
		r := d.rebuild(t, "--index")
		require.Equal(t, &rebuiltPart{Path: d.file(indexName)}, r.Index)
		require.Nil(t, r.JSONL)
		require.Equal(t, index, d.read(t, indexName))
	})
	t.Run("projections", func(t *testing.T) {
		require.NoError(t, os.RemoveAll(d.file("approvals.db")))
		r := d.rebuild(t, "--projections")
		require.Equal(t, &rebuiltPart{Path: d.file("approvals.db")}, r.Projections)
		require.Nil(t, r.JSONL)
		applied, err := projections.Peek(d.file("approvals.db"))
		require.NoError(t, err)
		require.Equal(t, last, applied.Seq)
		require.Equal(t, digest, d.digest(t, exitOK).Digest)
	})
	t.Run("projections that can't be read", func(t *testing.T) {
		manifests, err := filepath.Glob(d.file("approvals.db/MANIFEST-*"))
		require.NoError(t, err)
		require.NotEmpty(t, manifests)
		for _, m := range manifests {
			require.NoError(t, os.WriteFile(m, []byte("no manifest"), 0o600))
		}
		r := d.rebuild(t, "--projections")
		require.Equal(t, d.file("approvals.db.aside-1"), r.Projections.MovedTo)
		require.DirExists(t, r.Projections.MovedTo)
	})
	t.Run("all", func(t *testing.T) {
		require.NoError(t, os.Remove(d.file("audit.log")))
		code, out, errs := d.command(t, "log", "rebuild")
		require.Zero(t, code, errs)
		require.Contains(t, out, "The projections hold the log up to event")
		require.Contains(t, out, "The JSONL file holds the log up to event")
		require.Contains(t, out, "The sparse index covers the log up to event")
		require.Contains(t, out, "the old one is "+d.file(indexName+".aside-1"))
		require.Equal(t, jsonl, d.read(t, "audit.log"))
	})
	g := startGate(t, d, patience...) // and the gate goes on from all of it
	g.query(t, insertOpen("afterwards"))
	g.end(t)
	require.True(t, strings.HasPrefix(d.read(t, "audit.log"), jsonl))
	require.False(t, slices.ContainsFunc(d.names(t), func(name string) bool { return strings.Contains(name, "disagrees") }))
}

// TestALyingIndexFileChangesNoAnswer: a start takes the file as a hint alone.
func TestALyingIndexFileChangesNoAnswer(t *testing.T) {
	t.Parallel()
	d := restedGate(t)
	want := strings.Split(strings.TrimSpace(d.read(t, "audit.log")), "\n")
	var index map[string]any
	require.NoError(t, json.Unmarshal([]byte(d.read(t, indexName)), &index))
	var lies [][3]int
	for seq := range want {
		lies = append(lies, [3]int{seq + 1, 0, frame.HeaderSize + 8*(seq*997%100_000)})
	}
	index["points"] = lies
	b, err := json.Marshal(index)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(d.file(indexName), b, 0o600))

	g := startGate(t, d, patience...)
	var items []json.RawMessage
	for from := 1; from <= len(want); from = len(items) + 1 {
		var page struct{ Items []json.RawMessage }
		answer := g.get(t, fmt.Sprintf("/audit?order=asc&limit=100&from_seq=%d&to_seq=%d", from, len(want)))
		require.NoError(t, json.Unmarshal(answer.body, &page))
		require.NotEmpty(t, page.Items)
		items = append(items, page.Items...)
	}
	for i, line := range want {
		require.Equal(t, line, string(items[i]))
	}
}

// TestNoPartIsRebuiltBesideARunningGate, and nothing is touched.
func TestNoPartIsRebuiltBesideARunningGate(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	g.awaitCopy(t)
	before := g.names(t)
	for _, args := range [][]string{nil, {"--projections"}, {"--jsonl"}, {"--index"}} {
		code, out, errs := g.command(t, append([]string{"log", "rebuild"}, args...)...)
		require.Equal(t, exitLocked, code)
		require.Contains(t, errs, "stop it first")
		require.Empty(t, out)
	}
	require.Equal(t, before, g.names(t))
	require.Equal(t, 200, g.query(t, ask("SELECT 1")).status)
}

// TestNothingIsRebuiltFromALogThatLostEvents which the projections still know:
// the JSONL file may be the only place where they can be read.
func TestNothingIsRebuiltFromALogThatLostEvents(t *testing.T) {
	t.Parallel()
	d := restedGate(t)
	events := d.events(t)
	require.NoError(t, os.Remove(d.file("audit.wal.head")))
	log := []byte(d.read(t, "audit.wal"))
	at := strings.LastIndex(string(log), string(events[len(events)-1].PreviousHash[:])) // the last frame begins before it
	clear(log[at-40:])
	require.NoError(t, os.WriteFile(d.file("audit.wal"), log, 0o600))
	before := d.read(t, "audit.log")
	for _, args := range [][]string{nil, {"--projections"}, {"--jsonl"}, {"--index"}} {
		code, _, errs := d.command(t, append([]string{"log", "rebuild"}, args...)...)
		require.Equal(t, exitFailed, code, errs)
		require.Contains(t, errs, string(frame.AnchorBeyondEnd))
	}
	require.Equal(t, before, d.read(t, "audit.log"))
	require.NoFileExists(t, d.file("audit.log.aside-1"))
	code, _, errs := gateDir{path: t.TempDir()}.command(t, "log", "rebuild", "--jsonl")
	require.Equal(t, exitPartial, code, errs)
	require.Contains(t, errs, "there is no event log")
}
