package checkpoints

import (
	"context"
	"encoding/hex"
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
	_, errs := checkpoint.Offer(ctx, k.o.Witnesses, tree, empty, empty)
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
	var first event.Envelope
	for f, err := range set.Frames(ctx, slices.Max(sizes)) {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil || tree.Add(f.Seq, f.Hash) != nil {
			break // damage: the verification says where and what
		}
		if d, err := event.Decode(f.Record); f.Seq == 1 && err == nil {
			first.Draft = d
		}
	}
	for i, size := range sizes {
		if size == 0 {
			continue
		}
		err := k.compare(ctx, i, size, tree, tree.Size(), signer)
		var conflict *checkpoint.Conflict
		if errors.As(err, &conflict) {
			of, earlierErr := k.ofEarlier(ctx, set.Path, first, i, size, signer)
			if earlierErr != nil {
				return nil, earlierErr
			}
			if of != "" {
				said = append(said, fmt.Sprintf("the witness %s knows %d events of %q, which are those of log %s before this one: give each log an origin of its own", conflict.Witness, conflict.Seen, h.Origin, of))
				err, size = nil, 0
			}
		}
		k.settle(i, size, err)
	}
	return said, ctx.Err()
}

// ofEarlier names the log before this one, whose first event is given, that has the
// events which a witness knows; "" where none of those that can be read has. What a
// log says of an earlier one proves nothing by itself: whoever writes a log anew can
// invent one. An error is that of ctx.
func (k *Keeper) ofEarlier(ctx context.Context, path string, first event.Envelope, i int, size uint64, signer *checkpoint.Signer) (string, error) {
	all, _ := eventlog.Ancestors(ctx, frame.OS{}, path, func(yield func(event.Envelope, error) bool) { yield(first, nil) })
	for _, a := range all {
		tree := checkpoint.NewSparse()
		if err := tree.Plan(func(r checkpoint.Reader) error {
			_, err := checkpoint.RootAt(r, size)
			return err
		}); err != nil {
			return "", err
		}
		for e, err := range a.Events(ctx) {
			if err != nil || e.Seq > size || tree.Add(e.Seq, e.Hash) != nil {
				break
			}
		}
		if tree.Size() == size && k.compare(ctx, i, size, tree, size, signer) == nil {
			return hex.EncodeToString(a.LogID[:]), nil
		}
	}
	return "", ctx.Err()
}

// compare offers a witness the events that it knows, as this log of so many events has them.
func (k *Keeper) compare(ctx context.Context, i int, size uint64, tree checkpoint.Reader, events uint64, signer *checkpoint.Signer) error {
	w := k.o.Witnesses[i]
	if size > events {
		return &checkpoint.Conflict{Witness: w.URL(), Offered: events, Seen: size, Err: checkpoint.ErrBeyondEnd}
	}
	n, err := signer.Sign(tree, size, nil)
	if err != nil {
		return err
	}
	_, err = w.Cosign(ctx, tree, n)
	return err
}
