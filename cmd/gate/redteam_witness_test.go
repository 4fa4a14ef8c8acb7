package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
	"writegate/eventlog/frame"
	"writegate/fixtures/faultproxy"
)

// A witness reads the log on disk, and looks at each message to the server as it
// passes: a text of a client's has its decision on disk by then.
type witness struct {
	mu         sync.Mutex
	file       string
	open       frame.File
	off        int64
	digests    map[string][32]byte      // of a request's text
	decided    map[[32]byte]int         // how often a text was decided so that it may run
	described  map[[32]byte]int         // and so that the server may parse it for a description
	dispatched map[[32]byte][]time.Time // when a text was
	xids       map[uint64][]string      // transaction ids that the log names, with their executions
	texts      map[string][32]byte      // of executions
	results    map[string]event.Type    // of executions
	reasons    map[string]string        // of their failures
	pids       map[string]bool          // the server's processes behind the gate's connections
	learning   bool                     // what the gate sends beside lessons is its own
	learnt     map[string]bool          // the gate's own texts
	below      int                      // how many ids of subtransactions there may be
	faults     []string
	reached    []string // client texts that passed since the last call of sent
}

// see is called for each message, before it is passed on.
func (w *witness) see(m faultproxy.Message) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if m.Direction == faultproxy.ToClient {
		if m.Type == 'K' && len(m.Body) >= 4 {
			w.pids[strconv.Itoa(int(binary.BigEndian.Uint32(m.Body)))] = true
		}
		return
	}
	var sql string
	switch m.Type {
	case 'P':
		parts := bytes.SplitN(m.Body, []byte{0}, 3)
		sql = string(parts[1])
	case 'Q':
		sql = string(bytes.TrimSuffix(m.Body, []byte{0}))
	case 'F':
		w.faults = append(w.faults, "a function call of the protocol was sent to the server")
		return
	default:
		return
	}
	if startsSubtransaction.MatchString(sql) {
		w.below++
	}
	if w.learnt[sql] || ownStatement(sql) {
		return
	}
	if w.learning && !slices.ContainsFunc(lessons, func(l string) bool { return strings.Contains(sql, l) }) {
		w.learnt[sql] = true
		return
	}
	w.reached = append(w.reached, sql)
	w.catchUp()
	if !w.has(sha256.Sum256([]byte(sql))) {
		w.faults = append(w.faults, "sent to the server before its decision was on disk: "+sql)
	}
}

// startsSubtransaction are a client's statements behind which the next write gets a
// transaction id of its own, below that of the log.
var startsSubtransaction = regexp.MustCompile(`^(SAVEPOINT|ROLLBACK TO SAVEPOINT) "`)

func (w *witness) has(digest [32]byte) bool {
	return w.decided[digest] > 0 || w.described[digest] > 0 || len(w.dispatched[digest]) > 0
}

// catchUp reads the log as far as it is on disk now.
func (w *witness) catchUp() {
	if w.open == nil {
		f, err := frame.OS{}.Open(w.file, frame.ReadOnly)
		if err != nil {
			w.faults = append(w.faults, "the log: "+err.Error())
			return
		}
		w.open, w.off = f, frame.HeaderSize
	}
	size, err := w.open.Size()
	if err != nil {
		w.faults = append(w.faults, "the log: "+err.Error())
		return
	}
	for {
		f, n, err := frame.ReadFrameAt(w.open, w.off, size)
		if err != nil {
			return // nothing more is whole
		}
		d, err := event.Decode(f.Record)
		if err != nil {
			w.faults = append(w.faults, "the log: "+err.Error())
			return
		}
		w.take(&d)
		w.off += int64(n)
	}
}

func (w *witness) take(d *event.Draft) {
	fault := func(err error) {
		if err != nil {
			w.faults = append(w.faults, "the log: "+err.Error())
		}
	}
	switch c := d.Context; d.Type {
	case event.TypeRequestReceived:
		var p event.RequestReceived
		fault(d.Parse(&p))
		w.digests[c.RequestID] = p.SQLDigest
	case event.TypeDecisionRecorded:
		var p event.DecisionRecorded
		fault(d.Parse(&p))
		switch digest, ok := w.digests[c.RequestID]; {
		case !ok:
			w.faults = append(w.faults, "a decision without its request")
		case p.Run == "describe" && c.Decision != "BLOCK":
			w.described[digest]++
		case c.Decision == "ALLOW":
			w.decided[digest]++
		}
	case event.TypeExecutionDispatched:
		var p event.ExecutionDispatched
		fault(d.Parse(&p))
		w.texts[c.ExecutionID] = p.SQLSHA256
		w.dispatched[p.SQLSHA256] = append(w.dispatched[p.SQLSHA256], d.Time)
		if p.XID != 0 {
			w.xids[p.XID] = append(w.xids[p.XID], c.ExecutionID)
		}
		if w.decided[w.digests[c.RequestID]] == 0 {
			w.faults = append(w.faults, "a dispatch without an ALLOW before it: "+c.ExecutionID)
		}
	case event.TypeExecutionSuccess, event.TypeExecutionFailure, event.TypeExecutionStateUnknown:
		w.results[c.ExecutionID], w.reasons[c.ExecutionID] = d.Type, c.ReasonCode
	}
}

func (w *witness) knows(digest [32]byte) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.catchUp()
	return w.has(digest)
}

func (w *witness) dispatches(digest [32]byte) []time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.catchUp()
	return slices.Clone(w.dispatched[digest])
}

// names tells whether the log knows the transaction.
func (w *witness) names(xid uint64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.catchUp()
	return len(w.xids[xid]) > 0
}

func (w *witness) own(sql string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.learnt[sql] || ownStatement(sql)
}

func (w *witness) gates(pid string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pids[pid]
}

// subtransactions is how many were begun since the last call.
func (w *witness) subtransactions() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.below
	w.below = 0
	return n
}

// complaints are what the witness found since the last call.
func (w *witness) complaints() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	found := w.faults
	w.faults = nil
	return found
}

// sent are the client texts that passed since the last call.
func (w *witness) sent() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	texts := w.reached
	w.reached = nil
	return texts
}

// requireMarksAsLogged holds each row that may have been marked against what the log
// says became of it, and each transaction that the log names against the server.
func (r *redteam) requireMarksAsLogged() {
	r.t.Helper()
	w := r.witness
	w.mu.Lock()
	w.catchUp()
	texts, results, reasons, xids := maps.Clone(w.texts), maps.Clone(w.results), maps.Clone(w.reasons), maps.Clone(w.xids)
	w.mu.Unlock()
	ids := map[[32]byte]int{}
	for id := 1; id <= r.marks; id++ {
		ids[digestOfText(markOf(id))] = id
	}
	logged := map[int]bool{}
	for execution, digest := range texts {
		require.NotEmpty(r.t, results[execution], "%s has no result", execution)
		require.NotEqual(r.t, event.TypeExecutionStateUnknown, results[execution])
		if id := ids[digest]; id != 0 && results[execution] == event.TypeExecutionSuccess {
			logged[id] = true
		}
	}
	for xid, executions := range xids {
		status := r.look(fmt.Sprintf("SELECT pg_xact_status('%d'::xid8)", xid))
		for _, execution := range executions {
			if reasons[execution] == "rolled_back" {
				require.Equal(r.t, "aborted", status, "transaction %d", xid)
			}
		}
		if slices.ContainsFunc(executions, func(e string) bool { return results[e] == event.TypeExecutionSuccess }) {
			require.Equal(r.t, "committed", status, "transaction %d", xid)
		}
	}
	marked := map[int]bool{}
	for _, row := range r.mustExec(r.watcher, "SELECT id FROM orders WHERE status <> 'new'") {
		id, err := strconv.Atoi(string(row[0]))
		require.NoError(r.t, err)
		marked[id] = true
	}
	require.Equal(r.t, slices.Sorted(maps.Keys(marked)), slices.Sorted(maps.Keys(logged)), "rows that are marked, and those of which the log says so")
}
