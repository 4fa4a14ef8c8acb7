package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"writegate/cmd/terminal"
	"writegate/sqlgate"
	"writegate/sqlgate/classify"
	"writegate/sqlgate/policy"
	"writegate/sqlgate/policyfolder"
)

func (a *app) policyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "policy", Short: "Write, check, test, compare and activate policies", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	cmd.AddCommand(a.policyInitCommand(), a.policyValidateCommand(), a.policyTestCommand(), a.policyManifestCommand(), a.policyDiffCommand(), a.policyDryRunCommand(),
		a.policyCandidateCommand(), a.policyActivateCommand(), a.policyRollbackCommand(), a.policyRebuildCommand())
	return cmd
}

func (a *app) policyInitCommand() *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use: "init", Short: "Write a starting policy into an empty policy folder", Args: cobra.NoArgs,
		Long: `Write a starting policy and its manifest into GATE_POLICY_DIR, which must be empty.

The policy allows safe reads, asks for an approval of ordinary writes and schema changes, and
blocks the rest. It holds comments and tests: read it, change it, and run "gate policy test".`,
		RunE: func(c *cobra.Command, _ []string) error {
			s, err := a.settingsFor()
			if err != nil {
				return err
			}
			if err := policyfolder.Init(s.PolicyDir, s.PolicyManifest, name); err != nil {
				return exitWith(exitFailed, err)
			}
			fmt.Fprintf(c.OutOrStdout(), "Wrote a starting policy into %s. Read it, change it, check it with `gate policy test`, then start the gate.\n", s.PolicyDir)
			return nil
		},
	}
	cmd.Flags().StringVar(&name, "name", policy.StartingName, "name of the policy")
	return cmd
}

func (a *app) policyManifestCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "manifest", Short: "Write the manifest of the policy folder anew from its files", Args: cobra.NoArgs,
		Long: `Write the manifest of GATE_POLICY_DIR anew: hashes of all policy and corpus files as they are now.

Use it after changing a file before the first start. Once a gate has imported the folder its log
holds the versions, and a manifest that says otherwise keeps the gate from starting.`,
		RunE: func(c *cobra.Command, _ []string) error {
			s, err := a.settingsFor()
			if err != nil {
				return err
			}
			m, err := policyfolder.BuildManifest(s.PolicyDir, s.PolicyManifest)
			if err == nil {
				err = policyfolder.WriteManifest(s.PolicyDir, s.PolicyManifest, m)
			}
			if err != nil {
				return exitWith(exitFailed, err)
			}
			if asJSON {
				return written(printJSON(c.OutOrStdout(), m))
			}
			return written(a.printManifest(&m))
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the manifest as JSON")
	return cmd
}

func (a *app) printManifest(m *policyfolder.Manifest) error {
	style := terminal.StyleFor(a.out, a.environ)
	var rows [][]terminal.Cell
	for _, f := range m.Files {
		status := terminal.Cell{Text: f.Status}
		if f.Status == policyfolder.StatusActive {
			status.Paint = style.Green
		}
		rows = append(rows, []terminal.Cell{{Text: f.PolicyVersion}, status, {Text: f.SHA256, Paint: style.Faint}})
	}
	if err := terminal.PrintTable(a.out, rows); err != nil {
		return err
	}
	_, err := fmt.Fprintf(a.out, "The manifest lists %s, %s active, and %s.\n", counted(len(m.Files), "version"), orNothing(m.Active), counted(len(m.Corpus), "corpus file"))
	return err
}

func (a *app) policyValidateCommand() *cobra.Command {
	var o checkOptions
	cmd := &cobra.Command{
		Use: "validate FILE...", Short: "Check policy documents and name everything that is wrong", Args: cobra.MinimumNArgs(1),
		Long: `Check policy documents: form, meaning, conditions, the baseline corpus, the corpora of the policy
folder and the tests inside.

Everything is said at once, with line, column and what to try. FILE is a file, - for standard input,
or a version in GATE_POLICY_DIR. Exit code 0: no errors; 1: errors, with --strict also warnings.`,
		RunE: func(c *cobra.Command, args []string) error { return a.eachReport(c.Context(), args, o) },
	}
	o.flags(cmd)
	return cmd
}

func (a *app) policyTestCommand() *cobra.Command {
	o := checkOptions{coverage: true}
	cmd := &cobra.Command{
		Use: "test [FILE...]", Short: "Run the tests inside policy documents and the corpora",
		Long: `Run the tests inside policy documents, the baseline corpus and the corpora of the policy folder, and
show which rules they reach.

Without a file the active version of GATE_POLICY_DIR is tested. Exit code 0: all passed; 1: not all,
with --strict also where there are warnings, such as a rule that no case matches.`,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				args = []string{sqlgate.ActiveVersion}
			}
			return a.eachReport(c.Context(), args, o)
		},
	}
	o.flags(cmd)
	return cmd
}

// checkOptions are the flags that validate and test share.
type checkOptions struct {
	json, strict bool
	coverage     bool // of test
}

func (o *checkOptions) flags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&o.json, "json", false, "print JSON, one object a line for each file")
	cmd.Flags().BoolVar(&o.strict, "strict", false, "warnings fail as errors do")
}

// settingsFor reads the settings for a command that does not serve.
func (a *app) settingsFor() (*settings, error) {
	s, err := loadSettings(a.environ, time.Now())
	if err != nil {
		return nil, exitWith(exitConfigured, err)
	}
	return s, nil
}

// eachReport validates every file with the real classifier; an invalid one
// makes the exit code 1, after all were looked at.
func (a *app) eachReport(ctx context.Context, names []string, o checkOptions) error {
	s, err := a.settingsFor()
	if err != nil {
		return err
	}
	classifier, err := newClassifier(s, 0)
	if err != nil {
		return err
	}
	defer classifier.Close()
	good := true
	for _, name := range names {
		text, err := a.policyText(s, name)
		if err != nil {
			return exitWith(exitFailed, err)
		}
		report, err := judgeText(ctx, s, classifier, &text)
		if err == nil {
			err = a.tellReport(&text, &report, o)
		}
		if err != nil {
			return exitWith(exitFailed, err)
		}
		good = good && report.Valid && (!o.strict || report.Counts.Warning == 0)
	}
	if !good {
		return exitWith(exitFailed, nil)
	}
	return nil
}

// judgeText judges a document as a gate would before it takes it as a candidate.
func judgeText(ctx context.Context, s *settings, classifier *classify.Classifier, text *policyText) (policy.Report, error) {
	p, report := policy.Load(text.document, policy.Options{FileName: text.fileName, DefaultTTLSeconds: s.ApprovalTTL})
	if p == nil {
		return report, nil
	}
	corpora, findings, err := policyfolder.Corpora(s.PolicyDir, s.PolicyManifest)
	if err != nil {
		return report, err
	}
	report.Add(findings...)
	p.Check(&report, corpora, sqlgate.ClassifyFunc(ctx, classifier), 0)
	return report, ctx.Err()
}

func (a *app) tellReport(text *policyText, r *policy.Report, o checkOptions) error {
	switch {
	case !o.json:
		return a.printReport(a.out, text, r, o.coverage)
	case o.coverage:
		return printJSON(a.out, map[string]any{"file": text.shown, "policy_version": r.PolicyVersion, "valid": r.Valid, "counts": r.Counts,
			"tests": r.Tests, "corpus": r.Corpus, "coverage": r.Coverage})
	}
	return printJSON(a.out, struct {
		File string `json:"file"`
		*policy.Report
	}{text.shown, r})
}

func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}
