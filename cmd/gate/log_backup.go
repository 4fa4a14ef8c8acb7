package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"writegate/cmd/terminal"
	"writegate/eventlog/backup"
)

func (a *app) logBackupCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "backup DIR", Short: "Copy the log and all that belongs to it, and verify the copy; a running gate may go on", Args: cobra.ExactArgs(1),
		Long: `Copy the log, up to its durable end, with its head file, checkpoints, quarantine, JSONL file and
policies into DIR, which must be empty or missing, and verify the copy. DIR/backup.json, written
last, names every file with its SHA-256; the log in it can be verified on its own with
"logverify wal DIR/log/audit.wal".

The projections are left out: the first start on the restored log folds the same ones anew. Exit code 0: the backup is whole and verified; 1: the log
does not verify, and nothing was copied; 2: anything else.`,
		RunE: func(c *cobra.Command, args []string) error {
			p, err := a.placesBeside(args[0])
			if err != nil {
				return err
			}
			return a.backup(c, p, args[0], asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the manifest as JSON")
	return cmd
}

// places are where the settings keep what a backup holds.
func (a *app) places() (backup.Places, error) {
	s, err := a.settingsFor()
	if err != nil {
		return backup.Places{}, err
	}
	return backup.Places{Log: s.AuditWALPath, JSONL: s.AuditLogPath, Store: s.ApprovalDBPath, Policies: s.PolicyDir}, nil
}

// placesBeside is places for a backup in dir, which must be none of them.
func (a *app) placesBeside(dir string) (backup.Places, error) {
	s, err := a.settingsFor()
	if err != nil {
		return backup.Places{}, err
	}
	if err := s.notOwn(dir); err != nil {
		return backup.Places{}, exitWith(exitPartial, err)
	}
	return a.places()
}

func (a *app) backup(c *cobra.Command, p backup.Places, dir string, asJSON bool) error {
	progress := terminal.NewProgress(a.err, "verifying", true)
	m, _, err := backup.Make(c.Context(), p, dir, progress.Step)
	if err = errors.Join(err, progress.Done()); err != nil {
		return backupError(err)
	}
	return printBackup(a.out, m, asJSON, "The backup in "+dir+" holds")
}

// backupError keeps what is wrong with a log apart from what is in the way.
func backupError(err error) error {
	switch {
	case errors.Is(err, backup.ErrLog) || errors.Is(err, backup.ErrBackup):
		return exitWith(exitFailed, err)
	case errors.Is(err, backup.ErrBusy):
		return exitWith(exitLocked, err)
	}
	return exitWith(exitPartial, err)
}

func printBackup(w io.Writer, m backup.Manifest, asJSON bool, holds string) error {
	if asJSON {
		return printJSON(w, m)
	}
	const projections = "The projections are not in it: the next start folds them from the log."
	_, err := fmt.Fprintf(w, "%s log %s up to event %d, hash %s.\n%s\n", holds, m.LogID, m.LastSeq, m.LastEventHash, projections)
	return err
}

func (a *app) logRestoreCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "restore DIR", Short: "Verify a backup and put it where the settings say, into empty places only", Args: cobra.ExactArgs(1),
		Long: `Hold every file of the backup in DIR against its manifest, verify its log, and copy all of it to
the places of the settings. Nothing is overwritten: where a log, a head file, a segment or a store is
there already, the restore is refused. Policy files that are the same may stay.

What happened after the backup is not in the log any more, and the database may hold writes that it
does not name. Be sure that no other gate goes on with the same log: two copies that go on fork it.
Exit code 0: restored and verified; 1: the backup is not whole; 75: a gate is running there; 2:
anything else.`,
		RunE: func(c *cobra.Command, args []string) error {
			p, err := a.placesBeside(args[0])
			if err != nil {
				return err
			}
			m, err := backup.Restore(c.Context(), args[0], p)
			if err != nil {
				return backupError(err)
			}
			return printBackup(a.out, m, asJSON, p.Log+" holds")
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the manifest as JSON")
	return cmd
}
