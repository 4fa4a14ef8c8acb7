package sqlgate

import (
	"sync"

	"writegate/commands/fault"
)

// What the connections of one client hold together, and those of all: each has its own
// bounds, and a client has many of them.
const (
	wireClientBytes = 256 << 20
	wireClients     = 4 // times that, of all
)

// wireShares count, by client, how many bytes of memory the statements and portals of
// wire connections take, and the answers that were not read.
type wireShares struct {
	each int64

	mu  sync.Mutex
	all int64
	of  map[string]int64
}

// newWireShares gives one client the bytes of eight results at least.
func newWireShares(resultBytes int64) *wireShares {
	return &wireShares{each: max(wireClientBytes, 8*resultBytes), of: map[string]int64{}}
}

// move changes what a connection holds from before to now. What is there already
// counts in any case; else it is false where that is more than there is for its
// client, and nothing was changed.
func (s *wireShares) move(client string, before, now int64, isThere bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	more := now - before
	if !isThere && more > 0 && (s.of[client]+more > s.each || s.all+more > wireClients*s.each) {
		return false
	}
	s.all += more
	if s.of[client] += more; s.of[client] == 0 {
		delete(s.of, client)
	}
	return true
}

// hold counts what the connection is about to keep, or refuses it.
func (w *Wire) hold(more int64) error { return w.count(w.prepared() + w.held(nil) + w.unread + more) }

func (w *Wire) count(now int64) error {
	if shares := w.gate.wireShares; !shares.move(w.login.Client, w.holds, now, false) {
		return fault.New(fault.SessionLimitExceeded, "The connections of this client, or of all, hold as much memory as they may. Close statements and portals that are no longer needed, or connections.").
			With("limit", "client_bytes").With("max", shares.each)
	}
	w.holds = now
	return nil
}

// leastResult is what there has to be for a result that a portal keeps, and in whose
// steps results are counted while they come.
const leastResult = 64 << 10

// Unread counts the bytes of answers that wait for the client to read them. What the
// client has no room for is session_limit_exceeded, and ends the statement.
func (w *Wire) Unread(bytes int64) error {
	bytes = bytes / leastResult * leastResult // less than that lies in any socket
	if bytes == w.unread {
		return nil
	}
	if bytes < w.unread {
		w.gate.wireShares.move(w.login.Client, w.holds, w.holds-w.unread+bytes, true)
		w.holds -= w.unread - bytes
	} else if err := w.count(w.holds - w.unread + bytes); err != nil {
		return err
	}
	w.unread = bytes
	return nil
}

// settle counts what the connection holds.
func (w *Wire) settle() {
	now := w.prepared() + w.held(nil) + w.unread
	w.gate.wireShares.move(w.login.Client, w.holds, now, true)
	w.holds = now
}
