package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"writegate/cmd/terminal"
	"writegate/eventlog"
	"writegate/eventlog/event"
	"writegate/eventlog/frame"
	"writegate/projections"
)

func (a *app) logDigestCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "digest [FILE]", Short: "Fold the log anew and compare with the digests it carries; a running gate may go on", Args: cobra.MaximumNArgs(1),
		Long: `Verify the log, fold all of it into projections of its own, and print their digest. On the way the
projections are held against every digest that the log carries: the last event of a clean run has one.

A difference is called projection_divergence. It accuses the program, not the log: a projector gives
another result than the one that wrote the digest. FILE is GATE_AUDIT_WAL_PATH by default. Nothing is
written but a temporary folder. Exit code 0: all equal; 1: a divergence, or corruption_detected; 2:
something could not be looked at.`,
		RunE: func(c *cobra.Command, args []string) error {
			path, err := a.walPath(args)
			if err != nil {
				return err
			}
			return a.digestLog(c.Context(), path, asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the result as JSON")
	return cmd
}

// A digestResult is what `gate log digest` prints.
type digestResult struct {
	Status      string             `json:"status"` // ok, projection_divergence, or the chain's
	LogID       string             `json:"log_id"`
	Seq         uint64             `json:"seq"` // the digest is as of this event
	Projectors  int                `json:"projectors"`
	Digest      string             `json:"digest"`
	Compared    int                `json:"compared"`
	Skipped     int                `json:"skipped"` // written by projectors of another version
	Divergences []digestDivergence `json:"divergences"`
}

type digestDivergence struct {
	Event    uint64 `json:"event"`
	AsOf     uint64 `json:"as_of"`
	Recorded string `json:"recorded"`
	Replayed string `json:"replayed"`
}

const projectionDivergence = "projection_divergence"

func (a *app) digestLog(ctx context.Context, path string, asJSON bool) error {
	set, report, err := a.judgeLog(ctx, path)
	var result digestResult
	if err == nil {
		result, err = a.refold(ctx, &set, &report)
	}
	if err = errors.Join(err, set.Close()); err != nil {
		return exitWith(exitPartial, err)
	}
	if err := result.print(a.out, path, asJSON); err != nil {
		return exitWith(exitPartial, err)
	}
	if report.Status == frame.OK && len(result.Divergences) > 0 {
		return exitWith(exitFailed, nil)
	}
	return exitAfter(report, fmt.Errorf("%s after event %d (gate log verify says more)", report.Status, report.VerifiedTo))
}

// refold folds what the chain vouches for into a folder that is removed again.
func (a *app) refold(ctx context.Context, set *frame.Set, report *frame.Report) (result digestResult, err error) {
	dir, err := os.MkdirTemp("", "gate-digest-")
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	progress := terminal.NewProgress(a.err, "folding", false)
	r, err := projections.Refold(ctx, projections.Options{
		Dir:      filepath.Join(dir, "projections"),
		Progress: func(seq uint64) { progress.Step(int64(seq), int64(report.VerifiedTo)) },
	}, vouchedLog{set, report})
	if err = errors.Join(err, progress.Done()); err != nil {
		return result, err
	}
	result = digestResult{
		Status: string(report.Status), LogID: report.LogID, Seq: r.Applied.Seq, Projectors: projections.ProjectorVersion,
		Digest: hex.EncodeToString(r.Digest[:]), Compared: r.Compared, Skipped: r.Skipped, Divergences: []digestDivergence{},
	}
	for _, d := range r.Divergences {
		result.Divergences = append(result.Divergences, digestDivergence{d.Event, d.AsOf, hex.EncodeToString(d.Digest[:]), hex.EncodeToString(d.Replayed[:])})
	}
	if report.Status == frame.OK && len(r.Divergences) > 0 {
		result.Status = projectionDivergence
	}
	return result, nil
}

// vouchedLog is a verified log, read from outside, as a source of projections.
type vouchedLog struct {
	set    *frame.Set
	report *frame.Report
}

// LogID implements projections.Source.
func (v vouchedLog) LogID() [16]byte { return v.report.Header.LogID }

// Head implements projections.Source.
func (v vouchedLog) Head() eventlog.Head {
	return eventlog.Head{Seq: v.report.VerifiedTo, Hash: v.report.End.Hash}
}

// Ancestors implements projections.Source.
func (v vouchedLog) Ancestors(ctx context.Context) ([]eventlog.Ancestor, error) {
	return eventlog.Ancestors(ctx, frame.OS{}, v.set.Path, v.From(ctx, 1))
}

// From implements projections.Source.
func (v vouchedLog) From(ctx context.Context, seq uint64) iter.Seq2[event.Envelope, error] {
	return eventlog.Vouched(ctx, v.set, v.report, seq)
}

// earlier gives the events of the logs before this one, the oldest first.
func (v vouchedLog) earlier(ctx context.Context, take func(*event.Envelope) error) error {
	ancestors, err := v.Ancestors(ctx)
	for _, a := range ancestors {
		for e, err := range a.Events(ctx) {
			if err == nil {
				err = take(&e)
			}
			if err != nil {
				return err
			}
		}
	}
	return err
}

func (r *digestResult) print(w io.Writer, path string, asJSON bool) error {
	if asJSON {
		return printJSON(w, r)
	}
	for _, d := range r.Divergences {
		fmt.Fprintf(w, "%s: event %d says %s as of event %d, a replay reaches %s\n", projectionDivergence, d.Event, d.Recorded, d.AsOf, d.Replayed)
	}
	if len(r.Divergences) > 0 {
		fmt.Fprintln(w, "The log is not at fault: a projector of this program gives another result than the one that wrote the digest.")
	}
	_, err := fmt.Fprintf(w, "%s: %s\nprojections as of event %d, projectors %d: %s\n%d recorded digest(s) compared, %d of other projectors left out\n",
		path, r.Status, r.Seq, r.Projectors, r.Digest, r.Compared, r.Skipped)
	return err
}
