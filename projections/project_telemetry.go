package projections

import (
	"crypto/sha256"
	"encoding/binary"
	"time"

	"writegate/eventlog/event"
)

// SentLifetime is how long the id of a telemetry event is known: for so long the
// same id of the same agent is a duplicate (spec/v1.md part 8). Another agent's
// is not: it would have its events thrown away by who counts as it does.
const SentLifetime = 7 * 24 * time.Hour

// sentKey stands for the id of a telemetry event of its agent. Half a SHA-256
// tells ids apart: no two are found that share it.
func sentKey(digest [16]byte) []byte { return append([]byte(keySent), digest[:]...) }

func sentDigest(project, agent, id string) [16]byte {
	var b []byte
	for _, part := range []string{project, agent} {
		b = append(binary.BigEndian.AppendUint64(b, uint64(len(part))), part...)
	}
	sum := sha256.Sum256(append(b, id...))
	return [16]byte(sum[:16])
}

// A sentAt is when an event was accepted.
type sentAt struct{ at time.Time }

func (s *sentAt) walk(c *codec) { c.moments(&s.at) }

// sentIDs are the digests of the ids that one record of the log brought.
type sentIDs struct{ digests [][16]byte }

func (s *sentIDs) walk(c *codec) {
	n := c.length(len(s.digests))
	if c.reading {
		s.digests = make([][16]byte, n)
	}
	for i := range s.digests {
		c.fixed(s.digests[i][:])
	}
}

// sentDueKey orders the records by the moment at which their ids are forgotten.
func sentDueKey(at time.Time, seq uint64) []byte {
	return binary.BigEndian.AppendUint64(dueKey(keySentDue, at, ""), seq)
}

func telemetryReceived(t *tx, e *event.Envelope, p *event.TelemetryReceived) {
	t.sweepSent(e.Time)
	ids := sentIDs{digests: make([][16]byte, len(p.Events))}
	for i := range p.Events {
		ids.digests[i] = sentDigest(e.Context.Project, p.Events[i].AgentID, p.Events[i].ID)
		t.put(sentKey(ids.digests[i]), &sentAt{e.Time})
	}
	if len(ids.digests) > 0 {
		due := sentDueKey(e.Time.Add(SentLifetime), e.Seq)
		t.setExpiry(keySentDue, due, marshal(nil, &ids))
		t.meterTelemetry(e, p)
		t.useTelemetry(e, p)
		t.didTelemetry(e, p)
	}
}

// sweepSent forgets the ids of a few records whose time was over long before the
// event at now.
func (t *tx) sweepSent(now time.Time) {
	due, err := t.expired(keySentDue, dueKey(keySentDue, now.Add(-keyGrace), ""))
	if err != nil {
		t.fail(err)
		return
	}
	for _, key := range due {
		var ids sentIDs
		t.get([]byte(key), &ids)
		ended := dueTime([]byte(key), keySentDue)
		for _, digest := range ids.digests {
			var sent sentAt
			// An id that came again after its time is another record's to forget.
			if t.get(sentKey(digest), &sent) && !sent.at.Add(SentLifetime).After(ended) {
				t.delete(sentKey(digest))
			}
		}
		t.dropExpiry(keySentDue, []byte(key))
	}
}

// TelemetrySent tells whether an event of this agent with this id was accepted
// within SentLifetime before now.
func (v *View) TelemetrySent(project, agent, id string, now time.Time) (bool, error) {
	var sent sentAt
	ok, err := v.read(sentKey(sentDigest(project, agent, id)), &sent)
	return ok && now.Before(sent.at.Add(SentLifetime)), err
}
