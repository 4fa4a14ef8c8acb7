package gateapi

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"writegate/commands/fault"
	"writegate/eventlog"
	"writegate/eventlog/checkpoint"
	"writegate/eventlog/event"
	"writegate/eventlog/evidence"
	"writegate/eventlog/frame"
	"writegate/http/httpd"
)

// maxExports is how many bundles are written at once (design/eventlog.md part 10).
const maxExports = 2

// operatorsBytes is what the size of a bundle is recorded in multiples of, rounded up,
// where an operator took it.
const operatorsBytes = 1 << 20

// maxFiles is how many files POST /audit/verify reads at once: each may be as
// large as a segment of the log. Verifications of the log itself share one run.
const maxFiles = 2

// verifyEvidence is GET /evidence/verify: the whole chain up to the durable
// head. Whatever it finds, the answer is 200 with the report.
func (a *api) verifyEvidence(c *httpd.Call) error {
	label, err := c.OperatorLabel()
	if err != nil {
		return err
	}
	report, err := a.Log.Verify(c.Request.Context())
	if frame.Exhausted(err) {
		return fault.New(fault.AuditUnavailable, "The log could not be looked at, because the service has too many files open. That says nothing of the log. Ask again later, and give the service a higher limit of open files.").Because(err)
	}
	if err != nil {
		return err
	}
	sendReport(c, report, label)
	return nil
}

// sendReport leaves out for all but operators where in a file its parts lie, and how
// long they are: where the rest of an event is shown, that is the length of what is
// withheld of it (event.Draft.WithoutData), and so the value where it has few.
func sendReport(c *httpd.Call, report frame.Report, label string) {
	if label == "" {
		report.Head.EndOffset, report.Tail.Offset, report.Tail.Length = 0, 0, 0
		report.Faults = slices.Clone(report.Faults) // all who asked meanwhile share one report
		for i := range report.Faults {
			report.Faults[i].Offset, report.Faults[i].Length = 0, 0
		}
	}
	c.JSON(http.StatusOK, report)
}

// exportEvidence is POST /audit/evidence: a range of the log as one document
// that anyone can check. The range is verified before the first byte is sent.
func (a *api) exportEvidence(c *httpd.Call) error {
	var body struct {
		StartSeq *uint64 `json:"start_seq"`
		EndSeq   *uint64 `json:"end_seq"`
		Reason   string  `json:"reason"`
	}
	if err := c.Decode(&body); err != nil {
		return err
	}
	fields := map[string]string{}
	if body.StartSeq == nil {
		fields["start_seq"] = "is required: the first event of the bundle"
	}
	if body.EndSeq == nil {
		fields["end_seq"] = "is required: the last event of the bundle"
	}
	if len(fields) > 0 {
		return httpd.Invalid(fields)
	}
	label, err := c.OperatorLabel()
	if err != nil {
		return err
	}
	if head := a.Log.Head().Seq; *body.StartSeq == 0 || *body.EndSeq > head || *body.StartSeq > *body.EndSeq {
		return exportFault(&evidence.RangeError{First: min(1, head), Last: head})
	}
	if err := c.Limit(); err != nil { // each export is an event: no client may fill the log with them
		return err
	}
	release, err := a.exports.Take(c, "bundles being written", 1)
	if err != nil {
		return err
	}
	defer release()
	ctx := c.Request.Context()
	bundle, err := evidence.Prepare(ctx, a.Source, evidence.Request{First: *body.StartSeq, Last: *body.EndSeq, Reason: body.Reason,
		CreatedAt: a.Now(), MaxEvents: a.MaxEvidenceEvents, MaxBytes: a.MaxEvidenceBytes, Open: label == ""}, a.signer())
	if err != nil {
		return exportFault(err)
	}
	digest, err := bundle.Digest(ctx)
	if err != nil {
		return exportFault(err)
	}
	size := bundle.Size()
	if label != "" { // everybody sees the event, and may know all of the bundle but what is withheld
		size = (size + operatorsBytes - 1) / operatorsBytes * operatorsBytes
	}
	// The trace is on disk before the first byte leaves; without it nothing does.
	if err := a.Commands.RecordExport(ctx, label, &event.EvidenceExported{Bytes: size, Client: c.Client(), Digest: digest,
		FirstSeq: *body.StartSeq, LastSeq: *body.EndSeq, Reason: body.Reason, SignedBy: bundle.SignedBy()}); err != nil {
		return err
	}
	return c.Stream(http.StatusOK, "application/json", bundle.Size(), func(w io.Writer) error { return bundle.Write(ctx, w) })
}

// signer vouches for bundles; nil where signing is off.
func (a *api) signer() evidence.Signer {
	if !a.Checkpoints.Signs() {
		return nil
	}
	return a.Checkpoints
}

// exportFault says why there is no bundle.
func exportFault(err error) error {
	var outside *evidence.RangeError
	var large *evidence.TooLargeError
	var data *evidence.DataError
	switch {
	case errors.As(err, &outside):
		return fault.New(fault.ValidationFailed, "The range is not one of the log's, which has events %d to %d. Send a start_seq and an end_seq within it.", outside.First, outside.Last).
			With("fields", map[string]string{"start_seq": "must be in the log and not after end_seq", "end_seq": "must be in the log"}).
			With("first_seq", outside.First).With("last_seq", outside.Last)
	case errors.Is(err, evidence.ErrReason):
		return fieldFault("reason", "must be UTF-8 of at most 4096 bytes")
	case errors.As(err, &data):
		return fault.New(fault.UnauthorizedOperator, "Event %d of the range keeps what is shown to operators alone: an idempotency key, rows that a statement under it gave, the verifier of an agent's token, what the database said of it, or the plan estimate of an approval. A bundle has its events whole, so this one needs the operator token; without it ask for a range that leaves the event out.", data.Seq).With("seq", data.Seq)
	case errors.As(err, &large):
		return fault.New(fault.ResultTooLarge, "The bundle would be over a limit. Ask for events up to %d, or let the operator export it: `gate evidence export` has no limit.", large.SuggestedEnd).
			With("events", large.Events).With("bytes", large.Bytes).With("max_events", large.MaxEvents).With("max_bytes", large.MaxBytes).With("suggested_end_seq", large.SuggestedEnd)
	case errors.Is(err, evidence.ErrCorrupt), errors.Is(err, eventlog.ErrCorrupt):
		return fault.New(fault.AuditCorruptionDetected, "The range is damaged, so there is no bundle of it. GET /evidence/verify shows the damage.").Because(err)
	case errors.Is(err, eventlog.ErrClosed):
		return fault.New(fault.AuditUnavailable, "The service is stopping, so there is no bundle. Ask again when it is back.").Because(err)
	case errors.Is(err, evidence.ErrSign):
		return fault.New(fault.AuditUnavailable, "The bundle cannot be signed now, so there is none. The operator finds the reason in GET /logs.").Because(err)
	}
	return err
}

// A signingKeyBody is the key that evidence is signed with, in every form that
// verifiers take.
type signingKeyBody struct {
	Algorithm string `json:"algorithm"`
	KeyID     string `json:"key_id"`
	PublicKey string `json:"public_key"` // base64 of 32 bytes
	VKey      string `json:"vkey"`       // named by the log's origin
}

// signingKey is GET /audit/evidence/signing-public-key.
func (a *api) signingKey(c *httpd.Call) error {
	if !a.Checkpoints.Signs() {
		return fault.New(fault.NotFound, "This service does not sign its evidence (GATE_EVIDENCE_SIGNING_ENABLED), so there is no key.")
	}
	key := a.Checkpoints.Public()
	c.JSON(http.StatusOK, signingKeyBody{checkpoint.Algorithm, key.ID(), key.Base64(), a.Checkpoints.VKey()})
	return nil
}

// verifyFile is POST /audit/verify: a file of the service's own folders.
func (a *api) verifyFile(c *httpd.Call) error {
	var body struct {
		AuditFile string `json:"audit_file"`
	}
	if err := c.Decode(&body); err != nil {
		return err
	}
	if body.AuditFile == "" {
		return fieldFault("audit_file", "is required: the path of a write-ahead log or of a readable copy of one")
	}
	path, err := a.judgeable(body.AuditFile)
	if err != nil {
		return err
	}
	if path == a.Files.WAL {
		return a.verifyEvidence(c)
	}
	label, err := c.OperatorLabel()
	if err != nil {
		return err
	}
	release, err := a.files.Take(c, "files being verified", 1)
	if err != nil {
		return err
	}
	defer release()
	report, err := a.verifyOne(c.Request.Context(), path)
	if err != nil {
		return err
	}
	sendReport(c, report, label)
	return nil
}

// AuditFiles are where files lie that POST /audit/verify may read.
type AuditFiles struct {
	WAL   string   // the log itself, absolute
	JSONL string   // its readable copy, absolute
	Roots []string // folders, absolute
}

// Bounds on names of files (Linux, limits.h), in bytes.
const (
	maxPath = 4095
	maxName = 255
)

// judgeable finds a regular file directly in one of the folders. What a name
// leads to elsewhere is refused before anything is opened.
func (a *api) judgeable(name string) (string, error) {
	if len(name) > maxPath || strings.ContainsRune(name, 0) {
		return "", fieldFault("audit_file", "can be no path: it has up to 4095 bytes, and no NUL")
	}
	path, err := filepath.Abs(name)
	if err != nil {
		return "", err
	}
	for _, root := range a.Files.Roots {
		if filepath.Dir(path) != root {
			continue
		}
		if len(filepath.Base(path)) > maxName {
			return "", fieldFault("audit_file", "can be no path: a name in it has up to 255 bytes")
		}
		return path, regular(root, filepath.Base(path))
	}
	return "", fieldFault("audit_file", "is in none of the folders whose files may be verified: that of the event log, of its segments, of the readable copy, and GATE_AUDIT_VERIFY_DIRS")
}

func regular(dir, name string) error {
	missing := fault.New(fault.NotFound, "There is no such file.")
	root, err := os.OpenRoot(dir + "/") // a pipe in its place is no folder, and is not waited for
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return missing
	case errors.Is(err, fs.ErrPermission):
		return closed()
	case err != nil:
		return err
	}
	defer root.Close()
	info, err := root.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return missing
	case errors.Is(err, fs.ErrPermission):
		return closed()
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return fieldFault("audit_file", "is no regular file")
	}
	return nil
}

// closed is the fault of what the service may not read.
func closed() *fault.Fault {
	return fieldFault("audit_file", "is closed to the service: let the user it runs as read the file and its folder")
}

// bundleStart is how an evidence bundle begins, and no readable copy of a log.
const bundleStart = `{"bundle_type":`

// verifyOne tells a log from a readable copy by its first bytes. The service's
// own copy has to begin as its log does; others may be of other logs.
func (a *api) verifyOne(ctx context.Context, path string) (frame.Report, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // it was a regular file a moment ago; a pipe would be waited for
	if errors.Is(err, fs.ErrPermission) {
		return frame.Report{}, closed()
	}
	if err != nil {
		return frame.Report{}, err
	}
	defer file.Close()
	first := make([]byte, len(bundleStart))
	if n, err := io.ReadFull(file, first); err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		return frame.Report{}, err
	} else if string(first) == bundleStart {
		return frame.Report{}, fieldFault("audit_file", "is an evidence bundle, which is checked without its log: use `logverify bundle FILE --key KEY`, or the evidence page of the dashboard")
	} else if n > 0 && first[0] == '{' {
		if _, err := file.Seek(0, io.SeekStart); err != nil {
			return frame.Report{}, err
		}
		o := evidence.Options{Path: path, Unquoted: true} // whoever asks may not read what lies beside the log
		own := path == a.Files.JSONL
		if header := a.Source.Header(); own {
			o.Header = &header
			o.At = func(upTo uint64) (uint64, [32]byte, error) {
				seq := min(upTo, a.Log.Head().Seq)
				if verified, damaged := a.Log.Damaged(); damaged {
					seq = min(seq, verified) // nothing vouches for later ones
				}
				if seq == 0 {
					return 0, [32]byte{}, nil
				}
				e, _, err := a.Log.AtCost(ctx, seq)
				return seq, e.Hash, err
			}
		}
		report, err := evidence.VerifyJSONL(ctx, file, o)
		if !own && report.EventCount == 0 { // no copy of a log: its lines are another program's
			report.Head.EndOffset = 0
			report.Faults, report.FaultsTotal = []frame.Fault{{Check: evidence.CheckForm, Kind: evidence.BadForm, Detail: event.ErrJSON.Error()}}, 1
		}
		return report, err
	}
	set, err := frame.Discover(ctx, frame.OS{}, path)
	if err != nil {
		return frame.Report{}, err
	}
	report, err := new(evidence.Outside).Verify(ctx, &set, frame.Options{}) // also against the log behind it
	if err == nil && path == a.Files.WAL {
		err = eventlog.WarnOfAncestors(ctx, frame.OS{}, &set, &report)
	}
	if path != a.Files.WAL && !frame.BeginsLog(first) { // no more is said of it than that: whoever asks may not read it
		report.Tail, report.Faults, report.FaultsTotal = frame.TailReport{}, []frame.Fault{{Check: frame.CheckHeader, Kind: frame.BadHeader, Length: frame.HeaderSize}}, 1
	}
	return report, errors.Join(err, set.Close())
}

// maxStreams is how many followers the log has over HTTP at once.
const maxStreams = 64

// streamBeat is how often a comment tells that a quiet stream lives.
const streamBeat = 15 * time.Second

// streamAudit is GET /audit/stream: server-sent events (HTML, part 9.2), one
// for each event of the log, its seq as their id. It begins behind
// Last-Event-ID, else at from_seq, else with the next event. It ends when the
// service stops, or when the client falls behind; then the client comes again
// with the last id it saw, and nothing is skipped: an id that the log does not have
// is refused.
func (a *api) streamAudit(c *httpd.Call) error {
	label, err := c.OperatorLabel()
	if err != nil {
		return err
	}
	next, err := a.streamStart(c)
	if err != nil {
		return err
	}
	release, err := a.streams.Take(c, "streams of the log", 10)
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := context.WithCancel(c.Request.Context())
	defer cancel()
	defer context.AfterFunc(a.Stopping, cancel)()
	return c.Events(ctx, streamBeat, func(send func(id, kind string, data []byte) error) error {
		return a.follow(ctx, label, next, send)
	})
}

// reached refuses to go on at start where the log has not all before it: whoever waited
// there would miss, and not know it, what the log gets up to there.
func (a *api) reached(start uint64, field string) error {
	last, ok := a.Log.Reaches(start)
	if ok {
		return nil
	}
	most := last
	if strings.HasSuffix(field, "from_seq") {
		most++
	}
	return fieldFault(field, httpd.OfAnotherLog(most)).With("last_seq", last)
}

// streamStart reads where a stream begins.
func (a *api) streamStart(c *httpd.Call) (uint64, error) {
	query, err := c.Query("from_seq")
	if err != nil {
		return 0, err
	}
	start, field := a.Log.Head().Seq+1, "from_seq"
	if text := query.Get("from_seq"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil || n == 0 {
			return 0, fieldFault("from_seq", "must be a whole number from 1")
		}
		start = n
	}
	if text := c.Request.Header.Get("Last-Event-ID"); text != "" { // an EventSource that comes again sends its first address again
		n, err := strconv.ParseUint(text, 10, 63)
		if err != nil {
			return 0, fieldFault("Last-Event-ID", "must be the id of an event of this stream")
		}
		start, field = n+1, "Last-Event-ID"
	}
	return start, a.reached(start, field)
}
