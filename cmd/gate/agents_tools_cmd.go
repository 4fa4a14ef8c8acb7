package main

import (
	"cmp"
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
	"writegate/agentctl/toolcheck"
)

func (a *app) agentToolsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "tools", Short: "Register the tools of agents, and verify them", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	cmd.AddCommand(a.toolListCommand(), a.toolShowCommand(), a.toolRegisterCommand(), a.toolUpdateCommand(), a.toolVerifyCommand())
	return cmd
}

func toolPath(id string) string { return "/v1/tools/" + url.PathEscape(id) }

func (a *app) toolListCommand() *cobra.Command {
	var o clientOptions
	var kind, status, agent string
	cmd := &cobra.Command{
		Use: "list", Short: "List the tools of the project, the newest first", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := a.agentNamed(c.Context(), &o, &agent); err != nil {
				return err
			}
			return a.listRows(c.Context(), &o, "/v1/tools", url.Values{"type": {kind}, "status": {status}, "agent_id": {agent}}, "ID\tNAME\tTYPE\tSTATUS\tVERIFIED",
				"There is no such tool in this project. `gate agents tools register` makes one.", func(item json.RawMessage) (string, error) {
					var b agentctl.ToolBody
					err := json.Unmarshal(item, &b)
					return fmt.Sprintf("%s\t%s\t%s\t%s\t%s", b.ID, visible(b.Name), b.Type, b.Status, checked(&b)), err
				})
		},
	}
	cmd.Flags().StringVar(&kind, "type", "", "only tools of this type: mcp, http or function")
	cmd.Flags().StringVar(&status, "status", "", "only registered, verified, failed, drifted or disabled ones")
	cmd.Flags().StringVar(&agent, "agent", "", "only tools that this agent may use")
	return clientFlags(cmd, &o, "print a JSON object for each tool, one a line")
}

// checked says when a tool was last verified.
func checked(b *agentctl.ToolBody) string {
	if b.Verification == nil {
		return "never"
	}
	at := second(&b.Verification.CheckedAt, "")
	if b.Verification.Stale {
		at += ", stale"
	}
	return at
}

func (a *app) toolShowCommand() *cobra.Command {
	return showCommand(a, "show TOOL", "Show a tool and its last verification", "print the tool as JSON", toolPath, printTool)
}

func printTool(w io.Writer, b *agentctl.ToolBody) error {
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	row := func(name, text string) { fmt.Fprintf(t, "%s\t%s\n", name, visible(text)) }
	row("tool", b.ID)
	row("name", b.Name)
	row("type", b.Type)
	row("status", b.Status)
	if b.Endpoint != nil {
		row("url", b.Endpoint.URL)
	}
	if b.Auth.Secret != nil {
		row("secret", *b.Auth.Secret)
	}
	row("agents", cmp.Or(strings.Join(b.Agents, " "), "none"))
	row("revision", fmt.Sprint(b.Revision))
	row("verified", checked(b))
	if c := b.Verification; c != nil && c.ErrorCode != nil {
		row("failed with", *c.ErrorCode)
	}
	if b.Fingerprint.Pinned != nil {
		row("pinned", *b.Fingerprint.Pinned)
	}
	if b.Fingerprint.Current != nil {
		row("current", *b.Fingerprint.Current)
	}
	return t.Flush()
}

// A toolFlags is a tool that needs no file.
type toolFlags struct {
	name, kind, url, secret string
	agents                  []string
}

func (f *toolFlags) body() any {
	body := map[string]any{"name": f.name, "type": f.kind, "endpoint": map[string]string{"url": f.url}, "agents": f.agents}
	if f.secret != "" {
		body["auth"] = map[string]string{"type": "bearer", "secret": f.secret}
	}
	return body
}

func (a *app) toolRegisterCommand() *cobra.Command {
	var o clientOptions
	var f toolFlags
	cmd := &cobra.Command{
		Use: "register [FILE]", Short: "Register a tool, at a URL or from a file", Args: cobra.MaximumNArgs(1),
		Long: `Register a tool. FILE holds it as JSON, as POST /v1/tools takes it; - is standard input. A tool at a URL
needs no file: say --name and --endpoint.

A secret is named, never given: --secret RUNSQL is GATE_TOOL_SECRET_RUNSQL of the gate, which sends it
to GATE_TOOL_SECRET_RUNSQL_HOST alone.`,
		Example: "  gate agents tools register --name run_sql --endpoint https://mcp.example.com/mcp --secret RUNSQL --agent AGENT",
		RunE: func(c *cobra.Command, args []string) error {
			var body any
			var err error
			switch {
			case len(args) == 1 && f.name == "" && f.url == "":
				body, err = a.jsonFile(args[0])
			case len(args) == 0 && f.name != "" && f.url != "":
				for i := range f.agents {
					if err := a.agentNamed(c.Context(), &o, &f.agents[i]); err != nil {
						return err
					}
				}
				body = f.body()
			default:
				err = exitWith(exitUsage, errors.New("give a FILE, or --name and --endpoint"))
			}
			if err != nil {
				return err
			}
			return a.writeTool(c, &o, http.MethodPost, "/v1/tools", body)
		},
	}
	cmd.Flags().StringVar(&f.name, "name", "", "name of the tool, for mcp also the one under which the server lists it")
	cmd.Flags().StringVar(&f.kind, "type", "mcp", "mcp or http")
	cmd.Flags().StringVar(&f.url, "endpoint", "", "where it is")
	cmd.Flags().StringVar(&f.secret, "secret", "", "name of the bearer token that it wants")
	cmd.Flags().StringArrayVar(&f.agents, "agent", []string{}, "an agent that may use it; repeatable")
	return clientFlags(cmd, &o, "print the answer as JSON")
}

func (a *app) toolUpdateCommand() *cobra.Command {
	var o clientOptions
	cmd := &cobra.Command{
		Use: "update TOOL FILE", Short: "Replace what is said of a tool", Args: cobra.ExactArgs(2),
		Long: `Replace what is said of a tool by what FILE holds as JSON; - is standard input. A change of its type,
endpoint, auth or schemas puts it back to registered, and its fingerprint is no longer pinned.`,
		RunE: func(c *cobra.Command, args []string) error {
			body, err := a.jsonFile(args[1])
			if err != nil {
				return err
			}
			return a.writeTool(c, &o, http.MethodPut, toolPath(args[0]), body)
		},
	}
	return clientFlags(cmd, &o, "print the answer as JSON")
}

func (a *app) writeTool(c *cobra.Command, o *clientOptions, method, path string, body any) error {
	var b agentctl.ChangedTool
	done, err := a.askGate(c.Context(), o, method, path, body, &b)
	if done {
		return err
	}
	return written(a.noted(fmt.Sprintf("tool      %s\nstatus    %s\nrevision  %d\n\n`gate agents tools verify %[1]s` looks whether it is what you say.\n", b.ID, b.Status, b.Revision), b.Warnings))
}

func (a *app) toolVerifyCommand() *cobra.Command {
	var o clientOptions
	var accept string
	var timeout int
	cmd := &cobra.Command{
		Use: "verify TOOL", Short: "Verify that a tool is what was said of it, without calling it", Args: cobra.ExactArgs(1),
		Long: `Verify that a tool is what was said of it. It is never called. The exit code is 0 when it passed, and 1
when it failed or its definition is not the one that was pinned; --accept takes the new one, by the
fingerprint that this command showed.`,
		RunE: func(c *cobra.Command, args []string) error {
			body := map[string]any{"timeout_ms": timeout}
			if accept != "" {
				body["accept_fingerprint"] = accept
			}
			var b agentctl.VerificationBody
			done, err := a.askGate(c.Context(), &o, http.MethodPost, toolPath(args[0])+"/verify", body, &b)
			if err == nil && !done {
				err = written(printVerification(a.out, &b))
			}
			if err == nil && b.Status != toolcheck.Passed {
				return exitWith(exitFailed, nil)
			}
			return err
		},
	}
	cmd.Flags().StringVar(&accept, "accept", "", "fingerprint of the changed definition that you looked at")
	cmd.Flags().IntVar(&timeout, "timeout-ms", 5000, "milliseconds for all of it, 500 to 10000")
	return clientFlags(cmd, &o, "print the verification as JSON")
}

func printVerification(w io.Writer, b *agentctl.VerificationBody) error {
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	for _, s := range b.Steps {
		fmt.Fprintf(t, "%s\t%s\t%s\n", s.Name, s.Status, visible(stepText(&s)))
	}
	result := b.Status
	if b.ErrorCode != nil {
		result += ": " + *b.ErrorCode
	}
	fmt.Fprintf(t, "\n%s\n", result)
	if now := b.Fingerprint.Current; now != nil && b.Status == toolcheck.Drifted {
		fmt.Fprintf(t, "Look at the tool itself. If you accept what it is now: gate agents tools verify %s --accept %s\n", b.ToolID, *now)
	}
	return t.Flush()
}

// stepText is what a step has to say beside its status.
func stepText(s *agentctl.StepBody) string {
	parts := []string{s.Message, s.Address, s.ProtocolVersion}
	if s.HTTPStatus != 0 {
		parts = append(parts, fmt.Sprint("status ", s.HTTPStatus))
	}
	if s.Server != nil {
		parts = append(parts, s.Server.Name+" "+s.Server.Version)
	}
	if s.Tools != nil {
		parts = append(parts, fmt.Sprintf("%d tools", *s.Tools))
	}
	for _, c := range s.Changes {
		parts = append(parts, c.Path+" "+c.Change)
	}
	var said []string
	for _, p := range parts {
		if p != "" {
			said = append(said, p)
		}
	}
	return strings.Join(said, ", ")
}
