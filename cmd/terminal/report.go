// Package terminal is what the programs of this project share towards a person
// at a terminal: the keys and papers that are named on a command line, progress
// bars, and the report of a verification.
package terminal

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"writegate/eventlog/evidence"
	"writegate/eventlog/frame"
)

// shownFaults is how many faults the text lists; the JSON report lists more.
const shownFaults = 20

// PrintReport writes a report for a person. It is put together first and
// written once, so that a broken pipe is one error.
func PrintReport(w io.Writer, r frame.Report) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s\n%s\n\n", Visible(fmt.Sprintf("%s: %s%s", r.Path, r.Status, signature(r))), meaning(r))
	if r.LogID != "" {
		line(&b, "log", "%s (origin %q)", r.LogID, r.Origin)
	}
	if r.EventCount > 0 {
		line(&b, "events", "%d to %d, %d in all, nothing wrong up to %d", r.FirstSeq, r.LastSeq, r.EventCount, r.VerifiedTo)
		line(&b, "head", "event %d, hash %s", r.Head.Seq, r.Head.EventHash)
		line(&b, "", "%sends at byte %d", inSegment(r, r.Head.Segment), r.Head.EndOffset)
	} else {
		line(&b, "events", "none")
	}
	printAnchors(&b, r)
	printChecks(&b, r)
	printFaults(&b, r)
	if r.Tail.Length > 0 {
		line(&b, "tail", "%d bytes from byte %d of segment %d, %d readable frames, never acknowledged", r.Tail.Length, r.Tail.Offset, r.Tail.Segment, r.Tail.ReadableFrames)
		of := ""
		if r.Tail.SHA256Bytes > 0 {
			of = fmt.Sprintf(", of its first %d bytes", r.Tail.SHA256Bytes)
		}
		line(&b, "", "sha256 %s%s", r.Tail.SHA256, of)
	}
	list(&b, "warnings", r.Warnings)
	list(&b, "not excluded", r.NotExcluded)
	line(&b, "took", "%d ms, started %s", r.DurationMS, r.StartedAt)
	_, err := w.Write(b.Bytes())
	return err
}

// signature says in the first line who vouches for a bundle.
func signature(r frame.Report) string {
	switch r.Signature {
	case "":
		return ""
	case evidence.SignatureTrusted:
		return ", signed by " + r.SignedBy
	case evidence.SignatureSelfAsserted:
		return ", self-asserted: signed by " + r.SignedBy + ", which is no key that was given (--key)"
	}
	return ", not signed"
}

func meaning(r frame.Report) string {
	switch r.Status {
	case frame.OK:
		return "Everything was checked and nothing is wrong."
	case frame.Corruption:
		if r.Source != "wal" {
			return "It was damaged, changed or is not what it says it is."
		}
		return "The log was damaged or changed in a way that no crash explains."
	}
	return "Nothing is known to be wrong, but not everything could be judged."
}

// inSegment names a segment where there are any: only the log itself has them.
func inSegment(r frame.Report, n uint32) string {
	if r.Source != "wal" {
		return ""
	}
	return fmt.Sprintf("segment %d, ", n)
}

func line(b *bytes.Buffer, label, format string, args ...any) {
	fmt.Fprintf(b, "  %-13s %s\n", label, Visible(fmt.Sprintf(format, args...)))
}

func list(b *bytes.Buffer, label string, texts []string) {
	for i, text := range texts {
		if i > 0 {
			label = ""
		}
		line(b, label, "%s", text)
	}
}

func printAnchors(b *bytes.Buffer, r frame.Report) {
	label := "anchors"
	if len(r.Anchors) == 0 {
		line(b, label, "none")
	}
	for _, a := range r.Anchors {
		text := fmt.Sprintf("%s %s", a.Level, a.Result)
		if a.SelfAsserted {
			text += " (self-asserted)"
		}
		if a.Seq > 0 {
			text += fmt.Sprintf(", event %d", a.Seq)
		}
		if a.Time != "" {
			text += ", " + a.Time
		}
		line(b, label, "%s", text)
		label = ""
	}
}

func printChecks(b *bytes.Buffer, r frame.Report) {
	label := "checks"
	for _, c := range r.Checks {
		line(b, label, "%-8s %s", c.Status, c.Name)
		label = ""
	}
}

func printFaults(b *bytes.Buffer, r frame.Report) {
	if r.FaultsTotal == 0 {
		return
	}
	line(b, "faults", "%d", r.FaultsTotal)
	for i, f := range r.Faults {
		if i == shownFaults {
			line(b, "", "... and %d more; --json lists the first %d", r.FaultsTotal-i, frame.MaxFaults)
			return
		}
		where := fmt.Sprintf("%sbyte %d", inSegment(r, f.Segment), f.Offset)
		if f.Seq > 0 {
			where += fmt.Sprintf(", event %d", f.Seq)
		}
		if f.Kind == frame.UntrustedAnchor {
			where = "it proves nothing about the log" // and has no place in it
		}
		line(b, "", "%s: %s", f.Kind, where)
		line(b, "", "  %s", f.Detail)
	}
}

// PrintReportJSON writes a report as one JSON object.
func PrintReportJSON(w io.Writer, r frame.Report) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(r)
}
