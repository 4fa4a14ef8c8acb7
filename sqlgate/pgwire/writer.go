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
// bytes. A client that does not read has timeout for each; then the connection
// is of no more use.
type messageWriter struct {
	conn    net.Conn
	timeout time.Duration
	buffer  []byte
	wrote   bool
	err     error // of the first write that failed; nothing is sent after it
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
	if len(w.buffer) >= maxWrite {
		return w.write(len(w.buffer) / maxWrite * maxWrite)
	}
	return nil
}

// flush sends what was collected.
func (w *messageWriter) flush() error {
	if w.err != nil || len(w.buffer) == 0 {
		return w.err
	}
	return w.write(len(w.buffer))
}

// write sends the first n bytes and keeps the rest.
func (w *messageWriter) write(n int) error {
	w.wrote = true
	for rest := w.buffer[:n]; len(rest) > 0; {
		part := rest[:min(len(rest), maxWrite)]
		err := w.conn.SetWriteDeadline(time.Now().Add(w.timeout))
		if err == nil {
			_, err = w.conn.Write(part)
		}
		if err != nil {
			return w.fail(err)
		}
		rest = rest[len(part):]
	}
	w.buffer = append(w.buffer[:0], w.buffer[n:]...)
	if cap(w.buffer) > 8*maxWrite {
		w.buffer = append([]byte(nil), w.buffer...) // one large row does not stay in memory
	}
	return nil
}

func (w *messageWriter) fail(err error) error {
	w.err = fmt.Errorf("%w: %w", errNotWritten, err)
	return w.err
}
