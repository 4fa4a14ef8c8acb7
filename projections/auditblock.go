package projections

import (
	"encoding/binary"
	"math"
	"slices"
	"strings"

	"writegate/eventlog/event"
)

// The audit index answers "which events have this actor, this type, ...?". It
// is cut into blocks of 512 events. A block in the making lives in memory, as
// the values of its events; when it is complete, one posting is written for
// each field and value that occurs in it: the positions of its events. So the
// hot path pays for memory alone, and postings depend on the events of their
// block and on nothing else.
//
// The tags of an event are written with it, each as a posting of its own: a batch of
// telemetry may have thousands, and those of 512 such batches would be gigabytes of
// memory and seconds of one fold.

// A field is one filter of GET /audit (spec/decisions.md part 7).
type field uint8

// The fields of the index. Their order is part of the keys; those of ids that grow
// with time come first.
const (
	fieldExecutionID field = iota
	fieldRequestID
	fieldEventType
	fieldFingerprint
	fieldActor
	fieldApp
	fieldTenant
	fieldEnv
	fieldDecision
	fieldApprovalID
	fieldSessionID
	fieldPolicyVersion
	fieldAgentID
	fieldProject
	fieldCredential
	fieldAgentPolicy
	fieldTool
	fieldTelemetryType
	fieldTable
	fieldRule
	fieldCount
)

const blockEvents = 512

// blockOf is the number of the block that an event belongs to.
func blockOf(seq uint64) uint32 { return uint32((seq - 1) / blockEvents) }

// firstOf is the first event of a block.
func firstOf(block uint32) uint64 { return uint64(block)*blockEvents + 1 }

// An entry is what the index knows about one event.
type entry struct {
	at     int64              // ns since 1970
	values [fieldCount]string // but for the tags of its payload; of several tables the first
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
	n.at = e.Time.UnixNano()
	v[fieldEventType], v[fieldFingerprint], v[fieldDecision] = string(e.Type), c.Fingerprint, c.Decision
	v[fieldActor], v[fieldApp], v[fieldTenant], v[fieldEnv] = c.Actor, c.App, c.Tenant, c.Env
	v[fieldApprovalID], v[fieldSessionID], v[fieldPolicyVersion] = c.ApprovalID, c.SessionID, c.PolicyVersion
	v[fieldExecutionID], v[fieldRequestID] = c.ExecutionID, c.RequestID
	v[fieldAgentID], v[fieldProject] = c.AgentID, c.Project
	if e.Type == event.TypeDecisionRecorded {
		rule, _ := e.Get("rule_id")
		v[fieldRule], _ = rule.AsString()
		var t tags
		if t.tables(e); len(t.list) > 0 { // most statements have one, and it costs no posting of its own
			v[fieldTable] = t.list[0].value
		}
	}
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
	last := len(t.block.entries) - 1
	for _, one := range tagsOf(e) {
		if one.value != t.block.entries[last].values[one.field] {
			s := t.space.scratch
			s.key = binary.BigEndian.AppendUint16(appendPostingKey(s.key[:0], one.field, one.value, t.block.no), uint16(last))
			s.value = appendPosting(s.value[:0], []run{{from: uint16(last), to: uint16(last + 1)}})
			t.set(s.key, s.value)
		}
	}
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

	s := t.space.scratch
	s.postings.gather(b)
	for f := range s.postings {
		p := &s.postings[f]
		p.eachValue(func(value string, runs []run) { // in any order: Pebble sorts, and keys do not repeat
			s.key = appendPostingKey(s.key[:0], field(f), value, b.no)
			s.value = appendPosting(s.value[:0], runs)
			t.set(s.key, s.value)
		})
	}
}

// A postings is the values of one field in a block, and where they are.
type postings struct {
	at      map[string]int32 // by value, its place in what follows; empty while there are few
	values  []string
	counts  []int32 // of runs
	runs    []run
	current string // the value of the last event; "" = it has none
	since   int    // the first of the events that have it, one behind the other
	sorted  []run  // by value, for their memory
}

// A run is a value that some events of the block have, one behind the other.
type run struct {
	value    int32
	from, to uint16 // to is not one of them
}

// fewValues are found faster by looking at each of them.
const fewValues = 8

type fieldPostings [fieldCount]postings

// gather begins anew with a block. It is passed through once, since its entries
// are large, and most values are those of the event before.
func (all *fieldPostings) gather(b *block) {
	for f := range all {
		all[f].reset()
	}
	for i := range b.entries {
		e := &b.entries[i]
		for f := range e.values {
			if p := &all[f]; p.current != e.values[f] {
				p.turn(e.values[f], i)
			}
		}
	}
	for f := range all {
		all[f].turn("", len(b.entries))
	}
}

func (p *postings) reset() {
	if len(p.values) > fewValues {
		clear(p.at)
	}
	clear(p.values) // they would keep the texts around them
	p.values, p.counts, p.runs, p.current, p.since = p.values[:0], p.counts[:0], p.runs[:0], "", 0
}

// turn ends the run of the current value before an event with another one. So the
// runs of a value come in their order.
func (p *postings) turn(to string, position int) {
	if p.current != "" {
		n := p.place(p.current)
		p.counts[n]++
		p.runs = append(p.runs, run{n, uint16(p.since), uint16(position)})
	}
	p.current, p.since = to, position
}

// place is where a value stands, at the end if it is new.
func (p *postings) place(v string) int32 {
	if len(p.values) <= fewValues {
		if n := slices.Index(p.values, v); n >= 0 {
			return int32(n)
		}
	} else if n, ok := p.at[v]; ok {
		return n
	}
	n := int32(len(p.values))
	p.values, p.counts = append(p.values, v), append(p.counts, 0)
	switch {
	case len(p.values) == fewValues+1:
		if p.at == nil {
			p.at = make(map[string]int32, blockEvents)
		}
		for i, known := range p.values {
			p.at[known] = int32(i)
		}
	case len(p.values) > fewValues:
		p.at[v] = n
	}
	return n
}

// eachValue gives each value with its runs, in their order.
func (p *postings) eachValue(give func(value string, runs []run)) {
	p.sorted = slices.Grow(p.sorted[:0], len(p.runs))[:len(p.runs)]
	end := int32(0)
	for i, n := range p.counts {
		p.counts[i], end = end, end+n // from here on, where the next one goes
	}
	for _, r := range p.runs {
		p.sorted[p.counts[r.value]] = r
		p.counts[r.value]++
	}
	first := int32(0)
	for i, end := range p.counts {
		give(p.values[i], p.sorted[first:end])
		first = end
	}
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
	for rest := value; ; {
		zero := strings.IndexByte(rest, 0)
		if zero < 0 {
			return append(append(k, rest...), 0, 1)
		}
		k = append(append(k, rest[:zero+1]...), 0xff)
		rest = rest[zero+1:]
	}
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
func appendPosting(b []byte, runs []run) []byte {
	n := 0
	for _, r := range runs {
		n += int(r.to - r.from)
	}
	if 2*n < bitmapLen {
		for _, r := range runs {
			for i := r.from; i < r.to; i++ {
				b = binary.BigEndian.AppendUint16(b, i)
			}
		}
		return b
	}
	var m bitmap
	for _, r := range runs {
		for i := r.from; i < r.to; i++ {
			m.add(int(i))
		}
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
