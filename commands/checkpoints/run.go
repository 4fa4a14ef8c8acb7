package checkpoints

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"writegate/eventlog/checkpoint"
	"writegate/eventlog/event"
	"writegate/eventlog/frame"
	"writegate/projections"
)

// retryAfter is how long a checkpoint that failed is not tried again.
const retryAfter = 5 * time.Second

// Run signs checkpoints when they are due and offers them to the witnesses,
// until ctx ends. A slow witness holds no checkpoint up.
func (k *Keeper) Run(ctx context.Context) {
	if k.signer == nil {
		return
	}
	var both sync.WaitGroup
	if k.can() {
		both.Go(func() { k.keepSigning(ctx) })
	}
	both.Go(func() { k.keepOffering(ctx) })
	both.Wait()
	k.digests.Wait()
}

func (k *Keeper) keepSigning(ctx context.Context) {
	tick := time.NewTicker(atMost)
	defer tick.Stop()
	var notBefore time.Time
	for {
		wanted := false
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-k.wanted:
			wanted = k.rest(ctx) && k.lags()
		}
		if now := k.o.Now(); !wanted && (!k.due(now) || now.Before(notBefore)) {
			continue
		}
		if _, err := k.checkpoint(ctx); err != nil {
			notBefore = k.o.Now().Add(retryAfter)
		}
	}
}

// rest waits until the next checkpoint may be made; false when ctx ended first.
func (k *Keeper) rest(ctx context.Context) bool {
	k.mu.Lock()
	wait := atMost - k.o.Now().Sub(k.signedAt)
	k.mu.Unlock()
	timer := time.NewTimer(min(wait, atMost)) // a clock that goes back must not make it longer
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// lags tells whether the newest checkpoint is smaller than somebody waited for:
// a wish may have been met by the one before.
func (k *Keeper) lags() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.newest == nil || k.newest.Size < k.want
}

// due tells whether there are events to vouch for, and enough of them or for
// long enough. An event that names a checkpoint is no reason for another one.
func (k *Keeper) due(now time.Time) bool {
	head := k.log.Head().Seq
	k.mu.Lock()
	defer k.mu.Unlock()
	vouched := uint64(len(k.named))
	if k.newest != nil {
		vouched += k.newest.Size
	}
	return head > vouched && (head-vouched >= k.o.EveryEvents || now.Sub(k.signedAt) >= k.o.Every) && k.log.Serving() == nil
}

// keepOffering offers each new note, and the newest one again to those who did
// not cosign it. Who was out of reach until now is asked first what it knows.
func (k *Keeper) keepOffering(ctx context.Context) {
	if len(k.o.Witnesses) == 0 {
		return
	}
	again := time.NewTicker(k.o.Every)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.news:
		case <-again.C:
		}
		n := k.known()
		if k.log.Serving() != nil || len(k.unheard()) == 0 && (n == nil || !k.lacks(n.Size)) {
			continue
		}
		k.offering.Lock()
		k.askLive(ctx)
		k.offering.Unlock()
		if n == nil || k.log.Serving() != nil {
			continue
		}
		view := k.store.View()
		k.offer(ctx, view, n)
		if err := view.Close(); err != nil {
			k.o.Logger.Error("a view of the projections can't be closed", "source", "checkpoints", "cause", err.Error())
		}
	}
}

func (k *Keeper) lacks(size uint64) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, a := range k.asked {
		if a.size < size {
			return true
		}
	}
	return false
}

// offer asks the witnesses that have not cosigned n, keeps what they add, and
// accuses the log where one of them contradicts it. One of which nobody knows what it knows
// is not offered anything: the tree that is offered is that of the projections.
func (k *Keeper) offer(ctx context.Context, view *projections.View, n *checkpoint.Note) {
	k.offering.Lock()
	defer k.offering.Unlock()
	var which []int
	var witnesses []*checkpoint.Witness
	k.mu.Lock()
	for i, a := range k.asked {
		if a.heard && a.size < n.Size && !k.otherTree {
			which, witnesses = append(which, i), append(witnesses, k.o.Witnesses[i])
		}
	}
	k.mu.Unlock()
	if len(witnesses) == 0 {
		return
	}
	// Signed anew: n lies where others may have written, and may be signed by an earlier key.
	asked, err := k.signer.Sign(view.Tree(), n.Size, nil)
	if err != nil {
		_ = k.failed(err) // it is in Status
		return
	}
	cosigned, errs := checkpoint.Offer(ctx, witnesses, view.Tree(), asked, n)
	k.o.Step("checkpoint.offered")
	if err := k.keep(n, cosigned); err != nil {
		k.o.Logger.Error("cosignatures of a checkpoint can't be kept", "source", "checkpoints", "size", n.Size, "cause", err.Error())
	}
	for i, err := range errs {
		k.settle(which[i], n.Size, err)
	}
}

// keep stores a note that has gained cosignatures.
func (k *Keeper) keep(n, cosigned *checkpoint.Note) error {
	if len(cosigned.Raw) == len(n.Raw) {
		return nil
	}
	k.signing.Lock()
	defer k.signing.Unlock()
	if err := k.o.Folder.Store(k.log.SegmentOf(n.Size), cosigned); err != nil {
		return err
	}
	k.o.Step("checkpoint.cosigned")
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.newest.Size == n.Size {
		k.newest = cosigned
	}
	return nil
}

// settle notes what came of an offer.
func (k *Keeper) settle(i int, size uint64, err error) {
	var conflict *checkpoint.Conflict
	accuses := errors.As(err, &conflict)
	k.mu.Lock()
	a := &k.asked[i]
	known := a.err != nil
	if a.at, a.err = k.o.Now(), err; err == nil {
		a.size, a.heard = size, true
	}
	if accuses {
		beyond := errors.Is(err, checkpoint.ErrBeyondEnd)
		k.accused = append(k.accused, frame.Anchor{Level: frame.L4, Seq: conflict.Seen, Time: a.at, NoHash: beyond, OtherRoot: !beyond, Source: "witness " + conflict.Witness})
	}
	k.mu.Unlock()
	switch {
	case accuses && errors.Is(err, checkpoint.ErrBeyondEnd):
		k.accuse(frame.AnchorBeyondEnd, conflict.Seen, err)
	case accuses:
		k.accuse(frame.HistoryRewritten, conflict.Seen, err)
	case err != nil && !known: // once, not each minute
		k.o.Logger.Warn("a witness gave no cosignature", "source", "checkpoints", "witness", k.o.Witnesses[i].URL(), "size", size, "cause", err.Error())
	}
}

// lastOffer is how long witnesses may hold up a clean end.
const lastOffer = 3 * time.Second

// Last has the end of a clean run vouched for, after Run has ended and the last
// event is written. Its event is written by the next
// start, because nothing comes after shutdown.
func (k *Keeper) Last(ctx context.Context) {
	if !k.can() || k.log.Serving() != nil {
		return
	}
	view := k.store.View()
	defer view.Close()
	k.signing.Lock()
	n, err := k.make(view)
	k.signing.Unlock()
	if err != nil {
		return // it was logged, and the next start signs
	}
	ctx, cancel := context.WithTimeout(ctx, k.o.LastOffer)
	defer cancel()
	k.offer(ctx, view, n)
}

// A Status is how the checkpoints stand.
type Status struct {
	Size      uint64    // of the newest one; 0 = there is none
	SignedAt  time.Time // zero: an earlier process has signed it
	Failure   string    // why there is no newer one; "" where nothing is wrong
	Witnesses []WitnessStatus
}

// A WitnessStatus is what came of the last offer to a witness.
type WitnessStatus struct {
	URL      string
	Size     uint64    // largest one that it cosigned for this process; 0 = none
	AskedAt  time.Time // zero: not yet
	Conflict bool      // it contradicts the log
	Message  string    // "" where it cosigned
}

// Status tells how the checkpoints stand.
func (k *Keeper) Status() Status {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := Status{Witnesses: make([]WitnessStatus, len(k.asked))}
	if k.newest != nil {
		s.Size = k.newest.Size
	}
	if k.ours {
		s.SignedAt = k.signedAt
	}
	if k.failure != nil {
		s.Failure = k.failure.Error()
	}
	for i, a := range k.asked {
		w := WitnessStatus{URL: k.o.Witnesses[i].URL(), Size: a.size, AskedAt: a.at}
		if a.err != nil {
			var conflict *checkpoint.Conflict
			w.Conflict, w.Message = errors.As(a.err, &conflict), a.err.Error()
		}
		s.Witnesses[i] = w
	}
	return s
}

// doubts are what a report can't exclude because a witness said nothing.
func (k *Keeper) doubts() (list []string) {
	for _, w := range k.Status().Witnesses {
		switch {
		case w.AskedAt.IsZero():
			list = append(list, fmt.Sprintf("the witness %s was not asked yet", w.URL))
		case w.Message != "" && !w.Conflict:
			list = append(list, fmt.Sprintf("the witness %s gave no cosignature at %s, so what it knows is not compared", w.URL, event.Timestamp(w.AskedAt)))
		}
	}
	return list
}
