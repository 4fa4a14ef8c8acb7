package commands

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"writegate/commands/fault"
	"writegate/eventlog"
	"writegate/eventlog/event"
	"writegate/projections"
)

// DefaultTTL is GATE_APPROVAL_DEFAULT_TTL_SECONDS where nothing else is set
// (spec/gate.md part 8).
const DefaultTTL = 300 * time.Second

// Options are what Commands stand on. Log and Store are required.
type Options struct {
	Log    *eventlog.Log
	Store  *projections.Store
	Now    func() time.Time // time.Now
	Logger *slog.Logger     // discards
	// Step is called at the named steps of every command (commands.decide,
	// commands.append, commands.appended), so that a test can
	// end the process there.
	Step       func(name string)
	DefaultTTL time.Duration // of an approval whose rule sets none; DefaultTTL
}

// Commands decides and appends. All methods may be called from any goroutine.
type Commands struct {
	log   *eventlog.Log
	store *projections.Store
	now   func() time.Time
	logs  *slog.Logger
	step  func(string)
	ttl   time.Duration

	locks    *keyedLocks
	turnWait time.Duration
	keys     *keyLeases
	floods   *throttle
	outages  outages
	late     late
	earlier  earlierDecisions
	grants   provenGrants
	wake     chan struct{} // tells RunExpiry that an approval was created, or an agent deactivated

	deactivated atomic.Bool // an agent may have been, and approvals that it asked for are not written down as expired

	written atomic.Uint64               // seq of the last result that was told ahead of its sync
	engine  atomic.Uint64               // seq of this run's startup event
	refused atomic.Pointer[fault.Fault] // why every new command is refused, once corruption was recorded
}

// New makes Commands. Start must be called before any other command.
func New(o Options) (*Commands, error) {
	if o.Log == nil || o.Store == nil {
		return nil, errors.New("commands: a log and a store are required")
	}
	floods, err := newThrottle()
	if err != nil {
		return nil, err
	}
	c := &Commands{log: o.Log, store: o.Store, now: o.Now, logs: o.Logger, step: o.Step, ttl: o.DefaultTTL,
		locks: newKeyedLocks(), turnWait: turnWait, keys: newKeyLeases(), floods: floods, wake: make(chan struct{}, 1)}
	c.deactivated.Store(true) // the run before may have ended in between
	if c.now == nil {
		c.now = time.Now
	}
	if c.logs == nil {
		c.logs = slog.New(slog.DiscardHandler)
	}
	if c.step == nil {
		c.step = func(string) {}
	}
	if c.ttl <= 0 {
		c.ttl = DefaultTTL
	}
	return c, nil
}

// An EventRef names an event that a command wrote.
type EventRef struct {
	ID   event.ID
	Type event.Type
	Seq  uint64
	Hash [32]byte
}

// Recorded is what a command wrote. The fields beside Events are "" or zero
// where they do not apply.
type Recorded struct {
	ApprovalID  string
	ExpiresAt   time.Time // of the approval
	ExecutionID string
	At          time.Time // of the decision
	Events      []EventRef
}

// behind is how many durable events the projections may lack before commands
// wait for them: as many as the log keeps batches for a follower, so that it does not lose them.
const behind = 256

// commit appends the group. Every view that is opened after it shows it, so whoever
// takes the command's lock next decides on it.
func (c *Commands) commit(ctx context.Context, g eventlog.Group) (eventlog.Committed, error) {
	if head := c.log.Head().Seq; head > behind && !g.Reserve {
		err := c.store.WaitApplied(ctx, head-behind)
		if errors.Is(err, projections.ErrFull) {
			return eventlog.Committed{}, ViewFault(err)
		}
		if err != nil {
			return eventlog.Committed{}, fault.New(fault.AuditUnavailable, "The service could not follow its log, so nothing was executed or recorded. Send the request again later.").
				With("outcome", "not_written").Because(err)
		}
	}
	return c.append(ctx, g)
}

// append is commit of what has happened already: it waits for no projection.
func (c *Commands) append(ctx context.Context, g eventlog.Group) (eventlog.Committed, error) {
	if f := c.refused.Load(); f != nil && !g.Reserve {
		return eventlog.Committed{}, f
	}
	c.step("commands.append")
	done, err := c.log.Append(ctx, g) // COMMIT POINT inside: after it the events stand, before it nothing does
	if err != nil {
		return done, refusal(err)
	}
	c.step("commands.appended")
	handIn(ctx, done)
	if slices.ContainsFunc(g.Drafts, func(d event.Draft) bool { return d.Type == event.TypeAgentDeactivated }) {
		c.deactivated.Store(true)
		c.wakeExpiry()
	}
	return done, nil
}

// commitWithin is commit inside of what around does; nil is nothing.
func (c *Commands) commitWithin(ctx context.Context, g eventlog.Group, around func(write func() error) error) (done eventlog.Committed, err error) {
	if around == nil {
		return c.commit(ctx, g)
	}
	err = around(func() (err error) {
		done, err = c.commit(ctx, g)
		return err
	})
	return done, err
}

// Takes is the error that a command would have now because the log takes none, or the
// projections follow it no more; nil where it takes them. What is answered before its evidence is written asks it.
func (c *Commands) Takes() error {
	if f := c.refused.Load(); f != nil {
		return f
	}
	if err := c.log.Refuses(); err != nil {
		return refusal(err)
	}
	if err := c.store.Full(); err != nil {
		return ViewFault(err)
	}
	return nil
}

// refs pairs the drafts with their places in the chain.
func refs(drafts []event.Draft, done eventlog.Committed) []EventRef {
	out := make([]EventRef, len(drafts))
	for i := range drafts {
		out[i] = EventRef{ID: drafts[i].ID, Type: drafts[i].Type, Seq: done.First + uint64(i), Hash: done.Hashes[i]}
	}
	return out
}

// refusal turns an error of the log into a fault (design/eventlog.md part 6).
// details.outcome tells a program whether the events may be in the log:
// "unknown", or "not_written".
func refusal(err error) error {
	unavailable := func(message, outcome string) error {
		return fault.New(fault.AuditUnavailable, "%s", message).With("outcome", outcome).Because(err)
	}
	switch {
	case errors.Is(err, eventlog.ErrOutcomeUnknown):
		return unavailable("The event log failed while writing. Nothing was executed; whether the request left evidence is known after the next start.", "unknown")
	case errors.Is(err, eventlog.ErrTooLarge):
		return fault.New(fault.OversizedRequest, "The request is too large to be recorded, so it was refused. Send a smaller one.").Because(err)
	case errors.Is(err, eventlog.ErrCorrupt):
		return fault.New(fault.AuditCorruptionDetected, "The event log is damaged, so the service only answers reads. Tell the operator: GET /evidence/verify shows the damage.").Because(err)
	case errors.Is(err, eventlog.ErrStorageFull):
		f := fault.New(fault.AuditUnavailable, "The event log has no space left, so nothing is executed. Free space on its volume.")
		return f.With("outcome", "not_written").With("reason", "storage_full").Because(err)
	case errors.Is(err, eventlog.ErrFenceLost):
		f := fault.New(fault.AuditUnavailable, "Another copy of this gate's event log goes on, so this gate executes nothing any more. Send the request to the gate that goes on with it.")
		return f.With("outcome", "not_written").With("reason", FenceReason(err)).Because(err)
	case errors.Is(err, eventlog.ErrFenceUnconfirmed):
		f := fault.New(fault.AuditUnavailable, "The gate can't confirm that no other copy of its event log is written, so nothing is executed. Send the request again later.")
		return f.With("outcome", "not_written").With("reason", FenceReason(err)).Because(err)
	case errors.Is(err, eventlog.ErrClosed):
		return unavailable("The service is stopping. Nothing was executed; send the request again when it is back.", "not_written")
	}
	return unavailable("The event log can't be written, so nothing is executed. Send the request again later.", "not_written")
}

// FenceReason is details.reason of what is refused for an error of the log's fence.
func FenceReason(err error) string {
	if errors.Is(err, eventlog.ErrFenceLost) {
		return "fence_lost"
	}
	return "fence_unconfirmed"
}

// MayBeWritten tells of the error of a command whether its events can be in the log all
// the same. The next start will know.
func MayBeWritten(err error) bool {
	f, ok := fault.As(err)
	return ok && f.Code == fault.AuditUnavailable && f.Details["outcome"] == "unknown"
}

// look hands a consistent view of the projections to read, which it waits for no longer
// than ctx. Its error is a fault.
func (c *Commands) look(ctx context.Context, read func(*projections.View) error) error {
	view := c.store.ViewWithin(ctx)
	err := read(view)
	if closeErr := view.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return ViewFault(err)
	}
	return nil
}

// ViewFault is the fault of a read of a view, or of the events that it names.
func ViewFault(err error) error {
	_, told := fault.As(err)
	if errors.Is(err, projections.ErrFull) {
		return fault.New(fault.AuditUnavailable, "The service can't show what is new in its log, because the volume of its projections (GATE_APPROVAL_DB_PATH) takes nothing more. Nothing was executed or recorded. Send the request again when there is space.").
			With("outcome", "not_written").Because(err)
	}
	if errors.Is(err, projections.ErrBehind) || !told && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)) {
		return fault.New(fault.AuditUnavailable, "The request ended while it waited for the service to follow its log, or read. Nothing was executed or recorded; send it again.").
			With("outcome", "not_written").Because(err)
	}
	return fault.Of(err)
}
