package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"writegate/cmd/terminal"
	"writegate/eventlog"
	"writegate/eventlog/event"
	"writegate/eventlog/frame"
	"writegate/sqlgate/policyfolder"
)

func (a *app) policyRebuildCommand() *cobra.Command {
	var asJSON, yes bool
	cmd := &cobra.Command{
		Use: "rebuild", Short: "Show how the policy folder differs from the log, and write what the log says", Args: cobra.NoArgs,
		Long: `Compare GATE_POLICY_DIR with the event log, show what differs, ask, and write the log's state.

The log is the truth of policy bytes and statuses. It is only read, so a gate may be running: its next
look at the folder lets it serve again. Nothing is lost: what somebody changed or put there is moved
into a dated folder beside the policy folder. Exit code 0: the folder is as the log has it, or was
made so; 1: it differs and nothing was written.`,
		RunE: func(c *cobra.Command, _ []string) error { return a.rebuildPolicies(c.Context(), asJSON, yes) },
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON; without --yes nothing is written")
	return cmd
}

// A rebuildReport is the answer of `gate policy rebuild --json`.
type rebuildReport struct {
	PolicyDir string                `json:"policy_dir"`
	Seq       uint64                `json:"seq"` // of the last policy event
	Active    string                `json:"active"`
	Versions  int                   `json:"versions"`
	Changes   []policyfolder.Change `json:"changes"`
	MovedTo   string                `json:"moved_to,omitempty"`
	Rebuilt   bool                  `json:"rebuilt"`
}

func (a *app) rebuildPolicies(ctx context.Context, asJSON, yes bool) error {
	s, err := a.settingsFor()
	if err != nil {
		return err
	}
	state, err := a.policiesOfLog(ctx, s.AuditWALPath)
	if err != nil {
		return err
	}
	changes, err := policyfolder.Plan(s.PolicyDir, s.PolicyManifest, state)
	if err != nil {
		return exitWith(exitFailed, err)
	}
	r := rebuildReport{PolicyDir: s.PolicyDir, Seq: state.Seq, Active: state.Active, Versions: len(state.Versions), Changes: changes}
	if slices.ContainsFunc(changes, func(c policyfolder.Change) bool { return c.Action == policyfolder.ActionMove }) {
		if r.MovedTo, err = policyfolder.Aside(s.PolicyDir, time.Now()); err != nil {
			return exitWith(exitFailed, err)
		}
	}
	if err := a.agreeOn(&r, asJSON, yes); err != nil {
		return err
	}
	if len(changes) > 0 && (yes || !asJSON) {
		if err := policyfolder.Rebuild(s.PolicyDir, s.PolicyManifest, state, r.MovedTo); err != nil {
			return exitWith(exitFailed, err)
		}
		r.Rebuilt = true
	}
	return a.tellRebuilt(&r, asJSON)
}

// agreeOn shows what would be done and asks.
func (a *app) agreeOn(r *rebuildReport, asJSON, yes bool) error {
	if asJSON || len(r.Changes) == 0 {
		return nil
	}
	style := terminal.StyleFor(a.out, a.environ)
	fmt.Fprintf(a.out, "The log knows %s up to event %d; %s is active. In %s:\n", counted(r.Versions, "version"), r.Seq, orNothing(r.Active), r.PolicyDir)
	var rows [][]terminal.Cell
	for _, c := range r.Changes {
		paint := style.Green
		if c.Action == policyfolder.ActionMove {
			paint = style.Yellow
		}
		rows = append(rows, []terminal.Cell{{Text: c.Action, Paint: paint}, {Text: visible(c.Path)}, {Text: visible(c.Why), Paint: style.Faint}})
	}
	if err := terminal.PrintTable(a.out, rows); err != nil {
		return exitWith(exitFailed, err)
	}
	if r.MovedTo != "" {
		fmt.Fprintf(a.out, "What is moved goes to %s.\n", r.MovedTo)
	}
	return a.confirmed("Write what the log says?", yes)
}

func orNothing(version string) string {
	if version == "" {
		return "nothing"
	}
	return version
}

func (a *app) tellRebuilt(r *rebuildReport, asJSON bool) error {
	var err error
	switch {
	case asJSON:
		err = printJSON(a.out, r)
	case r.Rebuilt:
		_, err = fmt.Fprintf(a.out, "The policy folder %s is as the log has it. A gate that runs looks at it within seconds.\n", r.PolicyDir)
	default:
		_, err = fmt.Fprintf(a.out, "The policy folder %s is as the log has it already: %s, %s active.\n", r.PolicyDir, counted(r.Versions, "version"), orNothing(r.Active))
	}
	if err != nil || (len(r.Changes) > 0 && !r.Rebuilt) {
		return exitWith(exitFailed, err)
	}
	return nil
}

// policiesOfLog folds the policy versions from a log that verifies.
func (a *app) policiesOfLog(ctx context.Context, path string) (policyfolder.State, error) {
	set, report, err := a.judgeLog(ctx, path)
	var h policyHistory
	if err == nil && report.Status == frame.OK {
		h, err = readPolicies(ctx, &set, &report)
	}
	switch err = errors.Join(err, set.Close()); {
	case err != nil:
		return policyfolder.State{}, exitWith(exitPartial, err)
	case report.Status != frame.OK:
		return policyfolder.State{}, exitAfter(report, fmt.Errorf("the log %s is %s, so nothing is written from it (gate log verify says more)", path, report.Status))
	case h.state.Seq == 0:
		return policyfolder.State{}, exitWith(exitFailed, fmt.Errorf("the log %s holds no policy version yet: the first start imports the folder", path))
	}
	return h.state, nil
}

func readPolicies(ctx context.Context, set *frame.Set, report *frame.Report) (policyHistory, error) {
	h := policyHistory{at: map[string]int{}}
	if err := (vouchedLog{set, report}).earlier(ctx, h.take); err != nil {
		return h, err
	}
	for e, err := range eventlog.Vouched(ctx, set, report, 1) {
		if err == nil {
			err = h.take(&e)
		}
		if err != nil {
			return h, err
		}
	}
	return h, nil
}

// A policyHistory folds the policy events of a log into the state that the
// folder reflects (design/policy.md part 7), as the projections of a gate do.
type policyHistory struct {
	state policyfolder.State
	at    map[string]int // index of each version
}

func (h *policyHistory) take(e *event.Envelope) error {
	var err error
	switch e.Type {
	case event.TypePolicyLoaded:
		var p event.PolicyLoaded
		if err = e.Parse(&p); err == nil && p.Origin == event.PolicyOriginImport {
			h.bring(e.Seq, p.PolicyVersion, p.Status, p.Document)
		}
	case event.TypePolicyCandidateCreated:
		var p event.PolicyCandidateCreated
		if err = e.Parse(&p); err == nil {
			h.bring(e.Seq, p.PolicyVersion, event.PolicyCandidateStatus, p.Document)
		}
	case event.TypePolicyCandidateRejected:
		var p event.PolicyCandidateRejected
		if err = e.Parse(&p); err == nil {
			h.set(e.Seq, p.PolicyVersion, event.PolicyRejectedStatus)
		}
	case event.TypePolicyActivated:
		var p event.PolicyActivated
		if err = e.Parse(&p); err == nil {
			h.set(e.Seq, p.PolicyVersion, event.PolicyActiveStatus)
		}
	case event.TypePolicyRollback:
		var p event.PolicyRollback
		if err = e.Parse(&p); err == nil {
			h.set(e.Seq, p.PolicyVersion, event.PolicyActiveStatus)
		}
	}
	if err != nil {
		return fmt.Errorf("event %d: %w", e.Seq, err)
	}
	return nil
}

// bring adds a version with its bytes.
func (h *policyHistory) bring(seq uint64, version, status string, document []byte) {
	if _, known := h.at[version]; !known {
		h.at[version] = len(h.state.Versions)
		h.state.Versions = append(h.state.Versions, policyfolder.Version{PolicyVersion: version})
	}
	h.state.Versions[h.at[version]].Document = slices.Clone(document)
	h.set(seq, version, status)
}

// set gives a version a status; the one that becomes active archives the other.
func (h *policyHistory) set(seq uint64, version, status string) {
	h.state.Seq = seq
	i, known := h.at[version]
	if !known {
		return // the log spoke of a version that nobody brought: there are no bytes to write
	}
	if status == event.PolicyActiveStatus {
		if before, was := h.at[h.state.Active]; was && before != i {
			h.state.Versions[before].Status = event.PolicyArchivedStatus
		}
		h.state.Active = version
	}
	h.state.Versions[i].Status = status
}
