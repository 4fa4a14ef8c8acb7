package event

import "time"

// An ID names one event: a UUIDv7 (RFC 9562), written `evt_` and the
// lower-case UUID in JSON and as its 16 bytes in the log.
type ID [16]byte

// A Type is an event type of the contract (spec/gate.md part 6 and
// spec/decisions.md part 7): a fact in the past tense.
type Type string

// A Draft is an event that is not yet appended: it has no sequence number and
// no hash.
type Draft struct {
	ID          ID
	Type        Type
	TypeVersion uint16 // from 1
	Time        time.Time
	Context     Context
	Payload     Payload
}

// An Envelope is an event as readers get it: the draft with its place in the chain.
type Envelope struct {
	Seq          uint64
	PreviousHash [32]byte
	Hash         [32]byte
	Draft
}

// New makes the draft of an event of p's type, in the version that is written
// today, with a fresh id.
func New(at time.Time, ctx Context, p Typed) Draft {
	return Draft{ID: NewID(at), Type: p.EventType(), TypeVersion: versionOf(p.EventType()), Time: at, Context: ctx, Payload: p.Fields()}
}
