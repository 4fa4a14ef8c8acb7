package sqlgate

import (
	"context"
	"slices"
	"time"

	"writegate/commands"
	"writegate/commands/fault"
	"writegate/eventlog/event"
	"writegate/sqlgate/classify"
	"writegate/sqlgate/pgexec"
	"writegate/sqlgate/policy"
)

// describable are the statements that may return rows, or whose parameters the
// server knows: all others are NoData without asking.
var describable = []string{
	classify.TypeSelect, classify.TypeInsert, classify.TypeUpdate, classify.TypeDelete, classify.TypeMerge,
	classify.TypeShow, classify.TypeExplain, classify.TypeCall, classify.TypeExecute,
}

// DescribeStatement says which parameters a statement has, and which columns its
// result; nil columns: it returns none. The server parses it for that, so it is
// decided as at Execute, with evidence that is durable before the server hears of it.
func (w *Wire) DescribeStatement(ctx context.Context, name string) (params []uint32, columns []pgexec.Field, err error) {
	err = w.extended(ctx, func(ctx context.Context) error {
		st, err := w.statement(name)
		if err != nil {
			return err
		}
		d, err := w.describe(ctx, st, nil)
		if err != nil {
			return err
		}
		described := *st
		described.described, described.parameters, described.columns = true, d.Params, d.Fields
		if d.Types.Names != nil {
			described.typeNames = d.Types
		}
		described.weigh()
		if all := w.prepared() - st.bytes + described.bytes; name != "" && all > wireStatementBytes {
			return statementsFull("session_bytes", all, wireStatementBytes)
		}
		*st = described
		params, columns = d.Params, d.Fields
		return nil
	})
	return params, columns, err
}

// DescribePortal says which columns a portal returns, in the formats that its
// Bind asked for.
func (w *Wire) DescribePortal(ctx context.Context, portal string) (columns []pgexec.Field, err error) {
	err = w.extended(ctx, func(ctx context.Context) error {
		p := w.portals[portal]
		if p == nil {
			return wireErrorf("34000", "portal \"%s\" does not exist", portal)
		}
		if p.rows != nil {
			columns = p.rows.columns
			return nil
		}
		d, err := w.describe(ctx, p.statement, p)
		columns = slices.Clone(d.Fields)
		if err == nil && columns != nil && len(p.resultFormats) > 1 && len(p.resultFormats) != len(columns) {
			return wireErrorf("08P01", "bind message has %d result formats but query has %d columns", len(p.resultFormats), len(columns))
		}
		for i := range columns {
			columns[i].Format = formatAt(p.resultFormats, i)
		}
		return err
	})
	return columns, err
}

// describe asks the server, where the statement is one that may be asked about.
func (w *Wire) describe(ctx context.Context, st *wireStatement, p *wirePortal) (pgexec.Description, error) {
	quiet := pgexec.Description{Params: make([]uint32, st.params())}
	copy(quiet.Params, st.types)
	if st.empty {
		return quiet, nil
	}
	s, err := w.submission(ctx, st, &wireCall{wire: w, portal: p})
	if err != nil {
		return quiet, err
	}
	defer s.counted(time.Time{}) // a description counts nothing, unless it is refused by a decision
	order, err := w.controlOf(ctx, s)
	switch {
	case err != nil:
		return quiet, w.gate.refuse(ctx, s, err)
	case order != nil:
		return w.describeOrder(order, quiet), nil
	case w.unit.failed:
		return quiet, errFailedBlock()
	case s.classification.QueryType == classify.TypeExecute:
		if err := w.replaceExecute(ctx, s); err != nil {
			return quiet, w.refuseAs(ctx, s, err)
		}
	}
	if !slices.Contains(describable, s.classification.QueryType) || s.classification.Run == classify.RunNone {
		return quiet, nil
	}
	if err := w.knowTemporary(ctx, s); err != nil {
		return quiet, err
	}
	var d pgexec.Description
	_, err = w.gate.whileInForce(ctx, s, func() (_ *Answer, err error) {
		if err := w.decideDescription(ctx, s); err != nil {
			return nil, err
		}
		d, err = w.askServer(ctx, st, s)
		return nil, err
	})
	if s.execute != nil {
		d.Params = nil // its arguments stand in the text
	}
	return d, err
}

// describeOrder is what the gate itself answers: SHOW alone has a column.
func (w *Wire) describeOrder(o *wireOrder, quiet pgexec.Description) pgexec.Description {
	if o.Control != nil && o.Kind == classify.ControlShow {
		quiet.Fields = []pgexec.Field{w.showColumn(o)}
	}
	return quiet
}

// decideDescription decides as Execute will. What is blocked is refused with the
// evidence of that.
func (w *Wire) decideDescription(ctx context.Context, s *submission) error {
	g := w.gate
	if s.policy == nil || g.chain.Failed() {
		return g.chain.fault()
	}
	s.describes = true
	if err := g.decide(ctx, s); err != nil {
		return g.refuse(ctx, s, err)
	}
	if executesPrepared(&s.classification) {
		return w.refuseAs(ctx, s, notThroughTheGate(classify.TypeExecute))
	}
	if s.result.Decision == policy.Block && s.enforced {
		return w.stopDescription(ctx, s)
	}
	if err := w.unseen(s); err != nil {
		return w.refuseAs(ctx, s, err)
	}
	return nil
}

// stopDescription answers as Execute would: with the decision that stops it.
func (w *Wire) stopDescription(ctx context.Context, s *submission) error {
	a, err := w.gate.stop(ctx, s)
	if err != nil {
		return err
	}
	return &WireRefusal{Answer: a}
}

// askServer has the server describe what was decided. What nobody has approved
// yet is parsed only where that runs no code of a user's.
func (w *Wire) askServer(ctx context.Context, st *wireStatement, s *submission) (pgexec.Description, error) {
	text := s.statement()
	if s.execute == nil {
		text.ParamOIDs = st.types
	}
	names := classify.NamesOf(text.SQL)
	if !s.runs() && (names.Strings || s.classification.UserTypes) {
		return w.askUnapproved(ctx, st, s, pgexec.ParseRequest{
			SQL: text.SQL, Types: text.ParamOIDs, Relations: s.relations(), Words: names.Words, Operators: names.Operators,
		}, names.Unsure)
	}
	if w.unit.block != nil {
		o := w.gate.fenceOptions(s)
		if _, err := w.unit.block.DispatchRead(ctx, o); err != nil {
			return pgexec.Description{}, w.gate.refuse(ctx, s, err)
		}
		if err := w.recordDescribed(ctx, st, s); err != nil {
			return pgexec.Description{}, err
		}
		return w.unit.block.Describe(ctx, o, text.SQL, text.ParamOIDs, text.Definitions) // it may be about what the block made
	}
	reading, err := w.beginDescribe(ctx, st, s)
	if err != nil {
		return pgexec.Description{}, err
	}
	return reading.Describe(ctx, text.SQL, text.ParamOIDs, text.Definitions)
}

// beginDescribe takes the connection first: what waits for it is decided by the policy
// that is in force then. Where there is none nothing was sent.
func (w *Wire) beginDescribe(ctx context.Context, st *wireStatement, s *submission) (*pgexec.Reading, error) {
	text := s.statement()
	reading, err := w.gate.Database.BeginRead(ctx, &text, w.gate.limits(s))
	if err != nil {
		return nil, w.gate.refuse(ctx, s, err)
	}
	if err := w.recordDescribed(ctx, st, s); err != nil {
		reading.Release()
		return nil, err
	}
	return reading, nil
}

// askUnapproved describes a statement that waits for an approval, where its
// constants meet nothing but built-in types. Otherwise the answer is that of
// Execute, where everything is there that an approval is for; parameters that are
// still to come keep it from that.
func (w *Wire) askUnapproved(ctx context.Context, st *wireStatement, s *submission, p pgexec.ParseRequest, unsure bool) (d pgexec.Description, err error) {
	named := s.ApprovalID != ""
	if !named {
		s.ApprovalID, s.record.ApprovalID = w.approval(), w.approval()
	}
	if s.ApprovalID != "" && (st.params() == 0 || s.wire.portal != nil) { // else the values that it is for are still to come
		answer, err := w.gate.lookUpApproval(ctx, s)
		switch {
		case err != nil:
			if !named {
				w.forgetApproval() // as at Execute: it serves one statement
			}
			return d, err
		case answer != nil:
			return d, &WireRefusal{Answer: answer}
		}
		if err := w.decideDescription(ctx, s); err != nil {
			return d, err
		}
		if s.runs() {
			return w.askServer(ctx, st, s)
		}
	}
	if !unsure && !s.classification.UserTypes {
		reading, err := w.beginDescribe(ctx, st, s)
		if err != nil {
			return d, err
		}
		why := ""
		d, why, err = reading.DescribeHarmless(ctx, p)
		// It is parsed on a connection beside the block, which may wait for its locks.
		ownLock := w.unit.block != nil && err != nil && (fault.CodeOf(err) == fault.DBQueryTimeout || fault.Of(err).Details["sqlstate"] == "55P03")
		if err == nil && why == "" || err != nil && !ownLock {
			return d, err
		}
	}
	if st.params() > 0 && s.wire.portal == nil {
		return d, w.refuseAs(ctx, s, &WireError{
			SQLState: "0A000", Message: "not available through the gate: describing a statement that needs an approval, where that may run the code of a type that is not built in",
			Hint: "Send it with its parameters, without asking for its description first.",
		})
	}
	return d, w.stopDescription(ctx, s)
}

// describedUnder is the decision that lets a statement be described, as it stands
// in the log: while it comes out the same it serves again.
type describedUnder struct {
	policy             *runningPolicy
	mode               string
	decision, reason   string
	fingerprint        string   // which names of temporary relations are a part of
	prepared           [32]byte // of an EXECUTE: what it runs
	enforced, approved bool
}

// recordDescribed puts the decision into the log, where the same one about the
// same statement is not there yet.
func (w *Wire) recordDescribed(ctx context.Context, st *wireStatement, s *submission) error {
	now := describedUnder{policy: s.policy, mode: s.mode, decision: s.decision.Decision, reason: s.decision.ReasonCode, fingerprint: s.classification.Fingerprint,
		enforced: s.enforced, approved: s.approved}
	if s.execute != nil {
		now.prepared = s.execute.digest
	}
	if st.evidence != nil && *st.evidence == now {
		if err := w.stands(); err != nil {
			return w.refuseAs(ctx, s, err)
		}
		if !w.gate.decides(s) {
			return ErrPolicyChanged
		}
		return w.flushAhead(ctx) // what was set goes along
	}
	if err := w.gate.recordDescription(ctx, s); err != nil {
		return err
	}
	st.evidence = &now
	return nil
}

// recordDescription puts the decision about a statement that the server is only
// to describe or to plan into the log.
func (g *Gate) recordDescription(ctx context.Context, s *submission) error {
	command := &commands.RecordDecision{Request: s.record, Decision: s.decision}
	command.Decision.Run = event.RunDescribe
	g.Step("describe.before_append")
	_, err := g.record(ctx, s, command)
	if err == nil {
		g.Step("describe.appended")
	}
	return err
}
