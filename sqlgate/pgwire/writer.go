package pgwire

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

// errNotWritten says that the client cannot be reached any more.
var errNotWritten = errors.New("the answer could not be sent")

// maxWrite is the most bytes of one write. A larger one becomes a larger TLS
// record, which hangs some clients.
const maxWrite = 8 << 10

// A messageWriter collects answers and sends them in writes of at most maxWrite
// bytes. A client that does not read has timeout for each, or less; then the
// connection is of no more use. It is used by one goroutine.
//
// While a statement runs, held is set: answers go out beside it, and what the
// client does not take is kept until it ends, so that the database never waits for
// a client. The limit of a result bounds what is kept.
type messageWriter struct {
	conn    net.Conn
	timeout time.Duration
	// bounds is how long each write may take and when the last one ends, zero for no
	// such time; nil: timeout is all there is.
	bounds func() (each time.Duration, end time.Time)
	buffer []byte
	held   bool
	beside chan error // how the write ends that goes on beside a statement; nil: there is none
	going  int        // bytes of that write
	wrote  bool
	err    error // of the first write that failed; nothing is sent after it
}

// send adds a message, and sends what fills a write.
func (w *messageWriter) send(m pgproto3.BackendMessage) error {
	if w.err != nil {
		return w.err
	}
	buffer, err := m.Encode(w.buffer)
	if err != nil {
		return w.fail(err)
	}
	w.buffer = buffer
	switch {
	case len(w.buffer) < maxWrite:
		return nil
	case w.held:
		return w.writeBeside()
	}
	return w.write(len(w.buffer) / maxWrite * maxWrite)
}

// flush sends what was collected.
func (w *messageWriter) flush() error {
	if err := w.settle(); err != nil || len(w.buffer) == 0 {
		return err
	}
	return w.write(len(w.buffer))
}

// writing reports whether a write goes on beside the statement.
func (w *messageWriter) writing() bool {
	if w.beside == nil {
		return false
	}
	select {
	case err := <-w.beside:
		w.beside, w.going = nil, 0
		if err != nil {
			_ = w.fail(err) // the next call says so
		}
		return false
	default:
		return true
	}
}

// writeBeside begins to send what was collected, where nothing is being sent.
func (w *messageWriter) writeBeside() error {
	if w.writing() || w.err != nil {
		return w.err
	}
	part, end, deadline := w.buffer, make(chan error, 1), w.pace()
	w.buffer, w.beside, w.going, w.wrote = nil, end, len(part), true
	go func() { end <- w.put(part, deadline) }()
	return nil
}

// unread is how many bytes wait for the client.
func (w *messageWriter) unread() int64 {
	w.writing()
	return int64(len(w.buffer) + w.going)
}

// settle waits for the write that goes on beside a statement.
func (w *messageWriter) settle() error {
	if w.beside != nil {
		err := <-w.beside
		if w.beside, w.going = nil, 0; err != nil {
			return w.fail(err)
		}
	}
	return w.err
}

// write sends the first n bytes and keeps the rest.
func (w *messageWriter) write(n int) error {
	if err := w.settle(); err != nil {
		return err
	}
	w.wrote = true
	if err := w.put(w.buffer[:n], w.pace()); err != nil {
		return w.fail(err)
	}
	w.buffer = append(w.buffer[:0], w.buffer[n:]...)
	if cap(w.buffer) > 8*maxWrite {
		w.buffer = append([]byte(nil), w.buffer...) // one large row does not stay in memory
	}
	return nil
}

// pace is the deadline of each write from now on. Where the client stands is looked
// at here: the writes may be another goroutine's.
func (w *messageWriter) pace() (deadline func() time.Time) {
	each, end := w.timeout, time.Time{}
	if w.bounds != nil {
		each, end = w.bounds()
	}
	return func() time.Time {
		d := time.Now().Add(each)
		if !end.IsZero() && end.Before(d) {
			return end
		}
		return d
	}
}

// put writes to the client.
func (w *messageWriter) put(rest []byte, deadline func() time.Time) error {
	for len(rest) > 0 {
		part := rest[:min(len(rest), maxWrite)]
		err := w.conn.SetWriteDeadline(deadline())
		if err == nil {
			_, err = w.conn.Write(part)
		}
		if err != nil {
			return err
		}
		rest = rest[len(part):]
	}
	return nil
}

func (w *messageWriter) fail(err error) error {
	w.err = fmt.Errorf("%w: %w", errNotWritten, err)
	return w.err
}
