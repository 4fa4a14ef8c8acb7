package checkpoints

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"writegate/commands"
	"writegate/commands/fault"
	"writegate/eventlog"
	"writegate/eventlog/checkpoint"
	"writegate/eventlog/event"
	"writegate/eventlog/frame"
	"writegate/projections"
)

// Defaults of Options (spec/gate.md part 5, design/eventlog.md part 11).
const (
	DefaultEveryEvents  = 10_000
	DefaultEvery        = time.Minute
	DefaultDigestEvents = 100_000
)

// atMost is how often a checkpoint is signed at most.
const atMost = time.Second

// Options are what a Keeper stands on. Folder is required.
type Options struct {
	Folder checkpoint.Folder
	// Key signs; nil is off, and then the notes that are there are still held
	// against the log.
	Key       *checkpoint.PrivateKey
	Witnesses []*checkpoint.Witness
	// Trusted keys vouch for notes as Key does, and sign nothing.
	Trusted []checkpoint.PublicKey
	// Stopped says that no gate begins by what is found: a witness that knows a log
	// before this one under the same origin is a warning then.
	Stopped bool

	EveryEvents  uint64        // a checkpoint is due after so many events; 0 = DefaultEveryEvents
	Every        time.Duration // or so long after the last one, if there are new events; 0 = DefaultEvery
	DigestEvents uint64        // each time so many events are full the event carries a digest; 0 = DefaultDigestEvents

	LastOffer time.Duration // how long witnesses may hold up a clean end; 0 = three seconds

	Now    func() time.Time
	Logger *slog.Logger
	// Step is called at the named steps of a checkpoint, so that a test can end
	// the process there.
	Step func(name string)
}

func (o *Options) complete() {
	o.EveryEvents = cmp.Or(o.EveryEvents, DefaultEveryEvents)
	o.Every = cmp.Or(o.Every, DefaultEvery)
	o.DigestEvents = cmp.Or(o.DigestEvents, DefaultDigestEvents)
	o.LastOffer = cmp.Or(o.LastOffer, lastOffer)
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Step == nil {
		o.Step = func(string) {}
	}
}

var errNotJudged = errors.New("the log was not held against its checkpoints and witnesses")

// A Keeper keeps the checkpoints of one log. Its calls come in this order: New,
// Papers as often as the log asks, Attach, Judge, Begin, Run, Last. Papers,
// Status, and the methods of evidence.Signer may be called by any goroutine.
// Once Run has begun it alone signs, but for Last.
type Keeper struct {
	o        Options
	log      *eventlog.Log
	store    *projections.Store
	signer   *checkpoint.Signer // nil: nothing is signed
	commands *commands.Commands

	signing  sync.Mutex    // held while a checkpoint is made: the next one has to continue it
	offering sync.Mutex    // held while witnesses are asked: they are told sizes in order
	wanted   chan struct{} // capacity 1: somebody waits for a checkpoint; of which size is in want
	news     chan struct{} // capacity 1: there is a new one
	digests  sync.WaitGroup

	mu        sync.Mutex
	newest    *checkpoint.Note // trusted; nil where there is none
	signedAt  time.Time        // when this process last signed one, or began
	ours      bool             // newest was signed by this process
	named     []uint64         // checkpoint_signed events after newest
	digested  uint64           // size up to which digests were due
	failure   error            // why the last checkpoint failed
	stuck     bool             // no checkpoint can be made at all
	compared  int              // of vouched, those that the projections' tree was held against
	otherTree bool             // the projections' tree is of other events than the log's, so nothing of it is signed
	want      uint64           // largest size that somebody waited for
	tries     int              // to make one
	tried     chan struct{}    // closed at the end of the next one
	accused   []frame.Anchor   // what witnesses know against the log
	asked     []asked          // by witness
	vouched   []vouched        // what witnesses knew when they were asked
}

// asked is what came of the last offer to a witness.
type asked struct {
	heard bool   // what it knows was held against the log's files
	size  uint64 // that it cosigned
	at    time.Time
	err   error
}

// New makes a Keeper of a log that is about to be opened.
func New(o Options) *Keeper {
	o.complete()
	return &Keeper{o: o, stuck: true, failure: errNotJudged, wanted: make(chan struct{}, 1), news: make(chan struct{}, 1), tried: make(chan struct{}),
		asked: make([]asked, len(o.Witnesses)), signedAt: o.Now()}
}

// Attach gives the Keeper its log, the projections that have folded it, and the
// signer of the log's origin with Options.Key; nil where signing is off.
func (k *Keeper) Attach(log *eventlog.Log, store *projections.Store, signer *checkpoint.Signer) {
	k.mu.Lock() // the log reads its sealed segments already, and asks for Papers
	defer k.mu.Unlock()
	k.log, k.store, k.signer = log, store, signer
}

// Signs tells whether evidence is signed.
func (k *Keeper) Signs() bool { return k.signer != nil }

// can tells whether checkpoints can be made.
func (k *Keeper) can() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.signer != nil && !k.stuck
}

func (k *Keeper) known() *checkpoint.Note {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.newest
}

// make signs the tree of a view and stores the note, and gives the one there is
// when it covers the view already. An error that accuses the log has done so
// when make returns. k.signing is held.
func (k *Keeper) make(view *projections.View) (*checkpoint.Note, error) {
	k.mu.Lock()
	other := k.otherTree
	k.mu.Unlock()
	if other {
		return nil, k.failed(ErrOtherTree)
	}
	size, newest := view.Tree().Size(), k.known()
	var before *checkpoint.Checkpoint
	if newest != nil {
		if newest.Size >= size {
			return newest, nil
		}
		before = &newest.Checkpoint
	}
	n, err := k.signer.Sign(view.Tree(), size, before)
	if err != nil {
		return nil, k.failed(err)
	}
	k.o.Step("checkpoint.signed")
	if err := k.o.Folder.Store(k.log.SegmentOf(size), n); err != nil {
		return nil, k.failed(err)
	}
	k.o.Step("checkpoint.stored")
	k.mu.Lock()
	defer k.mu.Unlock()
	k.newest, k.ours, k.signedAt, k.failure = n, true, k.o.Now(), nil
	k.named = slices.DeleteFunc(k.named, func(seq uint64) bool { return seq <= size })
	return n, nil
}

// record writes the event that names a note, with a digest or without.
func (k *Keeper) record(ctx context.Context, n *checkpoint.Note, digest [32]byte) error {
	p := &event.CheckpointSigned{Size: n.Size, Root: n.Root, Digest: digest}
	if digest != [32]byte{} {
		p.DigestProjectors = projections.ProjectorVersion
	}
	seq, err := k.commands.RecordCheckpoint(ctx, p)
	if ctx.Err() != nil && err != nil {
		return ctx.Err() // the gate ends: the next start names it
	}
	if err != nil {
		return k.failed(fmt.Errorf("the checkpoint of %d events is signed, but its event can't be written: %w", n.Size, err))
	}
	k.o.Step("checkpoint.recorded")
	k.mu.Lock()
	defer k.mu.Unlock()
	k.named = append(k.named, seq)
	return nil
}

// checkpoint makes one of everything that is applied and has it recorded.
func (k *Keeper) checkpoint(ctx context.Context) (*checkpoint.Note, error) {
	k.signing.Lock()
	defer k.signing.Unlock()
	defer k.endTry()
	if err := k.log.Serving(); err != nil {
		return nil, err // what is damaged is not signed
	}
	view := k.store.View()
	before := k.known()
	n, err := k.make(view)
	if err != nil || n == before {
		return n, errors.Join(err, view.Close())
	}
	nudge(k.news)
	if k.digestDue(n.Size) {
		k.digests.Go(func() { k.recordWithDigest(ctx, view, n) })
		return n, nil
	}
	return n, errors.Join(k.record(ctx, n, [32]byte{}), view.Close())
}

func (k *Keeper) digestDue(size uint64) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	due := size/k.o.DigestEvents > k.digested/k.o.DigestEvents
	k.digested = size
	return due
}

// recordWithDigest sums up all projections, which may take minutes: meanwhile
// later checkpoints are signed, and their events come first.
func (k *Keeper) recordWithDigest(ctx context.Context, view *projections.View, n *checkpoint.Note) {
	digest, err := view.Digest(ctx)
	if err = errors.Join(err, view.Close()); err != nil {
		k.o.Logger.Warn("a checkpoint goes without a digest of the projections", "source", "checkpoints", "size", n.Size, "cause", err.Error())
		digest = [32]byte{}
	}
	if ctx.Err() == nil {
		_ = k.record(ctx, n, digest) // it is in Status
	}
}

// endTry lets those look who wait for a checkpoint.
func (k *Keeper) endTry() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.tries++
	close(k.tried)
	k.tried = make(chan struct{})
}

// nudge wakes the reader of a channel of capacity 1.
func nudge(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// failed keeps why there is no new checkpoint, and accuses the log where that is
// what it means.
func (k *Keeper) failed(err error) error {
	k.mu.Lock()
	k.failure = err
	k.mu.Unlock()
	switch {
	case errors.Is(err, checkpoint.ErrRewritten):
		k.accuse(frame.HistoryRewritten, 0, err)
	case errors.Is(err, checkpoint.ErrBeyondEnd):
		k.accuse(frame.AnchorBeyondEnd, 0, err)
	default:
		k.o.Logger.Error("there is no new checkpoint of the event log", "source", "checkpoints", "cause", err.Error())
	}
	return err
}

// accuse stops the service of commands.
func (k *Keeper) accuse(kind frame.Kind, seq uint64, why error) {
	k.o.Logger.Error("the event log was cut or written anew", "source", "checkpoints", "kind", string(kind), "cause", why.Error())
	k.mu.Lock()
	log := k.log
	k.mu.Unlock()
	if log == nil {
		return // of a stopped log: Papers tell it
	}
	log.Accuse(frame.Fault{Check: frame.CheckAnchors, Kind: kind, Seq: seq, Detail: why.Error()})
}

// Public implements evidence.Signer.
func (k *Keeper) Public() checkpoint.PublicKey { return k.signer.Public() }

// VKey is the verifier key of the log's checkpoints. It is to be called where
// Signs alone.
func (k *Keeper) VKey() string { return k.signer.VKey() }

// Sign implements evidence.Signer.
func (k *Keeper) Sign(message []byte) []byte { return k.o.Key.Sign(message) }

// Checkpoint implements evidence.Signer: it gives the newest note when that
// covers size events, and else has Run make one, at most one a second. Errors
// other than that of ctx are faults.
func (k *Keeper) Checkpoint(ctx context.Context, size uint64) ([]byte, error) {
	if k.can() {
		if err := k.store.WaitApplied(ctx, size); err != nil {
			return nil, err
		}
	}
	for began := -1; ; {
		if err := k.log.Serving(); err != nil {
			return nil, fault.New(fault.AuditCorruptionDetected, "The event log does not serve, so nothing of it is vouched for. GET /evidence/verify shows why.").Because(err)
		}
		k.mu.Lock()
		newest, failure, stuck, tries, tried := k.newest, k.failure, k.stuck, k.tries, k.tried
		k.want = max(k.want, size)
		k.mu.Unlock()
		if began < 0 {
			began = tries
		}
		switch {
		case newest != nil && newest.Size >= size:
			return newest.Raw, nil
		case failure != nil && (stuck || tries > began):
			return nil, fault.New(fault.AuditUnavailable, "There is no signed checkpoint of the events up to %d, so there is no signed evidence of them. GET /health says what is wrong with the checkpoints.", size).Because(failure)
		}
		nudge(k.wanted)
		select {
		case <-tried:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Prove implements evidence.Signer.
func (k *Keeper) Prove(ctx context.Context, size, seq uint64) (p checkpoint.Proof, err error) {
	view := k.store.ViewWithin(ctx)
	defer func() { err = errors.Join(err, view.Close()) }()
	return checkpoint.ProveInclusion(view.Tree(), size, seq)
}
