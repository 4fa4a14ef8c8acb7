package sqlgate

import (
	"cmp"
	"sync"
	"time"

	"writegate/commands"
	"writegate/commands/fault"
)

// Limits of prepared-statement sessions (spec/decisions.md part 8,
// design/execution-and-wire.md part 5).
const (
	sessionIdle       = 15 * time.Minute
	sessionStatements = 100
	sessionBytes      = 4 << 20  // of texts, names and types, in one
	sessionsBytes     = 64 << 20 // of them, in all
	preparedParams    = 1000
)

// shareOfSessions is how much of what all sessions may have one client alone gets:
// three quarters, so that one cannot fill all.
func shareOfSessions(most int) int { return most - most/4 }

// An identity is whom a session is bound to: the claims and, where there are
// such, the verified subject, the agent of the token and the operator: what is
// prepared in a session may run under whatever opens doors to its holder.
type identity struct {
	actor, app, tenant, role, host, env, principal, agent, operator string
}

func (r *Request) sessionName() sessionName {
	return sessionName{r.SessionID, identity{r.Actor, r.App, r.Tenant, r.Role, r.Host, r.Env, r.TLSSubject, r.Agent.ID, r.Operator}}
}

// A sessionName is how a session is found. Each identity has session_ids of its own,
// so that nobody takes another's by using it first.
type sessionName struct {
	id  string
	who identity
}

// A prepared is one prepared statement. It never changes.
type prepared struct {
	name   string
	sql    string   // the inner text, byte for byte
	types  []uint32 // of its parameters; 0 is one that the server infers
	digest [32]byte // of text and types
	holder string   // the client that it counts for (pgexec.ClientOf)
}

// bytes is what it takes of the room for them.
func (p *prepared) bytes() int { return len(p.name) + len(p.sql) + 4*len(p.types) }

// A session holds what one identity prepared under one session_id. Its fields, but
// for its name and turn, belong to the lock of its sessions.
type session struct {
	sessionName
	holder string // the client that began it
	turn   turns  // PREPARE and DEALLOCATE change it one at a time

	begun      bool // its session_opened is in the log
	users      int  // requests under way in it
	used       time.Time
	bytes      int
	statements map[string]*prepared
}

// sessions are all sessions, in memory alone (spec/gate.md part 2.9). Nothing
// of them reaches the database, and they hold no connection.
type sessions struct {
	now  func() time.Time
	most int

	mu     sync.Mutex
	byName map[sessionName]*session
	bytes  int
	of     map[string]held // by client
}

// held is what one client has of them.
type held struct{ sessions, bytes int }

// count adds to what a client has; the caller holds the lock.
func (t *sessions) count(holder string, sessions, bytes int) {
	h := t.of[holder]
	h.sessions += sessions
	h.bytes += bytes
	if t.of[holder] = h; h == (held{}) {
		delete(t.of, holder)
	}
}

func newSessions(most int, now func() time.Time) *sessions {
	return &sessions{now: now, most: most, byName: map[sessionName]*session{}, of: map[string]held{}}
}

// errNoSession says nothing of sessions that others have under the same session_id.
func errNoSession() *fault.Fault {
	return fault.New(fault.SessionNotFound, "There is no prepared-statement session with this session_id for this identity. Sessions end after 15 minutes without use and with the service; PREPARE the statements again.")
}

// enter finds the request's session and holds it open until leave. Without one
// the session is nil, unless open says that this request may begin it. The
// error is session_limit_exceeded. What had idled too long is ended by the way and given back.
func (t *sessions) enter(name sessionName, holder string, open bool) (s *session, ended []commands.ClosedSession, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s = t.byName[name]; s != nil && t.idles(s) {
		ended = append(ended, t.end(s))
		s = nil
	}
	switch {
	case s == nil && !open:
		return nil, ended, nil
	case s == nil:
		if len(t.byName) >= t.most || t.of[holder].sessions >= shareOfSessions(t.most) {
			ended = append(ended, t.endIdle()...)
		}
		if len(t.byName) >= t.most {
			return nil, ended, fault.New(fault.SessionLimitExceeded, "There are %d prepared-statement sessions, as many as there may be. Use a session that you have, or send the statement itself.", t.most).With("max", t.most).With("retry_after_seconds", t.soonest())
		}
		if each := shareOfSessions(t.most); t.of[holder].sessions >= each {
			return nil, ended, fault.New(fault.SessionLimitExceeded, "This client has %d prepared-statement sessions, and the rest is kept for others. Use a session that you have, or send the statement itself.", each).
				With("limit", "client_sessions").With("max", each).With("retry_after_seconds", t.soonest())
		}
		s = &session{sessionName: name, holder: holder, turn: newTurns(), statements: map[string]*prepared{}}
		t.byName[name] = s
		t.count(holder, 1, 0)
	}
	s.users++
	s.used = t.now()
	return s, ended, nil
}

// leave ends a request's hold. A session that came to nothing is forgotten.
func (t *sessions) leave(s *session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s.users--
	s.used = t.now()
	if s.users == 0 && !s.begun && t.byName[s.sessionName] == s {
		delete(t.byName, s.sessionName)
		t.count(s.holder, -1, 0)
	}
}

// peek finds a session for what changes nothing; nil without one.
func (t *sessions) peek(name sessionName) *session {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.byName[name]; s != nil && !t.idles(s) {
		return s
	}
	return nil
}

func (t *sessions) idles(s *session) bool {
	return s.users == 0 && t.now().Sub(s.used) >= sessionIdle
}

// endIdle ends all that idled too long; the caller holds the lock.
func (t *sessions) endIdle() (ended []commands.ClosedSession) {
	for _, s := range t.byName {
		if t.idles(s) {
			ended = append(ended, t.end(s))
		}
	}
	return ended
}

// soonest is the number of seconds until the first session can have idled too
// long; the caller holds the lock.
func (t *sessions) soonest() int {
	wait := sessionIdle
	for _, s := range t.byName {
		wait = min(wait, sessionIdle-t.now().Sub(s.used))
	}
	return max(1, int(wait.Seconds()))
}

// sweep is endIdle for the clock.
func (t *sessions) sweep() []commands.ClosedSession {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.endIdle()
}

func (t *sessions) end(s *session) commands.ClosedSession {
	delete(t.byName, s.sessionName)
	t.count(s.holder, -1, 0)
	for _, p := range s.statements {
		t.take(s, p, -1)
	}
	return commands.ClosedSession{SessionID: s.id, Actor: s.who.actor, App: s.who.app, Tenant: s.who.tenant, Env: s.who.env, Statements: len(s.statements)}
}

// find gives a prepared statement of a session that has begun.
func (t *sessions) find(s *session, name string) (*prepared, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s == nil || !s.begun {
		return nil, errNoSession()
	}
	p := s.statements[name]
	if p == nil {
		return nil, fault.New(fault.PreparedStatementNotFound, "The session has no prepared statement of this name. PREPARE it first.").With("name", name)
	}
	return p, nil
}

// began reports whether the session's opening is in the log.
func (t *sessions) began(s *session) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return s.begun
}

// room refuses a statement that the session cannot take. What it finds holds
// until add as far as this session goes: its turn is held.
func (t *sessions) room(s *session, p *prepared) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	full := func(limit string, got, most int) error {
		message := map[string]string{
			"client_sessions_bytes": "The sessions of this client cannot take another prepared statement (%s): the rest is kept for others. DEALLOCATE what is no longer needed, or send the statement itself.",
			"all_sessions_bytes":    "The sessions of all clients cannot take another prepared statement (%s). Send the statement itself, without PREPARE, or try again later.",
		}[limit]
		return fault.New(fault.SessionLimitExceeded, cmp.Or(message, "The session cannot take another prepared statement (%s). DEALLOCATE what is no longer needed, or use a session of its own."), limit).
			With("limit", limit).With("got", got).With("max", most).With("retry_after_seconds", int(sessionIdle.Seconds()))
	}
	switch {
	case s.statements[p.name] != nil:
		return FieldsFault(map[string]string{"sql": "names a prepared statement that the session has already; DEALLOCATE it first, or take another name"})
	case len(s.statements) >= sessionStatements:
		return full("statements", len(s.statements)+1, sessionStatements)
	case s.bytes+p.bytes() > sessionBytes:
		return full("session_bytes", s.bytes+p.bytes(), sessionBytes)
	case t.of[p.holder].bytes+p.bytes() > shareOfSessions(sessionsBytes):
		return full("client_sessions_bytes", t.of[p.holder].bytes+p.bytes(), shareOfSessions(sessionsBytes))
	case t.bytes+p.bytes() > sessionsBytes:
		return full("all_sessions_bytes", t.bytes+p.bytes(), sessionsBytes)
	}
	t.take(s, p, 1) // now, so that two sessions cannot both fill the last room
	return nil
}

// take counts a statement, or with sign -1 no more; the caller holds the lock.
func (t *sessions) take(s *session, p *prepared, sign int) {
	n := sign * p.bytes()
	t.bytes += n
	s.bytes += n
	t.count(p.holder, 0, n)
}

// add puts a statement into the room that was taken for it.
func (t *sessions) add(s *session, p *prepared) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s.begun = true
	s.statements[p.name] = p
}

// giveUp gives the room back.
func (t *sessions) giveUp(s *session, p *prepared) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.take(s, p, -1)
}

// remove forgets one statement, or with name "" all of them.
func (t *sessions) remove(s *session, name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range s.statements {
		if name == "" || p.name == name {
			delete(s.statements, p.name)
			t.take(s, p, -1)
		}
	}
}

// SessionStats are the prepared-statement sessions of this moment.
type SessionStats struct {
	Open       int `json:"open"`
	Statements int `json:"statements"`
	Bytes      int `json:"bytes"` // of statement text
}

func (t *sessions) stats() SessionStats {
	t.mu.Lock()
	defer t.mu.Unlock()
	stats := SessionStats{Bytes: t.bytes}
	for _, s := range t.byName {
		if s.begun {
			stats.Open++
			stats.Statements += len(s.statements)
		}
	}
	return stats
}
