package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"writegate/agentctl"
	"writegate/cmd/terminal"
	"writegate/sqlgate/agentrules"
)

func (a *app) agentPoliciesCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "policies", Short: "Write policies for agents, and apply them", Args: cobra.NoArgs,
		Long: `Write policies for agents, and apply them. What they say can only tighten what the gate's own policy
decides. docs/AGENTS.md has the rules' language.`,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	cmd.AddCommand(a.agentPolicyListCommand(), a.agentPolicyShowCommand(), a.agentPolicyCreateCommand(), a.agentPolicyUpdateCommand(), a.agentPolicyApplyCommand(), a.agentPolicyDetachCommand())
	return cmd
}

func agentPolicyPath(id string) string { return "/v1/policies/" + url.PathEscape(id) }

func (a *app) agentPolicyListCommand() *cobra.Command {
	var o clientOptions
	var name, agent string
	cmd := &cobra.Command{
		Use: "list", Short: "List the policies of the project, the newest first", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := a.agentNamed(c.Context(), &o, &agent); err != nil {
				return err
			}
			return a.listRows(c.Context(), &o, "/v1/policies", url.Values{"name": {name}, "agent_id": {agent}}, "ID\tNAME\tMODE\tENABLED\tRULES\tAPPLIED TO",
				"There is no such policy in this project. `gate agents policies create` makes one.", func(item json.RawMessage) (string, error) {
					var b agentctl.PolicyBody
					err := json.Unmarshal(item, &b)
					return fmt.Sprintf("%s\t%s\t%s\t%s\t%d\t%d", b.ID, visible(b.Name), b.Mode, yesNo(b.Enabled), len(b.Rules), b.ApplicationsCount), err
				})
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "only policies whose name begins so")
	cmd.Flags().StringVar(&agent, "agent", "", "only what is applied to this agent")
	return clientFlags(cmd, &o, "print a JSON object for each policy, one a line")
}

func yesNo(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}

// listRows prints a list of the API as a table, or as lines of JSON.
func (a *app) listRows(ctx context.Context, o *clientOptions, path string, query url.Values, head, none string, row func(json.RawMessage) (string, error)) error {
	client, err := a.clientFor(o)
	if err != nil {
		return err
	}
	t := tabwriter.NewWriter(terminal.Fit(a.out), 0, 4, 2, ' ', 0)
	n := 0
	err = client.each(ctx, path, query, func(item json.RawMessage) error {
		if o.json {
			return writeLine(a.out, item)
		}
		if n++; n == 1 {
			fmt.Fprintln(t, head)
		}
		text, err := row(item)
		if err == nil {
			_, err = fmt.Fprintln(t, text)
		}
		return err
	})
	if err != nil {
		return a.refused(err, o.json, nil)
	}
	if n == 0 && !o.json {
		_, err = fmt.Fprintln(a.out, none)
	}
	return written(errors.Join(err, t.Flush()))
}

func (a *app) agentPolicyShowCommand() *cobra.Command {
	return showCommand(a, "show POLICY", "Show a policy with its rules", "print the policy as JSON", agentPolicyPath, printAgentPolicy)
}

func printAgentPolicy(w io.Writer, b *agentctl.PolicyBody) error {
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	row := func(name, text string) { fmt.Fprintf(t, "%s\t%s\n", name, visible(text)) }
	row("policy", b.ID)
	row("name", b.Name)
	row("mode", b.Mode)
	row("enabled", yesNo(b.Enabled))
	row("revision", fmt.Sprint(b.Revision))
	row("applied to", fmt.Sprintf("%d agents", b.ApplicationsCount))
	for _, r := range b.Rules {
		condition := r.Condition
		if condition == "" {
			condition = "always"
		}
		row("rule", fmt.Sprintf("%s: %s when %s", r.ID, r.Action, condition))
	}
	return t.Flush()
}

// An agentRule is what the flags of "create" say: a policy of one rule.
type agentRule struct {
	name, action, condition, message, mode string
	conditioned                            bool // the flag was given, be it empty
}

func (r *agentRule) body() any {
	rule := map[string]string{"action": r.action}
	if r.conditioned {
		rule["condition"] = r.condition
	}
	if r.message != "" {
		rule["message"] = r.message
	}
	return map[string]any{"name": r.name, "mode": r.mode, "rules": []any{rule}}
}

func (a *app) agentPolicyCreateCommand() *cobra.Command {
	var o clientOptions
	var rule agentRule
	cmd := &cobra.Command{
		Use: "create [FILE]", Short: "Make a policy, of one rule or from a file", Args: cobra.MaximumNArgs(1),
		Long: `Make a policy. FILE holds it as JSON, as POST /v1/policies takes it; - is standard input. A policy of one
rule needs no file: name it with --name, and say the rule with --action and --condition.

It does nothing until it is applied to an agent.`,
		Example: `  gate agents policies create --name hands-off-orders --action block --condition 'sql.tables_written.exists(t, t == "public.orders")'
  gate agents policies create spend-guard.json`,
		RunE: func(c *cobra.Command, args []string) error {
			rule.conditioned = c.Flags().Changed("condition")
			body, err := a.policyOf(args, &rule)
			if err != nil {
				return err
			}
			return a.writePolicy(c.Context(), &o, http.MethodPost, "/v1/policies", body)
		},
	}
	cmd.Flags().StringVar(&rule.name, "name", "", "name of a policy of one rule")
	cmd.Flags().StringVar(&rule.action, "action", "", "what its rule does: block, require_approval, throttle:20/1h, suspend, alert, ...")
	cmd.Flags().StringVar(&rule.condition, "condition", "", "when, in CEL; '' is always")
	cmd.Flags().StringVar(&rule.message, "message", "", "what the agent is told")
	cmd.Flags().StringVar(&rule.mode, "mode", "enforce", "enforce, or observe to only say what it would do")
	return clientFlags(cmd, &o, "print the answer as JSON")
}

// policyOf is the policy of a file or of flags.
func (a *app) policyOf(args []string, rule *agentRule) (any, error) {
	named := rule.name != "" || rule.action != ""
	switch {
	case len(args) == 1 && !named:
		return a.jsonFile(args[0])
	case len(args) == 0 && rule.name != "" && rule.action != "":
		return rule.body(), nil
	}
	return nil, exitWith(exitUsage, errors.New("give a FILE, or --name and --action for a policy of one rule"))
}

// jsonFile reads what is sent as a body.
func (a *app) jsonFile(name string) (json.RawMessage, error) {
	var text []byte
	var err error
	if name == standardInput {
		text, err = io.ReadAll(io.LimitReader(a.in, maxPolicyRead))
	} else {
		text, err = readAtMost(name, maxPolicyRead)
	}
	if err != nil {
		return nil, exitWith(exitFailed, err)
	}
	var wrong *json.SyntaxError
	if err := json.Unmarshal(text, new(any)); errors.As(err, &wrong) {
		return nil, exitWith(exitFailed, fmt.Errorf("%s is no JSON: %w, at byte %d", name, err, wrong.Offset))
	}
	return text, nil
}

// writePolicy sends a policy and says what became of it.
func (a *app) writePolicy(ctx context.Context, o *clientOptions, method, path string, body any) error {
	client, err := a.clientFor(o)
	if err != nil {
		return err
	}
	var b agentctl.PolicyBody
	raw, err := client.call(ctx, method, path, body, &b)
	switch {
	case err != nil:
		return a.refusedRules(err, o.json)
	case o.json:
		return written(writeLine(a.out, raw))
	}
	next := fmt.Sprintf("`gate agents policies apply %s AGENT` applies it.", b.ID)
	if b.ApplicationsCount > 0 {
		next = fmt.Sprintf("It acts on %d agents from now on.", b.ApplicationsCount)
	}
	return written(a.noted(fmt.Sprintf("policy    %s\nrevision  %d\n\n%s\n", b.ID, b.Revision, next), b.Warnings))
}

// noted prints a text and the warnings behind it.
func (a *app) noted(text string, warnings []agentctl.Warning) error {
	_, err := io.WriteString(a.out, text)
	for _, w := range warnings {
		if err == nil {
			_, err = fmt.Fprintf(a.out, "note: %s\n", visible(w.Message))
		}
	}
	return err
}

// refusedRules tells what was refused, and first where in the rules the fault lies.
func (a *app) refusedRules(err error, asJSON bool) error {
	var r *gateRefusal
	if errors.As(err, &r) && !asJSON {
		var findings []agentrules.Finding
		if text, bad := json.Marshal(r.Details["findings"]); bad == nil && json.Unmarshal(text, &findings) == nil {
			for _, f := range findings {
				place := f.Pointer
				if f.Line > 0 {
					place = fmt.Sprintf("%s:%d:%d", f.Pointer, f.Line, f.Column)
				}
				fmt.Fprintf(a.err, "%s: %s: %s\n", place, f.Code, visible(f.Message))
			}
			delete(r.Details, "findings")
		}
	}
	return a.refused(err, asJSON, nil)
}

func (a *app) agentPolicyUpdateCommand() *cobra.Command {
	var o clientOptions
	cmd := &cobra.Command{
		Use: "update POLICY FILE", Short: "Replace a policy; it acts on its agents at once", Args: cobra.ExactArgs(2),
		Long: `Replace a policy by what FILE holds as JSON; - is standard input. It acts on every agent that it is
applied to, from now on. "enabled": false in it puts the policy to sleep.`,
		RunE: func(c *cobra.Command, args []string) error {
			body, err := a.jsonFile(args[1])
			if err != nil {
				return err
			}
			return a.writePolicy(c.Context(), &o, http.MethodPut, agentPolicyPath(args[0]), body)
		},
	}
	return clientFlags(cmd, &o, "print the answer as JSON")
}

func (a *app) agentPolicyApplyCommand() *cobra.Command {
	var o clientOptions
	var priority string
	var dry bool
	cmd := &cobra.Command{
		Use: "apply POLICY AGENT", Short: "Apply a policy to an agent, or change its priority there", Args: cobra.ExactArgs(2),
		Long: `Apply a policy to an agent. With --dry-run nothing is written: it tells what the policy would have done
in the agent's last 24 hours.`,
		RunE: func(c *cobra.Command, args []string) error {
			if err := a.agentNamed(c.Context(), &o, &args[1]); err != nil {
				return err
			}
			path := agentPolicyPath(args[0]) + "/apply"
			if dry {
				path += "?dry_run=true"
			}
			var b agentctl.ApplicationBody
			done, err := a.askGate(c.Context(), &o, http.MethodPost, path, map[string]string{"agent_id": args[1], "priority": priority}, &b)
			if done {
				return err
			}
			if p := b.Preview; p != nil {
				var changes strings.Builder
				for _, one := range p.SQLChanges {
					fmt.Fprintf(&changes, "  event %d: %s, not %s, by %s (request %s)\n", one.Seq, one.To, one.From, one.RuleID, marked(one.RequestID))
				}
				if more := p.SQLWouldChange - len(p.SQLChanges); more > 0 {
					fmt.Fprintf(&changes, "  and %d before these\n", more)
				}
				return written(a.noted(fmt.Sprintf("In the last 24 hours it would have decided %d of %d statements more strictly, and matched %d of %d telemetry events.\n%sNothing was written.\n",
					p.SQLWouldChange, p.SQLDecisions, p.EventsMatching, p.Events, &changes), b.Warnings))
			}
			return written(a.noted(fmt.Sprintf("%s binds %s, with priority %s, since event %d.\n", b.PolicyID, b.AgentID, b.Priority, b.EffectiveFromSeq), b.Warnings))
		},
	}
	cmd.Flags().StringVar(&priority, "priority", "normal", "low, normal, high, critical, or a number from 0 to 1000")
	cmd.Flags().BoolVar(&dry, "dry-run", false, "only tell what it would have done")
	return clientFlags(cmd, &o, "print the answer as JSON")
}

func (a *app) agentPolicyDetachCommand() *cobra.Command {
	var o clientOptions
	var yes bool
	cmd := &cobra.Command{
		Use: "detach POLICY AGENT", Short: "Take a policy away from an agent", Args: cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			if err := a.agentNamed(c.Context(), &o, &args[1]); err != nil {
				return err
			}
			if err := a.confirmed(fmt.Sprintf("Take %s away from %s?", visible(args[0]), visible(args[1])), yes); err != nil {
				return err
			}
			var b agentctl.ApplicationBody
			done, err := a.askGate(c.Context(), &o, http.MethodDelete, agentPolicyPath(args[0])+"/apply?"+url.Values{"agent_id": {args[1]}}.Encode(), nil, &b)
			if done {
				return err
			}
			_, err = fmt.Fprintf(a.out, "%s no longer binds %s.\n", b.PolicyID, b.AgentID)
			return written(err)
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return clientFlags(cmd, &o, "print the answer as JSON")
}
