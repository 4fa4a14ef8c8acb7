package main

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"

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
		Long: `Judge the log, move it with all that belongs to it to GATE_AUDIT_WAL_PATH.retired/<log_id>, and begin a
new log whose first event names the old one, its last event that verifies, and the reason. This is the
way out of corruption_detected, and of a restored backup that is older than what is known elsewhere:
an old chain is never continued. The gate must not be running.

Without --accept-loss nothing is changed: it says what would be carried over, and what is lost. The
next start folds the old log's events up to that point and then goes on: approvals, policies,
executions and keys are kept, and executions that were open become unknown outcomes. The old files are
needed from then on, and a backup carries them.

A command that was cut short is completed by the same command, and until then no gate starts. Exit
code 0: done, or told; 2: there is no log here, or it could not be read; 75: a gate is running.`,
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
	o, warning := a.retireOptions(s)
	var r eventlog.Retiring
	if asked {
		if o.SigningKey, err = s.signingKey(); err != nil {
			return exitWith(exitConfigured, err)
		}
		r, err = eventlog.Retire(c.Context(), o, successorOf(s, reason))
	} else {
		r, err = eventlog.JudgeForRetirement(c.Context(), o)
	}
	if err != nil {
		return retireError(s, err)
	}
	return printRetired(a.out, s, &r, asked, warning, asJSON)
}

// retireOptions also give projectionAnchor's warning.
func (a *app) retireOptions(s *settings) (o eventlog.Options, warning string) {
	o = eventlog.Options{Path: s.AuditWALPath, JSONLPath: s.AuditLogPath, FS: a.logFS, Fsync: s.AuditFsync, AllowNetworkFS: s.AuditNetworkFS, Origin: s.AuditOrigin}
	o.Projection, warning = projectionAnchor(s)
	return o, warning
}

// projectionAnchor is what the projections know of the log, where no gate has
// them open; nil is nothing, and the warning says, in words, why they could not
// be asked.
func projectionAnchor(s *settings) (_ *frame.Anchor, warning string) {
	applied, err := projections.Peek(s.ApprovalDBPath)
	switch {
	case err != nil:
		return nil, "The projections can't be read, so what they know of the log is not counted: " + err.Error()
	case applied.Seq == 0:
		return nil, ""
	}
	return &frame.Anchor{LogID: applied.LogID, Seq: applied.Seq, Hash: applied.Hash}, ""
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
}

func printRetired(w io.Writer, s *settings, r *eventlog.Retiring, done bool, warning string, asJSON bool) error {
	if asJSON {
		j := retiredResult{Done: done, LogID: hex.EncodeToString(r.LogID[:]), Status: string(r.Report.Status), LastSeq: r.Last, LastEventHash: hex.EncodeToString(r.Hash[:]),
			KnownSeq: r.Known, Lost: r.Lost(), Reason: r.Reason, Folder: r.Folder, Warning: warning}
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
	kept, lost, gone := carried(r.Last, "is", "are"), "no event is known that would be lost", "Nothing was changed. To go on: gate log new --accept-loss REASON"
	if done {
		kept, lost = carried(r.Last, "was", "were"), "no event is known that was lost"
		gone = fmt.Sprintf("The old files are in %s; a start needs them.\nThe new log is %x. Start the gate: it folds the old events first.", r.Folder, r.NewLogID)
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
