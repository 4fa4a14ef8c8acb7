package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"writegate/agentctl"
	"writegate/cmd/terminal"
)

// subjectAgent finds an agent by its name with the project key, where there is one; without, its id
// has to be given.
func (a *app) subjectAgent(c *cobra.Command, o *clientOptions, agent *string) error {
	if strings.HasPrefix(*agent, "agt_") {
		return nil
	}
	byKey := clientOptions{gate: o.gate, json: o.json}
	return a.agentNamed(c.Context(), &byKey, agent)
}

func (a *app) agentsBindSubjectCommand() *cobra.Command {
	o := clientOptions{operator: true}
	var reason string
	var scopes []string
	cmd := &cobra.Command{
		Use: "bind-subject AGENT SUBJECT", Short: "Let a subject of the issuer of agents' tokens speak for an agent", Args: cobra.ExactArgs(2),
		Long: `Let a subject of the issuer of agents' tokens (GATE_AGENT_OIDC_ISSUER) speak for an agent: a JWT
of the issuer with this sub is a credential of the agent from then on, as its own tokens are.

SUBJECT is the sub of the tokens exactly. It speaks for one agent at a time. This takes an operator
token, in GATE_OPERATOR_TOKEN; AGENT is the agent's id, or its name where GATE_PROJECT_KEY is set.`,
		Example: `  gate agents bind-subject agt_01a2... system:serviceaccount:shop:invoice-bot --reason "the worker in the shop's cluster"`,
		RunE: func(c *cobra.Command, args []string) error {
			if err := a.subjectAgent(c, &o, &args[0]); err != nil {
				return err
			}
			body := map[string]any{"agent_id": args[0], "subject": args[1], "reason": reason}
			if len(scopes) > 0 {
				body["scopes"] = scopes
			}
			var b agentctl.SubjectBody
			done, err := a.askGate(c.Context(), &o, http.MethodPost, "/subjects", body, &b)
			if done {
				return err
			}
			_, err = fmt.Fprintf(a.out, "%s is bound, by %s: tokens of %s speak for %s (%s).\n", b.SubjectID, b.CreatedBy, marked(b.Subject), marked(b.AgentName), b.AgentID)
			if err == nil && b.TokensFrom != nil {
				_, err = fmt.Fprintf(a.out, "Tokens that were issued before %s are not good: the subject was unbound then.\n", second(b.TokensFrom, ""))
			}
			return written(err)
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why; it stands in the evidence")
	cmd.Flags().StringSliceVar(&scopes, "scopes", nil, "what its tokens may do, separated by commas; those of the agent's own tokens by default")
	return clientFlags(cmd, &o, "print the binding as JSON")
}

func (a *app) agentsUnbindSubjectCommand() *cobra.Command {
	o := clientOptions{operator: true}
	var reason string
	cmd := &cobra.Command{
		Use: "unbind-subject SUBJECT_ID", Short: "End that a subject speaks for its agent; the next request with its token fails", Args: cobra.ExactArgs(1),
		Long: `End that a subject speaks for its agent, named by the id of the binding, sub_... as "gate agents
subjects" lists it. The next request with a token of the subject fails, and so does what waits. Tokens
that were issued before are not good either where it is bound again. A second time changes nothing.`,
		RunE: func(c *cobra.Command, args []string) error {
			var b agentctl.SubjectBody
			done, err := a.askGate(c.Context(), &o, http.MethodPost, "/subjects/"+url.PathEscape(args[0])+"/unbind", map[string]string{"reason": reason}, &b)
			if done {
				return err
			}
			_, err = fmt.Fprintf(a.out, "%s is unbound since %s: tokens of %s speak for nobody.\n", b.SubjectID, second(b.UnboundAt, ""), marked(b.Subject))
			return written(err)
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why; it stands in the evidence")
	return clientFlags(cmd, &o, "print the binding as JSON")
}

func (a *app) agentsSubjectsCommand() *cobra.Command {
	o := clientOptions{operator: true}
	var agent, status string
	cmd := &cobra.Command{
		Use: "subjects", Short: "List subjects of the issuer that are bound to agents, the newest first", Args: cobra.NoArgs,
		Example: "  gate agents subjects\n  gate agents subjects --status all --agent agt_01a2... --json",
		RunE: func(c *cobra.Command, _ []string) error {
			client, err := a.clientFor(&o)
			if err != nil {
				return err
			}
			if agent != "" {
				if err := a.subjectAgent(c, &o, &agent); err != nil {
					return err
				}
			}
			shown := status
			if shown == "all" {
				shown = ""
			}
			var found []agentctl.SubjectBody
			err = client.each(c.Context(), "/subjects", given(url.Values{"status": {shown}, "agent_id": {agent}}), func(item json.RawMessage) error {
				var b agentctl.SubjectBody
				err := json.Unmarshal(item, &b)
				if found = append(found, b); err == nil && o.json {
					err = writeLine(a.out, item)
				}
				return err
			})
			switch {
			case err != nil:
				return a.refused(err, o.json, nil)
			case o.json:
				return nil
			case len(found) == 0:
				_, err = fmt.Fprintln(a.out, "No bound subject fits.")
				return written(err)
			}
			t := tabwriter.NewWriter(terminal.Fit(a.out), 0, 4, 2, ' ', 0)
			fmt.Fprintln(t, "ID\tSTATUS\tAGENT\tNAME\tBOUND\tBY\tLAST USED\tSUBJECT")
			for i := range found {
				b := &found[i]
				fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", b.SubjectID, b.Status, b.AgentID, marked(b.AgentName), second(&b.CreatedAt, ""), visible(b.CreatedBy), second(b.LastUsedAt, "never"), marked(b.Subject))
			}
			return written(t.Flush())
		},
	}
	cmd.Flags().StringVar(&agent, "agent", "", "only of this agent: its id, or its name where GATE_PROJECT_KEY is set")
	cmd.Flags().StringVar(&status, "status", "bound", "bound, unbound or all")
	return clientFlags(cmd, &o, "print a JSON object for each, one a line")
}
