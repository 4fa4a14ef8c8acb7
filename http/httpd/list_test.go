package httpd

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"writegate/commands/fault"
)

func TestAPageIsReadWithinItsLimits(t *testing.T) {
	for query, want := range map[string]Page{
		"": {Limit: 100}, "limit=1": {Limit: 1}, "limit=1000&order=asc": {Limit: 1000, Asc: true}, "order=desc&cursor=x": {Limit: 100, Cursor: "x"},
	} {
		values, err := url.ParseQuery(query)
		require.NoError(t, err)
		page, err := ParsePage(values)
		require.NoError(t, err)
		require.Equal(t, want, page)
	}
	for query, field := range map[string]string{"limit=0": "limit", "limit=1001": "limit", "limit=-1": "limit", "limit=x": "limit", "limit=99999999999999999999": "limit",
		"order=up": "order", "cursor=" + strings.Repeat("x", 600): "cursor"} {
		values, err := url.ParseQuery(query)
		require.NoError(t, err)
		_, err = ParsePage(values)
		require.Equal(t, fault.ValidationFailed, fault.CodeOf(err), query)
		require.Contains(t, fault.Of(err).Details["fields"], field)
	}
}

func TestItemsOfAListAreNeverNullAndTheLastPageHasNoCursor(t *testing.T) {
	b, err := json.Marshal(NewList[int](nil, ""))
	require.NoError(t, err)
	require.JSONEq(t, `{"items":[],"next_cursor":null}`, string(b))
	b, err = json.Marshal(NewList([]int{1}, "c"))
	require.NoError(t, err)
	require.JSONEq(t, `{"items":[1],"next_cursor":"c"}`, string(b))
}

// filled is a buffer of capacity that n entries went through; every third is a
// warning of another source.
func filled(capacity, n int) *LogBuffer {
	b := NewLogBuffer(capacity)
	log := slog.New(b.Handler(slog.DiscardHandler))
	for i := 1; i <= n; i++ {
		if i%3 == 0 {
			b.add(LogEntry{Level: slog.LevelWarn, Source: "log", Message: fmt.Sprint(i)})
		} else {
			b.add(LogEntry{Level: slog.LevelInfo, Source: "http", Message: fmt.Sprint(i)})
		}
	}
	log.Info("not kept: the output wants nothing")
	return b
}

func TestPagesOfTheRingGiveEachEntryOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		capacity, n := rapid.IntRange(1, 40).Draw(t, "capacity"), rapid.IntRange(0, 100).Draw(t, "entries")
		b := filled(capacity, n)
		page := Page{Limit: rapid.IntRange(1, 10).Draw(t, "limit"), Asc: rapid.Bool().Draw(t, "asc")}
		filter := LogFilter{Level: rapid.SampledFrom([]slog.Level{slog.LevelInfo, slog.LevelWarn}).Draw(t, "level")}
		var want, got []string
		for i := max(1, n-capacity+1); i <= n; i++ {
			if filter.Level == slog.LevelInfo || i%3 == 0 {
				want = append(want, fmt.Sprint(i))
			}
		}
		for {
			list, next, err := b.Entries(filter, page)
			require.NoError(t, err)
			for _, e := range list {
				got = append(got, e.Message)
			}
			if page.Cursor = next; next == "" {
				break
			}
			require.Len(t, list, page.Limit)
		}
		if !page.Asc {
			for i, j := 0, len(got)-1; i < j; i, j = i+1, j-1 {
				got[i], got[j] = got[j], got[i]
			}
		}
		require.Equal(t, want, got)
	})
}

func TestACursorOfTheRingStaysTrueWhileEntriesComeIn(t *testing.T) {
	b := filled(10, 10)
	_, next, err := b.Entries(LogFilter{}, Page{Limit: 4})
	require.NoError(t, err)
	b.add(LogEntry{Message: "new"})
	list, _, err := b.Entries(LogFilter{}, Page{Limit: 4, Cursor: next})
	require.NoError(t, err)
	require.Equal(t, "6", list[0].Message)
	for range 20 {
		b.add(LogEntry{Message: "new"})
	}
	list, next, err = b.Entries(LogFilter{}, Page{Limit: 4, Cursor: next})
	require.NoError(t, err)
	require.Empty(t, list, "what left the ring is gone")
	require.Empty(t, next)
	for _, bad := range []string{"x", "0", "-1", "999", "18446744073709551616"} {
		_, _, err := b.Entries(LogFilter{}, Page{Limit: 4, Cursor: bad})
		require.Equal(t, fault.ValidationFailed, fault.CodeOf(err), bad)
	}
}

func TestALogEntryHasItsFieldsAndNothingElse(t *testing.T) {
	b := NewLogBuffer(10)
	var out strings.Builder
	log := slog.New(b.Handler(slog.NewTextHandler(&out, nil))).With("source", "gate", "password", "hunter2")
	log.Warn("it failed", "error_id", "err_1", "request_id", "req_1", "trace_id", "tr_1", "dsn", "postgres://secret")
	log.WithGroup("g").Info("grouped", "request_id", "forged")
	log.Debug("below the level")
	log.Info(strings.Repeat("é", 5000))

	list, _, err := b.Entries(LogFilter{}, Page{Limit: 10, Asc: true})
	require.NoError(t, err)
	require.Len(t, list, 3)
	require.WithinDuration(t, time.Now(), list[0].Timestamp, time.Hour)
	list[0].Timestamp = time.Time{}
	require.Equal(t, LogEntry{Level: slog.LevelWarn, Source: "gate", Message: "it failed", ErrorID: "err_1", RequestID: "req_1", TraceID: "tr_1"}, list[0])
	require.Equal(t, "gate", list[1].Source)
	require.Empty(t, list[1].RequestID)
	require.Less(t, len(list[2].Message), 1100)
	require.Contains(t, out.String(), "hunter2", "the operator's own output keeps everything")
}

func TestTheRingTakesEntriesFromManyAtOnce(t *testing.T) {
	b := NewLogBuffer(50)
	log := slog.New(b.Handler(slog.NewTextHandler(new(nowhere), nil)))
	var group sync.WaitGroup
	for range 16 {
		group.Go(func() {
			for range 100 {
				log.Info("m", "source", "s")
				if _, _, err := b.Entries(LogFilter{Source: "s"}, Page{Limit: 5}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	require.Equal(t, uint64(1600), b.last)
}

type nowhere struct{}

func (nowhere) Write(p []byte) (int, error) { return len(p), nil }
