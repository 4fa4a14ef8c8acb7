package fence

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"writegate/eventlog"
	"writegate/eventlog/event"
	"writegate/sqlgate/pgexec"
)

// The order of these is what the fence rests on: an answer that is lost and the next one
// fit into Limit, and whoever takes over waits longer than that, with room for clocks that
// do not go alike and for a write that was just being made. pgexec keeps a silent
// session for longer than Limit too.
const (
	Every  = time.Second     // between two confirmations
	Answer = 2 * time.Second // for each, and for a new session
	Limit  = 6 * time.Second // from a question that was answered to the last append
	Wait   = 9 * time.Second // of whoever takes over from a holder that did not give the fence back
)

// ending is how long a start tries to get a lock: the server may be just about to end the
// session of the process before it. It is no wait behind a holder that lives.
const ending = 2 * time.Second

const openTime = 15 * time.Second // for all that a start asks the fence's database, but for Wait

// Errors of Take and Overrule.
var (
	// ErrHeld says that another gate holds the fence.
	ErrHeld = errors.New("another gate writes this log, or is about to")
	// ErrBehind says that the table has something else than this copy of the log knows.
	ErrBehind = errors.New("this copy of the log may not go on")
	// ErrDatabase says that the fence's database gives no answer.
	ErrDatabase = errors.New("the fence's database can't be asked")
)

// Options are what a fence stands on. Step may be nil.
type Options struct {
	Database pgexec.LogFence
	LogID    [16]byte
	Path     string           // of the file beside the log
	Known    pgexec.FenceMark // of the newest log_fence_taken of this log; zero = it has none
	Before   [][16]byte       // the logs that this one follows, the oldest first
	// Head is the durable end of this copy, and At the hash of an event of it.
	Head func() (seq uint64, hash [32]byte)
	At   func(ctx context.Context, seq uint64) (hash [32]byte, err error)
	// Allowed says what speaks against a database as the fence's; nil is nothing.
	Allowed func(system, database string) error
	Logger  *slog.Logger
	Step    func(name string)
}

// A Fence is the fence of one log. Check may be called from any goroutine and before
// Take; Take, Start, Recorded and Release by whoever runs the gate, in this order.
type Fence struct {
	o                Options
	mark             pgexec.FenceMark
	holder           string
	system, database string               // of the table
	session          *pgexec.FenceSession // nil: there is none
	locked           bool                 // the session has the log's lock
	had              [2][32]byte          // hashes of the head that the table was answered to have, and may have
	hadSeq           uint64               // of the second
	trouble          string               // what was said last about it; "" = nothing is wrong

	confirmed atomic.Int64 // moment, by sinceBoot, at which the question was sent that was answered last; 0 = none was
	lost      atomic.Pointer[error]

	end     context.CancelFunc // of Start's work
	keeping sync.WaitGroup
}

// New makes a fence that is not taken.
func New() *Fence { return &Fence{} }

// Check says why nothing may be written, with eventlog.ErrFenceUnconfirmed or
// eventlog.ErrFenceLost; nil while this gate holds the fence.
func (f *Fence) Check() error {
	if err := f.lost.Load(); err != nil {
		return *err
	}
	at := f.confirmed.Load()
	if at == 0 {
		return fmt.Errorf("%w: it is not taken yet", eventlog.ErrFenceUnconfirmed)
	}
	if age := sinceBoot() - time.Duration(at); age > Limit {
		return fmt.Errorf("%w: its database confirmed it %d s ago for the last time, and longer than %d s is too long", eventlog.ErrFenceUnconfirmed, int(age.Seconds()), int(Limit.Seconds()))
	}
	return nil
}

// Age is how long ago the fence was confirmed; negative = never.
func (f *Fence) Age() time.Duration {
	if at := f.confirmed.Load(); at != 0 {
		return sinceBoot() - time.Duration(at)
	}
	return -1
}

// Epoch is the one that was taken; 0 before Take.
func (f *Fence) Epoch() uint64 { return f.mark.Epoch }

// At is the cluster and the database in which it was taken.
func (f *Fence) At() (system, database string) { return f.system, f.database }

// Take takes the fence for this process. The event that it gives has to be in the first
// group that is appended. Errors: ErrHeld, ErrBehind, ErrDatabase, those of the file, or of
// Options.Allowed.
func (f *Fence) Take(ctx context.Context, o Options) (*event.LogFenceTaken, error) {
	f.prepare(o)
	t, found, err := f.take(ctx)
	if err != nil {
		f.hangUp()
		return nil, err
	}
	f.mark = t.to
	return &event.LogFenceTaken{Epoch: t.to.Epoch, Nonce: t.to.Nonce, Holder: f.holder, PreviousEpoch: found.Epoch, Reason: t.reason}, nil
}

func (f *Fence) prepare(o Options) {
	if o.Step == nil {
		o.Step = func(string) {}
	}
	host, _ := os.Hostname() // "" is told as it is
	f.o, f.holder = o, fmt.Sprintf("%s pid %d", cmp.Or(host, "a host without a name"), os.Getpid())
	f.o.Database.Holder = f.holder
}

func (f *Fence) take(ctx context.Context) (t taking, row pgexec.FenceRow, err error) {
	asking, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	rows, err := f.open(asking)
	if err != nil {
		return t, row, err
	}
	begun, err := readTaking(f.o.Path, f.o.LogID)
	if err != nil {
		return t, row, err
	}
	if begun.to == f.o.Known {
		begun = taking{} // it came to its end
	}
	own := rows[len(rows)-1]
	if err := f.mayGoOn(asking, &own, &begun); err != nil {
		return t, own.row, err
	}
	wait := own.found && !own.row.Released
	for i := range rows[:len(rows)-1] {
		old := &rows[i]
		next := rows[i+1].id
		if old.row.FollowedBy != next && old.row.FollowedBy != [16]byte{} {
			return t, own.row, fmt.Errorf("%w: log %x, which it follows, is followed by log %x already (%s), from another copy. Only one of them can go on. `gate log fence take --reason REASON` has this one go on; see to it that no gate goes on with the other",
				ErrBehind, old.id, old.row.FollowedBy, byWhom(&old.row))
		}
		wait = wait || old.found && !old.row.Released
	}
	if wait {
		f.o.Logger.Warn("whoever had the log's fence last did not give it back; this start waits until it has stopped for certain", "source", "fence", "holder", own.row.Holder, "last_seen", event.Timestamp(own.row.ConfirmedAt), "wait", Wait.String())
		select {
		case <-ctx.Done():
			return t, own.row, ctx.Err()
		case <-time.After(Wait):
		}
	}
	t = taking{logID: f.o.LogID, from: own.row.FenceMark, to: pgexec.FenceMark{Epoch: max(own.row.Epoch, f.o.Known.Epoch) + 1, Nonce: newNonce()}, reason: begun.reason}
	taken := &pgexec.FenceRow{FenceMark: t.to, Holder: f.holder}
	taken.HeadSeq, taken.HeadHash = f.o.Head()
	if err := f.change(ctx, rows, &t, taken); err != nil {
		return t, own.row, err
	}
	f.had, f.hadSeq = [2][32]byte{taken.HeadHash, taken.HeadHash}, taken.HeadSeq
	return t, own.row, nil
}

// change writes the file, ends the logs before this one, and puts taken into the row.
func (f *Fence) change(ctx context.Context, rows []state, t *taking, taken *pgexec.FenceRow) error {
	f.o.Step("fence.before_file")
	if err := t.write(f.o.Path); err != nil {
		return fmt.Errorf("what is about to be taken can't be written to %s: %w", f.o.Path, err)
	}
	f.o.Step("fence.filed")
	ctx, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	for i := range rows[:len(rows)-1] {
		old, next := &rows[i], rows[i+1].id
		if old.row.FollowedBy == next {
			continue
		}
		ended := old.row
		ended.FenceMark, ended.Holder, ended.Released, ended.FollowedBy = pgexec.FenceMark{Epoch: old.row.Epoch + 1, Nonce: newNonce()}, f.holder, true, next
		if err := f.put(ctx, old, &ended); err != nil {
			return err
		}
	}
	sent := sinceBoot()
	if err := f.put(ctx, &rows[len(rows)-1], taken); err != nil {
		return err
	}
	f.confirmed.Store(int64(sent))
	f.o.Step("fence.taken")
	return nil
}

func (f *Fence) put(ctx context.Context, at *state, to *pgexec.FenceRow) error {
	took, err := f.session.Take(ctx, at.id, at.row.FenceMark, to)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDatabase, err)
	}
	if !took {
		return fmt.Errorf("%w: the table has something else of log %x than a moment ago. Start again", ErrHeld, at.id)
	}
	return nil
}

// A state is what the table has of one log.
type state struct {
	id    [16]byte
	row   pgexec.FenceRow
	found bool
}

// open makes the session, takes the locks of this log and of those before it, and reads their
// rows; that of this log is the last one.
func (f *Fence) open(ctx context.Context) (rows []state, err error) {
	if f.session, err = f.o.Database.Open(ctx); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDatabase, err)
	}
	f.system, f.database = f.session.System, f.session.Database
	if f.o.Allowed != nil {
		if err := f.o.Allowed(f.session.System, f.session.Database); err != nil {
			return nil, err
		}
	}
	for _, id := range append(slices.Clone(f.o.Before), f.o.LogID) {
		got, by, err := f.session.Lock(ctx, id)
		for end := time.Now().Add(ending); err == nil && !got && time.Now().Before(end); got, by, err = f.session.Lock(ctx, id) {
			time.Sleep(ending / 20)
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrDatabase, err)
		}
		row, found, rowErr := f.session.Row(ctx, id)
		if rowErr != nil {
			return nil, fmt.Errorf("%w: %w", ErrDatabase, rowErr)
		}
		if !got {
			return nil, f.heldBy(id, by, &row)
		}
		rows = append(rows, state{id, row, found})
	}
	f.locked = true
	return rows, nil
}

func (f *Fence) heldBy(id [16]byte, by string, row *pgexec.FenceRow) error {
	which := fmt.Sprintf("the fence of log %x", id)
	if id != f.o.LogID {
		which += ", which this log follows,"
	}
	if row.Epoch != 0 {
		by += fmt.Sprintf("; the table has epoch %d, %s", row.Epoch, byWhom(row))
	}
	return fmt.Errorf("%w: %s is held by %s. Stop that gate if this one is to go on, and start again. A gate that was killed, or is cut off, has its session ended within half a minute", ErrHeld, which, by)
}

func byWhom(row *pgexec.FenceRow) string {
	return fmt.Sprintf("taken by %s at %s", row.Holder, event.Timestamp(row.TakenAt))
}

const goOn = "Find out which copy goes on. If it is the other one, leave this one stopped; if it is this one (what the other one recorded is then lost to it), stop the other for good and run `gate log fence take --reason REASON`"

// mayGoOn holds what the table has against what this copy knows.
func (f *Fence) mayGoOn(ctx context.Context, own *state, begun *taking) error {
	row, known := &own.row, f.o.Known
	counts := begun.logID == f.o.LogID
	knows := fmt.Sprintf("its newest epoch is %d", known.Epoch)
	if known.Epoch == 0 {
		knows = "it knows no epoch"
	}
	switch {
	case row.FollowedBy != [16]byte{}:
		return fmt.Errorf("%w: log %x follows it (%s), so nothing is written to this one any more. Where that was a mistake, stop the gate of that log for good and run `gate log fence take --reason REASON`", ErrBehind, row.FollowedBy, byWhom(row))
	case counts && row.FenceMark == begun.from && begun.reason != "":
		return nil // an operator said so
	case row.FenceMark == known, counts && (row.FenceMark == begun.from || row.FenceMark == begun.to):
	case !own.found:
		return fmt.Errorf("%w: %s, and the table knows nothing of log %x: it is another table, or an empty one, or it was put back. %s", ErrBehind, knows, f.o.LogID, goOn)
	case row.Epoch < known.Epoch:
		return fmt.Errorf("%w: %s, and the table has %d (%s): the table was put back, or a failover lost its last change, so nobody can tell from it what another copy did. %s", ErrBehind, knows, row.Epoch, byWhom(row), goOn)
	default:
		return fmt.Errorf("%w: %s, and the table has %d (%s): another copy of this log was written after this one was made. %s", ErrBehind, knows, row.Epoch, byWhom(row), goOn)
	}
	if !f.has(ctx, row) {
		seq, _ := f.o.Head()
		return fmt.Errorf("%w: the table has epoch %d as it has, but event %d of that log has the hash %x, and this copy, which ends with event %d, has no such event: it was made earlier, or put back. %s", ErrBehind, row.Epoch, row.HeadSeq, row.HeadHash, seq, goOn)
	}
	return nil
}

// has tells whether this copy has the event that the table has as the end of the log.
func (f *Fence) has(ctx context.Context, row *pgexec.FenceRow) bool {
	hash, err := f.o.At(ctx, row.HeadSeq)
	return row.HeadSeq == 0 || err == nil && hash == row.HeadHash
}

// Recorded says that the event of Take is durable.
func (f *Fence) Recorded() {
	if err := os.Remove(f.o.Path); err != nil { // it says what the log says by now, and is not believed
		f.o.Logger.Warn("the file that says how far the start came with the fence can't be removed", "source", "fence", "error", err)
	}
}

// hangUp ends the session, and with it the lock.
func (f *Fence) hangUp() {
	if f.session != nil {
		f.session.Close()
	}
	f.session, f.locked = nil, false
}

// Overruled is what an operator's decision found and left.
type Overruled struct {
	Had   pgexec.FenceRow // zero where the table had nothing of the log
	Epoch uint64
}

// Overrule has this copy go on whatever the table has, as long as nobody holds the fence.
// The next start takes the fence, and writes the reason into its chain. Errors: those of Take.
func (f *Fence) Overrule(ctx context.Context, o Options, reason string) (Overruled, error) {
	f.prepare(o)
	defer f.hangUp()
	asking, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	rows, err := f.open(asking)
	if err != nil {
		return Overruled{}, err
	}
	had := rows[len(rows)-1].row
	t := taking{logID: o.LogID, from: had.FenceMark, to: pgexec.FenceMark{Epoch: max(had.Epoch, o.Known.Epoch) + 1, Nonce: newNonce()}, reason: reason}
	// Not released: where somebody writes who is cut off, the start has to wait for it.
	err = f.change(ctx, rows, &t, &pgexec.FenceRow{FenceMark: t.to, Holder: "an operator at " + f.holder})
	return Overruled{had, t.to.Epoch}, err
}

// Start has the fence confirmed until Release.
func (f *Fence) Start(ctx context.Context) {
	ctx, f.end = context.WithCancel(ctx)
	f.keeping.Go(func() { f.keep(ctx) })
}

// keep confirms the fence until ctx ends or another copy has taken it.
func (f *Fence) keep(ctx context.Context) {
	every := time.NewTicker(Every)
	defer every.Stop()
	for f.lost.Load() == nil {
		select {
		case <-ctx.Done():
			return
		case <-every.C:
		}
		f.said(f.confirm(ctx, false))
	}
	f.hangUp()
}

// said tells in the log what changed.
func (f *Fence) said(err error) {
	switch lapsed := f.Check(); {
	case f.lost.Load() != nil:
		f.o.Logger.Error("another copy of this event log goes on, so this gate writes nothing any more and only answers reads. Stop it", "source", "fence", "cause", (*f.lost.Load()).Error())
	case err == nil && f.trouble != "":
		f.trouble = ""
		f.o.Logger.Info("the log's fence is confirmed again", "source", "fence", "epoch", f.mark.Epoch)
	case err != nil && lapsed != nil && f.trouble != err.Error()+lapsedToo:
		f.trouble = err.Error() + lapsedToo
		f.o.Logger.Error("the log's fence was not confirmed in time, so nothing is executed or recorded until it is", "source", "fence", "cause", err.Error())
	case err != nil && lapsed == nil && f.trouble == "":
		f.trouble = err.Error()
		f.o.Logger.Warn("the log's fence can't be confirmed; the gate goes on for a few seconds", "source", "fence", "cause", err.Error())
	}
}

const lapsedToo = " (lapsed)"

// confirm asks once, in a new session where the last one broke. released is the last
// question of a holder.
func (f *Fence) confirm(ctx context.Context, released bool) (err error) {
	ctx, cancel := context.WithTimeout(ctx, Answer)
	defer cancel()
	defer func() {
		if err != nil && !errors.Is(err, ErrHeld) {
			f.hangUp()
		}
	}()
	if f.session == nil {
		if f.session, err = f.o.Database.Open(ctx); err != nil {
			return err
		}
	}
	if !f.locked {
		got, by, err := f.session.Lock(ctx, f.o.LogID)
		if err != nil {
			return err
		}
		if !got {
			return f.sortOut(ctx, fmt.Errorf("%w: the fence's lock is held by %s", ErrHeld, by))
		}
		f.locked = true
	}
	if f.had[0] == f.had[1] { // else what was sent last may be in the table, or not
		f.hadSeq, f.had[1] = f.o.Head()
	}
	sent := sinceBoot()
	confirmed, err := f.session.Confirm(ctx, f.o.LogID, f.mark, f.had, f.hadSeq, f.had[1], released)
	if err != nil {
		return err
	}
	if !confirmed {
		return f.sortOut(ctx, errors.New("the session has lost the fence's lock"))
	}
	f.had[0] = f.had[1]
	f.confirmed.Store(int64(sent))
	return nil
}

// sortOut finds out whether another copy has taken the row; else why stands.
func (f *Fence) sortOut(ctx context.Context, why error) error {
	row, found, err := f.session.Row(ctx, f.o.LogID)
	if err != nil {
		return err
	}
	gone := ""
	switch {
	case !found:
		gone = fmt.Sprintf("the table knows nothing of log %x any more", f.o.LogID)
	case row.FollowedBy != [16]byte{}:
		gone = fmt.Sprintf("log %x follows it, %s", row.FollowedBy, byWhom(&row))
	case row.FenceMark != f.mark:
		gone = fmt.Sprintf("this gate has epoch %d, and the table has %d, %s", f.mark.Epoch, row.Epoch, byWhom(&row))
	case slices.Contains(f.had[:], row.HeadHash):
		return why
	case f.has(ctx, &row): // a failover lost the last confirmations, and no more than that
		f.had[0] = row.HeadHash
		return errors.New("the table has an earlier confirmation than it gave")
	default:
		gone = "another process that took the same epoch has written event " + fmt.Sprint(row.HeadSeq) + " with the hash " + hex.EncodeToString(row.HeadHash[:]) + ": this one is a copy of it, or it of this one"
	}
	lost := fmt.Errorf("%w: %s", eventlog.ErrFenceLost, gone)
	f.lost.Store(&lost)
	return lost
}

// Release ends Start and the session. back gives the fence back: nothing is written any more, and
// all that was is in the log.
func (f *Fence) Release(back bool) {
	if f.end != nil {
		f.end()
		f.keeping.Wait()
	}
	if back && f.mark.Epoch != 0 && f.lost.Load() == nil {
		err := f.confirm(context.Background(), false) // settles what was sent last
		if err == nil {
			err = f.confirm(context.Background(), true)
		}
		if err != nil {
			f.o.Logger.Warn("the log's fence could not be given back, so the next start waits", "source", "fence", "wait", Wait.String(), "cause", err.Error())
		}
	}
	f.hangUp()
}
