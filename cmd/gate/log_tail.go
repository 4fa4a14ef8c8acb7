package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"writegate/eventlog"
	"writegate/eventlog/frame"
)

// tailEvery is how often the head file is looked at.
const tailEvery = 200 * time.Millisecond

func (a *app) logTailCommand() *cobra.Command {
	var last, from uint64
	cmd := &cobra.Command{
		Use: "tail [FILE]", Short: "Print the last events, and new ones as they become durable", Args: cobra.MaximumNArgs(1),
		Long: `Verify the log, print its last events in their readable form, one JSON object a line, and go on
with new ones as the gate makes them durable, until it is interrupted. Each new event is checked
against its hash and the one before it.

FILE is GATE_AUDIT_WAL_PATH by default. Nothing is written and no lock of the gate is taken; a gate
may start and stop meanwhile. A log that does not verify is not followed: the exit code is then that
of "gate log verify".`,
		RunE: func(c *cobra.Command, args []string) error {
			path, err := a.walPath(args)
			if err != nil {
				return err
			}
			return a.tailLog(c.Context(), path, last, from)
		},
	}
	cmd.Flags().Uint64VarP(&last, "number", "n", 10, "how many of the last events to begin with")
	cmd.Flags().Uint64Var(&from, "from-seq", 0, "begin with this event instead")
	return cmd
}

func (a *app) tailLog(ctx context.Context, path string, last, from uint64) error {
	set, report, err := a.judgeLog(ctx, path)
	if err == nil && from == 0 {
		from = report.VerifiedTo + 1 - min(last, report.VerifiedTo)
	}
	if err == nil {
		err = reaches(&report, from)
	}
	if err == nil {
		err = printEvents(a.out, eventlog.Vouched(ctx, &set, &report, from), 0)
	}
	if err = errors.Join(err, set.Close()); err != nil {
		return exitWith(exitPartial, err)
	}
	if report.Status != frame.OK && !onlyTorn(&report) {
		return exitAfter(report, fmt.Errorf("%s after event %d (gate log verify says more)", report.Status, report.VerifiedTo))
	}
	for e, err := range eventlog.After(ctx, frame.OS{}, path, &report, tailEvery) {
		if err == nil && e.Seq >= from {
			err = printEvent(a.out, &e)
		}
		if err != nil {
			code := exitPartial
			if errors.Is(err, eventlog.ErrCorrupt) {
				code = exitFailed
			}
			return exitWith(code, err)
		}
	}
	return nil
}

// onlyTorn tells whether nothing is wrong but an end that a crash tore; the next
// start of the gate goes on before it.
func onlyTorn(r *frame.Report) bool {
	for _, f := range r.Faults {
		if f.Kind != frame.TornTail && f.Kind != frame.IncompleteBatch {
			return false
		}
	}
	return r.Status != frame.Corruption
}
