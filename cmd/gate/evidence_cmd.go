package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"writegate/cmd/terminal"
	"writegate/eventlog/checkpoint"
	"writegate/eventlog/evidence"
	"writegate/eventlog/frame"
)

func (a *app) evidenceCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "evidence", Short: "Export a range of the event log for somebody else, and check what was exported", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	cmd.AddCommand(a.evidenceExportCommand(), a.evidenceVerifyCommand())
	return cmd
}

func (a *app) evidenceExportCommand() *cobra.Command {
	var from, to uint64
	var reason string
	cmd := &cobra.Command{
		Use: "export FILE", Short: "Write events of the log as an evidence bundle; a running gate may go on", Args: cobra.ExactArgs(1),
		Long: `Write the events from --from-seq to --to-seq of GATE_AUDIT_WAL_PATH into FILE, as a bundle that
"logverify bundle" and "gate evidence verify" check without the log. The log is verified first.

Unlike POST /audit/evidence the command has no limit of events or bytes; its memory does not grow
with the range. FILE must not exist. With GATE_EVIDENCE_SIGNING_ENABLED the bundle is signed, and
holds a checkpoint of the log with proofs that the range is in it.`,
		Example: "  gate evidence export audit-2026.json --from-seq 1 --to-seq 4000 --reason \"yearly audit\"",
		RunE: func(c *cobra.Command, args []string) error {
			s, err := a.settingsFor()
			if err != nil {
				return err
			}
			return a.exportEvidence(c.Context(), s, args[0], evidence.Request{First: from, Last: to, Reason: reason, CreatedAt: time.Now()})
		},
	}
	cmd.Flags().Uint64Var(&from, "from-seq", 1, "first event")
	cmd.Flags().Uint64Var(&to, "to-seq", 0, "last event; 0 = to the end")
	cmd.Flags().StringVar(&reason, "reason", "", "why the bundle is made; it stands in it")
	return cmd
}

// exportEvidence verifies the log, with the checkpoints beside it, and writes
// what it vouches for.
func (a *app) exportEvidence(ctx context.Context, s *settings, file string, r evidence.Request) error {
	if err := s.notOwn(file); err != nil {
		return exitWith(exitPartial, err)
	}
	key, err := s.signingKey()
	if err != nil {
		return exitWith(exitConfigured, err)
	}
	set, report, err := a.judgeLog(ctx, s.AuditWALPath)
	if err != nil {
		return exitWith(exitPartial, errors.Join(err, set.Close()))
	}
	defer set.Close()
	if r.Last == 0 {
		r.Last = report.VerifiedTo
	}
	switch {
	case report.Status == frame.Corruption:
		return exitAfter(report, errors.New("the log is damaged, so there is no bundle of it (gate log verify says more)"))
	case slices.ContainsFunc(report.Anchors, func(a frame.AnchorResult) bool {
		return a.Result == frame.AnchorMismatch || a.Result == frame.AnchorBeyond
	}):
		return exitAfter(report, fmt.Errorf("the log is not what is known of it from elsewhere, so there is no bundle of it: %s", report.Faults[0].Detail))
	case report.VerifiedTo == 0:
		return exitWith(exitPartial, fmt.Errorf("there are no events to export: %s (GATE_AUDIT_WAL_PATH) is no log, or an empty one (gate log verify says more)", s.AuditWALPath))
	case r.First == 0 || r.First > r.Last || r.Last > report.VerifiedTo:
		return fmt.Errorf("events %d to %d are not a range of the log, which has 1 to %d", r.First, r.Last, report.VerifiedTo)
	}
	bundle, err := prepareBundle(ctx, &set, r, key, report.VerifiedTo)
	if err != nil {
		return exitWith(exitFailed, err)
	}
	if err := writeBundle(ctx, bundle, file, terminal.NewProgress(a.err, "writing", true)); err != nil {
		return exitWith(exitFailed, err)
	}
	signed := "not signed"
	if key != nil {
		signed = "signed by " + key.Public().ID()
	}
	fmt.Fprintf(a.out, "Wrote events %d to %d of log %s into %s (%d bytes, %s). Check it with `logverify bundle %s`.\n", r.First, r.Last, report.LogID, file, bundle.Size(), signed, file)
	return nil
}

// prepareBundle reads the range, and the whole log up to size where it is signed.
func prepareBundle(ctx context.Context, set *frame.Set, r evidence.Request, key *checkpoint.PrivateKey, size uint64) (*evidence.Bundle, error) {
	genesis, err := set.Genesis()
	if err != nil {
		return nil, err
	}
	var signer evidence.Signer
	if key != nil {
		if signer, err = newReadSigner(ctx, key, set, genesis.Origin, size, r.First, r.Last); err != nil {
			return nil, err
		}
	}
	return evidence.Prepare(ctx, readLog{set, genesis}, r, signer)
}

// writeBundle writes beside the file and renames, so that a half bundle is
// never taken for a whole one.
func writeBundle(ctx context.Context, bundle *evidence.Bundle, file string, shown *terminal.Progress) (err error) {
	if _, err := os.Lstat(file); err == nil {
		return fmt.Errorf("%s exists; name a file that does not", file)
	}
	out, err := os.CreateTemp(filepath.Dir(file), ".bundle-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(out.Name()))
		}
	}()
	counted := &countedWriter{w: out, total: bundle.Size(), shown: shown}
	err = bundle.Write(ctx, counted)
	if err == nil {
		err = out.Sync()
	}
	if err = errors.Join(err, shown.Done(), out.Close()); err != nil {
		return err
	}
	return os.Rename(out.Name(), file)
}

// countedWriter tells how far a file is.
type countedWriter struct {
	w           io.Writer
	done, total int64
	shown       *terminal.Progress
}

func (c *countedWriter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.done += int64(n)
	c.shown.Step(c.done, c.total)
	return n, err
}

// readLog is a log that is read without opening it as its writer does.
type readLog struct {
	set     *frame.Set
	genesis frame.Header
}

func (r readLog) Header() frame.Header { return r.genesis }

func (r readLog) Frames(ctx context.Context, first, last uint64) iter.Seq2[frame.Frame, error] {
	return func(yield func(frame.Frame, error) bool) {
		for p, err := range r.set.Frames(ctx, last) {
			if err == nil && p.Seq < first {
				continue
			}
			if !yield(p.Frame, err) || err != nil || p.Seq == last {
				return
			}
		}
	}
}

func (a *app) evidenceVerifyCommand() *cobra.Command {
	var keys []string
	var asJSON bool
	cmd := &cobra.Command{
		Use: "verify FILE", Short: "Check an evidence bundle, without the log it came from", Args: cobra.ExactArgs(1),
		Long: `Check an evidence bundle: its form to the last byte, every hash, link and number, every readable
event against its record; and where it is signed, signature, checkpoint and proofs. Without --key the
bundle's own key is used, and the first line says self-asserted: anyone can sign with a key of their own. With --key
a bundle that is not signed by one of them is refused.

Exit code 0: ok; 1: corruption_detected; 2: partial; 64: usage.`,
		RunE: func(c *cobra.Command, args []string) error {
			trusted, err := terminal.Keys(keys)
			if err != nil {
				return err
			}
			in, size, err := terminal.OpenFile(args[0])
			if err != nil {
				return exitWith(exitPartial, err)
			}
			defer in.Close()
			shown := terminal.NewProgress(a.err, "verifying", true)
			report, err := evidence.Verify(c.Context(), in, evidence.Options{Path: args[0], Keys: trusted, Progress: func(done int64) { shown.Step(done, max(size, done)) }})
			if err = errors.Join(err, shown.Done()); err != nil {
				return exitWith(exitPartial, err)
			}
			print := terminal.PrintReport
			if asJSON {
				print = terminal.PrintReportJSON
			}
			if err := print(a.out, report); err != nil {
				return exitWith(exitFailed, err)
			}
			return exitAfter(report, nil)
		},
	}
	cmd.Flags().StringArrayVar(&keys, "key", nil, terminal.KeyUsage)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the report as one JSON object")
	return cmd
}
