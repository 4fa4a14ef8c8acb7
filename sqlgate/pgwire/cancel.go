package pgwire

import (
	"context"
	"crypto/subtle"
	"encoding/binary"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/golang-lru/v2/simplelru"

	"writegate/sqlgate"
)

// Limits of CancelRequests (spec/gate.md part 8).
const (
	cancelsPerSecond = 128 // of one address
	cancelDuplicate  = 250 * time.Millisecond
	cancelKeyLife    = 24 * time.Hour

	cancelsWritten    = 10   // rejections of one address that are written one by one in a second
	cancelsWrittenAll = 100  // of all addresses: a flood from everywhere must not fill the log either
	cancelAddresses   = 4096 // that are told apart
)

// Causes of a rejection, as evidence names them. The Wire has more.
const (
	CancelUnknownKey   = "unknown_key"
	CancelExpiredKey   = "expired_key"
	CancelOtherAddress = "other_address"
	CancelRate         = "rate_limit"
	CancelDuplicate    = "duplicate"
	CancelWithoutTLS   = "tls_required"
)

// A CancelRequest is one as evidence names it.
type CancelRequest struct {
	ID      string // a UUIDv7, the same in all of its evidence
	Address string
	Login   sqlgate.WireLogin // of the connection whose key it shows; empty where there is none
}

func newCancelRequest(from string) CancelRequest {
	return CancelRequest{ID: uuid.Must(uuid.NewV7()).String(), Address: from}
}

// CancelEvidence writes what became of CancelRequests into the event log.
type CancelEvidence interface {
	// Received comes first. Where it fails nothing is forwarded.
	Received(context.Context, CancelRequest) error
	Forwarded(ctx context.Context, r CancelRequest, executionID string) error
	// Unsent is of one that ends what had not been sent to the database; executionID is
	// "" where no execution was begun.
	Unsent(ctx context.Context, r CancelRequest, executionID string) error
	// Rejected counts what was not written one by one.
	Rejected(ctx context.Context, r CancelRequest, cause string, count int) error
}

// A registry knows the keys of the open connections. It is in memory alone: a
// key is dead with its connection, with the gate, or after 24 hours.
type registry struct {
	now      func() time.Time
	evidence CancelEvidence
	log      *slog.Logger
	requests atomic.Int64
	telling  sync.WaitGroup // timers that are set, until they have told

	mu        sync.Mutex // guards what follows
	keys      map[uint32]*cancelEntry
	addresses *simplelru.LRU[netip.Addr, *cancelWindow]
	others    cancelWindow // of all addresses together, as far as they are not told apart
	closed    bool
}

// A cancelEntry is one connection's key.
type cancelEntry struct {
	secret []byte
	wire   Wire
	login  sqlgate.WireLogin
	addr   netip.Addr
	made   time.Time
	last   time.Time // of its last request
}

// A cancelWindow counts one address's requests within a second.
type cancelWindow struct {
	begin    time.Time
	requests int
	rejected int            // written one by one
	silent   map[string]int // rejected and not written yet, by cause
	timer    *time.Timer    // writes the silent ones; nil: none is set
}

func newRegistry(now func() time.Time, evidence CancelEvidence, log *slog.Logger) *registry {
	r := &registry{now: now, evidence: evidence, log: log, keys: map[uint32]*cancelEntry{}}
	r.addresses, _ = simplelru.NewLRU(cancelAddresses, r.forget) // fails for a size of zero alone
	return r
}

// Lengths of secrets: protocol 3.2 brought longer ones.
const (
	secretLen   = 4
	secretLen32 = 32
)

// add makes a key for a connection.
func (r *registry) add(c *conn) cancelKey {
	key := cancelKey{secret: randomBytes(secretLen)}
	if c.version == version32 {
		key.secret = randomBytes(secretLen32)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for key.pid == 0 || r.keys[key.pid] != nil {
		key.pid = binary.BigEndian.Uint32(randomBytes(4)) >> 1 // clients take it for a signed number
	}
	r.keys[key.pid] = &cancelEntry{secret: key.secret, wire: c.wire, login: c.login, addr: c.addr, made: r.now()}
	return key
}

func (r *registry) remove(pid uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.keys, pid)
}

// request takes a CancelRequest. Whoever sent it learns nothing: the connection
// is closed in every case.
func (r *registry) request(ctx context.Context, key cancelKey, from netip.Addr, withoutTLS bool) {
	r.requests.Add(1)
	entry, cause, quiet := r.judge(key, from, withoutTLS)
	if cause == "" && !entry.wire.Runs() {
		cause = sqlgate.CancelNothingRuns
		r.mu.Lock()
		quiet = r.flood(from, r.window(from, r.now()), cause)
		r.mu.Unlock()
	}
	if quiet {
		return
	}
	seen := newCancelRequest(from.String())
	if entry != nil {
		seen.Login = entry.login
	}
	ctx = context.WithoutCancel(ctx)
	if err := r.evidence.Received(ctx, seen); err != nil {
		r.log.Error("a cancel request is not forwarded, because it could not be written to the event log", "cause", err.Error())
		return
	}
	if cause == "" {
		became := entry.wire.Cancel(ctx)
		switch {
		case became.Unsent:
			r.note(r.evidence.Unsent(ctx, seen, became.ExecutionID))
			return
		case became.Cause == "":
			r.note(r.evidence.Forwarded(ctx, seen, became.ExecutionID))
			return
		}
		cause = became.Cause
	}
	r.note(r.evidence.Rejected(ctx, seen, cause, 1))
}

func (r *registry) note(err error) {
	if err != nil {
		r.log.Error("what became of a cancel request could not be written to the event log", "cause", err.Error())
	}
}

// judge decides from memory. quiet says that it is a rejection of a flood, which
// is counted and written once a second.
func (r *registry) judge(key cancelKey, from netip.Addr, withoutTLS bool) (entry *cancelEntry, cause string, quiet bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	window := r.window(from, now)
	window.requests++
	found := r.keys[key.pid]
	secret := make([]byte, secretLen32) // one that nobody has, so that an unknown pid takes as long
	if found != nil {
		secret = found.secret
	}
	right := subtle.ConstantTimeCompare(secret, key.secret) == 1 && found != nil
	switch {
	case withoutTLS:
		cause = CancelWithoutTLS
	case window.requests > cancelsPerSecond:
		cause = CancelRate
	case !right:
		cause = CancelUnknownKey
	case now.Sub(found.made) >= cancelKeyLife:
		cause = CancelExpiredKey
	case found.addr != from:
		cause = CancelOtherAddress
	case !found.last.IsZero() && now.Sub(found.last) < cancelDuplicate:
		cause = CancelDuplicate
	default:
		found.last = now
		return found, "", false
	}
	if right {
		entry = found
	}
	return entry, cause, r.flood(from, window, cause)
}

// window is the running second of an address.
func (r *registry) window(from netip.Addr, now time.Time) *cancelWindow {
	w, known := r.addresses.Get(from)
	if !known {
		w = &cancelWindow{begin: now}
		r.addresses.Add(from, w)
	}
	if age := now.Sub(w.begin); age >= time.Second || age < 0 {
		w.begin, w.requests, w.rejected = now, 0, 0
	}
	return w
}

// flood counts a rejection, and reports whether it is one of too many to be
// written by itself.
func (r *registry) flood(from netip.Addr, w *cancelWindow, cause string) bool {
	if age := r.now().Sub(r.others.begin); age >= time.Second || age < 0 {
		r.others.begin, r.others.rejected = r.now(), 0
	}
	switch {
	case w.rejected >= cancelsWritten:
		r.count(from.String(), w, map[string]int{cause: 1})
		return true
	case r.others.rejected >= cancelsWrittenAll:
		r.count(otherAddresses, &r.others, map[string]int{cause: 1})
		return true
	}
	w.rejected++
	r.others.rejected++
	return false
}

// otherAddresses is the address of what is not told apart.
const otherAddresses = "(others)"

// count keeps rejections until a second is over.
func (r *registry) count(from string, w *cancelWindow, causes map[string]int) {
	if w.silent == nil {
		w.silent = map[string]int{}
	}
	for cause, n := range causes {
		w.silent[cause] += n
	}
	if w.timer == nil && !r.closed {
		r.telling.Add(1)
		w.timer = time.AfterFunc(time.Second, func() { defer r.telling.Done(); r.tell(from, w) })
	}
}

// tell writes the rejections that were only counted.
func (r *registry) tell(from string, w *cancelWindow) {
	r.mu.Lock()
	causes := w.silent
	w.silent, w.timer = nil, nil
	r.mu.Unlock()
	for _, cause := range slices.Sorted(maps.Keys(causes)) {
		r.note(r.evidence.Rejected(context.Background(), newCancelRequest(from), cause, causes[cause]))
	}
}

// forget is an address that makes room for another: what was counted of it is
// told with the others.
func (r *registry) forget(_ netip.Addr, w *cancelWindow) {
	if w.timer != nil && w.timer.Stop() {
		r.telling.Done()
		r.count(otherAddresses, &r.others, w.silent)
	}
}

// close writes what was only counted, before the log is closed.
func (r *registry) close() {
	r.mu.Lock()
	r.closed = true
	left := map[string]*cancelWindow{otherAddresses: &r.others}
	for _, addr := range r.addresses.Keys() {
		w, _ := r.addresses.Peek(addr)
		left[addr.String()] = w
	}
	for from, w := range left {
		if w.timer == nil || !w.timer.Stop() {
			delete(left, from)
		}
	}
	r.mu.Unlock()
	for from, w := range left {
		r.tell(from, w)
		r.telling.Done()
	}
	r.telling.Wait()
}
