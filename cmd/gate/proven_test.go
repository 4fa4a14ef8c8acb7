package main

import (
	"bytes"
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/stretchr/testify/require"

	"writegate/eventlog"
	"writegate/eventlog/event"
	"writegate/projections"
)

// recordOf finds a record of a stopped gate's projections by its key, in whatever
// key space it is, and hands it to see.
func (d gateDir) recordOf(t *testing.T, key string, see func(db *pebble.DB, key, value []byte)) {
	t.Helper()
	db, err := pebble.Open(d.file("approvals.db"), &pebble.Options{FormatMajorVersion: pebble.FormatNewest})
	require.NoError(t, err)
	it, err := db.NewIter(nil)
	require.NoError(t, err)
	found := false
	for ok := it.First(); ok; ok = it.Next() {
		if k := it.Key(); len(k) > 1 && string(k[1:]) == key {
			see(db, bytes.Clone(k), bytes.Clone(it.Value()))
			found = true
		}
	}
	require.True(t, found)
	require.NoError(t, it.Close())
	require.NoError(t, db.Close())
}

// Whoever writes into the projections of a stopped gate makes no approval unused:
// what the log says of it is what counts.
func TestARecordThatSomebodyWroteIsNotBelieved(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		cleanly bool
		extra   []string
		status  int
		code    string
	}{
		"after a clean end":             {true, nil, http.StatusConflict, "approval_already_used"},
		"after another, with all of it": {false, []string{"GATE_AUDIT_VERIFY_ON_START=full"}, http.StatusConflict, "approval_already_used"},
		"after another, with its ends":  {false, nil, http.StatusServiceUnavailable, "audit_corruption_detected"}, // the use is held against the log
	} {
		t.Run(name, func(t *testing.T) {
			d := newNotes(t)
			g := startGate(t, d)
			used := insertHeld("once")
			id := g.approved(t, used)
			g.end(t)
			var unused []byte
			d.recordOf(t, "ap/"+id, func(_ *pebble.DB, _, value []byte) { unused = value })
			g = startGate(t, d)
			require.Equal(t, http.StatusOK, g.query(t, used.with("approval_id", id)).status)
			g.end(t)
			if !c.cleanly {
				d.appendUnclean(t)
			}
			d.recordOf(t, "ap/"+id, func(db *pebble.DB, key, value []byte) {
				require.NotEqual(t, unused, value)
				require.NoError(t, db.Set(key, unused, pebble.Sync))
			})
			g = startGate(t, d, c.extra...)
			requireFault(t, g.query(t, used.with("approval_id", id)), c.status, c.code)
			if c.code == "audit_corruption_detected" { // the operator makes the projections anew, as the answer says
				g.accused = true
				g.end(t)
				code, out, errs := d.command(t, "log", "rebuild")
				require.Zero(t, code, "%s%s", out, errs)
				g = startGate(t, d)
				requireFault(t, g.query(t, used.with("approval_id", id)), http.StatusConflict, "approval_already_used")
			}
			require.Equal(t, "1", g.rowsOf(t, "held_notes", "once"))
		})
	}
}

// appendUnclean leaves log and projections as a run does that was killed.
func (d gateDir) appendUnclean(t *testing.T) {
	t.Helper()
	log := d.openLog(t)
	_, err := log.Append(t.Context(), eventlog.Group{Drafts: []event.Draft{event.New(time.Now(), event.Context{Actor: "system"}, &event.Startup{Version: version})}})
	require.NoError(t, err)
	store, err := projections.Open(projections.Options{Dir: d.file("approvals.db")})
	require.NoError(t, err)
	require.NoError(t, store.Connect(t.Context(), log))
	require.NoError(t, store.Close())
	require.NoError(t, log.Close(context.Background()))
}
