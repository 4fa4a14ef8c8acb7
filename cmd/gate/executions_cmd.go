package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"writegate/cmd/terminal"
	"writegate/commands/fault"
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

// executionStates are those that a list may be of.
var executionStates = []string{"unknown", "dispatched", "success", "failure", "not_executed", "all"}

func (a *app) executionsListCommand() *cobra.Command {
	o := clientOptions{operator: true}
	var state string
	limit := 50
	cmd := &cobra.Command{
		Use: "list", Short: "List executions, the newest first", Args: cobra.NoArgs,
		Example: "  gate executions list\n  gate executions list --state unknown --json",
		RunE: func(c *cobra.Command, _ []string) error {
			if !slices.Contains(executionStates, state) {
				return fmt.Errorf("--state must be one of %s", strings.Join(executionStates, ", "))
			}
			return a.listExecutions(c.Context(), &o, state, limit)
		},
	}
	cmd.Flags().StringVar(&state, "state", "all", "unknown, dispatched, success, failure, not_executed or all")
	cmd.Flags().IntVar(&limit, "limit", limit, "executions at most; 0 is all")
	return clientFlags(cmd, &o, "print a JSON object for each execution, one a line")
}

func (a *app) listExecutions(ctx context.Context, o *clientOptions, state string, limit int) error {
	client, err := a.clientFor(o)
	if err != nil {
		return err
	}
	query := url.Values{"execution_state": {state}}
	if state == "all" {
		query = url.Values{}
	}
	var found []gateapi.ExecutionBody
	err = client.each(ctx, "/executions", query, func(item json.RawMessage) error {
		var b gateapi.ExecutionBody
		if limit > 0 && len(found) == limit {
			return errEnough
		}
		err := json.Unmarshal(item, &b)
		if found = append(found, b); err == nil && o.json {
			err = writeLine(a.out, item)
		}
		return err
	})
	if err != nil && !errors.Is(err, errEnough) {
		return a.refused(err, o.json, nil)
	}
	if errors.Is(err, errEnough) {
		fmt.Fprintf(a.err, "There are more; --limit %d showed the newest.\n", limit)
	}
	damage := client.damage(ctx)
	if !o.json {
		err = a.printExecutions(ctx, client, found, state, damage != "")
	}
	if damage != "" { // what was printed may not be all
		return exitWith(exitFailed, errors.New(damage))
	}
	return written(err)
}

func (a *app) printExecutions(ctx context.Context, client *gateClient, found []gateapi.ExecutionBody, state string, damaged bool) error {
	var seqs []uint64
	for _, b := range found {
		seqs = append(seqs, b.EventSeqs...)
	}
	slices.Sort(seqs)
	did := map[string]string{}
	for from, i := 0, 0; i < len(seqs); i++ { // an old one that was settled lately has months between its events
		if i+1 == len(seqs) || seqs[i+1]-seqs[i] > 1000 {
			maps.Copy(did, client.did(ctx, url.Values{"from_seq": {fmt.Sprint(seqs[from])}, "to_seq": {fmt.Sprint(seqs[i])}}))
			from = i + 1
		}
	}
	var err error
	switch {
	case len(found) > 0 || damaged:
	case state == "all":
		_, err = fmt.Fprintln(a.out, "Nothing was sent to the database yet.")
	default:
		_, err = fmt.Fprintf(a.out, "No execution is in state %s.\n", state)
	}
	t := tabwriter.NewWriter(terminal.Fit(a.out), 0, 4, 2, ' ', 0)
	for i, b := range found {
		if i == 0 {
			fmt.Fprintln(t, "ID\tSTATE\tSENT\tREQUESTER (UNVERIFIED)\tOPERATION\tTAG")
		}
		fmt.Fprintln(t, strings.Join([]string{b.ExecutionID, b.ExecutionState, second(b.DispatchedAt, "never"), requester(b.Actor, b.App), b.Operation, visible(controlplane.InAll(did[b.ExecutionID], text(b.CommandTag), b.Path))}, "\t"))
	}
	return errors.Join(err, t.Flush())
}

// did is what executions changed in all, as their results in the log say it; where those
// can't be read, PostgreSQL's own word stays.
func (g *gateClient) did(ctx context.Context, query url.Values) map[string]string {
	did := map[string]string{}
	query.Set("event_type", "execution_success")
	_ = g.each(ctx, "/audit", query, func(item json.RawMessage) error {
		id, words := controlplane.DidOf(item)
		did[id] = words
		return nil
	})
	return did
}

// damage says how far the log verifies that lists are made from; "": nothing is known to
// be wrong with it.
func (g *gateClient) damage(ctx context.Context) string {
	var page listPage
	_, err := g.call(ctx, http.MethodGet, "/audit?limit=1", nil, &page)
	if r := (*gateRefusal)(nil); errors.As(err, &r) && r.Code == string(fault.AuditCorruptionDetected) {
		return r.Message
	}
	return page.Damaged.Message
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
			return a.showExecution(c.Context(), &o, &b)
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
				err = a.showExecution(c.Context(), &o, &b)
			}
			if err == nil && !done && b.ExecutionState == "unknown" {
				return exitWith(exitPartial, nil)
			}
			return err
		},
	}
	return clientFlags(cmd, &o, "print the execution as JSON")
}

func (a *app) showExecution(ctx context.Context, o *clientOptions, b *gateapi.ExecutionBody) error {
	client, err := a.clientFor(o)
	if err != nil {
		return err
	}
	did := controlplane.InAll(client.did(ctx, url.Values{"execution_id": {b.ExecutionID}})[b.ExecutionID], text(b.CommandTag), b.Path)
	b.CommandTag = &did
	return written(printExecution(a.out, b))
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
	row("reason", text(b.ReasonCode))
	if text(b.ErrorCode) != text(b.ReasonCode) {
		row("error", text(b.ErrorCode))
	}
	row("requester (unverified)", controlplane.MarkedClaim(b.Actor)+", application "+controlplane.MarkedClaim(b.App))
	row("approval", text(b.ApprovalID))
	row("grant", text(b.GrantID))
	row("sent", second(b.DispatchedAt, "never"))
	row("known since", second(b.ResolvedAt, ""))
	row("policy", b.PolicyVersion)
	row("request", b.RequestID)
	row("events", strings.Trim(fmt.Sprint(b.EventSeqs), "[]"))
	return t.Flush()
}
