package pgwire

import (
	"context"

	"github.com/jackc/pgx/v5/pgproto3"

	"writegate/sqlgate"
	"writegate/sqlgate/pgexec"
)

// A sink sends a result to the client as it comes.
type sink struct {
	conn      *conn
	describe  bool // the client wants the columns
	simple    bool // in the simple protocol, where no columns are not worth a word
	described bool
	values    pgproto3.DataRow
	failed    error // of sending
}

// Fields takes the columns; nil is a statement that returns no rows.
func (s *sink) Fields(columns []pgexec.Field) error {
	if s.described || !s.describe {
		return nil
	}
	s.described = true
	if columns == nil {
		if s.simple {
			return nil
		}
		return s.send(&pgproto3.NoData{})
	}
	return s.send(rowDescription(columns))
}

// Row takes one row, for which the client has to have room.
func (s *sink) Row(values [][]byte) error {
	waits := s.conn.out.unread()
	for _, v := range values {
		waits += int64(len(v))
	}
	if err := s.conn.wire.Unread(waits); err != nil {
		return err
	}
	s.values.Values = values
	return s.send(&s.values)
}

func (s *sink) send(m pgproto3.BackendMessage) error {
	s.failed = s.conn.out.send(m)
	return s.failed
}

// flush sends what was collected; then nothing waits for the client any more.
func (c *conn) flush() error {
	if err := c.out.flush(); err != nil {
		return err
	}
	return c.wire.Unread(0)
}

// outcome prefers an error of sending: there is nobody left to tell another.
func (s *sink) outcome(err error) error {
	if s.failed != nil {
		return s.failed
	}
	return err
}

func rowDescription(columns []pgexec.Field) *pgproto3.RowDescription {
	fields := make([]pgproto3.FieldDescription, len(columns))
	for i, c := range columns {
		fields[i] = pgproto3.FieldDescription{
			Name: []byte(c.Label), TableOID: c.TableOID, TableAttributeNumber: c.TableColumn,
			DataTypeOID: c.TypeOID, DataTypeSize: c.Size, TypeModifier: c.Modifier, Format: c.Format,
		}
	}
	return &pgproto3.RowDescription{Fields: fields}
}

// complete says how a statement ended.
func (c *conn) complete(done *sqlgate.WireDone, out *sink) error {
	if err := out.Fields(nil); err != nil {
		return err
	}
	for i := range done.Notices {
		n := &done.Notices[i]
		if err := c.out.send(&pgproto3.NoticeResponse{Severity: n.Severity, SeverityUnlocalized: n.Severity, Code: n.SQLState, Message: n.Message}); err != nil {
			return err
		}
	}
	switch {
	case done.Empty:
		return c.out.send(&pgproto3.EmptyQueryResponse{})
	case done.Suspended:
		return c.out.send(&pgproto3.PortalSuspended{})
	}
	return c.out.send(&pgproto3.CommandComplete{CommandTag: []byte(done.Tag)})
}

// describeStatement answers with the parameters and columns of a statement.
func (c *conn) describeStatement(ctx context.Context, name string) error {
	var parameters []uint32
	var columns []pgexec.Field
	err := c.run(ctx, func(ctx context.Context) (err error) {
		parameters, columns, err = c.wire.DescribeStatement(ctx, name)
		return err
	})
	if err != nil {
		return err
	}
	if err := c.out.send(&pgproto3.ParameterDescription{ParameterOIDs: parameters}); err != nil {
		return err
	}
	return c.sendColumns(columns)
}

// describeWaiting answers a description that no Execute took along.
func (c *conn) describeWaiting(ctx context.Context) error {
	portal := *c.session.describes
	c.session.describes = nil
	var columns []pgexec.Field
	err := c.run(ctx, func(ctx context.Context) (err error) {
		columns, err = c.wire.DescribePortal(ctx, portal)
		return err
	})
	if err != nil {
		return err
	}
	return c.sendColumns(columns)
}

func (c *conn) sendColumns(columns []pgexec.Field) error {
	if columns == nil {
		return c.out.send(&pgproto3.NoData{})
	}
	return c.out.send(rowDescription(columns))
}
