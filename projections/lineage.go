package projections

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"writegate/eventlog"
	"writegate/eventlog/event"
)

// A log that was begun after a loss goes on where an earlier one ended: its
// approvals, executions, policy versions and keys are those of both, and of the
// logs before that (docs/adr/0005-a-log-after-a-loss.md). The earlier logs are
// folded first. Their events are no part of the audit index, which speaks of
// one log, and they do not move meta/applied: until the log's own first event
// is in the store, a crash costs the fold of them, and nothing else.
//
// Records name events by a position: the event's number, and above it how many
// logs came before its own. So records of two logs never mix up their events,
// lists stay in the order in which things happened, and the positions of a log
// that follows no other are its plain numbers.

// seqBits is how much of a position is the event's number.
const seqBits = 48

const seqMask = 1<<seqBits - 1

func position(generation int, seq uint64) uint64 { return uint64(generation)<<seqBits | seq }

// Place says where an event that a record names is to be found.
type Place struct {
	LogID [16]byte
	Seq   uint64
	Own   bool // in the log at hand, and not in one before it
}

// Place reads a position of a record.
func (v *View) Place(position uint64) Place {
	n, seq := int(position>>seqBits), position&seqMask
	if n < len(v.lineage) {
		return Place{LogID: v.lineage[n].LogID, Seq: seq}
	}
	return Place{LogID: v.applied.LogID, Seq: seq, Own: true}
}

// OwnSeq is the number of an event in the log at hand; 0 when it stands in an
// earlier one, or position is 0.
func (v *View) OwnSeq(position uint64) uint64 {
	if p := v.Place(position); p.Own {
		return p.Seq
	}
	return 0
}

// Inherited is what a log that follows another one knows from before the loss, and what
// the lost events may have ended.
type Inherited struct {
	Approvals int     // that could still be resolved or used, and are withdrawn; without those of an earlier loss
	Agents    []Agent // that are active
	Tokens    int     // of those agents, that are not revoked
	Policy    string  // the gate's, name@version; "" = none is active
}

// Inherited gives what a loss before the log at hand may have ended, at a moment.
func (v *View) Inherited(now time.Time) (found Inherited, err error) {
	if err = v.ended(); err != nil || len(v.lineage) == 0 {
		return found, err
	}
	found.Policy = v.counters.Active
	since := position(v.served(), 0)
	err = scan(v, keyApproval, func(a *Approval) error {
		if a.Seq >= since && !v.Place(a.Seq).Own && a.Use == UseFree && (a.State == ApprovalPending || a.State == ApprovalApproved) && !a.ElapsedAt(now) {
			found.Approvals++
		}
		return nil
	})
	if err != nil {
		return found, err
	}
	err = scan(v, keyAgent, func(a *Agent) error {
		if v.Place(a.Seq).Own || a.Status != event.AgentActive {
			return nil
		}
		found.Agents = append(found.Agents, *a)
		tokens, err := v.AllTokens(a.AgentID)
		for i := range tokens {
			if tokens[i].RevokedAt.IsZero() {
				found.Tokens++
			}
		}
		return err
	})
	return found, err
}

// served is which of the logs before this one is the last that a gate served, by what
// counts of it. Its first event is that of the command that began it.
func (v *View) served() int {
	n := len(v.lineage) - 1
	for n > 0 && v.lineage[n].Seq <= 1 {
		n--
	}
	return n
}

// scan hands over every record of a kind.
func scan[R any, P interface {
	*R
	record
}](v *View, prefix string, take func(*R) error) error {
	it, err := v.iter([]byte(prefix), after([]byte(prefix)))
	if err != nil {
		return err
	}
	for ok := it.First(); ok && err == nil; ok = it.Next() {
		r := new(R)
		if err = unmarshal(it.Value(), P(r)); err != nil {
			err = v.store.damaged(err)
			break
		}
		err = take(r)
	}
	return v.closeIter(it, err)
}

// inherit folds the logs before src into a space that holds nothing of src yet.
func (s *Store) inherit(ctx context.Context, sp *space, src Source) error {
	ancestors, err := src.Ancestors(ctx)
	if err != nil || len(ancestors) == 0 {
		return err
	}
	if err := s.drop(sp.id); err != nil { // what a fold that died here has left
		return err
	}
	s.setSpace(func() { sp.lineage, sp.counters, sp.past = nil, Counters{}, true })
	for _, a := range ancestors {
		if err := s.inheritOne(ctx, sp, a); err != nil {
			return err
		}
	}
	s.setSpace(func() { sp.applied, sp.block, sp.past = Applied{}, block{}, false })
	return nil
}

// setSpace changes what views start from.
func (s *Store) setSpace(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

func (s *Store) inheritOne(ctx context.Context, sp *space, a eventlog.Ancestor) error {
	s.setSpace(func() { sp.applied, sp.block = Applied{LogID: a.LogID}, block{} })
	r := &replay{store: s, space: sp, known: sp.applied, ready: true}
	if err := r.run(ctx, "fold the log before this one", gathered(a.Events)); err != nil {
		return err
	}
	ended := Applied{LogID: a.LogID, Seq: a.Last, Hash: a.Hash}
	t := begin(s.db, sp)
	t.set(lineageKey(len(sp.lineage)), encodeAncestor(ended))
	if err := s.commit(t); err != nil {
		return err
	}
	s.setSpace(func() { sp.lineage = append(sp.lineage, ended) })
	return nil
}

// startup refuses to go on without the log that it follows.
func startup(t *tx, e *event.Envelope, p *event.Startup) {
	if p.Predecessor == nil { // a gate's own
		if back := p.Engine[event.EngineTimeline]; back != t.counters.PutBack {
			t.count(func(c *Counters) { c.PutBack, c.Awaited = back, back != "" })
		}
		return
	}
	named := Applied{LogID: p.Predecessor.LogID, Seq: p.Predecessor.LastSeq, Hash: p.Predecessor.LastEventHash}
	if n := len(t.space.lineage); n == 0 || t.space.lineage[n-1] != named {
		t.fail(fmt.Errorf("%w: the log follows log %x, which was not folded", eventlog.ErrAncestor, named.LogID))
	}
}

func lineageKey(n int) []byte { return binary.BigEndian.AppendUint16([]byte(keyLineage), uint16(n)) }

const ancestorLen = 16 + 8 + 32

func encodeAncestor(a Applied) []byte {
	b := append(make([]byte, 0, ancestorLen), a.LogID[:]...)
	b = binary.BigEndian.AppendUint64(b, a.Seq)
	return append(b, a.Hash[:]...)
}

func decodeAncestor(b []byte) (a Applied, err error) {
	if len(b) != ancestorLen {
		return a, fmt.Errorf("projections: %s has %d bytes: %w", keyLineage, len(b), errRecord)
	}
	copy(a.LogID[:], b)
	a.Seq = binary.BigEndian.Uint64(b[16:])
	copy(a.Hash[:], b[24:])
	return a, nil
}
