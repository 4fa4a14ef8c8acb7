package toolcheck

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// canned answers each request with the same bytes.
type canned struct{ kind, body string }

func (c canned) RoundTrip(req *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {c.kind}}, Body: io.NopCloser(strings.NewReader(c.body)), Request: req}, nil
}

// through sends a call with the id 7 through a screen, and gives what its client
// gets to read.
func through(t *testing.T, kind, body string) (string, *screen) {
	t.Helper()
	s := &screen{next: canned{kind, body}, answered: func() {}}
	req, err := http.NewRequest(http.MethodPost, "https://tools.test/", strings.NewReader(`{"jsonrpc":"2.0","id":7,"method":"tools/list"}`))
	require.NoError(t, err)
	resp, err := s.RoundTrip(req)
	require.NoError(t, err)
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return string(text), s
}

func TestTheScreenLetsTheOneAnswerThrough(t *testing.T) {
	const answer = `{"jsonrpc":"2.0","id":7,"result":{"a":1.0}}`
	for _, c := range []struct{ name, kind, body, clean string }{
		{"JSON", "application/json", answer, answer},
		{"JSON with space", "application/json; charset=utf-8", " {\n\"id\":7, \"result\":{ \"a\":1.0 },\"jsonrpc\":\"2.0\" }\n", answer},
		{"members besides", "application/json", `{"jsonrpc":"2.0","id":7,"result":{"a":1.0},"more":[1]}`, answer},
		{"an error", "application/json", `{"jsonrpc":"2.0","id":7,"error":{"code":1,"message":"m"}}`, `{"jsonrpc":"2.0","id":7,"error":{"code":1,"message":"m"}}`},
		{"of another id", "application/json", strings.Replace(answer, "7", "8", 1), ""},
		{"of an id as text", "application/json", strings.Replace(answer, "7", `"7"`, 1), ""},
		{"of an id written in another way", "application/json", strings.Replace(answer, "7", "7.0", 1), ""},
		{"of no id", "application/json", strings.Replace(answer, "7", "null", 1), ""},
		{"of two ids", "application/json", strings.Replace(answer, `"id":7`, `"id":8,"id":7`, 1), ""},
		{"a request of the server", "application/json", `{"jsonrpc":"2.0","id":7,"method":"roots/list"}`, ""},
		{"a batch", "application/json", "[" + answer + "]", ""},
		{"an old version", "application/json", `{"id":7,"result":{}}`, ""},
		{"a result that is no object", "application/json", `{"jsonrpc":"2.0","id":7,"result":[]}`, ""},
		{"nested deep", "application/json", `{"jsonrpc":"2.0","id":7,"result":{"a":` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + `}}`, ""},
		{"something behind it", "application/json", answer + answer, ""},
		{"an event", "text/event-stream", "data: " + answer + "\n\n", "data: " + answer + "\n\n"},
		{"an event among others", "text/event-stream", ": hi\n\nid: 1\ndata: 1\n\nevent: message\r\ndata:" + answer + "\r\n\r\ndata: 2\n\n", "data: " + answer + "\n\n"},
		{"an event in two lines", "text/event-stream", "data: {\"jsonrpc\":\"2.0\",\ndata: \"id\":7,\"result\":{\"a\":1.0}}\n\n", "data: " + answer + "\n\n"},
		{"two answers", "text/event-stream", "data: " + answer + "\n\ndata: " + strings.Replace(answer, "1.0", "2", 1) + "\n\n", "data: " + answer + "\n\n"},
		{"an event cut short", "text/event-stream", "data: " + answer, ""},
		{"a page", "text/html", "<p>", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			clean, s := through(t, c.kind, c.body)
			require.Equal(t, c.clean, clean)
			result := s.takeResult()
			require.Equal(t, strings.Contains(c.clean, "result"), result != nil)
			require.Nil(t, s.takeResult(), "it is taken once")
		})
	}
}

// Whatever a server answers: the client reads nothing, or one sound message with
// the call's id on one line, and what a page of tools is read from never panics.
func FuzzAnswers(f *testing.F) {
	f.Add(false, []byte(`{"jsonrpc":"2.0","id":7,"result":{"tools":[{"name":"a","inputSchema":{"properties":{"x":{}}},"annotations":{"readOnlyHint":true}}]}}`))
	f.Add(true, []byte("event: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{\"tools\":[null]}}\n\n"))
	f.Add(true, []byte(":\n\r\ndata\ndata:\n\n\x00"))
	f.Fuzz(func(t *testing.T, events bool, body []byte) {
		kind := "application/json"
		if events {
			kind = "text/event-stream"
		}
		clean, s := through(t, kind, string(body))
		if events && clean != "" {
			var found bool
			clean, found = strings.CutPrefix(clean, "data: ")
			require.True(t, found)
			clean, found = strings.CutSuffix(clean, "\n\n")
			require.True(t, found)
			require.NotContains(t, clean, "\n")
		}
		if clean != "" {
			var message struct{ ID int }
			require.NoError(t, json.Unmarshal([]byte(clean), &message))
			require.Equal(t, 7, message.ID)
		}
		page, err := readPage(s.takeResult())
		if err != nil {
			return
		}
		for _, tool := range page.Tools {
			first, err := define(tool)
			require.NoError(t, err, "what was read has a definition")
			again, err := define(tool)
			require.NoError(t, err)
			require.Equal(t, first, again)
			require.Len(t, first.Fingerprint, 64)
			require.LessOrEqual(t, len(first.Parts), maxParts+3)
		}
	})
}

func TestCanonicalKeepsNumbersAsWritten(t *testing.T) {
	text, err := canonical([]byte("{ \"b\" : [1.0, 1, 1e2, -0, 12345678901234567890, 0.1000] ,\n\"a\":\"\\u00e9\\/\"}"))
	require.NoError(t, err)
	require.Equal(t, `{"a":"é/","b":[1.0,1,1e2,-0,12345678901234567890,0.1000]}`, string(text))
	again, err := canonical(text)
	require.NoError(t, err)
	require.True(t, bytes.Equal(text, again))
	for _, bad := range []string{``, `{"a":1,"a":2}`, `"\ud800"`, "\"\xff\"", `{} {}`, `01`, `nul`, strings.Repeat("[", 101) + strings.Repeat("]", 101)} {
		_, err := canonical([]byte(bad))
		require.Error(t, err, "%.20s", bad)
	}
	_, err = canonical([]byte(strings.Repeat("[", 100) + strings.Repeat("]", 100)))
	require.NoError(t, err)
}
