package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"writegate/cmd/terminal"
	"writegate/eventlog"
	"writegate/eventlog/backup"
	"writegate/eventlog/checkpoint"
	"writegate/eventlog/event"
	"writegate/eventlog/frame"
)

func (a *app) logBackupCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "backup DIR", Short: "Copy the log and all that belongs to it, and verify the copy; a running gate may go on", Args: cobra.ExactArgs(1),
		Long: `Copy the log, up to its durable end, with its head file, checkpoints, quarantine, JSONL file and
policies into DIR, which must be empty or missing, and verify the copy. DIR/backup.json, written
last, names every file with its SHA-256; the log in it can be verified on its own with
"logverify wal DIR/log/audit.wal".

The projections are left out: the first start on the restored log folds the same ones anew. Exit code 0: the backup is whole and verified; 1: the log,
or one before it in GATE_AUDIT_WAL_PATH.retired, does not verify, or the checkpoints beside it or its projections contradict it: there is no backup; 74: it is whole, and this could not
be written; 2: anything else.`,
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
	return backup.Places{Log: s.AuditWALPath, JSONL: s.AuditLogPath, Store: s.ApprovalDBPath, Policies: s.PolicyDir, Outside: s.ownOf}, nil
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
	var oldLog string
	var asJSON bool
	cmd := &cobra.Command{
		Use: "restore DIR", Short: "Verify a backup, put it where the settings say, into empty places only, and begin a log behind it", Args: cobra.ExactArgs(1),
		Long: `Hold every file of the backup in DIR against its manifest, verify its log and those before it, and copy all of it to
the places of the settings. Nothing is overwritten: where a log, a head file, a segment or a store is
there already, the restore is refused. Policy files that are the same may stay.

The log is held against the checkpoints in the backup and against the witnesses of the settings, under
its own origin: where one of them knows other events, nothing is restored. That one knows of more events
is told, and --old-log is refused then.

What happened after the backup is not known any more, and the database may hold writes that no log
names. So the restored log is not continued. It is put where "gate log new" puts an old one, and a new
log begins that names it: approvals that nobody had used are withdrawn, and agents are deactivated, with
their tokens, until "gate agents activate", for what is not known may have ended them.

Nothing of that is needed where nothing was written after the backup. --old-log names the old
log's file, where it was moved to, with the files that stood beside it and its projections. If it verifies, ends with the
event that the backup ends with, and was closed, the restored log goes on as its own; otherwise nothing
is restored. Be sure that no other gate goes on with the same log: two copies that go on fork it.

Cut short behind the copying, it is completed by "gate log new --accept-loss"; before that, remove what
it wrote and repeat. Exit code 0: restored and verified; 1: the backup is not whole, or is not all of the
old log; 75: a gate is running there; 2: anything else.`,
		RunE: func(c *cobra.Command, args []string) error { return a.restore(c.Context(), args[0], oldLog, asJSON) },
	}
	cmd.Flags().StringVar(&oldLog, "old-log", "", "the old log, if the backup has all of it: it goes on")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the manifest as JSON, and what follows it")
	return cmd
}

func (a *app) restore(ctx context.Context, dir, oldLog string, asJSON bool) error {
	p, err := a.placesBeside(dir)
	if err != nil {
		return err
	}
	s, err := a.settingsFor()
	if err != nil {
		return err
	}
	key, err := s.signingKey()
	if err != nil {
		return exitWith(exitConfigured, err)
	}
	var warnings []string
	p.Outside = func(wal string) (eventlog.Outside, error) {
		known, err := s.stoppedLog(wal, key)
		if err != nil {
			return nil, err
		}
		return known(true)
	}
	p.Judged = func(set *frame.Set, r *frame.Report) { warnings = append(r.Warnings, unvouched(set, r, key)...) }
	if oldLog != "" {
		return a.restoreWhole(ctx, s, dir, oldLog, p, &warnings, asJSON)
	}
	o := eventlog.Options{Path: s.AuditWALPath, FS: a.logFS, Fsync: s.AuditFsync, AllowNetworkFS: s.AuditNetworkFS, Origin: s.AuditOrigin, SigningKey: key}
	m, err := backup.Restore(ctx, dir, p, behindOf(o))
	if err != nil {
		return backupError(err)
	}
	r, err := eventlog.Retire(ctx, o, successorOf(s, ""))
	if err != nil {
		return retireError(s, err)
	}
	back, warning := a.takenBack(ctx, s, strings.Join(warnings, "\n"))
	return printRestored(a.out, s, &m, &r, back, warning, asJSON)
}

// unvouched says whether anything but the restored log itself tells who wrote it.
func unvouched(set *frame.Set, r *frame.Report, key *checkpoint.PrivateKey) []string {
	away := func(a frame.AnchorResult) bool {
		return a.Level == frame.L4 && a.Result == frame.AnchorMatch && !a.SelfAsserted
	}
	if key == nil || slices.ContainsFunc(r.Anchors, away) {
		return nil
	}
	h, err := set.Genesis()
	if err != nil {
		return nil // the verification names it
	}
	signer := "is signed by nobody"
	if h.Signer != "" {
		signer = "names the signer " + visible(h.Signer)
	}
	return []string{"The log of the backup, of the origin " + visible(h.Origin) + ", " + signer + ", and no checkpoint in it is signed with the key of the settings: whoever can write the backup can have written it. " +
		"Hold DIR/log/audit.wal against receipts and checkpoints that were kept elsewhere: `logverify wal`."}
}

// behindOf has another log follow the one that is restored.
func behindOf(o eventlog.Options) *backup.Behind {
	return &backup.Behind{
		Place: func(w string, m *backup.Manifest) (log, jsonl string, err error) {
			r, err := restoredLog(m)
			return eventlog.RetiredLog(w, r.LogID), eventlog.RetiredJSONL(w, r.LogID), err
		},
		Settle: func(m *backup.Manifest) error {
			r, err := restoredLog(m)
			if err != nil {
				return err
			}
			return eventlog.PutBehind(o, r)
		},
	}
}

// restoredLog is what is known of a log that another one is to follow.
func restoredLog(m *backup.Manifest) (r eventlog.Retiring, err error) {
	id, err1 := hex.DecodeString(m.LogID)
	hash, err2 := hex.DecodeString(m.LastEventHash)
	if len(id) != len(r.LogID) || len(hash) != len(r.Hash) {
		return r, errors.Join(fmt.Errorf("%w: its manifest names no log", backup.ErrBackup), err1, err2)
	}
	copy(r.LogID[:], id)
	copy(r.Hash[:], hash)
	r.Last, r.Known, r.Report.Status = m.LastSeq, m.LastSeq, frame.OK
	r.Reason = fmt.Sprintf("restored from a backup up to event %d", m.LastSeq)
	if at, err := time.Parse(time.RFC3339, m.MadeAt); err == nil {
		r.Reason += " that was made at " + event.Timestamp(at)
	}
	return r, nil
}

// restoreWhole restores a log that goes on, since the old one shows that nothing was
// written after the backup.
func (a *app) restoreWhole(ctx context.Context, s *settings, dir, oldLog string, p backup.Places, warnings *[]string, asJSON bool) error {
	m, err := backup.Check(ctx, dir)
	var doubts []string
	if err == nil {
		doubts, err = endedWith(ctx, s, oldLog, &m)
	}
	if err == nil {
		m, err = backup.Restore(ctx, dir, p, nil)
	}
	if err != nil {
		return backupError(err)
	}
	for _, w := range append(*warnings, doubts...) {
		if _, err := fmt.Fprintln(a.err, w); err != nil {
			return err
		}
	}
	return printBackup(a.out, m, asJSON, p.Log+" holds")
}

// endedWith tells whether the log at a path ended with the event that a backup ends with.
// Neither a copy in a backup nor a log that another one follows is the old log: their
// head files say so, but for those that older versions made, which are told by their place.
// The warnings say what of it could not be asked.
func endedWith(ctx context.Context, s *settings, path string, m *backup.Manifest) (warnings []string, err error) {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, err
	}
	for _, about := range []struct{ file, what string }{
		{filepath.Join(filepath.Dir(filepath.Dir(real)), backup.ManifestName), "it is the copy in a backup"},
		{filepath.Join(filepath.Dir(real), eventlog.RetiredAbout), "another log follows it"},
	} {
		if _, err := os.Lstat(about.file); err == nil {
			return nil, notWhole(path, m, about.what)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	known, err := s.besideOf(path)
	if err != nil {
		return nil, err
	}
	store, err := s.projectionsBeside(real)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(store); errors.Is(err, fs.ErrNotExist) {
		warnings = append(warnings, fmt.Sprintf("The projections of the old log are not at %s, so nothing tells whether they know of more events.", store))
	}
	projected := projectedIn(store)
	set, err := frame.Discover(ctx, frame.OS{}, path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, set.Close()) }()
	more, said := projected.of(&set)
	warnings = append(warnings, said...)
	anchors, _, err := known.Anchors(ctx, &set)
	if err != nil {
		return nil, err
	}
	report, err := frame.Verify(ctx, set, frame.Options{Anchors: append(anchors, more...)})
	if err != nil {
		return nil, err
	}
	why := ""
	switch {
	case set.Live:
		return nil, fmt.Errorf("%s: %w: a gate is running", path, backup.ErrBusy)
	case report.Status != frame.OK:
		why = "it is " + string(report.Status)
		if len(report.Faults) > 0 {
			why += ": " + report.Faults[0].Detail
		}
	case report.LogID != m.LogID:
		why = "it is log " + report.LogID
	case report.End.Seq != m.LastSeq || hex.EncodeToString(report.End.Hash[:]) != m.LastEventHash:
		why = fmt.Sprintf("it ends with event %d, hash %x", report.End.Seq, report.End.Hash)
	case set.Head == nil || !set.Head.Clean || set.Head.Seq != m.LastSeq:
		why = "its head file does not say that it was closed there"
	default:
		return warnings, nil
	}
	return nil, notWhole(path, m, why)
}

func notWhole(path string, m *backup.Manifest, why string) error {
	return fmt.Errorf("%w of the log at %s up to event %d: %s; leave --old-log out, so that a new log begins behind the backup", backup.ErrBackup, path, m.LastSeq, why)
}

// A restoredResult is what `gate log restore --json` prints where a new log was begun.
type restoredResult struct {
	*backup.Manifest
	NewLogID  string     `json:"new_log_id"`
	Folder    string     `json:"folder"` // of the restored log
	Warning   string     `json:"warning,omitempty"`
	TakenBack *takenBack `json:"taken_back,omitempty"`
}

func printRestored(w io.Writer, s *settings, m *backup.Manifest, r *eventlog.Retiring, back *takenBack, warning string, asJSON bool) error {
	if asJSON {
		return printJSON(w, restoredResult{m, hex.EncodeToString(r.NewLogID[:]), r.Folder, warning, back})
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s holds log %s up to event %d, hash %s; a start needs it.\n", r.Folder, m.LogID, m.LastSeq, m.LastEventHash)
	fmt.Fprintf(&b, "What happened after that is not known, so %s is a new log, %x, that follows it. Start the gate: it folds the restored events first.\n", s.AuditWALPath, r.NewLogID)
	if warning != "" {
		fmt.Fprintln(&b, warning)
	}
	if back != nil {
		fmt.Fprintln(&b, back)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
