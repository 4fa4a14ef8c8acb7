package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"writegate/sqlgate"
	"writegate/sqlgate/policy"
	"writegate/sqlgate/policyfolder"
)

func (a *app) policyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "policy", Short: "Write, check and test policies on files", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	cmd.AddCommand(a.policyInitCommand(), a.policyValidateCommand(), a.policyTestCommand(), a.policyManifestCommand())
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
	return &cobra.Command{
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
			fmt.Fprintf(c.OutOrStdout(), "The manifest lists %d version(s), active %q, and %d corpus file(s).\n", len(m.Files), m.Active, len(m.Corpus))
			return nil
		},
	}
}

func (a *app) policyValidateCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "validate FILE...", Short: "Check policy documents and name everything that is wrong", Args: cobra.MinimumNArgs(1),
		Long: `Check policy documents: form, meaning, conditions, the baseline corpus and the tests inside.

Everything is said at once, with line, column and what to try. Exit code 0: no errors; 1: errors.`,
		RunE: func(c *cobra.Command, args []string) error {
			return a.eachReport(c.Context(), args, func(file string, r *policy.Report) error {
				if asJSON {
					return printJSON(c.OutOrStdout(), r)
				}
				printReport(c.OutOrStdout(), file, r, false)
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the report as JSON, one object for each file")
	return cmd
}

func (a *app) policyTestCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "test [FILE...]", Short: "Run the tests inside policy documents and the corpora",
		Long: `Run the tests inside policy documents, the baseline corpus and the corpora of the policy folder.

Without a file the active version of GATE_POLICY_DIR is tested. Exit code 0: all passed; 1: not all.`,
		RunE: func(c *cobra.Command, args []string) error {
			files := args
			if len(files) == 0 {
				file, err := a.activePolicyFile()
				if err != nil {
					return err
				}
				files = []string{file}
			}
			return a.eachReport(c.Context(), files, func(file string, r *policy.Report) error {
				if asJSON {
					return printJSON(c.OutOrStdout(), map[string]any{"file": file, "tests": r.Tests, "corpus": r.Corpus, "coverage": r.Coverage, "valid": r.Valid})
				}
				printReport(c.OutOrStdout(), file, r, true)
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the results as JSON, one object for each file")
	return cmd
}

// settingsFor reads the settings for a command that does not serve.
func (a *app) settingsFor() (*settings, error) {
	s, err := loadSettings(a.environ, time.Now())
	if err != nil {
		return nil, exitWith(exitConfigured, err)
	}
	return s, nil
}

// activePolicyFile is the file of the folder's active version.
func (a *app) activePolicyFile() (string, error) {
	s, err := a.settingsFor()
	if err != nil {
		return "", err
	}
	folder, _, err := policyfolder.Read(s.PolicyDir, s.PolicyManifest)
	if err != nil {
		return "", exitWith(exitFailed, err)
	}
	version, _, ok := folder.Active()
	if !ok {
		return "", exitWith(exitFailed, errors.New("the manifest of the policy folder names no active version; name the file to test"))
	}
	return filepath.Join(s.PolicyDir, policyfolder.Path(version)), nil
}

// eachReport validates every file with the real classifier; an invalid one
// makes the exit code 1, after all were looked at.
func (a *app) eachReport(ctx context.Context, files []string, tell func(file string, r *policy.Report) error) error {
	s, err := a.settingsFor()
	if err != nil {
		return err
	}
	classifier, err := newClassifier(s)
	if err != nil {
		return err
	}
	defer classifier.Close()
	corpora := a.folderCorpora(s)
	valid := true
	for _, file := range files {
		document, err := os.ReadFile(file)
		if err != nil {
			return exitWith(exitFailed, err)
		}
		_, report := policy.Validate(document, policy.Options{FileName: filepath.Base(file), DefaultTTLSeconds: s.ApprovalTTL}, corpora, sqlgate.ClassifyFunc(ctx, classifier))
		if err := tell(file, &report); err != nil {
			return err
		}
		valid = valid && report.Valid
	}
	if !valid {
		return exitWith(exitFailed, nil)
	}
	return nil
}

// folderCorpora are the corpora of the policy folder, none where there is no folder.
func (a *app) folderCorpora(s *settings) []policy.Corpus {
	folder, _, err := policyfolder.Read(s.PolicyDir, s.PolicyManifest)
	if err != nil {
		return nil
	}
	return folder.Corpora
}

func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// printReport says what was found, as a compiler would, and then the sums.
func printReport(w io.Writer, file string, r *policy.Report, coverage bool) {
	for _, list := range [][]policy.Finding{r.Findings, r.Warnings} {
		for _, f := range list {
			fmt.Fprintf(w, "%s:%s\n", file, f.String())
		}
	}
	verdict := "valid"
	if !r.Valid {
		verdict = "NOT valid"
	}
	fmt.Fprintf(w, "%s: %s: %s, %d rule(s), %d error(s), %d warning(s); tests %d of %d passed, corpus %d of %d\n",
		file, r.PolicyVersion, verdict, r.RuleCount, r.Counts.Error, r.Counts.Warning, r.Tests.Passed, r.Tests.Cases, r.Corpus.Passed, r.Corpus.Cases)
	if !coverage {
		return
	}
	for _, c := range r.Coverage.Rules {
		fmt.Fprintf(w, "  rule %-32s matched by %3d case(s), decides %3d\n", c.RuleID, c.Matched, c.Decided)
	}
}
