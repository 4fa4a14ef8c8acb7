package sqlgate

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
)

// fill prepares statements of 256 KiB for a client, in as many sessions as it takes,
// until it is refused.
func fill(t *testing.T, s *sessions, client string) (made []*session, refused *fault.Fault) {
	t.Helper()
	text := strings.Repeat("x", 256<<10)
	for i := 0; ; i++ {
		one, _, err := s.enter(sessionName{fmt.Sprint(client, i), identity{actor: client}}, client, true)
		require.NoError(t, err)
		made = append(made, one)
		for k := range 15 {
			p := &prepared{name: fmt.Sprint(k), sql: text, holder: client}
			if err := s.room(one, p); err != nil {
				return made, fault.Of(err)
			}
			s.add(one, p)
		}
	}
}

func TestOneClientDoesNotFillTheSessionsOfAll(t *testing.T) {
	s := newSessions(1000, time.Now)
	made, refused := fill(t, s, "a")
	require.Equal(t, fault.SessionLimitExceeded, refused.Code)
	require.Equal(t, "client_sessions_bytes", refused.Details["limit"])
	require.Contains(t, refused.Message, "DEALLOCATE")
	_, _, err := s.enter(sessionName{"b", identity{actor: "b"}}, "b", true)
	require.NoError(t, err)
	others, refused := fill(t, s, "c")
	require.Equal(t, "all_sessions_bytes", refused.Details["limit"])
	require.NotContains(t, refused.Message, "DEALLOCATE", "it may have nothing to forget")
	require.LessOrEqual(t, s.stats().Bytes, sessionsBytes)
	require.Greater(t, s.of["c"].bytes, 15<<20)

	// What is forgotten, given up or ended counts no more.
	for i, one := range append(made, others...) {
		if i%2 == 0 {
			s.remove(one, "")
		}
		s.leave(one)
		s.end(one)
	}
	require.Zero(t, s.of["a"])
	require.Zero(t, s.of["c"])
	require.Zero(t, s.bytes)
}

func TestOneClientDoesNotTakeAllSessions(t *testing.T) {
	s := newSessions(8, time.Now)
	for i := range 6 {
		_, _, err := s.enter(sessionName{id: fmt.Sprint(i)}, "a", true)
		require.NoError(t, err)
	}
	_, _, err := s.enter(sessionName{id: "more"}, "a", true)
	require.Equal(t, "client_sessions", fault.Of(err).Details["limit"])
	_, _, err = s.enter(sessionName{id: "0"}, "a", true)
	require.NoError(t, err, "one that it has")
	one, _, err := s.enter(sessionName{id: "its own"}, "b", true)
	require.NoError(t, err)
	s.leave(one)
	require.Zero(t, s.of["b"], "it came to nothing")
}
