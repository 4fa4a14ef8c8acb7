package agentctl

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
	"writegate/eventlog/event"
)

// A readLog counts the events that are read from a log.
type readLog struct {
	Log
	reads int
	more  int64 // bytes that each event costs beside what it has: the walk to it
}

func (l *readLog) AtCost(ctx context.Context, seq uint64) (event.Envelope, int64, error) {
	l.reads++
	e, read, err := l.Log.AtCost(ctx, seq)
	return e, read + l.more, err
}

// page reads one of the agent view and gives the ids of its telemetry events.
func (w *world) page(t *testing.T, log *readLog, f EventFilter, p EventPage) (found []string, e Events) {
	t.Helper()
	before := log.reads
	e, err := w.Events(t.Context(), &key("default").Caller, f, p, func(item func([]byte) []byte) (bool, error) {
		_, id, some := strings.Cut(string(item(nil)), `"id":"sent-`)
		require.True(t, some)
		id, _, _ = strings.Cut(id, `"`)
		found = append(found, id)
		return true, nil
	})
	require.NoError(t, err)
	require.Less(t, log.reads-before, 80, "records of some 460 KB, of which there are 100")
	return found, e
}

// A filter whose conditions are met in each batch, but never or seldom by one event,
// costs a bounded number of batches a page; page by page everything is found once.
func TestAPageOfEventsReadsABoundedPartOfTheLog(t *testing.T) {
	w := begin(t)
	agent := w.agent(t, "default")
	by := key("default")
	const batches, both = 50, 30
	filler := []byte(`{"text":"` + strings.Repeat("x", 7000) + `"}`)
	for n := range batches {
		list := make([]SentEvent, 130)
		for i := range list {
			id := fmt.Sprintf("sent-%d.%d", n, i)
			in := &TelemetryInput{ID: &id, Type: []string{"a", "b"}[i%2], SessionID: []string{"s", "t"}[i%2], AgentID: agent, Attributes: filler}
			if n == both && i == 7 {
				in.Type, in.SessionID = "a", "t"
			}
			list[i] = SentEvent{Bytes: len(filler) + 200, Input: in}
		}
		_, err := w.Telemetry(t.Context(), by, list)
		require.NoError(t, err)
	}
	log := &readLog{Log: w.Log}
	w.Log = log

	f := EventFilter{TelemetryType: "a", SessionID: "t"}
	for _, asc := range []bool{false, true} {
		var all []string
		pages, cursor := 0, ""
		for {
			found, e := w.page(t, log, f, EventPage{Limit: 10, Cursor: cursor, Asc: asc})
			all = append(all, found...)
			pages++
			if cursor = e.Next; cursor == "" {
				break
			}
		}
		require.Equal(t, []string{fmt.Sprintf("%d.7", both)}, all)
		require.Greater(t, pages, 1)
	}

	gone, leave := context.WithCancel(t.Context())
	leave()
	_, err := w.Events(gone, &by.Caller, f, EventPage{Limit: 1}, nil)
	require.Equal(t, fault.AuditUnavailable, fault.CodeOf(err))
	_, err = w.Event(gone, &by.Caller, event.NewID(w.Now()).String())
	require.Error(t, err)
	require.NotEqual(t, fault.EventNotFound, fault.CodeOf(err), "it was not looked for")
}

// Small events count with what of the log was looked through for them, and every page
// comes further, however dear one event is.
func TestAPageOfEventsCountsTheWayToThem(t *testing.T) {
	w := begin(t)
	agent := w.agent(t, "default")
	by := key("default")
	const events = 40
	for n := range events {
		id := fmt.Sprintf("sent-%d", n)
		_, err := w.Telemetry(t.Context(), by, []SentEvent{{Bytes: 200, Input: &TelemetryInput{ID: &id, Type: "a", AgentID: agent}}})
		require.NoError(t, err)
	}
	log := &readLog{Log: w.Log}
	w.Log = log
	for more, pages := range map[int64]int{0: 1, 1 << 20: 2, 1 << 30: events} {
		log.more = more
		for _, asc := range []bool{false, true} {
			var all []string
			took, cursor := 0, ""
			for ; took == 0 || cursor != ""; took++ {
				found, e := w.page(t, log, EventFilter{TelemetryType: "a"}, EventPage{Limit: 100, Cursor: cursor, Asc: asc})
				all, cursor = append(all, found...), e.Next
			}
			require.Equal(t, pages, took)
			require.Len(t, all, events)
			require.Equal(t, asc, all[0] == "0")
		}
	}
}

// A policy is asked for by the events that it matched, not by the batches that they came in.
func TestEventsAreFoundByThePolicyThatMatchedThem(t *testing.T) {
	w := begin(t)
	by := key("default")
	agent, other := w.agent(t, "default"), w.agent(t, "default")
	matches := w.policy(t, "default", "alert:a", `event.type == "a"`, 1)
	w.apply(t, "default", matches, agent)
	w.apply(t, "default", w.policy(t, "default", "alert:b", "", 1), other)
	sent := func(id, kind, agent string) SentEvent {
		id = "sent-" + id
		return SentEvent{Bytes: 200, Input: &TelemetryInput{ID: &id, Type: kind, AgentID: agent}}
	}
	_, err := w.Telemetry(t.Context(), by, []SentEvent{sent("0", "a", agent)})
	require.NoError(t, err)
	_, err = w.Telemetry(t.Context(), by, []SentEvent{sent("1", "a", "agt_x"), sent("0", "a", agent), sent("2", "b", agent), sent("3", "a", other), sent("4", "a", agent)})
	require.NoError(t, err)
	log := &readLog{Log: w.Log}
	w.Log = log
	found, _ := w.page(t, log, EventFilter{PolicyID: matches, Types: []string{"telemetry_received"}}, EventPage{Limit: 100, Asc: true})
	require.Equal(t, []string{"0", "4"}, found)
}
