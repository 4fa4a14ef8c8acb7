package main

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"writegate/cmd/terminal"
	"writegate/sqlgate/policy"
)

// printFindings says what was found, as a compiler would: the place, what is
// wrong, the line itself, and what to try.
func (a *app) printFindings(w io.Writer, text *policyText, findings []policy.Finding) error {
	style := terminal.StyleFor(w, a.environ)
	lines := strings.Split(string(text.document), "\n")
	var b bytes.Buffer
	for _, f := range inOrder(findings) {
		place := text.shown
		if f.Line > 0 {
			place = fmt.Sprintf("%s:%d:%d", text.shown, f.Line, max(f.Column, 1))
		}
		fmt.Fprintf(&b, "%s: %s %s %s: %s\n", style.Bold(place), severity(style, f.Severity), f.Code, f.Name, visible(f.Message))
		if f.Line > 0 && f.Line <= len(lines) {
			quoteLine(&b, style, lines[f.Line-1], f.Line, f.Column)
		}
		if f.Suggestion != "" {
			fmt.Fprintf(&b, "  %s %s\n", style.Cyan("try:"), visible(f.Suggestion))
		}
	}
	_, err := w.Write(b.Bytes())
	return err
}

// inOrder puts findings in the order of the file, those about the whole last.
func inOrder(findings []policy.Finding) []policy.Finding {
	findings = slices.Clone(findings)
	slices.SortStableFunc(findings, func(a, b policy.Finding) int {
		if (a.Line == 0) != (b.Line == 0) {
			return cmp.Compare(b.Line, a.Line)
		}
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return findings
}

func severity(style terminal.Style, word string) string {
	switch word {
	case policy.SeverityError:
		return style.Red(word)
	case policy.SeverityWarning:
		return style.Yellow(word)
	}
	return style.Cyan(word)
}

// quotedColumns bounds a line of a document inside a message.
const quotedColumns = 120

// quoteLine shows the line with a mark under the place. A line that is longer
// than a terminal is wide is left out.
func quoteLine(b *bytes.Buffer, style terminal.Style, line string, number, column int) {
	line = strings.ReplaceAll(strings.TrimRight(line, "\r "), "\t", " ")
	runes := []rune(line)
	if len(runes) == 0 || len(runes) > quotedColumns || !terminal.Printable(line) {
		return
	}
	gutter := fmt.Sprintf("%5d | ", number)
	fmt.Fprintf(b, "%s%s\n", style.Faint(gutter), line)
	if column >= 1 && column <= len(runes) {
		fmt.Fprintf(b, "%s%s\n", strings.Repeat(" ", len(gutter)+column-1), style.Green("^"))
	}
}

// printReport says what was found about a document, and then the sums.
func (a *app) printReport(w io.Writer, text *policyText, r *policy.Report, coverage bool) error {
	style := terminal.StyleFor(w, a.environ)
	if err := a.printFindings(w, text, slices.Concat(r.Findings, r.Warnings)); err != nil {
		return err
	}
	if coverage {
		if err := printCoverage(w, style, &r.Coverage); err != nil {
			return err
		}
	}
	verdict, name := style.Green("valid"), r.PolicyVersion
	if !r.Valid {
		verdict = style.Red("NOT valid")
	}
	if name == "" {
		name = "no readable name and version"
	}
	_, err := fmt.Fprintf(w, "%s: %s: %s: %s, %s, %s; %s\n", text.shown, name, verdict, counted(r.RuleCount, "rule"),
		counted(r.Counts.Error, "error"), counted(r.Counts.Warning, "warning"), suites(r))
	return err
}

// suites says how the cases ended. A document that does not load has none.
func suites(r *policy.Report) string {
	if r.Corpus.Cases == 0 {
		return "its tests were not run: mend the errors first"
	}
	return fmt.Sprintf("tests %d of %d passed, corpus %d of %d", r.Tests.Passed, r.Tests.Cases, r.Corpus.Passed, r.Corpus.Cases)
}

func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// casesShown is how many names of cases the table gives for a rule.
const casesShown = 2

// printCoverage is the table of the rules and of the cases that reach them.
func printCoverage(w io.Writer, style terminal.Style, c *policy.Coverage) error {
	if len(c.Rules) == 0 {
		return nil
	}
	rows := [][]terminal.Cell{{{Text: "RULE", Paint: style.Bold}, {Text: "MATCHED BY", Paint: style.Bold, Right: true}, {Text: "DECIDES", Paint: style.Bold, Right: true}, {Text: "CASES", Paint: style.Bold}}}
	for _, rule := range c.Rules {
		rows = append(rows, []terminal.Cell{{Text: rule.RuleID}, terminal.Number(rule.Matched), terminal.Number(rule.Decided), casesOf(style, &rule)})
	}
	return terminal.PrintTable(w, rows)
}

func casesOf(style terminal.Style, rule *policy.RuleCoverage) terminal.Cell {
	if rule.Matched == 0 {
		return terminal.Cell{Text: "not covered: no case matches it", Paint: style.Yellow}
	}
	text := strings.Join(rule.Cases[:min(casesShown, len(rule.Cases))], "; ")
	if more := rule.Matched - casesShown; more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return terminal.Cell{Text: text, Paint: style.Faint}
}
