package controlplane

import (
	"context"
	"math"
	"net/http"
	"strconv"
	"sync"
	"time"

	"writegate/http/httpd"
)

// The gate counts each request under /v1 against the project key's hour, so pages
// that look again by themselves share what was answered last. It is new enough for
// keptFresh, or for keptQuiet while nothing happens that the page shows, and longer
// where less than half of the hour is left.
const (
	keptFresh = 30 * time.Second
	keptQuiet = 5 * time.Minute // what changes without an event of its own, such as last_seen_at
	keptLife  = time.Hour       // nothing older is shown
)

// What is kept at most; what was asked for longest ago gives way.
const (
	maxKept      = 1024
	maxKeptBytes = 64 << 20
)

// kept holds what /v1 answered to the dashboard's project key, for all sessions.
type kept struct {
	now     func() time.Time
	mu      sync.Mutex
	answers map[string]*keptAnswer
	quota   float64 // how much of the key's hour is left, as last told: 0 to 1
}

// A keptAnswer is replaced as a whole; turn is held by who asks for it anew.
type keptAnswer struct {
	turn   chan struct{}
	asked  time.Time
	status int // 0: nothing is kept yet
	body   []byte
}

func newKept(now func() time.Time) *kept {
	return &kept{now: now, answers: make(map[string]*keptAnswer), quota: 1}
}

// A look is one making of a page or chart, with what it found out about the age of
// what it shows.
type look struct {
	demand demand
	began  time.Time
	mu     sync.Mutex
	AsOf   time.Time // when the oldest answer in it was asked for
	UsedUp bool      // the key's hour is, so something kept is shown instead
}

// A demand is how new an answer must be.
type demand int

const (
	wantNow  demand = iota // a person asked
	wantNews               // a page looks by itself, since something happened
	wantKept               // it looks without a reason, or draws what it showed
)

// withoutNews is the value of backgroundHeader where nothing happened that the page
// shows.
const withoutNews = "look"

type lookKey struct{}

// looking begins a look at /v1; what is asked with its context belongs to it.
func (s *Server) looking(c *httpd.Call) (context.Context, *look) {
	now := s.now()
	l := &look{began: now, AsOf: now}
	switch c.Request.Header.Get(backgroundHeader) {
	case "":
	case withoutNews:
		l.demand = wantKept
	default:
		l.demand = wantNews
	}
	return context.WithValue(c.Request.Context(), lookKey{}, l), l
}

// tellAge says how old what is shown was when the look began (RFC 9111 part 5.1), so
// that the page's script knows whether what it waits for is in it.
func (l *look) tellAge(c *httpd.Call) {
	if age := l.began.Sub(l.AsOf); age > 0 {
		c.Writer().Header().Set("Age", strconv.FormatInt(int64(math.Ceil(age.Seconds())), 10))
	}
}

func (l *look) shows(asked time.Time, usedUp bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if asked.Before(l.AsOf) {
		l.AsOf = asked
	}
	l.UsedUp = l.UsedUp || usedUp
}

// get gives an answer that is new enough for the look of ctx; fetch asks the gate.
func (k *kept) get(ctx context.Context, r request, fetch func() (int, http.Header, []byte, error)) (int, []byte, error) {
	l, ok := ctx.Value(lookKey{}).(*look)
	if !ok {
		l = new(look)
	}
	key := r.path + "?" + r.query.Encode()
	if l.demand != wantNow { // one of several looks asks, and the others have its answer
		turn := k.entry(key).turn
		select {
		case turn <- struct{}{}:
			defer func() { <-turn }()
		case <-ctx.Done():
			return 0, nil, ctx.Err()
		}
		if had := k.entry(key); k.good(had, l.demand) {
			l.shows(had.asked, false)
			return had.status, had.body, nil
		}
	}
	asked := k.now()
	status, header, body, err := fetch()
	if err != nil {
		return 0, nil, err
	}
	k.note(header)
	if status == http.StatusTooManyRequests { // what was there last is more than a refusal
		if had := k.entry(key); had.status != 0 && had.status < http.StatusBadRequest && k.now().Sub(had.asked) < keptLife {
			l.shows(had.asked, true)
			return had.status, had.body, nil
		}
		return status, body, nil
	}
	k.put(key, asked, status, body)
	return status, body, nil
}

// entry gives a copy of what is kept, so that it can be read without the lock.
func (k *kept) entry(key string) keptAnswer {
	k.mu.Lock()
	defer k.mu.Unlock()
	one := k.answers[key]
	if one == nil {
		one = &keptAnswer{turn: make(chan struct{}, 1), asked: k.now()}
		k.answers[key] = one
		k.makeRoom(key)
	}
	return *one
}

// good reports whether an answer is new enough for a page that looks by itself.
// Under half of the key's hour it may be older, by the square of what is missing,
// so that a part of the hour stays whatever is open in browsers.
func (k *kept) good(a keptAnswer, d demand) bool {
	enough := keptFresh
	if d == wantKept && a.status < http.StatusBadRequest {
		enough = keptQuiet
	}
	k.mu.Lock()
	scarce := max(1, 0.5/max(k.quota, 0.001))
	k.mu.Unlock()
	return a.status != 0 && k.now().Sub(a.asked) < min(keptLife, time.Duration(float64(enough)*scarce*scarce))
}

// note reads what an answer tells of the key's hour (spec/v1.md part 3).
func (k *kept) note(h http.Header) {
	limit, err := strconv.Atoi(h.Get("X-RateLimit-Limit"))
	if err != nil || limit <= 0 {
		return
	}
	remaining, err := strconv.Atoi(h.Get("X-RateLimit-Remaining"))
	if err != nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.quota = float64(remaining) / float64(limit)
}

func (k *kept) put(key string, asked time.Time, status int, body []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	had := k.answers[key]
	if had != nil && had.status != 0 && asked.Before(had.asked) {
		return // a later question was answered first
	}
	one := &keptAnswer{asked: asked, status: status, body: body, turn: make(chan struct{}, 1)}
	if had != nil {
		one.turn = had.turn
	}
	k.answers[key] = one
	k.makeRoom(key)
}

// makeRoom forgets what is too old to be shown, and the oldest of what is too much.
func (k *kept) makeRoom(but string) {
	size := 0
	for key, one := range k.answers {
		if k.now().Sub(one.asked) >= keptLife {
			delete(k.answers, key)
			continue
		}
		size += len(one.body)
	}
	for len(k.answers) > maxKept || size > maxKeptBytes {
		oldest := ""
		for key, one := range k.answers {
			if key != but && (oldest == "" || one.asked.Before(k.answers[oldest].asked)) {
				oldest = key
			}
		}
		if oldest == "" {
			return
		}
		size -= len(k.answers[oldest].body)
		delete(k.answers, oldest)
	}
}
