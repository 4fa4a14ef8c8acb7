package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"writegate/http/controlplane"
	"writegate/http/gateapi"
)

func (a *app) executionsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "executions", Short: "Look at what was sent to the database, and ask what became of it", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	cmd.AddCommand(a.executionsListCommand(), a.executionsShowCommand(), a.executionsCheckCommand())
	return cmd
}

func (a *app) executionsListCommand() *cobra.Command {
	o := clientOptions{operator: true}
	var state string
	cmd := &cobra.Command{
		Use: "list", Short: "List executions in a state, the newest first", Args: cobra.NoArgs,
		Example: "  gate executions list\n  gate executions list --state failure --json",
		RunE: func(c *cobra.Command, _ []string) error {
			query := url.Values{"execution_state": {state}}
			if state == "all" {
				query = url.Values{}
			}
			return a.listRows(c.Context(), &o, "/executions", query, "ID\tSTATE\tSENT\tREQUESTER (UNVERIFIED)\tOPERATION\tTAG", "There is no such execution.",
				func(item json.RawMessage) (string, error) {
					var b gateapi.ExecutionBody
					err := json.Unmarshal(item, &b)
					return strings.Join([]string{b.ExecutionID, b.ExecutionState, second(b.DispatchedAt, "never"), visible(b.Actor + " / " + b.App), b.Operation, visible(text(b.CommandTag))}, "\t"), err
				})
		},
	}
	cmd.Flags().StringVar(&state, "state", "unknown", "unknown, dispatched, success, failure, not_executed or all")
	return clientFlags(cmd, &o, "print a JSON object for each execution, one a line")
}

func executionPath(id string) string { return "/executions/" + url.PathEscape(id) }

func (a *app) executionsShowCommand() *cobra.Command {
	o := clientOptions{operator: true}
	cmd := &cobra.Command{
		Use: "show EXECUTION", Short: "Show an execution and its events", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			var b gateapi.ExecutionBody
			done, err := a.askGate(c.Context(), &o, http.MethodGet, executionPath(args[0]), nil, &b)
			if done {
				return err
			}
			return written(printExecution(a.out, &b))
		},
	}
	return clientFlags(cmd, &o, "print the execution as JSON")
}

// executionsCheckCommand asks the database what became of an unknown one.
func (a *app) executionsCheckCommand() *cobra.Command {
	o := clientOptions{operator: true}
	cmd := &cobra.Command{
		Use: "check EXECUTION", Short: "Ask the database what became of an execution whose outcome is unknown", Args: cobra.ExactArgs(1),
		Long: `Ask the database what became of an execution whose outcome is unknown, and record what it says.
It takes an operator token, in GATE_OPERATOR_TOKEN. Exit code 0: it is known now; 2: it is not.`,
		RunE: func(c *cobra.Command, args []string) error {
			var b gateapi.ExecutionBody
			done, err := a.askGate(c.Context(), &o, http.MethodPost, executionPath(args[0])+"/check", map[string]string{}, &b)
			if err == nil && !done {
				err = written(printExecution(a.out, &b))
			}
			if err == nil && !done && b.ExecutionState == "unknown" {
				return exitWith(exitPartial, nil)
			}
			return err
		},
	}
	return clientFlags(cmd, &o, "print the execution as JSON")
}

func printExecution(w io.Writer, b *gateapi.ExecutionBody) error {
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	row := func(name, value string) {
		if value != "" {
			fmt.Fprintf(t, "%s\t%s\n", name, visible(value))
		}
	}
	row("execution", b.ExecutionID)
	row("state", b.ExecutionState)
	row("outcome", strings.TrimSpace(text(b.Outcome)+" "+text(b.Basis)))
	row("operation", b.Operation)
	row("tag", text(b.CommandTag))
	row("reason", strings.TrimSpace(text(b.ReasonCode)+" "+text(b.ErrorCode)))
	row("requester (unverified)", controlplane.MarkedClaim(b.Actor)+", application "+controlplane.MarkedClaim(b.App))
	row("approval", text(b.ApprovalID))
	row("sent", second(b.DispatchedAt, "never"))
	row("known since", second(b.ResolvedAt, ""))
	row("policy", b.PolicyVersion)
	row("request", b.RequestID)
	row("events", strings.Trim(fmt.Sprint(b.EventSeqs), "[]"))
	return t.Flush()
}
