package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"writegate/commands/fence"
	"writegate/eventlog/event"
	"writegate/sqlgate/pgexec"
)

// defaultFenceRole is the role that `gate log fence ddl` makes where no URL names one.
const defaultFenceRole = "gate_fence"

func (a *app) logFenceCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "fence", Short: "The table that keeps gates on two copies of one log from both writing", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	cmd.AddCommand(&cobra.Command{
		Use: "ddl", Short: "Print the statements that make the fence's table, with the grants it needs", Args: cobra.NoArgs,
		Long: `Print the statements that make the table of GATE_LOG_FENCE_TABLE and the role of GATE_LOG_FENCE_URL
(` + defaultFenceRole + ` where it is not set), with what that role has to be granted. They are for the database of
GATE_LOG_FENCE_URL. Nothing is executed.`,
		RunE: func(c *cobra.Command, _ []string) error {
			s, err := a.settingsFor()
			if err != nil {
				return err
			}
			_, err = fmt.Fprint(c.OutOrStdout(), pgexec.LogFenceDDL(s.LogFenceTable, cmp.Or(pgexec.RoleOf(s.LogFenceURL), defaultFenceRole)))
			return err
		},
	}, a.logFenceTakeCommand())
	return cmd
}

func (a *app) logFenceTakeCommand() *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use: "take", Short: "Have this copy of the log go on, whatever the fence's table says of others", Args: cobra.NoArgs,
		Long: `Have the copy of the log at GATE_AUDIT_WAL_PATH be the one that goes on: the table of GATE_LOG_FENCE_URL gets
a new epoch that this copy alone knows. This is the way out where a start says that this copy may not go
on, and you know that it is to. What the other copy recorded is not in this one: approvals that were used
there may be used again here, and idempotency keys run anew. Where a backup was put back, "gate log restore" or
"gate log new" is better: a log that follows another one takes back what nobody can know.

No gate may run on this log, nor hold its fence: stop the other one for good first. The next start takes the
fence, and writes the reason into the log. Exit code 0: done; 75: a gate runs here, or another one holds the
fence; 69: the fence's database gives no answer; 2: there is no log here; 78: anything that the settings are to blame for.`,
		RunE: func(c *cobra.Command, _ []string) error { return a.takeLogFence(c, reason) },
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why this copy goes on; the next start writes it into the log")
	_ = cmd.MarkFlagRequired("reason")
	return cmd
}

func (a *app) takeLogFence(c *cobra.Command, reason string) (err error) {
	if len(reason) > maxReason {
		return fmt.Errorf("--reason is longer than %d bytes", maxReason)
	}
	s, err := a.settingsFor()
	if err != nil {
		return err
	}
	at := s.fenceDatabase()
	if s.LogFenceURL == "" {
		err = errors.New(pgexec.SettingFence + " is not set: there is no fence to take")
	} else {
		err = at.Check()
	}
	if err != nil {
		return exitWith(exitConfigured, err)
	}
	if _, err := os.Stat(s.AuditWALPath); err != nil {
		return exitWith(exitPartial, fmt.Errorf("there is no log here: %w", err))
	}
	ctx := c.Context()
	l, err := a.openLog(ctx, s) // keeps a gate of this copy away
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close(context.WithoutCancel(ctx))) }()
	o, err := fenceOptions(ctx, s, l)
	if err != nil {
		return err
	}
	o.Logger = slog.New(slog.DiscardHandler)
	done, err := fence.New().Overrule(ctx, o, reason)
	if err != nil {
		return fenceError(err)
	}
	had := "had nothing of it"
	if done.Had.Epoch != 0 {
		had = fmt.Sprintf("had epoch %d, taken by %s at %s", done.Had.Epoch, done.Had.Holder, event.Timestamp(done.Had.TakenAt))
	}
	_, err = fmt.Fprintf(c.OutOrStdout(), "Log %x: the table %s. It has epoch %d now, which this copy alone knows. Start the gate: it goes on, and writes the reason into the log. Every other copy refuses to start.\n", l.LogID(), had, done.Epoch)
	return err
}
