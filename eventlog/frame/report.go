package frame

import (
	"encoding/hex"
	"time"
)

// A Status is the verdict of a verification.
type Status string

// The three verdicts. Corruption outranks everything, partial outranks ok.
const (
	OK         Status = "ok"
	Partial    Status = "partial"
	Corruption Status = "corruption_detected"
)

// A CheckName names one of the checks of a full verification.
type CheckName string

// The checks, in the order of the report.
const (
	CheckExistence CheckName = "wal_existence"
	CheckLock      CheckName = "read_lock"
	CheckHeader    CheckName = "header"
	CheckCount     CheckName = "event_count"
	CheckHash      CheckName = "event_hash"
	CheckLink      CheckName = "previous_hash"
	CheckSequence  CheckName = "sequence"
	CheckStart     CheckName = "chain_start"
	CheckTrailing  CheckName = "trailing_bytes"
	CheckPadding   CheckName = "padding"
	CheckAnchors   CheckName = "anchors"
)

var checkOrder = []CheckName{
	CheckExistence, CheckLock, CheckHeader, CheckCount, CheckHash, CheckLink,
	CheckSequence, CheckStart, CheckTrailing, CheckPadding, CheckAnchors,
}

// A Kind says what was observed.
type Kind string

// Kinds of faults. Those that a crash can cause make a report partial, all
// others are corruption; missing_log and the two unreadable kinds depend on
// what else is there and are told apart by where they are found.
const (
	MissingLog          Kind = "missing_log"
	BadHeader           Kind = "header"
	BadChainStart       Kind = "chain_start"
	BadEventHash        Kind = "event_hash"
	BadLinkage          Kind = "linkage"
	BadSequence         Kind = "sequence"
	BadFrameRule        Kind = "frame_rule"
	DurablePromise      Kind = "durable_promise"
	SealedSegment       Kind = "sealed_segment"
	AnchorBeyondEnd     Kind = "anchor_beyond_end"
	HistoryRewritten    Kind = "history_rewritten"
	UntrustedAnchor     Kind = "anchor_untrusted" // an anchor that was asked for proves nothing
	CommittedUnreadable Kind = "committed_range_unreadable"
	TornTail            Kind = "torn_tail"
	IncompleteBatch     Kind = "incomplete_batch"
	NoReadLock          Kind = "read_lock_unavailable"
	Unreadable          Kind = "unreadable"
	RangeLimited        Kind = "range_limited"
)

// partialKinds are what an honest crash, a missing permission or the question
// itself can bring about.
var partialKinds = map[Kind]bool{
	TornTail: true, IncompleteBatch: true, NoReadLock: true, Unreadable: true, RangeLimited: true, UntrustedAnchor: true,
}

// A Report is the answer of a verification; its JSON is the contract's.
type Report struct {
	Status      Status         `json:"status"`
	Source      string         `json:"source"`
	Path        string         `json:"path"`
	LogID       string         `json:"log_id"`
	Origin      string         `json:"origin"`
	FirstSeq    uint64         `json:"first_seq"`
	LastSeq     uint64         `json:"last_seq"`
	EventCount  uint64         `json:"event_count"`
	Head        ReportHead     `json:"head"`
	VerifiedTo  uint64         `json:"verified_to"` // up to here nothing is wrong
	AnchorLevel Level          `json:"anchor_level"`
	Anchors     []AnchorResult `json:"anchors"`
	// Signature says of an evidence bundle who vouches for it: trusted, self-asserted
	// or none; empty where it is wrong, and for other sources. SignedBy is the key.
	Signature   string     `json:"signature,omitempty"`
	SignedBy    string     `json:"signed_by,omitempty"`
	Checks      []Check    `json:"checks"`
	FaultsTotal int        `json:"faults_total"`
	Faults      []Fault    `json:"faults"` // the first MaxFaults
	Tail        TailReport `json:"tail"`
	Warnings    []string   `json:"warnings"`
	NotExcluded []string   `json:"not_excluded"`
	StartedAt   string     `json:"started_at"`
	DurationMS  int64      `json:"duration_ms"`

	// RightTo is the last event of a complete batch up to which, from event 1 on, no fault
	// of any kind was met; 0 where there is none.
	RightTo uint64 `json:"-"`
	// End is the last complete batch, for whoever wants to write after it.
	End End `json:"-"`
	// Header is segment 0's, or the first that could be read.
	Header Header `json:"-"`

	started time.Time
	corrupt int
}

// ReportHead is the last event of the report, and where its batch ends.
type ReportHead struct {
	Seq       uint64 `json:"seq"`
	EventHash string `json:"event_hash"`
	Segment   uint32 `json:"segment"`
	EndOffset int64  `json:"end_offset"`
}

// A Check is the outcome of one check.
type Check struct {
	Name   CheckName `json:"name"`
	Status string    `json:"status"` // pass, fail or not_run
	Faults int       `json:"faults"`
}

// Outcomes of a check.
const (
	Pass   = "pass"
	Fail   = "fail"
	NotRun = "not_run"
)

// A Fault is one observation: where, what, and in words why.
type Fault struct {
	Check   CheckName `json:"check"`
	Kind    Kind      `json:"kind"`
	Segment uint32    `json:"segment"`
	Offset  int64     `json:"offset"`
	Length  int64     `json:"length"`
	Seq     uint64    `json:"seq"` // 0 where it can't be known
	Detail  string    `json:"detail"`
}

// TailReport is Tail in the report's JSON.
type TailReport struct {
	Segment        uint32 `json:"segment"`
	Offset         int64  `json:"offset"`
	Length         int64  `json:"length"`
	SHA256         string `json:"sha256"`
	SHA256Bytes    int64  `json:"sha256_bytes,omitempty"` // where the sum is not of all: of the first so many bytes
	ReadableFrames int    `json:"readable_frames"`
}

// An End is the last complete batch of the valid log.
type End struct {
	Segment    uint32
	Seq        uint64   // last event; first_seq-1 of the segment where there is none in it
	Hash       [32]byte // its hash, or what the first event of the log links to
	Offset     int64    // where the batch ends: the next one begins here
	BatchOff   int64    // where the batch begins; Offset where there is none
	DurableOff uint64   // what the batch promised
	Epoch      uint32
}

// MaxFaults is how many faults a report lists; all are counted.
const MaxFaults = 1000

// NewReport begins a report in which every check has yet to run.
func NewReport(source, path string) *Report {
	r := &Report{
		Status: OK, Source: source, Path: path, AnchorLevel: NoAnchor, started: time.Now(),
		Anchors: []AnchorResult{}, Faults: []Fault{}, Warnings: []string{}, NotExcluded: []string{},
	}
	for _, name := range checkOrder {
		r.Checks = append(r.Checks, Check{Name: name, Status: NotRun})
	}
	return r
}

// Ran marks checks as run; one that failed stays failed.
func (r *Report) Ran(names ...CheckName) {
	for _, name := range names {
		if c := r.Check(name); c.Status == NotRun {
			c.Status = Pass
		}
	}
}

// Check gives the entry of a check.
func (r *Report) Check(name CheckName) *Check {
	for i := range r.Checks {
		if r.Checks[i].Name == name {
			return &r.Checks[i]
		}
	}
	r.Checks = append(r.Checks, Check{Name: name, Status: NotRun})
	return &r.Checks[len(r.Checks)-1]
}

// Add counts a fault, lists it while there is room, and lets its kind decide
// about the verdict.
func (r *Report) Add(f Fault) { r.add(f, partialKinds[f.Kind]) }

// AddPartial counts a fault that means only that something could not be judged,
// for the judges of other sources, whose kinds this package does not know.
func (r *Report) AddPartial(f Fault) { r.add(f, true) }

func (r *Report) add(f Fault, partial bool) {
	c := r.Check(f.Check)
	c.Status = Fail
	c.Faults++
	r.FaultsTotal++
	if len(r.Faults) < MaxFaults {
		r.Faults = append(r.Faults, f)
	}
	switch {
	case !partial:
		r.corrupt++
		r.Status = Corruption
	case r.Status == OK:
		r.Status = Partial
	}
}

// Warn adds a sentence that changes no verdict.
func (r *Report) Warn(text string) { r.Warnings = append(r.Warnings, text) }

// Finish stamps the times. The clock says how long it took, and decides nothing.
func (r *Report) Finish() {
	r.StartedAt = stamp(r.started)
	r.DurationMS = time.Since(r.started).Milliseconds()
}

// stamp is the one form of time in reports: RFC 3339, UTC, nine decimals.
func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02T15:04:05.000000000Z07:00")
}

func hexHash(h [32]byte) string { return hex.EncodeToString(h[:]) }
