package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"writegate/eventlog"
	"writegate/eventlog/event"
	"writegate/eventlog/frame"
	"writegate/projections"
	"writegate/sqlgate"
)

func (a *app) logNewCommand() *cobra.Command {
	var reason string
	var asJSON bool
	cmd := &cobra.Command{
		Use: "new", Short: "Put a damaged log away and begin one that follows it", Args: cobra.NoArgs,
		Long: `Judge the log, with the checkpoints beside it and the witnesses of the settings, move it with all that belongs to it to GATE_AUDIT_WAL_PATH.retired/<log_id>, and begin a
new log whose first event names the old one, its last event that verifies, and the reason. This is the
way out of corruption_detected, and of a restored backup that is older than what is known elsewhere:
an old chain is never continued. The gate must not be running.

Without --accept-loss nothing is changed: it says what would be carried over, and what is lost. The
next start folds the old log's events up to that point and then goes on: approvals, policies,
executions and keys are kept, and executions that were open become unknown outcomes. What the lost events
may have ended is taken back: approvals that nobody had used are withdrawn, and agents are deactivated,
with their tokens, until "gate agents activate". The old files are needed from then on, and a backup
carries them.

A command that was cut short is completed by the same command, and until then no gate starts. Exit
code 0: done, or told; 74: done, and this could not be written; 2: there is no log here, it could not be read, or a log that it follows is missing
or damaged (put that back first: the next start needs it), or the projections are another log's; 75: a gate is running, or
has the projections or the readable copy of the settings.`,
		RunE: func(c *cobra.Command, _ []string) error { return a.newLog(c, reason, asJSON) },
	}
	cmd.Flags().StringVar(&reason, "accept-loss", "", "why the loss is accepted; it is written into the new log")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the result as JSON")
	return cmd
}

// maxReason bounds the reason, which is part of an event for good.
const maxReason = 4096

func (a *app) newLog(c *cobra.Command, reason string, asJSON bool) error {
	s, err := a.settingsFor()
	if err != nil {
		return err
	}
	asked := c.Flags().Changed("accept-loss")
	if asked && (strings.TrimSpace(reason) == "" || len(reason) > maxReason) {
		return fmt.Errorf("--accept-loss needs a reason of 1 to %d bytes", maxReason)
	}
	held, err := holdFile(s.AuditLogPath)
	if errors.Is(err, errHeld) {
		return exitWith(exitLocked, fmt.Errorf("the readable copy of the log (GATE_AUDIT_LOG_PATH) is that of a running gate: stop it first, or name this log's own; nothing was changed: %w", err))
	}
	if err == nil { // else there is nothing to move, or the move says what is wrong with it
		defer func() { _ = held.Close() }()
	}
	o, warning, err := a.retireOptions(s)
	if err != nil {
		return err
	}
	if o.SigningKey, err = s.signingKey(); err != nil {
		return exitWith(exitConfigured, err)
	}
	if o.Outside, err = s.stoppedLog(s.AuditWALPath, o.SigningKey); err != nil {
		return err
	}
	var r eventlog.Retiring
	if asked {
		r, err = eventlog.Retire(c.Context(), o, successorOf(s, reason))
	} else {
		r, err = eventlog.JudgeForRetirement(c.Context(), o)
	}
	if err != nil {
		return retireError(s, err)
	}
	warning = strings.TrimSpace(strings.Join(append([]string{warning}, r.Report.Warnings...), "\n"))
	var back *takenBack
	if asked {
		back, warning = a.takenBack(c.Context(), s, warning)
	}
	return printRetired(a.out, s, &r, asked, back, warning, asJSON)
}

// takenBack is what the first start behind a loss takes back. What was lost may have
// ended it, so it is good again when somebody says so.
type takenBack struct {
	Approvals int    `json:"approvals"`     // that nobody had used
	Agents    int    `json:"agents"`        // that were active
	Tokens    int    `json:"tokens"`        // of theirs
	Policy    string `json:"active_policy"` // the gate's, which stays
}

func tookBack(found *projections.Inherited) *takenBack {
	return &takenBack{found.Approvals, len(found.Agents), found.Tokens, found.Policy}
}

// String also says how it is had again.
func (b *takenBack) String() string {
	said := fmt.Sprintf("What was lost may have ended %s that nobody had used (withdrawn: ask again), %s (deactivated) and %s (revoked). "+
		"Look at an agent and the policies that bind it, then take it back with `gate agents activate AGENT`, which issues a new token. "+
		"For 24 hours a retry under an idempotency key may run anew: what the key was answered may be lost.",
		counted(b.Approvals, "approval"), counted(b.Agents, "agent"), counted(b.Tokens, "token"))
	if b.Policy != "" {
		said += " The active policy is " + b.Policy + ": where another was activated since, activate it again."
	}
	return said
}

// takenBack folds the new log, beside the projections that the first start will make,
// and asks them. Where that fails the start counts all the same, and the warning says why.
func (a *app) takenBack(ctx context.Context, s *settings, warning string) (*takenBack, string) {
	found, err := a.inherited(ctx, s)
	if err != nil {
		return nil, strings.TrimSpace(warning + "\nApprovals, agents and tokens that the start takes back can't be counted now: " + err.Error())
	}
	return tookBack(&found), warning
}

// countedSuffix and a number are behind the name of the projections in that of a store
// that is folded beside them, to be counted in.
const countedSuffix = ".counted-"

// dropCounted removes such stores that commands left which were killed: each holds exact
// SQL, and nothing reads it again. One that is held is in use.
func dropCounted(store string) {
	entries, _ := os.ReadDir(filepath.Dir(store))
	for _, e := range entries {
		number, found := strings.CutPrefix(e.Name(), filepath.Base(store)+countedSuffix)
		if _, err := strconv.ParseUint(number, 10, 64); !found || err != nil {
			continue
		}
		dir := filepath.Join(filepath.Dir(store), e.Name())
		if held, err := holdFolder(dir); err == nil {
			_ = os.RemoveAll(dir) // the next start tries again
			_ = held.Close()
		}
	}
}

func (a *app) inherited(ctx context.Context, s *settings) (found projections.Inherited, err error) {
	l, err := a.openLog(ctx, s)
	if err != nil {
		return found, err
	}
	defer func() { err = errors.Join(err, l.Close(context.WithoutCancel(ctx))) }()
	dropCounted(s.ApprovalDBPath)
	dir, err := os.MkdirTemp(filepath.Dir(s.ApprovalDBPath), filepath.Base(s.ApprovalDBPath)+countedSuffix+"*")
	if err != nil {
		return found, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	held, err := holdFolder(dir)
	if err != nil {
		return found, err
	}
	defer func() { err = errors.Join(err, held.Close()) }()
	store, err := projections.Open(projections.Options{Dir: dir, Context: ctx})
	if err != nil {
		return found, err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	if err := store.Connect(ctx, l); err != nil {
		return found, err
	}
	view := store.ViewWithin(ctx)
	found, err = view.Inherited(time.Now())
	return found, errors.Join(err, view.Close())
}

// retireOptions also give projectionAnchor's warning. They are an error where another
// process has the projections open.
func (a *app) retireOptions(s *settings) (o eventlog.Options, warning string, err error) {
	o = eventlog.Options{Path: s.AuditWALPath, JSONLPath: s.AuditLogPath, FS: a.logFS, Fsync: s.AuditFsync, AllowNetworkFS: s.AuditNetworkFS, Origin: s.AuditOrigin}
	o.Projection, err = projectionAnchor(s)
	if errors.Is(err, syscall.EAGAIN) { // of their lock
		return o, "", exitWith(exitLocked, fmt.Errorf("the projections in %s (GATE_APPROVAL_DB_PATH) are those of a running gate: stop it first, or name this log's own; nothing was changed: %w", s.ApprovalDBPath, err))
	}
	if err != nil {
		warning = "The projections can't be read, so what they know of the log is not counted: " + err.Error()
	}
	return o, warning, nil
}

// projectionAnchor is what the projections know of the log, where no gate has
// them open; nil is nothing, and the error says why they could not be asked.
func projectionAnchor(s *settings) (*frame.Anchor, error) {
	applied, err := projections.Peek(s.ApprovalDBPath)
	if err != nil || applied.Seq == 0 {
		return nil, err
	}
	return &frame.Anchor{LogID: applied.LogID, Seq: applied.Seq, Hash: applied.Hash}, nil
}

// successorOf is what the new log says of itself.
func successorOf(s *settings, reason string) eventlog.Successor {
	engine := sqlgate.EngineRecord()
	engine["gate"], engine["go"] = version, runtime.Version()
	return eventlog.Successor{Reason: reason, Mode: s.Mode, Store: s.ApprovalDBPath, Start: event.Startup{
		Version: version, Profile: s.Profile, Fsync: s.AuditFsync, VerifyOnStart: s.AuditVerifyOnStart, OnTornTail: s.AuditOnTornTail, Engine: engine,
	}}
}

func retireError(s *settings, err error) error {
	switch {
	case errors.Is(err, eventlog.ErrLocked):
		return exitWith(exitLocked, fmt.Errorf("a gate is running on %s: stop it first (%w)", s.AuditWALPath, err))
	case errors.Is(err, eventlog.ErrNoLog):
		return exitWith(exitPartial, fmt.Errorf("%w: an ordinary start begins a log where there is none", err))
	}
	return exitWith(exitPartial, err)
}

// A retiredResult is what `gate log new --json` prints.
type retiredResult struct {
	Done          bool   `json:"done"` // false: it was only asked what would be
	LogID         string `json:"log_id"`
	Status        string `json:"status,omitempty"` // of the old log; "" where an earlier attempt judged it
	LastSeq       uint64 `json:"last_seq"`
	LastEventHash string `json:"last_event_hash"`
	KnownSeq      uint64 `json:"known_seq"`
	Lost          uint64 `json:"lost"`
	Reason        string `json:"reason,omitempty"`
	Folder        string `json:"folder"`
	NewLogID      string `json:"new_log_id,omitempty"`
	Warning       string `json:"warning,omitempty"`

	Faults []frame.Fault `json:"faults,omitempty"` // of the old log

	TakenBack *takenBack `json:"taken_back,omitempty"`
}

func printRetired(w io.Writer, s *settings, r *eventlog.Retiring, done bool, back *takenBack, warning string, asJSON bool) error {
	if asJSON {
		j := retiredResult{Done: done, LogID: hex.EncodeToString(r.LogID[:]), Status: string(r.Report.Status), LastSeq: r.Last, LastEventHash: hex.EncodeToString(r.Hash[:]),
			KnownSeq: r.Known, Lost: r.Lost(), Reason: r.Reason, Folder: r.Folder, Warning: warning, TakenBack: back, Faults: r.Report.Faults}
		if done {
			j.NewLogID = hex.EncodeToString(r.NewLogID[:])
		}
		return printJSON(w, j)
	}
	var b strings.Builder
	if r.Begun {
		fmt.Fprintf(&b, "This was begun before, with the reason %q.\n", r.Reason)
	} else {
		fmt.Fprintf(&b, "%s is %s.\n", s.AuditWALPath, r.Report.Status)
		for _, f := range r.Report.Faults[:min(len(r.Report.Faults), 3)] {
			fmt.Fprintf(&b, "  %s at segment %d, offset %d: %s\n", f.Kind, f.Segment, f.Offset, f.Detail)
		}
	}
	if warning != "" {
		fmt.Fprintln(&b, warning)
	}
	kept, lost, gone := carried(r.Last, "is", "are"), "no event is known that would be lost", "Approvals that nobody used will be withdrawn, and all agents deactivated with their tokens.\nNothing was changed. To go on: gate log new --accept-loss REASON"
	if done {
		kept, lost = carried(r.Last, "was", "were"), "no event is known that was lost"
		gone = fmt.Sprintf("The old files are in %s; a start needs them.\nThe new log is %x. Start the gate: it folds the old events first.", r.Folder, r.NewLogID)
		if r.Last == 0 {
			gone = fmt.Sprintf("The old files are in %s; no start needs them.\nThe new log is %x. Start the gate: it knows of nothing before.", r.Folder, r.NewLogID)
		}
		if back != nil {
			gone += "\n" + back.String()
		}
	}
	if n := r.Lost(); n > 0 {
		lost = fmt.Sprintf("events %d to %d, %d in all, are lost", r.Last+1, r.Known, n)
	}
	fmt.Fprintf(&b, "Log %x: %s; %s.\n%s\n", r.LogID, kept, lost, gone)
	_, err := io.WriteString(w, b.String())
	return err
}

func carried(last uint64, one, many string) string {
	switch last {
	case 0:
		return "nothing of it " + one + " carried over"
	case 1:
		return "event 1 " + one + " carried over"
	}
	return fmt.Sprintf("events 1 to %d %s carried over", last, many)
}
