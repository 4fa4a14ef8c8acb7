package pgwire

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// a streamConn is a connection whose client has sent everything already.
type streamConn struct {
	net.Conn
	rest io.Reader
}

func (s *streamConn) Read(b []byte) (int, error)      { return s.rest.Read(b) }
func (s *streamConn) SetReadDeadline(time.Time) error { return nil }

func readerOf(sent []byte, most int) *messageReader {
	return newMessageReader(&streamConn{rest: bytes.NewReader(sent)}, most)
}

func message(kind byte, length uint32, body ...byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{kind}, length), body...)
}

func TestLengthsOfMessages(t *testing.T) {
	known := []byte{typeBind, typeClose, typeDescribe, typeExecute, typeCall, typeFlush, typeParse, typeQuery, typeSync, typeTerminate, typeCopyDone, typeCopyData, typeCopyFail}
	for _, kind := range known {
		for _, length := range []uint32{0, 3, maxDiscard + 5, 1<<31 - 1, 1 << 31, 1<<32 - 1} {
			_, err := readerOf(message(kind, length), 1024).header()
			require.Equal(t, "08P01", failureOf(err).response.Code, "%c %d", kind, length)
			require.True(t, failureOf(err).fatal)
		}
		h, err := readerOf(message(kind, 4), 1024).header()
		require.NoError(t, err)
		require.Equal(t, header{kind, 0}, h)
		r := readerOf(message(kind, 8, 1, 2, 3), 1024) // one byte short
		h, err = r.header()
		require.NoError(t, err)
		_, err = r.body(h)
		require.ErrorIs(t, err, errGone)
	}
	for kind := range 256 {
		_, err := readerOf(message(byte(kind), 4), 1024).header()
		if bytes.IndexByte(known, byte(kind)) < 0 {
			require.Equal(t, "08P01", failureOf(err).response.Code, "%d", kind)
			require.True(t, failureOf(err).fatal)
		}
	}
}

func TestATooLongMessageIsThrownAwayAndTheNextOneRead(t *testing.T) {
	sent := append(message(typeQuery, 4+2000, make([]byte, 2000)...), message(typeSync, 4)...)
	r := readerOf(sent, 1024)
	h, err := r.header()
	require.NoError(t, err)
	_, err = r.body(h)
	require.Equal(t, "54000", failureOf(err).response.Code)
	require.False(t, failureOf(err).fatal)
	h, err = r.header()
	require.NoError(t, err)
	require.Equal(t, byte(typeSync), h.kind)
}

func TestNothingIsAllocatedForBytesThatDoNotCome(t *testing.T) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 10 {
		r := readerOf(message(typeQuery, maxDiscard, 'x'), maxDiscard)
		h, err := r.header()
		require.NoError(t, err)
		_, err = r.body(h)
		require.ErrorIs(t, err, errGone)
	}
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(maxDiscard), "ten messages that each promise %d bytes", maxDiscard)
}

func TestAMessageThatBeginsAndDoesNotEndIsRefused(t *testing.T) {
	for _, begun := range []string{"Q", "Q\x00\x00", "Q\x00\x00\x00\x08ab", "d\x00\x00\x00\x08ab", "Q\x00\x01\x00\x00ab"} {
		near, far := net.Pipe()
		r := newMessageReader(near, 1024)
		r.grace = 10 * time.Millisecond
		go func() { _, _ = far.Write([]byte(begun)) }() // the reader may stop before the end
		require.NoError(t, r.wait(time.Now().Add(patience)))
		h, err := r.header()
		if err == nil {
			_, err = r.body(h)
		}
		require.Equal(t, "08P01", failureOf(err).response.Code, "%q", begun)
		require.True(t, failureOf(err).fatal)
		require.NoError(t, near.Close())
		require.NoError(t, far.Close())
	}
}

func TestOnlyASyncThatHasArrivedIsNext(t *testing.T) {
	for sent, want := range map[string]bool{
		"S\x00\x00\x00\x04": true, "S\x00\x00\x00\x05x": false, "S\x00\x00\x00": false, "H\x00\x00\x00\x04": false, "": false,
	} {
		r := readerOf([]byte(sent), 1024)
		_, _ = r.in.Peek(1) // fills the buffer
		require.Equal(t, want, r.syncIsNext(), "%q", sent)
	}
}

// What the library encodes is decoded; with a byte more, or less, it is not.
func TestMessagesAreTakenInTheirExactLength(t *testing.T) {
	text := rapid.StringOf(rapid.Rune().Filter(func(r rune) bool { return r != 0 }))
	codes := rapid.SliceOfN(rapid.Int16(), 0, 5)
	values := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) []byte {
		if rapid.Bool().Draw(t, "null") {
			return nil
		}
		return rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(t, "value")
	}), 0, 5)
	rapid.Check(t, func(t *rapid.T) {
		var sent, got pgproto3.FrontendMessage
		switch rapid.IntRange(0, 5).Draw(t, "kind") {
		case 0:
			sent, got = &pgproto3.Query{String: text.Draw(t, "sql")}, new(pgproto3.Query)
		case 1:
			sent, got = &pgproto3.Parse{Name: text.Draw(t, "name"), Query: text.Draw(t, "sql"), ParameterOIDs: rapid.SliceOfN(rapid.Uint32(), 0, 5).Draw(t, "types")}, new(pgproto3.Parse)
		case 2:
			sent, got = &pgproto3.Bind{DestinationPortal: text.Draw(t, "portal"), PreparedStatement: text.Draw(t, "name"), ParameterFormatCodes: codes.Draw(t, "formats"), Parameters: values.Draw(t, "values"), ResultFormatCodes: codes.Draw(t, "results")}, new(pgproto3.Bind)
		case 3:
			sent, got = &pgproto3.Describe{ObjectType: 'S', Name: text.Draw(t, "name")}, new(pgproto3.Describe)
		case 4:
			sent, got = &pgproto3.Close{ObjectType: 'P', Name: text.Draw(t, "name")}, new(pgproto3.Close)
		case 5:
			sent, got = &pgproto3.Execute{Portal: text.Draw(t, "portal"), MaxRows: rapid.Uint32().Draw(t, "rows")}, new(pgproto3.Execute)
		}
		encoded, err := sent.Encode(nil)
		require.NoError(t, err)
		body := encoded[5:]
		require.NoError(t, decode(got, body))
		again, err := got.Encode(nil)
		require.NoError(t, err)
		require.Equal(t, encoded, again)
		require.Error(t, decode(got, append(append([]byte(nil), body...), 0)), "a byte more")
		require.Error(t, decode(got, body[:len(body)-1]), "a byte less")
	})
}

func TestCountsThatLie(t *testing.T) {
	for _, body := range []string{"\x00\x00\xff\xff", "\x00\x00\x00\x00\xff\xff", "\x00\x00\x00\x00\x00\x01\x7f\xff\xff\xff", "\x00\x00\x00\x00\x00\x01\xff\xff\xff\xfe", "\x00\x00\x00\x00\x00\x00\xff\xff", ""} {
		require.Equal(t, "08P01", failureOf(decode(new(pgproto3.Bind), []byte(body))).response.Code, "%q", body)
	}
	for _, body := range []string{"a\x00b\x00\xff\xff", "a\x00b\x00\x00", "a\x00b", ""} {
		require.Equal(t, "08P01", failureOf(decode(new(pgproto3.Parse), []byte(body))).response.Code, "%q", body)
	}
}

// FuzzMessages reads any bytes as messages. Whatever they are, the reader stays
// within its limits and comes to an end.
func FuzzMessages(f *testing.F) {
	f.Add(append(message(typeParse, 4+6, []byte("a\x00b\x00\x00\x00")...), message(typeSync, 4)...))
	f.Add(message(typeBind, 4+8, []byte("\x00\x00\x00\x00\x00\x00\x00\x00")...))
	f.Add(message(typeQuery, 4+2000))
	f.Fuzz(func(t *testing.T, sent []byte) {
		r := readerOf(sent, 1024)
		for {
			h, err := r.header()
			if err != nil {
				return
			}
			body, err := r.body(h)
			if ends(err) {
				return
			}
			if err != nil {
				continue
			}
			require.LessOrEqual(t, len(body), maxDiscard)
			for _, m := range []pgproto3.FrontendMessage{new(pgproto3.Query), new(pgproto3.Parse), new(pgproto3.Bind), new(pgproto3.Describe), new(pgproto3.Close), new(pgproto3.Execute)} {
				_ = decode(m, body)
			}
		}
	})
}
