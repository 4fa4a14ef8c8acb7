package evidence

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"writegate/eventlog/checkpoint"
	"writegate/eventlog/frame"
)

// A Paper is a text that somebody kept: a receipt, or the note of a checkpoint.
type Paper struct {
	Name string // where it was found, for the reader of the report
	Text string
	// Asked says that whoever wants the report named it: Verify is then at best
	// partial where it proves nothing.
	Asked bool
	// Err says why there is no Text. It makes Verify partial.
	Err error
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
	k, err := o.gather(ctx, set)
	return k.anchors, k.warnings, err
}

// Verify is frame.Verify with the papers as anchors. What was asked for and can't
// be trusted is the fault anchor_untrusted, and the report is at best partial: a
// paper that is unreadable, is none, or is not signed by one of Keys (those that
// the log names itself prove nothing to whoever asks), and a key that has signed
// none of the papers. An error is that of ctx, or of frame.Verify.
func (o *Outside) Verify(ctx context.Context, set *frame.Set, options frame.Options) (frame.Report, error) {
	k, err := o.gather(ctx, set)
	if err != nil {
		return frame.Report{}, err
	}
	options.Anchors = append(slices.Clone(options.Anchors), k.anchors...)
	r, err := frame.Verify(ctx, *set, options)
	if err != nil {
		return r, err
	}
	for _, w := range k.warnings {
		r.Warn(w)
	}
	doubt := func(why string) {
		r.Add(frame.Fault{Check: frame.CheckAnchors, Kind: frame.UntrustedAnchor, Detail: why})
	}
	for _, why := range k.doubts {
		doubt(why)
	}
	if k.asked > 0 && k.applied == 0 {
		doubt("none of the receipts and checkpoints that were named says anything about this log: give some that are of it")
	}
	if len(o.Keys) > 0 && !k.vouched {
		doubt("the key that was given has signed no receipt and no checkpoint of this log: give what was kept (--receipts, --checkpoint), or the key that signed it (--key)")
	}
	return r, nil
}

// gather reads papers and log.
func (o *Outside) gather(ctx context.Context, set *frame.Set) (*known, error) {
	k := &known{named: map[string]bool{}, given: o.Keys, keys: slices.Clone(o.Keys), sizes: map[uint64]bool{}, hashes: map[uint64][32]byte{}, receipts: map[string]*checkpoint.Receipt{}}
	k.header(set)
	if err := k.followed(ctx, set); err != nil {
		return &known{}, err
	}
	if len(o.Receipts)+len(o.Notes) == 0 {
		return k, nil
	}
	k.note(o.Notes)
	if err := k.read(ctx, set); err != nil {
		return &known{}, err
	}
	for _, p := range o.Receipts {
		if r, err := checkpoint.ParseReceipt(p.Text); err == nil {
			k.receipts[p.Text] = r
		}
	}
	if err := k.follow(ctx, set); err != nil {
		return &known{}, err
	}
	for _, p := range o.Receipts {
		k.receipt(p)
	}
	for _, n := range k.notes {
		k.anchor(n)
	}
	return k, nil
}

// known gathers what papers and the log's own reading give.
type known struct {
	given    []checkpoint.PublicKey // by the caller
	keys     []checkpoint.PublicKey // given, and named by the log
	named    map[string]bool        // vkeys, by the log that is read
	notes    []Paper
	receipts map[string]*checkpoint.Receipt // by their text, those that are one
	sizes    map[uint64]bool                // of the notes
	roots    *checkpoint.Roots
	hashes   map[uint64][32]byte // event_hash at each size
	anchors  []frame.Anchor
	warnings []string
	origin   string
	id       [16]byte     // of the log
	headless bool         // no header can be read: the id is not known
	first    startup      // what its first event says; not known where that was not there to read
	earlier  []earlierLog // those before it, where some paper may be of one, the newest first
	gap      error        // why there may be more of them
	retired  bool         // the log lies where those lie that another one follows

	doubts  []string // about papers that became no anchor
	asked   int      // papers that were asked for
	applied int      // of them those that say something about this log, or are doubted
	vouched bool     // a key that was given has signed one of the papers
}

// take counts a paper; false: it could not be read.
func (k *known) take(p Paper, what string) bool {
	if p.Asked {
		k.asked++
	}
	if p.Err != nil {
		k.doubt(p, what, p.Err.Error())
	}
	return p.Err == nil
}

// doubt notes a paper that proves nothing, whoever named it.
func (k *known) doubt(p Paper, what, why string) {
	k.doubts = append(k.doubts, fmt.Sprintf("%s %s: %s", what, p.Name, why))
	k.applies(p)
}

func (k *known) applies(p Paper) {
	if p.Asked {
		k.applied++
	}
}

// useless is a warning about a paper that is none, or is wrongly signed or of
// another log; where it was asked for it is a doubt as well.
func (k *known) useless(p Paper, what string, err error) {
	if p.Asked {
		k.doubt(p, what, err.Error()+"; it proves nothing")
		return
	}
	k.warnings = append(k.warnings, fmt.Sprintf("%s %s: %v", what, p.Name, err))
}

// signed notes who vouches for an anchor.
func (k *known) signed(a *frame.Anchor, p Paper, who string, given, named bool) {
	k.applies(p)
	k.vouched = k.vouched || given
	a.Asked, a.SelfAsserted, a.Untrusted = p.Asked, named && !given, !named && !given
	switch {
	case !p.Asked || given:
	case named:
		a.Doubt = a.Source + ": only the log itself names the key that signed it, " + who + ": give that key, as you had it from elsewhere, with --key"
	default:
		a.Doubt = a.Source + ": signed by " + who + ", which is no key that was given: give the key that signed it with --key"
	}
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
			k.origin, k.id = h.Origin, h.LogID
			k.name(h.Signer)
			return
		}
	}
	k.headless = true
}

// note finds out the sizes at which roots are needed, whoever signed.
func (k *known) note(papers []Paper) {
	for _, p := range papers {
		if !k.take(p, "checkpoint") {
			continue
		}
		n, err := checkpoint.Open([]byte(p.Text), checkpoint.Keys{})
		if err == nil && n.Origin != k.origin && !p.Asked {
			err = fmt.Errorf("it is of the log %q", n.Origin)
		}
		if err != nil {
			k.useless(p, "checkpoint", err)
			continue
		}
		k.notes, k.sizes[n.Size] = append(k.notes, p), true
	}
	k.roots = k.newRoots()
}

func (k *known) newRoots() *checkpoint.Roots {
	return checkpoint.NewRoots(slices.Collect(maps.Keys(k.sizes))...)
}

// read walks along the frames of each segment as far as they can be read. Whether
// they are right is not judged here: frame.Verify holds the hashes against them.
// Roots need every event from the first one on, and a batch that is not complete holds
// none; a key counts wherever it is named.
func (k *known) read(ctx context.Context, set *frame.Set) error {
	whole, begun := true, false
	var batch []frame.Frame // without their records
	for f, err := range set.Frames(ctx, math.MaxUint64) {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil { // damage: Verify says where and what
			whole = false
			continue
		}
		if f.Off == frame.HeaderSize || len(batch) == frame.MaxBatch {
			batch, whole = batch[:0], whole && len(batch) == 0
		}
		if batch = append(batch, frame.Frame{Seq: f.Seq, Hash: f.Hash}); f.BatchLeft == 0 {
			for _, e := range batch {
				if whole = whole && k.roots.Add(e.Seq, e.Hash) == nil; whole && k.sizes[e.Seq] {
					k.hashes[e.Seq] = e.Hash
				}
			}
			batch = batch[:0]
		}
		s := startupOf(&f.Frame)
		k.name(s.key)
		if f.Seq == 1 && !begun {
			k.first, begun = s, true
		}
	}
	return nil
}

// mostNamed is how many different keys a log can name: each is tried for each paper.
const mostNamed = 100

// name takes a key that a log names.
func (k *known) name(vkey string) {
	if vkey == "" || k.named[vkey] || len(k.named) == mostNamed {
		return
	}
	k.named[vkey] = true
	if _, key, err := checkpoint.ParseVKey(vkey); err == nil && !slices.Contains(k.keys, key) {
		k.keys = append(k.keys, key)
	}
}

// receipt adds what a receipt vouches for: its event, and that the whole batch
// was there.
func (k *known) receipt(p Paper) {
	if !k.take(p, "receipt") {
		return
	}
	r, err := checkpoint.ParseReceipt(p.Text)
	if err != nil {
		k.useless(p, "receipt", err)
		return
	}
	if k.absent(r.LogID) {
		k.useless(p, "receipt", fmt.Errorf("it is of a log before this one, and was not compared: %w; put that folder there, or hold it against the file of its own log", k.gap))
		return
	}
	a := frame.Anchor{Level: frame.L3, LogID: r.LogID, Seq: r.Seq, Hash: r.EventHash, Time: r.Time, Source: "receipt " + p.Name}
	vouched, err := r.Check(k.keys...)
	if err != nil && !errors.Is(err, checkpoint.ErrUnknownKey) {
		a.Untrusted = true
		k.useless(p, "receipt", err)
		k.anchors = append(k.anchors, a)
		return
	}
	_, byGiven := r.Check(k.given...)
	k.signed(&a, p, r.KeyID, byGiven == nil, err == nil)
	if !a.Untrusted && !k.headless && a.LogID != k.id {
		k.receiptOfAnother(p, a, max(a.Seq, vouched.Last))
		return
	}
	k.anchors = append(k.anchors, a)
	if err == nil && vouched.Last > a.Seq {
		a.Seq, a.Hash, a.NoHash, a.Doubt, a.Asked = vouched.Last, [32]byte{}, true, "", false
		k.anchors = append(k.anchors, a)
	}
}

// anchor adds what a checkpoint vouches for: the event at its size, if the tree
// up to there has its root. A root of other events becomes an anchor that nothing matches.
func (k *known) anchor(p Paper) {
	n, err := checkpoint.Open([]byte(p.Text), checkpoint.Keys{Log: k.keys})
	if err != nil {
		k.useless(p, "checkpoint", err)
		return
	}
	if n.Size == 0 {
		return // a tree without events knows nothing
	}
	a := frame.Anchor{Level: frame.L4, Seq: n.Size, Source: "checkpoint " + p.Name}
	byGiven, err := checkpoint.Open([]byte(p.Text), checkpoint.Keys{Log: k.given})
	if err != nil {
		k.useless(p, "checkpoint", err)
		return
	}
	k.signed(&a, p, strings.Join(byGiven.Unknown, ", "), byGiven.Trusted, n.Trusted)
	if !a.Untrusted && !k.holds(n) && k.noteOfEarlier(p, a, n) {
		return
	}
	if n.Origin != k.origin {
		k.useless(p, "checkpoint", fmt.Errorf("it is of the log %q", n.Origin))
		return
	}
	root, read := k.roots.At(n.Size)
	switch {
	case !read:
		a.NoHash = true
	case root == n.Root:
		a.Hash = k.hashes[n.Size]
	default:
		a.OtherRoot = true
	}
	k.anchors = append(k.anchors, a)
}
