package httpd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
)

func TestEveryCodeHasAStatusAndOnlyThose(t *testing.T) {
	codes := codesOf(t, "../../commands/fault")
	require.NotEmpty(t, codes)
	for _, code := range codes {
		require.Contains(t, statuses, code)
	}
	require.Len(t, statuses, len(codes), "a status for a code that is none")
	require.Equal(t, http.StatusInternalServerError, Status("no_such_code"))
}

// codesOf reads the constants of type Code from the source, so that a new one
// can't be forgotten here.
func codesOf(t *testing.T, dir string) (codes []fault.Code) {
	t.Helper()
	packages, err := parser.ParseDir(token.NewFileSet(), dir, nil, 0)
	require.NoError(t, err)
	ast.Inspect(packages["fault"], func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if kind, ok := spec.Type.(*ast.Ident); ok && kind.Name == "Code" {
			code, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			require.NoError(t, err)
			codes = append(codes, fault.Code(code))
		}
		return true
	})
	return codes
}

func TestStatusesOfTheContract(t *testing.T) {
	for code, want := range map[fault.Code]int{
		"policy_not_loaded": 503, "policy_activation_failed": 409, "approval_expired": 410, "approval_rejected": 409, "unauthorized_operator": 401,
		"db_connection_failed": 502, "db_unavailable": 503, "db_query_timeout": 504, "rate_limit_exceeded": 429, "oversized_request": 413,
		"oversized_sql": 413, "session_not_found": 404, "invalid_json": 400, "empty_sql": 400, "multi_statement_rejected": 400, "parser_error": 400,
		"parser_unsupported_syntax": 422, "unsupported_sql_shape": 422, "unsafe_read_shape": 422, "approval_not_found": 404, "row_limit_exceeded": 422,
		"result_too_large": 413, "db_query_failed": 422, "audit_unavailable": 503, "audit_corruption_detected": 503, "internal": 500,
	} {
		require.Equal(t, want, Status(code), code)
	}
}

func TestAnAnswerKeepsTheConventions(t *testing.T) {
	s := serve(t, Options{}, ServerOptions{}, echo)
	r := s.do("POST", "/echo", `{"sql":"SELECT 'é'"}`)
	require.Equal(t, 200, r.StatusCode)
	require.Equal(t, "SELECT 'é'", r.json["sql"])
	require.Equal(t, "application/json", r.Header.Get("Content-Type"))
	require.Equal(t, "no-store", r.Header.Get("Cache-Control"))
	require.Equal(t, "nosniff", r.Header.Get("X-Content-Type-Options"))
	require.Regexp(t, `^req_[0-9a-f-]{36}$`, r.Header.Get("X-Request-Id"))
	require.Equal(t, "{\"html\":\"<&>\"}\n", s.do("GET", "/thing", "").body, "no escapes meant for HTML")
	require.Equal(t, 200, s.do("POST", "/echo", "").StatusCode, "an empty body is {}")
}

func TestAHeadIsAGetWithoutItsBody(t *testing.T) {
	s := serve(t, Options{}, ServerOptions{}, echo)
	r := s.do("HEAD", "/thing", "")
	require.Equal(t, 200, r.StatusCode)
	require.Empty(t, r.body)
	require.Equal(t, int64(len("{\"html\":\"<&>\"}\n")), r.ContentLength)
}

func TestARequestIDIsKeptWhereItIsVisibleASCII(t *testing.T) {
	s := serve(t, Options{}, ServerOptions{}, echo)
	for _, id := range []string{"a", "trace-42/é"[:8], strings.Repeat("x", 128)} {
		require.Equal(t, id, s.do("GET", "/thing", "", "X-Request-Id", id).Header.Get("X-Request-Id"))
	}
	for _, id := range []string{"", "with space", "é", strings.Repeat("x", 129)} {
		require.Regexp(t, `^req_`, s.do("GET", "/thing", "", "X-Request-Id", id).Header.Get("X-Request-Id"))
	}
}

func TestFailuresOfRoutingAreErrorObjects(t *testing.T) {
	s := serve(t, Options{}, ServerOptions{}, echo)
	for _, c := range []struct {
		method, path string
		status       int
		code, allow  string
	}{
		{"GET", "/nothing", 404, "not_found", ""},
		{"GET", "/thing/", 404, "not_found", ""},
		{"GET", "/THING", 404, "not_found", ""},
		{"POST", "//echo", 404, "not_found", ""},
		{"DELETE", "/thing", 405, "method_not_allowed", "GET, HEAD"},
		{"OPTIONS", "/thing", 405, "method_not_allowed", "GET, HEAD"},
		{"GET", "/echo", 405, "method_not_allowed", "POST"},
	} {
		r := s.do(c.method, c.path, "")
		require.Equal(t, c.status, r.StatusCode, c.path)
		require.Equal(t, c.code, r.json["error_code"])
		require.Regexp(t, `^err_[0-9a-f-]{36}$`, r.json["error_id"])
		require.NotEmpty(t, r.json["message"])
		require.Equal(t, c.allow, r.Header.Get("Allow"))
	}
}

func TestOnlyJSONInUTF8IsTaken(t *testing.T) {
	s := serve(t, Options{}, ServerOptions{}, echo)
	for _, media := range []string{"application/json", "application/json; charset=utf-8", "Application/JSON;charset=UTF-8"} {
		require.Equal(t, 200, s.do("POST", "/echo", "{}", "Content-Type", media).StatusCode, media)
	}
	for _, media := range []string{"text/plain", "application/jsonp", "application/json; charset=latin1", "application/x-www-form-urlencoded", "application/", ";"} {
		r := s.do("POST", "/echo", "{}", "Content-Type", media)
		require.Equal(t, 415, r.StatusCode, media)
		require.Equal(t, "unsupported_media_type", r.json["error_code"])
	}
}

func TestABodyOverTheLimitIsRefusedAndReported(t *testing.T) {
	s := serve(t, Options{MaxBodyBytes: 100}, ServerOptions{}, echo)
	fits := `{"sql":"` + strings.Repeat("x", 90) + `"}`
	require.Len(t, fits, 100)
	require.Equal(t, 200, s.do("POST", "/echo", fits).StatusCode)
	r := s.do("POST", "/echo", fits+" ")
	require.Equal(t, 413, r.StatusCode)
	require.Equal(t, "oversized_request", r.json["error_code"])
	require.Equal(t, map[string]any{"limit": 100.0}, r.json["details"])

	report := s.reported()[0]
	require.Equal(t, Report{Incident: OversizedRequest, Client: "127.0.0.1", Path: "/echo", RequestID: r.Header.Get("X-Request-Id"), Limit: 100, Got: 101}, report)
	require.Len(t, s.reported(), 1)
}

func TestAnErrorTellsTheClientWhatItMayKnowAndTheOperatorTheRest(t *testing.T) {
	cause := errors.New("dial tcp 10.0.0.7: secret-host")
	s := serve(t, Options{}, ServerOptions{}, func(m *Mux) {
		m.Handle("GET", "/fault", func(*Call) error {
			return fault.New(fault.DBQueryTimeout, "It took <too> long.").With("outcome", "aborted").
				WithBeside("execution_state", "unknown").WithBeside("execution_id", "exe_1").WithBeside("error_code", "forged").Because(cause)
		})
		m.Handle("GET", "/plain", func(*Call) error { return cause })
		m.Handle("GET", "/strange", func(*Call) error { return fault.New(fault.NotFound, "m").With("f", func() {}) })
	})
	r := s.do("GET", "/fault?sql=private", "")
	require.Equal(t, 504, r.StatusCode)
	errorID := r.json["error_id"].(string)
	require.Equal(t, map[string]any{"error_code": "db_query_timeout", "message": "It took <too> long.", "error_id": errorID, "details": map[string]any{"outcome": "aborted"},
		"execution_state": "unknown", "execution_id": "exe_1"}, r.json)
	require.Contains(t, r.body, "<too>")
	require.Equal(t, 1, strings.Count(r.body, "error_code"))

	plain := s.do("GET", "/plain", "")
	require.Equal(t, 500, plain.StatusCode)
	require.Equal(t, "internal", plain.json["error_code"])
	require.NotContains(t, r.body+plain.body, "secret-host")

	require.Equal(t, "m", s.do("GET", "/strange", "").json["message"], "details that can't be encoded are left out")

	require.Contains(t, s.logged(), errorID)
	require.Contains(t, s.logged(), "secret-host")
	require.NotContains(t, s.logged(), "private", "the query string may hold SQL")
	list, _, err := s.logs.Entries(LogFilter{}, Page{Limit: 100, Asc: true})
	require.NoError(t, err)
	var found bool
	for _, e := range list {
		require.NotContains(t, e.Message, "secret-host", "GET /logs is open")
		found = found || e.ErrorID == errorID && e.RequestID == r.Header.Get("X-Request-Id") && e.Source == "http"
	}
	require.True(t, found)
}

func TestAPanicIsA500AndTheServiceLives(t *testing.T) {
	s := serve(t, Options{}, ServerOptions{}, func(m *Mux) {
		echo(m)
		m.Handle("GET", "/panic", func(*Call) error { panic("at the café") })
		m.Handle("GET", "/late", func(c *Call) error {
			c.Raw(200, []byte(`{"half":`))
			panic("too late")
		})
		m.Handle("GET", "/lateerror", func(c *Call) error {
			c.Raw(200, []byte(`{"half":`))
			return errors.New("too late")
		})
		m.Handle("GET", "/abort", func(*Call) error { panic(http.ErrAbortHandler) })
	})
	r := s.do("GET", "/panic", "")
	require.Equal(t, 500, r.StatusCode)
	require.Equal(t, "internal", r.json["error_code"])
	require.NotContains(t, r.body, "café")
	require.Contains(t, s.logged(), "at the café")
	require.Contains(t, s.logged(), "mux_test.go", "the stack is in the log")
	for _, path := range []string{"/late", "/lateerror", "/abort"} {
		resp, err := http.Get(s.base + path)
		if err == nil {
			resp.Body.Close()
		}
		require.Equal(t, 200, s.do("GET", "/thing", "").StatusCode, path)
	}
}

func TestQueryParametersAreReadOnce(t *testing.T) {
	s := serve(t, Options{}, ServerOptions{}, func(m *Mux) {
		m.Handle("GET", "/q", func(c *Call) error {
			query, err := c.Query("mode", "sql")
			if err != nil {
				return err
			}
			c.JSON(200, map[string]string{"mode": query.Get("mode")})
			return nil
		})
	})
	require.Equal(t, "live", s.do("GET", "/q?mode=live&other=1&other=2", "").json["mode"])
	for _, query := range []string{"mode=live&mode=preview", "mode=%zz", "a=1;mode=preview", "sql=%ff"} {
		r := s.do("GET", "/q?"+query, "")
		require.Equal(t, 400, r.StatusCode, query)
		require.Equal(t, "validation_failed", r.json["error_code"])
	}
}

func TestALargeAnswerIsWholeAndHasADeadline(t *testing.T) {
	body := append(append([]byte{'"'}, bytes.Repeat([]byte("x"), 4<<20)...), '"')
	s := serve(t, Options{}, ServerOptions{}, func(m *Mux) {
		m.Handle("GET", "/large", func(c *Call) error { c.Raw(200, body); return nil })
	})
	for range 2 {
		resp, err := http.Get(s.base + "/large")
		require.NoError(t, err)
		n, err := new(bytes.Buffer).ReadFrom(resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, int64(len(body)), n)
	}
}

func TestAStreamReachesTheRealWriter(t *testing.T) {
	s := serve(t, Options{}, ServerOptions{}, func(m *Mux) {
		m.Handle("GET", "/stream", func(c *Call) error {
			control := http.NewResponseController(c.Writer())
			if err := control.SetWriteDeadline(time.Time{}); err != nil {
				return err
			}
			if _, err := c.Writer().Write([]byte(`{"n":1}`)); err != nil {
				return err
			}
			return control.Flush()
		})
	})
	require.Equal(t, `{"n":1}`, s.do("GET", "/stream", "").body)
}

func TestAnAnswerMayNameItsStatus(t *testing.T) {
	m := NewMux(Options{Logger: quiet})
	m.Handle("POST", "/made", Serve(func(_ ctx, _ *Call, _ *struct{}) (made, error) { return made{}, nil }))
	w := httptest.NewRecorder()
	m.ServeHTTP(w, httptest.NewRequest("POST", "http://localhost/made", nil))
	require.Equal(t, 201, w.Code)
}

// A HEAD of a stream has its headers and ends: nothing is gathered that nobody reads.
func TestAHeadOfAStreamEnds(t *testing.T) {
	ran := false
	s := serve(t, Options{}, ServerOptions{}, func(m *Mux) {
		m.Handle(http.MethodGet, "/stream", func(c *Call) error {
			return c.Events(c.Request.Context(), time.Hour, func(send func(string, string, []byte) error) error {
				ran = true
				return send("1", "a", []byte("{}"))
			})
		})
	})
	r := s.do("HEAD", "/stream", "")
	require.Equal(t, []any{200, "text/event-stream", ""}, []any{r.StatusCode, r.Header.Get("Content-Type"), r.body})
	require.False(t, ran)
}

// The time in which a request has to arrive does not end the stream that it asked for.
func TestAStreamOutlastsTheTimeForItsRequest(t *testing.T) {
	const most = 20 * time.Millisecond
	s := serve(t, Options{}, ServerOptions{BodyTimeout: most}, func(m *Mux) {
		m.Handle("GET", "/stream", func(c *Call) error {
			return c.Events(c.Request.Context(), time.Hour, func(send func(string, string, []byte) error) error {
				select {
				case <-c.Request.Context().Done():
					return c.Request.Context().Err()
				case <-time.After(5 * most):
					return send("1", "kind", []byte("late"))
				}
			})
		})
	})
	resp, err := http.Get(s.base + "/stream")
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Contains(t, string(body), "data: late")
}

// The end of a stream does not wait for a client that reads nothing.
func TestAStreamThatNobodyReadsEndsWithItsContext(t *testing.T) {
	patience := writePatience
	writePatience = time.Hour
	t.Cleanup(func() { writePatience = patience })
	ended := make(chan error, 1)
	ctx, stop := context.WithCancel(t.Context())
	var sent atomic.Int64
	s := serve(t, Options{}, ServerOptions{}, func(m *Mux) {
		m.Handle("GET", "/stream", func(c *Call) error {
			return c.Events(ctx, time.Hour, func(send func(string, string, []byte) error) error {
				for {
					if err := send("1", "kind", make([]byte, 64<<10)); err != nil {
						ended <- err
						return err
					}
					sent.Add(1)
				}
			})
		})
	})
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.base, "http://"))
	require.NoError(t, err)
	defer conn.Close()
	_, err = fmt.Fprintf(conn, "GET /stream HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
	require.NoError(t, err)
	last := int64(-1)
	require.Eventually(t, func() bool {
		now := sent.Load()
		full := now > 0 && now == last
		last = now
		return full
	}, time.Minute, 200*time.Millisecond, "nothing more leaves")
	stop()
	require.Error(t, <-ended)
}
