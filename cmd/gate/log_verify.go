package main

import (
	"errors"

	"github.com/spf13/cobra"

	"writegate/cmd/terminal"
	"writegate/eventlog"
	"writegate/eventlog/evidence"
	"writegate/eventlog/frame"
)

// verifyFlags are what a log is held against, and how the report is printed.
type verifyFlags struct {
	receipts, checkpoints, keys []string
	json                        bool
}

func (a *app) logVerifyCommand() *cobra.Command {
	var f verifyFlags
	cmd := &cobra.Command{
		Use: "verify [FILE]", Short: "Recompute every hash of the log; a running gate may go on", Args: cobra.MaximumNArgs(1),
		Long: `Recompute every hash and link of the log and compare it with what is known elsewhere: the head
file and the signed checkpoints beside the log, of the log of the settings with its projections
where no gate has them open, and with --receipts and --checkpoint what others kept.

FILE is GATE_AUDIT_WAL_PATH by default. Nothing is written. Give the key that signed the receipts
and checkpoints with --key: what was named and is not signed by it proves nothing, and the verdict
is at best partial. What was kept of a log before this one is held against that log, in FILE.retired. Of a log before this one that is missing, or does not end as the log behind it
names it, a warning tells; the verdict speaks of this log alone. Exit code 0: ok; 1: corruption_detected; 2: partial, not everything could be
looked at; 64: usage.`,
		Example: "  gate log verify\n  gate log verify audit.wal --receipts kept-by-clients/ --key evidence-key.pub.pem",
		RunE: func(c *cobra.Command, args []string) error {
			path, err := a.walPath(args)
			if err != nil {
				return err
			}
			return a.verifyLog(c, path, f)
		},
	}
	cmd.Flags().StringArrayVar(&f.receipts, "receipts", nil, "folder or file of receipts to hold against the log; may be repeated")
	cmd.Flags().StringArrayVar(&f.checkpoints, "checkpoint", nil, "signed note to hold against the log; may be repeated")
	cmd.Flags().StringArrayVar(&f.keys, "key", nil, terminal.KeyUsage)
	cmd.Flags().BoolVar(&f.json, "json", false, "print the report as JSON")
	return cmd
}

func (a *app) verifyLog(c *cobra.Command, path string, f verifyFlags) error {
	// Papers are read first: what a running gate writes later is then no surprise.
	papers, err := a.papers(path, f)
	if err != nil {
		return err
	}
	set, report, err := a.judgeWith(c.Context(), path, papers)
	if err == nil {
		if unread := eventlog.WarnOfAncestors(c.Context(), frame.OS{}, &set, &report); c.Context().Err() != nil {
			err = unread
		} else if unread != nil { // the log itself was judged
			report.Warn("nobody can tell which logs came before this one: " + unread.Error())
		}
	}
	if err = errors.Join(err, set.Close()); err != nil {
		return exitWith(exitPartial, err)
	}
	print := terminal.PrintReport
	if f.json {
		print = terminal.PrintReportJSON
	}
	switch err := print(c.OutOrStdout(), report); {
	case err != nil && report.Status == frame.Corruption: // it was found, and only the telling failed
		return exitWith(exitFailed, err)
	case err != nil:
		return exitWith(exitPartial, err)
	}
	return exitAfter(report, nil)
}

// papers reads what was named, and the checkpoints beside the log.
func (a *app) papers(wal string, f verifyFlags) (evidence.Outside, error) {
	keys, err := terminal.Keys(f.keys)
	if err != nil {
		return evidence.Outside{}, exitWith(exitUsage, err)
	}
	o, err := terminal.Inputs{Stdin: a.in}.Kept(wal, f.receipts, f.checkpoints, keys)
	if err != nil {
		return o, exitWith(exitPartial, err)
	}
	return o, nil
}
