package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"writegate/cmd/terminal"
	"writegate/sqlgate"
	"writegate/sqlgate/pgexec"
	"writegate/sqlgate/policy"
)

type dryRunOptions struct {
	gate                   gateAddress
	sql, replay, compareTo string
	json, catalog          bool
	claims                 policy.CaseContext
}

func (a *app) policyDryRunCommand() *cobra.Command {
	var o dryRunOptions
	cmd := &cobra.Command{
		Use: "dry-run [FILE|VERSION]", Short: "Say what a policy makes of a statement, and why; nothing is executed", Args: cobra.MaximumNArgs(1),
		Long: `Classify a statement, decide it, and show rule by rule why. Nothing is executed and nothing written.

The statement is that of --sql, or standard input. Without a file or version the active one decides.
Without --url and --replay no gate is asked: versions are those of GATE_POLICY_DIR. --replay 24h asks
a running gate to decide what it recorded in the last 24 hours again, under the active version or
that of --compare-to, and under this one. --catalog reads the catalogues of GATE_DATABASE_URL first
and says what stands behind the names in the statement; a gate that is asked does so where
GATE_CATALOG_REFRESH_SECONDS is set.`,
		RunE: func(c *cobra.Command, args []string) error {
			name := sqlgate.ActiveVersion
			if len(args) > 0 {
				name = args[0]
			}
			return a.dryRun(c.Context(), name, o)
		},
	}
	gateFlag(cmd, &o.gate)
	f := cmd.Flags()
	f.StringVar(&o.sql, "sql", "", "the statement; standard input where it is not given")
	f.StringVar(&o.compareTo, "compare-to", "", "say what this version decides too")
	f.StringVar(&o.replay, "replay", "", "decide recorded decisions of this time again, such as 24h (asks a running gate)")
	f.BoolVar(&o.catalog, "catalog", false, "judge the statement by what stands in the database behind its names too")
	f.BoolVar(&o.json, "json", false, "print the answer as JSON")
	claimFlags(cmd, &o.claims)
	return cmd
}

// claimFlags are the context variables of facts/v1.
func claimFlags(cmd *cobra.Command, c *policy.CaseContext) {
	f := cmd.Flags()
	f.StringVar(&c.Actor, "actor", "", "who asks, a claim")
	f.StringVar(&c.App, "app", "", "application, a claim")
	f.StringVar(&c.Tenant, "tenant", "", "tenant, a claim")
	f.StringVar(&c.Role, "role", "", "role, a claim")
	f.StringVar(&c.Host, "host", "", "host, a claim")
	f.StringVar(&c.Env, "env", "prod", "shadow, staging or prod, a claim")
	f.StringVar(&c.TLSSubject, "tls-subject", "", "subject of the verified client certificate")
	f.StringVar(&c.AgentID, "agent-id", "", "agent whose valid token comes with the request")
	f.BoolVar(&c.AgentToolsVerified, "agent-tools-verified", false, "every tool bound to the agent is verified")
	f.BoolVar(&c.Approved, "approved", false, "the request carries a valid approval for this statement")
	f.StringVar(&c.SessionID, "session-id", "", "prepared-statement session")
	f.StringVar(&c.Channel, "channel", policy.ChannelHTTP, "http, wire or mcp: how the statement comes in")
	f.StringVar(&c.Mode, "mode", "", "enforce or approval_first; default from GATE_MODE")
}

func (a *app) dryRun(ctx context.Context, name string, o dryRunOptions) error {
	s, err := a.settingsFor()
	if err != nil {
		return err
	}
	if err := o.complete(s); err != nil {
		return err
	}
	if err := a.readStatement(&o, name); err != nil {
		return err
	}
	run := a.dryRunOffline
	if o.gate.url != "" || o.replay != "" {
		if o.catalog {
			return errors.New("--catalog is for a dry run without a gate: a gate reads the catalogues where GATE_CATALOG_REFRESH_SECONDS is set")
		}
		run = a.dryRunAtGate
	}
	answer, raw, err := run(ctx, s, name, o)
	if err != nil {
		return a.refused(err, o.json, nil)
	}
	if o.json {
		return written(writeLine(a.out, raw))
	}
	return written(printDryRun(a.out, terminal.StyleFor(a.out, a.environ), answer, cmp.Or(o.compareTo, "active")))
}

// complete fills in what follows from the settings and refuses what no request
// could carry.
func (o *dryRunOptions) complete(s *settings) error {
	if o.claims.Mode == "" {
		o.claims.Mode = policy.ModeEnforce
		if s.Mode == policy.ModeApprovalFirst {
			o.claims.Mode = policy.ModeApprovalFirst
		}
	}
	switch {
	case !slices.Contains([]string{"", "shadow", "staging", "prod"}, o.claims.Env):
		return fmt.Errorf("--env is %q; it must be shadow, staging or prod", o.claims.Env)
	case !slices.Contains([]string{policy.ChannelHTTP, policy.ChannelWire, policy.ChannelMCP}, o.claims.Channel):
		return fmt.Errorf("--channel is %q; it must be http, wire or mcp", o.claims.Channel)
	case o.claims.Mode != policy.ModeEnforce && o.claims.Mode != policy.ModeApprovalFirst:
		return fmt.Errorf("--mode is %q; it must be enforce or approval_first (shadow and emergency_bypass decide as enforce does)", o.claims.Mode)
	}
	return nil
}

// readStatement takes the statement from standard input where there is neither
// --sql nor a replay to run.
func (a *app) readStatement(o *dryRunOptions, name string) error {
	if o.sql != "" || o.replay != "" {
		return nil
	}
	if name == standardInput {
		return errors.New("the policy comes from standard input, so the statement needs --sql")
	}
	text, err := io.ReadAll(io.LimitReader(a.in, maxPolicyRead))
	if err != nil {
		return exitWith(exitFailed, err)
	}
	if o.sql = string(text); strings.TrimSpace(o.sql) == "" {
		return errors.New("there is no statement: give one with --sql or on standard input")
	}
	return nil
}

func (a *app) dryRunOffline(ctx context.Context, s *settings, name string, o dryRunOptions) (*sqlgate.DryRunAnswer, []byte, error) {
	p, err := a.compiledText(s, name)
	if err != nil {
		return nil, nil, err
	}
	var other *policy.Policy
	if o.compareTo != "" {
		if other, err = a.compiledText(s, o.compareTo); err != nil {
			return nil, nil, err
		}
	}
	classifier, err := newClassifier(s, 0)
	if err != nil {
		return nil, nil, err
	}
	defer classifier.Close()
	read := func(ctx context.Context, sql string) (sqlgate.Statement, error) {
		c, err := classifier.Classify(ctx, sql)
		return sqlgate.Statement{Classification: c}, err
	}
	switch {
	case !o.catalog:
	case s.DatabaseURL == "":
		return nil, nil, errors.New("--catalog reads the database's catalogues: set GATE_DATABASE_URL")
	default:
		c := s.databaseConfig()
		c.OnServerMajor = func(major int) { _ = classifier.SetServerMajor(major) } // of one that it does not know only what all known ones have counts
		logger := slog.New(slog.NewTextHandler(a.err, &slog.HandlerOptions{Level: slog.LevelWarn}))
		database, err := pgexec.Open(c, logger)
		if err != nil {
			return nil, nil, err
		}
		defer database.Close()
		read = sqlgate.InDatabase(sqlgate.Options{Classifier: classifier, Database: database, Logger: logger})
	}
	decision, err := sqlgate.Explain(ctx, read, o.sql, o.claims, s.OutcomeMarkerTable, p, other)
	if err != nil {
		return nil, nil, fmt.Errorf("the statement is refused before any rule is asked: %s", describeError(err))
	}
	answer := &sqlgate.DryRunAnswer{DryRunDecision: decision, PolicyVersion: p.Version(), PolicyHash: p.Hash()}
	var raw bytes.Buffer
	err = printJSON(&raw, answer)
	return answer, raw.Bytes(), err
}

func (a *app) dryRunAtGate(ctx context.Context, s *settings, name string, o dryRunOptions) (*sqlgate.DryRunAnswer, []byte, error) {
	client, err := a.gateClient(s, o.gate)
	if err != nil {
		return nil, nil, err
	}
	body := map[string]any{
		"actor": o.claims.Actor, "app": o.claims.App, "tenant": o.claims.Tenant, "role": o.claims.Role, "host": o.claims.Host, "env": o.claims.Env,
		"tls_subject": o.claims.TLSSubject, "agent_id": o.claims.AgentID, "agent_tools_verified": o.claims.AgentToolsVerified,
		"approved": o.claims.Approved, "mode": o.claims.Mode, "session_id": o.claims.SessionID, "channel": o.claims.Channel,
	}
	if o.sql != "" {
		body["sql"] = o.sql
	}
	if o.compareTo != "" {
		body["compare_to"] = o.compareTo
	}
	if o.replay != "" {
		body["replay"] = map[string]string{"last": o.replay}
	}
	if isVersionName(name) {
		body["policy_version"] = name
	} else {
		text, err := a.policyText(s, name)
		if err != nil {
			return nil, nil, err
		}
		body["document"] = string(text.document)
	}
	var answer sqlgate.DryRunAnswer
	raw, err := client.call(ctx, http.MethodPost, "/policy/dry-run", body, &answer)
	return &answer, raw, err
}

// printDryRun says the decision, what the statement is, and why; base is what a replay is
// held against.
func printDryRun(w io.Writer, style terminal.Style, answer *sqlgate.DryRunAnswer, base string) error {
	var b bytes.Buffer
	if d := answer.DryRunDecision; d != nil {
		printDecision(&b, style, answer)
		if err := terminal.PrintTable(&b, traceRows(style, d)); err != nil {
			return err
		}
		if d.Compared != nil {
			verb := "decides the same"
			if d.Compared.Changed {
				verb = "decides otherwise: " + string(d.Compared.Decision)
			}
			fmt.Fprintf(&b, "%s %s\n", d.Compared.PolicyVersion, verb)
		}
	}
	if answer.Replay != nil {
		printReplay(&b, style, base, answer.PolicyVersion, answer.Replay)
	}
	_, err := w.Write(b.Bytes())
	return err
}

func printDecision(b *bytes.Buffer, style terminal.Style, answer *sqlgate.DryRunAnswer) {
	d := answer.DryRunDecision
	fmt.Fprintf(b, "%s %s, by %s of %s\n", decisionIn(style, d.Decision), d.ReasonCode, style.Bold(d.RuleID), answer.PolicyVersion)
	fmt.Fprintf(b, "  %s\n", d.Reason)
	if d.Remedy != nil {
		fmt.Fprintf(b, "  %s %s\n", style.Cyan("try:"), *d.Remedy)
	}
	if d.Approval != nil && d.Decision == policy.RequireApproval {
		fmt.Fprintf(b, "  an approval lives %d seconds", d.Approval.TTLSeconds)
		if d.Approval.MaxRows != nil {
			fmt.Fprintf(b, " and admits at most %s", counted(int(*d.Approval.MaxRows), "row"))
		}
		fmt.Fprintln(b)
	}
	if d.DryRun != nil {
		fmt.Fprintf(b, "  the rules take a dry run of it%s\n", map[bool]string{true: ", and whoever approves may see rows of that"}[d.DryRun.Rows])
	}
	c := d.Classification
	if c == nil {
		return
	}
	facts := []string{"query types " + shown(c.QueryTypes), "class " + c.Class}
	for _, f := range []struct {
		name   string
		values []string
	}{{"reads", c.TablesRead}, {"writes", c.TablesWritten}, {"functions", c.Functions}, {"where", c.Where}, {"signals", c.RiskSignals}, {"flags", c.Flags}} {
		if len(f.values) > 0 {
			facts = append(facts, f.name+" "+shown(f.values))
		}
	}
	fmt.Fprintf(b, "  %s\n", style.Faint(strings.Join(facts, "; ")))
	for _, line := range d.Behind {
		fmt.Fprintf(b, "  %s\n", style.Faint(visible(line)))
	}
}

func decisionIn(style terminal.Style, d policy.Decision) string {
	switch d {
	case policy.Allow:
		return style.Green(string(d))
	case policy.Block:
		return style.Red(string(d))
	}
	return style.Yellow(string(d))
}

// traceRows are the rules with what became of each, and why. Floor signals that
// the statement does not raise are left out.
func traceRows(style terminal.Style, d *sqlgate.DryRunDecision) [][]terminal.Cell {
	rows := [][]terminal.Cell{{{Text: "RULE", Paint: style.Bold}, {Text: "DECISION", Paint: style.Bold}, {Text: "OUTCOME", Paint: style.Bold}, {Text: "WHY", Paint: style.Bold}}}
	for i := range d.RuleTrace {
		e := &d.RuleTrace[i]
		if strings.HasPrefix(e.RuleID, policy.FloorPrefix) && e.Outcome == policy.OutcomeNotMatched {
			continue
		}
		outcome := outcomeOf(style, e, d.RuleID)
		rows = append(rows, []terminal.Cell{{Text: e.RuleID}, {Text: string(e.Decision)}, outcome, {Text: why(e), Paint: style.Faint}})
	}
	return rows
}

func outcomeOf(style terminal.Style, e *policy.TraceEntry, decider string) terminal.Cell {
	switch {
	case e.RuleID == decider:
		return terminal.Cell{Text: "decides", Paint: style.Bold}
	case e.Outcome == policy.OutcomeNotMatched:
		return terminal.Cell{Text: "no match", Paint: style.Faint}
	case e.Outcome == policy.OutcomeMatched && e.Mode == "observe":
		return terminal.Cell{Text: "observed", Paint: style.Cyan}
	case e.Outcome == policy.OutcomeError:
		return terminal.Cell{Text: "error", Paint: style.Red}
	}
	return terminal.Cell{Text: e.Outcome}
}

// why names the check that a rule failed at, with what it asked for and what
// there was.
func why(e *policy.TraceEntry) string {
	switch {
	case e.FailedAt == "":
		return ""
	case e.FailedAt == "unless":
		return "its unless holds"
	case strings.HasSuffix(e.FailedAt, ".any_of"):
		return "no group of any_of holds"
	}
	for _, c := range e.Checks {
		if c.Key != e.FailedAt {
			continue
		}
		if c.Key == "when" {
			return fmt.Sprintf("when: %s, with %s", visible(oneLine(fmt.Sprint(c.Want))), shown(c.Got))
		}
		return fmt.Sprintf("%s wants %s, has %s", strings.TrimPrefix(c.Key, "match."), shown(c.Want), shown(c.Got))
	}
	return e.FailedAt
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
