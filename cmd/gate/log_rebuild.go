package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"writegate/cmd/terminal"
	"writegate/eventlog"
	"writegate/projections"
)

// rebuildParts are what a rebuild makes; none is all of them.
type rebuildParts struct{ projections, jsonl, index bool }

func (p *rebuildParts) complete() {
	if *p == (rebuildParts{}) {
		*p = rebuildParts{true, true, true}
	}
}

func (a *app) logRebuildCommand() *cobra.Command {
	var parts rebuildParts
	var asJSON bool
	cmd := &cobra.Command{
		Use: "rebuild", Short: "Make what is derived from the log anew: projections, JSONL file, sparse index", Args: cobra.NoArgs,
		Long: `Make anew what is derived from the event log: the projections in GATE_APPROVAL_DB_PATH (approvals,
policy versions, executions, idempotency keys, the audit index), the JSONL file GATE_AUDIT_LOG_PATH,
and the sparse index GATE_AUDIT_INDEX_PATH. Flags choose; without one of them all three are made. The
gate must not be running.

The log itself is not touched, and every event is checked against its hash and its predecessor on the
way. Projections are folded beside the old ones, which are replaced at the end. A JSONL file or an
index is written whole, then the old one moves aside (PATH.aside-N) and the new one takes its place.
Nothing is rebuilt from a log that does not verify, or that has lost events that the projections
still know: verify it first.

Exit code 0: done; 1: the log does not verify, or a part could not be made; 2: there is no log here;
75: a gate is running.`,
		RunE: func(c *cobra.Command, _ []string) error {
			parts.complete()
			return a.rebuild(c.Context(), parts, asJSON)
		},
	}
	cmd.Flags().BoolVar(&parts.projections, "projections", false, "make the projections")
	cmd.Flags().BoolVar(&parts.jsonl, "jsonl", false, "make the JSONL file")
	cmd.Flags().BoolVar(&parts.index, "index", false, "make the sparse index")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the result as JSON")
	return cmd
}

// A rebuildResult is what `gate log rebuild --json` prints; a part that was not
// asked for is absent.
type rebuildResult struct {
	LogID       string       `json:"log_id"`
	LastSeq     uint64       `json:"last_seq"` // all parts reach to this event
	Projections *rebuiltPart `json:"projections,omitempty"`
	JSONL       *rebuiltPart `json:"jsonl,omitempty"`
	Index       *rebuiltPart `json:"index,omitempty"`
}

type rebuiltPart struct {
	Path    string `json:"path"`
	MovedTo string `json:"moved_to,omitempty"` // where the old one is now, if it was kept
}

func (a *app) rebuild(ctx context.Context, parts rebuildParts, asJSON bool) (err error) {
	s, err := a.settingsFor()
	if err != nil {
		return err
	}
	if _, err := os.Stat(s.AuditWALPath); err != nil {
		return exitWith(exitPartial, fmt.Errorf("there is no event log to rebuild from (GATE_AUDIT_WAL_PATH): %w", err))
	}
	l, err := a.openLog(ctx, s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close(context.WithoutCancel(ctx))) }()
	if err := l.Serving(); err != nil && !errors.Is(err, eventlog.ErrTornTail) {
		return exitWith(exitFailed, fmt.Errorf("nothing is rebuilt from this log (gate log verify says more): %w", err))
	}
	id := l.LogID()
	r := rebuildResult{LogID: hex.EncodeToString(id[:]), LastSeq: l.Head().Seq}
	if err := a.rebuildAll(ctx, l, s, parts, &r); err != nil {
		return exitWith(exitFailed, err)
	}
	return r.print(a.out, asJSON)
}

// openLog opens the log of the settings as its writer does, so that no gate can
// run meanwhile. It appends nothing.
func (a *app) openLog(ctx context.Context, s *settings) (*eventlog.Log, error) {
	known, _ := projectionAnchor(s) // projections that can't be read are what a rebuild is for
	l, _, err := eventlog.Open(ctx, eventlog.Options{
		FS: a.logFS, Path: s.AuditWALPath, Fsync: s.AuditFsync, OnTornTail: eventlog.TornTailRefuse, AllowNetworkFS: s.AuditNetworkFS, Projection: known,
		Outside: func(bool) (eventlog.Outside, error) { return s.besideOf(s.AuditWALPath) },
	})
	switch {
	case errors.Is(err, eventlog.ErrLocked):
		return nil, exitWith(exitLocked, fmt.Errorf("a gate is running on %s: stop it first (%w)", s.AuditWALPath, err))
	case err != nil:
		return nil, exitWith(eventlog.ExitCode(err), fmt.Errorf("the event log %s cannot be opened: %w", s.AuditWALPath, err))
	}
	return l, nil
}

// rebuildAll makes one part after the other and stops at the first that fails.
func (a *app) rebuildAll(ctx context.Context, l *eventlog.Log, s *settings, parts rebuildParts, r *rebuildResult) (err error) {
	if parts.projections {
		if r.Projections, err = a.rebuildPart(l, "projections", func(progress func(uint64)) (rebuiltPart, error) {
			done, err := projections.RebuildOffline(ctx, projections.Options{Dir: s.ApprovalDBPath, Progress: progress}, l)
			return rebuiltPart{s.ApprovalDBPath, done.Aside}, err
		}); err != nil {
			return err
		}
	}
	if parts.jsonl {
		if r.JSONL, err = a.rebuildPart(l, "JSONL file", func(progress func(uint64)) (rebuiltPart, error) {
			done, err := l.RebuildJSONL(ctx, s.AuditLogPath, progress)
			return rebuiltPart{done.Path, done.Aside}, err
		}); err != nil {
			return err
		}
	}
	if parts.index {
		r.Index, err = a.rebuildPart(l, "sparse index", func(progress func(uint64)) (rebuiltPart, error) {
			done, err := l.RebuildIndex(ctx, s.indexPath(), progress)
			return rebuiltPart{done.Path, done.Aside}, err
		})
	}
	return err
}

// rebuildPart makes one part and shows how far it is.
func (a *app) rebuildPart(l *eventlog.Log, name string, rebuild func(progress func(uint64)) (rebuiltPart, error)) (*rebuiltPart, error) {
	progress, head := terminal.NewProgress(a.err, "rebuilding "+name, false), int64(l.Head().Seq)
	part, err := rebuild(func(seq uint64) { progress.Step(int64(seq), head) })
	if err = errors.Join(err, progress.Done()); err != nil {
		return nil, fmt.Errorf("the %s could not be made: %w", name, err)
	}
	return &part, nil
}

func (r *rebuildResult) print(w io.Writer, asJSON bool) error {
	if asJSON {
		return printJSON(w, r)
	}
	var b strings.Builder
	for _, part := range []struct {
		name string
		*rebuiltPart
	}{{"The projections hold", r.Projections}, {"The JSONL file holds", r.JSONL}, {"The sparse index covers", r.Index}} {
		if part.rebuiltPart == nil {
			continue
		}
		fmt.Fprintf(&b, "%s the log up to event %d: %s\n", part.name, r.LastSeq, part.Path)
		if part.MovedTo != "" {
			fmt.Fprintf(&b, "  the old one is %s\n", part.MovedTo)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
