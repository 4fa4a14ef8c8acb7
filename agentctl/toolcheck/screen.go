package toolcheck

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"
	"sync"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// A screen stands between the network and the protocol's client. The client
// gets, for each call, the one answer with the call's id, written anew from what
// was read, and for everything else an empty body. Notifications, requests of the
// server, event ids that ask to be resumed, and all that cannot be read with one
// meaning end here, so that what the client's parsers make of them does not
// matter. The answer is kept as it was received, because the client's own types
// keep no numbers as they were written.
type screen struct {
	next     http.RoundTripper
	answered func() // is called with each sound answer to a call

	mu     sync.Mutex
	status int            // of the last call
	result jsontext.Value // of the last answer to a call
}

// RoundTrip implements http.RoundTripper.
func (s *screen) RoundTrip(req *http.Request) (*http.Response, error) {
	id, err := callID(req)
	if err != nil {
		return nil, err
	}
	resp, err := s.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	var answers io.Reader = new(singleAnswer)
	if id != nil {
		s.keep(resp.StatusCode, nil)
		answers = s.answers(resp, id)
	}
	resp.Body = struct {
		io.Reader
		io.Closer
	}{answers, resp.Body}
	resp.ContentLength = -1
	resp.Header.Del("Content-Length")
	return resp, nil
}

func (s *screen) answers(resp *http.Response, id jsontext.Value) io.Reader {
	accept := func(message []byte) ([]byte, bool) {
		clean, result, ok := answerTo(id, message)
		if ok {
			s.keep(resp.StatusCode, result)
			s.answered()
		}
		return clean, ok
	}
	kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err == nil && kind == "text/event-stream" {
		return &eventAnswer{events: bufio.NewReader(resp.Body), accept: accept}
	}
	return &singleAnswer{body: resp.Body, accept: accept}
}

func (s *screen) keep(status int, result jsontext.Value) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status, s.result = status, result
}

// lastStatus is the HTTP status of the last call, 0 before the first.
func (s *screen) lastStatus() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

// takeResult is the result of the last call as it was received; once.
func (s *screen) takeResult() jsontext.Value {
	s.mu.Lock()
	defer s.mu.Unlock()
	result := s.result
	s.result = nil
	return result
}

// callID is the id of the call that a request makes; nil when it makes none.
func callID(req *http.Request) (jsontext.Value, error) {
	if req.GetBody == nil {
		return nil, nil
	}
	body, err := req.GetBody()
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(body)
	if err = errors.Join(err, body.Close()); err != nil {
		return nil, err
	}
	var call struct {
		ID     jsontext.Value `json:"id"`
		Method string         `json:"method"`
	}
	if err := json.Unmarshal(text, &call); err != nil || call.Method == "" {
		return nil, err
	}
	return call.ID, nil
}

// answerTo reads one message. It is an answer when it is sound, carries the id of
// the call and either a result or an error (JSON-RPC 2.0 part 5).
func answerTo(id jsontext.Value, message []byte) (clean []byte, result jsontext.Value, ok bool) {
	if judgeDepth(message) != nil {
		return nil, nil, false
	}
	var answer struct {
		Version string         `json:"jsonrpc"`
		ID      jsontext.Value `json:"id"`
		Method  jsontext.Value `json:"method,omitzero"`
		Result  jsontext.Value `json:"result,omitzero"`
		Error   jsontext.Value `json:"error,omitzero"`
	}
	if json.Unmarshal(message, &answer) != nil || answer.Version != "2.0" || answer.Method != nil || !bytes.Equal(answer.ID, id) {
		return nil, nil, false
	}
	if (answer.Result.Kind() == '{') == (answer.Error.Kind() == '{') {
		return nil, nil, false
	}
	clean, err := json.Marshal(answer)
	return clean, answer.Result, err == nil
}

// A singleAnswer reads a body that is one message. Without a body it is empty.
type singleAnswer struct {
	body   io.Reader
	accept func([]byte) ([]byte, bool)
	clean  []byte
	failed error
}

func (a *singleAnswer) Read(p []byte) (int, error) {
	if a.body != nil {
		text, err := io.ReadAll(a.body)
		a.body, a.failed = nil, err
		if err == nil {
			a.clean, _ = a.accept(text)
		}
	}
	if a.failed != nil {
		return 0, a.failed
	}
	if len(a.clean) == 0 {
		return 0, io.EOF
	}
	n := copy(p, a.clean)
	a.clean = a.clean[n:]
	return n, nil
}

// An eventAnswer reads server-sent events (HTML standard, part 9.2) until one is
// the answer, and gives that one event alone.
type eventAnswer struct {
	events *bufio.Reader
	accept func([]byte) ([]byte, bool)
	clean  []byte
	done   bool
}

func (a *eventAnswer) Read(p []byte) (int, error) {
	for !a.done {
		data, err := a.nextEvent()
		if err != nil {
			a.done = true
			if err == io.EOF {
				break
			}
			return 0, err
		}
		if clean, ok := a.accept(data); ok {
			a.clean, a.done = []byte("data: "+string(clean)+"\n\n"), true
		}
	}
	if len(a.clean) == 0 {
		return 0, io.EOF
	}
	n := copy(p, a.clean)
	a.clean = a.clean[n:]
	return n, nil
}

// nextEvent gives the data of the next event. One that the stream's end cuts
// short is none.
func (a *eventAnswer) nextEvent() ([]byte, error) {
	var data []byte
	for {
		line, err := a.events.ReadString('\n')
		if err != nil {
			return nil, err
		}
		line = strings.TrimSuffix(strings.TrimSuffix(line, "\n"), "\r")
		if line == "" {
			return data, nil
		}
		if value, ok := strings.CutPrefix(line, "data:"); ok {
			data = append(append(data, strings.TrimPrefix(value, " ")...), '\n')
		}
	}
}
