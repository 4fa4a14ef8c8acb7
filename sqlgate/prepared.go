package sqlgate

import (
	"context"
	"encoding/binary"
	"slices"
	"strconv"
	"strings"
	"time"

	"writegate/commands"
	"writegate/commands/fault"
	"writegate/eventlog/event"
	"writegate/sqlgate/classify"
	"writegate/sqlgate/pgexec"
	"writegate/sqlgate/policy"
)

// sweepEvery is how often sessions that idle are looked for.
const sweepEvery = time.Minute

// bound is a prepared statement with the arguments of one EXECUTE.
type bound struct {
	*prepared
	types  []uint32
	names  pgexec.Types // of those that are not built in
	values [][]byte     // text; nil is NULL
}

// joinSession is the part of the journey between parse and classification: it
// finds the session that the request names, and puts the inner statement in the
// place of an EXECUTE. leave must be called when the request ends.
func (g *Gate) joinSession(ctx context.Context, s *submission) (leave func(), err error) {
	leave = func() {}
	control := s.classification.Session
	if control != nil && s.SessionID == "" {
		return leave, errNoSessionID()
	}
	if s.SessionID != "" {
		if leave, err = g.enterSession(ctx, s); err != nil {
			return leave, err
		}
	}
	switch s.classification.QueryType {
	case classify.TypePrepare:
		s.prepare, err = g.prepareOf(ctx, s)
	case classify.TypeExecute:
		err = g.replaceExecute(ctx, s)
	case classify.TypeDeallocate:
		err = g.mayDeallocate(s)
	}
	return leave, err
}

func errNoSessionID() error {
	return fault.New(fault.SessionNotFound, "PREPARE, EXECUTE and DEALLOCATE need a session_id: prepared statements belong to a session of the gate. Send one, or send the statement itself.")
}

// enterSession finds the session of whoever asks. For what needs none it may be absent.
func (g *Gate) enterSession(ctx context.Context, s *submission) (leave func(), err error) {
	if s.Preview {
		name := s.sessionName()
		s.session = g.sessions.peek(name)
		if s.session == nil && s.classification.QueryType == classify.TypeExecute {
			name.who.operator = "" // an operator sees the plan of what somebody else prepared; nothing runs
			s.session = g.sessions.peek(name)
		}
		return func() {}, nil
	}
	found, ended, err := g.sessions.enter(s.sessionName(), pgexec.ClientOf(ctx), s.classification.QueryType == classify.TypePrepare)
	leave = func() {
		if found != nil {
			g.sessions.leave(found)
		}
	}
	if len(ended) > 0 {
		if closed := g.Commands.CloseSessions(context.WithoutCancel(ctx), ended); closed != nil {
			return leave, closed
		}
	}
	s.session = found
	return leave, err
}

// prepareOf is what a PREPARE would keep. The inner statement must be one that
// could be judged by itself, and its types built in.
func (g *Gate) prepareOf(ctx context.Context, s *submission) (*prepared, error) {
	control := s.classification.Session
	if control == nil {
		return nil, fault.New(fault.UnsupportedSQLShape, "The text of the prepared statement cannot be told apart from its PREPARE. Write it as PREPARE name AS statement, without comments before AS.")
	}
	inner, err := g.Classifier.Classify(ctx, control.Inner)
	if err != nil {
		return nil, err
	}
	p := &prepared{name: strings.Clone(control.Name), sql: strings.Clone(control.Inner), holder: pgexec.ClientOf(ctx)} // parts of a text that may be much longer
	for i, t := range control.Types {
		oid, ok := builtinType(&t)
		if !ok || t.Odd {
			return nil, unbindable("The type of parameter "+strconv.Itoa(i+1)+" is not built into PostgreSQL", i+1)
		}
		p.types = append(p.types, oid)
	}
	count := max(len(p.types), inner.Params)
	if count > preparedParams {
		return nil, FieldsFault(map[string]string{"sql": "has " + strconv.Itoa(count) + " parameters, and a prepared statement has at most " + strconv.Itoa(preparedParams)})
	}
	p.types = append(p.types, make([]uint32, count-len(p.types))...)
	p.digest = p.hash()
	return p, nil
}

// hash covers what an approval of EXECUTE is for besides its own text: the inner
// text and the types that its arguments get.
func (p *prepared) hash() [32]byte {
	types := make([]byte, 0, 4*len(p.types))
	for _, t := range p.types {
		types = binary.BigEndian.AppendUint32(types, t)
	}
	return digestOf("gate.prepared.v1", p.sql, string(types))
}

func builtinType(t *classify.TypeName) (oid uint32, ok bool) {
	if t.Schema != "" && t.Schema != "pg_catalog" {
		return 0, false
	}
	return pgexec.BuiltinType(t.Name, t.Array)
}

func unbindable(what string, argument int) *fault.Fault {
	return fault.New(fault.UnsupportedSQLShape, "%s. Arguments are numbers, strings, true, false or NULL, or one of them cast to a built-in type; write anything else as a string.", what).
		With("argument", argument)
}

// replaceExecute puts the prepared statement in the place of its EXECUTE: from
// here on it goes through the four steps like any other, with its arguments as
// parameters. Approvals are for both texts.
func (g *Gate) replaceExecute(ctx context.Context, s *submission) error {
	p, err := g.sessions.find(s.session, s.classification.Session.Name)
	if err != nil {
		return err
	}
	return g.putInPlace(ctx, s, p)
}

func (g *Gate) putInPlace(ctx context.Context, s *submission, p *prepared) error {
	b, err := p.bind(s.classification.Session.Args)
	if err != nil {
		return err
	}
	inner, err := g.Classifier.Classify(ctx, p.sql)
	if err != nil {
		return err
	}
	if b.names, err = g.Database.TypeNames(ctx, b.types); err != nil {
		return err
	}
	inner = g.withDatabase(ctx, s, inner.WithTypes(b.types, namesOf(b.names)), p.sql)
	if i, found := slices.BinarySearch(inner.Flags, classify.FlagPrepared); !found {
		inner.Flags = slices.Insert(slices.Clone(inner.Flags), i, classify.FlagPrepared)
	}
	s.classification, s.execute = inner, b
	s.record.RequestDigest = digestOf("gate.request.prepared.v1", string(s.record.RequestDigest[:]), string(p.digest[:]))
	return nil
}

// bind makes the arguments parameters.
func (p *prepared) bind(args []classify.Argument) (*bound, error) {
	if len(args) != len(p.types) {
		return nil, FieldsFault(map[string]string{"sql": "has " + strconv.Itoa(len(args)) + " arguments, and the prepared statement has " + strconv.Itoa(len(p.types)) + " parameters"})
	}
	b := &bound{prepared: p, types: slices.Clone(p.types), values: make([][]byte, len(args))}
	for i := range args {
		if err := b.argument(i, &args[i]); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// argument binds one constant. A cast says its type; where the PREPARE did too
// they have to agree, since the gate converts nothing.
func (b *bound) argument(i int, a *classify.Argument) error {
	which := "Argument " + strconv.Itoa(i+1)
	if a.Kind == classify.ArgumentOther {
		return unbindable(which+" is not a constant", i+1)
	}
	if a.Cast != nil {
		oid, ok := builtinType(a.Cast)
		switch {
		case !ok || a.Cast.Odd || a.Cast.Modified:
			return unbindable(which+" is cast to a type that is not a plain built-in one", i+1)
		case b.types[i] != 0 && b.types[i] != oid:
			return unbindable(which+" is cast to "+pgexec.TypeLabel(oid)+", and the statement was prepared with "+pgexec.TypeLabel(b.types[i]), i+1)
		}
		b.types[i] = oid
	}
	switch {
	case a.Kind == classify.ArgumentNull:
		return nil
	case a.Kind == classify.ArgumentNumber && !pgexec.TakesNumber(b.types[i]), a.Kind == classify.ArgumentBoolean && !pgexec.TakesBoolean(b.types[i]):
		return unbindable(which+" is a "+a.Kind+", which is no "+pgexec.TypeLabel(b.types[i]), i+1)
	}
	b.values[i] = append([]byte{}, a.Text...)
	return nil
}

// mayDeallocate checks that there is what is to be forgotten.
func (g *Gate) mayDeallocate(s *submission) error {
	name := s.classification.Session.Name
	if name == "" {
		if s.session == nil || !g.sessions.began(s.session) {
			return errNoSession()
		}
		return nil
	}
	_, err := g.sessions.find(s.session, name)
	return err
}

// control carries out PREPARE and DEALLOCATE: the evidence first, then the
// change in memory. Nothing of it reaches the database, so there is no
// execution and no result to wait for.
func (g *Gate) control(ctx context.Context, s *submission) (*Answer, error) {
	if err := s.session.turn.lock(ctx); err != nil {
		return nil, err
	}
	defer s.session.turn.unlock()
	if err := g.takeRoom(s); err != nil {
		return nil, g.refuse(ctx, s, err)
	}
	command := &commands.RecordDecision{Request: s.record, Decision: s.decision, Answered: true}
	if s.approved {
		command.UseApproval = s.ApprovalID
	}
	if !g.sessions.began(s.session) {
		command.OpenSession = &event.SessionOpened{Role: s.Role, Host: s.Host, Principal: s.TLSSubject}
	}
	recorded, err := g.recordDecision(ctx, s, command)
	if err != nil {
		if s.prepare != nil {
			g.sessions.giveUp(s.session, s.prepare)
		}
		return nil, err
	}
	if s.prepare != nil {
		g.sessions.add(s.session, s.prepare)
	} else {
		g.sessions.remove(s.session, s.classification.Session.Name)
	}
	a := s.answer()
	a.Executed, a.Session, a.ExecutionState, a.CommandTag = true, true, StateSuccess, s.controlTag()
	a.Duration, a.Events = time.Since(s.watch.begin), recorded.Events
	return a, nil
}

// takeRoom makes sure, in the session's turn, of what was looked at before it.
func (g *Gate) takeRoom(s *submission) error {
	if s.prepare != nil {
		return g.sessions.room(s.session, s.prepare)
	}
	return g.mayDeallocate(s)
}

// controlTag is the tag that PostgreSQL would answer.
func (s *submission) controlTag() string {
	if s.prepare == nil && s.classification.Session.Name == "" {
		return "DEALLOCATE ALL"
	}
	return strings.ToUpper(s.classification.QueryType)
}

// isControl reports whether the gate answers the statement itself.
func (s *submission) isControl() bool {
	return policy.SessionControl(s.classification.QueryType) || s.wire != nil && s.wire.control
}

// needsSession refuses in a dry run, which has no sessions, what a preview in
// none would refuse.
func needsSession(c *classify.Classification, sessionID string) error {
	switch c.QueryType {
	case classify.TypePrepare, classify.TypeExecute, classify.TypeDeallocate:
		if sessionID == "" {
			return errNoSessionID()
		}
		if c.QueryType != classify.TypePrepare {
			return errNoSession()
		}
	}
	return nil
}

// executesPrepared holds for EXPLAIN EXECUTE, CREATE TABLE AS EXECUTE and their
// kin: the database knows nothing of what was prepared at the gate.
func executesPrepared(c *classify.Classification) bool {
	return slices.Contains(c.QueryTypes, classify.TypeExecute)
}

// KeepSessions ends sessions that idle, until ctx ends.
func (g *Gate) KeepSessions(ctx context.Context) {
	ticker := time.NewTicker(sweepEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			g.closeIdle(ctx)
		}
	}
}

func (g *Gate) closeIdle(ctx context.Context) {
	ended := g.sessions.sweep()
	if len(ended) == 0 {
		return
	}
	if err := g.Commands.CloseSessions(context.WithoutCancel(ctx), ended); err != nil {
		g.Logger.Error("the end of idle sessions could not be written to the event log", "source", "gate", "sessions", len(ended), "cause", err.Error())
	}
}

// Sessions counts the prepared-statement sessions of this moment.
func (g *Gate) Sessions() SessionStats { return g.sessions.stats() }
