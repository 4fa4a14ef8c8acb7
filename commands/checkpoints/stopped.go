package checkpoints

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"writegate/eventlog"
	"writegate/eventlog/checkpoint"
	"writegate/eventlog/event"
	"writegate/eventlog/frame"
)

// stopped are the papers of a log that no gate has open, and its witnesses, who are
// asked when the log is looked at.
type stopped struct {
	*papers
	keeper *Keeper
}

// Stopped is Papers for a log that no gate has open, so that nobody has asked the
// witnesses. They are asked under the origin in the log's header, and none of them
// comes to know of more events by it. One that gives no answer is a warning.
func (k *Keeper) Stopped(whole bool) (eventlog.Outside, error) {
	known, err := k.Papers(whole)
	if err != nil {
		return nil, err
	}
	return &stopped{known.(*papers), k}, nil
}

// Anchors implements eventlog.Outside.
func (s *stopped) Anchors(ctx context.Context, set *frame.Set) ([]frame.Anchor, []string, error) {
	k := s.keeper
	said, err := k.ask(ctx, set)
	if err != nil {
		return nil, nil, err
	}
	k.mu.Lock()
	s.accused = slices.Clone(k.accused)
	k.mu.Unlock()
	s.doubts = k.doubts()
	anchors, warnings, err := s.papers.Anchors(ctx, set)
	return anchors, slices.Concat(warnings, said, s.doubts), err
}

// ask holds the log of a set against the witnesses. An error is that of ctx.
func (k *Keeper) ask(ctx context.Context, set *frame.Set) (said []string, err error) {
	h, err := set.Genesis()
	if err != nil || k.o.Key == nil || len(k.o.Witnesses) == 0 {
		return nil, nil // the verification names what is wrong with a header
	}
	signer, err := checkpoint.NewSigner(h.Origin, k.o.Key)
	if err != nil {
		return []string{"the witnesses can't be asked: " + err.Error()}, nil
	}
	tree := checkpoint.NewSparse()
	empty, err := signer.Sign(tree, 0, nil)
	if err != nil {
		return []string{"the witnesses can't be asked: " + err.Error()}, nil
	}
	// Each says by its answer to an empty checkpoint how much it knows.
	sizes := make([]uint64, len(k.o.Witnesses))
	_, errs := checkpoint.Offer(ctx, k.o.Witnesses, tree, empty)
	for i, err := range errs {
		var conflict *checkpoint.Conflict
		if !errors.As(err, &conflict) {
			k.settle(i, 0, err)
			continue
		}
		sizes[i] = conflict.Seen
		if err := tree.Plan(func(r checkpoint.Reader) error {
			_, err := checkpoint.RootAt(r, conflict.Seen)
			return err
		}); err != nil {
			return nil, err
		}
	}
	if slices.Max(sizes) == 0 {
		return nil, ctx.Err()
	}
	shared := false // with the log before it
	for f, err := range set.Frames(ctx, slices.Max(sizes)) {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil || tree.Add(f.Seq, f.Hash) != nil {
			break // damage: the verification says where and what
		}
		if f.Seq == 1 {
			shared = sharesOrigin(set, h.Origin, f.Record)
		}
	}
	for i, size := range sizes {
		if size == 0 {
			continue
		}
		err := k.compare(ctx, i, size, tree, signer)
		var conflict *checkpoint.Conflict
		if shared && errors.As(err, &conflict) {
			said = append(said, fmt.Sprintf("the witness %s knows %d events of %q, which are not this log's; the log before it has the same origin, so they may be of that one", conflict.Witness, conflict.Seen, h.Origin))
			err, size = nil, 0
		}
		k.settle(i, size, err)
	}
	return said, ctx.Err()
}

// compare offers a witness the events that it knows, as this log has them.
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
	return err
}

// sharesOrigin tells whether a log follows another one under its own origin, or under
// one that can't be read: then a witness may be speaking of that one.
func sharesOrigin(set *frame.Set, origin string, first []byte) bool {
	d, err := event.Decode(first)
	var start event.Startup
	if err != nil || d.Type != event.TypeStartup || d.Parse(&start) != nil || start.Predecessor == nil {
		return false
	}
	w, err := frame.OS{}.RealPath(set.Path)
	if err != nil {
		return true
	}
	f, err := frame.OS{}.Open(eventlog.RetiredLog(w, start.Predecessor.LogID), frame.ReadOnly)
	if err != nil {
		return true
	}
	defer f.Close()
	b := make([]byte, frame.HeaderSize)
	if n, err := f.Pread(b, 0); err != nil && n < len(b) {
		return true
	}
	h, err := frame.ParseHeader(b)
	return err != nil || h.Origin == origin
}
