package evidence

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"writegate/eventlog/checkpoint"
	"writegate/eventlog/event"
	"writegate/eventlog/frame"
)

// A Paper is a text that somebody kept: a receipt, or the note of a checkpoint.
type Paper struct {
	Name string // where it was found, for the reader of the report
	Text string
}

// Outside is what is known about a log from elsewhere.
type Outside struct {
	Receipts []Paper
	Notes    []Paper
	// Keys are those that the caller trusts. The keys that the log itself names,
	// in its header and its startup events, are believed as well: what was signed
	// with them belongs to this log, whoever wrote it.
	Keys []checkpoint.PublicKey
}

// Anchors turns papers into anchors for frame.Verify. What no known key has
// signed becomes an untrusted anchor; what is no paper at all, or carries a
// wrong signature, becomes a warning: it can't accuse the log. The log is read
// once, for the roots of its tree. An error is that of ctx.
func (o *Outside) Anchors(ctx context.Context, set *frame.Set) (anchors []frame.Anchor, warnings []string, err error) {
	if len(o.Receipts)+len(o.Notes) == 0 {
		return nil, nil, nil
	}
	k := &known{keys: slices.Clone(o.Keys), sizes: map[uint64]bool{}, hashes: map[uint64][32]byte{}}
	k.header(set)
	k.note(o.Notes)
	if err := k.read(ctx, set); err != nil {
		return nil, nil, err
	}
	for _, p := range o.Receipts {
		k.receipt(p)
	}
	for _, n := range k.notes {
		k.anchor(n)
	}
	return k.anchors, k.warnings, nil
}

// known gathers what papers and the log's own reading give.
type known struct {
	keys     []checkpoint.PublicKey
	notes    []Paper
	sizes    map[uint64]bool // of the notes
	roots    *checkpoint.Roots
	hashes   map[uint64][32]byte // event_hash at each size
	anchors  []frame.Anchor
	warnings []string
	origin   string
	earlier  [][16]byte // logs that this one follows after a loss that was accepted
}

func (k *known) warn(p Paper, what string, err error) {
	k.warnings = append(k.warnings, fmt.Sprintf("%s %s: %v", what, p.Name, err))
}

// header takes key and origin from the first header that can be read. All
// headers of a log agree in them.
func (k *known) header(set *frame.Set) {
	for _, s := range append(slices.Clone(set.Sealed), set.Active) {
		b := make([]byte, frame.HeaderSize)
		if s.File == nil {
			continue
		}
		n, err := s.File.Pread(b, 0)
		if err != nil && n < len(b) {
			continue
		}
		if h, err := frame.ParseHeader(b[:n]); err == nil {
			k.origin = h.Origin
			k.vkey(h.Signer)
			return
		}
	}
}

// note finds out the sizes at which roots are needed, whoever signed.
func (k *known) note(papers []Paper) {
	for _, p := range papers {
		n, err := checkpoint.Open([]byte(p.Text), checkpoint.Keys{})
		if err == nil && n.Origin != k.origin {
			err = fmt.Errorf("it is of the log %q", n.Origin)
		}
		if err != nil {
			k.warn(p, "checkpoint", err)
			continue
		}
		k.notes, k.sizes[n.Size] = append(k.notes, p), true
	}
	k.roots = checkpoint.NewRoots(slices.Collect(maps.Keys(k.sizes))...)
}

// read walks along the log as far as its frames can be read in order. Whether
// they are right is not judged here: frame.Verify holds the hashes against them.
func (k *known) read(ctx context.Context, set *frame.Set) error {
	startup := []byte(event.TypeStartup)
	for f, err := range set.Frames(ctx, math.MaxUint64) {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil || k.roots.Add(f.Seq, f.Hash) != nil {
			return nil // damage: Verify says where and what
		}
		if k.sizes[f.Seq] {
			k.hashes[f.Seq] = f.Hash
		}
		if f.Seq == 1 || bytes.Contains(f.Record, startup) {
			k.startup(f.Record)
		}
	}
	return nil
}

// startup takes what a startup event names: a key, and the log before this one.
func (k *known) startup(record []byte) {
	d, err := event.Decode(record)
	if err != nil || d.Type != event.TypeStartup {
		return
	}
	var s event.Startup
	if d.Parse(&s) != nil {
		return // of another version: it names nothing that is known here
	}
	k.vkey(s.SigningVKey)
	if s.Predecessor != nil {
		k.earlier = append(k.earlier, s.Predecessor.LogID)
	}
}

func (k *known) vkey(text string) {
	if _, key, err := checkpoint.ParseVKey(text); err == nil && !slices.Contains(k.keys, key) {
		k.keys = append(k.keys, key)
	}
}

// receipt adds what a receipt vouches for: its event, and that the whole batch
// was there.
func (k *known) receipt(p Paper) {
	r, err := checkpoint.ParseReceipt(p.Text)
	if err != nil {
		k.warn(p, "receipt", err)
		return
	}
	if slices.Contains(k.earlier, r.LogID) {
		k.warn(p, "receipt", fmt.Errorf("it is of the log %x, which this one follows after a loss that was accepted", r.LogID))
		return
	}
	a := frame.Anchor{Level: frame.L3, LogID: r.LogID, Seq: r.Seq, Hash: r.EventHash, Time: r.Time, Source: "receipt " + p.Name}
	vouched, err := r.Check(k.keys...)
	if err != nil {
		a.Untrusted = true
		if !errors.Is(err, checkpoint.ErrUnknownKey) {
			k.warn(p, "receipt", err)
		}
		k.anchors = append(k.anchors, a)
		return
	}
	k.anchors = append(k.anchors, a)
	if vouched.Last > a.Seq {
		a.Seq, a.Hash, a.NoHash = vouched.Last, [32]byte{}, true
		k.anchors = append(k.anchors, a)
	}
}

// anchor adds what a checkpoint vouches for: the event at its size, if the tree
// up to there has its root. A root of other events becomes an anchor that no
// event_hash matches.
func (k *known) anchor(p Paper) {
	n, err := checkpoint.Open([]byte(p.Text), checkpoint.Keys{Log: k.keys})
	if err != nil {
		k.warn(p, "checkpoint", err)
		return
	}
	a := frame.Anchor{Level: frame.L4, Seq: n.Size, Source: "checkpoint " + p.Name, Untrusted: !n.Trusted}
	root, read := k.roots.At(n.Size)
	switch {
	case n.Size == 0:
		return // a tree without events knows nothing
	case !read:
		a.NoHash = true
	case root == n.Root:
		a.Hash = k.hashes[n.Size]
	}
	k.anchors = append(k.anchors, a)
}
