package classify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"writegate/commands/fault"
)

// A supervisor keeps the parser children: it hands each request to one that is
// free, kills a child that takes too long, and starts another in its place. The
// request that was in a child when it ended is never given to another.
type supervisor struct {
	command  []string
	greeting greeting
	free     *queue[*slot] // every slot that no request and no start is using
	slots    int
	wall     time.Duration // what one request may take by the clock on the wall
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
		greeting: greeting{SearchPath: cfg.SearchPath, KeyColumns: cfg.KeyColumns, MaxSQLBytes: cfg.MaxSQLBytes},
		free:     newQueue[*slot](),
		slots:    cfg.Children,
		wall:     cmp.Or(cfg.RequestWall, maxRequestWall),
		wait:     maxQueueWait,
	}
	s.life, s.end = context.WithCancel(context.Background())
	for range cfg.Children {
		go s.fill(&slot{})
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
	c, err := startChild(s.command, s.greeting)
	if err != nil {
		return err
	}
	place.child, place.started = c, true
	return nil
}

// classify lets a child classify the text. The context ends the wait for a
// child, not a request that is in one: that has its own limits.
func (s *supervisor) classify(ctx context.Context, client string, major int, sql string) (Classification, error) {
	place, err := s.acquire(ctx, client)
	if err != nil {
		return Classification{}, err
	}
	if place.child != nil && place.child.ended() { // while nothing was in it: no text's fault
		place.child.stop()
		place.child = nil
	}
	if place.child == nil {
		if err := s.start(place); err != nil {
			s.free.give(place)
			return Classification{}, refuseNoChild(err)
		}
	}
	s.asked.Add(1)
	r, err := place.child.ask(major, sql, s.wall)
	if err != nil {
		return Classification{}, s.bury(place, err)
	}
	s.free.give(place)
	return r.result()
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
	return nil, refuseNoChild(errors.New("the classifier is closed"))
}

// bury ends a child that failed in a request, starts the next beside the
// request, and gives the answer to the text that did it.
func (s *supervisor) bury(place *slot, err error) *fault.Fault {
	var over *overrunError
	if errors.As(err, &over) {
		s.killed.Add(1)
	}
	place.child.stop()
	err = fmt.Errorf("%w; the child ended: %v", err, place.child.end)
	place.child = nil
	go s.fill(place)
	return refusePoison(err, over)
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
