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
	"time"

	"github.com/spf13/cobra"

	"writegate/cmd/terminal"
	"writegate/http/controlplane"
	"writegate/http/gateapi"
	"writegate/sqlgate/replay"
)

func (a *app) grantsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "grants", Short: "Approve statements of an agent ahead, for a time and within a budget, and take that back", Args: cobra.NoArgs,
		Long: `Approve statements of an agent ahead, for a time and within a budget, and take that back.

While a grant is active, a statement of its agent that meets its condition runs without an approval of
its own, where every rule that asks for one says "approval: {grants: true}". The commands speak to a
running gate. To give, revoke or replay one takes an operator token, in GATE_OPERATOR_TOKEN; its label
is what evidence names.`,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	cmd.AddCommand(a.grantsCreateCommand(), a.grantsListCommand(), a.grantsGetCommand(), a.grantsRevokeCommand(), a.grantsReplayCommand())
	return cmd
}

const conditionFlag = `what its statements do, CEL over the facts as in a rule's when, such as 'query_types.all(t, t == "UPDATE") && tables_written.all(t, t == "public.orders")'`

func (a *app) grantsCreateCommand() *cobra.Command {
	o := clientOptions{operator: true}
	var condition, reason string
	var lasts time.Duration
	var uses int
	var rows int64
	var yes bool
	cmd := &cobra.Command{
		Use: "create AGENT", Short: "Give an agent a grant", Args: cobra.ExactArgs(1),
		Long: `Give an agent, named by its id, a grant.

It shows what the grant would have covered in the last 24 hours and asks before it gives it; --yes is
for where nobody can be asked.`,
		Example: `  gate grants create agt_01a2... --when 'query_types.all(t, t == "UPDATE") && tables_written.all(t, t == "public.prices")' --for 1h --uses 40 --rows 400 --reason "spring catalogue"`,
		RunE: func(c *cobra.Command, args []string) error {
			client, err := a.clientFor(&o)
			switch {
			case err != nil:
				return err
			case client.secret == "":
				return exitWith(exitConfigured, errors.New("GATE_OPERATOR_TOKEN is not set; to give a grant takes an operator token"))
			}
			if !yes {
				if err := a.replayGrant(c.Context(), client, &o, a.err, args[0], condition, "24h", lasts); err != nil {
					return err
				}
				if err := a.confirmed(fmt.Sprintf("\nGive %s this grant for %s, for %d uses and %s?", marked(args[0]), lasts, uses, controlplane.Rows(rows)), false); err != nil {
					return err
				}
			}
			var b gateapi.GrantBody
			raw, err := client.call(c.Context(), http.MethodPost, "/grants", map[string]any{"agent_id": args[0], "condition": condition,
				"until": time.Now().Add(lasts).UTC().Format(time.RFC3339Nano), "uses": uses, "rows": rows, "reason": reason}, &b)
			switch {
			case err != nil:
				return a.refused(err, o.json, nil)
			case o.json:
				return written(writeLine(a.out, raw))
			}
			_, err = fmt.Fprintf(a.out, "%s is given, by %s, until %s. `gate grants revoke %s` ends it.\n", b.GrantID, b.CreatedBy, second(b.Until, ""), b.GrantID)
			return written(err)
		},
	}
	cmd.Flags().StringVar(&condition, "when", "", conditionFlag)
	cmd.Flags().DurationVar(&lasts, "for", time.Hour, "how long it holds, such as 30m; the policy bounds it (max_grant_seconds)")
	cmd.Flags().IntVar(&uses, "uses", 0, "statements that may run under it")
	cmd.Flags().Int64Var(&rows, "rows", 0, "rows that these may change together; 0 covers statements that change none")
	cmd.Flags().StringVar(&reason, "reason", "", "why; it stands in the evidence")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return clientFlags(cmd, &o, "print the grant as JSON")
}

func (a *app) grantsListCommand() *cobra.Command {
	o := clientOptions{operator: true}
	var status, agent string
	cmd := &cobra.Command{
		Use: "list", Short: "List grants, the newest first", Args: cobra.NoArgs,
		Example: "  gate grants list\n  gate grants list --status all --agent agt_01a2... --json",
		RunE: func(c *cobra.Command, _ []string) error {
			client, err := a.clientFor(&o)
			if err != nil {
				return err
			}
			shown := status
			if shown == "all" {
				shown = ""
			}
			var found []gateapi.GrantBody
			err = client.each(c.Context(), "/grants", given(url.Values{"status": {shown}, "agent_id": {agent}}), func(item json.RawMessage) error {
				var b gateapi.GrantBody
				err := json.Unmarshal(item, &b)
				if found = append(found, b); err == nil && o.json {
					err = writeLine(a.out, item)
				}
				return err
			})
			if err != nil {
				return a.refused(err, o.json, nil)
			}
			if o.json {
				return nil
			}
			return written(printGrants(a.out, found))
		},
	}
	cmd.Flags().StringVar(&status, "status", "active", "active, used_up, expired, revoked or all")
	cmd.Flags().StringVar(&agent, "agent", "", "only of the agent with this id")
	return clientFlags(cmd, &o, "print a JSON object for each grant, one a line")
}

func printGrants(w io.Writer, found []gateapi.GrantBody) error {
	if len(found) == 0 {
		_, err := fmt.Fprintln(w, "No grant fits.")
		return err
	}
	t := tabwriter.NewWriter(terminal.Fit(w), 0, 4, 2, ' ', 0)
	fmt.Fprintln(t, "ID\tSTATUS\tAGENT\tUNTIL\tUSES LEFT\tROWS LEFT\tCONDITION")
	for i := range found {
		b := &found[i]
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%d of %d\t%d of %d\t%s\n", b.GrantID, b.Status, b.AgentID, second(b.Until, ""), b.UsesLeft, b.Uses, b.RowsLeft, b.Rows, visible(firstLine(b.Condition, 72)))
	}
	return t.Flush()
}

func grantPath(id string) string { return "/grants/" + url.PathEscape(id) }

func (a *app) grantsGetCommand() *cobra.Command {
	o := clientOptions{operator: true}
	cmd := &cobra.Command{
		Use: "get GRANT", Short: "Show a grant: what it covers, for whom, and what is left of it", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			var b gateapi.GrantBody
			done, err := a.askGate(c.Context(), &o, http.MethodGet, grantPath(args[0]), nil, &b)
			if done {
				return err
			}
			return written(printGrant(a.out, &b))
		},
	}
	return clientFlags(cmd, &o, "print the grant as JSON")
}

func printGrant(w io.Writer, b *gateapi.GrantBody) error {
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	row := func(name, value string) {
		if value != "" {
			fmt.Fprintf(t, "%s\t%s\n", name, visible(value))
		}
	}
	status := b.Status
	if b.Withdrawn {
		status = "withdrawn: its agent was taken out of service, or the log lost events"
	}
	row("grant", b.GrantID)
	row("status", status)
	row("agent", b.AgentID)
	row("condition", controlplane.Marked(b.Condition))
	row("given", second(b.CreatedAt, "")+" by "+b.CreatedBy)
	row("until", second(b.Until, ""))
	row("why", b.Reason)
	row("uses", fmt.Sprintf("%d of %d left", b.UsesLeft, b.Uses))
	row("rows", fmt.Sprintf("%d of %d left; %d changed or may be, %d kept for what runs or is not known", b.RowsLeft, b.Rows, b.RowsChanged, b.RowsReserved))
	row("last used", second(b.LastUsedAt, ""))
	if b.RevokedAt != nil {
		row("revoked", second(b.RevokedAt, "")+" by "+text(b.RevokedBy))
	}
	row("note", text(b.Note))
	return t.Flush()
}

func (a *app) grantsRevokeCommand() *cobra.Command {
	o := clientOptions{operator: true}
	var note string
	cmd := &cobra.Command{
		Use: "revoke GRANT", Short: "End a grant; what runs under it ends as it was decided", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			var b gateapi.GrantBody
			done, err := a.askGate(c.Context(), &o, http.MethodPost, grantPath(args[0])+"/revoke", map[string]string{"note": note}, &b)
			if done {
				return err
			}
			_, err = fmt.Fprintf(a.out, "%s is revoked, by %s. Nothing more runs under it.\n", b.GrantID, text(b.RevokedBy))
			return written(err)
		},
	}
	cmd.Flags().StringVar(&note, "note", "", "why; it stands in the evidence")
	return clientFlags(cmd, &o, "print the grant as JSON")
}

func (a *app) grantsReplayCommand() *cobra.Command {
	o := clientOptions{operator: true}
	var condition, last string
	var lasts time.Duration
	cmd := &cobra.Command{
		Use: "replay AGENT", Short: "Show which recorded statements of an agent a grant would have covered; nothing is written", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			client, err := a.clientFor(&o)
			if err != nil {
				return err
			}
			return a.replayGrant(c.Context(), client, &o, a.out, args[0], condition, last, lasts)
		},
	}
	cmd.Flags().StringVar(&condition, "when", "", conditionFlag)
	cmd.Flags().StringVar(&last, "last", "24h", "how far back, such as 168h")
	cmd.Flags().DurationVar(&lasts, "for", time.Hour, "how long the grant would hold: a rule may take shorter ones alone")
	return clientFlags(cmd, &o, "print what was found as JSON")
}

// replayGrant prints what a grant would have covered.
func (a *app) replayGrant(ctx context.Context, client *gateClient, o *clientOptions, w io.Writer, agent, condition, last string, lasts time.Duration) error {
	var found replay.CoverageReport
	raw, err := client.call(ctx, http.MethodPost, "/grants/replay", map[string]any{"agent_id": agent, "condition": condition,
		"seconds": int((lasts + time.Second - 1) / time.Second), "replay": map[string]string{"last": last}}, &found)
	switch {
	case err != nil:
		return a.refused(err, o.json, nil)
	case o.json && w == a.out:
		return written(writeLine(w, raw))
	}
	partly := ""
	if !found.Complete {
		partly = " The time for a replay was over first, so there may be more."
	}
	if _, err := fmt.Fprintf(w, "In the last %s it would have covered %d of %d statements of the agent that needed an approval.%s\n", last, found.Covered, found.Evaluated, partly); err != nil || found.Covered == 0 {
		return written(err)
	}
	t := tabwriter.NewWriter(terminal.Fit(w), 0, 4, 2, ' ', 0)
	fmt.Fprintln(t, "WHEN\tSTATEMENT\tWRITES\tRULE\tREQUEST")
	for i := range found.Statements {
		s := &found.Statements[i]
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", second(&s.At, ""), s.QueryType, visible(controlplane.Marked(strings.Join(s.TablesWritten, ", "))), s.RuleID, visible(s.RequestID))
	}
	return written(t.Flush())
}
