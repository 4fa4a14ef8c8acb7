package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"writegate/cmd/terminal"
	"writegate/sqlgate"
	"writegate/sqlgate/policy"
)

// changeOptions are the flags of what changes a running gate.
type changeOptions struct {
	gate                 gateAddress
	note, reason, replay string
	json, yes            bool
}

func (a *app) policyCandidateCommand() *cobra.Command {
	var o changeOptions
	cmd := &cobra.Command{
		Use: "candidate FILE", Short: "Hand a new version to a running gate, which checks and records it", Args: cobra.ExactArgs(1),
		Long: `Hand a document to a running gate as a new version. The gate runs all its tests and corpora: a
version that passes is a candidate, one that fails is rejected and its number is spent, so check it
with "gate policy test" first. The same bytes again change nothing. GATE_OPERATOR_TOKEN is needed.`,
		RunE: func(c *cobra.Command, args []string) error { return a.proposePolicy(c.Context(), args[0], o) },
	}
	gateFlag(cmd, &o.gate)
	cmd.Flags().StringVar(&o.note, "note", "", "a note for the record, such as who reviewed it")
	cmd.Flags().BoolVar(&o.json, "json", false, "print the answer as JSON")
	return cmd
}

func (a *app) proposePolicy(ctx context.Context, name string, o changeOptions) error {
	s, err := a.settingsFor()
	if err != nil {
		return err
	}
	client, err := a.gateClient(s, o.gate)
	if err != nil {
		return err
	}
	text, err := a.policyText(s, name)
	if err != nil {
		return exitWith(exitFailed, err)
	}
	var answer sqlgate.CandidateAnswer
	raw, err := client.call(ctx, http.MethodPost, "/policy/candidates", map[string]string{"document": string(text.document), "note": o.note}, &answer)
	switch {
	case err != nil:
		return a.refused(err, o.json, &text)
	case o.json:
		return written(writeLine(a.out, raw))
	}
	if err := a.printFindings(a.out, &text, answer.Warnings); err != nil {
		return exitWith(exitFailed, err)
	}
	if answer.Tests == nil {
		_, err = fmt.Fprintf(a.out, "%s is known with these bytes; it is %s.\n", answer.PolicyVersion, answer.Status)
	} else {
		_, err = fmt.Fprintf(a.out, "%s is a candidate: %s, tests %d of %d passed, corpus %d of %d.\n  hash %s\nLook at it with `gate policy diff --replay 24h active %s`, then `gate policy activate %s`.\n",
			answer.PolicyVersion, counted(answer.RuleCount, "rule"), answer.Tests.Passed, answer.Tests.Cases, answer.Corpus.Passed, answer.Corpus.Cases,
			answer.Hash, answer.PolicyVersion, answer.PolicyVersion)
	}
	return written(err)
}

// changeFlags are those of an activation and of a rollback.
func changeFlags(cmd *cobra.Command, o *changeOptions) {
	gateFlag(cmd, &o.gate)
	cmd.Flags().StringVar(&o.replay, "replay", "", "decide recorded decisions of this time again first, such as 24h")
	cmd.Flags().StringVar(&o.reason, "reason", "", "why, for the record")
	cmd.Flags().BoolVar(&o.yes, "yes", false, "do not ask")
	cmd.Flags().BoolVar(&o.json, "json", false, "print the answer as JSON")
}

func (a *app) policyActivateCommand() *cobra.Command {
	var o changeOptions
	cmd := &cobra.Command{
		Use: "activate FILE|VERSION", Short: "Make a candidate of a running gate the active version", Args: cobra.ExactArgs(1),
		Long: `Show what lies between the active version and a candidate, ask, and make the candidate the active one.

With a file, the gate must hold exactly its bytes: what was reviewed is what becomes active. With
--replay 24h the decisions recorded in that time are decided again under both, and the activation is
bound to what that showed. GATE_OPERATOR_TOKEN is needed.`,
		RunE: func(c *cobra.Command, args []string) error { return a.activatePolicy(c.Context(), args[0], o) },
	}
	changeFlags(cmd, &o)
	return cmd
}

func (a *app) activatePolicy(ctx context.Context, name string, o changeOptions) error {
	s, err := a.settingsFor()
	if err != nil {
		return err
	}
	client, err := a.gateClient(s, o.gate)
	if err != nil {
		return err
	}
	request, err := a.toActivate(s, name)
	if err != nil {
		return err
	}
	shownDiff, err := a.lookBefore(ctx, client, request["policy_version"].(string), o)
	if err != nil {
		return errors.Join(a.refused(err, o.json, nil), a.handInFirst(err))
	}
	request["reason"], request["expected_active_hash"] = o.reason, shownDiff.Base.Hash
	if request["expected_hash"] == nil {
		request["expected_hash"] = shownDiff.Target.Hash
	}
	if r := shownDiff.Replay; r != nil && r.ImpactHash != nil {
		request["impact"] = map[string]any{"from_seq": r.FromSeq, "to_seq": r.ToSeq, "impact_hash": *r.ImpactHash}
	}
	return a.change(ctx, client, "/policy/activate", fmt.Sprintf("Activate %s?", request["policy_version"]), request, o)
}

// handInFirst helps where the gate does not know the version yet.
func (a *app) handInFirst(err error) error {
	var r *gateRefusal
	if !errors.As(err, &r) || r.Code != "policy_not_found" {
		return nil
	}
	_, err = fmt.Fprintln(a.err, "  A new version is handed in first: `gate policy candidate FILE`")
	return err
}

// toActivate names the candidate: by the bytes of a file, or by its version
// alone, whose hash is that of what is shown.
func (a *app) toActivate(s *settings, name string) (map[string]any, error) {
	if isVersionName(name) {
		return map[string]any{"policy_version": name}, nil
	}
	text, err := a.policyText(s, name)
	if err != nil {
		return nil, exitWith(exitFailed, err)
	}
	_, report := policy.Load(text.document, policy.Options{})
	if report.PolicyVersion == "" {
		return nil, exitWith(exitFailed, fmt.Errorf("%s has no readable name and version; `gate policy validate %s` says what is wrong", text.shown, name))
	}
	return map[string]any{"policy_version": report.PolicyVersion, "expected_hash": report.Hash}, nil
}

// lookBefore shows what an activation would change. Where no version is active
// there is no base.
func (a *app) lookBefore(ctx context.Context, client *gateClient, version string, o changeOptions) (*sqlgate.DiffAnswer, error) {
	var status sqlgate.PolicyStatus
	if _, err := client.call(ctx, http.MethodGet, "/policy/status", nil, &status); err != nil {
		return nil, err
	}
	var entry sqlgate.VersionEntry
	if _, err := client.call(ctx, http.MethodGet, "/policy/versions/"+url.PathEscape(version), nil, &entry); err != nil {
		return nil, err
	}
	body := map[string]any{"base": sqlgate.ActiveVersion, "target": version}
	if o.replay != "" {
		body["replay"] = map[string]string{"last": o.replay}
	}
	var answer sqlgate.DiffAnswer
	_, err := client.call(ctx, http.MethodPost, "/policy/diff", body, &answer)
	var r *gateRefusal
	switch {
	case errors.As(err, &r) && r.Code == "policy_not_found" && !status.Loaded:
		return &sqlgate.DiffAnswer{Target: sqlgate.PolicyRef{PolicyVersion: version, Hash: entry.Hash}}, nil
	case err != nil:
		return nil, err
	}
	return &answer, printDiff(a.err, terminal.StyleFor(a.err, a.environ), &answer, false)
}

func (a *app) policyRollbackCommand() *cobra.Command {
	var o changeOptions
	cmd := &cobra.Command{
		Use: "rollback [VERSION]", Short: "Make an archived version of a running gate the active one again", Args: cobra.MaximumNArgs(1),
		Long: `Go back to an archived version, by default to the one that was active before. What lies between is
shown first. GATE_OPERATOR_TOKEN is needed.`,
		RunE: func(c *cobra.Command, args []string) error {
			version := ""
			if len(args) > 0 {
				version = args[0]
			}
			return a.rollbackPolicy(c.Context(), version, o)
		},
	}
	changeFlags(cmd, &o)
	return cmd
}

func (a *app) rollbackPolicy(ctx context.Context, version string, o changeOptions) error {
	s, err := a.settingsFor()
	if err != nil {
		return err
	}
	client, err := a.gateClient(s, o.gate)
	if err != nil {
		return err
	}
	if version == "" {
		if version, err = lastArchived(ctx, client); err != nil {
			return a.refused(err, o.json, nil)
		}
	}
	shownDiff, err := a.lookBefore(ctx, client, version, o)
	if err != nil {
		return a.refused(err, o.json, nil)
	}
	request := map[string]any{"policy_version": version, "reason": o.reason, "expected_active_hash": shownDiff.Base.Hash}
	return a.change(ctx, client, "/policy/rollback", fmt.Sprintf("Go back to %s?", version), request, o)
}

// lastArchived is the version that was archived last.
func lastArchived(ctx context.Context, client *gateClient) (string, error) {
	var all []sqlgate.VersionEntry
	for cursor := ""; ; {
		var page struct {
			Items []sqlgate.VersionEntry `json:"items"`
			Next  *string                `json:"next_cursor"`
		}
		path := "/policy/versions?status=archived&limit=1000&cursor=" + url.QueryEscape(cursor)
		if _, err := client.call(ctx, http.MethodGet, path, nil, &page); err != nil {
			return "", err
		}
		all = append(all, page.Items...)
		if page.Next == nil || *page.Next == "" {
			break
		}
		cursor = *page.Next
	}
	if len(all) == 0 {
		return "", errors.New("no version is archived, so there is nothing to go back to")
	}
	last := slices.MaxFunc(all, func(a, b sqlgate.VersionEntry) int { return compareMoments(a.ArchivedAt, b.ArchivedAt) })
	return last.PolicyVersion, nil
}

// change asks, sends the request, and says what changed.
func (a *app) change(ctx context.Context, client *gateClient, path, question string, request map[string]any, o changeOptions) error {
	if err := a.confirmed(question, o.yes); err != nil {
		return err
	}
	var answer sqlgate.PolicyChangeAnswer
	raw, err := client.call(ctx, http.MethodPost, path, request, &answer)
	switch {
	case err != nil:
		return a.refused(err, o.json, nil)
	case o.json:
		return written(writeLine(a.out, raw))
	}
	if err := a.printFindings(a.out, &policyText{shown: answer.PolicyVersion}, answer.Warnings); err != nil {
		return exitWith(exitFailed, err)
	}
	style := terminal.StyleFor(a.out, a.environ)
	before := "No version was active before."
	if answer.Previous != nil {
		before = fmt.Sprintf("%s is %s; `gate policy rollback` goes back to it.", answer.Previous.PolicyVersion, answer.Previous.Status)
	}
	_, err = fmt.Fprintf(a.out, "%s is %s since %s (event %d, by %s).\n  hash %s\n%s\n",
		style.Bold(answer.PolicyVersion), style.Green(answer.Status), answer.ActivatedAt, answer.ActivatedSeq, answer.ActivatedBy, answer.Hash, before)
	return written(err)
}

// compareMoments compares times of the API, which an entry may lack.
func compareMoments(a, b *string) int {
	moment := func(text *string) time.Time {
		if text == nil {
			return time.Time{}
		}
		t, err := time.Parse(time.RFC3339Nano, *text)
		if err != nil {
			return time.Time{}
		}
		return t
	}
	return moment(a).Compare(moment(b))
}
