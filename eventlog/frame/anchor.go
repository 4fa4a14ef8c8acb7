package frame

import (
	"fmt"
	"slices"
	"time"
)

// A Level says how far away an anchor is kept, and so what it can show.
type Level string

// Levels of anchors: head file, projections, receipts, checkpoints.
const (
	NoAnchor Level = "none"
	L1       Level = "L1"
	L2       Level = "L2"
	L3       Level = "L3"
	L4       Level = "L4"
)

// An Anchor is knowledge about the log that is not in the log: at Seq the
// event_hash was Hash.
type Anchor struct {
	Level Level
	// LogID is compared: an anchor of another log accuses. A checkpoint (L4) does not know
	// it, and for that level alone zeros are no id.
	LogID [16]byte
	Seq   uint64   // 0 stands for the beginning: Hash is segment 0's header_hash
	Hash  [32]byte // event_hash at Seq
	// OtherRoot says that the root over the events up to Seq is another than the one that is
	// known: no event_hash matches.
	OtherRoot bool
	// NoHash says that only reaching Seq is known: such an anchor is listed where
	// the log ends before it or where it was asked for, and says nothing otherwise.
	NoHash bool
	Time   time.Time
	// Source names the place for the person who reads the report.
	Source string
	// Untrusted anchors (unknown signer) are listed and never judged.
	Untrusted bool
	// SelfAsserted says that only the log itself names the key it was signed with:
	// whoever wrote the log could have signed it.
	SelfAsserted bool
	// Asked anchors were named by whoever wants the report: one that can't be
	// compared makes it partial.
	Asked bool
	// Doubt says why an anchor that was asked for proves nothing, and what would
	// change that. It makes the report partial; what contradicts the log still
	// accuses it, unless Untrusted.
	Doubt string
	// Unsigned anchors are the word of another log, for which nobody vouches: where it
	// and this log do not agree either may have been changed, and neither is accused.
	Unsigned bool
	// Contradicted says what was found wrong with the log by it, in a place that this
	// package does not look at: a log before this one. It accuses, unless Untrusted.
	Contradicted string
}

// Results of an anchor.
const (
	AnchorMatch     = "match"
	AnchorMismatch  = "mismatch"
	AnchorBeyond    = "beyond_end"
	AnchorMissing   = "missing" // not there, or nothing readable at its seq
	AnchorUntrusted = "untrusted"
)

// An AnchorResult is what came of an anchor.
type AnchorResult struct {
	Level  Level  `json:"level"`
	Seq    uint64 `json:"seq"`
	Time   string `json:"time"`
	Result string `json:"result"`
	// SelfAsserted is set where only the log itself names the signer's key.
	SelfAsserted bool `json:"self_asserted,omitempty"`
}

// anchorBook waits for the frames that anchors speak of.
type anchorBook struct {
	anchors []Anchor
	seen    []sighting // by anchor
	next    int        // first anchor whose seq has not been passed
	kept    int        // first anchor whose sighting a batch has yet to complete
}

type sighting struct {
	found   bool
	hash    [32]byte
	segment uint32
	offset  int64
}

func newAnchorBook(anchors []Anchor) *anchorBook {
	b := &anchorBook{anchors: slices.Clone(anchors), seen: make([]sighting, len(anchors))}
	slices.SortStableFunc(b.anchors, func(x, y Anchor) int {
		switch {
		case x.Seq < y.Seq:
			return -1
		case x.Seq > y.Seq:
			return 1
		}
		return 0
	})
	return b
}

// see notes the hash at a seq, until drop: keep follows where its batch is complete. What has
// a seq that was passed is no event. It is on the path of every frame.
func (b *anchorBook) see(seq uint64, hash [32]byte, segment uint32, offset int64) {
	for b.next < len(b.anchors) && b.anchors[b.next].Seq <= seq {
		if b.anchors[b.next].Seq == seq {
			b.seen[b.next] = sighting{true, hash, segment, offset}
		}
		b.next++
	}
}

// keep makes what was seen count: its batch is complete.
func (b *anchorBook) keep() { b.kept = b.next }

// drop forgets what was seen in a batch that did not come to its end.
func (b *anchorBook) drop() {
	clear(b.seen[b.kept:b.next])
	b.keep()
}

// know is see for what is in no batch that may still fail.
func (b *anchorBook) know(seq uint64, hash [32]byte, segment uint32, offset int64) {
	b.drop()
	b.see(seq, hash, segment, offset)
	b.keep()
}

// awaits reports whether an anchor speaks of an event not yet seen, up to seq.
func (b *anchorBook) awaits(seq uint64) bool {
	return b.next < len(b.anchors) && b.anchors[b.next].Seq <= seq
}

// knowsBeyond reports whether an anchor that somebody vouches for speaks of events after seq.
func (b *anchorBook) knowsBeyond(seq uint64) bool {
	for _, a := range b.anchors {
		if !a.Untrusted && !a.Unsigned && a.Seq > seq {
			return true
		}
	}
	return false
}

// judge settles every anchor against what was seen. Where the end of the log
// could not be looked at (blind), nothing is beyond it; base is nil where no header could
// be read.
func (b *anchorBook) judge(r *Report, base *Header, o *Options, blind bool) {
	b.drop()
	best := -1
	for i, a := range b.anchors {
		if a.Doubt != "" {
			r.Add(Fault{Check: CheckAnchors, Kind: UntrustedAnchor, Seq: a.Seq, Detail: a.Doubt})
		}
		if a.Untrusted {
			r.Anchors = append(r.Anchors, a.result(AnchorUntrusted))
			continue
		}
		if a.Seq < o.From && a.Seq > 0 || o.To > 0 && a.Seq > o.To {
			r.Warn(fmt.Sprintf("anchor %s at seq %d lies outside the range asked for and was not compared", a.Level, a.Seq))
			continue
		}
		res := b.compare(r, i, base, blind, o.Copy)
		if a.NoHash && res == AnchorMissing && !a.Asked {
			continue
		}
		r.Anchors = append(r.Anchors, a.result(res))
		if res == AnchorMissing && a.Asked {
			r.Add(Fault{Check: CheckAnchors, Kind: UntrustedAnchor, Seq: a.Seq, Detail: fmt.Sprintf("anchor %s%s could not be compared: not all that it knows of the events up to %d was there to read", a.Level, a.from(), a.Seq)})
		}
		if res == AnchorMatch && a.Doubt == "" && (best < 0 || a.Level > b.anchors[best].Level) {
			best = i
		}
	}
	if best >= 0 {
		r.AnchorLevel = b.anchors[best].Level
	}
	r.shortenMatches()
}

// listedMatches bounds the matching anchors of a report: a log of years has
// hundreds of thousands of checkpoints beside it.
const listedMatches = 1000

// shortenMatches leaves the oldest matching anchors out and says so. What does
// not match is listed always.
func (r *Report) shortenMatches() {
	matches := 0
	for _, a := range r.Anchors {
		if a.Result == AnchorMatch {
			matches++
		}
	}
	over := matches - listedMatches
	if over <= 0 {
		return
	}
	r.Warn(fmt.Sprintf("%d more anchors match; the older ones are not listed", over))
	r.Anchors = slices.DeleteFunc(r.Anchors, func(a AnchorResult) bool { // they are in the order of their seq
		older := a.Result == AnchorMatch && over > 0
		if older {
			over--
		}
		return older
	})
}

func (a *Anchor) result(res string) AnchorResult {
	return AnchorResult{Level: a.Level, Seq: a.Seq, Time: stamp(a.Time), Result: res, SelfAsserted: a.SelfAsserted}
}

func (b *anchorBook) compare(r *Report, i int, base *Header, blind, older bool) string {
	a, s := &b.anchors[i], b.seen[i]
	f := Fault{Check: CheckAnchors, Segment: r.Head.Segment, Offset: r.Head.EndOffset, Seq: a.Seq}
	switch {
	case a.Contradicted != "":
		f.Kind, f.Detail = HistoryRewritten, a.Contradicted
	case base != nil && a.LogID != base.LogID && (a.Level != L4 || a.LogID != [16]byte{}):
		f.Kind = HistoryRewritten
		f.Detail = fmt.Sprintf("anchor %s%s is of log %x: this is another log", a.Level, a.from(), a.LogID)
	case a.Seq > r.LastSeq && blind:
		return AnchorMissing
	case a.Seq > r.LastSeq:
		f.Kind = AnchorBeyondEnd
		f.Detail = fmt.Sprintf("anchor %s%s knows event %d, the log ends with %d", a.Level, a.from(), a.Seq, r.LastSeq)
		if older {
			r.Warn(f.Detail + ": this copy is older, or was cut")
		} else {
			r.Add(a.judged(f))
		}
		return AnchorBeyond
	case !s.found || a.NoHash:
		return AnchorMissing
	case s.hash == a.Hash && !a.OtherRoot:
		return AnchorMatch
	default:
		f.Kind, f.Segment, f.Offset = HistoryRewritten, s.segment, s.offset
		f.Detail = fmt.Sprintf("anchor %s%s has another event_hash at %d: the events up to there were written anew", a.Level, a.from(), a.Seq)
	}
	r.Add(a.judged(f))
	return AnchorMismatch
}

// judged is a fault that an anchor shows, as far as somebody vouches for it.
func (a *Anchor) judged(f Fault) Fault {
	if a.Unsigned {
		f.Kind, f.Detail = UntrustedAnchor, f.Detail+". That is nobody's signed word, so either of the two logs may have been changed: receipts and checkpoints of this one tell"
	}
	return f
}

func (a *Anchor) from() string {
	if a.Source == "" {
		return ""
	}
	return " (" + a.Source + ")"
}

// newestMatches gives the matching anchor that knows most, or nil, and the one that
// does among those that are kept away from this host, under a key that the log does
// not vouch for by itself.
func newestMatches(r *Report) (newest, away *AnchorResult) {
	newer := func(a, than *AnchorResult) bool {
		return than == nil || a.Seq > than.Seq || a.Seq == than.Seq && a.Time > than.Time
	}
	for i := range r.Anchors {
		a := &r.Anchors[i]
		if a.Result != AnchorMatch {
			continue
		}
		if newer(a, newest) {
			newest = a
		}
		if !a.SelfAsserted && (a.Level == L3 || a.Level == L4) && newer(a, away) {
			away = a
		}
	}
	return newest, away
}
