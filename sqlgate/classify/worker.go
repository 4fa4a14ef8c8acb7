package classify

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"writegate/commands/fault"
)

// The supervisor and its child speak in frames over two pipes: four bytes of
// length, big-endian, then the body. First the child gets a greeting and says
// that it is ready; then each request (one byte for the server's major version,
// then the SQL text) gets one reply. Greeting, ready and reply are JSON.
const (
	frameHeader  = 4
	largestFrame = 16 << 20
)

// A greeting is the part of Config that decides about a classification.
type greeting struct {
	SearchPath  string   `json:"search_path"`
	KeyColumns  []string `json:"key_columns"`
	MaxSQLBytes int      `json:"max_sql_bytes"`
}

// A ready tells how much stack the child's threads have.
type ready struct {
	Stack uint64 `json:"stack"`
}

// A reply is a finished classification with the fields that its own JSON
// leaves out, or a fault.
type reply struct {
	Classification *Classification `json:"classification,omitempty"`
	Start          int             `json:"start,omitempty"`
	End            int             `json:"end,omitempty"`
	Depth          int             `json:"depth,omitempty"`
	NormalizedSQL  string          `json:"normalized_sql,omitempty"`
	Params         int             `json:"params,omitempty"`
	KeyParams      []KeyParam      `json:"key_params,omitempty"`
	Attributes     []string        `json:"attributes,omitempty"`
	Fields         []string        `json:"fields,omitempty"`
	Beyond         *reply          `json:"beyond,omitempty"`
	Derived        bool            `json:"derived,omitempty"`
	UserTypes      bool            `json:"user_types,omitempty"`
	Plain          *reply          `json:"plain,omitempty"`
	Types          []string        `json:"types,omitempty"`
	Session        *Session        `json:"session,omitempty"`
	Control        *Control        `json:"control,omitempty"`

	Code    fault.Code     `json:"code,omitempty"`
	Message string         `json:"message,omitempty"`
	Details map[string]any `json:"details,omitempty"`
	Cause   string         `json:"cause,omitempty"` // for the operational log
}

func newReply(c Classification, err error) reply {
	if err != nil {
		f := fault.Of(err)
		r := reply{Code: f.Code, Message: f.Message, Details: f.Details}
		if cause := f.Unwrap(); cause != nil {
			r.Cause = cause.Error()
		}
		return r
	}
	r := reply{Classification: &c, Start: c.Start, End: c.End, Depth: c.Depth, NormalizedSQL: c.NormalizedSQL, Params: c.Params, KeyParams: c.KeyParams, Attributes: c.Attributes, Fields: c.Fields, Derived: c.Derived, UserTypes: c.UserTypes, Types: c.Types, Session: c.Session, Control: c.Control}
	if c.Beyond != nil {
		more := newReply(*c.Beyond, nil)
		r.Beyond = &more
	}
	if c.Plain != nil {
		plain := newReply(*c.Plain, nil)
		r.Plain = &plain
	}
	return r
}

// result gives back what newReply was given.
func (r *reply) result() (Classification, error) {
	if r.Classification == nil {
		f := fault.New(r.Code, "%s", r.Message)
		for key, value := range r.Details {
			f = f.With(key, plainNumber(value))
		}
		if r.Cause != "" {
			f = f.Because(errors.New(r.Cause))
		}
		return Classification{}, f
	}
	c := *r.Classification
	c.Start, c.End, c.Depth, c.NormalizedSQL, c.Params, c.KeyParams, c.Attributes, c.Fields, c.Derived, c.UserTypes, c.Types, c.Session, c.Control = r.Start, r.End, r.Depth, r.NormalizedSQL, r.Params, r.KeyParams, r.Attributes, r.Fields, r.Derived, r.UserTypes, r.Types, r.Session, r.Control
	for _, other := range []struct {
		from *reply
		to   **Classification
	}{{r.Beyond, &c.Beyond}, {r.Plain, &c.Plain}} {
		if other.from == nil {
			continue
		}
		judged, err := other.from.result()
		if err != nil {
			return Classification{}, err
		}
		*other.to = &judged
	}
	return c, nil
}

// plainNumber undoes what JSON makes of an int in a map.
func plainNumber(v any) any {
	if n, ok := v.(json.Number); ok {
		if i, err := n.Int64(); err == nil {
			return int(i)
		}
	}
	return v
}

// Worker is the parser child: it answers requests from in on out until in ends.
// What it may use is set by whoever started the process (ParseWorker).
func Worker(in io.Reader, out io.Writer) error {
	if err := parserLinked(); err != nil {
		return err
	}
	var w *worker
	return serve(in, out, func(body []byte) (ready any, err error) {
		w, ready, err = greet(body)
		return ready, err
	}, func(request []byte) any { return newReply(w.answer(request)) })
}

// serve is a child's side of the conversation.
func serve(in io.Reader, out io.Writer, greet func(greeting []byte) (ready any, err error), answer func(request []byte) any) error {
	body, err := readFrame(in)
	if err != nil {
		return fmt.Errorf("classify: no greeting for the child: %w", err)
	}
	ready, err := greet(body)
	if err != nil {
		return err
	}
	if err := writeJSON(out, ready); err != nil {
		return err
	}
	for {
		request, err := readFrame(in)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := writeJSON(out, answer(request)); err != nil {
			return err
		}
	}
}

// A worker holds what the child needs between requests.
type worker struct {
	cfg      Config
	maxDepth int
	states   map[int]*state // by the server's major version
}

func greet(body []byte) (*worker, any, error) {
	var g greeting
	if err := json.Unmarshal(body, &g); err != nil {
		return nil, nil, fmt.Errorf("classify: greeting of the parser child: %w", err)
	}
	stack := threadStack()
	w := &worker{
		cfg:      Config{SearchPath: g.SearchPath, KeyColumns: g.KeyColumns, MaxSQLBytes: g.MaxSQLBytes},
		maxDepth: deepestFor(stack),
		states:   make(map[int]*state),
	}
	_, err := w.state(0)
	return w, ready{Stack: stack}, err
}

// deepestFor gives the depth bound that a thread's stack can bear: all that fits
// into the largest text with the stack the child asks for, one unit for each
// KiB where the system allows less.
func deepestFor(stack uint64) int {
	if stack >= childStack {
		return largestSQLBytes
	}
	return int(stack >> 10)
}

func (w *worker) state(major int) (*state, error) {
	if s := w.states[major]; s != nil {
		return s, nil
	}
	s, err := newState(w.cfg, major)
	if err == nil {
		w.states[major] = s
	}
	return s, err
}

func (w *worker) answer(request []byte) (Classification, error) {
	if len(request) == 0 {
		return Classification{}, errors.New("classify: empty request to the parser child")
	}
	st, err := w.state(int(request[0]))
	if err != nil {
		return Classification{}, err
	}
	sql := string(request[1:])
	s, f := guard(sql, w.cfg.MaxSQLBytes)
	if f != nil {
		return Classification{}, f
	}
	if s.Depth > w.maxDepth {
		return Classification{}, refuseLimit(limitParserStack, -1, s.Depth, w.maxDepth)
	}
	return classifyHere(st.tables, sql, &s)
}

func readFrame(in io.Reader) ([]byte, error) {
	var header [frameHeader]byte
	if _, err := io.ReadFull(in, header[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(header[:])
	if n > largestFrame {
		return nil, fmt.Errorf("classify: a frame of %d bytes between gate and parser child", n)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(in, body); err != nil {
		return nil, fmt.Errorf("classify: a frame between gate and parser child breaks off: %w", err)
	}
	return body, nil
}

// writeFrame writes the parts as one frame.
func writeFrame(out io.Writer, parts ...[]byte) error {
	frame := make([]byte, frameHeader)
	for _, part := range parts {
		frame = append(frame, part...)
	}
	binary.BigEndian.PutUint32(frame, uint32(len(frame)-frameHeader))
	_, err := out.Write(frame)
	return err
}

func writeJSON(out io.Writer, value any) error {
	body, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return writeFrame(out, body)
}

func readJSON(in io.Reader, value any) error {
	body, err := readFrame(in)
	if err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	return d.Decode(value)
}
