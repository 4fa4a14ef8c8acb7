package pgexec

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// A command is one statement of a batch: Parse, Bind, Describe where a sink
// wants the columns, Execute. One that is only to be described is Parse and
// Describe; the look and what else the connection keeps prepared are Bind and Execute.
type command struct {
	sql           string
	oids          []uint32
	params        [][]byte
	paramFormats  []int16
	resultFormats []int16
	maxRows       uint32 // of Execute; 0 is no limit
	describe      bool
	only          *description // nil: the statement runs
	keep          bool         // it is only prepared, without a name
	look          bool         // it is what was prepared so
	name          string       // of the statement that it is prepared as; "" = passing
	prepare       bool         // it is only prepared, under its name
	prepared      bool         // it is what was prepared under its name
	opens         bool         // it is parsed and bound, as the portal opened
	opened        bool         // it is what was bound so
	closes        bool         // the portal opened is closed
	sink          Sink         // nil: rows are dropped

	rowCap  int64 // rows after which reading stops; 0 is no limit
	byteCap int64 // bytes of rows, as messages have them, after which reading stops; 0 is no limit

	// What came back.
	tag       string
	suspended bool // Execute stopped at maxRows: there are more rows
	rows      int64
	bytes     int64 // of values
	lengths   int64 // bytes of what stands around them
	failed    bool  // the error of its segment came in its place

	definitions     *Definitions // of a client's, to be compared; nil: none
	ahead           *command     // that comparison before it is parsed, nil: not wanted
	compared, again *command     // the comparisons before and behind it; nil: none
}

// Bytes that a row and a value take besides what the values are.
const (
	rowOverhead   = 7
	valueOverhead = 4
)

// own is a command with a text of the gate's own.
func own(sql string) *command { return &command{sql: sql} }

// passing is the name under which a command is parsed, each time anew: what stood
// there before is closed first, a statement too that a function put there by SQL. It
// is not the unnamed one, which the connection keeps for its look.
const passing = "statement"

// opened is the portal of a client's statement that is bound before something is compared.
const opened = "statement"

// A segment is the commands up to one Sync.
type segment []*command

// errOverCap says that a result exceeded the limits while it was read; the rest
// of it was not read, so the connection is of no more use.
var errOverCap = errors.New("the result exceeds the limits")

// errProtocol says that the server sent what the protocol does not allow here.
var errProtocol = errors.New("unexpected message from the database")

// enqueue writes a batch into the connection's buffer.
func (c *conn) enqueue(batch ...segment) {
	for _, seg := range batch {
		for _, cmd := range seg {
			name := cmp.Or(cmd.name, passing)
			switch {
			case cmd.keep:
				c.fe.SendParse(&pgproto3.Parse{Query: cmd.sql, ParameterOIDs: cmd.oids})
				continue
			case cmd.look:
				name = ""
			case cmd.prepared, cmd.opened:
			case cmd.closes:
				c.fe.SendClose(&pgproto3.Close{ObjectType: 'P', Name: opened})
				continue
			default:
				c.fe.SendClose(&pgproto3.Close{ObjectType: 'S', Name: name})
				c.fe.SendParse(&pgproto3.Parse{Name: name, Query: cmd.sql, ParameterOIDs: cmd.oids})
			}
			if cmd.prepare {
				continue
			}
			if cmd.only != nil {
				c.fe.SendDescribe(&pgproto3.Describe{ObjectType: 'S', Name: name})
				continue
			}
			portal := ""
			if cmd.opens || cmd.opened {
				portal = opened
			}
			if !cmd.opened {
				c.fe.SendBind(&pgproto3.Bind{
					DestinationPortal:    portal,
					PreparedStatement:    name,
					ParameterFormatCodes: cmd.paramFormats,
					Parameters:           cmd.params,
					ResultFormatCodes:    cmd.resultFormats,
				})
			}
			if cmd.opens {
				continue
			}
			if cmd.describe {
				c.fe.SendDescribe(&pgproto3.Describe{ObjectType: 'P', Name: portal})
			}
			c.fe.SendExecute(&pgproto3.Execute{Portal: portal, MaxRows: cmd.maxRows})
		}
		c.fe.SendSync(&pgproto3.Sync{})
	}
}

// exchange sends a batch in one write and reads its answers; of a connection that
// is leaving, more goes out behind it, whose answer the next use reads. The first ErrorResponse is
// returned as refused; the batch is read to its end all the same. err means that the conversation broke off: lost, past the deadline
// (os.ErrDeadlineExceeded), ended by ctx, against the protocol or over a cap.
// After an err the connection is broken and only good for closing.
func (c *conn) exchange(ctx context.Context, deadline time.Time, batch ...segment) (refused *pgconn.PgError, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err // nothing was sent: the connection is as it was
	}
	if err := c.cleaned(deadline); err != nil {
		return nil, err
	}
	stop, err := c.arm(ctx, deadline)
	if err != nil {
		c.broken = true
		return nil, err
	}
	defer stop()
	c.enqueue(batch...)
	if o := c.leaving; o != nil {
		c.leaving, c.owed, c.used = nil, o, false
		c.enqueue(o.batch)
		if o.begun != nil {
			c.enqueue(o.begun.batch)
		} else {
			c.unseen, c.dirty = false, false
		}
	}
	if err := c.fe.Flush(); err != nil {
		c.broken = true
		return nil, errors.Join(err, ctx.Err())
	}
	for _, seg := range batch {
		failed, err := c.readSegment(seg)
		if refused == nil {
			refused = failed
		}
		if err != nil {
			c.broken = true
			return refused, errors.Join(err, ctx.Err())
		}
	}
	return refused, nil
}

// arm sets the deadline of the next exchange and lets ctx end it early.
func (c *conn) arm(ctx context.Context, deadline time.Time) (stop func(), err error) {
	if err := c.net.SetDeadline(deadline); err != nil {
		return nil, err
	}
	if ctx.Done() == nil {
		return func() {}, nil
	}
	fired := make(chan struct{})
	undo := context.AfterFunc(ctx, func() {
		defer close(fired)
		if err := c.net.SetDeadline(time.Unix(1, 0)); err != nil {
			c.net.Close()
		}
	})
	return func() {
		if !undo() {
			<-fired // so that it cannot hit the deadline of a later exchange
		}
	}, nil
}

// readSegment reads the answers up to ReadyForQuery. After an ErrorResponse the
// server skips everything up to Sync.
func (c *conn) readSegment(seg segment) (refused *pgconn.PgError, err error) {
	reader := segmentReader{seg: seg}
	for {
		msg, err := c.receive()
		if err != nil {
			return reader.refused, err
		}
		switch m := msg.(type) {
		case *pgproto3.ReadyForQuery:
			c.txStatus = m.TxStatus
			return reader.refused, reader.end()
		case *pgproto3.ErrorResponse:
			reader.fail(m)
			if c.ended(reader.refused) {
				return reader.refused, fmt.Errorf("the database ended the connection: %w", reader.refused)
			}
		default:
			if err := reader.take(m); err != nil {
				return reader.refused, err
			}
		}
	}
}

// ended reports whether the server closes the connection after this error.
func (c *conn) ended(e *pgconn.PgError) bool {
	return e != nil && (e.SeverityUnlocalized == "FATAL" || e.SeverityUnlocalized == "PANIC")
}

// receive returns the next message that is not asynchronous.
func (c *conn) receive() (pgproto3.BackendMessage, error) {
	for {
		msg, err := c.fe.Receive()
		if err != nil {
			return nil, err
		}
		switch m := msg.(type) {
		case *pgproto3.ParameterStatus:
			c.reported(m.Name, m.Value)
		case *pgproto3.NoticeResponse:
			c.noticed(m)
		case *pgproto3.NotificationResponse:
		default:
			return msg, nil
		}
	}
}

// A segmentReader checks the order of a segment's answers: nothing of a server
// that talks out of turn is believed.
type segmentReader struct {
	seg     segment
	at      int  // command whose answers are read
	closed  bool // CloseComplete came
	parsed  bool // ParseComplete came
	bound   bool // BindComplete came
	columns int  // of RowDescription; -1 for NoData
	known   bool // columns is set
	refused *pgconn.PgError
}

func (r *segmentReader) fail(m *pgproto3.ErrorResponse) {
	if r.refused == nil {
		r.refused = pgconn.ErrorResponseToPgError(m)
		if r.at < len(r.seg) {
			r.seg[r.at].failed = true
		}
	}
}

func (r *segmentReader) end() error {
	if r.refused == nil && r.at != len(r.seg) {
		return fmt.Errorf("%w: ReadyForQuery before the end of the batch", errProtocol)
	}
	return nil
}

func (r *segmentReader) take(msg pgproto3.BackendMessage) error {
	if r.refused != nil || r.at >= len(r.seg) {
		return fmt.Errorf("%w: %T", errProtocol, msg)
	}
	cmd := r.seg[r.at]
	if _, ok := msg.(*pgproto3.CloseComplete); ok {
		if cmd.closes {
			r.next()
			return nil
		}
		return r.once(&r.closed, !cmd.look && !cmd.prepared && !cmd.opened, msg)
	}
	if _, ok := msg.(*pgproto3.ParseComplete); ok && (cmd.keep || cmd.prepare && r.closed) {
		r.next()
		return nil
	}
	if cmd.only != nil && r.closed {
		return r.described(cmd.only, msg)
	}
	switch m := msg.(type) {
	case *pgproto3.ParseComplete:
		return r.once(&r.parsed, r.closed, msg)
	case *pgproto3.BindComplete:
		err := r.once(&r.bound, r.parsed || cmd.look || cmd.prepared, msg)
		if err == nil && cmd.opens {
			r.next()
		}
		return err
	case *pgproto3.RowDescription:
		if err := r.once(&r.known, r.open() && cmd.describe, msg); err != nil {
			return err
		}
		r.columns = len(m.Fields)
		return cmd.describeTo(m.Fields)
	case *pgproto3.NoData:
		r.columns = -1
		return r.once(&r.known, r.open() && cmd.describe, msg)
	case *pgproto3.DataRow:
		if !r.open() || (cmd.describe && r.columns != len(m.Values)) {
			return fmt.Errorf("%w: a row of %d columns", errProtocol, len(m.Values))
		}
		return cmd.row(m.Values)
	case *pgproto3.CommandComplete:
		return r.finish(func() { cmd.tag = string(m.CommandTag) }, msg)
	case *pgproto3.PortalSuspended:
		return r.finish(func() { cmd.suspended = true }, msg)
	case *pgproto3.EmptyQueryResponse:
		return r.finish(func() {}, msg)
	default: // COPY among them: nothing that could be answered is sent to the database
		return fmt.Errorf("%w: %T", errProtocol, msg)
	}
}

// open tells whether the portal of the command is there.
func (r *segmentReader) open() bool { return r.bound || r.seg[r.at].opened }

func (r *segmentReader) once(flag *bool, allowed bool, msg pgproto3.BackendMessage) error {
	if *flag || !allowed {
		return fmt.Errorf("%w: %T out of turn", errProtocol, msg)
	}
	*flag = true
	return nil
}

func (r *segmentReader) finish(note func(), msg pgproto3.BackendMessage) error {
	cmd := r.seg[r.at]
	if !r.open() || cmd.describe && !r.known {
		return fmt.Errorf("%w: %T out of turn", errProtocol, msg)
	}
	note()
	r.next()
	return nil
}

// next goes on to the following command.
func (r *segmentReader) next() {
	*r = segmentReader{seg: r.seg, at: r.at + 1}
}

func (cmd *command) describeTo(fields []pgproto3.FieldDescription) error {
	if cmd.sink == nil {
		return nil
	}
	return notTaken(cmd.sink.Fields(columnsOf(fields)))
}

func columnsOf(fields []pgproto3.FieldDescription) []Field {
	columns := make([]Field, len(fields))
	for i, f := range fields {
		columns[i] = Field{
			Label: string(f.Name), TypeOID: f.DataTypeOID, Modifier: f.TypeModifier, Format: f.Format,
			Size: f.DataTypeSize, TableOID: f.TableOID, TableColumn: f.TableAttributeNumber,
		}
	}
	return columns
}

// row hands one row on, unless it is beyond a cap. A row at maxRows is the one
// that only tells that there are too many: the portal is suspended behind it.
func (cmd *command) row(values [][]byte) error {
	cmd.rows++
	for _, v := range values {
		cmd.bytes += int64(len(v))
	}
	cmd.lengths += rowOverhead + valueOverhead*int64(len(values))
	if cmd.byteCap > 0 && cmd.bytes+cmd.lengths > cmd.byteCap || cmd.rowCap > 0 && cmd.rows > cmd.rowCap {
		return errOverCap
	}
	if cmd.sink == nil || cmd.maxRows > 0 && cmd.rows >= int64(cmd.maxRows) {
		return nil
	}
	return notTaken(cmd.sink.Row(values))
}

// notTaken says of a result that its sink did not take it: the rest is not read,
// and the database is no less well for it.
func notTaken(err error) error {
	if err == nil || errors.Is(err, errOverCap) {
		return err
	}
	return fmt.Errorf("%w: %w", errOverCap, err)
}

// isTimeout reports whether a conversation ended at the gate's own deadline.
func isTimeout(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }

// oneRow keeps a copy of the single row of a query of our own; nil is NULL.
type oneRow struct{ values []*string }

func (o *oneRow) Fields([]Field) error { return nil }

func (o *oneRow) Row(values [][]byte) error {
	o.values = o.values[:0]
	for _, v := range values {
		if v == nil {
			o.values = append(o.values, nil)
			continue
		}
		s := string(v)
		o.values = append(o.values, &s)
	}
	return nil
}

// text is the value of a column, "" for NULL and for a column that is not there.
func (o *oneRow) text(i int) string {
	if i >= len(o.values) || o.values[i] == nil {
		return ""
	}
	return *o.values[i]
}

// query is a command of the gate's own whose one row is wanted.
func query(sql string) (*command, *oneRow) {
	row := new(oneRow)
	return &command{sql: sql, sink: row}, row
}
