package main

import (
	"cmp"
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

	"writegate/agentctl"
)

func (a *app) agentsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "agents", Short: "Look at the agents of a running gate, bind them with policies, verify their tools, stop them", Args: cobra.NoArgs,
		Long: `Look at the agents of a running gate, register one, bind it with policies, verify its tools, and stop
it.

The commands speak to the gate's API with the project key in GATE_PROJECT_KEY, and see the agents of
its project. "gate keys create" makes a key.`,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	cmd.AddCommand(a.agentsListCommand(), a.agentsShowCommand(), a.agentsRegisterCommand(), a.agentsTokenCommand(), a.agentsRevokeCommand(), a.agentsDeactivateCommand(), a.agentsActivateCommand(),
		a.agentsBindSubjectCommand(), a.agentsUnbindSubjectCommand(), a.agentsSubjectsCommand(), a.agentPoliciesCommand(), a.agentToolsCommand())
	return cmd
}

// clientOptions are the flags of every command that asks a running gate.
type clientOptions struct {
	gate     gateAddress
	json     bool
	operator bool // it shows the operator token, where there is one, and no project key
}

func clientFlags(cmd *cobra.Command, o *clientOptions, asJSON string) *cobra.Command {
	gateFlag(cmd, &o.gate)
	cmd.Flags().BoolVar(&o.json, "json", false, asJSON)
	return cmd
}

// clientFor is a client that shows the credential of its command.
func (a *app) clientFor(o *clientOptions) (*gateClient, error) {
	s, err := a.settingsFor()
	if err != nil {
		return nil, err
	}
	client, err := a.gateClient(s, o.gate)
	if err != nil {
		return nil, err
	}
	if o.operator {
		return client, nil
	}
	if s.ProjectKey == "" {
		return nil, exitWith(exitConfigured, errors.New("GATE_PROJECT_KEY is not set; it is the project key that this command shows to the gate, and `gate keys create` makes one"))
	}
	client.header, client.secret = "X-Api-Key", s.ProjectKey
	return client, nil
}

// showCommand asks the gate for one thing by its id, and prints it.
func showCommand[T any](a *app, use, short, asJSON string, path func(id string) string, show func(io.Writer, *T) error) *cobra.Command {
	var o clientOptions
	cmd := &cobra.Command{
		Use: use, Short: short, Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			var body T
			done, err := a.askGate(c.Context(), &o, http.MethodGet, path(args[0]), nil, &body)
			if done {
				return err
			}
			return written(show(a.out, &body))
		},
	}
	return clientFlags(cmd, &o, asJSON)
}

// askGate sends a request of one of these commands; done means that the answer
// is printed already, as JSON or as a refusal.
func (a *app) askGate(ctx context.Context, o *clientOptions, method, path string, body, answer any) (done bool, err error) {
	client, err := a.clientFor(o)
	if err != nil {
		return true, err
	}
	raw, err := client.call(ctx, method, path, body, answer)
	if err != nil {
		return true, a.refused(err, o.json, nil)
	}
	if o.json {
		return true, written(writeLine(a.out, raw))
	}
	return false, nil
}

// An listPage is a page of a list under /v1.
type listPage struct {
	Items []json.RawMessage `json:"items"`
	Next  string            `json:"next_cursor"`

	Damaged struct {
		Message string `json:"message"`
	} `json:"damaged"`
}

// each hands every item of a list to take, page by page.
func (g *gateClient) each(ctx context.Context, path string, query url.Values, take func(json.RawMessage) error) error {
	query.Set("limit", "100")
	for {
		var page listPage
		if _, err := g.call(ctx, http.MethodGet, path+"?"+query.Encode(), nil, &page); err != nil {
			return err
		}
		g.damaged = page.Damaged.Message
		for _, item := range page.Items {
			if err := take(item); err != nil {
				return err
			}
		}
		if page.Next == "" {
			return nil
		}
		query.Set("cursor", page.Next)
	}
}

func (a *app) agentsListCommand() *cobra.Command {
	var o clientOptions
	var status, kind, name string
	cmd := &cobra.Command{
		Use: "list", Short: "List the agents of the project, the newest first", Args: cobra.NoArgs,
		Example: "  gate agents list --status all --json",
		RunE: func(c *cobra.Command, _ []string) error {
			return a.listAgents(c.Context(), &o, url.Values{"status": {status}, "type": {kind}, "name": {name}})
		},
	}
	cmd.Flags().StringVar(&status, "status", "active", "active, inactive or all")
	cmd.Flags().StringVar(&kind, "type", "", "only agents of this type")
	cmd.Flags().StringVar(&name, "name", "", "only agents whose name begins so")
	return clientFlags(cmd, &o, "print a JSON object for each agent, one a line")
}

func (a *app) listAgents(ctx context.Context, o *clientOptions, query url.Values) error {
	return a.listRows(ctx, o, "/v1/agents", query, "ID\tNAME\tTYPE\tSTATUS\tPOLICIES\tLAST SEEN",
		"There is no such agent in this project. `gate agents register NAME` makes one.", func(item json.RawMessage) (string, error) {
			var b agentctl.AgentBody
			err := json.Unmarshal(item, &b)
			return fmt.Sprintf("%s\t%s\t%s\t%s\t%d\t%s", b.ID, marked(b.Name), visible(b.Type), b.Status, len(b.AppliedPolicies), second(b.LastSeenAt, "never")), err
		})
}

// second shows a moment without its fraction.
func second(moment *string, none string) string {
	if moment == nil {
		return none
	}
	if whole, _, cut := strings.Cut(*moment, "."); cut {
		return whole + "Z"
	}
	return *moment
}

func (a *app) agentsShowCommand() *cobra.Command {
	var o clientOptions
	cmd := &cobra.Command{
		Use: "show AGENT", Short: "Show an agent with its policies and tokens", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error { return a.showAgent(c.Context(), &o, args[0]) },
	}
	return clientFlags(cmd, &o, "print the agent as JSON, with its tokens")
}

// An agentShown is what "gate agents show --json" prints.
type agentShown struct {
	agentctl.AgentBody
	Tokens []agentctl.TokenBody `json:"tokens"`
}

func (a *app) showAgent(ctx context.Context, o *clientOptions, id string) error {
	if err := a.agentNamed(ctx, o, &id); err != nil {
		return err
	}
	client, err := a.clientFor(o)
	if err != nil {
		return err
	}
	agent := agentShown{Tokens: []agentctl.TokenBody{}}
	at := agentPath(id)
	if _, err := client.call(ctx, http.MethodGet, at, nil, &agent.AgentBody); err != nil {
		return a.refused(err, o.json, nil)
	}
	err = client.each(ctx, at+"/tokens", url.Values{}, func(item json.RawMessage) error {
		var token agentctl.TokenBody
		err := json.Unmarshal(item, &token)
		agent.Tokens = append(agent.Tokens, token)
		return err
	})
	if err != nil {
		return a.refused(err, o.json, nil)
	}
	if o.json {
		return written(printJSON(a.out, &agent))
	}
	return written(printAgent(a.out, &agent))
}

// agentNamed puts an agent's id in the place of its name, where one agent alone of the
// project has that name, in service or not.
func (a *app) agentNamed(ctx context.Context, o *clientOptions, agent *string) error {
	name := *agent
	if name == "" || strings.HasPrefix(name, "agt_") {
		return nil
	}
	client, err := a.clientFor(o)
	if err != nil {
		return err
	}
	var found []string
	err = client.each(ctx, "/v1/agents", url.Values{"status": {"all"}, "name": {name}}, func(item json.RawMessage) error {
		var b agentctl.AgentBody
		err := json.Unmarshal(item, &b)
		if b.Name == name { // the gate finds what begins so
			*agent, found = b.ID, append(found, b.ID+" ("+b.Status+")")
		}
		return err
	})
	switch {
	case err != nil:
		return a.refused(err, o.json, nil)
	case len(found) == 0:
		return exitWith(exitFailed, fmt.Errorf("no agent of this project is called %s; `gate agents list --status all` shows what there is", marked(name)))
	case len(found) > 1:
		return exitWith(exitFailed, fmt.Errorf("%d agents are called %s, so name one by its id: %s", len(found), marked(name), strings.Join(found, ", ")))
	}
	return nil
}

func agentPath(id string) string { return "/v1/agents/" + url.PathEscape(id) }

func printAgent(w io.Writer, agent *agentShown) error {
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	row := func(name, text string) { fmt.Fprintf(t, "%s\t%s\n", name, visible(text)) }
	row("agent", agent.ID)
	row("name", marked(agent.Name))
	row("type", agent.Type)
	row("status", agent.Status)
	row("model", cmp.Or(agent.Config.Model, "not said"))
	for _, key := range slices.Sorted(maps.Keys(agent.Metadata)) {
		row("metadata", key+" = "+agent.Metadata[key])
	}
	row("revision", fmt.Sprint(agent.Revision))
	row("registered", second(&agent.CreatedAt, ""))
	if agent.DeactivatedAt != nil {
		row("deactivated", second(agent.DeactivatedAt, ""))
	}
	row("last seen", second(agent.LastSeenAt, "never"))
	for _, p := range agent.AppliedPolicies {
		row("policy", p.PolicyID+", priority "+p.Priority)
	}
	for _, k := range agent.Tokens {
		row("token", fmt.Sprintf("%s %s %s, until %s, last used %s", k.TokenID, k.Hint, k.Status, second(&k.ExpiresAt, ""), second(k.LastUsedAt, "never")))
	}
	return t.Flush()
}
