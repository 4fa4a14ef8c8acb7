package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/spf13/cobra"

	"writegate/agentctl"
)

func (a *app) agentsRegisterCommand() *cobra.Command {
	var o clientOptions
	var kind, owner, environment string
	var days int
	cmd := &cobra.Command{
		Use: "register NAME", Short: "Register an agent and print its token, once", Args: cobra.ExactArgs(1),
		Example: "  gate agents register invoice-bot --owner finance --environment production",
		RunE: func(c *cobra.Command, args []string) error {
			metadata := map[string]string{}
			for key, value := range map[string]string{"owner": owner, "environment": environment} {
				if value != "" {
					metadata[key] = value
				}
			}
			var made agentctl.RegisteredBody
			done, err := a.askGate(c.Context(), &o, http.MethodPost, "/v1/agents",
				map[string]any{"name": args[0], "type": kind, "metadata": metadata, "token_expires_in_days": days}, &made)
			if done {
				return err
			}
			return written(printRegistered(a.out, &made))
		},
	}
	cmd.Flags().StringVar(&kind, "type", "worker", "what kind of agent it is, in your own words")
	cmd.Flags().StringVar(&owner, "owner", "", "who answers for it")
	cmd.Flags().StringVar(&environment, "environment", "", "where it runs, such as production")
	cmd.Flags().IntVar(&days, "expires-in-days", 90, "days until its token ends, 1 to 365")
	return clientFlags(cmd, &o, "print the answer as JSON")
}

func printRegistered(w io.Writer, made *agentctl.RegisteredBody) error {
	_, err := fmt.Fprintf(w, "agent  %s\n", made.ID)
	if c := made.Credentials; err == nil && c != nil && c.Token != nil {
		err = printToken(w, c.TokenID, *c.Token, c.ExpiresAt)
	}
	for _, warning := range made.Warnings {
		if err == nil {
			_, err = fmt.Fprintf(w, "note: %s\n", visible(warning.Message))
		}
	}
	return err
}

func printToken(w io.Writer, id, secret, until string) error {
	_, err := fmt.Fprintf(w, "id     %s\ntoken  %s\nuntil  %s\n\nThe token is not stored anywhere: keep it now.\n", id, secret, second(&until, ""))
	return err
}

func (a *app) agentsTokenCommand() *cobra.Command {
	var o clientOptions
	var replaces string
	var days, grace int
	cmd := &cobra.Command{
		Use: "token AGENT", Short: "Issue a token of an agent and print it, once", Args: cobra.ExactArgs(1),
		Long: `Issue a token of an agent and print it, once.

With --replaces the old token ends when --grace-seconds are over: give the new one to the agent
meanwhile.`,
		RunE: func(c *cobra.Command, args []string) error {
			if err := a.agentNamed(c.Context(), &o, &args[0]); err != nil {
				return err
			}
			body := map[string]any{"expires_in_days": days}
			if replaces != "" {
				body["replaces"], body["grace_seconds"] = replaces, grace
			}
			var issued agentctl.TokenBody
			done, err := a.askGate(c.Context(), &o, http.MethodPost, agentPath(args[0])+"/tokens", body, &issued)
			if done || issued.Token == nil {
				return err
			}
			return written(printToken(a.out, issued.TokenID, *issued.Token, issued.ExpiresAt))
		},
	}
	cmd.Flags().IntVar(&days, "expires-in-days", 90, "days until it ends, 1 to 365")
	cmd.Flags().StringVar(&replaces, "replaces", "", "token that it takes the place of")
	cmd.Flags().IntVar(&grace, "grace-seconds", 0, "seconds for which that one is still good, up to 86400")
	return clientFlags(cmd, &o, "print the answer as JSON")
}

func (a *app) agentsRevokeCommand() *cobra.Command {
	var o clientOptions
	cmd := &cobra.Command{
		Use: "revoke AGENT TOKEN", Short: "Revoke a token; the next request with it fails", Args: cobra.ExactArgs(2),
		Long: `Revoke a token by its id, tok_... as "gate agents show" lists it. The next request with it fails. A
second time changes nothing.`,
		RunE: func(c *cobra.Command, args []string) error {
			if err := a.agentNamed(c.Context(), &o, &args[0]); err != nil {
				return err
			}
			var revoked agentctl.TokenBody
			done, err := a.askGate(c.Context(), &o, http.MethodDelete, agentPath(args[0])+"/tokens/"+url.PathEscape(args[1]), nil, &revoked)
			if done {
				return err
			}
			_, err = fmt.Fprintf(a.out, "%s is revoked.\n", revoked.TokenID)
			return written(err)
		},
	}
	return clientFlags(cmd, &o, "print the answer as JSON")
}

func (a *app) agentsActivateCommand() *cobra.Command {
	var o clientOptions
	var days int
	cmd := &cobra.Command{
		Use: "activate AGENT", Short: "Take an agent back into service and print a new token, once", Args: cobra.ExactArgs(1),
		Long: `Take an agent that was deactivated back into service and print a new token of it, once. The policies
that are applied to it bind it again. Behind a loss of events ("gate log new", "gate log restore") look at
them first: what was lost may have changed them. Of an agent that is in service, or that somebody changes
meanwhile, nothing is changed.`,
		RunE: func(c *cobra.Command, args []string) error {
			if days < 1 || days > 365 { // the gate says so too, when the agent is back already
				return exitWith(exitUsage, errors.New("--expires-in-days must be from 1 to 365"))
			}
			if err := a.agentNamed(c.Context(), &o, &args[0]); err != nil {
				return err
			}
			client, err := a.clientFor(&o)
			if err != nil {
				return err
			}
			var b agentctl.AgentBody
			if _, err := client.call(c.Context(), http.MethodGet, agentPath(args[0]), nil, &b); err != nil {
				return a.refused(err, o.json, nil)
			}
			if b.Status == "active" {
				return exitWith(exitFailed, fmt.Errorf("%s is in service already; `gate agents token %s` issues a token", marked(b.Name), b.ID))
			}
			client.match = strconv.Quote(strconv.Itoa(b.Revision)) // what is written back is what was read
			back := map[string]any{"name": b.Name, "type": b.Type, "config": b.Config, "metadata": b.Metadata, "status": "active"}
			if _, err := client.call(c.Context(), http.MethodPut, agentPath(args[0]), back, &b); err != nil {
				return a.refused(err, o.json, nil)
			}
			var issued agentctl.TokenBody
			done, err := a.askGate(c.Context(), &o, http.MethodPost, agentPath(args[0])+"/tokens", map[string]any{"expires_in_days": days}, &issued)
			if err != nil {
				fmt.Fprintf(a.err, "%s (%s) is %s, and has no new token; `gate agents token %s` issues one.\n", marked(b.Name), b.ID, b.Status, b.ID)
			}
			if done || issued.Token == nil {
				return err
			}
			if _, err := fmt.Fprintf(a.out, "%s (%s) is %s.\n", marked(b.Name), b.ID, b.Status); err != nil {
				return written(err)
			}
			return written(printToken(a.out, issued.TokenID, *issued.Token, issued.ExpiresAt))
		},
	}
	cmd.Flags().IntVar(&days, "expires-in-days", 90, "days until the token ends, 1 to 365")
	return clientFlags(cmd, &o, "print the new token as JSON")
}

func (a *app) agentsDeactivateCommand() *cobra.Command {
	var o clientOptions
	var reason string
	var yes bool
	cmd := &cobra.Command{
		Use: "deactivate AGENT", Short: "Stop an agent: its tokens are revoked, its policies sleep", Args: cobra.ExactArgs(1),
		Long: `Stop an agent. All of its tokens are revoked, and its next request fails; approvals that it waits for
can no longer be used. What it did stays in the log. A second time changes nothing.`,
		RunE: func(c *cobra.Command, args []string) error {
			called := args[0]
			if err := a.agentNamed(c.Context(), &o, &args[0]); err != nil {
				return err
			}
			if called != args[0] {
				called += " (" + args[0] + ")"
			}
			if err := a.confirmed(fmt.Sprintf("Stop %s and revoke all of its tokens?", marked(called)), yes); err != nil {
				return err
			}
			var b agentctl.AgentBody
			done, err := a.askGate(c.Context(), &o, http.MethodDelete, agentPath(args[0])+"?"+url.Values{"reason": {reason}}.Encode(), nil, &b)
			if done {
				return err
			}
			_, err = fmt.Fprintf(a.out, "%s (%s) is %s; its tokens are revoked.\n", marked(b.Name), b.ID, b.Status)
			return written(err)
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the record")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return clientFlags(cmd, &o, "print the answer as JSON")
}
