package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"writegate/cmd/terminal"
	"writegate/sqlgate"
	"writegate/sqlgate/policy"
	"writegate/sqlgate/replay"
)

type diffOptions struct {
	gate                 gateAddress
	replay               string
	log                  bool // replay the log itself, without a gate
	from, to             uint64
	json, exitCode, text bool
}

func (a *app) policyDiffCommand() *cobra.Command {
	var o diffOptions
	cmd := &cobra.Command{
		Use: "diff BASE TARGET", Short: "Say what lies between two policies, rule by rule", Args: cobra.ExactArgs(2),
		Long: `Compare two policies by their meaning, rule by rule: texts and the names of lists do not count.

BASE and TARGET are files, - for standard input, versions, or "active". Without --url and --replay
no gate is asked: versions are those of GATE_POLICY_DIR. --replay 24h asks a running gate to decide
what it recorded in the last 24 hours again, under both. --log does that with the events of
GATE_AUDIT_WAL_PATH itself, from --from-seq to --to-seq, without a gate and without its limits; the
impact hash is the one that an activation is bound to.`,
		RunE: func(c *cobra.Command, args []string) error {
			if !o.log && (c.Flags().Changed("from-seq") || c.Flags().Changed("to-seq")) {
				return errors.New("--from-seq and --to-seq bound what --log decides again: give --log too")
			}
			return a.diffPolicies(c.Context(), args[0], args[1], o)
		},
	}
	gateFlag(cmd, &o.gate)
	cmd.Flags().StringVar(&o.replay, "replay", "", "decide recorded decisions of this time again, such as 24h (asks a running gate)")
	cmd.Flags().BoolVar(&o.log, "log", false, "decide what the event log recorded again, without a gate")
	cmd.Flags().Uint64Var(&o.from, "from-seq", 1, "with --log: first event")
	cmd.Flags().Uint64Var(&o.to, "to-seq", 0, "with --log: last event; 0 = to the end")
	cmd.MarkFlagsMutuallyExclusive("log", "replay")
	cmd.MarkFlagsMutuallyExclusive("log", "url")
	cmd.Flags().BoolVar(&o.text, "text", false, "print the difference of the texts too")
	cmd.Flags().BoolVar(&o.json, "json", false, "print the answer as JSON")
	cmd.Flags().BoolVar(&o.exitCode, "exit-code", false, "exit code 1 where the two do not mean the same")
	return cmd
}

func (a *app) diffPolicies(ctx context.Context, base, target string, o diffOptions) error {
	s, err := a.settingsFor()
	if err != nil {
		return err
	}
	if base == standardInput && target == standardInput {
		return fmt.Errorf("only one of the two can be standard input")
	}
	compare := a.diffOffline
	if o.gate.url != "" || o.replay != "" {
		compare = a.diffAtGate
	}
	answer, raw, err := compare(ctx, s, base, target, o)
	if err != nil {
		return a.refused(err, o.json, nil)
	}
	if o.json {
		err = writeLine(a.out, raw)
	} else {
		err = printDiff(a.out, terminal.StyleFor(a.out, a.environ), answer, o.text)
	}
	if err != nil || (o.exitCode && !answer.IdenticalSemantics) {
		return exitWith(exitFailed, err)
	}
	return nil
}

func (a *app) diffOffline(ctx context.Context, s *settings, base, target string, o diffOptions) (*sqlgate.DiffAnswer, []byte, error) {
	was, err := a.compiledText(s, base)
	if err != nil {
		return nil, nil, err
	}
	is, err := a.compiledText(s, target)
	if err != nil {
		return nil, nil, err
	}
	ref := func(p *policy.Policy) sqlgate.PolicyRef {
		return sqlgate.PolicyRef{PolicyVersion: p.Version(), Hash: p.Hash()}
	}
	answer := &sqlgate.DiffAnswer{Base: ref(was), Target: ref(is), Difference: policy.Diff(was, is)}
	if o.log {
		if answer.Replay, err = a.replayLog(ctx, s.AuditWALPath, was, is, o.from, o.to); err != nil {
			return nil, nil, err
		}
	}
	var raw bytes.Buffer
	err = printJSON(&raw, answer)
	return answer, raw.Bytes(), err
}

func (a *app) diffAtGate(ctx context.Context, s *settings, base, target string, o diffOptions) (*sqlgate.DiffAnswer, []byte, error) {
	client, err := a.gateClient(s, o.gate)
	if err != nil {
		return nil, nil, err
	}
	body := map[string]any{}
	for side, name := range map[string]string{"base": base, "target": target} {
		if isVersionName(name) {
			body[side] = name
			continue
		}
		text, err := a.policyText(s, name)
		if err != nil {
			return nil, nil, err
		}
		body[side+"_document"] = string(text.document)
	}
	if o.replay != "" {
		body["replay"] = map[string]string{"last": o.replay}
	}
	var answer sqlgate.DiffAnswer
	raw, err := client.call(ctx, http.MethodPost, "/policy/diff", body, &answer)
	return &answer, raw, err
}

// printDiff says what lies between two policies.
func printDiff(w io.Writer, style terminal.Style, d *sqlgate.DiffAnswer, text bool) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s -> %s: %s\n", style.Bold(d.Base.PolicyVersion), style.Bold(d.Target.PolicyVersion), summaryOf(d))
	for i := range d.Changes {
		printChange(&b, style, &d.Changes[i])
	}
	if d.Replay != nil {
		printReplay(&b, style, d.Base.PolicyVersion, d.Target.PolicyVersion, d.Replay)
	}
	if text && d.Text != "" {
		fmt.Fprintf(&b, "\n%s", d.Text)
	}
	_, err := w.Write(b.Bytes())
	return err
}

func summaryOf(d *sqlgate.DiffAnswer) string {
	switch {
	case d.IdenticalBytes:
		return "the same bytes"
	case d.IdenticalSemantics && len(d.Changes) == 0:
		return "the same meaning; texts or tests differ"
	}
	s := d.Summary
	var parts []string
	for _, p := range []struct {
		n    int
		what string
	}{{s.Added, "added"}, {s.Removed, "removed"}, {s.Modified, "modified"}, {s.Renamed, "renamed"}, {s.Reordered, "reordered"}} {
		if p.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", p.n, p.what))
		}
	}
	return strings.Join(parts, ", ") + " (" + counted(s.ActionChanges, "change") + " of a decision)"
}

var changeSigns = map[string]string{
	policy.ChangeAdded: "+", policy.ChangeRemoved: "-", policy.ChangeModified: "~", policy.ChangeRenamed: "=", policy.ChangeReordered: "^",
}

func printChange(b *bytes.Buffer, style terminal.Style, c *policy.RuleChange) {
	fmt.Fprintf(b, "  %s %s %s", changeSigns[c.Change], style.Bold(c.RuleID), c.Change)
	if c.RenamedFrom != "" {
		fmt.Fprintf(b, " from %s", c.RenamedFrom)
	}
	if c.Decision != nil {
		fmt.Fprintf(b, ": %s", fromTo(c.Decision))
	}
	fmt.Fprintf(b, "%s\n", directionOf(style, c.Direction))
	for _, f := range c.Fields {
		fmt.Fprintf(b, "      %s: %s\n", f.Path, fieldChange(&f))
	}
}

func fromTo(d *policy.FromTo) string {
	name := func(d *policy.Decision) string {
		if d == nil {
			return "none"
		}
		return string(*d)
	}
	return name(d.From) + " -> " + name(d.To)
}

func directionOf(style terminal.Style, direction string) string {
	switch direction {
	case policy.DirectionLooser:
		return style.Red(", looser")
	case policy.DirectionTighter:
		return style.Green(", tighter")
	case policy.DirectionUnknown:
		return style.Yellow(", looser or tighter depends on the statements")
	}
	return ""
}

func fieldChange(f *policy.FieldChange) string {
	if len(f.Added)+len(f.Removed) == 0 {
		return shown(f.From) + " -> " + shown(f.To)
	}
	var parts []string
	if len(f.Added) > 0 {
		parts = append(parts, "added "+shown(f.Added))
	}
	if len(f.Removed) > 0 {
		parts = append(parts, "removed "+shown(f.Removed))
	}
	return strings.Join(parts, ", ")
}

// printReplay says what two versions make of recorded decisions.
func printReplay(b *bytes.Buffer, style terminal.Style, base, target string, r *replay.Report) {
	fmt.Fprintf(b, "replay of events %d to %d: %s decided again under both; %s\n", r.FromSeq, r.ToSeq, counted(r.Evaluated, "decision"),
		style.Bold(fmt.Sprintf("%s decides %d of them otherwise than %s", target, r.Changed, base)))
	for _, t := range r.Transitions {
		fmt.Fprintf(b, "  %s by %s -> %s by %s: %d", t.From, base, t.To, target, t.Count)
		for _, rule := range slices.Sorted(maps.Keys(t.ByRule)) {
			fmt.Fprintf(b, ", %d by %s", t.ByRule[rule], rule)
		}
		var seqs []string
		for _, sample := range t.Samples {
			seq := fmt.Sprint(sample.Seq)
			if sample.Recorded != "" && sample.Recorded != t.From { // older gates do not say
				seq += " (recorded as " + string(sample.Recorded) + ")"
			}
			seqs = append(seqs, seq)
		}
		fmt.Fprintf(b, "\n      such as event %s\n", strings.Join(seqs, ", "))
	}
	fmt.Fprintf(b, "  decisions alone: whether a statement would have passed max_rows or an approval's time is not tried again\n")
	if r.RecordedDiffers+r.TargetDiffers > 0 {
		fmt.Fprintf(b, "  against what was recorded: %s decides %d otherwise, %s %d, and %d were recorded as neither decides\n", base, r.RecordedDiffers, target, r.TargetDiffers, r.BothDiffer)
	}
	if r.Unreplayable > 0 {
		fmt.Fprintf(b, "  %d could not be decided again: their facts have another version\n", r.Unreplayable)
	}
	if !r.Complete {
		fmt.Fprintf(b, "  %s\n", style.Yellow("the time was up before the end, so there is no impact hash; ask for a shorter time"))
	} else if r.ImpactHash != nil {
		fmt.Fprintf(b, "  impact hash %s\n", *r.ImpactHash)
	}
}
