package projections

import (
	"encoding/binary"
	"math"
	"slices"

	"writegate/eventlog/event"
)

// The audit index answers "which events have this actor, this type, ...?". It
// is cut into blocks of 512 events. A block in the making lives in memory, as
// the values of its events; when it is complete, one posting is written for
// each field and value that occurs in it: the positions of its events. So the
// hot path pays for memory alone, and postings depend on the events of their
// block and on nothing else.

// A field is one filter of GET /audit (spec/decisions.md part 7).
type field uint8

// The fields of the index. Their order is part of the keys.
const (
	fieldEventType field = iota
	fieldFingerprint
	fieldActor
	fieldApp
	fieldTenant
	fieldEnv
	fieldDecision
	fieldApprovalID
	fieldSessionID
	fieldPolicyVersion
	fieldExecutionID
	fieldRequestID
	fieldAgentID
	fieldProject
	fieldCredential
	fieldAgentPolicy
	fieldTool
	fieldTelemetryType
	fieldCount
)

const blockEvents = 512

// blockOf is the number of the block that an event belongs to.
func blockOf(seq uint64) uint32 { return uint32((seq - 1) / blockEvents) }

// firstOf is the first event of a block.
func firstOf(block uint32) uint64 { return uint64(block)*blockEvents + 1 }

// An entry is what the index knows about one event.
type entry struct {
	at     int64 // ns since 1970
	values [fieldCount]string
	more   []tag // further values of the same fields, from the payload
}

// A tag is one value of a field that may have several.
type tag struct {
	field field
	value string
}

func (e *entry) has(f field, value string) bool {
	if e.values[f] == value {
		return true
	}
	return slices.Contains(e.more, tag{f, value})
}

// A block is the last one, in the making. Entries are only ever appended, so
// the slice may be shared with views.
type block struct {
	no      uint32
	entries []entry
}

// take fills an entry that is zero. It is large, and not worth copies.
func (n *entry) take(e *event.Envelope) {
	c, v := &e.Context, &n.values
	n.more, n.at = tagsOf(e), e.Time.UnixNano()
	v[fieldEventType], v[fieldFingerprint], v[fieldDecision] = string(e.Type), c.Fingerprint, c.Decision
	v[fieldActor], v[fieldApp], v[fieldTenant], v[fieldEnv] = c.Actor, c.App, c.Tenant, c.Env
	v[fieldApprovalID], v[fieldSessionID], v[fieldPolicyVersion] = c.ApprovalID, c.SessionID, c.PolicyVersion
	v[fieldExecutionID], v[fieldRequestID] = c.ExecutionID, c.RequestID
	v[fieldAgentID], v[fieldProject] = c.AgentID, c.Project
}

// add takes one event into the block that follows or continues b.
func (b *block) add(e *event.Envelope) {
	if no := blockOf(e.Seq); no != b.no || b.entries == nil {
		*b = block{no: no, entries: make([]entry, 0, blockEvents)}
	}
	b.entries = append(b.entries, entry{})
	b.entries[len(b.entries)-1].take(e)
}

// index takes one event and writes the block that it completes.
func (t *tx) index(e *event.Envelope) {
	t.block.add(e)
	if len(t.block.entries) == blockEvents {
		t.writeBlock(&t.block)
		t.block = block{no: t.block.no + 1, entries: t.again(t.block.entries)}
	}
}

// again gives the memory of a complete block to the next one where no view can
// be looking at it.
func (t *tx) again(entries []entry) []entry {
	if !t.hidden() {
		return nil
	}
	return entries[:0]
}

// hidden reports whether no view shows the block and the piece of the tree in the
// making: they are appended to, and never changed, for those that would.
func (t *tx) hidden() bool { return t.load != nil && t.load.hidden }

func (t *tx) writeBlock(b *block) {
	least, greatest := int64(math.MaxInt64), int64(math.MinInt64)
	times := make([]byte, 0, 8*len(b.entries))
	previous := int64(0)
	for i := range b.entries {
		at := b.entries[i].at
		least, greatest = min(least, at), max(greatest, at)
		times = binary.AppendVarint(times, at-previous)
		previous = at
	}
	t.set(blockKey(keyBlock, b.no), encodeSpan(least, greatest))
	t.set(blockKey(keyTimes, b.no), times)

	p := &t.space.scratch.postings
	key, value := make([]byte, 0, 128), make([]byte, 0, bitmapLen)
	for f, used := range b.used() {
		if !used {
			continue
		}
		p.gather(b, field(f))
		for i := range p.lists { // in any order: Pebble sorts, and keys do not repeat
			key = appendPostingKey(key[:0], field(f), p.values[i], b.no)
			value = appendPosting(value[:0], p.lists[i])
			t.set(key, value)
		}
	}
}

// used tells which fields some event of the block has: most have few.
func (b *block) used() (used [fieldCount]bool) {
	for i := range b.entries {
		e := &b.entries[i]
		for f := range e.values {
			used[f] = used[f] || e.values[f] != ""
		}
		for _, m := range e.more {
			used[m.field] = true
		}
	}
	return used
}

// postings are the positions of one field's values in a block.
type postings struct {
	at     map[string]int // by value, its place in what follows
	values []string
	lists  [][]uint16
}

// gather begins anew with a field. Neighbours often have the same value, as the
// events of one statement do, and are not looked up again.
func (p *postings) gather(b *block, f field) {
	clear(p.at)
	p.values, p.lists = p.values[:0], p.lists[:0]
	last := -1
	for i := range b.entries {
		v := b.entries[i].values[f]
		if v != "" {
			if last < 0 || p.values[last] != v {
				last = p.place(v)
			}
			p.lists[last] = append(p.lists[last], uint16(i))
		}
		for _, m := range b.entries[i].more {
			if m.field == f && m.value != v {
				n := p.place(m.value)
				p.lists[n] = append(p.lists[n], uint16(i))
			}
		}
	}
}

// place is where a value stands, at the end if it is new.
func (p *postings) place(v string) int {
	n, ok := p.at[v]
	if !ok {
		n = len(p.values)
		p.at[v], p.values = n, append(p.values, v)
		if n < cap(p.lists) { // the list of a field before is used again
			p.lists = p.lists[:n+1]
			p.lists[n] = p.lists[n][:0]
		} else {
			p.lists = append(p.lists, nil)
		}
	}
	return n
}

func blockKey(prefix string, no uint32) []byte {
	return binary.BigEndian.AppendUint32([]byte(prefix), no)
}

// postingPrefix is a posting's key without the block. Values are ended by
// 00 01 and their own 00 bytes become 00 ff, so that no value is the beginning
// of another one's key.
func postingPrefix(f field, value string) []byte {
	return appendPostingPrefix(make([]byte, 0, len(keyPosting)+len(value)+8), f, value)
}

func appendPostingPrefix(k []byte, f field, value string) []byte {
	k = append(append(k, keyPosting...), byte(f))
	for i := range len(value) {
		if k = append(k, value[i]); value[i] == 0 {
			k = append(k, 0xff)
		}
	}
	return append(k, 0, 1)
}

func appendPostingKey(dst []byte, f field, value string, no uint32) []byte {
	return binary.BigEndian.AppendUint32(appendPostingPrefix(dst, f, value), no)
}

func encodeSpan(least, greatest int64) []byte {
	b := binary.BigEndian.AppendUint64(nil, uint64(least))
	return binary.BigEndian.AppendUint64(b, uint64(greatest))
}

func decodeSpan(b []byte) (least, greatest int64, err error) {
	if len(b) != 16 {
		return 0, 0, errRecord
	}
	return int64(binary.BigEndian.Uint64(b)), int64(binary.BigEndian.Uint64(b[8:])), nil
}

func decodeTimes(b []byte) ([]int64, error) {
	times := make([]int64, 0, blockEvents)
	at := int64(0)
	for len(b) > 0 {
		d, n := binary.Varint(b)
		if n <= 0 || len(times) == blockEvents {
			return nil, errRecord
		}
		at += d
		times, b = append(times, at), b[n:]
	}
	return times, nil
}

// A bitmap holds the positions of events in a block.
type bitmap [blockEvents / 64]uint64

func (m *bitmap) add(i int) { m[i/64] |= 1 << (i % 64) }

func (m *bitmap) and(o *bitmap) {
	for i := range m {
		m[i] &= o[i]
	}
}

func (m *bitmap) or(o *bitmap) {
	for i := range m {
		m[i] |= o[i]
	}
}

func (m *bitmap) empty() bool { return *m == bitmap{} }

// full has all positions.
func full() (m bitmap) {
	for i := range m {
		m[i] = math.MaxUint64
	}
	return m
}

const bitmapLen = blockEvents / 8

// appendPosting writes a short list as 16-bit positions, which is what most
// values need, and a long one as a bitmap.
func appendPosting(b []byte, list []uint16) []byte {
	if 2*len(list) < bitmapLen {
		for _, i := range list {
			b = binary.BigEndian.AppendUint16(b, i)
		}
		return b
	}
	var m bitmap
	for _, i := range list {
		m.add(int(i))
	}
	for _, w := range m {
		b = binary.BigEndian.AppendUint64(b, w)
	}
	return b
}

func decodePosting(b []byte) (m bitmap, err error) {
	if len(b) == bitmapLen {
		for i := range m {
			m[i] = binary.BigEndian.Uint64(b[8*i:])
		}
		return m, nil
	}
	if len(b)%2 != 0 || len(b) > bitmapLen {
		return m, errRecord
	}
	for ; len(b) > 0; b = b[2:] {
		i := binary.BigEndian.Uint16(b)
		if i >= blockEvents {
			return m, errRecord
		}
		m.add(int(i))
	}
	return m, nil
}
