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
//
// Who reads a draft uses the methods Parse, Get and Fields and never looks at
// Payload itself: it is nil in what New made and a Decoder gave, which keep the bytes
// instead. All of this package does so; where Payload is set, it counts and the bytes
// do not.
type Draft struct {
	ID          ID
	Type        Type
	TypeVersion uint16 // from 1
	Time        time.Time
	Context     Context
	Payload     Payload // to be written; to be read by the methods alone

	packed string // the payload's bytes, a whole checked map; "" = there are none
}

// With is d with another payload, which may be empty.
func (d Draft) With(p Payload) Draft {
	d.Payload, d.packed = p, ""
	return d
}

// bytes gives the payload's bytes, "" where Payload is what counts.
func (d *Draft) bytes() string {
	if d.Payload != nil {
		return ""
	}
	return d.packed
}

// Parse reads the payload into the Go struct of its type, as p.Parse does; p must
// be new. It does not look whether p is of the draft's type: see Open.
func (d *Draft) Parse(p Typed) error {
	if packed := d.bytes(); packed != "" {
		return readPacked(packed, p)
	}
	return p.Parse(d.Payload)
}

// Fields gives the payload whole. The caller must not change it.
func (d *Draft) Fields() Payload {
	packed := d.bytes()
	if packed == "" {
		return d.Payload
	}
	r := reader{record: packed}
	return r.payload()
}

// Get finds the value under a key of the payload, or of maps inside each other, and
// reads no more than that.
func (d *Draft) Get(key string, inside ...string) (v Value, ok bool) {
	packed := d.bytes()
	if packed == "" {
		v, ok = d.Payload.Get(key)
		for _, next := range inside {
			fields, _ := v.AsMap()
			v, ok = fields.Get(next)
		}
		return v, ok
	}
	r := reader{record: packed}
	for n := r.length(r.head(), &maps); n > 0 && r.err == nil; n-- {
		at := r.rawText(r.head())
		if at > key {
			break // keys are sorted
		}
		if at == key && len(inside) > 0 {
			key, inside = inside[0], inside[1:]
			n = 1 + r.length(r.head(), &maps)
			continue
		}
		if at == key {
			r.value(&v, payloadDepth)
			return v, r.err == nil
		}
		r.at = skimValue(packed, r.at, payloadDepth)
	}
	return Value{}, false
}

// An Envelope is an event as readers get it: the draft with its place in the chain.
type Envelope struct {
	Seq          uint64
	PreviousHash [32]byte
	Hash         [32]byte
	Draft
}

// New makes the draft of an event of p's type, in the version that is written
// today, with a fresh id. Where p holds what is withheld from everybody and has no
// salt yet, New puts one into p.
func New(at time.Time, ctx Context, p Typed) Draft {
	if s, ok := p.(salted); ok {
		s.draw()
	}
	d := Draft{ID: NewID(at), Type: p.EventType(), TypeVersion: versionOf(p.EventType()), Time: at, Context: ctx}
	var err error
	if d.packed, err = pack(p); err != nil {
		return d.With(p.Fields()) // which Encode refuses
	}
	return d
}
