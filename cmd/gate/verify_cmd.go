package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"writegate/cmd/terminal"
	"writegate/eventlog"
	"writegate/eventlog/frame"
	"writegate/sqlgate"
	"writegate/sqlgate/classify"
	"writegate/sqlgate/replay"
)

// A decisionsVerdict is the last line of `gate verify --decisions`.
type decisionsVerdict struct {
	Status     frame.Status `json:"chain"` // of the hash chain
	Path       string       `json:"path"`
	LogID      string       `json:"log_id"`
	VerifiedTo uint64       `json:"verified_to"` // the chain holds up to this event
	FromSeq    uint64       `json:"from_seq"`
	ToSeq      uint64       `json:"to_seq"`
	replay.Result
	AllEqual bool `json:"all_equal"`
}

func (a *app) verifyCommand() *cobra.Command {
	var decisions, asJSON bool
	var from, to uint64
	cmd := &cobra.Command{
		Use: "verify", Short: "Recompute every recorded decision from the log alone; a running gate may go on", Args: cobra.NoArgs,
		Long: `Verify the hash chain of GATE_AUDIT_WAL_PATH, then decide every recorded decision again: under
the policy bytes that the log holds for it, from the facts that stand beside it, and compare. Where
the gate read the database's catalogues, what stood behind the names of the statement is found again
in what the log holds of them, and compared with the facts.

Nothing is written and no lock of the gate is taken. Each difference is printed with the number of
its event; it is called engine_drift where another version of the classifier or of the expression
language decided. Exit code 0: all equal; 1: a difference, or corruption_detected; 2: something
could not be checked.`,
		RunE: func(c *cobra.Command, _ []string) error {
			switch {
			case !decisions:
				return errors.New("say what to verify: `gate verify --decisions` recomputes every decision, `gate log verify` the hash chain alone")
			case to != 0 && from > to:
				return fmt.Errorf("--from-seq %d is after --to-seq %d", from, to)
			}
			s, err := a.settingsFor()
			if err != nil {
				return err
			}
			return a.verifyDecisions(c.Context(), s, from, to, asJSON)
		},
	}
	cmd.Flags().BoolVar(&decisions, "decisions", false, "recompute every recorded decision")
	cmd.Flags().Uint64Var(&from, "from-seq", 1, "first event whose decision is recomputed")
	cmd.Flags().Uint64Var(&to, "to-seq", 0, "last one; 0 = to the end")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON lines: each difference, then the verdict")
	return cmd
}

func (a *app) verifyDecisions(ctx context.Context, s *settings, from, to uint64, asJSON bool) error {
	path := s.AuditWALPath
	set, report, err := a.judgeLog(ctx, path)
	verdict := decisionsVerdict{Status: report.Status, Path: path, LogID: report.LogID, VerifiedTo: report.VerifiedTo, FromSeq: max(from, 1), ToSeq: to}
	if to == 0 {
		verdict.ToSeq = report.VerifiedTo
	}
	if err == nil {
		verdict.Result, err = a.recompute(ctx, s, &set, &report, from, to, asJSON)
	}
	if err = errors.Join(err, set.Close()); err != nil {
		return exitWith(exitPartial, err)
	}
	verdict.AllEqual = verdict.exitCode() == exitOK
	if err := verdict.print(a.out, asJSON); err != nil {
		return exitWith(exitPartial, err)
	}
	return exitWith(verdict.exitCode(), nil)
}

// recompute decides all of the range again, as far as the chain vouches for it,
// and prints each difference when it is found.
func (a *app) recompute(ctx context.Context, s *settings, set *frame.Set, report *frame.Report, from, to uint64, asJSON bool) (replay.Result, error) {
	var printing error
	views, end := judgeViews(s)
	defer end()
	v := replay.NewVerifier(sqlgate.EngineRecord(), views, from, to, func(d replay.Difference) {
		printing = errors.Join(printing, printDifference(a.out, &d, asJSON))
	})
	progress := terminal.NewProgress(a.err, "deciding", false)
	last := report.VerifiedTo
	if to != 0 {
		last = min(last, to)
	}
	if err := (vouchedLog{set, report}).earlier(ctx, v.Earlier); err != nil {
		return v.Result(), errors.Join(err, progress.Done())
	}
	for e, err := range eventlog.Vouched(ctx, set, report, 1) {
		if err == nil && e.Seq <= last {
			err = v.Take(&e)
		}
		if err = errors.Join(err, printing); err != nil {
			return v.Result(), errors.Join(err, progress.Done())
		}
		if e.Seq >= last {
			break
		}
		progress.Step(int64(e.Seq), int64(last))
	}
	return v.Result(), progress.Done()
}

// judgeViews makes what judges the texts of views as a gate did that recorded them; end ends it.
func judgeViews(s *settings) (views replay.Views, end func()) {
	made := map[string]*classify.Classifier{}
	views = func(cfg classify.Config) (func(string) (classify.Classification, error), error) {
		name := fmt.Sprintf("%+v", cfg)
		if made[name] == nil {
			cfg.ParserMode, cfg.Children = s.ParserMode, s.ParserChildren
			c, err := classify.New(cfg)
			if err != nil {
				return nil, err
			}
			made[name] = c
		}
		return func(sql string) (classify.Classification, error) {
			return made[name].Classify(context.Background(), sql)
		}, nil
	}
	return views, func() {
		for _, c := range made {
			c.Close()
		}
	}
}

func printDifference(w io.Writer, d *replay.Difference, asJSON bool) error {
	if asJSON {
		return printJSON(w, d)
	}
	what := strings.Join(each(d.Fields, visible), "\n    ")
	if d.Problem != "" {
		what = visible(d.Problem)
	}
	_, err := fmt.Fprintf(w, "event %d: %s, %s\n    %s\n", d.Seq, d.Kind, visible(d.PolicyVersion), what)
	return err
}

// exitCode: a difference outranks what could not be checked.
func (v *decisionsVerdict) exitCode() int {
	switch {
	case v.Status == frame.Corruption || v.Differences > 0:
		return exitFailed
	case v.Status != frame.OK || v.Unchecked > 0 || v.ToSeq > v.VerifiedTo || v.FromSeq > v.VerifiedTo:
		return exitPartial
	}
	return exitOK
}

func (v *decisionsVerdict) print(w io.Writer, asJSON bool) error {
	if asJSON {
		return printJSON(w, v)
	}
	fmt.Fprintf(w, "%s: chain %s up to event %d\n", v.Path, v.Status, v.VerifiedTo)
	if v.ToSeq > v.VerifiedTo || v.FromSeq > v.VerifiedTo {
		fmt.Fprintf(w, "Events %d to %d were asked for, and what can be vouched for ends at event %d.\n", v.FromSeq, v.ToSeq, v.VerifiedTo)
	}
	_, err := fmt.Fprintf(w, "events %d to %d: %d decision(s) recomputed, %d differ, %d could not be checked\n",
		v.FromSeq, min(v.ToSeq, v.VerifiedTo), v.Decisions, v.Differences, v.Unchecked)
	return err
}
