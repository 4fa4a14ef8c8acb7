package pgwire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Codes in the place of a protocol version, and versions.
// https://www.postgresql.org/docs/18/protocol-message-formats.html
const (
	codeCancel = 80877102
	codeSSL    = 80877103
	codeGSS    = 80877104

	version30 = 3 << 16
	version32 = 3<<16 | 2 // the newest one that is spoken here
)

// Lengths of a startup packet, its own length included. The upper one is
// PostgreSQL's MAX_STARTUP_PACKET_LENGTH.
const (
	minStartup = 8
	maxStartup = 10_000
)

// Lengths of the key of a CancelRequest (protocol 3.2).
const (
	minCancelKey = 4
	maxCancelKey = 256
)

// firstOfTLS is the first byte of a ClientHello: a client that begins with TLS
// instead of asking for it.
const firstOfTLS = 0x16

// errGarbage ends a connection whose first bytes are no startup packet. There is
// nothing to answer: what the other side speaks is not known.
var errGarbage = errors.New("the first bytes are no startup packet")

// A packet is the body of one startup packet: code and what follows.
type packet struct {
	code uint32
	rest []byte
}

// readPacket reads one startup packet and not a byte more, so that the next
// reader (a TLS handshake, say) begins at its end. Nothing is allocated before
// the length is checked.
func readPacket(r io.Reader) (packet, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return packet{}, err
	}
	return readPacketBody(r, head)
}

func readPacketBody(r io.Reader, head [4]byte) (packet, error) {
	length := binary.BigEndian.Uint32(head[:])
	if length < minStartup || length > maxStartup {
		return packet{}, fmt.Errorf("%w: length %d", errGarbage, int32(length))
	}
	body := make([]byte, length-4)
	if _, err := io.ReadFull(r, body); err != nil {
		return packet{}, err
	}
	return packet{binary.BigEndian.Uint32(body), body[4:]}, nil
}

// A greeting is a StartupMessage.
type greeting struct {
	version    uint32 // that is spoken: 3.0 to 3.2
	negotiate  bool   // the client asked for more than is spoken
	unknown    []string
	parameters [][2]string // in their order, names as they came
}

// parseGreeting reads a StartupMessage of version 3.
func parseGreeting(p packet) (*greeting, error) {
	if p.code>>16 != 3 {
		return nil, fatalf("0A000", "unsupported frontend protocol %d.%d: the gate speaks 3.0 to 3.2", p.code>>16, p.code&0xffff)
	}
	g := &greeting{version: min(p.code, version32), negotiate: p.code > version32}
	rest := p.rest
	for {
		name, after, ok := cutString(rest)
		if !ok {
			return nil, badGreeting()
		}
		if rest = after; name == "" {
			break
		}
		value, after, ok := cutString(rest)
		if !ok {
			return nil, badGreeting()
		}
		rest = after
		if strings.HasPrefix(name, "_pq_.") {
			g.unknown, g.negotiate = append(g.unknown, name), true
			continue
		}
		g.parameters = append(g.parameters, [2]string{name, value})
	}
	if len(rest) > 0 {
		return nil, badGreeting()
	}
	return g, nil
}

func badGreeting() error {
	return fatalf("08P01", "invalid startup packet layout: names and values must each end with a zero byte, and one more ends the list")
}

// cutString takes a zero-terminated string from the front.
func cutString(b []byte) (s string, rest []byte, ok bool) {
	i := bytes.IndexByte(b, 0)
	if i < 0 {
		return "", nil, false
	}
	return string(b[:i]), b[i+1:], true
}

// A cancelKey is what a CancelRequest shows.
type cancelKey struct {
	pid    uint32
	secret []byte
}

func parseCancel(p packet) (cancelKey, bool) {
	if n := len(p.rest); n < 4+minCancelKey || n > 4+maxCancelKey {
		return cancelKey{}, false
	}
	return cancelKey{binary.BigEndian.Uint32(p.rest), p.rest[4:]}, true
}
