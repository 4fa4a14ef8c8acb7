package pgwire

import (
	"encoding/binary"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// dialFrom is a bare connection from an address of the loopback network.
func (d *door) dialFrom(from string) net.Conn {
	d.t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	c, err := dialer.Dial("tcp", d.Addr().String())
	require.NoError(d.t, err)
	d.t.Cleanup(func() { c.Close() })
	require.NoError(d.t, c.SetDeadline(time.Now().Add(patience)))
	return c
}

// seated is a connection that has a seat and says nothing more.
func (d *door) seated(from string) net.Conn {
	d.t.Helper()
	c := d.dialFrom(from)
	_, err := c.Write(request(codeGSS)) // its answer shows that it was taken
	require.NoError(d.t, err)
	_, err = io.ReadFull(c, make([]byte, 1))
	require.NoError(d.t, err)
	return c
}

// greeted is the SQLSTATE that a greeting from an address is answered with.
func (d *door) greeted(from string) string {
	d.t.Helper()
	c := d.dialFrom(from)
	_, err := c.Write(greet("user", "ana", "database", "shop"))
	require.NoError(d.t, err)
	return firstError(d.t, readAll(d.t, c)).Code
}

func TestOneAddressCannotKeepTheOthersOut(t *testing.T) {
	d := openDoor(t, func(o *Options) { o.MaxUnauthenticated = 4 })
	var hostile []net.Conn
	for range 4 {
		hostile = append(hostile, d.seated("127.0.0.7"))
	}
	require.Equal(t, "53300", d.greeted("127.0.0.7"), "it has all seats, and gets no more")
	require.Equal(t, behindTheDoor.SQLState, d.greeted("127.0.0.1"))
	_, err := io.ReadAll(hostile[0])
	require.NoError(t, err, "its oldest had to go")
	d.seated("127.0.0.1")
	d.seated("127.0.0.1")
	d.seated("127.0.0.7")
	require.Equal(t, "53300", d.greeted("127.0.0.7"), "each has its share, which the other can't take back")
	require.Equal(t, "53300", d.greeted("127.0.0.1"))
	require.Equal(t, behindTheDoor.SQLState, d.greeted("127.0.0.8"), "a third has a share too")
}

func TestACancelGetsThroughWhateverSeatsAreTaken(t *testing.T) {
	d := openDoor(t, func(o *Options) { o.MaxUnauthenticated = 2 })
	for range 2 {
		d.seated("127.0.0.1")
	}
	for range cancelSeats + 10 { // those of the cancels as well
		d.dialFrom("127.0.0.1")
	}
	require.Empty(t, d.send(request(codeCancel, binary.BigEndian.AppendUint64(nil, 1)...)))
	require.Equal(t, []string{"received", CancelUnknownKey}, d.written())
	require.Equal(t, "53300", d.greeted("127.0.0.1"), "there is nothing else to be had with such a seat")
}

func TestAStrangerTakesNoSeatOfThoseWhoLogIn(t *testing.T) {
	users, err := OpenUsers(usersFile(t, hashed(t, "ana", "secret")))
	require.NoError(t, err)
	d := openDoor(t, func(o *Options) { o.Auth, o.Users, o.MaxConnections, o.MaxPerAddress = AuthScram, users, 1, 1 })
	stranger := d.dial()
	_, err = stranger.Write(greet("user", "ana", "database", "shop"))
	require.NoError(t, err)
	_, err = io.ReadFull(stranger, make([]byte, 5)) // it is asked for its password, and does not answer
	require.NoError(t, err)
	require.Equal(t, behindTheDoor.SQLState, d.login("user=ana password=secret dbname=shop", nil).Code)
}

func TestSeatsOfNetworksAndAddresses(t *testing.T) {
	from := func(addr string) *conn { return &conn{addr: netip.MustParseAddr(addr)} }
	require.Equal(t, from("2001:db8::1").holder(), from("2001:db8::ffff:1").holder())
	require.NotEqual(t, from("2001:db8::1").holder(), from("2001:db8:0:1::1").holder())
	require.NotEqual(t, from("192.0.2.1").holder(), from("192.0.2.2").holder())

	p := newPending(3)
	seat := func(addr string, always bool) (*conn, *conn, bool) {
		c := from(addr)
		displaced, ok := p.enter(c, always)
		return c, displaced, ok
	}
	a1, _, _ := seat("2001:db8::1", false)
	a2, _, _ := seat("2001:db8::2", false)
	a3, _, _ := seat("2001:db8::3", false)
	_, displaced, ok := seat("2001:db8::4", false)
	require.False(t, ok)
	require.Nil(t, displaced)
	b1, displaced, ok := seat("192.0.2.1", false)
	require.True(t, ok)
	require.Same(t, a1, displaced)
	require.Nil(t, a1.waiting)
	_, _, ok = seat("192.0.2.1", false)
	require.False(t, ok, "two and one is as even as three can be")
	_, displaced, ok = seat("2001:db8::5", true)
	require.True(t, ok)
	require.Same(t, a2, displaced, "its own oldest")
	_, displaced, ok = seat("192.0.2.1", true)
	require.True(t, ok)
	require.Same(t, a3, displaced)
	p.leave(b1)
	require.Equal(t, 2, p.count)
}

// Whoever comes and goes, seats are counted right, and whoever wants one has a share.
func TestSeatsStayCountedWhoeverComesAndGoes(t *testing.T) {
	draw := rand.New(rand.NewPCG(1, 2))
	p := newPending(8)
	var inside []*conn
	for range 20_000 {
		if len(inside) > 0 && draw.IntN(3) == 0 {
			i := draw.IntN(len(inside))
			p.leave(inside[i])
			inside = slices.Delete(inside, i, i+1)
		} else {
			c := &conn{addr: netip.AddrFrom4([4]byte{192, 0, 2, byte(draw.IntN(4))})}
			own := len(p.of[c.holder()])
			displaced, ok := p.enter(c, draw.IntN(4) == 0)
			require.True(t, ok || own >= 1, "nobody is without a seat")
			if displaced != nil {
				inside = slices.DeleteFunc(inside, func(other *conn) bool { return other == displaced })
			}
			if ok {
				inside = append(inside, c)
			}
		}
		total := 0
		for holder, conns := range p.of {
			require.NotEmpty(t, conns, holder)
			total += len(conns)
		}
		require.Equal(t, []int{len(inside), len(inside)}, []int{total, p.count})
		require.LessOrEqual(t, p.count, p.most)
	}
}
