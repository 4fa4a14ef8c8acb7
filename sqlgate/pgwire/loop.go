package pgwire

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"writegate/commands/fault"
	"writegate/sqlgate"
)

// A session is where a conversation stands between two messages.
type session struct {
	items    int  // extended messages since the last Sync
	unsynced bool // one of them came since
	skipping bool // everything up to Sync is dropped

	since     time.Time // when the client last left the idle state
	unwritten time.Time // when evidence began to wait for an append
	describes *string   // a portal whose description waits for the next message
	suspended map[string]bool
}

// converse takes messages until the client goes, a limit of time is reached or
// the conversation cannot go on.
func (c *conn) converse(ctx context.Context) error {
	c.in = newMessageReader(c.net, c.server.o.MaxMessageBytes)
	c.in.interrupted = c.stopped.Load
	c.out.bounds = c.mayWait
	for {
		if err := c.wait(ctx); err != nil {
			return c.silence(err)
		}
		h, err := c.in.header()
		if err != nil {
			return c.silence(err)
		}
		if h.kind == typeTerminate {
			return nil
		}
		if err := c.overtime(); err != nil {
			return err
		}
		if f := c.trusted(); f != nil {
			return f
		}
		if err := c.take(ctx, h); err != nil {
			return err
		}
	}
}

// evidenceWaits is how long what the gate answered itself waits for a statement
// that takes its evidence along. Clients send one at once, as a rule.
const evidenceWaits = time.Second

// wait waits for the next message. What waits for an append is written after its
// time, also where the client sends messages that take no evidence along.
func (c *conn) wait(ctx context.Context) error {
	deadline, now := c.patience(), time.Now()
	switch {
	case !c.wire.Unwritten():
		c.session.unwritten = time.Time{}
		return c.in.wait(deadline)
	case c.session.unwritten.IsZero():
		c.session.unwritten = now
	}
	soon := c.session.unwritten.Add(evidenceWaits)
	switch {
	case !soon.Before(deadline):
		return c.in.wait(deadline)
	case now.Before(soon):
		if err := c.in.wait(soon); !errors.Is(err, errIdle) || c.stopped.Load() {
			return err
		}
	}
	c.wire.WriteEvidence(ctx)
	c.session.unwritten = time.Time{}
	return c.in.wait(deadline)
}

// idle reports whether nothing of the client's is open.
func (c *conn) idle() bool { return !c.session.unsynced && c.wire.Status() == sqlgate.WireIdle }

// patience is until when the client may be silent.
func (c *conn) patience() time.Time {
	now := time.Now()
	if c.idle() {
		c.session.since = time.Time{}
		return now.Add(c.server.o.IdleTimeout)
	}
	deadline := now.Add(c.server.o.TxIdle)
	if end := c.session.since.Add(c.server.o.TxMax); c.server.o.TxMax > 0 && end.Before(deadline) {
		return end
	}
	return deadline
}

// mayWait bounds the wait for a client that does not read: where something of its
// own is open it is as one that is silent.
func (c *conn) mayWait() (each time.Duration, end time.Time) {
	o := &c.server.o
	if c.idle() {
		return o.WriteTimeout, time.Time{}
	}
	if o.TxMax > 0 && !c.session.since.IsZero() {
		end = c.session.since.Add(o.TxMax)
		if now := time.Now(); !now.Before(end) {
			end = now.Add(lingerTime) // a statement ran past it: its answer, or that it was ended, is still told
		}
	}
	return min(o.WriteTimeout, o.TxIdle), end
}

// overtime ends a client that keeps a transaction open for too long, however
// busy it is.
func (c *conn) overtime() error {
	now := time.Now()
	if c.session.since.IsZero() {
		c.session.since = now
	}
	if most := c.server.o.TxMax; most > 0 && !c.idle() && now.Sub(c.session.since) > most {
		return fatalf("25P03", "terminating connection: a transaction may stay open for %s", most)
	}
	return nil
}

// silence is what a client that sent nothing, or not enough, is told.
func (c *conn) silence(err error) error {
	switch {
	case !errors.Is(err, errIdle):
		return err
	case c.stopped.Load():
		return fatalf("57P01", "terminating connection due to administrator command")
	case c.idle():
		return fatalf("57P05", "terminating connection due to idle-session timeout")
	}
	return fatalf("25P03", "terminating connection due to idle-in-transaction timeout")
}

// take is one message. Its error ends the connection.
func (c *conn) take(ctx context.Context, h header) error {
	s := &c.session
	if s.describes != nil && h.kind != typeExecute {
		if err := c.settle(c.describeWaiting(ctx)); err != nil {
			return err
		}
	}
	if s.skipping && h.kind != typeSync {
		return c.in.discard(h)
	}
	switch h.kind {
	case typeCopyData, typeCopyDone, typeCopyFail: // of a COPY that was refused
		return c.in.discard(h)
	case typeQuery:
		return c.query(ctx, h)
	case typeSync:
		return c.sync(ctx, h)
	case typeFlush:
		return c.flushAt(ctx, h)
	case typeCall:
		return c.call(ctx, h)
	}
	s.unsynced = true
	body, err := c.in.body(h)
	if err == nil {
		if s.items++; s.items > c.server.o.MaxBatchItems {
			err = errorf("54000", "more than %d messages between two Syncs", c.server.o.MaxBatchItems).hint("Send a Sync more often.")
		}
	}
	if s.describes != nil && !(err == nil && c.ridesAlong(body)) {
		if err := c.describeWaiting(ctx); err != nil {
			return c.settle(err)
		}
	}
	if err == nil {
		err = c.extended(ctx, h.kind, body)
	} else {
		err = c.own(ctx, err)
	}
	return c.settle(err)
}

// ridesAlong reports whether the description that waits is of the portal that an
// Execute begins.
func (c *conn) ridesAlong(execute []byte) bool {
	var m pgproto3.Execute
	return decode(&m, execute) == nil && m.Portal == *c.session.describes && !c.session.suspended[m.Portal]
}

// settle answers an error of a message of the extended protocol: everything up
// to Sync is dropped from there on. What it gives back ends the connection.
func (c *conn) settle(err error) error {
	if err == nil || ends(err) {
		return err
	}
	f := failureOf(err)
	if f.fatal {
		return f
	}
	c.session.skipping, c.session.describes = true, nil
	c.report(f)
	if err := c.out.send(&f.response); err != nil {
		return err
	}
	if c.out.held { // a Sync is next
		return nil
	}
	return c.flush() // the Flush that the client sent behind it is dropped with the rest
}

// ends reports whether an error leaves nothing to be said.
func ends(err error) bool {
	return errors.Is(err, errGone) || errors.Is(err, errIdle) || errors.Is(err, errNotWritten)
}

// own tells the Wire of an error that it did not make itself.
func (c *conn) own(ctx context.Context, err error) error {
	if !ends(err) {
		c.wire.Fail(ctx)
	}
	return err
}

// report writes down what a client did over its limits.
func (c *conn) report(f *failure) {
	got, most := f.got, f.most
	if cause, ok := fault.As(f); ok && cause.Code == fault.OversizedSQL {
		got, _ = cause.Details["got"].(int)
		most, _ = cause.Details["max"].(int)
	}
	if got > 0 {
		c.server.o.OnIncident(Incident{Oversized: true, Client: c.client, Limit: most, Got: got})
	}
}

// query is the simple protocol: one statement, its transaction, ReadyForQuery.
func (c *conn) query(ctx context.Context, h header) error {
	var m pgproto3.Query
	err := c.read(h, &m)
	if err == nil {
		err = c.limit(c.server.o.Allow)
	}
	if err != nil {
		err = c.own(ctx, err)
	} else {
		out := &sink{conn: c, describe: true, simple: true}
		var done sqlgate.WireDone
		err = c.run(ctx, func(ctx context.Context) (err error) {
			done, err = c.wire.Query(ctx, m.String, out)
			return err
		})
		if err = out.outcome(err); err == nil {
			err = c.complete(&done, out)
		}
	}
	return c.ready(err)
}

// ready answers an error, if there is one, and says that the next message may
// come.
func (c *conn) ready(err error) error {
	if err != nil {
		if ends(err) {
			return err
		}
		f := failureOf(err)
		if f.fatal {
			return f
		}
		c.report(f)
		if err := c.out.send(&f.response); err != nil {
			return err
		}
	}
	s := &c.session
	for _, p := range c.wire.Changed() {
		if err := c.out.send(&pgproto3.ParameterStatus{Name: p[0], Value: p[1]}); err != nil {
			return err
		}
	}
	s.items, s.unsynced, s.skipping, s.describes = 0, false, false, nil
	if c.wire.Status() == sqlgate.WireIdle {
		clear(s.suspended)
	}
	if err := c.out.send(&pgproto3.ReadyForQuery{TxStatus: c.wire.Status()}); err != nil {
		return err
	}
	c.out.held = false
	return c.flush()
}

// sync ends what is open since the last one. A malformed Sync is an error that
// undoes it.
func (c *conn) sync(ctx context.Context, h header) error {
	body, err := c.in.body(h)
	if err == nil && len(body) > 0 {
		err = errorf("08P01", "invalid message format")
	}
	if err != nil {
		if err = c.own(ctx, err); ends(err) {
			return err
		}
	}
	ended := c.run(ctx, c.wire.Sync)
	if err == nil {
		err = ended
	}
	return c.ready(err)
}

func (c *conn) flushAt(ctx context.Context, h header) error {
	body, err := c.in.body(h)
	if err == nil && len(body) > 0 {
		err = errorf("08P01", "invalid message format")
	}
	if err != nil {
		return c.settle(c.own(ctx, err))
	}
	return c.flush()
}

// call refuses FunctionCall, which is a Query by another name.
func (c *conn) call(ctx context.Context, h header) error {
	if err := c.in.discard(h); err != nil {
		return err
	}
	return c.ready(c.own(ctx, errorf("0A000", "not available through the gate: the fast-path function call").hint("Call the function in a SELECT.")))
}

// read reads and decodes a body.
func (c *conn) read(h header, m pgproto3.FrontendMessage) error {
	body, err := c.in.body(h)
	if err != nil {
		return err
	}
	return decode(m, body)
}

// extended is a message of the extended protocol with its answer.
func (c *conn) extended(ctx context.Context, kind byte, body []byte) error {
	switch kind {
	case typeParse:
		return c.parse(ctx, body)
	case typeBind:
		return c.bind(ctx, body)
	case typeDescribe:
		return c.describe(ctx, body)
	case typeExecute:
		return c.execute(ctx, body)
	}
	return c.closeNamed(ctx, body)
}

func (c *conn) parse(ctx context.Context, body []byte) error {
	var m pgproto3.Parse
	if err := decode(&m, body); err != nil {
		return c.own(ctx, err)
	}
	if err := c.limitText(len(body)); err != nil {
		return c.own(ctx, err)
	}
	err := c.run(ctx, func(ctx context.Context) error { return c.wire.Parse(ctx, m.Name, m.Query, m.ParameterOIDs) })
	if err != nil {
		return err
	}
	return c.out.send(&pgproto3.ParseComplete{})
}

func (c *conn) bind(ctx context.Context, body []byte) error {
	var m pgproto3.Bind
	if err := decode(&m, body); err != nil {
		return c.own(ctx, err)
	}
	if err := c.limitText(len(body)); err != nil {
		return c.own(ctx, err)
	}
	delete(c.session.suspended, m.DestinationPortal)
	err := c.wire.Bind(m.DestinationPortal, m.PreparedStatement, m.ParameterFormatCodes, m.Parameters, m.ResultFormatCodes)
	if err != nil {
		return err
	}
	return c.out.send(&pgproto3.BindComplete{})
}

func (c *conn) describe(ctx context.Context, body []byte) error {
	var m pgproto3.Describe
	if err := decode(&m, body); err != nil {
		return c.own(ctx, err)
	}
	if err := c.limitText(len(body)); err != nil {
		return c.own(ctx, err)
	}
	switch m.ObjectType {
	case 'P':
		c.session.describes = &m.Name
		return nil
	case 'S':
		return c.describeStatement(ctx, m.Name)
	}
	return c.own(ctx, errorf("08P01", "invalid DESCRIBE message subtype %d", m.ObjectType))
}

func (c *conn) closeNamed(ctx context.Context, body []byte) error {
	var m pgproto3.Close
	if err := decode(&m, body); err != nil {
		return c.own(ctx, err)
	}
	switch m.ObjectType {
	case 'P':
		delete(c.session.suspended, m.Name)
		c.wire.ClosePortal(m.Name)
	case 'S':
		c.wire.CloseStatement(m.Name)
	default:
		return c.own(ctx, errorf("08P01", "invalid CLOSE message subtype %d", m.ObjectType))
	}
	return c.out.send(&pgproto3.CloseComplete{})
}

// execute runs a portal, or goes on with one that stopped at its row limit. A
// description that waits rides along.
func (c *conn) execute(ctx context.Context, body []byte) error {
	var m pgproto3.Execute
	if err := decode(&m, body); err != nil {
		return c.own(ctx, err)
	}
	s := &c.session
	if !s.suspended[m.Portal] { // what goes on is no new statement
		if err := c.limit(c.server.o.Allow); err != nil {
			return c.own(ctx, err)
		}
	}
	if m.MaxRows > math.MaxInt32 {
		m.MaxRows = 0 // a negative number is no limit either
	}
	out := &sink{conn: c, describe: s.describes != nil}
	s.describes = nil
	last := c.in.syncIsNext()
	c.out.held = last // the Sync comes before any wait for the client
	var done sqlgate.WireDone
	err := c.run(ctx, func(ctx context.Context) (err error) {
		done, err = c.wire.Execute(ctx, m.Portal, m.MaxRows, last, out)
		return err
	})
	if err = out.outcome(err); err != nil {
		return err
	}
	if done.Suspended {
		s.keep(m.Portal)
	} else {
		delete(s.suspended, m.Portal)
	}
	return c.complete(&done, out)
}

func (s *session) keep(portal string) {
	if s.suspended == nil {
		s.suspended = map[string]bool{}
	}
	s.suspended[portal] = true
}

// limit takes a message from one of the client's rates.
func (c *conn) limit(allow func(client string) (wait time.Duration, ok bool)) error {
	wait, ok := allow(c.client)
	if ok {
		return nil
	}
	c.server.o.OnIncident(Incident{Client: c.client})
	seconds := max(1, int(math.Ceil(wait.Seconds())))
	return fault.New(fault.RateLimitExceeded, "Too many statements from this client. Wait %d s.", seconds).With("retry_after_seconds", seconds)
}

// textBytes is how many bytes of a message make it count once more.
const textBytes = 256 << 10

// limitText takes a message that is not an execution from the rate of those.
func (c *conn) limitText(bytes int) error {
	return c.limit(func(client string) (time.Duration, bool) { return c.server.o.AllowText(client, 1+bytes/textBytes) })
}

// watchAfter is how long a statement runs before the gate looks whether its
// client is still there. Most are done by then and cost nothing.
const watchAfter = 100 * time.Millisecond

// run carries out what may take its time. The context ends when the client
// hangs up meanwhile. Nothing in it waits for the client to read.
func (c *conn) run(ctx context.Context, f func(context.Context) error) error {
	held := c.out.held
	c.out.held = true
	defer func() { c.out.held = held }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := c.net.SetReadDeadline(time.Time{}); err != nil {
		return errors.Join(errGone, err)
	}
	done := make(chan struct{})
	timer := time.AfterFunc(watchAfter, func() {
		defer close(done)
		if c.in.hungUp() {
			cancel()
		}
	})
	defer func() {
		if timer.Stop() {
			return
		}
		_ = c.net.SetReadDeadline(time.Unix(1, 0)) // ends the look; each read sets its own
		<-done
	}()
	err := f(ctx)
	if waited := c.wire.Waited(); !c.session.since.IsZero() { // what a person took is no time in which something was open
		c.session.since = c.session.since.Add(waited)
	}
	return err
}
