package gateapi

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"writegate/eventlog"
	"writegate/eventlog/event"
	"writegate/eventlog/frame/frametest"
	"writegate/http/httpd"
	"writegate/projections"
)

// Each type that is asked for is an iterator of the store.
func TestAnEventTypeIsAskedForOnce(t *testing.T) {
	f, err := auditFilter(url.Values{"event_type": slices.Repeat([]string{"startup", "", "shutdown"}, 1500)})
	require.NoError(t, err)
	require.Equal(t, []string{"startup", "shutdown"}, f.EventTypes)
}

// What is withheld was read all the same: a page of small items ends where much of the
// log was looked through for it, and one that nobody waits for any more reads nothing.
func TestAPageOfTheAuditReadsABoundedPartOfTheLog(t *testing.T) {
	mem := frametest.NewMem()
	require.NoError(t, mem.MkdirAll("/log"))
	var read atomic.Int64
	var leaves atomic.Bool
	left, leave := context.WithCancel(t.Context())
	defer leave()
	counted := frametest.Inject(mem, func(op frametest.Op) error {
		if op.Kind == frametest.Pread && read.Add(int64(op.Len)) > 5<<20 && leaves.Load() {
			leave()
		}
		return nil
	})
	log, _, err := eventlog.Open(context.Background(), eventlog.Options{Path: "/log/audit.wal", FS: counted})
	require.NoError(t, err)
	defer func() { require.NoError(t, log.Close(context.Background())) }()
	answer := &event.Answer{Status: 200, Body: `{"rows":[["` + strings.Repeat("x", 900<<10) + `"]]}`}
	const events = 50
	for range events {
		_, err := log.Append(context.Background(), eventlog.Group{Drafts: []event.Draft{event.New(time.Now(), event.Context{Actor: "ana", Operation: "query"},
			&event.ExecutionSuccess{CommandTag: "SELECT 1", Basis: "read_rolled_back", Answer: answer})}})
		require.NoError(t, err)
	}
	store, err := projections.Open(projections.Options{Dir: "store", FS: vfs.NewMem()})
	require.NoError(t, err)
	defer func() { require.NoError(t, store.Close()) }()
	require.NoError(t, store.Connect(context.Background(), log))

	mux := httpd.NewMux(httpd.Options{Logger: slog.New(slog.DiscardHandler), Operators: new(httpd.Operators)})
	mux.Handle(http.MethodGet, "/audit", (&api{Options: Options{Log: log, Store: store}}).listAudit)
	ask := func(ctx context.Context, cursor string) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(ctx, http.MethodGet, "http://localhost/audit?limit=1000&cursor="+cursor, nil)
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		return w
	}
	var seqs []uint64
	pages, cursor := 0, ""
	for ; pages == 0 || cursor != ""; pages++ {
		w := ask(t.Context(), cursor)
		require.Equal(t, http.StatusOK, w.Code, w.Body)
		require.Less(t, w.Body.Len(), 64<<10)
		var page struct {
			Items []struct{ Seq uint64 }
			Next  *string `json:"next_cursor"`
		}
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &page))
		require.Less(t, len(page.Items), 40)
		for _, item := range page.Items {
			seqs = append(seqs, item.Seq)
		}
		if cursor = ""; page.Next != nil {
			cursor = *page.Next
		}
	}
	require.Equal(t, 2, pages)
	require.Len(t, seqs, events)
	slices.Reverse(seqs)
	for i, seq := range seqs {
		require.EqualValues(t, i+1, seq)
	}
	read.Store(0)
	leaves.Store(true)
	w := ask(left, "")
	require.Equal(t, http.StatusServiceUnavailable, w.Code, w.Body)
	require.Contains(t, w.Body.String(), "The request ended")
	require.Less(t, read.Load(), int64(12<<20))
}
