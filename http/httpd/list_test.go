package httpd

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
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

// answered serves one handler and gives what it answers to a client at address.
func answered(mux *Mux, path, address string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, "http://localhost"+path, nil)
	r.RemoteAddr = address
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, r)
	return w
}

// listOf serves items of these sizes behind the cursor, a number, as a list does.
func listOf(mux *Mux, path string, sizes ...int) {
	mux.Handle(http.MethodGet, path, func(c *Call) error {
		_, page, err := c.List()
		if err != nil {
			return err
		}
		at, _ := strconv.Atoi(page.Cursor)
		list := c.NewList()
		for taken := 0; at < len(sizes); at++ {
			room := taken < page.Limit
			if room {
				if room, err = list.Add(strings.Repeat("x", sizes[at])); err != nil {
					return err
				}
			}
			if !room {
				list.Send(strconv.Itoa(at))
				return nil
			}
			taken++
		}
		list.Send("")
		return nil
	})
}

func pageOf(t *testing.T, w *httptest.ResponseRecorder) (sizes []int, next string) {
	t.Helper()
	require.Equal(t, http.StatusOK, w.Code, w.Body)
	var body struct {
		Items []string `json:"items"`
		Next  *string  `json:"next_cursor"`
	}
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &body))
	for _, item := range body.Items {
		sizes = append(sizes, len(item))
	}
	if body.Next != nil {
		next = *body.Next
	}
	return sizes, next
}

func TestItemsOfAListAreNeverNullAndTheLastPageHasNoCursor(t *testing.T) {
	mux := NewMux(Options{Logger: slog.New(slog.DiscardHandler)})
	listOf(mux, "/none")
	listOf(mux, "/two", 1, 2)
	require.Equal(t, `{"items":[],"next_cursor":null}`+"\n", answered(mux, "/none", "192.0.2.1:1").Body.String())
	require.Equal(t, `{"items":["x","xx"],"next_cursor":null}`+"\n", answered(mux, "/two", "192.0.2.1:1").Body.String())
	require.Equal(t, `{"items":["x"],"next_cursor":"1"}`+"\n", answered(mux, "/two?limit=1", "192.0.2.1:1").Body.String())
	mux.Handle(http.MethodGet, "/more", func(c *Call) error {
		c.NewList().Send("a\"", []byte(`,"head":{"seq":1}`)...)
		return nil
	})
	require.JSONEq(t, `{"items":[],"next_cursor":"a\"","head":{"seq":1}}`, answered(mux, "/more", "192.0.2.1:1").Body.String())
}

// However large the items are, a page is as large as an answer may be or has one
// item, and who follows the cursors gets each item once.
func TestAPageEndsAtItsBytesAndAlwaysGoesOn(t *testing.T) {
	const half = maxPage/2 - 20 // two of them fill a page
	for want, sizes := range map[string][]int{
		"[3 1 2]": {1, half, 1, maxPage, 0, 1},
		"[1 1 1]": {2 * maxPage, maxPage, 2 * maxPage},
		"[2 2 1]": {half, half, half, half, half},
		"[1 3]":   {2 * maxPage, 1, 2, 3},
	} {
		mux := NewMux(Options{Logger: slog.New(slog.DiscardHandler)})
		listOf(mux, "/list", sizes...)
		var got, pages []int
		for next := ""; ; {
			w := answered(mux, "/list?cursor="+next, "192.0.2.1:1")
			var page []int
			page, next = pageOf(t, w)
			require.NotEmpty(t, page)
			require.True(t, w.Body.Len() <= maxPage+64 || len(page) == 1, "%d bytes of %d items", w.Body.Len(), len(page))
			got, pages = append(got, page...), append(pages, len(page))
			if next == "" {
				break
			}
		}
		require.Equal(t, sizes, got)
		require.Equal(t, want, fmt.Sprint(pages))
	}
}

// unread is a client that reads nothing: what is written to it waits.
type unread struct {
	*httptest.ResponseRecorder
	began, read chan struct{}
}

func (u *unread) Write(b []byte) (int, error) {
	u.began <- struct{}{}
	<-u.read
	return u.ResponseRecorder.Write(b)
}

func TestLargeAnswersThatNobodyReadsAreBounded(t *testing.T) {
	operators, err := ParseOperators("", "ana=an-operator-token-for-ana", 1)
	require.NoError(t, err)
	mux := NewMux(Options{Logger: slog.New(slog.DiscardHandler), Operators: operators})
	listOf(mux, "/list", 60_000, 60_000, 60_000)
	listOf(mux, "/large", 100_000, 1)
	mux.Handle(http.MethodGet, "/one", func(c *Call) error {
		if who := c.Request.Header.Get("X-Agent"); who != "" {
			c.HoldAs(who)
		}
		c.JSON(http.StatusOK, strings.Repeat("x", 100_000))
		return nil
	})
	mux.Handle(http.MethodGet, "/same", Document(func() ([]byte, error) { return make([]byte, 100_000), nil }))
	began, read := make(chan struct{}), make(chan struct{})
	var waiting sync.WaitGroup
	hold := func(path, address string) {
		waiting.Go(func() {
			r := httptest.NewRequest(http.MethodGet, "http://localhost"+path, nil)
			r.RemoteAddr = address
			mux.ServeHTTP(&unread{httptest.NewRecorder(), began, read}, r)
		})
		<-began
	}
	for i := range maxLargeEach {
		hold([]string{"/list", "/one"}[i%2], "192.0.2.1:1")
	}
	sizes, next := pageOf(t, answered(mux, "/list", "192.0.2.1:2"))
	require.Equal(t, []int{60_000}, sizes, "the page ends where it would be large")
	require.Equal(t, "1", next)
	for _, path := range []string{"/one", "/large"} {
		w := answered(mux, path, "192.0.2.1:3")
		require.Equal(t, http.StatusTooManyRequests, w.Code, path)
		require.Contains(t, w.Body.String(), "This client has 8 large answers")
		require.Equal(t, "5", w.Header().Get("Retry-After"))
	}
	require.Equal(t, http.StatusOK, answered(mux, "/same", "192.0.2.1:3").Code, "what all answers share costs nothing")
	require.Equal(t, http.StatusOK, answered(mux, "/one", "192.0.2.2:1").Code, "another client")
	require.Equal(t, http.StatusOK, answered(mux, "/one", "192.0.2.1:1", "X-Agent", "agt_1").Code, "a credential says better who it is")
	require.Equal(t, http.StatusOK, answered(mux, "/one", "192.0.2.1:1", "X-Gate-Operator-Token", "an-operator-token-for-ana").Code, "operators have their own")

	for i := maxLargeEach; i < maxLarge; i++ {
		hold("/one", fmt.Sprintf("192.0.2.%d:1", 10+i/maxLargeEach))
	}
	w := answered(mux, "/one", "192.0.2.2:1")
	require.Contains(t, w.Body.String(), "There are 32 large answers", w.Code)
	close(read)
	go func() {
		for range began {
		}
	}()
	waiting.Wait()
	sizes, _ = pageOf(t, answered(mux, "/list", "192.0.2.1:2"))
	require.Len(t, sizes, 3, "the slots are given back")
}

// What a statement did is told in any case; a client that reads none of it is
// refused the next one before anything is done.
func TestWhoReadsNoResultsGetsNoFurtherOnes(t *testing.T) {
	mux := NewMux(Options{Logger: slog.New(slog.DiscardHandler)})
	result := make([]byte, maxUnreadEach/2)
	done := 0
	mux.Handle(http.MethodPost, "/run", func(c *Call) error {
		if err := c.ReadsAnswers(); err != nil {
			return err
		}
		done++
		c.Raw(http.StatusOK, result)
		return nil
	})
	began, read := make(chan struct{}), make(chan struct{})
	var waiting sync.WaitGroup
	request := func(address string) *http.Request {
		r := httptest.NewRequest(http.MethodPost, "http://localhost/run", nil)
		r.RemoteAddr = address
		return r
	}
	for range 2 {
		waiting.Go(func() {
			mux.ServeHTTP(&unread{httptest.NewRecorder(), began, read}, request("192.0.2.1:1"))
		})
		<-began
	}
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, request("192.0.2.1:2"))
	require.Equal(t, http.StatusTooManyRequests, w.Code)
	require.Equal(t, "5", w.Header().Get("Retry-After"))
	require.Equal(t, 2, done)
	w = httptest.NewRecorder()
	mux.ServeHTTP(w, request("192.0.2.2:1"))
	require.Equal(t, http.StatusOK, w.Code, "another client")
	close(read)
	waiting.Wait()
	w = httptest.NewRecorder()
	mux.ServeHTTP(w, request("192.0.2.1:2"))
	require.Equal(t, http.StatusOK, w.Code)
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
	log.Warn("it failed", "error_id", "err_1", "request_id", "req_1", "trace_id", "tr_1", "dsn", "postgres://secret", "status", 503, "found", "a hole", "cause", "10.0.0.7 refuses")
	log.WithGroup("g").Info("grouped", "request_id", "forged")
	log.Debug("below the level")
	log.Info(strings.Repeat("é", 5000))

	list, _, err := b.Entries(LogFilter{}, Page{Limit: 10, Asc: true})
	require.NoError(t, err)
	require.Len(t, list, 3)
	require.WithinDuration(t, time.Now(), list[0].Timestamp, time.Hour)
	list[0].Timestamp, list[0].number = time.Time{}, 0
	require.Equal(t, LogEntry{Level: slog.LevelWarn, Source: "gate", Message: "it failed", ErrorID: "err_1", RequestID: "req_1", TraceID: "tr_1", Attributes: map[string]string{"status": "503", "found": "a hole"}}, list[0])
	require.Equal(t, map[string]string{"status": "503"}, list[0].Open())
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
