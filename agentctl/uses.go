package agentctl

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"writegate/commands"
	"writegate/eventlog/event"
	"writegate/projections"
)

// uses counts what credentials did and is not yet in the log, and remembers
// when they were last seen.
type uses struct {
	mu      sync.Mutex
	minutes map[useKey]*event.CredentialUsage // guarded by mu, as is all below
	last    map[string]time.Time              // by token and by agent
}

type useKey struct {
	project, credential, agent string
	minute                     int64
}

func newUses() *uses {
	return &uses{minutes: map[useKey]*event.CredentialUsage{}, last: map[string]time.Time{}}
}

// note counts for every credential of a caller.
func (u *uses) note(c *Caller, now time.Time, count func(*event.CredentialUsage)) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, id := range c.CredentialIDs() {
		key := useKey{c.Project, id, c.AgentID, minuteOf(now)}
		use := u.minutes[key]
		if use == nil {
			use = &event.CredentialUsage{CredentialID: id, AgentID: c.AgentID}
			u.minutes[key] = use
		}
		count(use)
	}
	if c.TokenID != "" {
		u.last[c.TokenID], u.last[c.AgentID] = now, now
	}
}

// seen is when something was last used: in this run, or as the log says.
func (u *uses) seen(id string, recorded time.Time) time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	if at, ok := u.last[id]; ok && at.After(recorded) {
		return at.UTC()
	}
	return recorded
}

// take gives what was counted in minutes before the one given, or everything,
// as events in a fixed order.
func (u *uses) take(before int64, all bool) map[useKey]*event.CredentialUsage {
	u.mu.Lock()
	defer u.mu.Unlock()
	taken := map[useKey]*event.CredentialUsage{}
	for key, use := range u.minutes {
		if all || key.minute < before {
			taken[key] = use
			delete(u.minutes, key)
		}
	}
	return taken
}

// giveBack takes up again what could not be written.
func (u *uses) giveBack(taken map[useKey]*event.CredentialUsage) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for key, use := range taken {
		if now := u.minutes[key]; now != nil {
			use.Requests, use.Throttled, use.Errors = use.Requests+now.Requests, use.Throttled+now.Throttled, use.Errors+now.Errors
		}
		u.minutes[key] = use
	}
}

// pendingOf hands the requests of an agent's tokens that are not yet in the log to take.
func (u *uses) pendingOf(agentID string, take func(minute int64, requests int)) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for key, use := range u.minutes {
		if key.agent == agentID && projections.OfAgent(key.credential) {
			take(key.minute, use.Requests)
		}
	}
}

// maxUsageCredentials bounds the credentials of one event.
const maxUsageCredentials = 1000

// A usageDraft is an event, and what of the counters it holds.
type usageDraft struct {
	event.Draft
	keys []useKey
}

// usageDrafts makes one usage_recorded per project and minute.
func usageDrafts(taken map[useKey]*event.CredentialUsage, now time.Time) (drafts []usageDraft) {
	keys := slices.SortedFunc(maps.Keys(taken), func(a, b useKey) int {
		return cmp.Or(cmp.Compare(a.minute, b.minute), cmp.Compare(a.project, b.project), cmp.Compare(a.credential, b.credential), cmp.Compare(a.agent, b.agent))
	})
	for len(keys) > 0 {
		first := keys[0]
		n := slices.IndexFunc(keys, func(k useKey) bool { return k.minute != first.minute || k.project != first.project })
		if n < 0 {
			n = len(keys)
		}
		n = min(n, maxUsageCredentials)
		list := make([]event.CredentialUsage, n)
		for i, k := range keys[:n] {
			list[i] = *taken[k]
		}
		drafts = append(drafts, usageDraft{event.New(now, event.Context{Actor: "system", Operation: "record_usage", Project: first.project},
			&event.UsageRecorded{Minute: first.minute * int64(time.Minute), Credentials: list}), keys[:n]})
		keys = keys[n:]
	}
	return drafts
}

// FlushUsage writes what was counted in minutes that are over; all of it when
// the service ends. What the log refuses is kept for the next time, and nothing
// is written twice.
func (s *Service) FlushUsage(ctx context.Context, all bool) error {
	now := s.Now()
	err := s.writeUsage(ctx, now, all)
	s.limits.forget(now)
	s.meters.forget(now)
	return err
}

func (s *Service) writeUsage(ctx context.Context, now time.Time, all bool) error {
	s.flushing.Lock()
	defer s.flushing.Unlock()
	taken := s.uses.take(minuteOf(now), all)
	for group := range slices.Chunk(usageDrafts(taken, now), maxUsageEvents) {
		drafts := make([]event.Draft, len(group))
		for i := range group {
			drafts[i] = group[i].Draft
		}
		err := s.Commands.RecordUsage(ctx, drafts)
		if err == nil || commands.MayBeWritten(err) {
			for i := range group {
				for _, key := range group[i].keys {
					delete(taken, key)
				}
			}
		}
		if err != nil {
			s.uses.giveBack(taken)
			return err
		}
	}
	return nil
}

// maxUsageEvents bounds the events of one append.
const maxUsageEvents = 64

// Run writes usage each minute until ctx ends. The rest is for FlushUsage at
// the end of the service.
func (s *Service) Run(ctx context.Context) {
	for {
		wait := time.NewTimer(time.Until(time.Now().Truncate(time.Minute).Add(time.Minute + time.Second)))
		select {
		case <-ctx.Done():
			wait.Stop()
			return
		case <-wait.C:
		}
		if err := s.FlushUsage(ctx, false); err != nil && ctx.Err() == nil {
			s.Logger.Warn("usage could not be written; it is kept for the next minute", "source", "agents", "cause", err.Error())
		}
	}
}

// Restore fills the rate limit from the usage_recorded events of its window.
func (s *Service) Restore(ctx context.Context) error {
	now := s.Now()
	since := now.Add(-windowMinutes * time.Minute)
	return s.eachEvent(ctx, projections.AuditFilter{EventTypes: []string{string(event.TypeUsageRecorded)}, Since: since}, func(e *event.Envelope) error {
		var p event.UsageRecorded
		if err := e.Parse(&p); err != nil {
			return err
		}
		for i := range p.Credentials {
			s.limits.restore(p.Credentials[i].CredentialID, time.Unix(0, p.Minute), now, p.Credentials[i].Requests)
		}
		return nil
	})
}

// eachEvent hands every event that a filter finds to take, oldest first.
func (s *Service) eachEvent(ctx context.Context, f projections.AuditFilter, take func(*event.Envelope) error) error {
	page := projections.Page{Limit: 1000, Asc: true}
	for {
		var seqs []uint64
		err := s.view(ctx, func(view *projections.View) (err error) {
			seqs, page.Cursor, err = view.Audit(f, page)
			return err
		})
		if err != nil {
			return err
		}
		for _, seq := range seqs {
			e, _, err := s.at(ctx, seq)
			if err == nil {
				err = take(&e)
			}
			if err != nil {
				return err
			}
		}
		if page.Cursor == "" {
			return nil
		}
	}
}

// Admit counts a request of a caller against the limits of its credentials.
func (s *Service) Admit(c *Caller) (Quota, bool) {
	now := s.Now()
	quota, ok := s.limits.admit(c.CredentialIDs(), now)
	if ok && c.AgentID != "" {
		m := s.meters.lock(c.AgentID) // over both counts: one that is filled finds neither or both
		defer m.mu.Unlock()
		if m.filled { // else what the log and uses have will tell
			m.add(minuteOf(now), &projections.AgentSums{Requests: 1})
		}
	}
	s.uses.note(c, now, func(u *event.CredentialUsage) {
		if ok {
			u.Requests++
		} else {
			u.Throttled++
		}
	})
	return quota, ok
}

// NoteError counts a counted request that was answered with an error.
func (s *Service) NoteError(c *Caller) {
	s.uses.note(c, s.Now(), func(u *event.CredentialUsage) { u.Errors++ })
}
