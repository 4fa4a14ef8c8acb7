package sqlgate

import (
	"context"
	"slices"

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
// result; nil columns: it returns none. The server parses it for that, so what
// policy blocks is refused here as at Execute, and with the same evidence.
func (w *Wire) DescribeStatement(ctx context.Context, name string) (params []uint32, columns []pgexec.Field, err error) {
	err = w.extended(ctx, func() error {
		st, err := w.statement(name)
		if err != nil {
			return err
		}
		d, err := w.describe(ctx, st)
		if err != nil {
			return err
		}
		st.described, st.parameters, st.columns = true, d.Params, d.Fields
		params, columns = d.Params, d.Fields
		return nil
	})
	return params, columns, err
}

// DescribePortal says which columns a portal returns, in the formats that its
// Bind asked for.
func (w *Wire) DescribePortal(ctx context.Context, portal string) (columns []pgexec.Field, err error) {
	err = w.extended(ctx, func() error {
		p := w.portals[portal]
		if p == nil {
			return wireErrorf("34000", "portal \"%s\" does not exist", portal)
		}
		if p.rows != nil {
			columns = p.rows.columns
			return nil
		}
		d, err := w.describe(ctx, p.statement)
		columns = slices.Clone(d.Fields)
		if err == nil && len(p.resultFormats) > 1 && len(p.resultFormats) != len(columns) {
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
func (w *Wire) describe(ctx context.Context, st *wireStatement) (pgexec.Description, error) {
	quiet := pgexec.Description{Params: make([]uint32, st.params())}
	copy(quiet.Params, st.types)
	if st.empty {
		return quiet, nil
	}
	s := w.submission(st, &wireCall{wire: w})
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
	if err := w.mayDescribe(ctx, s); err != nil {
		return quiet, err
	}
	statement := s.statement()
	if s.execute == nil {
		return w.askServer(ctx, statement.SQL, st.types)
	}
	d, err := w.askServer(ctx, statement.SQL, statement.ParamOIDs)
	d.Params = nil // its arguments stand in the text
	return d, err
}

// describeOrder is what the gate itself answers: SHOW alone has a column.
func (w *Wire) describeOrder(o *wireOrder, quiet pgexec.Description) pgexec.Description {
	if o.Control != nil && o.Kind == classify.ControlShow {
		quiet.Fields = []pgexec.Field{w.showColumn(o)}
	}
	return quiet
}

func (w *Wire) askServer(ctx context.Context, sql string, types []uint32) (pgexec.Description, error) {
	if w.unit.block != nil {
		return w.unit.block.Describe(ctx, sql, types) // it may be about what the block made
	}
	return w.gate.Database.Describe(ctx, sql, types)
}

// mayDescribe decides as Execute will. Nothing runs, so an ALLOW and what waits
// for an approval leave no evidence; but parsing alone runs the checks of types
// that are not built in, and that is not for a statement nobody approved.
func (w *Wire) mayDescribe(ctx context.Context, s *submission) error {
	g := w.gate
	if s.policy == nil || g.chain.Failed() {
		return g.chain.fault()
	}
	if err := g.decide(ctx, s); err != nil {
		return g.refuse(ctx, s, err)
	}
	if executesPrepared(&s.classification) {
		return w.refuseAs(ctx, s, notThroughTheGate(classify.TypeExecute))
	}
	switch {
	case s.runs():
		return nil
	case s.result.Decision == policy.Block:
		a, err := g.stop(ctx, s)
		if err != nil {
			return err
		}
		return &WireRefusal{Answer: a}
	case s.classification.UserTypes || slices.ContainsFunc(s.wire.types, userType):
		return w.refuseAs(ctx, s, &WireError{
			SQLState: "0A000", Message: "not available through the gate: describing a statement that needs an approval and names a type that is not built in",
			Hint: "Send it with all its types, without asking for its description first.",
		})
	}
	return nil
}

// firstUserOID is where PostgreSQL begins to number what its users make.
const firstUserOID = 16384

func userType(oid uint32) bool { return oid >= firstUserOID }
