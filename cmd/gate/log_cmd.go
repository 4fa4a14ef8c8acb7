package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"writegate/cmd/terminal"
	"writegate/commands/fault"
	"writegate/eventlog"
	"writegate/eventlog/event"
	"writegate/eventlog/frame"
	"writegate/projections"
)

// parseWorkerName is the subcommand that the gate starts for itself.
const parseWorkerName = "parse-worker"

func (a *app) logCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "log", Short: "Verify, read and rebuild from the event log", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	cmd.AddCommand(a.logVerifyCommand(), a.logDumpCommand(), a.logRebuildCommand())
	return cmd
}

func (a *app) logVerifyCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "verify [FILE]", Short: "Recompute every hash of the log; a running gate may go on", Args: cobra.MaximumNArgs(1),
		Long: `Recompute every hash and link of the log and compare it with what is known elsewhere.

FILE is GATE_AUDIT_WAL_PATH by default. Nothing is written. Exit code 0: ok; 1:
corruption_detected; 2: partial, not everything could be looked at.`,
		RunE: func(c *cobra.Command, args []string) error {
			path, err := a.walPath(args)
			if err != nil {
				return err
			}
			return a.verifyLog(c, path, asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the report as JSON")
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

func (a *app) verifyLog(c *cobra.Command, path string, asJSON bool) error {
	set, err := frame.Discover(c.Context(), frame.OS{}, path)
	if err != nil {
		return exitWith(exitPartial, err)
	}
	progress := terminal.NewProgress(a.err, "verifying", true)
	report, err := frame.Verify(c.Context(), set, frame.Options{Progress: progress.Step})
	if err = errors.Join(err, progress.Done(), set.Close()); err != nil {
		return exitWith(exitPartial, err)
	}
	print := terminal.PrintReport
	if asJSON {
		print = terminal.PrintReportJSON
	}
	if err := print(c.OutOrStdout(), report); err != nil {
		return exitWith(exitPartial, err)
	}
	switch report.Status {
	case frame.OK:
		return nil
	case frame.Corruption:
		return exitWith(exitFailed, nil)
	}
	return exitWith(exitPartial, nil)
}

// readLog opens the log of the settings alone: no gate may be running, because
// opening it is the writer's business. It appends nothing.
func (a *app) readLog(ctx context.Context, s *settings) (*eventlog.Log, error) {
	l, _, err := eventlog.Open(ctx, eventlog.Options{
		Path: s.AuditWALPath, Fsync: s.AuditFsync, OnTornTail: eventlog.TornTailRefuse, AllowNetworkFS: s.AuditNetworkFS,
	})
	if err != nil {
		return nil, exitWith(eventlog.ExitCode(err), fmt.Errorf("the event log %s cannot be opened: %w", s.AuditWALPath, err))
	}
	return l, nil
}

func (a *app) logDumpCommand() *cobra.Command {
	var from, to uint64
	cmd := &cobra.Command{
		Use: "dump", Short: "Print the events of the log, one JSON object a line", Args: cobra.NoArgs,
		Long: `Print the events of GATE_AUDIT_WAL_PATH in their readable form, one JSON object a line.

The gate must not be running; of a running one use GET /audit, or the JSONL file.`,
		RunE: func(c *cobra.Command, _ []string) (err error) {
			s, err := a.settingsFor()
			if err != nil {
				return err
			}
			if _, err := os.Stat(s.AuditWALPath); err != nil {
				return exitWith(exitPartial, err)
			}
			l, err := a.readLog(c.Context(), s)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, l.Close(context.WithoutCancel(c.Context()))) }()
			out := bufio.NewWriter(c.OutOrStdout())
			var line []byte
			for e, err := range l.From(c.Context(), max(from, 1)) {
				if err != nil {
					return exitWith(exitPartial, errors.Join(err, out.Flush()))
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
		},
	}
	cmd.Flags().Uint64Var(&from, "from-seq", 1, "first event")
	cmd.Flags().Uint64Var(&to, "to-seq", 0, "last event; 0 = to the end")
	return cmd
}

func (a *app) logRebuildCommand() *cobra.Command {
	return &cobra.Command{
		Use: "rebuild", Short: "Throw the projections away and fold them anew from the log", Args: cobra.NoArgs,
		Long: `Fold all projections (approvals, policy versions, executions, idempotency keys, the audit index)
anew from the event log into GATE_APPROVAL_DB_PATH. The gate must not be running.

The log itself is not touched. A log that has lost events that the old projections still know is
refused: verify it first.`,
		RunE: func(c *cobra.Command, _ []string) (err error) {
			s, err := a.settingsFor()
			if err != nil {
				return err
			}
			if _, err := os.Stat(s.AuditWALPath); err != nil {
				return exitWith(exitPartial, err)
			}
			l, err := a.readLog(c.Context(), s)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, l.Close(context.WithoutCancel(c.Context()))) }()
			progress := terminal.NewProgress(a.err, "rebuilding", false)
			head := l.Head().Seq
			applied, err := projections.RebuildOffline(c.Context(), projections.Options{
				Dir: s.ApprovalDBPath, Progress: func(seq uint64) { progress.Step(int64(seq), int64(head)) },
			}, l)
			if err = errors.Join(err, progress.Done()); err != nil {
				return exitWith(exitFailed, fault.Of(err))
			}
			fmt.Fprintln(c.OutOrStdout(), "The projections hold the log up to event "+strconv.FormatUint(applied.Seq, 10)+".")
			return nil
		},
	}
}
