package pgwire

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"
)

func TestABareGreetingIsTakenWithItsClaims(t *testing.T) {
	d := openDoor(t, nil)
	e := firstError(t, d.send(greet("user", "ana", "database", "shop", "application_name", "till", "options", `-c gate.tenant=t1 --gate.role=clerk -cgate.env=staging`)))
	require.Equal(t, behindTheDoor.SQLState, e.Code)
	l := d.lastLogin()
	require.Equal(t, "ana", l.Actor)
	require.Equal(t, "till", l.App)
	require.Equal(t, "t1", l.Tenant)
	require.Equal(t, "clerk", l.Role)
	require.Equal(t, "127.0.0.1", l.Host)
	require.Equal(t, "staging", l.Env)
	require.Empty(t, l.SessionID)
	require.NotEmpty(t, l.ConnectionID)
	require.Equal(t, [][2]string{{"application_name", "till"}}, l.Settings)
}

func TestClaimsThatAreNotGivenComeFromTheLogin(t *testing.T) {
	d := openDoor(t, nil)
	d.send(greet("user", "shop"))
	l := d.lastLogin()
	require.Equal(t, []string{"shop", "pgwire", "shop", "shop", "prod"}, []string{l.Actor, l.App, l.Tenant, l.Role, l.Env})
	require.Empty(t, l.Settings)
}

func TestAParameterWinsOverOptionsAndTheLaterOverTheEarlier(t *testing.T) {
	d := openDoor(t, nil)
	d.send(greet("user", "ana", "database", "shop", "DateStyle", "ISO", "options", "-c datestyle=German -c TimeZone=UTC -c timezone=Europe/Berlin -c application_name=psql", "application_name", "till"))
	l := d.lastLogin()
	require.Equal(t, [][2]string{{"timezone", "Europe/Berlin"}, {"datestyle", "ISO"}, {"application_name", "till"}}, l.Settings)
	require.Equal(t, "till", l.App)
}

func TestGreetingsThatAreRefused(t *testing.T) {
	long := strings.Repeat("x", maxClaim+1)
	for _, c := range []struct {
		name, state string
		packet      []byte
	}{
		{"no user", "28000", greet("database", "shop")},
		{"another database", "3D000", greet("user", "ana", "database", "other")},
		{"the database of the user's name, which is another", "3D000", greet("user", "ana")},
		{"replication", "0A000", greet("user", "ana", "database", "shop", "replication", "database")},
		{"a claim of 10 KB less the rest", "22023", greet("user", "ana", "database", "shop", "gate.tenant", strings.Repeat("x", 9900))},
		{"a claim of 257 characters", "22023", greet("user", "ana", "database", "shop", "gate.actor", long)},
		{"an empty claim", "22023", greet("user", "ana", "database", "shop", "gate.role", "")},
		{"a claim that is no text", "22023", greet("user", "ana", "database", "shop", "gate.app", "\xff")},
		{"a claim with a line end", "22023", greet("user", "ana", "database", "shop", "gate.app", "a\nb")},
		{"an application's name that is too long", "22023", greet("user", "ana", "database", "shop", "application_name", long)},
		{"two users", "22023", greet("user", "ana", "user", "bo", "database", "shop")},
		{"two databases", "22023", greet("user", "ana", "database", "shop", "database", "shop")},
		{"two options", "22023", greet("user", "ana", "database", "shop", "options", "-c gate.env=prod", "options", "")},
		{"replication after none", "22023", greet("user", "ana", "database", "shop", "replication", "database", "replication", "off")},
		{"two claims", "22023", greet("user", "ana", "database", "shop", "gate.app", "one", "gate.app", "two")},
		{"one claim twice", "22023", greet("user", "ana", "database", "shop", "gate.env", "prod", "Gate.ENV", "prod")},
		{"two claims in options", "22023", greet("user", "ana", "database", "shop", "options", "-c gate.actor=ana --gate.actor=bo")},
		{"a claim beside options", "22023", greet("user", "ana", "database", "shop", "gate.role", "clerk", "options", "-c gate.role=boss")},
		{"two approvals", "22023", greet("user", "ana", "database", "shop", "gate.approval_id", "apr_x", "options", "-c gate.approval_id=")},
		{"two applications", "22023", greet("user", "ana", "database", "shop", "application_name", "till", "application_name", "desk")},
		{"two applications in options", "22023", greet("user", "ana", "database", "shop", "options", "-c application_name=till -c application_name=desk")},
		{"an environment that is none", "22023", greet("user", "ana", "database", "shop", "gate.env", "dev")},
		{"options with a switch", "0A000", greet("user", "ana", "database", "shop", "options", "-d 5")},
		{"options without a value", "42601", greet("user", "ana", "database", "shop", "options", "-c geqo")},
		{"options that end early", "42601", greet("user", "ana", "database", "shop", "options", "-c")},
		{"no end of the list", "08P01", startupPacket(append(binary.BigEndian.AppendUint32(nil, version30), "user\x00ana\x00"...))},
		{"a name without a value", "08P01", startupPacket(append(binary.BigEndian.AppendUint32(nil, version30), "user\x00"...))},
		{"something behind the end", "08P01", startupPacket(append(binary.BigEndian.AppendUint32(nil, version30), "user\x00ana\x00\x00x"...))},
		{"an empty body", "08P01", request(version30)},
		{"version 2", "0A000", greetAs(2<<16, "user", "ana")},
		{"version 4", "0A000", greetAs(4<<16, "user", "ana")},
		{"a code of nobody's", "0A000", request(80877101)},
		{"an SSLRequest with a tail", "0A000", request(codeSSL, 0)},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := openDoor(t, nil)
			e := firstError(t, d.send(c.packet))
			require.Equal(t, c.state, e.Code, e.Message)
			require.Equal(t, "FATAL", e.Severity)
			require.Empty(t, d.logins)
		})
	}
}

func TestARequestForEncryptionIsAnsweredOnceOfEachKind(t *testing.T) {
	d := openDoor(t, nil)
	got := d.send(append(append(request(codeSSL), request(codeGSS)...), greet("user", "ana", "database", "shop")...))
	require.Equal(t, "NN", string(got[:2]))
	require.Equal(t, behindTheDoor.SQLState, firstError(t, got[2:]).Code)
	for _, code := range []uint32{codeSSL, codeGSS} {
		got := d.send(append(request(code), request(code)...))
		require.Equal(t, "N", string(got[:1]))
		require.Equal(t, "0A000", firstError(t, got[1:]).Code)
	}
}

func TestLengthsThatCannotBeEndTheConnectionWithoutAWord(t *testing.T) {
	d := openDoor(t, nil)
	lengths := []uint32{10_001, 1 << 31, 1<<32 - 1, 1<<32 - 100, 0x16000000 - 1}
	for n := range uint32(minStartup) {
		lengths = append(lengths, n)
	}
	for _, n := range lengths {
		require.Empty(t, d.send(binary.BigEndian.AppendUint32(nil, n)), "%d", n)
	}
}

func TestGarbageEndsTheConnection(t *testing.T) {
	d := openDoor(t, nil)
	for _, garbage := range []string{"GET / HTTP/1.1\r\n\r\n", "\x16\x03\x01\x02\x00\x01", "\x00\x00\x00\x07abc", "SSH-2.0-x\r\n"} {
		require.Empty(t, d.send([]byte(garbage)), "%q", garbage)
	}
}

func TestAGreetingThatComesByteForByteIsTakenAndASlowOneIsNot(t *testing.T) {
	c := openDoor(t, nil).dial()
	for _, b := range greet("user", "ana", "database", "shop") {
		_, err := c.Write([]byte{b})
		require.NoError(t, err)
	}
	require.Equal(t, behindTheDoor.SQLState, firstError(t, readAll(t, c)).Code)
	slow := openDoor(t, func(o *Options) { o.AuthTimeout = 200 * time.Millisecond }).dial()
	_, err := slow.Write(greet("user", "ana", "database", "shop")[:20])
	require.NoError(t, err)
	require.Empty(t, readAll(t, slow), "closed, and nothing was said to somebody who has not said what they speak")
}

func TestNewerVersionsAndOptionsAreNegotiated(t *testing.T) {
	for _, c := range []struct {
		name    string
		packet  []byte
		version uint32
		unknown []string
	}{
		{"a newer minor version", greetAs(3<<16|9999, "user", "ana", "database", "shop"), version32, nil},
		{"an option of the protocol", greetAs(version30, "user", "ana", "_pq_.x", "1", "database", "shop"), version30, []string{"_pq_.x"}},
		{"both", greetAs(3<<16|3, "_pq_.a", "", "user", "ana", "database", "shop", "_pq_.b", ""), version32, []string{"_pq_.a", "_pq_.b"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := openDoor(t, nil).send(c.packet)
			require.Equal(t, byte('v'), got[0])
			n := binary.BigEndian.Uint32(got[1:]) + 1
			var m pgproto3.NegotiateProtocolVersion
			require.NoError(t, m.Decode(got[5:n]))
			require.Equal(t, c.version, m.NewestMinorProtocol)
			require.ElementsMatch(t, c.unknown, m.UnrecognizedOptions)
			require.Equal(t, behindTheDoor.SQLState, firstError(t, got[n:]).Code)
		})
	}
	for _, version := range []uint32{version30, 3<<16 | 1, version32} {
		require.Equal(t, byte('R'), openDoor(t, nil).send(greetAs(version, "user", "ana", "database", "shop"))[0], "nothing to negotiate")
	}
}

func TestSilentConnectionsTakeNoMoreThanTheirSeats(t *testing.T) {
	d := openDoor(t, func(o *Options) { o.MaxUnauthenticated = 3 })
	var silent []net.Conn
	for range 3 {
		c := d.dial()
		_, err := c.Write(request(codeGSS)) // its answer shows that the seat is taken
		require.NoError(t, err)
		_, err = io.ReadFull(c, make([]byte, 1))
		require.NoError(t, err)
		silent = append(silent, c)
	}
	require.Equal(t, "53300", firstError(t, d.send(greet("user", "ana", "database", "shop"))).Code)
	silent[0].Close()
	require.Eventually(t, func() bool {
		return firstError(t, d.send(greet("user", "ana", "database", "shop"))).Code == behindTheDoor.SQLState
	}, patience, 10*time.Millisecond)
}

func TestConnectionsThatOpenAndDropLeaveNothingBehind(t *testing.T) {
	d := openDoor(t, func(o *Options) { o.MaxUnauthenticated = 1000 })
	for i := range 2000 {
		c := d.dial()
		if i%2 == 0 {
			_, err := c.Write(greet("user", "ana", "database", "shop")[:i%30])
			require.NoError(t, err)
		}
		require.NoError(t, c.(*net.TCPConn).SetLinger(0))
		require.NoError(t, c.Close())
	}
	require.Eventually(t, func() bool {
		d.Server.mu.Lock()
		defer d.Server.mu.Unlock()
		return len(d.conns) == 0
	}, patience, 10*time.Millisecond)
}

func TestOptionsAreSplitAsPostgreSQLSplitsThem(t *testing.T) {
	for text, want := range map[string][]string{
		"":                           nil,
		"  ":                         nil,
		"-c a=1":                     {"-c", "a=1"},
		"\t-c\va=1\r\n":              {"-c", "a=1"},
		`-c a=b\ c`:                  {"-c", "a=b c"},
		`a\\b`:                       {`a\b`},
		`\ `:                         {" "},
		`ends\`:                      {"ends"},
		`-c gate.actor=O\'Neill x`:   {"-c", "gate.actor=O'Neill", "x"},
		"-c a='it is not a quote' b": {"-c", "a='it", "is", "not", "a", "quote'", "b"},
	} {
		require.Equal(t, want, splitOptions(text), "%q", text)
	}
}

func FuzzOptions(f *testing.F) {
	f.Add("-c a=1 --b-c=2 -cd=\\ 3")
	f.Add("\\")
	f.Fuzz(func(t *testing.T, text string) {
		settings, err := parseOptions(text)
		if err != nil {
			require.Equal(t, byte('F'), failureOf(err).response.Severity[0])
		}
		for _, s := range settings {
			require.NotEmpty(t, s[0])
			require.LessOrEqual(t, len(s[0])+len(s[1]), len(text))
		}
	})
}

// FuzzStartup sends any bytes to the part of the listener that has not seen a
// login. Whatever they are, it ends, and what it says is well formed.
func FuzzStartup(f *testing.F) {
	f.Add(greet("user", "ana", "database", "shop", "options", "-c gate.tenant=x"))
	f.Add(append(request(codeSSL), greetAs(3<<16|7, "_pq_.x", "y")...))
	f.Add(request(codeCancel, 0, 0, 0, 1, 1, 2, 3, 4))
	f.Add([]byte{firstOfTLS, 3, 1})
	o := &Options{Auth: AuthTrust, TLSMode: TLSOff, MaxConnections: 1, MaxPerAddress: 1, MaxUnauthenticated: 1, WriteTimeout: patience, AuthTimeout: patience}
	f.Fuzz(func(t *testing.T, sent []byte) {
		s := &Server{o: *o, log: slog.New(slog.DiscardHandler), seats: newSeats(o)}
		ours, theirs := net.Pipe()
		defer ours.Close()
		c := &conn{server: s, raw: ours, net: ours, out: messageWriter{conn: ours, timeout: patience}}
		said := make(chan []byte, 1)
		go func() {
			defer theirs.Close()
			got := make(chan []byte, 1)
			go func() {
				b, _ := io.ReadAll(theirs) // ends with the pipe
				got <- b
			}()
			_, _ = io.Copy(theirs, bytes.NewReader(sent)) // may end early
			theirs.SetDeadline(time.Now())
			said <- <-got
		}()
		p, err := c.firstPacket(context.Background())
		if err == nil && p.code == codeCancel {
			parseCancel(p)
		} else if err == nil {
			_, err = c.enter(context.Background(), p)
		}
		if err != nil {
			fatal(err)
		}
		ours.Close()
		<-said
	})
}
