package agentctl

import (
	"math"
	"sync"
	"time"
)

// The limit of /v1 (spec/agents.md part 8, spec/v1.md part 3).
const (
	RequestLimit  = 1000
	WindowSeconds = 3600
	// windowMinutes are the running minute and the 60 before it. A request of
	// 3600 seconds ago lies in one of them, so no 3600 seconds hold more than the
	// limit, whatever part of their minutes the requests fell into.
	windowMinutes = 61
)

// A limiter counts requests by credential and minute.
type limiter struct {
	mu          sync.Mutex
	credentials map[string]*minuteCounts // guarded by mu
}

// minuteCounts is a ring of the last 61 minutes; at is the newest one counted.
type minuteCounts struct {
	at     int64 // minutes since 1970
	counts [windowMinutes]int
	sum    int
}

func newLimiter() *limiter { return &limiter{credentials: map[string]*minuteCounts{}} }

// A Quota is how a credential stands after a request.
type Quota struct {
	CredentialID string
	Remaining    int
	ResetSeconds int // until the oldest counted minute leaves the window; 0 = nothing is counted
}

func minuteOf(t time.Time) int64 { return int64(math.Floor(float64(t.Unix()) / 60)) }

// admit counts a request for all of its credentials, or for none where one of
// them is at the limit. The quota is that of the tighter one, or of the one
// that refused.
func (l *limiter) admit(ids []string, now time.Time) (quota Quota, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range ids {
		if c := l.of(id, now); c.sum >= RequestLimit {
			return c.quota(id, now), false
		}
	}
	for i, id := range ids {
		c := l.credentials[id]
		c.add(1)
		if q := c.quota(id, now); i == 0 || q.Remaining < quota.Remaining {
			quota = q
		}
	}
	return quota, true
}

// of gives a credential's counters, moved on to the minute of now. A clock that
// goes back a little counts into the newest minute; one that goes back further has all
// that was counted in the minute of now: nobody gains by it, and it ends.
func (l *limiter) of(id string, now time.Time) *minuteCounts {
	c := l.credentials[id]
	if c == nil {
		c = &minuteCounts{at: minuteOf(now)}
		l.credentials[id] = c
	}
	c.advance(minuteOf(now))
	return c
}

func (c *minuteCounts) slot(minute int64) *int {
	return &c.counts[((minute%windowMinutes)+windowMinutes)%windowMinutes]
}

func (c *minuteCounts) advance(to int64) {
	if c.at > to+minuteSlack {
		c.counts = [windowMinutes]int{}
		c.at, *c.slot(to) = to, c.sum
	}
	for steps := 0; c.at < to && steps < windowMinutes; steps++ {
		c.at++
		s := c.slot(c.at)
		c.sum -= *s
		*s = 0
	}
	c.at = max(c.at, to)
}

func (c *minuteCounts) add(n int) {
	*c.slot(c.at) += n
	c.sum += n
}

func (c *minuteCounts) quota(id string, now time.Time) Quota {
	q := Quota{CredentialID: id, Remaining: max(RequestLimit-c.sum, 0)}
	for minute := c.at - windowMinutes + 1; minute <= c.at; minute++ {
		if *c.slot(minute) > 0 {
			leaves := time.Unix((minute+windowMinutes)*60, 0)
			q.ResetSeconds = max(1, int(math.Ceil(leaves.Sub(now).Seconds())))
			break
		}
	}
	return q
}

// look tells how a credential stands without counting.
func (l *limiter) look(id string, now time.Time) Quota {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.of(id, now).quota(id, now)
}

// restore adds what the log says of an earlier minute.
func (l *limiter) restore(id string, at, now time.Time, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.of(id, now)
	minute := minuteOf(at)
	if minute <= c.at-windowMinutes || minute > c.at {
		return
	}
	*c.slot(minute) += n
	c.sum += n
}

// forget drops credentials that counted nothing in the whole window.
func (l *limiter) forget(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id := range l.credentials {
		if l.of(id, now).sum == 0 {
			delete(l.credentials, id)
		}
	}
}
