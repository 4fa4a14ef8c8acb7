package projections

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"writegate/eventlog/event"
)

// An AuditFilter selects events; an empty field selects all.
type AuditFilter struct {
	EventTypes                                                   []string // any of them
	Fingerprint, Actor, App, Tenant, Env, Decision               string
	ApprovalID, SessionID, PolicyVersion, ExecutionID, RequestID string
	AgentID, Project, CredentialID, AgentPolicyID, ToolID        string
	TelemetryType, Table, RuleID                                 string
	Since, Until                                                 time.Time // Since <= timestamp < Until
	FromSeq, ToSeq                                               uint64    // both included; 0 = open
}

// values are the filter's conditions by field; each is met by any of its values.
func (f *AuditFilter) values() (v [fieldCount][]string) {
	v[fieldEventType] = f.EventTypes
	for i, s := range map[field]string{
		fieldFingerprint: f.Fingerprint, fieldActor: f.Actor, fieldApp: f.App, fieldTenant: f.Tenant, fieldEnv: f.Env, fieldDecision: f.Decision,
		fieldApprovalID: f.ApprovalID, fieldSessionID: f.SessionID, fieldPolicyVersion: f.PolicyVersion,
		fieldExecutionID: f.ExecutionID, fieldRequestID: f.RequestID,
		fieldAgentID: f.AgentID, fieldProject: f.Project, fieldCredential: f.CredentialID, fieldAgentPolicy: f.AgentPolicyID,
		fieldTool: f.ToolID, fieldTelemetryType: f.TelemetryType, fieldTable: f.Table, fieldRule: f.RuleID,
	} {
		if s != "" {
			v[i] = []string{s}
		}
	}
	return v
}

// question is what a cursor of this filter is bound to.
func (f *AuditFilter) question() []string {
	v := f.values()
	q := []string{"audit", strconv.FormatUint(f.FromSeq, 10), strconv.FormatUint(f.ToSeq, 10), fmt.Sprint(f.bounds())}
	for _, list := range v {
		q = append(q, fmt.Sprintf("%q", list))
	}
	return q
}

// bounds are Since and Until in nanoseconds, as wide as can be where they are open.
func (f *AuditFilter) bounds() span {
	s := always
	if !f.Since.IsZero() {
		s.least = f.Since.UnixNano()
	}
	if !f.Until.IsZero() {
		s.end = f.Until.UnixNano()
	}
	return s
}

// Audit finds events by the index and gives their sequence numbers, newest
// first unless the page asks otherwise; the caller reads the events themselves
// from the log. Pages are stable: an event that comes meanwhile moves nothing.
func (v *View) Audit(f AuditFilter, page Page) (seqs []uint64, next string, err error) {
	if v.err != nil {
		return nil, "", v.err
	}
	if !v.indexed {
		return nil, "", ErrNotConnected
	}
	question := f.question()
	from, err := seqOf(&page, question)
	if err != nil {
		return nil, "", err
	}
	s, err := v.search(&f, from, page.Asc)
	if err != nil {
		return nil, "", err
	}
	for err == nil && len(seqs) <= page.limit() {
		var more bool
		if seqs, more, err = s.block(seqs); !more {
			break
		}
	}
	if err = s.close(err); err != nil {
		return nil, "", err
	}
	if n := page.limit(); len(seqs) > n {
		seqs = seqs[:n]
		next = cursorOf(seqs[n-1], &page, question)
	}
	return seqs, next, nil
}

// AuditCursor begins the next page of Audit behind the event seq, where the
// caller had no room for more of a page.
func AuditCursor(f AuditFilter, page Page, seq uint64) string {
	return cursorOf(seq, &page, f.question())
}

// Matches tells whether a filter selects an event, for those who follow the log
// instead of asking the index.
func Matches(f AuditFilter, e *event.Envelope) bool {
	var one entry
	one.take(e)
	s := search{values: f.values(), time: f.bounds()}
	return (f.FromSeq == 0 || e.Seq >= f.FromSeq) && (f.ToSeq == 0 || e.Seq <= f.ToSeq) && s.time.has(one.at) && s.meets(&one, tagsOf(e))
}

// A search walks blocks, from one in which all conditions have a posting to
// the next such block.
type search struct {
	view    *View
	asc     bool
	lo, hi  uint64 // events that are asked for
	at      int64  // block to look at next
	values  [fieldCount][]string
	time    span
	sources []*source
	spans   *pebble.Iterator // of keyBlock; nil when time does not matter
}

// A span of time in nanoseconds; end is not part of it, unless it is open.
type span struct{ least, end int64 }

var always = span{-1 << 63, 1<<63 - 1}

func (s span) has(at int64) bool { return at >= s.least && (at < s.end || s.end == always.end) }

// search prepares the walk behind the seq from, which is 0 at the start.
func (v *View) search(f *AuditFilter, from uint64, asc bool) (*search, error) {
	s := &search{view: v, asc: asc, lo: max(f.FromSeq, 1), hi: v.applied.Seq, values: f.values(), time: f.bounds()}
	if f.ToSeq > 0 {
		s.hi = min(s.hi, f.ToSeq)
	}
	if from > 0 && asc {
		s.lo = max(s.lo, from+1)
	} else if from > 0 {
		s.hi = min(s.hi, from-1)
	}
	if s.lo > s.hi {
		s.lo, s.hi, s.at = 1, 0, -1
		return s, nil
	}
	s.at = int64(blockOf(s.hi))
	if asc {
		s.at = int64(blockOf(s.lo))
	}
	return s, s.open()
}

// open makes the iterators over what is on disk.
func (s *search) open() (err error) {
	for f := range fieldCount {
		if len(s.values[f]) == 0 {
			continue
		}
		src := &source{asc: s.asc, field: f, values: s.values[f]}
		s.sources = append(s.sources, src)
		for _, value := range s.values[f] {
			prefix := postingPrefix(f, value)
			it, err := s.view.iter(prefix, after(prefix))
			if err != nil {
				return s.close(err)
			}
			src.terms = append(src.terms, term{it: it, prefix: physical(s.view.space, prefix)})
		}
	}
	if s.time != always {
		if s.spans, err = s.view.iter([]byte(keyBlock), after([]byte(keyBlock))); err != nil {
			return s.close(err)
		}
	}
	return nil
}

func (s *search) close(err error) error {
	for _, src := range s.sources {
		for _, t := range src.terms {
			err = s.view.closeIter(t.it, err)
		}
	}
	if s.spans != nil {
		err = s.view.closeIter(s.spans, err)
	}
	s.sources, s.spans = nil, nil
	return err
}

// inside tells whether block n holds events that are asked for.
func (s *search) inside(n int64) bool {
	return s.hi > 0 && n >= int64(blockOf(s.lo)) && n <= int64(blockOf(s.hi))
}

func (s *search) step(n int64) int64 {
	if s.asc {
		return n + 1
	}
	return n - 1
}

// block looks at the next block that can hold something and adds what it finds.
func (s *search) block(seqs []uint64) ([]uint64, bool, error) {
	if err := s.view.ended(); err != nil {
		return seqs, false, err
	}
	memory := int64(s.view.block.no)
	if s.at != memory {
		n, ok := s.agree(s.at)
		if !ok && s.asc && s.at < memory {
			n, ok = memory, true // what is not on disk may still be in memory
		}
		if !ok {
			return seqs, false, nil
		}
		s.at = n
	}
	if !s.inside(s.at) {
		return seqs, false, nil
	}
	found, err := s.match(uint32(s.at), s.at == memory)
	if err != nil {
		return seqs, false, err
	}
	seqs = s.collect(seqs, uint32(s.at), &found)
	s.at = s.step(s.at)
	return seqs, s.inside(s.at), nil
}

// agree leaps from source to source until all of them have a posting in one block.
func (s *search) agree(target int64) (int64, bool) {
	if memory := int64(s.view.block.no); s.asc && target >= memory || target < 0 {
		return 0, false
	}
	for agreed := 0; agreed < len(s.sources); {
		for _, src := range s.sources {
			n, ok := src.seek(target)
			if !ok || !s.inside(n) {
				return 0, false
			}
			if n != target {
				target, agreed = n, 1
				continue
			}
			agreed++
		}
	}
	return target, true
}

// match finds the positions in a block that meet all conditions but the range of seq.
func (s *search) match(no uint32, memory bool) (bitmap, error) {
	if memory {
		return s.inMemory()
	}
	found := full()
	for _, src := range s.sources {
		m, err := src.bitmap(int64(no))
		if err != nil {
			return bitmap{}, s.view.store.damaged(err)
		}
		found.and(&m)
	}
	if s.spans == nil || found.empty() {
		return found, nil
	}
	m, err := s.inTime(no)
	if err != nil {
		return bitmap{}, err
	}
	found.and(&m)
	return found, nil
}

// inTime judges a block by its least and greatest time and reads the time of
// each event only where that is not enough. Clocks go back, so times in a block
// are in no order.
func (s *search) inTime(no uint32) (m bitmap, err error) {
	key := physical(s.view.space, blockKey(keyBlock, no))
	if !s.spans.SeekGE(key) || string(s.spans.Key()) != string(key) {
		return m, s.view.store.damaged(fmt.Errorf("block %d has no times: %w", no, errRecord))
	}
	least, greatest, err := decodeSpan(s.spans.Value())
	if err != nil {
		return m, s.view.store.damaged(err)
	}
	switch {
	case greatest < s.time.least || s.time.end != always.end && least >= s.time.end:
		return m, nil
	case s.time.has(least) && s.time.has(greatest):
		return full(), nil
	}
	b, _, err := s.view.bytes(blockKey(keyTimes, no))
	if err != nil {
		return m, err
	}
	times, err := decodeTimes(b)
	if err != nil {
		return m, s.view.store.damaged(err)
	}
	for i, at := range times {
		if s.time.has(at) {
			m.add(i)
		}
	}
	return m, nil
}

// inMemory matches the block that is not yet complete. The tags of its events are on
// disk.
func (s *search) inMemory() (found bitmap, err error) {
	entries := s.view.block.entries
	for i := range entries {
		if s.time.has(entries[i].at) {
			found.add(i)
		}
	}
	for _, src := range s.sources {
		src.seek(int64(s.view.block.no))
		m, err := src.bitmap(int64(s.view.block.no))
		if err != nil {
			return bitmap{}, s.view.store.damaged(err)
		}
		for i := range entries {
			if slices.Contains(src.values, entries[i].values[src.field]) {
				m.add(i)
			}
		}
		found.and(&m)
	}
	return found, nil
}

// meets tells whether an event with these tags has a value of each field that is asked for.
func (s *search) meets(e *entry, tags []tag) bool {
	for f, want := range s.values {
		if len(want) > 0 && !slices.ContainsFunc(want, func(w string) bool { return e.values[f] == w || slices.Contains(tags, tag{field(f), w}) }) {
			return false
		}
	}
	return true
}

// collect adds the events of a block that lie in the range, in order.
func (s *search) collect(seqs []uint64, no uint32, found *bitmap) []uint64 {
	first := firstOf(no)
	for w := range len(found) {
		if !s.asc {
			w = len(found) - 1 - w
		}
		for word := found[w]; word != 0; {
			i := bits.TrailingZeros64(word)
			if !s.asc {
				i = 63 - bits.LeadingZeros64(word)
			}
			word &^= 1 << i
			if seq := first + uint64(64*w+i); seq >= s.lo && seq <= s.hi {
				seqs = append(seqs, seq)
			}
		}
	}
	return seqs
}

// A source is one condition: the postings of all values that meet it.
type source struct {
	asc    bool
	field  field
	values []string
	terms  []term // by value
}

type term struct {
	it      *pebble.Iterator
	prefix  []byte
	started bool
}

// seek finds the next block from target on, in the search's direction, with a
// posting of any value.
func (s *source) seek(target int64) (block int64, ok bool) {
	for i := range s.terms {
		n, has := s.terms[i].seek(target, s.asc)
		if has && (!ok || s.asc == (n < block)) {
			block, ok = n, true
		}
	}
	return block, ok
}

// seek moves the term to target or behind it; one that is there stays.
func (t *term) seek(target int64, asc bool) (int64, bool) {
	if t.started && t.it.Valid() {
		if n := t.block(); n == target || asc == (n > target) {
			return n, true
		}
	} else if t.started {
		return 0, false // it only ever moves on
	}
	t.started = true
	if asc {
		return t.found(t.it.SeekGE(binary.BigEndian.AppendUint32(t.prefix[:len(t.prefix):len(t.prefix)], uint32(target))))
	}
	return t.found(t.it.SeekLT(binary.BigEndian.AppendUint32(t.prefix[:len(t.prefix):len(t.prefix)], uint32(target+1))))
}

func (t *term) found(ok bool) (int64, bool) {
	if !ok {
		return 0, false
	}
	return t.block(), true
}

// block is that of a posting; behind it stands, of a tag, the position of the event.
func (t *term) block() int64 { return int64(binary.BigEndian.Uint32(t.it.Key()[len(t.prefix):])) }

// bitmap gives the positions of the values in a block to which seek has led, and
// leads behind it.
func (s *source) bitmap(no int64) (m bitmap, err error) {
	for i := range s.terms {
		for t := &s.terms[i]; t.it.Valid() && t.block() == no; {
			one, err := decodePosting(t.it.Value())
			if err != nil {
				return m, err
			}
			m.or(&one)
			if s.asc {
				t.it.Next()
			} else {
				t.it.Prev()
			}
		}
	}
	return m, nil
}
