package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/user"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"writegate/http/gateapi"
	"writegate/sqlgate"
	"writegate/sqlgate/policy"
)

// A queryOptions is what `gate query` sends beside the statement.
type queryOptions struct {
	client clientOptions
	claims map[string]*string
	params url.Values
	wait   bool
}

func (a *app) queryCommand() *cobra.Command {
	o := queryOptions{claims: map[string]*string{}, client: clientOptions{operator: true}}
	var key string
	var preview, dryRun bool
	cmd := &cobra.Command{
		Use: "query SQL", Short: "Send a statement through a running gate, and show what became of it", Args: cobra.ExactArgs(1),
		Long: `Send a statement through a running gate, and show what became of it. SQL may be "-", which reads
standard input.

Who asks is what the flags claim: nobody verifies it. No operator token is sent. Exit code 0: it ran;
1: it was blocked, refused or failed; 2: it waits for an approval, or what became of it is not known.`,
		Example: "  gate query 'SELECT id, status FROM orders LIMIT 3' --app shop\n  gate query 'DELETE FROM orders WHERE id = 2' --app shop --wait",
		RunE: func(c *cobra.Command, args []string) error {
			if args[0] == "-" {
				read, err := io.ReadAll(io.LimitReader(a.in, maxGateAnswer))
				if err != nil {
					return exitWith(exitFailed, err)
				}
				args[0] = string(read)
			}
			o.params = given(url.Values{"idempotency_key": {key}})
			switch {
			case preview && dryRun:
				return exitWith(exitUsage, errors.New("--preview runs nothing, and --dry-run runs the statement: give one of them"))
			case preview:
				o.params.Set("mode", "preview")
			case dryRun:
				o.params.Set("mode", "dry_run")
			}
			return a.ask(c.Context(), &o, args[0])
		},
	}
	claim := func(name, value, doc string) {
		o.claims[strings.ReplaceAll(name, "-", "_")] = cmd.Flags().String(name, value, doc)
	}
	me, host := "operator", "unknown"
	if u, err := user.Current(); err == nil {
		me = u.Username
	}
	if h, err := os.Hostname(); err == nil {
		host = h
	}
	claim("actor", me, "claim: who asks")
	claim("app", "gate-cli", "claim: for which application")
	claim("tenant", "default", "claim: for which tenant")
	claim("role", "operator", "claim: in which role")
	claim("host", host, "claim: from which host")
	claim("env", "prod", "claim: shadow, staging or prod")
	claim("reason", "", "why, in one sentence: kept as evidence, shown to whoever approves; a rule may demand it")
	claim("session-id", "", "session of prepared statements")
	claim("approval-id", "", "approval under which it may run")
	claim("execution-profile", "", "default, latency or bulk")
	cmd.Flags().StringVar(&key, "idempotency-key", "", "the statement runs once under it, however often it is sent")
	cmd.Flags().BoolVar(&preview, "preview", false, "classify and decide alone: nothing runs and nothing is recorded")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "run it, count what it changes, and roll it back, where the policy takes that")
	cmd.Flags().BoolVar(&o.wait, "wait", false, "where a person has to decide, wait for that, and run it then")
	return clientFlags(cmd, &o.client, "print the gate's answer as it came")
}

// A queryAnswer is an answer to POST /query, whatever it says.
type queryAnswer struct {
	gateRefusal
	Decision      string                 `json:"decision"`
	ReasonCode    string                 `json:"reason_code"`
	Remedy        string                 `json:"remedy"`
	State         string                 `json:"execution_state"`
	ExecutionID   string                 `json:"execution_id"`
	ApprovalID    string                 `json:"approval_id"`
	Expires       *string                `json:"approval_expires_at"`
	CommandTag    string                 `json:"command_tag"`
	WouldExecute  *bool                  `json:"would_execute"`
	Enforced      *bool                  `json:"enforced"`
	RowsOmitted   bool                   `json:"rows_omitted"`
	PolicyVersion string                 `json:"policy_version"`
	DryRun        *sqlgate.DryRunOutcome `json:"dry_run"`
	Columns       []queryColumn          `json:"columns"`
	Rows          []map[string]any       `json:"rows"`
}

type queryColumn struct {
	Name string `json:"name"`
}

// ask sends a statement, and again where it waited for a person and --wait says so.
func (a *app) ask(ctx context.Context, o *queryOptions, sql string) error {
	client, err := a.clientFor(&o.client)
	if err != nil {
		return err
	}
	operator := client.secret
	client.secret = "" // in emergency_bypass mode a token would be more than a claim
	body := map[string]string{"sql": sql}
	for name, value := range o.claims {
		if *value != "" {
			body[name] = *value
		}
	}
	path := "/query"
	if len(o.params) > 0 {
		path += "?" + o.params.Encode()
	}
	for {
		response, raw, err := client.send(ctx, http.MethodPost, path, body)
		if err != nil {
			return exitWith(exitFailed, err)
		}
		var answer queryAnswer
		decoder := json.NewDecoder(strings.NewReader(string(raw)))
		decoder.UseNumber()
		if decoder.Decode(&answer) != nil || answer.Decision == "" && answer.Code == "" {
			return exitWith(exitFailed, client.refusal(response.Status, raw))
		}
		if response.StatusCode == http.StatusAccepted && o.wait {
			fmt.Fprintf(a.err, "%s\nIt waits for a person, as %s, until %s.\n", visible(answer.Message), answer.ApprovalID, second(answer.Expires, ""))
			client.secret = operator // to see how it stands
			err := a.untilDecided(ctx, client, answer.ApprovalID)
			if client.secret = ""; err != nil {
				return err
			}
			body["approval_id"] = answer.ApprovalID
			o.wait = false
			continue
		}
		if o.client.json {
			err = writeLine(a.out, raw)
		} else {
			if answer.ExecutionID != "" && len(answer.Columns) == 0 && answer.DryRun == nil {
				answer.CommandTag = cmp.Or(client.did(ctx, url.Values{"execution_id": {answer.ExecutionID}})[answer.ExecutionID], answer.CommandTag)
			}
			err = a.printAnswer(&answer, response.StatusCode)
		}
		if code := queryExit(&answer, response.StatusCode); err == nil && code != exitOK {
			return exitWith(code, nil)
		}
		return written(err)
	}
}

// queryExit is the exit code of an answer.
func queryExit(answer *queryAnswer, status int) int {
	switch {
	case status == http.StatusAccepted, answer.State == "unknown":
		return exitPartial
	case status != http.StatusOK:
		return exitFailed
	}
	return exitOK
}

// nothingRan says of an approval that was not given why nothing ran.
func nothingRan(b *gateapi.ApprovalBody, now time.Time) string {
	why := standing(b, now)
	if note := text(b.Note); note != "" {
		why += ": " + note
	}
	return why + ". Nothing ran"
}

// untilDecided waits until an approval waits no more.
func (a *app) untilDecided(ctx context.Context, client *gateClient, id string) error {
	for {
		var b gateapi.ApprovalBody
		if _, err := client.call(ctx, http.MethodGet, approvalPath(id), nil, &b); err != nil {
			return a.refused(err, false, nil)
		}
		if b.Status != "pending" {
			if text(b.Resolution) == "approve" {
				return nil
			}
			return exitWith(exitFailed, errors.New(nothingRan(&b, time.Now())))
		}
		select {
		case <-ctx.Done():
			return exitWith(exitPartial, errors.New("it still waits; `gate query` with --approval-id "+id+" runs it once it is approved"))
		case <-time.After(time.Second):
		}
	}
}

// printAnswer shows rows as a table, and of what did not run why, and what to do.
func (a *app) printAnswer(answer *queryAnswer, status int) error {
	if status == http.StatusOK && answer.DryRun != nil {
		return a.printDryRun(answer)
	}
	if status == http.StatusOK && answer.WouldExecute == nil {
		return a.printRows(answer)
	}
	var out strings.Builder
	line := func(name, value string) {
		if value != "" {
			fmt.Fprintf(&out, "%-9s %s\n", name, visible(value))
		}
	}
	line("decision", cmp.Or(answer.Decision, "none"))
	line("reason", cmp.Or(answer.ReasonCode, answer.Code))
	line("why", answer.Message)
	line("remedy", answer.Remedy)
	if answer.State != "" {
		line("state", strings.TrimSpace(answer.State+" "+answer.ExecutionID))
	}
	if answer.ApprovalID != "" {
		line("approval", answer.ApprovalID+", until "+second(answer.Expires, ""))
		line("then", "send it again with --approval-id "+answer.ApprovalID)
	}
	if answer.ReasonCode == policy.ReasonRequired {
		line("then", "send it again with --reason 'why, in one sentence'")
	}
	out.WriteString(detailLines(answer.Details))
	_, err := io.WriteString(a.out, out.String())
	return err
}

// printDryRun says what would change, table by table.
func (a *app) printDryRun(answer *queryAnswer) error {
	t := tabwriter.NewWriter(a.out, 0, 4, 2, ' ', 0)
	if len(answer.DryRun.Tables) > 0 {
		fmt.Fprintln(t, "TABLE\tINSERTED\tUPDATED\tDELETED")
	}
	for _, one := range answer.DryRun.Tables {
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\n", visible(one.Table), one.Inserted, one.Updated, one.Deleted)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(a.err, "Rolled back: it %s. That is no promise. The policy says %s.\n", answer.DryRun.Words(), answer.Decision)
	return err
}

func (a *app) printRows(answer *queryAnswer) error {
	t := tabwriter.NewWriter(a.out, 0, 4, 2, ' ', 0)
	names := make([]string, len(answer.Columns))
	for i, c := range answer.Columns {
		names[i] = c.Name
	}
	if len(names) > 0 {
		fmt.Fprintln(t, strings.Join(each(names, visible), "\t"))
	}
	for _, row := range answer.Rows {
		fields := make([]string, len(names))
		for i, name := range names {
			fields[i] = cell(row[name])
		}
		fmt.Fprintln(t, strings.Join(fields, "\t"))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if answer.RowsOmitted {
		fmt.Fprintln(a.err, "The first answer's rows were too many to be kept.")
	}
	if answer.Decision != "ALLOW" && answer.Enforced != nil && !*answer.Enforced {
		fmt.Fprintf(a.err, "NOT ENFORCED: the policy says %s (%s), and it ran all the same.\n", answer.Decision, visible(answer.ReasonCode))
	}
	_, err := fmt.Fprintln(a.err, visible(answer.CommandTag))
	return err
}

func each(list []string, of func(string) string) []string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = of(s)
	}
	return out
}

// cell is a value of a row as a person reads it.
func cell(value any) string {
	switch v := value.(type) {
	case nil:
		return "NULL"
	case string:
		return visible(v)
	case json.Number:
		return v.String()
	}
	b, err := json.Marshal(value)
	if err != nil {
		return fmt.Sprint(value)
	}
	return visible(string(b))
}
