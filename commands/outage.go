package commands

import (
	"context"
	"sync"
	"time"

	"writegate/eventlog"
	"writegate/eventlog/event"
)

// outages turn failures of the database, of which there is one for every
// statement while it is away, into few events: the first one at once, then at
// most one a minute for each reason, with the count of what happened since.
type outages struct {
	mu      sync.Mutex
	reasons map[string]*outage // by reason code: a closed set, so it stays small
}

type outage struct {
	written time.Time // when the last event was
	message string    // of the last failure
	count   int       // failures that no event counts yet
}

// note counts one failure and gives its event where one is due.
func (o *outages) note(reason, message string, now time.Time) (event.Draft, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.reasons == nil {
		o.reasons = make(map[string]*outage)
	}
	s := o.reasons[reason]
	if s == nil {
		s = new(outage)
		o.reasons[reason] = s
	}
	s.message = message
	s.count++
	return s.tell(reason, now, false)
}

// flush gives the events of what was counted and is due; all of it when the
// service ends.
func (o *outages) flush(now time.Time, all bool) []event.Draft {
	o.mu.Lock()
	defer o.mu.Unlock()
	var drafts []event.Draft
	for reason, s := range o.reasons {
		if draft, due := s.tell(reason, now, all); due {
			drafts = append(drafts, draft)
		}
	}
	return drafts
}

func (s *outage) tell(reason string, now time.Time, all bool) (event.Draft, bool) {
	if s.count == 0 || (!all && !due(s.written, now)) {
		return event.Draft{}, false
	}
	p := &event.DBUnavailable{Message: s.message, Count: s.count}
	s.written, s.count = now, 0
	return event.New(now, event.Context{Actor: systemActor, Operation: "connect_database", ReasonCode: reason}, p), true
}

// RecordDBUnavailable counts that the database could not be used and writes an
// event where one is due (spec/gate.md part 6): a database that is away under
// load must not fill the log. reasonCode is one of few.
func (c *Commands) RecordDBUnavailable(ctx context.Context, message, reasonCode string) error {
	draft, due := c.outages.note(reasonCode, message, c.now())
	if !due {
		return nil
	}
	_, err := c.commit(ctx, eventlog.Group{Drafts: []event.Draft{draft}, Reserve: true})
	return err
}
