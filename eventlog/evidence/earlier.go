package evidence

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"

	"writegate/eventlog/checkpoint"
	"writegate/eventlog/event"
	"writegate/eventlog/frame"
)

// An earlierLog is one that a log follows after a loss that was accepted, as far as the
// one behind it vouches for it.
type earlierLog struct {
	id     [16]byte
	last   uint64 // the last event that the log behind it goes on from
	origin string
	hashes map[uint64][32]byte // at the events that papers name
	roots  *checkpoint.Roots
	err    error // why it can't be read
}

// follow reads the logs before this one, where some paper may be of one of them: from
// each first event which log it follows, and whether its files, in W.retired, are what
// that says of them. An error is that of ctx.
func (k *known) follow(ctx context.Context, set *frame.Set) error {
	if k.headless || !k.ofAnother() {
		return nil
	}
	w, retired := retiredFrom(set.Path)
	k.retired = retired
	seqs := map[uint64]bool{}
	for _, p := range k.receipts {
		seqs[p.Seq] = true
	}
	if !k.first.known {
		k.gap = errors.New("its first event, which would name a log that it follows, was not there to read")
	}
	for before := k.first.before; before != nil && k.gap == nil; {
		e := earlierLog{id: before.LogID, last: before.LastSeq}
		if e.id == k.id || slices.ContainsFunc(k.earlier, func(o earlierLog) bool { return o.id == e.id }) {
			k.gap = fmt.Errorf("log %x is named as the one before itself", e.id)
			return nil
		}
		if e.last == 0 {
			k.gap = fmt.Errorf("of log %x, which it follows, nothing could be saved", e.id)
			k.earlier = append(k.earlier, e)
			return nil
		}
		file := frame.RetiredPath(w, e.id)
		first, err := k.readEarlier(ctx, file, &e, before.LastEventHash, seqs)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		switch before, e.err = first.before, err; {
		case err != nil:
			k.gap = fmt.Errorf("log %x, which it follows, can't be read, and has to lie at %s: %w", e.id, file, err)
		case !first.known:
			k.gap = fmt.Errorf("the first event of log %x, which it follows, does not say whether there is one before", e.id)
		}
		k.earlier = append(k.earlier, e)
	}
	return nil
}

// followed adds what the log that follows this one says of its end, where this one lies
// in W.retired: papers.md, "Of the log behind this one". An error is that of ctx.
func (k *known) followed(ctx context.Context, set *frame.Set) error {
	w, behind := retiredFrom(set.Path)
	if !behind || k.headless {
		return nil
	}
	named := map[[16]byte]bool{}
	for at := w; ; {
		before, err := predecessorOf(ctx, at)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil && before == nil, err == nil && named[before.LogID]:
			err = errors.New("it is none of those that this one follows")
		}
		if err != nil {
			k.warnings = append(k.warnings, fmt.Sprintf("this log was not held against the one that follows it, %s: %v", w, err))
			return nil
		}
		if before.LogID == k.id {
			if before.LastSeq > 0 {
				k.anchors = append(k.anchors, frame.Anchor{Level: frame.L2, LogID: k.id, Seq: before.LastSeq, Hash: before.LastEventHash, Unsigned: true, Source: "the log that follows it, " + at})
			}
			return nil
		}
		named[before.LogID] = true
		at = frame.RetiredPath(w, before.LogID)
	}
}

// retiredFrom is frame.RetiredFrom of the path as it was given, since a link may stand in the
// place of W.retired, or else of where it leads.
func retiredFrom(given string) (w string, ok bool) {
	if w, ok = frame.RetiredFrom(given); ok {
		return w, ok
	}
	path, err := frame.OS{}.RealPath(given)
	if err != nil {
		path = given
	}
	return frame.RetiredFrom(path)
}

// predecessorOf reads from the first event of a log which one it follows.
func predecessorOf(ctx context.Context, path string) (before *event.Predecessor, err error) {
	set, err := frame.Discover(ctx, frame.OS{}, path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, set.Close()) }()
	for f, err := range set.Frames(ctx, math.MaxUint64) {
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case err != nil || f.Seq != 1:
			continue
		case !f.Intact():
			return nil, fmt.Errorf("the first event of %s is not what its hash says", path)
		}
		s := startupOf(&f.Frame)
		if !s.known {
			return nil, fmt.Errorf("the first event of %s does not say which log it follows", path)
		}
		return s.before, nil
	}
	return nil, fmt.Errorf("%s has no first event that can be read", path)
}

// ofAnother tells whether a paper may be of another log than this one.
func (k *known) ofAnother() bool {
	for _, r := range k.receipts {
		if r.LogID != k.id {
			return true
		}
	}
	return slices.ContainsFunc(k.notes, func(p Paper) bool {
		n, err := checkpoint.Open([]byte(p.Text), checkpoint.Keys{})
		return err == nil && !k.holds(n)
	})
}

// holds tells whether a checkpoint is of this log and its events make its root.
func (k *known) holds(n *checkpoint.Note) bool {
	root, read := k.roots.At(n.Size)
	return n.Origin == k.origin && (n.Size == 0 || read && root == n.Root)
}

// readEarlier reads one of the logs and gives what its first event says.
func (k *known) readEarlier(ctx context.Context, path string, e *earlierLog, hash [32]byte, seqs map[uint64]bool) (first startup, err error) {
	set, err := frame.Discover(ctx, frame.OS{}, path)
	if err != nil {
		return first, err
	}
	defer func() { err = errors.Join(err, set.Close()) }()
	e.hashes, e.roots = map[uint64][32]byte{}, k.newRoots()
	var keys []string
	for f, err := range set.UpTo(ctx, e.id, e.last, hash) {
		if err == nil {
			err = e.roots.Add(f.Seq, f.Hash)
		}
		if err != nil {
			return first, err
		}
		if seqs[f.Seq] {
			e.hashes[f.Seq] = f.Hash
		}
		s := startupOf(&f.Frame)
		keys = append(keys, s.key)
		if f.Seq == 1 {
			first = s
		}
	}
	h, err := set.Genesis()
	e.origin = h.Origin
	k.named = map[string]bool{}
	for _, key := range append([]string{h.Signer}, keys...) {
		k.name(key)
	}
	return first, err
}

// A startup is what a startup event says of keys and of the log before: papers.md, which
// asks for no other field. Where it is not known, nobody can tell.
type startup struct {
	known  bool
	key    string
	before *event.Predecessor // nil where it follows none
}

// startupOf reads an event that may be one. What is of another type or version is not known.
func startupOf(f *frame.Frame) (s startup) {
	if f.Seq > 1 && !bytes.Contains(f.Record, []byte(event.TypeStartup)) {
		return s
	}
	d, err := event.Decode(f.Record)
	if err != nil || d.Type != event.TypeStartup || d.TypeVersion != 1 {
		return s
	}
	vkey, _ := d.Get("signing_vkey")
	s.key, _ = vkey.AsString()
	named, follows := d.Get("predecessor")
	fields, _ := named.AsMap()
	id, _ := fields.Get("log_id")
	seq, _ := fields.Get("last_seq")
	hash, _ := fields.Get("last_event_hash")
	idBytes, _ := id.AsBytes()
	last, isInt := seq.AsInt()
	hashBytes, _ := hash.AsBytes()
	if s.known = !follows; len(idBytes) == 16 && isInt && last >= 0 && len(hashBytes) == 32 {
		s.known, s.before = true, &event.Predecessor{LogID: [16]byte(idBytes), LastSeq: uint64(last), LastEventHash: [32]byte(hashBytes)}
	}
	return s
}

// absent tells whether a log is one before this one that is not there to be read.
func (k *known) absent(id [16]byte) bool {
	return slices.ContainsFunc(k.earlier, func(e earlierLog) bool {
		return e.id == id && (e.last == 0 || errors.Is(e.err, fs.ErrNotExist))
	})
}

// receiptOfAnother holds a receipt that a key vouches for against the log before this
// one that it is of. a is its anchor, and last the last event of its batch.
func (k *known) receiptOfAnother(p Paper, a frame.Anchor, last uint64) {
	i := slices.IndexFunc(k.earlier, func(e earlierLog) bool { return e.id == a.LogID })
	switch {
	case i < 0 && k.gap != nil:
		k.unproven(p, a, "it is of log %x, and nobody can tell whether this log follows it: %w", a.LogID, k.gap)
	case i < 0 && k.retired:
		k.unproven(p, a, "it is of log %x, which is none before this one: this log was followed by others; hold it against the file of its own log", a.LogID)
	case i < 0:
		k.anchors = append(k.anchors, a)
	case k.earlier[i].err != nil:
		k.unproven(p, a, "it is of a log before this one: %w; put that log's own folder there, or hold it against another copy", k.gap)
	case a.Seq <= k.earlier[i].last && k.earlier[i].hashes[a.Seq] != a.Hash:
		k.contradicted(a, "is of log %x before this one, which has another event_hash at %d: the events up to there were written anew", a.LogID, a.Seq)
	case last > k.earlier[i].last:
		k.unproven(p, a, "it is of log %x before this one and knows its event %d; what follows that log goes on from event %d, and the loss of what came behind was accepted", a.LogID, last, k.earlier[i].last)
	default:
		k.matches(p, a, "is of log %x before this one, and agrees with its event %d", a.LogID, a.Seq)
	}
}

// noteOfEarlier holds a checkpoint that is none of this log's events against the logs
// before it; false: it can be of none of them. One that nobody named accuses this log
// unless events of theirs make it.
func (k *known) noteOfEarlier(p Paper, a frame.Anchor, n *checkpoint.Note) bool {
	named, lost := false, false
	for _, e := range k.earlier {
		if e.err != nil || e.last == 0 || e.origin != n.Origin {
			continue
		}
		if root, read := e.roots.At(n.Size); read && root == n.Root {
			k.matches(p, a, "is of log %x before this one, and agrees with its events up to %d", e.id, n.Size)
			return true
		}
		named, lost = true, lost || n.Size > e.last
	}
	if !p.Asked {
		return false
	}
	switch {
	case k.gap != nil:
		k.unproven(p, a, "it is of none of the events that were read, and nobody can tell whether it is of a log before this one: %w", k.gap)
	case k.retired:
		k.unproven(p, a, "it is of none of the events of this log, nor of one before it: others followed this one, under its name too; hold it against the file of its own log")
	case lost:
		k.unproven(p, a, "it knows %d events of %q, and so may be of a log before this one whose end was lost", n.Size, n.Origin)
	case named && n.Origin != k.origin:
		k.contradicted(a, "knows other events of %q up to %d than the log of that origin before this one: they were written anew", n.Origin, n.Size)
	default:
		return false
	}
	return true
}

// matches tells of a paper of a log before this one that agrees with it.
func (k *known) matches(p Paper, a frame.Anchor, format string, args ...any) {
	k.warnings = append(k.warnings, a.Source+" "+fmt.Sprintf(format, args...))
	if a.Doubt != "" {
		k.doubts = append(k.doubts, a.Doubt)
	}
}

// contradicted makes an anchor that accuses this log of what is wrong before it.
func (k *known) contradicted(a frame.Anchor, format string, args ...any) {
	a.Contradicted = fmt.Sprintf("anchor %s (%s) %s", a.Level, a.Source, fmt.Sprintf(format, args...))
	a.Seq, a.LogID = 0, [16]byte{} // they are another log's
	k.anchors = append(k.anchors, a)
}

// unproven tells of a paper that can't be held against anything here.
func (k *known) unproven(p Paper, a frame.Anchor, format string, args ...any) {
	why := a.Source + ": " + fmt.Errorf(format, args...).Error()
	if p.Asked {
		k.doubts = append(k.doubts, why)
	} else {
		k.warnings = append(k.warnings, why)
	}
}
