package event

import (
	"encoding/hex"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// Prefixes of the ids of the service (spec/decisions.md part 1).
const (
	prefixEvent     = "evt_"
	prefixRequest   = "req_"
	prefixApproval  = "apr_"
	prefixExecution = "exe_"
	prefixError     = "err_"
	prefixAgent     = "agt_"
	prefixBlock     = "blk_"
	prefixWire      = "wir_"
	prefixGrant     = "gra_"
)

const (
	uuidLen   = 36
	prefixLen = 4
)

// NewID makes the id of an event that happens at t: a UUIDv7 (RFC 9562, 5.7)
// whose first 48 bits are t in milliseconds and whose other free bits are random.
func NewID(t time.Time) ID { return newUUIDv7(t) }

// NewRequestID makes a `req_` id for a request that arrived at t.
func NewRequestID(t time.Time) string { return newText(prefixRequest, t) }

// NewApprovalID makes an `apr_` id.
func NewApprovalID(t time.Time) string { return newText(prefixApproval, t) }

// NewExecutionID makes an `exe_` id.
func NewExecutionID(t time.Time) string { return newText(prefixExecution, t) }

// NewBlockID makes a `blk_` id, which the dispatches of one transaction share.
func NewBlockID(t time.Time) string { return newText(prefixBlock, t) }

// NewWireID makes a `wir_` id for a connection of the wire listener.
func NewWireID(t time.Time) string { return newText(prefixWire, t) }

// NewGrantID makes a `gra_` id.
func NewGrantID(t time.Time) string { return newText(prefixGrant, t) }

// NewErrorID makes an `err_` id, the one that an answer and the operational log share.
func NewErrorID(t time.Time) string { return newText(prefixError, t) }

// An IDKind under /v1 is the prefix of an id under /v1, without its underscore.
type IDKind string

// Kinds of ids under /v1 (spec/decisions.md part 1).
const (
	AgentIDKind        IDKind = "agt"
	AgentPolicyIDKind  IDKind = "pol"
	ApplicationIDKind  IDKind = "apl"
	TokenIDKind        IDKind = "tok"
	SubjectIDKind      IDKind = "sub"
	ToolIDKind         IDKind = "tool"
	VerificationIDKind IDKind = "ver"
	BatchIDKind        IDKind = "bat"
)

// NewIDOf makes an id of a kind, for a moment.
func NewIDOf(kind IDKind, t time.Time) string {
	return string(kind) + "_" + newText(prefixEvent, t)[prefixLen:]
}

// String is the id as readers see it: `evt_` and the lower-case UUID.
func (id ID) String() string { return prefixed(prefixEvent, id) }

// ParseID reads what String writes and nothing else.
func ParseID(s string) (ID, error) {
	id, ok := parsePrefixed(prefixEvent, s)
	if !ok {
		return ID{}, fmt.Errorf("event id %.60q: not evt_ and a lower-case UUID", s)
	}
	return id, nil
}

// newUUIDv7 takes the caller's moment instead of reading a clock, so that all
// ids of one command carry the moment at which it was decided.
func newUUIDv7(t time.Time) ID {
	id := ID(uuid.New()) // version 4: 122 random bits, from the operating system
	ms := uint64(t.UnixMilli())
	for i := range 6 {
		id[i] = byte(ms >> (40 - 8*i))
	}
	id[6] = id[6]&0x0f | 0x70
	return id
}

func newText(prefix string, t time.Time) string { return prefixed(prefix, newUUIDv7(t)) }

func prefixed(prefix string, id ID) string {
	var b [prefixLen + uuidLen]byte
	copy(b[:], prefix)
	writeUUID(b[prefixLen:], id)
	return string(b[:])
}

func writeUUID(dst []byte, id ID) {
	hex.Encode(dst[0:8], id[0:4])
	hex.Encode(dst[9:13], id[4:6])
	hex.Encode(dst[14:18], id[6:8])
	hex.Encode(dst[19:23], id[8:10])
	hex.Encode(dst[24:36], id[10:16])
	dst[8], dst[13], dst[18], dst[23] = '-', '-', '-', '-'
}

// parsePrefixed reads prefix + lower-case UUID in the 8-4-4-4-12 form.
func parsePrefixed(prefix, s string) (ID, bool) {
	var id ID
	if len(s) != prefixLen+uuidLen || s[:prefixLen] != prefix {
		return id, false
	}
	u := s[prefixLen:]
	n := 0
	for i := 0; i < uuidLen; {
		if i == 8 || i == 13 || i == 18 || i == 23 {
			if u[i] != '-' {
				return ID{}, false
			}
			i++
			continue
		}
		hi, lo := lowerHex(u[i]), lowerHex(u[i+1])
		if hi > 15 || lo > 15 {
			return ID{}, false
		}
		id[n] = hi<<4 | lo
		n++
		i += 2
	}
	return id, true
}

// lowerHex gives the value of a lower-case hex digit, or 0xff.
func lowerHex(c byte) byte {
	switch {
	case c >= '0' && c <= '9':
		return c - '0'
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10
	}
	return 0xff
}
