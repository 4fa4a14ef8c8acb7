package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"writegate/cmd/terminal"
	"writegate/eventlog/frame"
)

type walFlags struct {
	from, to uint64
	workers  int
	json     bool
}

// walCommand is "logverify wal FILE"; it puts the verdict's exit code into code.
func walCommand(code *int) *cobra.Command {
	var f walFlags
	cmd := &cobra.Command{
		Use:     "wal FILE",
		Short:   "Check a write-ahead log: every sum, hash, link and number",
		Long:    aboutWAL,
		Example: examplesWAL,
		Args:    asUsage(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			*code, err = verifyWAL(cmd.Context(), args[0], f, cmd.OutOrStdout(), cmd.ErrOrStderr())
			return err
		},
	}
	cmd.Flags().Uint64Var(&f.from, "from-seq", 0, "first event to check (then the verdict is at best partial)")
	cmd.Flags().Uint64Var(&f.to, "to-seq", 0, "last event to check (then the verdict is at best partial)")
	cmd.Flags().IntVar(&f.workers, "workers", 0, "how many processors to use (0: all)")
	cmd.Flags().BoolVar(&f.json, "json", false, "print the report as one JSON object")
	return cmd
}

func verifyWAL(ctx context.Context, file string, f walFlags, stdout, stderr io.Writer) (int, error) {
	switch {
	case f.workers < 0:
		return exitUsage, usageError{errors.New("--workers can't be negative")}
	case f.to > 0 && f.from > f.to:
		return exitUsage, usageError{fmt.Errorf("--from-seq %d comes after --to-seq %d", f.from, f.to)}
	}
	set, err := frame.Discover(ctx, frame.OS{}, file)
	if err != nil {
		return exitPartial, interrupted(err)
	}
	shown := terminal.NewProgress(stderr, "verifying", true)
	report, err := frame.Verify(ctx, set, frame.Options{From: f.from, To: f.to, Workers: f.workers, Progress: shown.Step})
	err = errors.Join(err, shown.Done(), set.Close())
	if err != nil {
		return exitPartial, interrupted(err)
	}
	print := terminal.PrintReport
	if f.json {
		print = terminal.PrintReportJSON
	}
	err = print(stdout, report)
	if err != nil && report.Status == frame.OK {
		return exitPartial, err
	}
	return exitOf(report.Status), err
}

func interrupted(err error) error {
	if errors.Is(err, context.Canceled) {
		return errors.New("interrupted: nothing was judged")
	}
	return err
}

const aboutWAL = `Checks the write-ahead log FILE, by default named audit.wal.

FILE is the active segment. Sealed segments (FILE.segments/) and the head file
(FILE.head) are found beside it and checked with it. A gate may be running: the
log is then judged up to the last event that the gate knows to be on disk.

A copy of the file alone can be checked too; without its head file the report
says that removed batches at its end would not show.

The checks:

  wal_existence   the files are there and open
  read_lock       no recovery or rotation ran while they were listed
  header          every segment begins with a well-formed header of this log
  event_count     as many events as the numbers say, and no anchor knows more
  event_hash      every event's hash is the hash of its content
  previous_hash   every event names the hash of the event before it
  sequence        the numbers run without gap or repeat
  chain_start     event 1 links to the header
  trailing_bytes  nothing but zeros after the last complete batch
  padding         the bytes between events are zero
  anchors         what is known from outside the log agrees with it`

const examplesWAL = `  logverify wal audit.wal
  logverify wal /backup/2026-05-01/audit.wal --json
  logverify wal audit.wal --from-seq 1000 --to-seq 2000`
