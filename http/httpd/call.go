package httpd

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/julienschmidt/httprouter"

	"writegate/commands/fault"
	"writegate/eventlog/event"
)

// A Call is one request on its way through a handler, and the only road to its
// answer.
type Call struct {
	Request   *http.Request
	Params    httprouter.Params
	RequestID string    // the client's own where it may be kept, else req_...
	Start     time.Time // when the request came in
	Trace     Trace     // the caller's, zero where there is none

	mux        *Mux
	client     string
	holder     string // "" = the client
	operator   string
	bodyHolder string // of whom the body's bytes are counted
	bodyBytes  int
	bodyMost   int64  // 0 = as of all
	endRead    func() // gives back the turn of a GET; nil for others
	large      func() // gives back the slot of a large answer; nil: none was taken
	recorder   recorder
}

// recorder notes what was sent, for the log and so that nothing is written twice.
type recorder struct {
	http.ResponseWriter
	call    *Call
	earned  func(http.Header) // nil: nothing
	status  int
	written int64
}

func (r *recorder) WriteHeader(status int) {
	if r.status == 0 && status >= http.StatusOK {
		r.begin(status)
	}
	r.ResponseWriter.WriteHeader(status)
}

// begin is called once, while headers can still be added.
func (r *recorder) begin(status int) {
	r.status = status
	if r.earned != nil {
		r.earned(r.Header())
	}
}

func (r *recorder) Write(b []byte) (int, error) {
	if r.status == 0 {
		r.begin(http.StatusOK)
	}
	n, err := r.ResponseWriter.Write(b)
	r.written += int64(n)
	return n, err
}

// Unwrap lets http.ResponseController find the real writer.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// Writer is the raw answer, for the few endpoints that stream.
func (c *Call) Writer() http.ResponseWriter { return &c.recorder }

// Status is the status that was answered; 0 before the answer.
func (c *Call) Status() int { return c.recorder.status }

// Client is who is counted and named in limits: the verified certificate's
// subject under mutual TLS, else the remote address (spec/decisions.md part 3).
func (c *Call) Client() string {
	if c.client == "" {
		c.client = c.mux.proxies.client(c.Request)
	}
	return c.client
}

// Operator is the label of the operator token that let this call through, or
// "" on an open endpoint.
func (c *Call) Operator() string { return c.operator }

// Query gives the query parameters. One that can't be read is refused, and so is
// one of the names in single that stands there twice: who reads the first and
// who reads the last would see different requests. Unknown names are left alone:
// what changes something refused them before (CheckWords).
func (c *Call) Query(single ...string) (url.Values, error) {
	query, err := url.ParseQuery(c.Request.URL.RawQuery)
	if err != nil {
		return nil, unreadableQuery(err)
	}
	fields := make(map[string]string)
	for _, name := range single {
		if len(query[name]) > 1 {
			fields[name] = "must be there once at most"
		}
		if !utf8.ValidString(query.Get(name)) {
			fields[name] = "must be valid UTF-8"
		}
	}
	if len(fields) > 0 {
		return nil, Invalid(fields)
	}
	return query, nil
}

// Body reads the whole body within the limit, and refuses any media type that
// is not in allowed. A body without one is refused too: a browser sends such for
// any page, without asking first. Nothing at all is no body and needs none. The
// error is a fault.
func (c *Call) Body(allowed ...string) ([]byte, error) {
	limit := c.maxBody()
	if c.Request.ContentLength > limit {
		return nil, c.oversized(c.Request.ContentLength)
	}
	types := c.Request.Header["Content-Type"]
	if len(types) > 0 || c.Request.ContentLength > 0 {
		if err := checkMediaType(types, allowed); err != nil {
			return nil, err
		}
	}
	for _, coding := range c.Request.Header["Content-Encoding"] { // whoever decodes it would read something else than this gate
		if !strings.EqualFold(coding, "identity") {
			c.recorder.Header().Set("Accept-Encoding", "identity") // RFC 9110 section 15.5.16
			return nil, fault.New(fault.UnsupportedMediaType, "The body has a Content-Encoding. Send it as it is, without that header.").With("allowed", []string{"identity"})
		}
	}
	body, err := c.readAll(http.MaxBytesReader(&c.recorder, c.Request.Body, limit))
	if errors.Is(err, errBodiesFull) {
		c.recorder.Header().Set("Connection", "close")
		return nil, fault.New(fault.RateLimitExceeded, "Request bodies of this client, or of all, that are still on their way fill the memory for them. Send the request again later.").With(retryAfter, largeRetrySec)
	}
	if tooLarge := new(http.MaxBytesError); errors.As(err, &tooLarge) {
		return nil, c.oversized(limit + 1)
	}
	if err != nil {
		return nil, fault.New(fault.InvalidJSON, "The request body ended before it was complete. Send it again.").Because(err)
	}
	if err := stillTrusted(c.Request); err != nil { // the body may have taken its time
		c.mux.log.Warn(untrusted, "source", logSource, "request_id", c.RequestID, "client", c.Client(), "error", err)
		panic(http.ErrAbortHandler)
	}
	if len(c.Request.Trailer) > 0 {
		return nil, errTrailer()
	}
	if len(body) > 0 && len(types) == 0 { // its length was not known before
		return nil, checkMediaType(types, allowed)
	}
	return body, nil
}

// LimitBody bounds the body of this call to most bytes, where it is less than all may
// have: of somebody who has not shown yet who he is.
func (c *Call) LimitBody(most int64) { c.bodyMost = most }

func (c *Call) maxBody() int64 {
	if c.bodyMost > 0 {
		return min(c.bodyMost, c.mux.maxBody)
	}
	return c.mux.maxBody
}

// Decode reads a JSON body into dst, strictly.
func (c *Call) Decode(dst any) error {
	body, err := c.Body("application/json")
	if err != nil {
		return err
	}
	return DecodeJSON(body, dst)
}

// oversized refuses a body; got is its length as far as it is known. The
// connection is closed, because the rest of the body is still on its way.
func (c *Call) oversized(got int64) error {
	limit := c.maxBody()
	c.recorder.Header().Set("Connection", "close")
	c.mux.report(c, OversizedRequest, limit, got)
	return fault.New(fault.OversizedRequest, "The request body is larger than %d bytes. Send a smaller one.", limit).With("limit", limit)
}

// Bounds on the bytes of request bodies that are held at once. They are read before
// anything is known of who sends them, and may come slowly.
const (
	smallBody  = 16 << 10 // is not counted
	bodiesEach = 64 << 20 // of one client, or four of the largest bodies
	bodiesMost = 8        // times that, of all
)

var errBodiesFull = errors.New("there is no room for another request body")

// readAll reads the body. Memory is taken as the bytes come, and not for a length
// that a header tells.
func (c *Call) readAll(r io.Reader) ([]byte, error) {
	first := int64(smallBody)
	if told := c.Request.ContentLength; told >= 0 && told < first {
		first = told + 1 // the last byte is for the end to be seen
	}
	body := make([]byte, 0, first)
	for {
		n, err := r.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		switch {
		case err == io.EOF:
			return body, nil
		case err != nil:
			return nil, err
		case len(body) < cap(body):
			continue
		}
		more := 2 * cap(body)
		if whole := int(c.Request.ContentLength) + 1; cap(body) < whole && whole < more {
			more = whole
		}
		if c.bodyHolder == "" {
			c.bodyHolder = c.Holder()
		}
		if !c.mux.bodies.TakeSome(c.bodyHolder, more) {
			return nil, errBodiesFull
		}
		c.bodyBytes += more
		body = append(make([]byte, 0, more), body...)
	}
}

func checkMediaType(types, allowed []string) error {
	if len(types) == 1 {
		if types[0] == allowed[0] {
			return nil
		}
		media, params, err := mime.ParseMediaType(types[0])
		charset := params["charset"]
		if err == nil && slices.Contains(allowed, media) && (charset == "" || strings.EqualFold(charset, "utf-8")) {
			return nil
		}
	}
	return fault.New(fault.UnsupportedMediaType, "The body must be %s in UTF-8. Send it so, with that Content-Type.", strings.Join(allowed, " or ")).With("allowed", allowed)
}

// JSON answers with a value. One that can't be encoded becomes a 500.
func (c *Call) JSON(status int, value any) {
	var body bytes.Buffer
	enc := json.NewEncoder(&body)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(value); err != nil {
		c.Fail(err)
		return
	}
	c.Raw(status, body.Bytes())
}

// largeAnswer is what a socket takes without its reader; a larger answer gets
// a deadline, so that a client that does not read can't hold it for long.
const (
	largeAnswer  = 64 << 10
	answerGrace  = 30 * time.Second
	slowestBytes = 64 << 10 // a second
)

// Bounds on answers to GET, which no rate counts: a larger one than largeAnswer
// takes a slot, so that clients that read nothing hold no more memory than these
// answers may have. Large answers are pages of a list, of maxPage and one item,
// and what is asked for one by one.
const (
	maxPage       = 4 << 20
	maxLarge      = 32
	maxLargeEach  = 8
	largeRetrySec = 5
)

// Bounds on the bytes of other answers on their way. These can't be refused any
// more, since what they tell has happened: who has so many gets no further one.
const (
	maxUnread     = 512 << 20
	maxUnreadEach = 128 << 20
)

// ReadsAnswers refuses a client that has not read what it was answered before, so
// that nothing is done for it whose answer would have to wait in memory. The error
// is a fault rate_limit_exceeded.
func (c *Call) ReadsAnswers() error {
	if c.mux.unread.Left(c.Holder()) {
		return nil
	}
	return fault.New(fault.RateLimitExceeded, "Answers that were not read yet fill the memory for them. Read them, or close their connections, and send the request again.").With(retryAfter, largeRetrySec)
}

// takeLarge takes the slot of a large answer, once; it is given back when the
// answer has left.
func (c *Call) takeLarge() (err error) {
	if c.large == nil {
		c.large, err = c.mux.large.Take(c, "large answers on their way", largeRetrySec)
	}
	return err
}

// Raw answers with bytes that are JSON already.
func (c *Call) Raw(status int, body []byte) {
	method := c.Request.Method
	switch {
	case len(body) <= largeAnswer:
	case method == http.MethodGet || method == http.MethodHead:
		if err := c.takeLarge(); err != nil {
			c.Fail(err)
			return
		}
	case c.large == nil:
		c.large = c.mux.unread.TakeAll(c.Holder(), len(body))
	}
	c.send(status, body)
}

func (c *Call) send(status int, body []byte) {
	h := c.recorder.Header()
	if h.Get("Content-Type") == "" {
		h["Content-Type"] = contentTypeJSON
	}
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	h["Cache-Control"] = noStore
	if len(body) > largeAnswer {
		deadline := time.Now().Add(answerGrace + time.Duration(len(body)/slowestBytes)*time.Second)
		// A writer without deadlines (a test's recorder) has no slow client either.
		if err := http.NewResponseController(c.recorder.ResponseWriter).SetWriteDeadline(deadline); err != nil && !errors.Is(err, http.ErrNotSupported) {
			c.mux.log.Debug("no deadline for a large answer", "source", logSource, "request_id", c.RequestID, "error", err)
		}
	}
	c.recorder.WriteHeader(status)
	if _, err := c.recorder.Write(body); err != nil {
		c.mux.log.Debug("the client is gone", "source", logSource, "request_id", c.RequestID, "error", err)
	}
}

// Document serves JSON that is the same as long as the program runs.
func Document(text func() ([]byte, error)) Handler {
	return func(c *Call) error {
		body, err := text()
		if err != nil {
			return err
		}
		c.send(http.StatusOK, body) // all answers share its memory
		return nil
	}
}

// Header values that every answer shares.
var (
	contentTypeJSON = []string{"application/json"}
	noStore         = []string{"no-store"}
)

// errorBody is the error object of spec/gate.md part 2.3.
type errorBody struct {
	ErrorCode fault.Code     `json:"error_code"`
	Message   string         `json:"message"`
	ErrorID   string         `json:"error_id"`
	Details   map[string]any `json:"details,omitempty"`
}

// Fail answers with the error object and writes its log line. An error that is
// no fault is answered as internal, and nothing of it is shown.
func (c *Call) Fail(err error) {
	f := fault.Of(err)
	status := Status(f.Code)
	errorID := event.NewErrorID(c.mux.now())
	c.logFailure(f, status, errorID)
	if c.recorder.status != 0 {
		panic(http.ErrAbortHandler) // half an answer is out: the only honest end is a broken connection
	}
	body, encErr := encodeFailure(f, errorID)
	if encErr != nil {
		c.mux.log.Error("details of an error can't be encoded", "source", logSource, "error_id", errorID, "error", encErr)
		body, _ = json.Marshal(errorBody{ErrorCode: f.Code, Message: f.Message, ErrorID: errorID}) // strings alone always encode
	}
	h := c.recorder.Header()
	h.Del("Content-Type")
	if seconds, ok := f.Details[retryAfter].(int); ok {
		h.Set("Retry-After", strconv.Itoa(seconds))
	}
	if status == http.StatusUnauthorized && h.Get("WWW-Authenticate") == "" {
		h.Set("WWW-Authenticate", "Bearer")
	}
	c.Raw(status, body)
}

// encodeFailure renders the error object. What stands beside error_code comes
// after the members that every error has, and never replaces one of them.
func encodeFailure(f *fault.Fault, errorID string) ([]byte, error) {
	body, err := marshal(errorBody{ErrorCode: f.Code, Message: f.Message, ErrorID: errorID, Details: f.Details})
	if err != nil || len(f.Beside) == 0 {
		return body, err
	}
	beside := maps.Clone(f.Beside)
	for _, own := range []string{"error_code", "message", "error_id", "details"} {
		delete(beside, own)
	}
	more, err := marshal(beside) // encoding/json sorts the names
	if err != nil || len(beside) == 0 {
		return body, err
	}
	return append(append(body[:len(body)-1], ','), more[1:]...), nil
}

// marshal is json.Marshal without the escapes meant for HTML.
func marshal(value any) ([]byte, error) {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	err := enc.Encode(value)
	return bytes.TrimSuffix(out.Bytes(), []byte("\n")), err
}

// logFailure writes the line that carries the error_id. The path is logged
// without its query, which may hold SQL.
func (c *Call) logFailure(f *fault.Fault, status int, errorID string) {
	level := slog.LevelInfo
	switch {
	case f.Code == fault.Internal && c.Request.Context().Err() != nil: // the client left, which is no failure of the service
	case f.Code == fault.Internal:
		level = slog.LevelError
	case status >= http.StatusInternalServerError:
		level = slog.LevelWarn
	}
	c.mux.log.LogAttrs(c.Request.Context(), level, "request failed: "+string(f.Code),
		slog.String("source", logSource), slog.String("error_id", errorID), slog.String("request_id", c.RequestID),
		slog.Int("status", status), slog.String("method", clip(c.Request.Method, 20)), slog.String("path", clip(c.Request.URL.Path, 200)),
		slog.String("client", c.Client()), slog.String("error", f.Error()), c.traceAttr())
}
