package classify

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// ChildWork is work on a client's text, other than the parser's, that is done in
// processes as confined as the parser's: a text that takes more processor time or
// memory than it may, or ends the process, is that text's failure alone, and its
// work ends with the process.
type ChildWork struct {
	Name string                   // of the processes, as process lists show it
	CPU  time.Duration            // processor time of one request
	Do   func(request []byte) any // gives what becomes the answer's JSON
}

const workArgument = "work"

// ServeIfChild is for the init function of the package that has the work: it does
// the work, and does not return, in a process that was started for it.
func (w *ChildWork) ServeIfChild() {
	serveIfChild(w.Name, workArgument, func(in io.Reader, out io.Writer) error {
		return serve(in, out, func([]byte) (any, error) { return ready{}, nil }, w.Do)
	})
}

// Errors of Ask besides the context's and that no process could be started.
var (
	ErrChildBusy  = errors.New("classify: no child came free within the wait")
	ErrChildEnded = errors.New("classify: the child ended in the request, or was ended for what it took")
)

// Children are the processes for one kind of work. They may be used by many
// goroutines; Close ends them.
type Children struct{ s *supervisor }

// Children gives places for n processes. Each is started by the first request
// that comes to it.
func (w *ChildWork) Children(n int) Children {
	s := &supervisor{name: w.Name, argument: workArgument, free: newQueue[*slot](), slots: n, cpu: w.CPU, wall: maxRequestWall, wait: maxQueueWait}
	s.life, s.end = context.WithCancel(context.Background())
	for range n {
		s.free.give(&slot{})
	}
	return Children{s}
}

// Ask has a request worked on, in the turn of the client, and reads the JSON of
// its answer into answer. The context ends the wait for a process, not a request
// that is in one: that ends by its own limits.
func (c Children) Ask(ctx context.Context, client string, request []byte, answer any) error {
	err := c.s.ask(ctx, client, func(in io.Reader) error { return readJSON(in, answer) }, request)
	var ended *endedError
	switch {
	case errors.Is(err, errNoTurn):
		return ErrChildBusy
	case errors.As(err, &ended):
		return fmt.Errorf("%w: %w", ErrChildEnded, ended.cause)
	}
	return err
}

// Close ends the processes and waits for them. An Ask afterwards is an error.
func (c Children) Close() { c.s.close() }
