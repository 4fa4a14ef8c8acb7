package evidence

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"math"

	"writegate/eventlog/event"
	"writegate/eventlog/frame"
)

// VerifyJSONL judges a readable copy of the log: every line is taken in its one
// form, its record encoded and hashed again, and its number and link compared
// with the line before. It goes on after a fault with the next line.
//
// A file may begin with any event. From event 1 on it can be ok; from a later
// one it is at best partial. The report is complete in itself; the error is not
// nil only when ctx ended or r could not be read.
func VerifyJSONL(ctx context.Context, r io.Reader, o Options) (frame.Report, error) {
	v := &jsonlJudge{judge: judge{rep: frame.NewReport("jsonl", o.Path)}, o: o,
		in: bufio.NewReaderSize(withContext(ctx, r), buffer)}
	v.rep.Ran(CheckForm)
	if o.At != nil { // before the copy, which is written behind the log
		v.end.seq, v.end.hash, v.end.err = o.At(math.MaxUint64)
	}
	for {
		line, whole, err := v.line()
		if err != nil {
			return frame.Report{}, err
		}
		if len(line) == 0 && !whole {
			break
		}
		v.number++
		v.judgeLine(line, whole)
		v.off += v.size
		if !whole {
			break
		}
		if o.Progress != nil && v.number%1024 == 0 {
			o.Progress(v.off)
		}
	}
	v.conclude()
	v.rep.Finish()
	return *v.rep, nil
}

type jsonlJudge struct {
	judge
	o      Options
	in     *bufio.Reader
	buf    []byte
	record []byte
	off    int64 // where the line begins
	size   int64 // of the line with its end
	number uint64
	last   [32]byte
	end    logEnd
}

// logEnd is the last event of the log that the copy is held against.
type logEnd struct {
	seq  uint64
	hash [32]byte
	err  error     // why it is not known
	copy *[32]byte // event_hash of that event in the copy; nil where the copy has none
}

// line takes one line without its newline; whole says that it had one, in its first
// MaxSkipped bytes: a device and a file full of zeros have none. Of a line longer than
// any event only the beginning is kept.
func (v *jsonlJudge) line() (line []byte, whole bool, err error) {
	v.buf, v.size = v.buf[:0], 0
	for {
		part, err := v.in.ReadSlice('\n')
		v.size += int64(len(part))
		if len(v.buf) <= MaxLine {
			v.buf = append(v.buf, part...)
		}
		switch err {
		case nil:
			return bytes.TrimSuffix(v.buf, []byte("\n")), v.size <= MaxSkipped, nil
		case io.EOF:
			return v.buf, false, nil
		case bufio.ErrBufferFull:
			if v.size >= MaxSkipped {
				return v.buf, false, nil
			}
		default:
			return nil, false, err
		}
	}
}

func (v *jsonlJudge) judgeLine(line []byte, whole bool) {
	if !whole {
		detail := fmt.Sprintf("line %d has no end: it was being written, or the file was cut", v.number)
		if v.size >= MaxSkipped {
			detail = fmt.Sprintf("line %d has no end in its first %d bytes: what follows was not looked at", v.number, MaxSkipped)
		}
		v.rep.AddPartial(frame.Fault{Check: CheckForm, Kind: TornLine, Offset: v.off, Length: v.size, Detail: detail})
		return
	}
	e, err := v.parse(line)
	if err != nil {
		if v.o.Unquoted {
			err = event.ErrJSON
		}
		v.faultSized(CheckForm, BadForm, 0, v.off, v.size, fmt.Sprintf("line %d: %v", v.number, err))
		v.known = false
		return
	}
	f, err := v.encode(&e)
	if err != nil { // ParseJSON accepts only what has a record
		v.faultSized(CheckRecord, BadRecord, e.Seq, v.off, v.size, fmt.Sprintf("line %d: %v", v.number, err))
		v.known = false
		return
	}
	if v.n == 0 {
		v.begin(&f)
	}
	v.frame(&f, v.off, v.size)
	v.last = f.Hash
	if v.end.seq > 0 && f.Seq == v.end.seq {
		hash := f.Hash
		v.end.copy = &hash
	}
	v.holds(f.Seq)
}

func (v *jsonlJudge) parse(line []byte) (event.Envelope, error) {
	switch {
	case v.size > MaxLine:
		return event.Envelope{}, fmt.Errorf("%d bytes are more than any event has", v.size)
	case bytes.HasSuffix(line, []byte("\r")):
		return event.Envelope{}, fmt.Errorf("it ends with CR LF: another program wrote the file anew")
	}
	return event.ParseJSON(line)
}

func (v *jsonlJudge) encode(e *event.Envelope) (frame.Frame, error) {
	record, err := event.Encode(v.record[:0], &e.Draft)
	v.record = record
	if err == nil && len(record) > frame.MaxRecord {
		err = fmt.Errorf("a record of %d bytes", len(record))
	}
	return frame.Frame{Seq: e.Seq, PreviousHash: e.PreviousHash, Hash: e.Hash, Record: record}, err
}

// begin takes up the chain with the first line that can be read.
func (v *jsonlJudge) begin(f *frame.Frame) {
	r := v.rep
	r.Ran(frame.CheckHash, frame.CheckLink, frame.CheckSequence, frame.CheckCount)
	r.FirstSeq, r.VerifiedTo = f.Seq, f.Seq-min(f.Seq, 1)
	if f.Seq == 0 {
		v.known, v.seq = true, 0 // no event has this number
		return
	}
	if f.Seq > 1 || v.o.Header == nil {
		return
	}
	h := v.o.Header
	r.Ran(frame.CheckHeader, frame.CheckStart)
	r.LogID, r.Origin, r.Header = hex.EncodeToString(h.LogID[:]), h.Origin, *h
	v.known, v.seq, v.hash = true, 0, h.Hash
}

func (v *jsonlJudge) conclude() {
	r := v.rep
	r.Head = frame.ReportHead{Seq: r.LastSeq, EventHash: hex.EncodeToString(v.last[:]), EndOffset: v.off}
	switch {
	case v.n == 0 && r.FaultsTotal == 0:
		r.AddPartial(frame.Fault{Check: frame.CheckExistence, Kind: frame.MissingLog, Detail: "there is no event here"})
	case v.n > 0 && r.FirstSeq > 1:
		r.AddPartial(frame.Fault{Check: frame.CheckCount, Kind: frame.RangeLimited, Seq: r.FirstSeq,
			Detail: fmt.Sprintf("the file begins with event %d: what came before was not looked at", r.FirstSeq)})
	case v.n > 0 && v.o.Header == nil:
		r.NotExcluded = append(r.NotExcluded, "the beginning was not compared with the header of a log")
	}
	if v.o.At == nil || v.n == 0 || r.Status == frame.Corruption {
		r.NotExcluded = append(r.NotExcluded, "removal of lines at the end, or a file written anew as a whole, would not show: the log itself is the evidence, this is a copy of it")
		return
	}
	r.Ran(frame.CheckAnchors)
	v.compare()
	r.NotExcluded = append(r.NotExcluded, "removal of lines at the end would not show: the log itself is the evidence, this is a copy of it")
}

// compare holds the copy against the log at the last event that both have: its hash
// covers the events before it, so it speaks for all.
func (v *jsonlJudge) compare() {
	r, end := v.rep, &v.end
	seq, hash, err := end.seq, end.hash, end.err
	if err == nil && end.copy != nil && *end.copy != hash {
		v.rewritten(seq)
		return
	}
	if err == nil && seq != r.LastSeq { // one that goes on may have got there meanwhile
		seq, hash, err = v.o.At(r.LastSeq)
	}
	if err == nil && seq < r.LastSeq {
		err = fmt.Errorf("the log ends with event %d, or is damaged behind it", seq)
	}
	switch {
	case err != nil:
		r.AddPartial(frame.Fault{Check: frame.CheckAnchors, Kind: frame.UntrustedAnchor, Seq: r.LastSeq, Detail: fmt.Sprintf("the log could not be compared at event %d: %v", r.LastSeq, err)})
	case hash != v.last:
		v.rewritten(seq)
	}
}

func (v *jsonlJudge) rewritten(seq uint64) {
	v.faultSized(frame.CheckAnchors, frame.HistoryRewritten, seq, v.off, 0, fmt.Sprintf("the log has another event %d: the file was written anew, from some event on", seq))
}
