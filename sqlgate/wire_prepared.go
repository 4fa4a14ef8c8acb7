package sqlgate

import (
	"context"
	"maps"

	"writegate/sqlgate/classify"
)

// PREPARE, EXECUTE and DEALLOCATE of the wire: the connection is the session, in
// one name space with Parse.

func checkPrepare(s *submission) func(*Wire, *wireOrder) error {
	return func(w *Wire, _ *wireOrder) error {
		bytes := inMemory(*s.prepare) // its classification is counted once it is there
		if err := w.room(s.prepare.name, bytes); err != nil {
			return err
		}
		return w.hold(bytes)
	}
}

func doPrepare(ctx context.Context, w *Wire, s *submission, _ *wireOrder) (wireReply, error) {
	p := s.prepare
	c, err := w.gate.Classifier.Classify(ctx, p.sql)
	if err != nil {
		return wireReply{}, err
	}
	names, err := w.gate.Database.TypeNames(ctx, p.types)
	if err != nil {
		return wireReply{}, err
	}
	st := &wireStatement{sql: p.sql, types: p.types, typeNames: names, classification: c.WithTypes(p.types, namesOf(names))}
	st.weigh()
	w.keep(p.name, st)
	return wireReply{}, nil
}

// deallocateAll ends the prepared statements that have a name.
func (w *Wire) deallocateAll() {
	maps.DeleteFunc(w.statements, func(name string, _ *wireStatement) bool { return name != "" })
}

// deallocation is DEALLOCATE of a name, or of all.
func (w *Wire) deallocation(s *submission) (*wireOrder, error) {
	if s.classification.Session == nil {
		return nil, nil
	}
	name := s.classification.Session.Name
	o := &wireOrder{Control: &classify.Control{Tag: "DEALLOCATE"}}
	if name == "" {
		o.Tag = "DEALLOCATE ALL"
		o.do = func(context.Context, *Wire, *submission, *wireOrder) (wireReply, error) {
			w.deallocateAll()
			return wireReply{}, nil
		}
		return o, nil
	}
	o.check = func(w *Wire, _ *wireOrder) error {
		_, err := w.statement(name)
		return err
	}
	o.do = func(_ context.Context, w *Wire, _ *submission, _ *wireOrder) (wireReply, error) {
		w.CloseStatement(name)
		return wireReply{}, nil
	}
	return o, nil
}

// replaceExecute puts the prepared statement in the place of its EXECUTE.
func (w *Wire) replaceExecute(ctx context.Context, s *submission) error {
	control := s.classification.Session
	if control == nil {
		return notThroughTheGate(classify.TypeExecute)
	}
	st, err := w.statement(control.Name)
	if err != nil {
		return err
	}
	switch c := s.wire.portal; {
	case st.empty, st.classification.Run == classify.RunNone: // it is for a message of its own
		return notThroughTheGate(classify.TypeExecute)
	case c != nil && len(c.params) > 0: // two sets of parameters for one statement
		return wireErrorf("0A000", "not available through the gate: EXECUTE with parameters of its own")
	}
	p := &prepared{name: st.name, sql: st.sql, types: make([]uint32, st.params())}
	copy(p.types, st.types)
	p.digest = p.hash()
	return w.gate.putInPlace(ctx, s, p)
}
