package event

import (
	"time"
)

// An ID names one event: a UUIDv7 (RFC 9562), written `evt_` and the
// lower-case UUID in JSON and as its 16 bytes in the log.
type ID [16]byte

// A Type is an event type of the contract (spec/gate.md part 6 and
// spec/decisions.md part 7): a fact in the past tense.
type Type string

// Context holds the fields that many event types share (design/eventlog.md
// part 3). Every field is text; "" means that it does not apply and is not stored.
type Context struct {
	PolicyVersion  string // 1
	Operation      string // 2: the statement's query type, else the command's name
	Fingerprint    string // 3
	Decision       string // 4
	Actor          string // 5
	App            string // 6
	Tenant         string // 7
	Env            string // 8
	SessionID      string // 9
	ApprovalID     string // 10
	RequestID      string // 11
	ExecutionID    string // 12
	ReasonCode     string // 13
	ErrorCode      string // 14
	FallbackReason string // 15
	EvidenceBundle string // 16
	Role           string // 17: in a request's first event only
	Host           string // 18: in a request's first event only
	Mode           string // 19: in startup and decision_recorded
}

// A Kind tells what a Value holds.
type Kind uint8

// The kinds of the canonical encoding. There is no nil and no float: what is
// absent is left out, and a fraction is the text of its JSON.
const (
	KindBool Kind = iota + 1
	KindInt
	KindString
	KindBytes
	KindList
	KindMap
)

// A Value is one value of a payload. The zero Value is invalid and is refused
// by the encoder.
type Value struct {
	kind Kind
	num  int64  // KindInt, and 0 or 1 for KindBool
	text string // KindString and KindBytes
	list []Value
	dict Payload
}

// A Field is one named value of a payload or of a map inside one.
type Field struct {
	Key   string
	Value Value
}

// A Payload is what an event type says beyond its context: fields with unique
// keys, sorted by the bytes of their keys.
type Payload []Field

// A Draft is an event that is not yet appended: it has no sequence number and
// no hash.
type Draft struct {
	ID          ID
	Type        Type
	TypeVersion uint16
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
