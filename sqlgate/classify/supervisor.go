package classify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"writegate/commands/fault"
)

// A supervisor keeps children of one kind: it hands each request to one that is
// free, kills a child that takes too long, and starts another in its place. The
// request that was in a child when it ended is never given to another.
type supervisor struct {
	command  []string
	name     string // of the children, where command is empty
	argument string
	greeting any
	free     *queue[*slot] // every slot that no request and no start is using
	slots    int
	cpu      time.Duration // what one request may take of a child's processor time
	wall     time.Duration // and by the clock on the wall
	wait     time.Duration // for a child
	life     context.Context
	end      context.CancelFunc
	once     sync.Once

	asked    atomic.Uint64
	killed   atomic.Uint64
	restarts atomic.Uint64
}

// A slot is the place of one child; child is nil while none could be started.
type slot struct {
	child   *child
	started bool // there was a child in it before
}

func newSupervisor(cfg Config) (*supervisor, error) {
	s := &supervisor{
		command:  slices.Clone(cfg.WorkerCommand),
		name:     childName,
		argument: childArgument,
		greeting: greeting{SearchPath: cfg.SearchPath, KeyColumns: cfg.KeyColumns, MaxSQLBytes: cfg.MaxSQLBytes},
		free:     newQueue[*slot](),
		slots:    cfg.Children,
		cpu:      maxRequestCPU,
		wall:     cmp.Or(cfg.RequestWall, maxRequestWall),
		wait:     maxQueueWait,
	}
	s.life, s.end = context.WithCancel(context.Background())
	for range cfg.Children { // each is started by the first text that comes to it
		s.free.give(&slot{})
	}
	return s, nil
}

// fill starts a child in a slot and sets the slot free, whether it worked or
// not: the next request tries again and tells its client why it does not.
func (s *supervisor) fill(place *slot) {
	_ = s.start(place) // the request that finds the slot empty gets the error
	s.free.give(place)
}

func (s *supervisor) start(place *slot) error {
	if place.started {
		s.restarts.Add(1)
	}
	c, err := startChild(s.childCommand(), s.greeting)
	if err != nil {
		return err
	}
	place.child, place.started = c, true
	return nil
}

// childCommand is what starts a child of this kind.
func (s *supervisor) childCommand() *exec.Cmd {
	if len(s.command) > 0 {
		return exec.Command(s.command[0], s.command[1:]...)
	}
	cmd := exec.Command(selfExecutable, s.argument)
	cmd.Args[0] = s.name
	return cmd
}

// classify lets a child classify the text.
func (s *supervisor) classify(ctx context.Context, client string, major int, sql string) (Classification, error) {
	r := new(reply)
	err := s.ask(ctx, client, func(answer io.Reader) error {
		if err := readJSON(answer, r); err != nil {
			return err
		}
		if r.Classification == nil && r.Code == "" {
			return errors.New("parser child: an answer without content")
		}
		return nil
	}, []byte{byte(major)}, []byte(sql))
	if err != nil {
		return Classification{}, statementFault(err)
	}
	return r.result()
}

// ask gives a request to a child. An error of read, which reads the answer, means
// that the child is not to be used again. The context ends the wait for a child,
// not a request that is in one: that has its own limits. The error is errNoTurn,
// a *noChildError, an *endedError or the context's.
func (s *supervisor) ask(ctx context.Context, client string, read func(answer io.Reader) error, request ...[]byte) error {
	place, err := s.acquire(ctx, client)
	if err != nil {
		return err
	}
	if place.child != nil && place.child.ended() { // while nothing was in it: no text's fault
		place.child.stop()
		place.child = nil
	}
	if place.child == nil {
		if err := s.start(place); err != nil {
			s.free.give(place)
			return &noChildError{err}
		}
	}
	s.asked.Add(1)
	if err := place.child.ask(s.cpu, s.wall, read, request...); err != nil {
		return s.bury(place, err)
	}
	s.free.give(place)
	return nil
}

// acquire waits for the client's turn at a free slot.
func (s *supervisor) acquire(ctx context.Context, client string) (*slot, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()
	place, err := s.free.take(ctx, client, s.wait)
	if s.life.Err() == nil {
		return place, err
	}
	if err == nil {
		s.free.give(place)
	}
	return nil, &noChildError{errors.New("the children are closed")}
}

// bury ends a child that failed in a request, starts the next beside the
// request, and tells how it ended.
func (s *supervisor) bury(place *slot, err error) *endedError {
	e := new(endedError)
	if errors.As(err, &e.over) {
		s.killed.Add(1)
	}
	place.child.stop()
	e.cause = fmt.Errorf("%w; the child ended: %v", err, place.child.end)
	place.child = nil
	go s.fill(place)
	return e
}

// close ends the children and waits until they are gone.
func (s *supervisor) close() {
	s.once.Do(func() {
		s.end()
		for range s.slots {
			place, err := s.free.take(context.Background(), "", s.wall+maxStartWall)
			if err == nil && place.child != nil {
				place.child.stop()
			}
		}
	})
}

// A noChildError tells that no child could be started.
type noChildError struct{ cause error }

func (e *noChildError) Error() string { return "no child: " + e.cause.Error() }

// An endedError tells that a child ended in a request, or was ended for what the
// request took; over is nil unless it was.
type endedError struct {
	cause error
	over  *overrunError
}

func (e *endedError) Error() string { return e.cause.Error() }

// statementFault puts what became of a request or of a wait into words for who
// sent a statement.
func statementFault(err error) error {
	var none *noChildError
	var ended *endedError
	switch {
	case errors.Is(err, errNoTurn):
		return refuseBusy()
	case errors.As(err, &none):
		return refuseNoChild(none.cause)
	case errors.As(err, &ended):
		return refusePoison(ended.cause, ended.over)
	}
	return err
}

func refuseNoChild(err error) *fault.Fault {
	return fault.New(fault.Internal, "The parser for long statements cannot be started. Nothing was executed; send it again, and tell the operator the error_id if it stays.").Because(err)
}

// refusePoison answers the text that was in a child when it ended.
func refusePoison(err error, over *overrunError) *fault.Fault {
	f := fault.New(fault.ParserUnsupportedSyntax, "The parser could not finish the statement within its limits. Nothing was executed; simplify the statement.").Because(err)
	if over != nil && over.cpu > 0 {
		return f.With("limit", limitParserCPU).With("got", int(over.cpu.Milliseconds())).With("max", int(maxRequestCPU.Milliseconds()))
	}
	return f.With("limit", limitParserDied)
}
