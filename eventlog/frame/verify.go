package frame

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"runtime"
	"slices"
)

// Options say what to verify and how.
type Options struct {
	// From and To bound the events to look at, both included; 0 is no bound. A
	// range is at best partial: what lies outside was not looked at.
	From, To uint64
	// Hint is a place at or before From, of a sparse index. A wrong one costs a
	// scan and changes nothing else.
	Hint Hint
	// Workers do the sums and hashes; 0 is one more than there are processors: they
	// read in turns, and one that waits for its turn leaves its processor to another.
	Workers int
	// Anchors are what is known from elsewhere. The head file's is added by
	// Verify itself.
	Anchors []Anchor
	// Copy says that the file may be older than the anchors: an anchor beyond its
	// end is then a warning.
	Copy bool
	// SkimSealed takes sealed segments by their header, length and last event where
	// nothing speaks against it. VerifiedTo then stays before the first of them.
	SkimSealed bool
	// Progress is told, from one goroutine and about once a MiB, how many of the
	// bytes are done. It may be nil.
	Progress func(done, total int64)
}

// A Hint is a frame's place.
type Hint struct {
	Segment uint32
	Offset  int64
}

// Verify reads a whole log, or a range of it, and judges it: every sum, hash,
// link and number, every header, the order of the segments, what lies after the
// last batch, and every anchor. It goes on after a fault. It decodes no record,
// writes nothing, and calls nothing corrupt that a crash alone can explain.
//
// A writer that comes while it reads changes what lies behind the last batch
// that was there, and may take that one back: the files are then judged again,
// as those of a running writer.
//
// The report is complete in itself; the error is not nil only when ctx ended or
// the set can't be read at all as asked.
func Verify(ctx context.Context, set Set, o Options) (Report, error) {
	r, err := verify(ctx, set, o)
	if err == nil && set.stirred != nil && set.Active.present() && set.stirred() {
		if set.Live = true; set.Head == nil {
			set.Limit = promised(set.Active)
		}
		return verify(ctx, set, o)
	}
	return r, err
}

func verify(ctx context.Context, set Set, o Options) (Report, error) {
	if o.Workers <= 0 {
		o.Workers = runtime.GOMAXPROCS(0) + 1
	}
	v := &verifier{set: set, o: o, rep: NewReport("wal", set.Path)}
	v.addHeadAnchor()
	v.existence()
	if v.anything() {
		if err := v.segments(ctx); err != nil {
			return Report{}, err
		}
	}
	v.conclude()
	return *v.rep, nil
}

type verifier struct {
	set   Set
	o     Options
	rep   *Report
	book  *anchorBook
	chain chain
	base  *Header // the first header that could be read: all others agree with it
	parts []part
	wantN uint32 // number of the segment that should come next
	blind bool   // the end of the log could not be looked at
	hole  bool   // some header's word was taken for what came before
	known int    // faults that are not of a segment
	done  int64
	total int64

	skimmed int // segments of which only the ends were looked at
}

// part is one segment with its header.
type part struct {
	Segment
	sealed bool
	limit  int64
	header Header
	err    error // of the header
}

// addHeadAnchor makes the head file an anchor like the others.
func (v *verifier) addHeadAnchor() {
	anchors := v.o.Anchors
	switch h := v.set.Head; {
	case h != nil:
		anchors = append([]Anchor{{Level: L1, LogID: h.LogID, Seq: h.Seq, Hash: h.EventHash, Time: h.Time, Source: "head file"}}, anchors...)
	case v.set.Whole:
		v.rep.Anchors = append(v.rep.Anchors, AnchorResult{Level: L1, Result: AnchorMissing})
		v.rep.Warn("the head file is missing or unreadable: anchor L1 could not be compared")
	}
	v.book = newAnchorBook(anchors)
}

func (v *verifier) anything() bool {
	return len(v.set.Sealed) > 0 || v.set.Active.present() || v.set.Active.unreadable()
}

// existence judges which files are there.
func (v *verifier) existence() {
	v.rep.Ran(CheckExistence, CheckLock)
	if v.set.LockErr != nil {
		v.rep.Add(Fault{Check: CheckLock, Kind: NoReadLock, Detail: v.set.LockErr.Error()})
	}
	if v.set.Err != nil {
		v.rep.Add(Fault{Check: CheckExistence, Kind: Unreadable, Detail: v.set.Err.Error()})
		v.blind = v.set.Lost
	}
	switch {
	case v.set.Active.present() || v.set.Active.unreadable():
	case len(v.set.Sealed) > 0:
		v.rep.add(Fault{Check: CheckExistence, Kind: MissingLog, Detail: "the active segment is missing after a sealed one: a rotation was cut short, or the file was removed"}, true)
	default:
		trace := v.trace()
		detail := "there is no log here"
		if trace != "" && !v.set.Lost {
			detail = "the log is missing, but " + trace + " shows that there was one"
		}
		v.rep.add(Fault{Check: CheckExistence, Kind: MissingLog, Detail: detail}, trace == "" || v.set.Lost)
	}
}

// trace names something that only a log leaves behind.
func (v *verifier) trace() string {
	if len(v.set.Traces) > 0 {
		return v.set.Traces[0]
	}
	for _, a := range v.book.anchors {
		if !a.Untrusted {
			return fmt.Sprintf("anchor %s%s", a.Level, a.from())
		}
	}
	return ""
}

// segments judges all headers, then walks the segments in order.
func (v *verifier) segments(ctx context.Context) error {
	v.rep.Ran(CheckHeader, CheckCount, CheckHash, CheckLink, CheckSequence, CheckPadding, CheckAnchors)
	v.collect()
	v.known = v.rep.FaultsTotal
	first := v.firstPart()
	for i := range v.parts {
		p := &v.parts[i]
		if i < first {
			v.wantN = p.number() + 1
			continue
		}
		if !v.enter(p, i == first && v.o.From > 1) {
			continue
		}
		if v.skim(p) {
			continue
		}
		stop, err := v.walk(ctx, p)
		if err != nil {
			return err
		}
		if stop {
			break
		}
	}
	return nil
}

// collect opens the headers and fixes how far each segment is judged.
func (v *verifier) collect() {
	for _, s := range v.set.Sealed {
		v.parts = append(v.parts, part{Segment: s, sealed: true, limit: s.Size})
	}
	if a := v.set.Active; a.present() || a.unreadable() {
		v.parts = append(v.parts, part{Segment: a, limit: v.set.limit()})
	}
	for i := range v.parts {
		p := &v.parts[i]
		p.header, p.err = readHeader(p)
		if p.err == nil && v.base == nil {
			v.base = &p.header
			v.rep.Header, v.rep.LogID, v.rep.Origin = p.header, fmt.Sprintf("%x", p.header.LogID), p.header.Origin
		}
		v.total += max(p.limit-HeaderSize, 0)
	}
}

func readHeader(p *part) (Header, error) {
	if p.Err != nil {
		return Header{}, p.Err
	}
	b := make([]byte, HeaderSize)
	n, err := p.File.Pread(b, 0)
	if err != nil && err != io.EOF {
		return Header{}, err
	}
	return ParseHeader(b[:n])
}

// firstPart gives the segment where the range begins.
func (v *verifier) firstPart() int {
	first := 0
	for i := range v.parts {
		if v.o.From > 1 && v.parts[i].err == nil && v.parts[i].header.FirstSeq <= v.o.From {
			first = i
		}
	}
	return first
}

// enter judges a segment's header and its place in the log. False: there is
// nothing in it to walk.
func (v *verifier) enter(p *part, ranged bool) bool {
	switch {
	case p.err == nil:
	case errors.Is(p.err, ErrHeader):
		v.fault(p, Fault{Check: CheckHeader, Kind: BadHeader, Length: HeaderSize, Detail: p.Name + ": " + p.err.Error()})
		v.chain.known = false
	default:
		v.unreadableFile(p)
		return false
	}
	if p.err == nil && !p.header.sameLog(v.base) {
		v.fault(p, Fault{Check: CheckHeader, Kind: BadHeader, Length: HeaderSize, Detail: p.Name + ": the header is not of the same log as the first one"})
	}
	if p.err == nil && !v.place(p) {
		return false
	}
	v.begin(p, ranged)
	return true
}

// unreadableFile is a segment that can't be opened or read at its beginning: nobody knows what it holds.
func (v *verifier) unreadableFile(p *part) {
	f := Fault{Check: CheckExistence, Kind: Unreadable, Detail: p.Name + ": " + p.err.Error()}
	if errors.Is(p.err, fs.ErrNotExist) {
		f.Kind = SealedSegment
	} else {
		v.blind = true
	}
	v.fault(p, f)
	v.chain.known = false
	v.wantN = p.Number + 1
}

// begin sets the chain to the segment's first frame.
func (v *verifier) begin(p *part, ranged bool) {
	h := p.header
	if p.err != nil { // the header's word is worth nothing: go on from the frames
		h = Header{Segment: v.wantN, FirstSeq: v.chain.seq + 1}
	}
	first := v.chain.counted.n == 0 && !v.chain.started
	v.hole = v.hole || !v.chain.known && h.Segment > 0
	v.chain.enter(&h, h.Hash)
	v.chain.known = v.chain.known && p.err == nil && !ranged
	v.wantN++
	if !first {
		return
	}
	v.rep.FirstSeq, v.rep.LastSeq = h.FirstSeq, h.FirstSeq-1
	if v.rep.corrupt == 0 { // else what comes before it is missing
		v.rep.VerifiedTo = h.FirstSeq - 1
	}
	v.rep.Head = ReportHead{Seq: v.chain.end.Seq, EventHash: hexHash(v.chain.end.Hash), Segment: h.Segment, EndOffset: HeaderSize}
	if p.err == nil && h.Segment == 0 && !ranged {
		v.rep.Ran(CheckStart)
		v.book.know(0, h.Hash, 0, 0)
	}
}

// fault adds a fault of a segment.
func (v *verifier) fault(p *part, f Fault) {
	f.Segment = p.number()
	v.rep.Add(f)
}

func (p *part) number() uint32 {
	if p.err == nil {
		return p.header.Segment
	}
	return p.Number
}

// conclude judges what only the whole can show.
func (v *verifier) conclude() {
	r := v.rep
	if v.o.From > 1 || v.o.To > 0 {
		asked := fmt.Sprintf("only events from %d on were asked for", v.o.From)
		if v.o.To > 0 {
			asked = fmt.Sprintf("only events %d to %d were asked for", max(v.o.From, 1), v.o.To)
		}
		r.Add(Fault{Check: CheckCount, Kind: RangeLimited, Seq: v.o.From, Detail: asked})
	}
	if r.EventCount = v.chain.counted.n; r.EventCount > 0 {
		r.Head.EventHash = hexHash(v.chain.counted.hash)
	}
	r.End = v.chain.end
	v.book.judge(r, v.base, &v.o, v.blind)
	if r.FirstSeq > 0 && r.LastSeq-r.FirstSeq+1 != r.EventCount {
		r.Check(CheckCount).Status = Fail
	}
	for _, a := range r.Anchors {
		if a.Result == AnchorBeyond && !v.o.Copy {
			r.Check(CheckCount).Status = Fail
		}
	}
	if v.set.Live {
		r.Warn(fmt.Sprintf("a writer holds this log: it was judged up to its durable head, offset %d of the active segment", v.set.limit()))
	}
	v.warnSkimmed()
	v.warnUnsigned()
	v.notExcluded()
	if v.o.Progress != nil {
		v.o.Progress(v.total, v.total)
	}
	r.Finish()
}

// warnUnsigned says that a log which names its signer came without a checkpoint
// that the signer made: whoever writes a log anew leaves them out.
func (v *verifier) warnUnsigned() {
	signed := func(a Anchor) bool { return a.Level == L4 && !a.Untrusted }
	if v.base != nil && v.base.Signer != "" && v.rep.EventCount > 0 && !slices.ContainsFunc(v.book.anchors, signed) {
		v.rep.Warn("the log says that it is signed, and no checkpoint of its signer was found: they were left out, or there is none yet")
	}
}

// notExcluded says what an honest reader must still doubt.
func (v *verifier) notExcluded() {
	newest, away := newestMatches(v.rep)
	when := "at any time"
	switch {
	case newest != nil && newest.Time != "":
		when = "after " + newest.Time
	case newest != nil:
		when = fmt.Sprintf("after event %d", newest.Seq)
	}
	v.rep.NotExcluded = append(v.rep.NotExcluded, "removal of whole batches "+when+" would not show")
	switch {
	case away != nil:
		v.rep.NotExcluded = append(v.rep.NotExcluded, fmt.Sprintf("events after event %d may be others than were written: hashes can be computed anew", away.Seq))
	case newest != nil:
		v.rep.NotExcluded = append(v.rep.NotExcluded, "all events may be others than were written: hashes can be computed anew, and every anchor is on this host")
	default:
		v.rep.NotExcluded = append(v.rep.NotExcluded, "all events may be others than were written: hashes can be computed anew")
	}
	if slices.ContainsFunc(v.rep.Anchors, func(a AnchorResult) bool { return a.SelfAsserted }) {
		v.rep.NotExcluded = append(v.rep.NotExcluded, "an anchor signed by a key that only the log names proves no more than the log itself")
	}
}
