package controlplane

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The gate ends a page before its limit where items are large: what stands behind
// them is shown all the same, so that nobody hides an approval behind large ones.
func TestAListIsReadOnWhereThePageEndedEarly(t *testing.T) {
	var asked []string
	gate := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.Query().Get("limit"))
		at, _ := strconv.Atoi(r.URL.Query().Get("cursor"))
		require.Equal(t, "pending", r.URL.Query().Get("status"))
		require.Equal(t, "a-token", r.Header.Get("X-Gate-Operator-Token"))
		next := "null"
		if at < 29 {
			next = strconv.Quote(strconv.Itoa(at + 1))
		}
		fmt.Fprintf(w, `{"items":[{"approval_id":"%d"}],"next_cursor":%s}`, at, next)
	}))
	t.Cleanup(gate.Close)
	backend, err := NewBackend(gate.URL, BackendFiles{}, "a-token", "", time.Now)
	require.NoError(t, err)
	p := startPlane(t, func(o *Options) { o.Backend = backend })
	for _, c := range []struct {
		limit, items int
		next         string
	}{{1, 1, "1"}, {3, 3, "3"}, {100, wholePages, strconv.Itoa(wholePages)}} {
		asked = nil
		got, err := read[approval](t.Context(), p.server, "/approvals", c.limit, "status", "pending")
		require.NoError(t, err)
		require.Len(t, got.Items, c.items)
		require.Equal(t, strconv.Itoa(c.items-1), got.Items[c.items-1].ApprovalID)
		require.Equal(t, c.next, got.next(), "and that there is more is told")
		require.Equal(t, strconv.Itoa(c.limit-c.items+1), asked[c.items-1])
	}
}

// What a page leaves out of a list is said.
func TestARestThatIsNotShownIsSaid(t *testing.T) {
	more := "c"
	require.NoError(t, restOf(list[int]{Items: []int{1, 2}}, nil, "tools"))
	require.ErrorContains(t, restOf(list[int]{Items: []int{1, 2}, NextCursor: &more}, nil, "tools"), "Only the newest 2 tools are shown here; the agent API lists all.")
	require.ErrorIs(t, restOf(list[int]{NextCursor: &more}, io.EOF, "tools"), io.EOF)
}

// What the gate says to whoever calls its API names the page for who reads it on one.
func TestAnEndpointIsSaidAsItsPage(t *testing.T) {
	for message, want := range map[string]string{
		"There is no approval with this id. GET /approvals lists those that there are.":    "There is no approval with this id. The Approvals page lists those that there are.",
		"Look at the version that is there (GET /policy/versions/shop@1.0.0) and activate": "Look at the version that is there (the Policies page) and activate",
		"The operator finds the reason in GET /logs.":                                      "The operator finds the reason in the Logs page.",
		"Tell the operator: GET /evidence/verify shows the damage.":                        "Tell the operator: the Evidence page shows the damage.",
		"A COMMIT cannot be carried by POST /query: each request":                          "A COMMIT cannot be carried by POST /query: each request",
	} {
		require.Equal(t, want, forPerson(message))
	}
}
