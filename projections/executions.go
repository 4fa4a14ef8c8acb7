package projections

import (
	"errors"

	"github.com/cockroachdb/pebble/v2"

	"writegate/eventlog/event"
)

// An openExecution is one that the batch changes. Events of an execution follow
// each other closely, so it is read once, changed in place, and written when the
// batch is: it, and its place in the list of executions.
type openExecution struct {
	Execution
	listed string // state under which it is in the list; "" = not yet
}

// open gives the execution of an event, which makes it where there is none yet.
func (t *tx) open(e *event.Envelope) *openExecution {
	id := e.Context.ExecutionID
	if x := t.executions[id]; x != nil {
		return x
	}
	s := t.space.scratch
	x := s.execution()
	s.key = append(append(s.key[:0], keyExecution...), id...)
	if id <= t.newest && t.get(s.key, &x.Execution) {
		x.listed = x.State
	} else {
		x.begin(e)
		if t.newest = max(t.newest, id); t.known != nil {
			t.known.add(s.key)
		}
	}
	t.executions[x.ID], t.opened = x, append(t.opened, x)
	t.size += len(s.key) + x.room()
	return x
}

// newestExecution is the greatest id of an execution in a space. Ids grow with
// time (RFC 9562, 5.7), so one behind it is new, which saves a look for a record
// that is not there.
func newestExecution(db *pebble.DB, space byte) (id string, err error) {
	first := physical(space, []byte(keyExecution))
	it, err := db.NewIter(&pebble.IterOptions{LowerBound: first, UpperBound: after(first)})
	if err != nil {
		return "", err
	}
	if it.Last() {
		id = string(it.Key()[len(first):])
	}
	return id, errors.Join(it.Error(), it.Close())
}

// begin is the first event of an execution.
func (x *openExecution) begin(e *event.Envelope) {
	c := &e.Context
	x.ID, x.State, x.Seq, x.RequestID, x.ApprovalID = c.ExecutionID, ExecutionNotExecuted, e.Seq, c.RequestID, c.ApprovalID
	x.Actor, x.App, x.Tenant, x.Env, x.SessionID = c.Actor, c.App, c.Tenant, c.Env, c.SessionID
	x.Operation, x.Fingerprint, x.PolicyVersion = c.Operation, c.Fingerprint, c.PolicyVersion
	x.AgentID, x.Project = c.AgentID, c.Project
}

// writeExecutions writes the executions that the batch changed, in the order in
// which it came to them: most of their keys grow with time, and a load sorts fast
// what is sorted already.
func (t *tx) writeExecutions() {
	s := t.space.scratch
	for _, x := range t.opened {
		s.key = append(append(s.key[:0], keyExecution...), x.ID...)
		s.value = marshal(s.value[:0], &x.Execution)
		t.move(s.key, s.value)
		if x.listed != x.State {
			if x.listed != "" {
				s.key = appendListKey(s.key[:0], keyExecutionList, x.listed, x.Seq)
				t.drop(s.key)
			}
			s.key = appendListKey(s.key[:0], keyExecutionList, x.State, x.Seq)
			s.value = append(s.value[:0], x.ID...)
			t.set(s.key, s.value)
		}
		s.free = append(s.free, x)
	}
	clear(t.executions)
	t.opened = t.opened[:0]
}

// A scratch is memory that one batch of a space leaves to the next.
type scratch struct {
	free       []*openExecution
	key, value []byte
	postings   fieldPostings
	dispatched event.ExecutionDispatched
	success    event.ExecutionSuccess
}

// execution gives an empty one.
func (s *scratch) execution() *openExecution {
	n := len(s.free)
	if n == 0 {
		return new(openExecution)
	}
	x := s.free[n-1]
	s.free = s.free[:n-1]
	*x = openExecution{Execution: Execution{Events: x.Events[:0]}}
	return x
}
