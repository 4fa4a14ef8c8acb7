package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"writegate/cmd/terminal"
	"writegate/eventlog/event"
	"writegate/http/controlplane"
)

func (a *app) auditCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "audit", Short: "Search the events of a running gate", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	cmd.AddCommand(a.auditSearchCommand())
	return cmd
}

// auditFlags are the filters of GET /audit by the flag's name.
var auditFlags = []struct{ name, doc string }{
	{"actor", "claimed actor"}, {"app", "claimed application"}, {"tenant", "claimed tenant"}, {"env", "claimed environment"},
	{"decision", "ALLOW, BLOCK or REQUIRE_APPROVAL"}, {"fingerprint", "shape of the statement"}, {"approval-id", "approval"}, {"execution-id", "execution"},
	{"request-id", "request"}, {"session-id", "session"}, {"policy-version", "policy version, as name@1.0.0"},
	{"agent-id", "registered agent, whose token was checked"}, {"table", "table that the statement reads or writes, as public.orders"}, {"rule-id", "rule that decided"},
	{"since", "from this moment on: RFC 3339, or how long ago, as 2h"}, {"until", "before this moment, likewise"},
	{"from-seq", "from this event on"}, {"to-seq", "up to this event"},
}

func (a *app) auditSearchCommand() *cobra.Command {
	o := clientOptions{operator: true}
	var types []string
	limit := 50
	filters := map[string]*string{}
	cmd := &cobra.Command{
		Use: "search", Short: "List events that meet all filters, the newest first", Args: cobra.NoArgs,
		Example: "  gate audit search --since 2h --decision BLOCK\n  gate audit search --approval-id apr_... --json",
		RunE: func(c *cobra.Command, _ []string) error {
			query := url.Values{}
			for _, list := range types {
				query["event_type"] = append(query["event_type"], strings.Split(list, ",")...)
			}
			for name, value := range filters {
				moment, err := auditValue(name, *value, time.Now())
				if err != nil {
					return err
				}
				query.Set(strings.ReplaceAll(name, "-", "_"), moment)
			}
			return a.searchAudit(c.Context(), &o, given(query), limit)
		},
	}
	cmd.Flags().StringArrayVar(&types, "event-type", nil, "event types, separated by commas or given again: any of them")
	cmd.Flags().IntVar(&limit, "limit", limit, "events at most; 0 is all")
	for _, f := range auditFlags {
		filters[f.name] = cmd.Flags().String(f.name, "", f.doc)
	}
	return clientFlags(cmd, &o, "print each event as JSON, one a line")
}

// auditValue is a filter's value; of a moment "2h" is two hours ago.
func auditValue(name, value string, now time.Time) (string, error) {
	if name != "since" && name != "until" || value == "" {
		return value, nil
	}
	if ago, err := time.ParseDuration(value); err == nil {
		return now.Add(-ago).UTC().Format(time.RFC3339Nano), nil
	}
	if _, err := time.Parse(time.RFC3339Nano, value); err != nil {
		return "", fmt.Errorf("--%s must be a moment such as 2026-01-31T14:05:00Z, or a time ago such as 2h", name)
	}
	return value, nil
}

// An auditEvent is what a line of the search shows.
type auditEvent struct {
	Seq       uint64          `json:"seq"`
	Type      string          `json:"event_type"`
	Time      *string         `json:"timestamp"`
	Actor     string          `json:"actor"`
	App       string          `json:"app"`
	Decision  string          `json:"decision"`
	Operation string          `json:"operation"`
	Reason    string          `json:"reason_code"`
	Approval  string          `json:"approval_id"`
	Payload   json.RawMessage `json:"payload"`
}

// what is the decision of an event: of an approval's, the person's.
func (e *auditEvent) what() string {
	var person struct{ Resolution, By, Note string }
	if e.Type == string(event.TypeApprovalResolved) && json.Unmarshal(e.Payload, &person) == nil {
		if person.Note != "" {
			person.By += ": “" + firstLine(person.Note, 72) + "”"
		}
		return person.Resolution + " by " + person.By
	}
	return e.Decision
}

// about is what an event has of a statement: its text, its tables, or what it did.
func (e *auditEvent) about(item json.RawMessage) string {
	var p struct {
		Text  string `json:"sql_text"`
		Facts struct {
			Read    []string `json:"tables_read"`
			Written []string `json:"tables_written"`
		} `json:"facts"`
	}
	_ = json.Unmarshal(e.Payload, &p) // one that can't be read is about nothing
	_, did := controlplane.DidOf(item)
	return cmp.Or(did, oneStatement(p.Text), strings.Join(each(p.Facts.Written, marked), ", "), strings.Join(each(p.Facts.Read, marked), ", "))
}

// errEnough ends a search that has what was asked for.
var errEnough = errors.New("enough")

func (a *app) searchAudit(ctx context.Context, o *clientOptions, query url.Values, limit int) error {
	client, err := a.clientFor(o)
	if err != nil {
		return err
	}
	t := tabwriter.NewWriter(terminal.Fit(a.out), 0, 4, 2, ' ', 0)
	n := 0
	err = client.each(ctx, "/audit", query, func(item json.RawMessage) error {
		if n++; limit > 0 && n > limit {
			return errEnough
		}
		if o.json {
			return writeLine(a.out, item)
		}
		if n == 1 {
			fmt.Fprintln(t, "SEQ\tTIME\tEVENT\tREQUESTER (UNVERIFIED)\tDECISION\tOPERATION\tREASON\tABOUT\tAPPROVAL")
		}
		var e auditEvent
		if err := json.Unmarshal(item, &e); err != nil {
			return err
		}
		who := ""
		if e.Actor != "" || e.App != "" {
			who = requester(e.Actor, e.App)
		}
		_, err := fmt.Fprintln(t, strings.Join([]string{strconv.FormatUint(e.Seq, 10), second(e.Time, ""), e.Type, who, visible(e.what()), e.Operation, visible(e.Reason), visible(e.about(item)), e.Approval}, "\t"))
		return err
	})
	if err != nil && !errors.Is(err, errEnough) {
		return a.refused(err, o.json, nil)
	}
	if err := t.Flush(); err != nil {
		return written(err)
	}
	switch {
	case client.damaged != "": // what was printed is not all
		return exitWith(exitFailed, errors.New(client.damaged))
	case n == 0 && !o.json:
		fmt.Fprintln(a.out, "No event meets these filters.")
	case errors.Is(err, errEnough):
		fmt.Fprintf(a.err, "There are more; --limit %d showed the newest.\n", limit)
	}
	return nil
}
