package evidence

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"

	"writegate/eventlog/checkpoint"
	"writegate/eventlog/frame"
)

// Checks of a report that the log itself does not need.
const (
	CheckForm       frame.CheckName = "form"             // the document's one canonical form
	CheckRecord     frame.CheckName = "record"           // records are canonical, and the readable text is the record's
	CheckCheckpoint frame.CheckName = "checkpoint"       // a known key signed the checkpoint, and it covers the range
	CheckProofs     frame.CheckName = "inclusion_proofs" // both ends are in the checkpoint's tree
	CheckSignature  frame.CheckName = "signature"        // a known key signed the bundle
)

// Kinds of faults of bundles and JSONL files. The two Cut and Torn are partial,
// because a broken connection or a crash alone can cause them.
const (
	BadForm       frame.Kind = "form"              // not the canonical form; nothing after it was judged in a bundle
	CutShort      frame.Kind = "cut_short"         // a bundle ends before it is complete
	TornLine      frame.Kind = "torn_line"         // the last line of a JSONL file has no end, or one none in MaxSkipped bytes
	BadRecord     frame.Kind = "record"            // the record is not canonical
	BadText       frame.Kind = "event_text"        // the readable event is not that of the record
	BadCount      frame.Kind = "count"             // not as many events as the numbers say
	BadEnds       frame.Kind = "range_ends"        // the first or last event is not the one that is named
	BadCheckpoint frame.Kind = "checkpoint"        // not signed by a known key, or it does not cover the range
	BadProof      frame.Kind = "inclusion_proof"   // does not lead to the checkpoint's root
	BadSignature  frame.Kind = "signature"         // wrong, or not by a key that was given
	NoKeyInBundle frame.Kind = "signature_missing" // a key was given and the bundle is not signed
)

// Who vouches for a bundle, in a report.
const (
	SignatureTrusted      = "trusted"       // one of the keys that were given
	SignatureSelfAsserted = "self-asserted" // a key that nobody gave: anyone can make one
	SignatureNone         = "none"
)

// Options say how to verify. The zero value is useful.
type Options struct {
	// Path names the document in the report.
	Path string
	// Keys are those that the caller trusts. Without any a bundle's own key is
	// used, and the report says so.
	Keys []checkpoint.PublicKey
	// Header is segment 0's of the log, where it is at hand: a JSONL file that
	// begins with event 1 is compared with it.
	Header *frame.Header
	// At gives the last event of the log up to one, and its event_hash, where that log is
	// at hand: a JSONL file is held against it. Nothing is wrong with the log up to there;
	// 0 is no event. An error says why it can't be told. It may be nil.
	At func(upTo uint64) (seq uint64, hash [32]byte, err error)
	// Unquoted leaves out of the faults what stands in the file: the report goes
	// to somebody who may not read it.
	Unquoted bool
	// Progress is told, now and then, how many bytes are done. It may be nil.
	Progress func(done int64)
}

// A judge walks along the events of a text and keeps what the next one has to name.
type judge struct {
	rep   *frame.Report
	known bool // seq and hash bind the next event
	seq   uint64
	hash  [32]byte
	n     uint64 // events seen
}

// Verify judges a bundle: its form to the last byte, every hash, link and
// number, every readable text against its record, the header of the log where
// the range begins with event 1, the checkpoint with both proofs, and the
// signature. It reads the stream once and keeps one event in memory.
//
// The report is complete in itself; the error is not nil only when ctx ended or
// r could not be read.
func Verify(ctx context.Context, r io.Reader, o Options) (frame.Report, error) {
	v := &bundleJudge{judge: judge{rep: frame.NewReport("bundle", o.Path)}, in: newReader(withContext(ctx, r), o.Progress), keys: o.Keys}
	v.judgeHead()
	v.judgePayloads()
	if err := v.conclude(); err != nil {
		return frame.Report{}, err
	}
	v.rep.Finish()
	return *v.rep, nil
}

type bundleJudge struct {
	judge
	in     *reader
	keys   []checkpoint.PublicKey
	head   head
	record []byte
	text   []byte
	last   [32]byte // of the last payload that was read
}

// judgeHead parses the head and judges what can be judged without the payloads.
func (v *bundleJudge) judgeHead() {
	h := v.in.parseHead()
	v.head = h
	if v.in.err != nil {
		return
	}
	r := v.rep
	r.LogID, r.Origin = hex.EncodeToString(h.logID[:]), h.origin
	r.FirstSeq, r.VerifiedTo, r.LastSeq = h.start, h.start-min(h.start, 1), h.start-min(h.start, 1)
	v.known, v.seq, v.hash = true, h.start-1, h.previous
	switch {
	case h.start < 1 || h.end < h.start:
		v.fault(frame.CheckCount, BadCount, 0, fmt.Sprintf("events %d to %d are no range", h.start, h.end))
	case h.count != h.end-h.start+1:
		v.fault(frame.CheckCount, BadCount, 0, fmt.Sprintf("payload_count is %d, events %d to %d are %d", h.count, h.start, h.end, h.end-h.start+1))
	}
	v.judgeGenesis()
	v.judgeSigning()
}

// judgeGenesis compares the beginning of the chain with the log's header.
func (v *bundleJudge) judgeGenesis() {
	h := &v.head
	if h.start != 1 {
		return
	}
	v.rep.Ran(frame.CheckHeader, frame.CheckStart)
	hdr, err := frame.ParseHeader(h.genesis)
	switch {
	case err != nil || len(h.genesis) != frame.HeaderSize:
		v.fault(frame.CheckHeader, frame.BadHeader, 0, fmt.Sprintf("genesis_header: %v", err))
	case hdr.Segment != 0 || hdr.LogID != h.logID || hdr.Origin != h.origin:
		v.fault(frame.CheckHeader, frame.BadHeader, 0, "genesis_header is not the header of this log's segment 0")
	case hdr.Hash != h.previous:
		v.fault(frame.CheckStart, frame.BadChainStart, 0, "previous_hash is not the header_hash of genesis_header")
	}
	v.rep.Header = hdr
}

// judgeSigning judges signature, checkpoint and proofs.
func (v *bundleJudge) judgeSigning() {
	h := &v.head
	if !h.signed {
		v.judgeUnsigned()
		return
	}
	v.rep.Ran(CheckSignature, CheckCheckpoint, CheckProofs)
	keys, unusable := v.keys, h.public.Usable()
	if unusable != nil {
		v.fault(CheckSignature, BadSignature, 0, "public_key: "+unusable.Error())
	}
	switch {
	case len(keys) == 0 && unusable != nil: // nobody is known
	case len(keys) == 0:
		keys = []checkpoint.PublicKey{h.public}
		v.rep.NotExcluded = append(v.rep.NotExcluded, "signature: self-asserted, by "+h.public.ID()+": without a key from elsewhere anyone could have signed; give the operator's key with --key")
	case !slices.Contains(keys, h.public):
		v.fault(CheckSignature, BadSignature, 0, "signed by "+h.public.ID()+", which is not a key that was given")
	}
	if h.keyID != h.public.ID() {
		v.fault(CheckSignature, BadSignature, 0, fmt.Sprintf("key_id %q is not that of the public key, %s", h.keyID, h.public.ID()))
	}
	if !h.public.Verify(h.message(), h.signature[:]) {
		v.fault(CheckSignature, BadSignature, 0, "the signature is not that of the key over this bundle")
	} else if unusable == nil {
		v.rep.Signature, v.rep.SignedBy = SignatureSelfAsserted, h.public.ID()
		if slices.Contains(v.keys, h.public) {
			v.rep.Signature = SignatureTrusted
		}
	}
	v.judgeTree(keys)
}

func (v *bundleJudge) judgeUnsigned() {
	if len(v.head.proofs) > 0 {
		v.fault(CheckForm, BadForm, 0, "inclusion proofs without a checkpoint")
	}
	v.rep.Signature = SignatureNone
	if len(v.keys) > 0 {
		v.fault(CheckSignature, NoKeyInBundle, 0, "the bundle is not signed, and a key was given")
		return
	}
	v.rep.NotExcluded = append(v.rep.NotExcluded, "signature: none: whoever could write this file could have written it anew")
}

func (v *bundleJudge) judgeTree(keys []checkpoint.PublicKey) {
	h := &v.head
	tree, err := openNote(h.origin, h.note, keys)
	if err != nil {
		v.fault(CheckCheckpoint, BadCheckpoint, 0, "checkpoint: "+err.Error())
		return
	}
	anchor := frame.AnchorResult{Level: frame.L4, Seq: tree.Size, Result: frame.AnchorUntrusted}
	defer func() { v.rep.Anchors = append(v.rep.Anchors, anchor) }()
	switch {
	case tree.Size < h.end:
		v.fault(CheckCheckpoint, BadCheckpoint, 0, fmt.Sprintf("the checkpoint is of %d events, the bundle ends with event %d", tree.Size, h.end))
	case len(h.proofs) != len(h.ends()):
		v.fault(CheckProofs, BadProof, 0, fmt.Sprintf("%d inclusion proofs where %d belong", len(h.proofs), len(h.ends())))
	default:
		if err := h.checkProofs(tree); err != nil {
			v.fault(CheckProofs, BadProof, 0, err.Error())
			anchor.Result = frame.AnchorMismatch
			return
		}
		if len(v.keys) > 0 {
			anchor.Result, v.rep.AnchorLevel = frame.AnchorMatch, frame.L4
		}
	}
}

// judgePayloads reads the events one by one.
func (v *bundleJudge) judgePayloads() {
	if v.in.err != nil {
		return
	}
	v.rep.Ran(frame.CheckHash, frame.CheckLink, frame.CheckSequence, CheckRecord)
	for !v.in.is("]") && v.in.err == nil {
		off := v.in.off
		f, text := v.in.item(v.n, v.record)
		if v.in.err != nil {
			break
		}
		v.record = f.Record
		v.frame(&f, off, v.in.off-off)
		v.compareText(&f, text, off)
		v.last = f.Hash
		if v.n == 1 && f.Hash != v.head.first {
			v.faultAt(frame.CheckCount, BadEnds, f.Seq, off, "first_event_hash is not the hash of the first event")
		}
		v.holds(f.Seq)
	}
	v.in.want(closePayload)
	v.in.end()
}

// compareText renders the record again: what a person reads must be what was hashed.
func (v *bundleJudge) compareText(f *frame.Frame, text []byte, off int64) {
	rendered, err := readable(v.text[:0], f)
	v.text = rendered
	switch {
	case err != nil:
		v.faultAt(CheckRecord, BadRecord, f.Seq, off, err.Error())
	case string(rendered) != string(text):
		v.faultAt(CheckRecord, BadText, f.Seq, off, fmt.Sprintf("the readable event %d is not that of its record", f.Seq))
	}
}

// frame judges the hash and the place of an event.
func (j *judge) frame(f *frame.Frame, off, size int64) {
	if !f.Intact() {
		j.faultSized(frame.CheckHash, frame.BadEventHash, f.Seq, off, size, fmt.Sprintf("event %d: event_hash is not the hash of the record", f.Seq))
	}
	switch {
	case j.known && (f.Seq != j.seq+1 || f.Seq == 0):
		j.faultSized(frame.CheckSequence, frame.BadSequence, f.Seq, off, size, fmt.Sprintf("event %d stands where event %d belongs", f.Seq, j.seq+1))
	case !j.known && j.n > 0 && f.Seq <= j.seq:
		j.faultSized(frame.CheckSequence, frame.BadSequence, f.Seq, off, size, fmt.Sprintf("event %d follows event %d", f.Seq, j.seq))
	case j.known && f.PreviousHash != j.hash && f.Seq == 1:
		j.faultSized(frame.CheckStart, frame.BadChainStart, f.Seq, off, size, "event 1 does not link to the header_hash of segment 0")
	case j.known && f.PreviousHash != j.hash:
		j.faultSized(frame.CheckLink, frame.BadLinkage, f.Seq, off, size, fmt.Sprintf("event %d does not link to the event_hash of event %d", f.Seq, f.Seq-1))
	}
	j.known, j.seq, j.hash = true, f.Seq, f.Hash
	j.n++
}

// holds notes an event; as long as nothing is wrong all up to it is vouched for.
func (j *judge) holds(seq uint64) {
	j.rep.LastSeq, j.rep.EventCount = seq, j.n
	if j.rep.FaultsTotal == 0 {
		j.rep.VerifiedTo = seq
	}
}

func (j *judge) fault(c frame.CheckName, k frame.Kind, seq uint64, why string) {
	j.faultSized(c, k, seq, 0, 0, why)
}

func (j *judge) faultAt(c frame.CheckName, k frame.Kind, seq uint64, off int64, why string) {
	j.faultSized(c, k, seq, off, 0, why)
}

func (j *judge) faultSized(c frame.CheckName, k frame.Kind, seq uint64, off, size int64, why string) {
	j.rep.Add(frame.Fault{Check: c, Kind: k, Offset: off, Length: size, Seq: seq, Detail: why})
}

// conclude judges what only the whole can show. An error is one of the stream's.
func (v *bundleJudge) conclude() error {
	v.rep.Ran(CheckForm, frame.CheckTrailing)
	if err := v.concludeForm(); err != nil {
		return err
	}
	r, h := v.rep, &v.head
	r.Head = frame.ReportHead{Seq: r.LastSeq, EventHash: hex.EncodeToString(v.last[:]), EndOffset: v.in.off}
	if v.in.err == nil {
		r.Ran(frame.CheckCount)
		if v.n != h.count {
			v.fault(frame.CheckCount, BadCount, 0, fmt.Sprintf("payload_count is %d, and %d are there", h.count, v.n))
		}
		if v.last != h.last {
			v.fault(frame.CheckCount, BadEnds, r.LastSeq, "last_event_hash is not the hash of the last event")
		}
		r.NotExcluded = append(r.NotExcluded, fmt.Sprintf("what happened before event %d and after event %d is not in the bundle", h.start, h.end))
	}
	return nil
}

// concludeForm turns what stopped the reader into a fault.
func (v *bundleJudge) concludeForm() error {
	var form *formError
	where := "in the head"
	if v.n > 0 || v.rep.Check(frame.CheckHash).Status != frame.NotRun {
		where = fmt.Sprintf("in or after payload %d (event %d)", v.n+1, v.head.start+v.n)
	}
	f := frame.Fault{Check: CheckForm, Offset: v.in.off}
	switch err := v.in.err; {
	case err == nil:
		return nil
	case errors.As(err, &form):
		f.Kind, f.Detail = BadForm, where+": "+form.Error()
		v.rep.Add(f)
	case errors.Is(err, errCut):
		f.Kind, f.Detail = CutShort, where+": "+err.Error()
		v.rep.AddPartial(f)
	default:
		return err
	}
	return nil
}

// withContext makes a stream end with its context.
func withContext(ctx context.Context, r io.Reader) io.Reader { return &boundReader{ctx, r} }

type boundReader struct {
	ctx context.Context
	r   io.Reader
}

func (b *boundReader) Read(p []byte) (int, error) {
	if err := b.ctx.Err(); err != nil {
		return 0, err
	}
	return b.r.Read(p)
}
