package eventlog

import (
	"context"
	"errors"
	"sync"

	"writegate/eventlog/frame"
)

// Verify judges the log at o.Path from outside: it takes no writer's lock,
// writes nothing, and looks no further than the durable head of a running
// writer. The report is complete in itself; the error is not nil only when ctx
// ended or an option is wrong.
func Verify(ctx context.Context, o Options) (frame.Report, error) {
	o, err := o.withDefaults()
	if err != nil {
		return frame.Report{}, err
	}
	l := &Log{o: o}
	known, err := l.outside(true)
	if err != nil {
		return frame.Report{}, err
	}
	set, err := frame.Discover(ctx, o.FS, o.Path)
	if err != nil {
		return frame.Report{}, err
	}
	r, err := l.judgeSet(ctx, set, known, false)
	if err == nil {
		err = WarnOfAncestors(ctx, l.o.FS, &set, &r)
	}
	return r, errors.Join(err, set.Close())
}

// anchors gives what the projections know, as level L2.
func anchors(projection *frame.Anchor) []frame.Anchor {
	if projection == nil {
		return nil
	}
	a := *projection
	a.Level, a.Source = frame.L2, "projections"
	return []frame.Anchor{a}
}

// verifying lets concurrent callers share one verification.
type verifying struct {
	mu  sync.Mutex
	run *verifyRun
}

type verifyRun struct {
	done   chan struct{}
	report frame.Report
	err    error
}

// Verify judges the whole log up to its durable head. One verification runs at
// a time and concurrent callers share it; ctx ends the waiting alone. A report
// of corruption stops the service of commands and is told to OnCorruption.
func (l *Log) Verify(ctx context.Context) (frame.Report, error) {
	run, err := l.startVerify()
	if err != nil {
		return frame.Report{}, err
	}
	select {
	case <-run.done:
		return run.report, run.err
	case <-ctx.Done():
		return frame.Report{}, ctx.Err()
	}
}

// startVerify gives the verification that runs, or a new one.
func (l *Log) startVerify() (*verifyRun, error) {
	v := &l.verifying
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.run != nil {
		return v.run, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closing {
		return nil, ErrClosed
	}
	l.helpers.Add(1) // under l.mu: Close waits for the helpers after it set closing
	run := &verifyRun{done: make(chan struct{})}
	v.run = run
	go l.verifyOnce(run)
	return run, nil
}

func (l *Log) verifyOnce(run *verifyRun) {
	defer l.helpers.Done()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		select {
		case <-l.stop:
			cancel()
		case <-ctx.Done():
		}
	}()
	run.report, run.err = l.verifyNow(ctx)
	cancel()
	<-finished
	l.verifying.mu.Lock()
	l.verifying.run = nil
	l.verifying.mu.Unlock()
	if run.err == nil && run.report.Status == frame.Corruption {
		l.mu.Lock()
		l.sound = soundIn(&run.report)
		l.mu.Unlock()
		l.corrupt(run.report) // whoever has the report must not find commands still taken
	}
	if run.err != nil && !errors.Is(run.err, context.Canceled) {
		l.reread.Store(true) // perhaps it was to find out what happened to a file
		l.o.Logger.Warn("the log could not be verified; it is tried again", "error", run.err)
	}
	close(run.done)
}

// verifyNow verifies up to the durable head. The head file is read before the
// durable end is, so it never knows more than what is judged, and no rotation
// comes between them.
func (l *Log) verifyNow(ctx context.Context) (frame.Report, error) {
	known, err := l.outside(true)
	if err != nil {
		return frame.Report{}, err
	}
	set, err := l.discover()
	if err != nil {
		return frame.Report{}, err
	}
	r, err := l.judgeSet(ctx, set, known, false)
	if err == nil {
		err = WarnOfAncestors(ctx, l.o.FS, &set, &r)
	}
	return r, errors.Join(err, set.Close())
}

// An Outside is knowledge about a log that is kept away from its files:
// checkpoints, receipts, what witnesses said.
type Outside interface {
	// Anchors turns it into anchors for the log whose files are set, and says what
	// could not be used. An error is that of ctx.
	Anchors(ctx context.Context, set *frame.Set) (anchors []frame.Anchor, warnings []string, err error)
	// NotExcluded says what an honest report has to add to its doubts.
	NotExcluded() []string
}

// outside asks for what is known; it is nil where nobody keeps anything.
func (l *Log) outside(whole bool) (Outside, error) {
	if l.o.Outside == nil {
		return nil, nil
	}
	return l.o.Outside(whole)
}

// judgeSet verifies the files against all anchors.
func (l *Log) judgeSet(ctx context.Context, set frame.Set, known Outside, skim bool) (frame.Report, error) {
	o := frame.Options{Anchors: anchors(l.o.Projection), SkimSealed: skim}
	var warnings []string
	if known != nil {
		more, said, err := known.Anchors(ctx, &set)
		if err != nil {
			return frame.Report{}, err
		}
		o.Anchors, warnings = append(o.Anchors, more...), said
	}
	r, err := frame.Verify(ctx, set, o)
	if err != nil || known == nil {
		return r, err
	}
	for _, w := range warnings {
		r.Warn(w)
	}
	r.NotExcluded = append(r.NotExcluded, known.NotExcluded()...)
	return r, nil
}

// Accuse stops the service of commands because of something that the log's own
// files do not show: a witness that knows more, a checkpoint that the log does
// not continue. Verify has to find the same through Options.Outside; until it has, nobody
// knows from which event on.
func (l *Log) Accuse(f frame.Fault) {
	l.mu.Lock()
	if l.sound == nil {
		l.sound = new(uint64)
	}
	l.mu.Unlock()
	r := frame.NewReport("wal", l.o.Path)
	r.Add(f)
	r.Finish()
	l.corrupt(*r)
}

// Files gives the files of an open log up to its durable head, for reading. The caller closes the set.
func (l *Log) Files() (frame.Set, error) { return l.discover() }

func (l *Log) discover() (frame.Set, error) {
	l.structure.RLock()
	defer l.structure.RUnlock()
	set, err := frame.DiscoverHeld(l.o.FS, l.w)
	if err != nil {
		return set, err
	}
	set.Path = l.o.Path
	if l.writable {
		set.Limit = l.Head().Offset
	}
	return set, nil
}
