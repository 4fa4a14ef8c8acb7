package checkpoints

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"writegate/eventlog"
	"writegate/eventlog/checkpoint"
	"writegate/eventlog/event"
	"writegate/eventlog/frame"
	"writegate/projections"
)

// A vouched is how many events a witness knows, the root that the log's own
// files make of so many, and the hash of the last one.
type vouched struct {
	witness string
	size    uint64
	root    checkpoint.Hash
	hash    [32]byte
	at      time.Time
}

// ask holds the log whose files are set against each witness that this process has not
// heard yet. It believes nothing but the files: neither checkpoints nor projections, which
// whoever puts a host back can put there too. Each witness says by its answer to an empty
// checkpoint how many events it knows, and is then offered the same number of this log's, so that none
// comes to know of more. One that gives no answer is a doubt. One that comes to know more
// events again and again while this gate offers it none accuses the log: another gate goes
// on under its name, so one of the two is a copy. The error is that of ctx.
func (k *Keeper) ask(ctx context.Context, set *frame.Set) (said []string, err error) {
	told := map[int]uint64{} // what those that have moved said at last
	for n := range asksOfWitness {
		more, err := k.askOnce(ctx, set, told, n == asksOfWitness-1)
		if said = append(said, more...); err != nil || len(told) == 0 {
			return said, err
		}
	}
	return said, nil
}

// asksOfWitness is how often one is asked that has come to know more events between its
// two answers. Once may be an offer of the process before this one, which came late, and
// once its first answer may have been an old one.
const asksOfWitness = 3

// A movedError says that a witness has come to know more events since it was asked.
type movedError struct{ seen uint64 }

func (e *movedError) Error() string {
	return fmt.Sprintf("%v: it has come to know more events since it was asked, %d", checkpoint.ErrWitness, e.seen)
}

func (e *movedError) Unwrap() error { return checkpoint.ErrWitness }

var errAnotherGate = fmt.Errorf("%w: another gate goes on signing under the name of this log", checkpoint.ErrRewritten)

// askOnce asks each once: one that has moved is offered what it told by that, and not
// asked anew. At the last time it accuses.
func (k *Keeper) askOnce(ctx context.Context, set *frame.Set, told map[int]uint64, last bool) (said []string, err error) {
	h, err := set.Genesis()
	if err != nil || k.o.Key == nil {
		return nil, nil // the verification names what is wrong with a header
	}
	which := k.unheard()
	if len(told) > 0 {
		which = slices.DeleteFunc(which, func(i int) bool { return told[i] == 0 })
	}
	if len(which) == 0 {
		return nil, nil
	}
	tree := checkpoint.NewSparse()
	signer, err := checkpoint.NewSigner(h.Origin, k.o.Key)
	if err != nil {
		return []string{"the witnesses can't be asked: " + err.Error()}, nil
	}
	empty, err := signer.Sign(tree, 0, nil)
	if err != nil {
		return []string{"the witnesses can't be asked: " + err.Error()}, nil
	}
	sizes, hashes := make([]uint64, len(k.o.Witnesses)), map[uint64][32]byte{}
	for i, err := range k.seen(ctx, which, empty, sizes, told) {
		if err == nil && sizes[i] > 0 {
			err = planRoot(tree, sizes[i])
		}
		if err != nil || sizes[i] == 0 {
			sizes[i] = 0
			k.settle(i, 0, err)
		}
	}
	clear(told)
	if slices.Max(sizes) == 0 {
		return nil, ctx.Err()
	}
	for seq, hash := range set.Hashes(ctx, slices.Max(sizes)) {
		if tree.Add(seq, hash) != nil {
			break // the first segments are not there: the verification says so
		}
		if slices.Contains(sizes, seq) {
			hashes[seq] = hash
		}
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	for i, size := range sizes {
		if size == 0 {
			continue
		}
		err := k.compare(ctx, i, size, tree, signer)
		var conflict *checkpoint.Conflict
		if errors.As(err, &conflict) && k.o.Stopped {
			of, earlierErr := k.ofEarlier(ctx, set, i, size, signer)
			if earlierErr != nil {
				return nil, earlierErr
			}
			if of != "" {
				said = append(said, fmt.Sprintf("the witness %s knows %d events of %q, which are those of log %s before this one: give each log an origin of its own", conflict.Witness, conflict.Seen, h.Origin, of))
				err, size = nil, 0
			}
		}
		if root, failed := checkpoint.RootAt(tree, size); err == nil && size > 0 && failed == nil {
			k.mu.Lock()
			k.vouched = append(k.vouched, vouched{k.o.Witnesses[i].URL(), size, root, hashes[size], k.o.Now()})
			k.mu.Unlock()
		}
		if m := (*movedError)(nil); errors.As(err, &m) {
			if told[i] = m.seen; last {
				err = &checkpoint.Conflict{Witness: k.o.Witnesses[i].URL(), Offered: size, Seen: m.seen, Err: errAnotherGate}
			}
		}
		k.settle(i, size, err)
	}
	return said, ctx.Err()
}

// unheard are the witnesses that have not told this process what they know.
func (k *Keeper) unheard() (which []int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i, a := range k.asked {
		if !a.heard {
			which = append(which, i)
		}
	}
	return which
}

// seen asks witnesses at once how many events they know, but those that have told it.
func (k *Keeper) seen(ctx context.Context, which []int, empty *checkpoint.Note, sizes []uint64, told map[int]uint64) map[int]error {
	errs := make([]error, len(which))
	var all sync.WaitGroup
	for n, i := range which {
		if sizes[i] = told[i]; sizes[i] > 0 {
			continue
		}
		all.Go(func() { sizes[i], errs[n] = k.o.Witnesses[i].Seen(ctx, empty) })
	}
	all.Wait()
	of := make(map[int]error, len(which))
	for n, i := range which {
		of[i] = errs[n]
	}
	return of
}

// planRoot has a tree keep what its root at so many events takes.
func planRoot(tree *checkpoint.Sparse, size uint64) error {
	return tree.Plan(func(r checkpoint.Reader) error {
		_, err := checkpoint.RootAt(r, size)
		return err
	})
}

// ofEarlier names the log before that of set that has the
// events which a witness knows; "" where none of those that can be read has. What a
// log says of an earlier one proves nothing by itself: whoever writes a log anew can
// invent one. An error is that of ctx.
func (k *Keeper) ofEarlier(ctx context.Context, set *frame.Set, i int, size uint64, signer *checkpoint.Signer) (string, error) {
	var first event.Envelope
	for f, err := range set.Frames(ctx, 1) {
		if err != nil {
			break
		}
		if d, failed := event.Decode(f.Record); failed == nil {
			first.Draft = d
		}
	}
	all, _ := eventlog.Ancestors(ctx, frame.OS{}, set.Path, func(yield func(event.Envelope, error) bool) { yield(first, nil) })
	for _, a := range all {
		tree := checkpoint.NewSparse()
		if err := planRoot(tree, size); err != nil {
			return "", err
		}
		for e, err := range a.Events(ctx) {
			if err != nil || e.Seq > size || tree.Add(e.Seq, e.Hash) != nil {
				break
			}
		}
		if tree.Size() == size && k.compare(ctx, i, size, tree, signer) == nil {
			return hex.EncodeToString(a.LogID[:]), nil
		}
	}
	return "", ctx.Err()
}

// compare offers a witness the events that it knows, as a log has them.
func (k *Keeper) compare(ctx context.Context, i int, size uint64, tree *checkpoint.Sparse, signer *checkpoint.Signer) error {
	w := k.o.Witnesses[i]
	if size > tree.Size() {
		return &checkpoint.Conflict{Witness: w.URL(), Offered: tree.Size(), Seen: size, Err: checkpoint.ErrBeyondEnd}
	}
	n, err := signer.Sign(tree, size, nil)
	if err != nil {
		return err
	}
	_, err = w.Cosign(ctx, tree, n)
	if conflict := (*checkpoint.Conflict)(nil); errors.As(err, &conflict) && conflict.Seen > size {
		return &movedError{conflict.Seen} // whether that is more than the log has, the next answer shows
	}
	return err
}

// askLive asks the witnesses that were out of reach while the log was opened. k.offering is held.
func (k *Keeper) askLive(ctx context.Context) {
	k.mu.Lock()
	compared := k.compared == len(k.vouched)
	k.mu.Unlock()
	asks := len(k.unheard()) > 0
	if k.o.Key == nil || !asks && compared || k.log.Serving() != nil {
		return
	}
	var err error
	if asks {
		set, failed := k.log.Files()
		if failed != nil {
			_ = k.failed(failed) // it is in Status
			return
		}
		var said []string
		said, err = k.ask(ctx, &set)
		for _, s := range said {
			k.o.Logger.Warn(s, "source", "checkpoints")
		}
		err = errors.Join(err, set.Close())
	}
	if err == nil && k.log.Serving() == nil {
		err = k.store.WaitApplied(ctx, k.log.Head().Seq)
	}
	if err == nil && k.log.Serving() == nil {
		view := k.store.View()
		err = errors.Join(k.sameTree(view), view.Close())
	}
	if err != nil && ctx.Err() == nil {
		_ = k.failed(err)
	}
}

// ErrOtherTree says that the projections' hashes of events are not the log's.
var ErrOtherTree = errors.New("the projections hold hashes of other events than the log")

// sameTree holds the tree of the projections, of which checkpoints and proofs are made,
// against the log as it was read when the witnesses were asked. A tree of other events
// is signed no more.
func (k *Keeper) sameTree(view *projections.View) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, v := range k.vouched {
		if root, err := checkpoint.RootAt(view.Tree(), v.size); err != nil || root != v.root {
			k.stuck, k.otherTree = true, true
			return errors.Join(fmt.Errorf("%w, up to event %d", ErrOtherTree, v.size), err)
		}
	}
	k.compared = len(k.vouched)
	return nil
}
