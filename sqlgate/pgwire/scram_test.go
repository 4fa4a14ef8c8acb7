package pgwire

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"writegate/sqlgate/scram"
)

// The exchange of RFC 7677 part 3.
func TestTheExchangeOfTheRFC(t *testing.T) {
	salt, err := base64.StdEncoding.DecodeString("W22ZaJ0SNY7soEsUEjb6gQ==")
	require.NoError(t, err)
	v, err := scram.New("pencil", salt, 4096)
	require.NoError(t, err)
	x := newScram(v, true, nil)
	x.nonce = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
	first, err := x.begin(mechanism, []byte("n,,n=user,r=rOprNGfwEbeRWgbNEkqO"))
	require.NoError(t, err)
	require.Equal(t, "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", string(first))
	final, err := x.finish([]byte("c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="))
	require.NoError(t, err)
	require.Equal(t, "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=", string(final))
}

func TestProofsThatDoNotFitFail(t *testing.T) {
	salt, err := base64.StdEncoding.DecodeString("W22ZaJ0SNY7soEsUEjb6gQ==")
	require.NoError(t, err)
	v, err := scram.New("pencil", salt, 4096)
	require.NoError(t, err)
	const nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
	const right = "c=biws,r=" + nonce + ",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
	begin := func(known bool) *scramExchange {
		x := newScram(v, known, nil)
		x.nonce = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
		_, err := x.begin(mechanism, []byte("n,,n=user,r=rOprNGfwEbeRWgbNEkqO"))
		require.NoError(t, err)
		return x
	}
	_, err = begin(false).finish([]byte(right))
	require.ErrorIs(t, err, errScram, "the right keys of a user who is not there")
	for _, wrong := range []string{
		"", "p=", right[:len(right)-1], strings.Replace(right, "p=d", "p=e", 1), strings.Replace(right, "biws", "eSws", 1),
		strings.Replace(right, "k0,", "k1,", 1), strings.Replace(right, ",r=", ",x=", 1), "c=biws,r=" + nonce, right + "\x00", "m=x," + right,
	} {
		_, err := begin(true).finish([]byte(wrong))
		require.ErrorIs(t, err, errScram, "%q", wrong)
	}
	rapid.Check(t, func(t *rapid.T) {
		proof := rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "proof")
		_, err := begin(true).finish([]byte("c=biws,r=" + nonce + ",p=" + base64.StdEncoding.EncodeToString(proof)))
		require.ErrorIs(t, err, errScram)
	})
}

func TestFirstMessagesThatAreRefused(t *testing.T) {
	v, err := scram.New("pencil", []byte("salt"), 1)
	require.NoError(t, err)
	binding := []byte("a channel")
	for _, c := range []struct {
		chosen, message string
		binding         []byte
	}{
		{"SCRAM-SHA-1", "n,,n=,r=abc", nil},
		{mechanismPlus, "p=tls-server-end-point,,n=,r=abc", nil}, // was not offered
		{mechanismPlus, "n,,n=,r=abc", binding},
		{mechanismPlus, "p=tls-unique,,n=,r=abc", binding},
		{mechanism, "p=tls-server-end-point,,n=,r=abc", binding},
		{mechanism, "y,,n=,r=abc", binding}, // the offer was taken away on its road
		{mechanism, "n,a=admin,n=,r=abc", nil},
		{mechanism, "n,,m=ext,n=,r=abc", nil},
		{mechanism, "n,,n=", nil},
		{mechanism, "n,,n=,r=", nil},
		{mechanism, "n,,n=,r=a b", nil},
		{mechanism, "n,,n=,r=a\x00b", nil},
		{mechanism, "n,,r=abc,n=", nil},
		{mechanism, "x,,n=,r=abc", nil},
		{mechanism, "n,", nil},
		{mechanism, "", nil},
	} {
		_, err := newScram(v, true, c.binding).begin(c.chosen, []byte(c.message))
		require.ErrorIs(t, err, errScram, "%+v", c)
	}
	for _, c := range []struct {
		chosen, message string
		binding         []byte
	}{
		{mechanism, "n,,n=,r=abc", binding},
		{mechanism, "y,,n=ana,r=abc", nil},
		{mechanismPlus, "p=tls-server-end-point,,n=,r=abc,x=1", binding},
	} {
		_, err := newScram(v, true, c.binding).begin(c.chosen, []byte(c.message))
		require.NoError(t, err, "%+v", c)
	}
}

func TestAPasswordOpensTheDoorAndAWrongOneDoesNot(t *testing.T) {
	users, err := OpenUsers(usersFile(t, "# people", "", hashed(t, "ana", "secret"), hashed(t, "a:b", "other")))
	require.NoError(t, err)
	d := openDoor(t, func(o *Options) { o.Auth, o.Users = AuthScram, users })
	require.Equal(t, behindTheDoor.SQLState, d.login("user=ana password=secret dbname=shop", nil).Code)
	require.Equal(t, behindTheDoor.SQLState, d.login("user=a:b password=other dbname=shop", nil).Code)
	began := time.Now()
	wrong := d.login("user=ana password=Secret dbname=shop", nil)
	unknown := d.login("user=eve password=secret dbname=shop", nil)
	require.GreaterOrEqual(t, time.Since(began), 2*failureDelay)
	require.Equal(t, "28P01", wrong.Code)
	unknown.Message = strings.ReplaceAll(unknown.Message, "eve", "ana")
	require.Equal(t, wrong, unknown, "whether there is such a user cannot be seen")
	require.Equal(t, "3D000", d.login("user=ana password=secret dbname=other", nil).Code, "which database there is, is told behind the login alone")
}

func TestAnUnknownUserIsShownTheSameSaltEachTime(t *testing.T) {
	users, err := OpenUsers(usersFile(t, hashed(t, "ana", "secret")))
	require.NoError(t, err)
	ana, known := users.current.Load().find("ana")
	require.True(t, known)
	eve, known := users.current.Load().find("eve")
	require.False(t, known)
	again, _ := users.current.Load().find("eve")
	require.Equal(t, eve, again)
	other, _ := users.current.Load().find("eva")
	require.NotEqual(t, eve.Salt, other.Salt)
	require.Len(t, eve.Salt, len(ana.Salt))
	require.Equal(t, ana.Iterations, eve.Iterations)
}

func TestOnlyAnAnswerIsReadBeforeTheLogin(t *testing.T) {
	users, err := OpenUsers(usersFile(t, hashed(t, "ana", "secret")))
	require.NoError(t, err)
	d := openDoor(t, func(o *Options) { o.Auth, o.Users = AuthScram, users })
	for _, message := range []string{"Q\x00\x00\x00\x0dSELECT 1\x00", "X\x00\x00\x00\x04", "p\x00\x00\x00\x03", "p\xff\xff\xff\xff", "p\x7f\xff\xff\xff", "p\x00\x00\x10\x01"} {
		e := firstError(t, d.send(append(greet("user", "ana", "database", "shop"), message...)))
		require.Equal(t, "08P01", e.Code, "%q", message)
	}
	for _, message := range []string{"p\x00\x00\x00\x04", "p\x00\x00\x00\x06ab", "p\x00\x00\x00\x12SCRAM-SHA-256\x00", "p\x00\x00\x00\x16SCRAM-SHA-256\x00\x7f\xff\xff\xff", "p\x00\x00\x00\x16SCRAM-SHA-256\x00\xff\xff\xff\xff"} {
		e := firstError(t, d.send(append(greet("user", "ana", "database", "shop"), message...)))
		require.Equal(t, "28P01", e.Code, "%q", message)
	}
	require.Empty(t, d.logins)
}

func TestUsersFilesThatAreRefused(t *testing.T) {
	good := hashed(t, "ana", "secret")
	for _, c := range []struct{ want, text string }{
		{"names no user", "# nobody\n"},
		{"there twice", good + "\n" + hashed(t, "ana", "other")},
		{"line 2", good + "\nana"},
		{"line 1", "ana:md5abc"},
		{"line 1", strings.Replace(good, "ana:", ":", 1)},
		{"line 1", strings.Replace(good, "4096", "0", 1)},
		{"line 1", strings.Replace(good, "4096", "99999999", 1)},
		{"line 1", good[:len(good)-4]},
		{"line 1", good + "AAAA"},
		{"line 1", strings.Replace(good, "$4096:", "$4096:!", 1)},
	} {
		_, err := OpenUsers(usersFile(t, c.text))
		require.ErrorContains(t, err, c.want, c.text)
		require.NotContains(t, err.Error(), "SCRAM-SHA-256$4096", "a verifier is not shown")
	}
	path := usersFile(t, good)
	require.NoError(t, os.Chmod(path, 0o640))
	_, err := OpenUsers(path)
	require.ErrorContains(t, err, "chmod 600")
	_, err = OpenUsers(t.TempDir())
	require.Error(t, err)
}

func TestABadUsersFileLeavesTheOldUsersIn(t *testing.T) {
	path := usersFile(t, hashed(t, "ana", "secret"))
	users, err := OpenUsers(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, []byte("nonsense"), 0o600))
	require.Error(t, users.Reload())
	_, known := users.current.Load().find("ana")
	require.True(t, known)
	require.NoError(t, os.WriteFile(path, []byte(hashed(t, "eva", "secret")), 0o600))
	require.NoError(t, users.Reload())
	_, known = users.current.Load().find("ana")
	require.False(t, known)
}

func TestPasswordsThatAreNotHashed(t *testing.T) {
	for _, c := range [][2]string{{"", "x"}, {"ana", ""}, {" ana", "x"}, {"#ana", "x"}, {"ana", "pässword"}, {"ana", "a\tb"}, {strings.Repeat("a", maxClaim+1), "x"}, {"a\nb", "x"}} {
		_, err := HashPassword(c[0], c[1])
		require.Error(t, err, "%q", c)
	}
}

// FuzzScram sends any two messages to an exchange. None of them opens the door
// of a user whose password is not known to whoever sends them.
func FuzzScram(f *testing.F) {
	f.Add(mechanism, "n,,n=user,r=abc", "c=biws,r=abc,p=AAAA")
	f.Add(mechanismPlus, "p=tls-server-end-point,,n=,r=abc", "c=cD10bHMtc2VydmVyLWVuZC1wb2ludCws,r=abc,p=")
	v, err := scram.New("pencil", []byte("a salt"), 16)
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, chosen, first, second string) {
		for _, binding := range [][]byte{nil, []byte("channel")} {
			x := newScram(v, true, binding)
			if _, err := x.begin(chosen, []byte(first)); err != nil {
				require.ErrorIs(t, err, errScram)
			}
			_, err := x.finish([]byte(second))
			require.ErrorIs(t, err, errScram)
		}
	})
}

// FuzzUsers reads any text as a users file; what is taken is written as it was.
func FuzzUsers(f *testing.F) {
	f.Add("# people\nana:SCRAM-SHA-256$1:c2FsdA==$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=")
	f.Fuzz(func(t *testing.T, text string) {
		users, err := parseUsers("users", []byte(text))
		if err != nil {
			return
		}
		for name, v := range users.verifiers {
			require.Contains(t, text, name+":"+scram.Prefix)
			again, err := scram.Parse(v.String())
			require.NoError(t, err)
			require.Equal(t, v, again)
		}
	})
}

// A salt that changes where those of the others stay, or iterations that no other
// user has, would tell who is not there.
func TestWhoIsNotThereLooksTheSameAfterAStart(t *testing.T) {
	var lines []string
	for i := range 20 {
		v, err := scram.New("secret", bytes.Repeat([]byte{byte(i)}, scram.SaltLen), 1+i%2)
		require.NoError(t, err)
		lines = append(lines, fmt.Sprintf("user%d:%s", i, v))
	}
	seen := func(lines []string) (list []scram.Verifier) {
		users, err := OpenUsers(usersFile(t, lines...))
		require.NoError(t, err)
		for i := range 100 {
			v, known := users.current.Load().find(fmt.Sprint("nobody", i))
			require.False(t, known)
			list = append(list, v)
		}
		return list
	}
	before := seen(lines[1:])
	require.Equal(t, before, seen(lines[1:]), "the gate was started anew")
	slices.Reverse(lines)
	require.Equal(t, before, seen(lines[:len(lines)-1]), "the order of the file says nothing")
	same := 0
	for i, v := range seen(lines) {
		if slices.Equal(v.Salt, before[i].Salt) {
			same++
		}
	}
	require.Greater(t, same, 50, "of 100, with one user more")
	iterations := map[int]int{}
	for _, v := range before {
		require.Len(t, v.Salt, scram.SaltLen)
		iterations[v.Iterations]++
	}
	require.Greater(t, iterations[1], 10)
	require.Greater(t, iterations[2], 10)
}
