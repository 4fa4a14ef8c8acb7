package evidence

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strconv"
	"time"

	"writegate/eventlog/checkpoint"
	"writegate/eventlog/event"
	"writegate/eventlog/frame"
)

// Type is the bundle_type of the one version of the format (spec/gate.md 2.7).
const Type = "gate.evidence_bundle.v1"

// Keys of a bundle in their order. A bundle has no white space, so they and the
// brackets around them are all there is besides the values.
const (
	keyType     = `{"bundle_type":`
	keyLogID    = `,"log_id":`
	keyOrigin   = `,"origin":`
	keyStart    = `,"start_seq":`
	keyEnd      = `,"end_seq":`
	keyCount    = `,"payload_count":`
	keyPrevious = `,"previous_hash":`
	keyFirst    = `,"first_event_hash":`
	keyLast     = `,"last_event_hash":`
	keyGenesis  = `,"genesis_header":`
	keyReason   = `,"reason":`
	keyCreated  = `,"created_at":`
	keySigning  = `,"signing":{"algorithm":"` + checkpoint.Algorithm + `","key_id":`
	keyPublic   = `,"public_key":`
	keySigned   = `},"signature":`
	keyNote     = `,"checkpoint":`
	keyProofs   = `,"inclusion_proofs":[`
	keyPayloads = `],"payloads":[`

	keyProofSeq  = `{"seq":`
	keyTreeSize  = `,"tree_size":`
	keyHashes    = `,"hashes":[`
	closeProof   = `]}`
	keyItemSeq   = `{"seq":`
	keyItemPrev  = `,"previous_hash":`
	keyItemHash  = `,"event_hash":`
	keyRecord    = `,"record":`
	keyEvent     = `,"event":`
	closeItem    = `}`
	closePayload = `]}`
)

// A head is everything of a bundle before its payloads.
type head struct {
	logID     [16]byte
	origin    string
	start     uint64
	end       uint64
	count     uint64
	previous  [32]byte
	first     [32]byte
	last      [32]byte
	genesis   []byte // segment 0's header, only when start is 1
	reason    string
	created   string
	signed    bool // then the next four are there
	keyID     string
	public    checkpoint.PublicKey
	signature [ed25519.SignatureSize]byte
	note      string
	proofs    []inclusion
}

// An inclusion shows that one event is in the tree of the checkpoint (RFC 6962,
// 2.1.1).
type inclusion struct {
	seq, size uint64
	hashes    checkpoint.Proof // from the leaf's neighbour up
}

// append writes the head up to the bracket that opens the payloads.
func (h *head) append(b []byte) []byte {
	b = event.AppendText(append(b, keyType...), Type)
	b = appendHex(append(b, keyLogID...), h.logID[:])
	b = event.AppendText(append(b, keyOrigin...), h.origin)
	b = strconv.AppendUint(append(b, keyStart...), h.start, 10)
	b = strconv.AppendUint(append(b, keyEnd...), h.end, 10)
	b = strconv.AppendUint(append(b, keyCount...), h.count, 10)
	b = appendHex(append(b, keyPrevious...), h.previous[:])
	b = appendHex(append(b, keyFirst...), h.first[:])
	b = appendHex(append(b, keyLast...), h.last[:])
	if h.start == 1 {
		b = appendBase64(append(b, keyGenesis...), h.genesis)
	}
	b = event.AppendText(append(b, keyReason...), h.reason)
	b = event.AppendText(append(b, keyCreated...), h.created)
	if h.signed {
		b = event.AppendText(append(b, keySigning...), h.keyID)
		b = appendBase64(append(b, keyPublic...), h.public[:])
		b = appendBase64(append(b, keySigned...), h.signature[:])
		b = event.AppendText(append(b, keyNote...), h.note)
	}
	b = append(b, keyProofs...)
	for i := range h.proofs {
		b = h.proofs[i].append(b, i > 0)
	}
	return append(b, keyPayloads...)
}

func (p *inclusion) append(b []byte, comma bool) []byte {
	if comma {
		b = append(b, ',')
	}
	b = strconv.AppendUint(append(b, keyProofSeq...), p.seq, 10)
	b = strconv.AppendUint(append(b, keyTreeSize...), p.size, 10)
	b = append(b, keyHashes...)
	for i := range p.hashes {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendBase64(b, p.hashes[i][:])
	}
	return append(b, closeProof...)
}

func appendHex(b, raw []byte) []byte {
	return append(hex.AppendEncode(append(b, '"'), raw), '"')
}

func appendBase64(b, raw []byte) []byte {
	return append(base64.StdEncoding.AppendEncode(append(b, '"'), raw), '"')
}

// message is the text that is signed: one value a line, so that it can be put
// together with any tool. The last event's hash binds every record.
func (h *head) message() []byte {
	reason, note := sha256.Sum256([]byte(h.reason)), sha256.Sum256([]byte(h.note))
	return fmt.Appendf(nil, "%s\n%x\n%s\n%d\n%d\n%d\n%x\n%x\n%x\n%s\n%x\n%x\n%s\n", Type, h.logID, h.origin, h.start, h.end, h.count,
		h.previous, h.first, h.last, h.created, reason, note, h.keyID)
}

// appendItem writes one payload; text is the event's readable form.
func appendItem(b []byte, f *frame.Frame, text []byte) []byte {
	b = strconv.AppendUint(append(b, keyItemSeq...), f.Seq, 10)
	b = appendHex(append(b, keyItemPrev...), f.PreviousHash[:])
	b = appendHex(append(b, keyItemHash...), f.Hash[:])
	b = appendBase64(append(b, keyRecord...), f.Record)
	b = append(append(b, keyEvent...), text...)
	return append(b, closeItem...)
}

// readable renders a frame's event, or says why its record is none.
func readable(b []byte, f *frame.Frame) ([]byte, error) {
	d, err := event.Decode(f.Record)
	if err != nil {
		return b, err
	}
	return event.AppendJSON(b, &event.Envelope{Seq: f.Seq, PreviousHash: f.PreviousHash, Hash: f.Hash, Draft: d}), nil
}

// parseHead takes a head in its one form. What the values say is judged later.
func (r *reader) parseHead() (h head) {
	r.want(keyType)
	if t := r.text(64); r.err == nil && string(t) != Type {
		r.fail("bundle_type %q is not known, only %q", t, Type)
	}
	r.want(keyLogID)
	r.hex(h.logID[:])
	r.want(keyOrigin)
	h.origin = string(r.text(frame.MaxOrigin))
	r.want(keyStart)
	h.start = r.number()
	r.want(keyEnd)
	h.end = r.number()
	r.want(keyCount)
	h.count = r.number()
	r.want(keyPrevious)
	h.previous = r.hash()
	r.want(keyFirst)
	h.first = r.hash()
	r.want(keyLast)
	h.last = r.hash()
	if h.start == 1 {
		r.want(keyGenesis)
		h.genesis = r.base64(nil, frame.HeaderSize)
	}
	r.want(keyReason)
	h.reason = string(r.text(MaxReason))
	r.want(keyCreated)
	h.created = r.moment()
	if r.is(keySigning[:len(`,"signing":`)]) {
		h.signed = true
		r.signing(&h)
	}
	r.want(keyProofs)
	for !r.is("]") && r.err == nil {
		h.proofs = append(h.proofs, r.proof(len(h.proofs)))
	}
	r.want(keyPayloads)
	return h
}

func (r *reader) signing(h *head) {
	r.want(keySigning)
	h.keyID = string(r.text(64))
	r.want(keyPublic)
	r.exactly(h.public[:])
	r.want(keySigned)
	r.exactly(h.signature[:])
	r.want(keyNote)
	h.note = string(r.text(checkpoint.MaxNote))
}

// exactly takes base64 of len(dst) bytes.
func (r *reader) exactly(dst []byte) {
	b := r.base64(nil, len(dst))
	if r.err == nil && len(b) != len(dst) {
		r.fail("%d bytes of base64 where %d belong", len(b), len(dst))
	}
	copy(dst, b)
}

func (r *reader) moment() string {
	s := string(r.text(64))
	if t, err := time.Parse(time.RFC3339Nano, s); r.err == nil && (err != nil || event.Timestamp(t) != s) {
		r.fail("%.64q is not RFC 3339 in UTC with nine decimals", s)
	}
	return s
}

func (r *reader) proof(before int) (p inclusion) {
	if before == 2 {
		r.fail("more than two inclusion proofs")
	}
	if before > 0 {
		r.want(",")
	}
	r.want(keyProofSeq)
	p.seq = r.number()
	r.want(keyTreeSize)
	p.size = r.number()
	r.want(keyHashes)
	for !r.is("]") && r.err == nil {
		if len(p.hashes) > 0 {
			r.want(",")
		}
		if len(p.hashes) == maxProof {
			r.fail("a proof of more than %d hashes", maxProof)
		}
		var hash [32]byte
		r.exactly(hash[:])
		p.hashes = append(p.hashes, hash)
	}
	r.want(closeProof)
	return p
}

// item takes one payload apart: the frame, and the event's text as it stands
// there. Both are valid until the next item; record is where the bytes go.
func (r *reader) item(before uint64, record []byte) (f frame.Frame, text []byte) {
	if before > 0 {
		r.want(",")
	}
	r.want(keyItemSeq)
	f.Seq = r.number()
	r.want(keyItemPrev)
	f.PreviousHash = r.hash()
	r.want(keyItemHash)
	f.Hash = r.hash()
	r.want(keyRecord)
	f.Record = r.base64(record[:0], frame.MaxRecord)
	r.want(keyEvent)
	text = r.object(MaxLine)
	r.want(closeItem)
	return f, text
}
