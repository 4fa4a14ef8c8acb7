package projections

import (
	"crypto/sha256"
	"encoding/binary"
	"time"

	"writegate/eventlog/event"
)

// An AgentSubject is a subject of the issuer of agents' tokens that was bound to an agent:
// a JWT of it is a credential of that agent as its own tokens are.
type AgentSubject struct {
	ID         string
	AgentID    string
	Project    string // of the agent
	Issuer     string
	Subject    string
	Scopes     []string
	Seq        uint64    // of agent_subject_bound
	TokensFrom time.Time // tokens that were issued before are not good; zero = all are
	CreatedAt  time.Time
	CreatedBy  string
	Reason     string

	UnboundAt     time.Time // zero = nobody unbound it
	UnboundBy     string
	UnboundReason string

	UsedAt time.Time // start of the last minute with recorded usage or a statement; zero = never
}

// BoundSubject tells whether a subject speaks for the agent still: nobody unbound it, and the
// agent was not deactivated since. What that ended stays ended when the agent is back in service.
func (a *Agent) BoundSubject(s *AgentSubject) bool { return a.SubjectEnd(s).IsZero() }

// SubjectEnd is when a subject ceased to speak for the agent; zero while it does.
func (a *Agent) SubjectEnd(s *AgentSubject) time.Time {
	switch {
	case !s.UnboundAt.IsZero():
		return s.UnboundAt
	case s.Seq < a.DeactivatedSeq:
		return a.EndedAt
	}
	return time.Time{}
}

func (s *AgentSubject) walk(c *codec) {
	texts(c, &s.ID, &s.AgentID, &s.Project, &s.Issuer, &s.Subject, &s.CreatedBy, &s.Reason, &s.UnboundBy, &s.UnboundReason)
	c.strings(&s.Scopes)
	number(c, &s.Seq)
	c.moments(&s.TokensFrom, &s.CreatedAt, &s.UnboundAt, &s.UsedAt)
}

func subjectKey(id string) []byte { return []byte(keySubject + id) }

// subjectOfKey leads from what an issuer calls somebody to the last binding of that name.
func subjectOfKey(issuer, subject string) []byte {
	h := sha256.New()
	for _, part := range []string{issuer, subject} {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		h.Write([]byte(part))
	}
	return h.Sum([]byte(keySubjectOf))
}

func agentSubjectBound(t *tx, e *event.Envelope, p *event.AgentSubjectBound) {
	s := AgentSubject{ID: p.SubjectID, AgentID: e.Context.AgentID, Project: e.Context.Project, Issuer: p.Issuer, Subject: p.Subject, Scopes: p.Scopes,
		Seq: e.Seq, CreatedAt: e.Time, CreatedBy: p.By, Reason: p.Reason}
	if p.TokensFrom != 0 {
		s.TokensFrom = time.Unix(0, p.TokensFrom).UTC()
	}
	t.put(subjectKey(s.ID), &s)
	t.put(subjectOfKey(s.Issuer, s.Subject), ptr(name(s.ID)))
	t.keep(listKey(keySubjectList, "", s.Seq), []byte(s.ID))
}

func (t *tx) subject(id string, change func(*AgentSubject)) {
	var s AgentSubject
	if id == "" || !t.get(subjectKey(id), &s) {
		return
	}
	change(&s)
	t.put(subjectKey(id), &s)
}

func agentSubjectUnbound(t *tx, e *event.Envelope, p *event.AgentSubjectUnbound) {
	t.subject(p.SubjectID, func(s *AgentSubject) {
		if s.UnboundAt.IsZero() {
			s.UnboundAt, s.UnboundBy, s.UnboundReason = e.Time, p.By, p.Reason
		}
	})
}

// AgentSubject finds a binding of a subject by its id, whatever became of it since.
func (v *View) AgentSubject(id string) (s AgentSubject, ok bool, err error) {
	ok, err = v.read(subjectKey(id), &s)
	return s, ok, err
}

// SubjectOf finds the last binding of what an issuer calls somebody, whatever became of it
// since.
func (v *View) SubjectOf(issuer, subject string) (s AgentSubject, ok bool, err error) {
	var id name
	if ok, err = v.read(subjectOfKey(issuer, subject), &id); err != nil || !ok {
		return s, false, err
	}
	return v.AgentSubject(string(id))
}

// A SubjectFilter selects bindings of subjects; an empty field selects all.
type SubjectFilter struct {
	AgentID string
	Bound   *bool // whether the subject speaks for its agent still
}

// EachSubject lists bindings of subjects by the time at which they were made, one by one, as
// EachApproval; take is handed the agent of each, too.
func (v *View) EachSubject(f SubjectFilter, page Page, take func(*AgentSubject, *Agent) (room bool, err error)) (next string, err error) {
	bound := ""
	if f.Bound != nil {
		bound = map[bool]string{true: "yes", false: "no"}[*f.Bound]
	}
	var agent Agent
	var failed error
	next, err = each(v, listing{keySubjectList, keySubject, []string{""}, []string{f.AgentID, bound}}, page, func(s *AgentSubject) bool {
		if !matches(f.AgentID, s.AgentID) {
			return false
		}
		var readErr error
		if agent, _, readErr = v.AnyAgent(s.AgentID); readErr != nil && failed == nil {
			failed = readErr
		}
		return f.Bound == nil || agent.BoundSubject(s) == *f.Bound
	}, func(s *AgentSubject) (bool, error) { return take(s, &agent) })
	if err == nil {
		err = failed
	}
	return next, err
}

// BoundSubjects counts the subjects that speak for an agent.
func (v *View) BoundSubjects(agentID string) (n int, err error) {
	yes := true
	err = v.all(Page{Limit: maxLimit}, func(page Page) (string, error) {
		return v.EachSubject(SubjectFilter{AgentID: agentID, Bound: &yes}, page, func(*AgentSubject, *Agent) (bool, error) {
			n++
			return true, nil
		})
	})
	return n, err
}
