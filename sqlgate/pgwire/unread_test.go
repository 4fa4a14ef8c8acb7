package pgwire

import (
	"errors"
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

// A room is what a gate has for the answers of a client that it does not read.
type room struct {
	Wire
	most, taken int64
}

var errNoRoom = errors.New("there is no room for it")

func (r *room) Unread(bytes int64) error {
	if bytes > r.most {
		return errNoRoom
	}
	r.taken = bytes
	return nil
}

// What the client does not read is told to the gate, with what is on its way and
// the row that comes; no room for it is no error of sending.
func TestRowsThatTheClientDoesNotReadNeedRoom(t *testing.T) {
	near, far := net.Pipe()
	defer near.Close()
	r := &room{most: 100_000}
	c := &conn{wire: r, out: messageWriter{conn: near, timeout: patience, held: true}}
	s := &sink{conn: c}
	row := [][]byte{make([]byte, 10_000), nil}
	rows := 0
	for ; ; rows++ {
		if err := s.Row(row); err != nil {
			require.ErrorIs(t, err, errNoRoom)
			break
		}
	}
	require.Equal(t, 9, rows)
	require.NoError(t, s.failed, "the client can be told")
	require.Greater(t, c.out.unread(), int64(90_000))
	read := make(chan int64, 1)
	go func() {
		n, _ := io.Copy(io.Discard, far) // it ends with the connection
		read <- n
	}()
	require.NoError(t, c.flush())
	require.Zero(t, c.out.unread())
	require.Zero(t, r.taken)
	require.NoError(t, near.Close())
	require.Greater(t, <-read, int64(90_000))
}
