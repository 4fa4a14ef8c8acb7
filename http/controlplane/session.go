package controlplane

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"net/http"
	"sync"
	"time"
)

// maxSessions bounds the memory of logins; the one idle longest gives way.
const maxSessions = 1000

// A session is one login. It is found by the digest of its secret, so that what
// lies in memory opens nothing.
type session struct {
	user    string
	csrf    string
	utc     bool // times are shown in UTC, not in the browser's zone
	started time.Time
	seen    time.Time
}

// ends is when the session is over if nobody touches a key.
func (s *session) ends() time.Time {
	idle, life := s.seen.Add(sessionIdle), s.started.Add(sessionLife)
	if idle.Before(life) {
		return idle
	}
	return life
}

type sessions struct {
	now  func() time.Time
	mu   sync.Mutex
	live map[[sha256.Size]byte]*session
}

func newSessions(now func() time.Time) *sessions {
	return &sessions{now: now, live: make(map[[sha256.Size]byte]*session)}
}

// open begins a session and gives its secret.
func (s *sessions) open(user string) (secret string, opened session) {
	secret = randomText()
	now := s.now()
	begun := &session{user: user, csrf: randomText(), started: now, seen: now}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweep(now)
	s.live[sha256.Sum256([]byte(secret))] = begun
	return secret, *begun
}

// sweep forgets what is over, and makes room.
func (s *sessions) sweep(now time.Time) {
	var oldest [sha256.Size]byte
	var since time.Time
	for key, one := range s.live {
		if !now.Before(one.ends()) {
			delete(s.live, key)
			continue
		}
		if since.IsZero() || one.seen.Before(since) {
			oldest, since = key, one.seen
		}
	}
	if len(s.live) >= maxSessions {
		delete(s.live, oldest)
	}
}

// find gives the session of a request; active tells that a person did
// something, which keeps the session alive.
func (s *sessions) find(secret string, active bool) (session, bool) {
	if secret == "" {
		return session{}, false
	}
	key := sha256.Sum256([]byte(secret))
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	one, ok := s.live[key]
	if !ok {
		return session{}, false
	}
	if !now.Before(one.ends()) {
		delete(s.live, key)
		return session{}, false
	}
	if active {
		one.seen = now
	}
	return *one, true
}

// turnTimes has the pages of a session show times the other way.
func (s *sessions) turnTimes(secret string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if one, ok := s.live[sha256.Sum256([]byte(secret))]; ok {
		one.utc = !one.utc
	}
}

func (s *sessions) close(secret string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.live, sha256.Sum256([]byte(secret)))
}

// cookieName carries, where it can, the browser's own promise that the cookie
// came over HTTPS from this very host (RFC 6265bis, part 4.1.3.2).
func (s *Server) cookieName() string {
	if s.options.Secure {
		return "__Host-gate_session"
	}
	return "gate_session"
}

func (s *Server) cookie(value string, age time.Duration) *http.Cookie {
	return &http.Cookie{Name: s.cookieName(), Value: value, Path: "/", HttpOnly: true, Secure: s.options.Secure,
		SameSite: http.SameSiteStrictMode, MaxAge: int(age / time.Second)}
}

func (s *Server) secretOf(r *http.Request) string {
	c, err := r.Cookie(s.cookieName())
	if err != nil {
		return ""
	}
	return c.Value
}

// rightToken compares a CSRF token in constant time.
func (s *session) rightToken(token string) bool {
	return subtle.ConstantTimeCompare([]byte(token), []byte(s.csrf)) == 1
}

func randomText() string {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // never fails (crypto/rand)
	return base64.RawURLEncoding.EncodeToString(b)
}
