package pgwire

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

// Bounds of messages.
const (
	readerSize  = 8 << 10
	maxSmall    = 10_000   // PostgreSQL's PQ_SMALL_MESSAGE_LIMIT
	maxDiscard  = 16 << 20 // a longer message is not even thrown away
	bodyGrace   = 5 * time.Second
	bodyPerStep = time.Second // for each bodyStep of a message
	bodyStep    = 64 << 10
)

// Types of the messages that a client sends after its login.
const (
	typeBind      = 'B'
	typeClose     = 'C'
	typeDescribe  = 'D'
	typeExecute   = 'E'
	typeCall      = 'F'
	typeFlush     = 'H'
	typeParse     = 'P'
	typeQuery     = 'Q'
	typeSync      = 'S'
	typeTerminate = 'X'
	typeCopyDone  = 'c'
	typeCopyData  = 'd'
	typeCopyFail  = 'f'
	typePassword  = 'p'
)

// Errors of reading that are not failures of the connection itself.
var (
	// errGone: the client closed the connection, or it broke.
	errGone = errors.New("the client is gone")
	// errIdle: nothing came in the time that there was.
	errIdle = errors.New("the client was silent for too long")
)

// A header is type and length of a message, the length without its own 4 bytes.
type header struct {
	kind   byte
	length int
}

// A messageReader reads messages one by one. It never allocates for a length
// that has not arrived: a body grows with its bytes.
type messageReader struct {
	conn net.Conn
	in   *bufio.Reader
	most int // bytes of Query, Parse and Bind

	grace time.Duration // for a message that has begun: bodyGrace

	// interrupted says, behind the setting of a deadline, whether somebody wants
	// the read to end; nil: nobody can.
	interrupted func() bool
}

func newMessageReader(conn net.Conn, most int) *messageReader {
	return &messageReader{conn: conn, in: bufio.NewReaderSize(conn, readerSize), most: most, grace: bodyGrace}
}

// limit is the longest body of a type, and whether there is such a type. What is
// thrown away unread may be as long as can be thrown away.
func (r *messageReader) limit(kind byte) (most int, known bool) {
	switch kind {
	case typeQuery, typeParse, typeBind:
		return r.most, true
	case typeDescribe, typeExecute, typeClose, typeSync, typeFlush, typeTerminate, typeCopyDone, typeCopyFail:
		return maxSmall, true
	case typeCall, typeCopyData:
		return maxDiscard, true
	}
	return 0, false
}

// wait waits for the first byte of a message until the deadline.
func (r *messageReader) wait(deadline time.Time) error {
	if r.in.Buffered() > 0 {
		return nil
	}
	if err := r.arm(deadline); err != nil {
		return err
	}
	_, err := r.in.Peek(1)
	return lost(err)
}

func (r *messageReader) arm(deadline time.Time) error {
	if err := r.conn.SetReadDeadline(deadline); err != nil {
		return lost(err)
	}
	if r.interrupted != nil && r.interrupted() {
		return errIdle
	}
	return nil
}

func lost(err error) error {
	var e net.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &e) && e.Timeout():
		return errIdle
	}
	return fmt.Errorf("%w: %w", errGone, err)
}

// within turns the end of the time that a message has into words. What was read
// of it is of no use: the conversation ends.
func (r *messageReader) within(err error) error {
	if err = lost(err); errors.Is(err, errIdle) && (r.interrupted == nil || !r.interrupted()) {
		return fatalf("08P01", "a message began and did not come to its end in its time")
	}
	return err
}

// header reads type and length. A length that cannot be, and a type that is not
// known, end the connection: where the next message begins is not known.
func (r *messageReader) header() (header, error) {
	if r.in.Buffered() < 5 {
		if err := r.arm(time.Now().Add(r.grace)); err != nil {
			return header{}, err
		}
	}
	b, err := r.in.Peek(5)
	if err != nil {
		return header{}, r.within(err)
	}
	h := header{kind: b[0]}
	length := binary.BigEndian.Uint32(b[1:])
	if _, known := r.limit(h.kind); !known {
		return h, fatalf("08P01", "invalid frontend message type %d", h.kind)
	}
	if length < 4 || length-4 > maxDiscard {
		return h, fatalf("08P01", "invalid message length %d", int32(length))
	}
	h.length = int(length) - 4
	_, err = r.in.Discard(5)
	return h, lost(err)
}

// body reads a body of at most its type's length. A longer one is thrown away
// and the error is a failure; the connection goes on.
func (r *messageReader) body(h header) ([]byte, error) {
	if err := r.armBody(h); err != nil {
		return nil, err
	}
	most, _ := r.limit(h.kind)
	if h.length > most {
		if _, err := r.in.Discard(h.length); err != nil {
			return nil, r.within(err)
		}
		f := errorf("54000", "the message has %d bytes and at most %d are taken", h.length, most).hint("Send less at once.")
		f.got, f.most = h.length, most
		return nil, f
	}
	var body []byte
	for len(body) < h.length {
		n := min(h.length-len(body), bodyStep)
		body = slices.Grow(body, n)
		if _, err := io.ReadFull(r.in, body[len(body):len(body)+n]); err != nil {
			return nil, r.within(err)
		}
		body = body[:len(body)+n]
	}
	return body, nil
}

// discard throws a body away.
func (r *messageReader) discard(h header) error {
	if err := r.armBody(h); err != nil {
		return err
	}
	_, err := r.in.Discard(h.length)
	return r.within(err)
}

// armBody gives a body that has not arrived yet its time.
func (r *messageReader) armBody(h header) error {
	if r.in.Buffered() >= h.length {
		return nil
	}
	return r.arm(time.Now().Add(r.grace + time.Duration(h.length/bodyStep)*bodyPerStep))
}

// syncIsNext reports whether a Sync has arrived behind the message that was
// read last. It does not wait for one.
func (r *messageReader) syncIsNext() bool {
	if r.in.Buffered() < 5 {
		return false
	}
	b, err := r.in.Peek(5)
	return err == nil && b[0] == typeSync && binary.BigEndian.Uint32(b[1:]) == 4
}

// hungUp waits until the client hangs up, or until a read deadline ends the wait.
// A client that sends on while its statement runs is there.
func (r *messageReader) hungUp() bool {
	for r.in.Buffered() < readerSize {
		if _, err := r.in.Peek(r.in.Buffered() + 1); err != nil {
			return !errors.Is(lost(err), errIdle)
		}
	}
	return false
}

// decode reads a body. The library takes a body for what it begins with; one
// that goes on behind its end is refused here, as PostgreSQL refuses it.
func decode(m pgproto3.FrontendMessage, body []byte) error {
	if err := m.Decode(body); err != nil || sizeOf(m) != len(body) {
		return errorf("08P01", "invalid message format")
	}
	return nil
}

// sizeOf is how long the body of a message is.
func sizeOf(m pgproto3.FrontendMessage) int {
	switch m := m.(type) {
	case *pgproto3.Query:
		return len(m.String) + 1
	case *pgproto3.Parse:
		return len(m.Name) + 1 + len(m.Query) + 1 + 2 + 4*len(m.ParameterOIDs)
	case *pgproto3.Bind:
		n := len(m.DestinationPortal) + 1 + len(m.PreparedStatement) + 1 + 2 + 2*len(m.ParameterFormatCodes) + 2 + 2 + 2*len(m.ResultFormatCodes)
		for _, p := range m.Parameters {
			n += 4 + len(p)
		}
		return n
	case *pgproto3.Describe:
		return 1 + len(m.Name) + 1
	case *pgproto3.Close:
		return 1 + len(m.Name) + 1
	case *pgproto3.Execute:
		return len(m.Portal) + 1 + 4
	}
	return 0
}
