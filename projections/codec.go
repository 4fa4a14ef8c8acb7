package projections

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// A codec walks a record's fields once for both directions, as event's form
// does for payloads: what is written and what is read can't drift apart. The
// bytes depend on the fields alone. A change of any walk is a new ProjectorVersion.
type codec struct {
	reading bool
	buf     []byte // what is written so far, or what is left to read
	err     error
}

// A record is a value of the store.
type record interface{ walk(*codec) }

var errRecord = errors.New("record is damaged")

func marshal(dst []byte, r record) []byte {
	c := codec{buf: dst}
	r.walk(&c)
	return c.buf
}

func unmarshal(b []byte, r record) error {
	c := codec{reading: true, buf: b}
	r.walk(&c)
	if c.err == nil && len(c.buf) > 0 {
		c.fail()
	}
	return c.err
}

func (c *codec) fail() {
	if c.err == nil {
		c.err = fmt.Errorf("projections: %w", errRecord)
	}
	c.buf = nil
}

// take cuts n bytes off what is left to read.
func (c *codec) take(n uint64) []byte {
	if n > uint64(len(c.buf)) {
		c.fail()
		return nil
	}
	b := c.buf[:n]
	c.buf = c.buf[n:]
	return b
}

func (c *codec) uvarint() uint64 {
	v, n := binary.Uvarint(c.buf)
	if n <= 0 {
		c.fail()
		return 0
	}
	c.buf = c.buf[n:]
	return v
}

func number[T ~int | ~int64 | ~uint64](c *codec, v *T) {
	if !c.reading && uint64(*v) < 0x80 {
		c.buf = append(c.buf, byte(*v))
		return
	}
	if !c.reading {
		c.buf = binary.AppendUvarint(c.buf, uint64(*v))
		return
	}
	*v = T(c.uvarint())
}

func text[T ~string](c *codec, s *T) {
	if !c.reading {
		c.buf = binary.AppendUvarint(c.buf, uint64(len(*s)))
		c.buf = append(c.buf, *s...)
		return
	}
	*s = T(c.take(c.uvarint()))
}

func texts(c *codec, list ...*string) {
	if c.reading {
		for _, s := range list {
			text(c, s)
		}
		return
	}
	buf := c.buf // most texts of a record are short, and many empty
	for _, s := range list {
		if len(*s) < 0x80 {
			buf = append(buf, byte(len(*s)))
		} else {
			buf = binary.AppendUvarint(buf, uint64(len(*s)))
		}
		buf = append(buf, *s...)
	}
	c.buf = buf
}

func (c *codec) flag(b *bool) {
	n := 0
	if *b {
		n = 1
	}
	if number(c, &n); c.reading {
		*b = n == 1
	}
}

// bound keeps an optional limit as its number and 1; 0 is none.
func (c *codec) bound(limit **int64) {
	var kept uint64
	if *limit != nil {
		kept = uint64(**limit) + 1
	}
	number(c, &kept)
	if c.reading && kept > 0 {
		n := int64(kept - 1)
		*limit = &n
	}
}

func (c *codec) fixed(b []byte) {
	if !c.reading {
		c.buf = append(c.buf, b...)
		return
	}
	copy(b, c.take(uint64(len(b))))
}

// moments keeps nanoseconds; the zero time is 0.
func (c *codec) moments(list ...*time.Time) {
	for _, t := range list {
		var ns int64
		if !t.IsZero() {
			ns = t.UnixNano()
		}
		number(c, &ns)
		if c.reading && ns != 0 {
			*t = time.Unix(0, ns).UTC()
		}
	}
}

func (c *codec) numbers(list *[]uint64) {
	n := len(*list)
	number(c, &n)
	if c.reading {
		if uint64(n) > uint64(len(c.buf)) {
			c.fail()
			return
		}
		*list = make([]uint64, n)
	}
	for i := range *list {
		number(c, &(*list)[i])
	}
}

// length keeps how many items follow, and bounds it by what is left to read.
func (c *codec) length(n int) int {
	number(c, &n)
	if c.reading && uint64(n) > uint64(len(c.buf)) {
		c.fail()
		return 0
	}
	return n
}

func (c *codec) strings(list *[]string) {
	n := c.length(len(*list))
	if c.reading && n > 0 {
		*list = make([]string, n)
	}
	for i := range *list {
		text(c, &(*list)[i])
	}
}

// dict keeps a map by its sorted keys, so that equal maps have equal bytes.
func (c *codec) dict(m *map[string]string) {
	n := c.length(len(*m))
	if !c.reading {
		for _, k := range slices.Sorted(maps.Keys(*m)) {
			v := (*m)[k]
			texts(c, &k, &v)
		}
		return
	}
	*m = make(map[string]string, n)
	for range n {
		var k, v string
		texts(c, &k, &v)
		(*m)[k] = v
	}
}

func (a *Approval) walk(c *codec) {
	texts(c, &a.ID, &a.State)
	text(c, &a.Use)
	number(c, &a.Seq)
	texts(c, &a.RequestID, &a.Actor, &a.App, &a.Tenant, &a.Env, &a.SessionID, &a.Role, &a.Host, &a.Principal, &a.SQL)
	c.fixed(a.SQLDigest[:])
	c.fixed(a.RequestDigest[:])
	texts(c, &a.Operation, &a.Fingerprint, &a.Classification, &a.PolicyVersion, &a.ReasonCode, &a.RuleID, &a.Message, &a.Remedy, &a.PreparedSQL, &a.Impact)
	c.strings(&a.Parameters)
	c.bound(&a.MaxRows)
	number(c, &a.TTLSeconds)
	c.moments(&a.CreatedAt, &a.ExpiresAt, &a.ResolvedAt, &a.UsedAt)
	texts(c, &a.Resolution, &a.Note, &a.ResolvedBy, &a.ExecutionID, &a.AgentID, &a.Project, &a.AgentPolicyID, &a.Profile)
	c.fixed(a.Salt[:])
}

func (e *Execution) walk(c *codec) {
	texts(c, &e.ID, &e.State)
	number(c, &e.Seq)
	c.numbers(&e.Events)
	texts(c, &e.RequestID, &e.ApprovalID, &e.Actor, &e.App, &e.Tenant, &e.Env, &e.SessionID, &e.Operation, &e.Fingerprint, &e.PolicyVersion, &e.Path)
	c.fixed(e.SQLDigest[:])
	number(c, &e.XID)
	c.flag(&e.Marker)
	texts(c, &e.BlockID, &e.Upstream.SystemIdentifier, &e.Upstream.Timeline, &e.Upstream.CrashMark, &e.Upstream.Database, &e.Upstream.Host, &e.Upstream.Role, &e.Upstream.BackendStart)
	number(c, &e.Upstream.BackendPID)
	c.fixed(e.KeyScope[:])
	c.moments(&e.DispatchedAt, &e.ResultAt, &e.ResolvedAt)
	texts(c, &e.Outcome, &e.Basis, &e.ReasonCode, &e.ErrorCode, &e.SQLState, &e.CommandTag)
	number(c, &e.RowCount)
	number(c, &e.DurationUS)
	texts(c, &e.Step, &e.Cause, &e.AgentID, &e.Project, &e.GrantID, &e.GrantUse)
	number(c, &e.GrantRows)
}

func (g *Grant) walk(c *codec) {
	texts(c, &g.ID, &g.State, &g.AgentID, &g.Project, &g.Condition, &g.Reason, &g.CreatedBy, &g.IdempotencyKey, &g.RevokedBy, &g.Note)
	number(c, &g.Seq)
	c.moments(&g.CreatedAt, &g.Until, &g.UsedAt, &g.RevokedAt)
	for _, n := range []*int{&g.Uses, &g.Used, &g.Running} {
		number(c, n)
	}
	for _, n := range []*int64{&g.Rows, &g.Changed, &g.Reserved} {
		number(c, n)
	}
}

// room is how many bytes the record takes, or more.
func (e *Execution) room() int {
	n := 512 + 10*len(e.Events)
	for _, s := range []string{e.ID, e.RequestID, e.ApprovalID, e.Actor, e.App, e.Tenant, e.Env, e.SessionID, e.Operation, e.Fingerprint, e.PolicyVersion,
		e.BlockID, e.Upstream.Database, e.Upstream.Host, e.Upstream.Role, e.CommandTag, e.Basis, e.Step, e.Cause, e.AgentID, e.Project, e.GrantID} {
		n += len(s)
	}
	return n
}

func (p *PolicyVersion) walk(c *codec) {
	texts(c, &p.PolicyVersion, &p.Status)
	number(c, &p.Seq)
	c.fixed(p.Hash[:])
	c.fixed(p.SemanticHash[:])
	number(c, &p.RuleCount)
	number(c, &p.Bytes)
	texts(c, &p.Origin, &p.CreatedBy, &p.Note, &p.ActivatedBy, &p.ActivateReason, &p.RejectedReason, &p.Findings)
	c.moments(&p.CreatedAt, &p.ActivatedAt, &p.ArchivedAt)
	number(c, &p.ActivatedSeq)
	number(c, &p.ArchivedSeq)
	number(c, &p.ValidatedSeq)
	c.flag(&p.Valid)
	for _, n := range []*int{&p.Counts.Error, &p.Counts.Warning, &p.Counts.Info, &p.Tests.Cases, &p.Tests.Passed, &p.Corpus.Cases, &p.Corpus.Passed} {
		number(c, n)
	}
	c.fixed(p.Corpus.Hash[:])
}

func (r *IdempotencyRecord) walk(c *codec) {
	texts(c, &r.Key, &r.ExecutionID, &r.RequestID, &r.State, &r.Outcome, &r.Body)
	c.fixed(r.RequestDigest[:])
	c.moments(&r.ExpiresAt)
	number(c, &r.Status)
	c.flag(&r.Answered)
	c.flag(&r.RowsOmitted)
	number(c, &r.Seq)
	c.fixed(r.SQLDigest[:])
	c.fixed(r.ParamsDigest[:])
	c.fixed(r.Salt[:])
}

func (n *Counters) walk(c *codec) {
	for _, v := range []*int{&n.ApprovalsPending, &n.ApprovalsApproved, &n.ApprovalsRejected, &n.ApprovalsExpired, &n.ExecutionsOpen, &n.ExecutionsUnknown} {
		number(c, v)
	}
	number(c, &n.PolicySeq)
	texts(c, &n.Active, &n.PutBack)
	c.flag(&n.Awaited)
	c.dict(&n.Timelines)
}
