package httpd

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// writePatience is how long one piece of a streamed answer may take to leave: a
// client that reads nothing holds its connection no longer than that.
var writePatience = 30 * time.Second

// patient gives every piece its own deadline, so that a long answer to a client
// that reads is never cut.
type patient struct {
	w       *recorder
	control *http.ResponseController
	lasts   bool // it may last, so its client is looked at with every piece
}

func (p patient) Write(b []byte) (int, error) {
	if p.lasts {
		if err := stillTrusted(p.w.call.Request); err != nil {
			return 0, err
		}
	}
	if err := p.control.SetWriteDeadline(time.Now().Add(writePatience)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return 0, err
	}
	return p.w.Write(b)
}

// Stream answers with size bytes that write produces. What goes wrong once it
// began breaks the connection: a client never takes a part for the whole.
func (c *Call) Stream(status int, mediaType string, size int64, write func(io.Writer) error) error {
	h := c.recorder.Header()
	h["Content-Type"] = []string{mediaType}
	h["Content-Length"] = []string{strconv.FormatInt(size, 10)}
	h["Cache-Control"] = noStore
	c.recorder.WriteHeader(status)
	out := bufio.NewWriterSize(patient{w: &c.recorder, control: http.NewResponseController(c.recorder.ResponseWriter), lasts: true}, 64<<10)
	err := write(out)
	if err == nil {
		err = out.Flush()
	}
	if err != nil {
		c.mux.log.Warn("an answer was cut short", "source", logSource, "request_id", c.RequestID, "error", err)
		panic(http.ErrAbortHandler)
	}
	return nil
}

// BeginStream gives back the turn of a GET that is to last: a stream has its own bounds.
// What is written to out has 30 s for each piece to leave.
func (c *Call) BeginStream() (out io.Writer) {
	if c.endRead != nil {
		c.endRead()
	}
	return patient{w: &c.recorder, control: http.NewResponseController(c.recorder.ResponseWriter), lasts: true}
}

// Await holds the answer of a GET back until run returns. That has no turn meanwhile, so it
// needs bounds of its own; the time in which the answer has to leave begins behind it.
func (c *Call) Await(run func(ctx context.Context)) {
	if c.endRead != nil {
		c.endRead()
	}
	run(c.Request.Context())
	if err := http.NewResponseController(c.recorder.ResponseWriter).SetWriteDeadline(time.Now().Add(writePatience)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		c.mux.log.Debug("no deadline for an answer that was waited for", "source", logSource, "request_id", c.RequestID, "error", err)
	}
}

// Events answers with server-sent events until run ends. A comment every beat
// keeps proxies from taking a quiet stream for a dead one. An error of run ends
// the stream; the client comes back with the last id it saw. A HEAD has the headers alone.
func (c *Call) Events(ctx context.Context, beat time.Duration, run func(send func(id, kind string, data []byte) error) error) error {
	out := c.BeginStream()
	control := http.NewResponseController(c.recorder.ResponseWriter)
	h := c.recorder.Header()
	h["Content-Type"] = []string{"text/event-stream"}
	h["Cache-Control"] = noStore
	c.recorder.WriteHeader(http.StatusOK)
	if c.Request.Method == http.MethodHead {
		return nil // nobody reads what run would gather
	}
	s := &eventStream{out: bufio.NewWriter(out), control: control}
	if err := s.comment(); err != nil {
		return nil // the client is gone
	}
	ctx, cancel := context.WithCancel(ctx)
	var beating sync.WaitGroup
	defer beating.Wait()
	defer cancel()
	// A client that reads nothing keeps no end of the service waiting; one that reads gets the end of its answer.
	defer context.AfterFunc(ctx, func() { _ = control.SetWriteDeadline(time.Now().Add(defaultPatience)) })()
	beating.Go(func() { s.beat(ctx, beat) })
	if err := run(s.send); err != nil && ctx.Err() == nil {
		c.mux.log.Info("a stream ended", "source", logSource, "request_id", c.RequestID, "error", err)
	}
	return nil
}

// eventStream writes server-sent events; the beat comes from another goroutine.
type eventStream struct {
	mu      sync.Mutex
	out     *bufio.Writer
	control *http.ResponseController
}

func (s *eventStream) send(id, kind string, data []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, part := range []string{"id: ", id, "\nevent: ", kind, "\ndata: "} {
		if _, err := s.out.WriteString(part); err != nil {
			return err
		}
	}
	if _, err := s.out.Write(data); err != nil {
		return err
	}
	if _, err := s.out.WriteString("\n\n"); err != nil {
		return err
	}
	return s.flush()
}

func (s *eventStream) comment() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.out.WriteString(":\n\n"); err != nil {
		return err
	}
	return s.flush()
}

func (s *eventStream) flush() error {
	if err := s.out.Flush(); err != nil {
		return err
	}
	return s.control.Flush()
}

func (s *eventStream) beat(ctx context.Context, every time.Duration) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if s.comment() != nil {
				return // the next event notices too, and ends the stream
			}
		}
	}
}
