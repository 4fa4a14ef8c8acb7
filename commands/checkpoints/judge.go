package checkpoints

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"writegate/commands"
	"writegate/eventlog"
	"writegate/eventlog/checkpoint"
	"writegate/eventlog/event"
	"writegate/eventlog/evidence"
	"writegate/eventlog/frame"
	"writegate/projections"
)

// papers are the notes of a folder and what witnesses said, as they were when
// they were asked for.
type papers struct {
	evidence.Outside
	keeper *Keeper
	whole  bool
	stored []checkpoint.Stored // where whole is false: all notes, which are read as far as needed
	said   []string            // warnings
	doubts []string
}

// Papers is eventlog.Options.Outside: the notes in the folder and what witnesses
// said, or the newest note that can be read alone, which is judged without reading the log.
//
// Before Attach nobody has asked the witnesses: they are asked while the log is judged.
func (k *Keeper) Papers(whole bool) (eventlog.Outside, error) {
	list, err := k.o.Folder.List()
	if err != nil {
		return nil, err
	}
	p := &papers{keeper: k, whole: whole, stored: list}
	some := representative(list)
	if !whole {
		some = nil
	}
	for _, s := range some {
		raw, err := s.Read()
		if err != nil {
			p.said = append(p.said, fmt.Sprintf("checkpoint %s: %v", s.Path, err))
			continue
		}
		p.Notes = append(p.Notes, evidence.Paper{Name: s.Path, Text: string(raw)})
	}
	p.Keys = slices.Clone(k.o.Trusted)
	if k.o.Key != nil {
		p.Keys = append(p.Keys, k.o.Key.Public())
	}
	if left := len(list) - len(some); whole && left > 0 {
		p.doubts = append(p.doubts, fmt.Sprintf("%d of the %d checkpoints in the folder were not compared, only the newest %d and the last one of each segment; `logverify wal --checkpoint` compares those that it is given", left, len(list), judgedNotes))
	}
	if others := k.o.Folder.Others(list); whole && others > 0 {
		p.doubts = append(p.doubts, fmt.Sprintf("%d of the notes in the folder had names that no gate gives, and were not compared; `logverify wal` compares them", others))
	}
	return p, nil
}

// judgedNotes bounds the notes that a verification looks at.
const judgedNotes = 1000

// representative leaves out notes of a log that has very many: all but the
// newest ones, and the last one of each segment. Whoever signs proves each note
// against the one before, so of the notes of one gate an older one says nothing that a newer does not.
func representative(list []checkpoint.Stored) (some []checkpoint.Stored) {
	for i, s := range list {
		if i >= len(list)-judgedNotes || list[i+1].Segment != s.Segment {
			some = append(some, s)
		}
	}
	return some
}

// NotExcluded implements eventlog.Outside.
func (p *papers) NotExcluded() []string { return append(p.keeper.doubts(), p.doubts...) }

// Anchors implements eventlog.Outside.
func (p *papers) Anchors(ctx context.Context, set *frame.Set) (anchors []frame.Anchor, warnings []string, err error) {
	k := p.keeper
	k.mu.Lock()
	attached := k.log != nil
	k.mu.Unlock()
	if !attached {
		said, err := k.ask(ctx, set)
		if err != nil {
			return nil, nil, err
		}
		p.said = slices.Concat(p.said, said, k.doubts())
	}
	if p.whole {
		anchors, warnings, err = p.Outside.Anchors(ctx, set)
	} else {
		anchors = p.size(set)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, v := range k.vouched {
		anchors = append(anchors, frame.Anchor{Level: frame.L4, Seq: v.size, Hash: v.hash, Time: v.at, Source: "witness " + v.witness})
	}
	return append(anchors, k.accused...), append(warnings, p.said...), err
}

// size is an anchor that only knows how long the log is at least. A note that can't be
// read hides none before it.
func (p *papers) size(set *frame.Set) []frame.Anchor {
	h, err := set.Genesis()
	if err != nil {
		return nil // the verification names it
	}
	keys := checkpoint.Keys{Log: addKey(slices.Clone(p.Keys), h.Signer)}
	for i, s := range slices.Backward(p.stored) {
		n, err := s.Open(keys)
		switch {
		case err == nil && n.Trusted && n.Origin == h.Origin:
			return []frame.Anchor{{Level: frame.L4, Seq: n.Size, NoHash: true, Source: "checkpoint " + s.Path}}
		case err != nil:
			p.said = append(p.said, fmt.Sprintf("checkpoint %s: %v", s.Path, err))
		}
		if len(p.stored)-i == judgedNotes {
			break
		}
	}
	return nil
}

// Judge holds the newest note against a log that was opened, and offers the witnesses
// what it has beyond what they were asked about while it was opened, before anything is appended to it.
// Where they contradict it the log is accused
// and Log.Serving says so. The newest note that fits is an anchor for the
// startup event; ok is false where there is none, or where a newer one can't be read.
//
// The tree that the log's own events make lies in the projections, whose last
// event was held against the log: so the log need not be read. Error: ErrOtherTree,
// where what the witnesses know shows that it is not the log's.
func (k *Keeper) Judge(ctx context.Context) (anchor event.Anchor, ok bool, err error) {
	if k.log.Serving() != nil {
		return anchor, false, nil
	}
	view := k.store.View()
	defer view.Close()
	if err := k.sameTree(view); err != nil {
		return anchor, false, k.failed(err)
	}
	newest, err := k.findNewest(view)
	if newest != nil {
		err = cmp.Or(fits(view, newest), err)
	}
	if err != nil {
		_ = k.failed(err) // it is in Status, and accuses where it should
		return anchor, false, nil
	}
	k.newest, k.stuck, k.failure = newest, false, nil
	if newest != nil {
		k.digested = newest.Size
		anchor, ok = event.Anchor{Level: string(frame.L4), Result: frame.AnchorMatch, Seq: newest.Size}, true
	}
	if k.signer == nil || view.Tree().Size() == 0 {
		return anchor, ok, nil
	}
	if n, err := k.make(view); err == nil {
		k.offer(ctx, view, n)
	}
	return anchor, ok, nil
}

// fits holds a note against the tree.
func fits(view *projections.View, n *checkpoint.Note) error {
	if size := view.Tree().Size(); n.Size > size {
		return fmt.Errorf("%w: a checkpoint of %d events is kept, the log has %d", checkpoint.ErrBeyondEnd, n.Size, size)
	}
	root, err := checkpoint.RootAt(view.Tree(), n.Size)
	if err != nil {
		return err
	}
	if root != n.Root {
		return fmt.Errorf("%w: a checkpoint of %d events is kept that these events do not make", checkpoint.ErrRewritten, n.Size)
	}
	return nil
}

// findNewest gives the newest note that can be read and that a key of the log has signed,
// nil where there is none. One behind it that can't be read is an error beside it, and
// stops the signer: what it says could be contradicted. It hides no note before it.
func (k *Keeper) findNewest(view *projections.View) (*checkpoint.Note, error) {
	list, err := k.o.Folder.List()
	if err != nil {
		return nil, err
	}
	keys, all := k.keysAtHand(), false
	for _, s := range slices.Backward(list) {
		n, unread := s.Open(checkpoint.Keys{Log: keys})
		if unread == nil && !n.Trusted && !all {
			// It is of an earlier key, which a startup event names. They may lie anywhere
			// in the log, so they are not read without need.
			of, failed := k.keysOfStarts(view, keys)
			if failed != nil {
				return nil, failed
			}
			keys, all = of, true
			n, unread = s.Open(checkpoint.Keys{Log: keys})
		}
		switch {
		case unread != nil:
			err = cmp.Or(err, fmt.Errorf("%w; move the file away if it is damaged, and hold a copy of it against the log with `logverify wal --checkpoint`", unread))
		case n.Trusted && n.Origin == k.log.Header().Origin:
			return n, err
		}
	}
	return nil, err
}

// keysAtHand are the key that signs now and the one that the log began with.
func (k *Keeper) keysAtHand() (keys []checkpoint.PublicKey) {
	if k.o.Key != nil {
		keys = append(keys, k.o.Key.Public())
	}
	return addKey(keys, k.log.Header().Signer)
}

// keysOfStarts adds those that startup events name.
func (k *Keeper) keysOfStarts(view *projections.View, keys []checkpoint.PublicKey) ([]checkpoint.PublicKey, error) {
	err := k.each(view, projections.AuditFilter{EventTypes: []string{string(event.TypeStartup)}}, func(e *event.Envelope) error {
		var p event.Startup
		err := e.Parse(&p)
		keys = addKey(keys, p.SigningVKey)
		return err
	})
	return keys, err
}

func addKey(keys []checkpoint.PublicKey, vkey string) []checkpoint.PublicKey {
	if _, key, err := checkpoint.ParseVKey(vkey); err == nil && !slices.Contains(keys, key) {
		keys = append(keys, key)
	}
	return keys
}

// each gives the events of a filter, the newest first.
func (k *Keeper) each(view *projections.View, f projections.AuditFilter, take func(*event.Envelope) error) error {
	for page := (projections.Page{}); ; {
		seqs, next, err := view.Audit(f, page)
		if err != nil {
			return err
		}
		for _, seq := range seqs {
			e, err := k.log.At(context.Background(), seq)
			if err == nil {
				err = take(&e)
			}
			if err != nil {
				return fmt.Errorf("event %d: %w", seq, err)
			}
		}
		if page.Cursor = next; next == "" {
			return nil
		}
	}
}

// Begin is called when the startup event is written. It names the newest note in
// an event if none does yet, and signs one where there is none, or none by the key at
// hand: a bundle is signed by one key.
//
// An error is in Status as well; it is no reason not to serve.
func (k *Keeper) Begin(ctx context.Context, c *commands.Commands) error {
	k.commands = c
	if !k.can() {
		return nil
	}
	if newest := k.known(); newest != nil {
		named, err := k.isNamed(newest)
		if err == nil && !named {
			err = k.record(ctx, newest, [32]byte{})
		}
		if err != nil {
			return err
		}
		opened, err := checkpoint.Open(newest.Raw, checkpoint.Keys{Log: []checkpoint.PublicKey{k.signer.Public()}})
		if err != nil || opened.Trusted {
			return err
		}
	}
	if err := k.store.WaitApplied(ctx, k.log.Head().Seq); err != nil { // of the newest note's size there is one
		return err
	}
	n, err := k.checkpoint(ctx)
	if err != nil {
		return err
	}
	view := k.store.View()
	k.offer(ctx, view, n)
	return view.Close()
}

// isNamed looks for the event that names a note, which comes after all that the
// note vouches for.
func (k *Keeper) isNamed(n *checkpoint.Note) (named bool, err error) {
	view := k.store.View()
	defer func() { err = errors.Join(err, view.Close()) }()
	f := projections.AuditFilter{EventTypes: []string{string(event.TypeCheckpointSigned)}, FromSeq: n.Size + 1}
	err = k.each(view, f, func(e *event.Envelope) error {
		var p event.CheckpointSigned
		err := e.Parse(&p)
		named = named || p.Size == n.Size
		return err
	})
	return named, err
}
