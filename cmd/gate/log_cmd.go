package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"

	"github.com/spf13/cobra"

	"writegate/cmd/terminal"
	"writegate/eventlog"
	"writegate/eventlog/event"
	"writegate/eventlog/evidence"
	"writegate/eventlog/frame"
)

// parseWorkerName is the subcommand that the gate starts for itself.
const parseWorkerName = "parse-worker"

func (a *app) logCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "log", Short: "Verify, read, back up, restore and rebuild from the event log", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	cmd.AddCommand(a.logVerifyCommand(), a.logDumpCommand(), a.logTailCommand(), a.logBackupCommand(), a.logRestoreCommand(), a.logNewCommand(), a.logRebuildCommand(), a.logDigestCommand(), a.logFenceCommand())
	return cmd
}

func (a *app) walPath(args []string) (string, error) {
	if len(args) > 0 {
		return args[0], nil
	}
	s, err := a.settingsFor()
	if err != nil {
		return "", err
	}
	return s.AuditWALPath, nil
}

// judgeLog opens the files of a log for reading alone and verifies them, with the
// checkpoints beside it, and the log of the settings with its projections. It takes no writer's lock, so a gate may be running; the
// caller closes the set.
func (a *app) judgeLog(ctx context.Context, path string) (frame.Set, frame.Report, error) {
	// Papers are read first: what a running gate writes later is then no surprise.
	papers, err := a.papers(path, verifyFlags{})
	if err != nil {
		return frame.Set{}, frame.Report{}, err
	}
	return a.judgeWith(ctx, path, papers)
}

// judgeWith is judgeLog with what was named besides.
func (a *app) judgeWith(ctx context.Context, path string, papers evidence.Outside) (frame.Set, frame.Report, error) {
	projected := a.projectedOf(path)
	set, err := frame.Discover(ctx, frame.OS{}, path)
	if err != nil {
		return set, frame.Report{}, err
	}
	anchors, said := projected.of(&set)
	progress := terminal.NewProgress(a.err, "verifying", true)
	report, err := papers.Verify(ctx, &set, frame.Options{Anchors: anchors, Progress: progress.Step})
	for _, w := range said {
		report.Warn(w)
	}
	return set, report, errors.Join(err, progress.Done())
}

// reaches refuses to begin behind the next event of the log: what is asked for there
// is of another log.
func reaches(r *frame.Report, from uint64) error {
	if from > r.VerifiedTo+1 {
		return fmt.Errorf("--from-seq %d: what can be vouched for ends at event %d", from, r.VerifiedTo)
	}
	return nil
}

// exitAfter is a report's exit code; why is what to say where it is not ok.
func exitAfter(r frame.Report, why error) error {
	switch r.Status {
	case frame.OK:
		return nil
	case frame.Corruption:
		return exitWith(exitFailed, why)
	}
	return exitWith(exitPartial, why)
}

func (a *app) logDumpCommand() *cobra.Command {
	var from, to uint64
	cmd := &cobra.Command{
		Use: "dump [FILE]", Short: "Print the events of the log, one JSON object a line; a running gate may go on", Args: cobra.MaximumNArgs(1),
		Long: `Verify the log, then print its events in their readable form, one JSON object a line.

FILE is GATE_AUDIT_WAL_PATH by default. Nothing is written and no lock of the gate is taken; of a
log that a gate is writing, what is on disk at the start is printed. Where something is wrong with
the log, the events before it are printed and the exit code is that of "gate log verify".`,
		RunE: func(c *cobra.Command, args []string) error {
			path, err := a.walPath(args)
			if err != nil {
				return err
			}
			return a.dumpLog(c, path, from, to)
		},
	}
	cmd.Flags().Uint64Var(&from, "from-seq", 1, "first event")
	cmd.Flags().Uint64Var(&to, "to-seq", 0, "last event; 0 = to the end")
	return cmd
}

func (a *app) dumpLog(c *cobra.Command, path string, from, to uint64) error {
	set, report, err := a.judgeLog(c.Context(), path)
	if err == nil {
		err = reaches(&report, from)
	}
	if err == nil {
		err = printEvents(c.OutOrStdout(), eventlog.Vouched(c.Context(), &set, &report, from), to)
	}
	if err = errors.Join(err, set.Close()); err != nil {
		return exitWith(exitPartial, err)
	}
	return exitAfter(report, fmt.Errorf("%s after event %d (gate log verify says more)", report.Status, report.VerifiedTo))
}

// printEvents prints a line for each event, the last one is to (0: no bound).
func printEvents(w io.Writer, events iter.Seq2[event.Envelope, error], to uint64) error {
	out := bufio.NewWriter(w)
	var line []byte
	for e, err := range events {
		if err != nil {
			return errors.Join(err, out.Flush())
		}
		if to != 0 && e.Seq > to {
			break
		}
		line = append(event.AppendJSON(line[:0], &e), '\n')
		if _, err := out.Write(line); err != nil {
			return err
		}
	}
	return out.Flush()
}

func printEvent(w io.Writer, e *event.Envelope) error {
	_, err := w.Write(append(event.AppendJSON(nil, e), '\n'))
	return err
}
