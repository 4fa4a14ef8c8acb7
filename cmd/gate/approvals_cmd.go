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
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"writegate/cmd/terminal"
	"writegate/commands/fault"
	"writegate/http/controlplane"
	"writegate/http/gateapi"
	"writegate/sqlgate/classify"
)

func (a *app) approvalsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "approvals", Short: "Look at statements that wait for a person, and decide on them", Args: cobra.NoArgs,
		Long: `Look at statements that wait for a person, and decide on them.

The commands speak to a running gate. To decide takes an operator token, in GATE_OPERATOR_TOKEN; its
label is what evidence names.`,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	cmd.AddCommand(a.approvalsListCommand(), a.approvalsShowCommand(), a.approvalsResolveCommand("approve"), a.approvalsResolveCommand("reject"), a.approvalsWatchCommand())
	return cmd
}

func (a *app) approvalsListCommand() *cobra.Command {
	o := clientOptions{operator: true}
	var f approvalFilter
	cmd := &cobra.Command{
		Use: "list", Short: "List approvals; those that wait in the order of the inbox: the riskiest first, then the one with the least time left", Args: cobra.NoArgs,
		Example: "  gate approvals list\n  gate approvals list --status rejected --actor ana --json",
		RunE: func(c *cobra.Command, _ []string) error {
			found, err := a.approvals(c.Context(), &o, f)
			if err != nil {
				return a.refused(err, o.json, nil)
			}
			if o.json {
				for _, one := range found {
					if err := writeLine(a.out, one.raw); err != nil {
						return written(err)
					}
				}
				return nil
			}
			damaged := a.wholeLog(c.Context(), &o)
			if damaged != nil && len(found) == 0 { // which says nothing
				return damaged
			}
			return cmp.Or(written(printApprovals(a.out, found, f, time.Now())), damaged)
		},
	}
	cmd.Flags().StringVar(&f.status, "status", "pending", "pending, approved, rejected, resolved, expired or all")
	f.flags(cmd)
	return clientFlags(cmd, &o, "print a JSON object for each approval, one a line")
}

// wholeLog ends a list that may not be all: the log that it is made from is damaged.
func (a *app) wholeLog(ctx context.Context, o *clientOptions) error {
	client, err := a.clientFor(o)
	if err != nil {
		return err
	}
	if damage := client.damage(ctx); damage != "" {
		return exitWith(exitFailed, errors.New(damage))
	}
	return nil
}

// An approvalFilter says which approvals a command is about.
type approvalFilter struct{ status, actor, app, env string }

func (f *approvalFilter) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.actor, "actor", "", "only of this claimed actor")
	cmd.Flags().StringVar(&f.app, "app", "", "only of this claimed application")
	cmd.Flags().StringVar(&f.env, "env", "", "only of this claimed environment: shadow, staging or prod")
}

// An approvalShown is an approval with the bytes that the gate gave.
type approvalShown struct {
	gateapi.ApprovalBody
	raw   json.RawMessage
	risk  string // as the inbox marks it
	order int    // in the inbox: the highest first
}

func readApproval(raw json.RawMessage) (one approvalShown, err error) {
	one.raw = raw
	if err := json.Unmarshal(raw, &one.ApprovalBody); err != nil {
		return one, err
	}
	one.risk, one.order, err = controlplane.RiskOf(raw)
	return one, err
}

// approvals reads all that the filter means, in the order in which a person wants them.
func (a *app) approvals(ctx context.Context, o *clientOptions, f approvalFilter) (found []approvalShown, err error) {
	client, err := a.clientFor(o)
	if err != nil {
		return nil, err
	}
	status := f.status
	if status == "all" {
		status = ""
	}
	err = client.each(ctx, "/approvals", given(url.Values{"status": {status}, "actor": {f.actor}, "app": {f.app}, "env": {f.env}}), func(item json.RawMessage) error {
		one, err := readApproval(item)
		found = append(found, one)
		return err
	})
	if f.status == "pending" {
		slices.SortStableFunc(found, func(x, y approvalShown) int {
			return cmp.Or(cmp.Compare(y.order, x.order), cmp.Compare(text(x.ExpiresAt), text(y.ExpiresAt)))
		})
	}
	return found, err
}

// given leaves out the parameters that have no value.
func given(query url.Values) url.Values {
	for name, values := range query {
		if len(values) == 0 || values[0] == "" {
			delete(query, name)
		}
	}
	return query
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func printApprovals(w io.Writer, found []approvalShown, f approvalFilter, now time.Time) error {
	if len(found) == 0 {
		if f.status == "pending" {
			_, err := fmt.Fprintln(w, "Nothing waits.")
			return err
		}
		_, err := fmt.Fprintln(w, "No approval fits.")
		return err
	}
	t := tabwriter.NewWriter(terminal.Fit(w), 0, 4, 2, ' ', 0)
	between := "\t"
	if width := terminal.Width(w); width > 0 && width < 130 {
		between = "\n    " // beside all that, nothing could be read of it
	}
	fmt.Fprintf(t, "ID\tSTATUS\tRISK\tREQUESTER (UNVERIFIED)%sSTATEMENT\n", between)
	for i := range found {
		one := &found[i]
		fmt.Fprintf(t, "%s\t%s\t%s\t%s%s%s%s\n", one.ApprovalID, standing(&one.ApprovalBody, now), one.risk, requester(one.Context.Actor, one.Context.App), between, oneStatement(one.SQL), decider(&one.ApprovalBody))
	}
	return t.Flush()
}

// requester is who asks, as they say: each claim in quotes, so that none is read as two, and
// cut, since what is beside it has the rest of the line.
func requester(actor, app string) string {
	return firstLine(controlplane.MarkedClaim(actor), 24) + " / " + firstLine(controlplane.MarkedClaim(app), 24)
}

// oneStatement is a statement in a line of a list. What a reader takes for another letter is
// written out before it is cut: what it looks like may stand behind the cut.
func oneStatement(sql string) string { return visible(firstLine(controlplane.Marked(sql), 72)) }

// decider is who decided, and with which note, behind a statement; "": nobody yet.
func decider(b *gateapi.ApprovalBody) string {
	by := text(b.ResolvedBy)
	if note := firstLine(text(b.Note), 72); by != "" && note != "" {
		by += ": “" + note + "”"
	}
	if by == "" {
		return ""
	}
	return "  by " + visible(by)
}

// standing is how an approval stands, and of one that waits or can be used the time that is left.
func standing(b *gateapi.ApprovalBody, now time.Time) string {
	until, _ := time.Parse(time.RFC3339Nano, text(b.ExpiresAt)) // as the gate writes it
	left := max(until.Sub(now), 0).Round(time.Second).String()
	switch {
	case b.Withdrawn:
		return "withdrawn"
	case b.Status == "pending":
		return "waits, " + left + " left"
	case b.Resolution != nil && *b.Resolution == "approve" && b.Use == "unknown":
		return "approved, used with an unknown outcome"
	case b.Resolution != nil && *b.Resolution == "approve" && b.Use == "used":
		if b.ExecutionState != nil {
			return "approved, used: " + strings.ToLower(controlplane.ExecutionWords(*b.ExecutionState, ""))
		}
		return "approved, used"
	case b.Resolution != nil && *b.Resolution == "approve" && !until.After(now):
		return "approved, not used in time"
	case b.Resolution != nil && *b.Resolution == "approve" && b.ExecutionID != nil:
		return "approved, tried without effect, " + left + " left"
	case b.Resolution != nil && *b.Resolution == "approve":
		return "approved, " + left + " left"
	case b.Resolution != nil:
		return "rejected"
	}
	return b.Status
}

const blanks = " \t\n\v\f\r"

var blankRuns = regexp.MustCompile("[" + blanks + "]+")

// firstLine is a text on one line, cut to a width. The end of a line is written out where
// it may be that of a comment: what stands behind it runs.
func firstLine(s string, width int) string {
	s = strings.Trim(s, blanks)
	var b strings.Builder
	from, comment := 0, false
	for _, at := range blankRuns.FindAllStringIndex(s, -1) {
		text, run := s[from:at[0]], s[at[0]:at[1]]
		b.WriteString(text + " ")
		comment = comment || strings.Contains(text, "--")
		if end := strings.IndexAny(run, "\r\n"); end >= 0 {
			if comment {
				b.WriteString(visible(run[end:end+1]) + " ")
			}
			comment = false
		}
		from = at[1]
	}
	b.WriteString(s[from:])
	line := b.String()
	if runes := []rune(line); len(runes) > width {
		return string(runes[:width-1]) + "…"
	}
	return line
}

func (a *app) approvalsShowCommand() *cobra.Command {
	o := clientOptions{operator: true}
	cmd := &cobra.Command{
		Use: "show APPROVAL", Short: "Show an approval: the exact statement, who asks, which rule, and what was decided", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			client, err := a.clientFor(&o)
			if err != nil {
				return err
			}
			_, err = a.showApproval(c.Context(), client, &o, args[0], a.out)
			return err
		},
	}
	return clientFlags(cmd, &o, "print the approval as JSON")
}

func approvalPath(id string) string { return "/approvals/" + url.PathEscape(id) }

// showApproval prints what the dashboard's card says of an approval, or its record, and gives
// its risk in words.
func (a *app) showApproval(ctx context.Context, client *gateClient, o *clientOptions, id string, w io.Writer) (risk string, err error) {
	var b gateapi.ApprovalBody
	raw, err := client.call(ctx, http.MethodGet, approvalPath(id)+"?reach=now", nil, &b)
	if err != nil {
		return "", a.refused(err, o.json, nil)
	}
	if o.json && w == a.out {
		return "", written(writeLine(w, raw))
	}
	now := time.Now()
	card, err := controlplane.CardOf(raw, func(path string, query url.Values, answer any) error {
		_, err := client.call(ctx, http.MethodGet, path+"?"+query.Encode(), nil, answer)
		return err
	}, now)
	if err != nil {
		return "", a.refused(err, o.json, nil)
	}
	since, grave, err := policySince(ctx, client, raw, &b)
	if err != nil {
		return "", a.refused(err, o.json, nil)
	}
	if damage := client.damage(ctx); damage != "" {
		card.Dangers = append([]controlplane.Danger{{Words: damage + " What ended this approval may be lost, and nothing can be decided.", Grave: true}}, card.Dangers...)
	}
	if since != "" && grave {
		card.Dangers = append([]controlplane.Danger{{Words: since, Grave: true}}, card.Dangers...)
		since = ""
	}
	return card.Risk, written(printApproval(w, &b, &card, since, endedAs(ctx, client, &b), now))
}

// policySince says what the policy that is active by now makes of an approval that can be
// given or used, and whether that is grave; "": it is the one that asked, or nothing can be made of it any more.
func policySince(ctx context.Context, client *gateClient, raw json.RawMessage, b *gateapi.ApprovalBody) (words string, grave bool, err error) {
	if b.Withdrawn || b.Use != "free" || b.Status != "pending" && text(b.Resolution) != "approve" {
		return "", false, nil
	}
	var active struct {
		PolicyVersion string `json:"policy_version"`
	}
	if _, err := client.call(ctx, http.MethodGet, "/policy/status", nil, &active); err != nil || active.PolicyVersion == "" || active.PolicyVersion == b.PolicyVersion {
		return "", false, err
	}
	answer, err := client.call(ctx, http.MethodPost, "/policy/dry-run", map[string]string{"sql": b.SQL, "policy_version": active.PolicyVersion, "actor": b.Context.Actor, "app": b.Context.App,
		"tenant": b.Context.Tenant, "role": b.Context.Role, "host": b.Context.Host, "env": b.Context.Env}, &struct{}{})
	if err != nil {
		answer = nil // that another one is active is worth saying without it
	}
	return controlplane.SinceOf(raw, active.PolicyVersion, answer)
}

// endedAs names the newest execution of an approval, and says how it stands and why; "":
// there is none.
func endedAs(ctx context.Context, client *gateClient, b *gateapi.ApprovalBody) string {
	var x gateapi.ExecutionBody
	if b.ExecutionID == nil {
		return ""
	}
	if _, err := client.call(ctx, http.MethodGet, executionPath(*b.ExecutionID), nil, &x); err != nil {
		return *b.ExecutionID // how it ended is in the status, too
	}
	words := controlplane.ExecutionWords(x.ExecutionState, text(x.ReasonCode))
	return x.ExecutionID + ": " + strings.ToLower(words[:1]) + words[1:]
}

func printApproval(w io.Writer, b *gateapi.ApprovalBody, card *controlplane.Card, since, ended string, now time.Time) error {
	var facts classify.Classification
	_ = json.Unmarshal(b.Classification, &facts) // one of an earlier form shows less
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	row := func(name, value string) {
		if value != "" {
			fmt.Fprintf(t, "%s\t%s\n", name, visible(value))
		}
	}
	row("approval", b.ApprovalID)
	row("status", standing(b, now))
	row("asks to", controlplane.Marked(card.Asks))
	row("risk", card.Risk)
	if card.Why != "" {
		row("says why (unverified)", controlplane.MarkedClaim(card.Why))
	}
	for _, d := range card.Dangers {
		name := "look at"
		if d.Grave {
			name = "beware"
		}
		row(name, controlplane.Marked(d.Words))
	}
	row("policy since", since)
	tables := func(list []string) string {
		return controlplane.Marked(strings.ReplaceAll(strings.Join(list, ", "), "?.*", "tables that it does not name"))
	}
	row("writes", tables(facts.TablesWritten))
	row("reads", tables(facts.TablesRead))
	row("rows at most", atMost(b.MaxRows))
	row("expected", card.Expected)
	for _, line := range card.DryRun {
		row("dry run", controlplane.Marked(line))
	}
	for _, table := range card.Besides {
		row("besides", controlplane.Marked(table))
	}
	row("before", card.Before)
	row("why", text(b.Message))
	row("rule", b.DecidedBy.RuleID+" of "+cmp.Or(b.DecidedBy.PolicyVersion, b.DecidedBy.PolicyID))
	row("requester (unverified)", claimed(b))
	row("verified", controlplane.Marked(text(b.Principal)))
	row("agent", text(b.AgentID))
	row("asked", second(b.CreatedAt, ""))
	row("until", second(b.ExpiresAt, ""))
	if b.ResolvedAt != nil {
		row("decided", second(b.ResolvedAt, "")+" by "+text(b.ResolvedBy))
	}
	row("note", text(b.Note))
	row("execution", ended)
	row("sent again", card.Tried)
	if err := t.Flush(); err != nil {
		return err
	}
	return printStatement(w, b)
}

// claimed is all that a requester says of itself, each claim in quotes: none is read as two.
func claimed(b *gateapi.ApprovalBody) string {
	c := &b.Context
	said := controlplane.MarkedClaim(c.Actor)
	for _, claim := range [][2]string{{"application", c.App}, {"tenant", c.Tenant}, {"role", c.Role}, {"host", c.Host}, {"environment", c.Env}, {"session", c.SessionID}} {
		if claim[1] != "" {
			said += ", " + claim[0] + " " + controlplane.MarkedClaim(claim[1])
		}
	}
	return said
}

func atMost(n *int64) string {
	if n == nil {
		return ""
	}
	return fmt.Sprint(*n)
}

// printStatement is the exact text, with what could steer a terminal, or is not what it
// looks like, written out.
func printStatement(w io.Writer, b *gateapi.ApprovalBody) error {
	var out strings.Builder
	lines := func(name, sql string) {
		fmt.Fprintf(&out, "\n%s\n", name)
		for line := range strings.Lines(controlplane.Marked(sql)) {
			fmt.Fprintf(&out, "  %s\n", visible(strings.TrimRight(line, "\n")))
		}
	}
	lines("statement, as it will run:", b.SQL)
	if b.PreparedSQL != nil {
		lines("which runs what was prepared:", *b.PreparedSQL)
	}
	for i, p := range b.Parameters {
		fmt.Fprintf(&out, "parameter %d: %s\n", i+1, marked(p))
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// approvalsResolveCommand makes `gate approvals approve` and `gate approvals reject`.
func (a *app) approvalsResolveCommand(decision string) *cobra.Command {
	o := clientOptions{operator: true}
	var note string
	var yes bool
	what := map[string]string{"approve": "Let a statement run once, as it was asked for", "reject": "Refuse a statement that waits"}[decision]
	cmd := &cobra.Command{
		Use: decision + " APPROVAL", Short: what, Args: cobra.ExactArgs(1),
		Long: what + `.

It shows the approval and asks before it decides; --yes is for where nobody can be asked. A decision
stands: there is one for each approval. What is approved runs when its client sends it again with the
approval_id.`,
		RunE: func(c *cobra.Command, args []string) error {
			return a.resolve(c.Context(), &o, args[0], decision, note, yes)
		},
	}
	cmd.Flags().StringVar(&note, "note", "", "why; it stands in the evidence")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return clientFlags(cmd, &o, "print the approval record as JSON")
}

func (a *app) resolve(ctx context.Context, o *clientOptions, id, decision, note string, yes bool) error {
	client, err := a.clientFor(o)
	if err != nil {
		return err
	}
	if client.secret == "" {
		return exitWith(exitConfigured, errors.New("GATE_OPERATOR_TOKEN is not set; to decide takes an operator token"))
	}
	if !yes {
		risk, err := a.showApproval(ctx, client, o, id, a.err)
		if err != nil {
			return err
		}
		if err := a.confirmed(fmt.Sprintf("\n%s it? (%s)", strings.ToUpper(decision[:1])+decision[1:], strings.ToLower(risk)), false); err != nil {
			return err
		}
	}
	var b gateapi.ApprovalBody
	raw, err := client.call(ctx, http.MethodPost, approvalPath(id)+"/resolve", map[string]string{"decision": decision, "note": note}, &b)
	switch {
	case err != nil:
		return a.refused(err, o.json, nil)
	case o.json:
		return written(writeLine(a.out, raw))
	case decision == "approve" && b.OverLimit:
		_, err = fmt.Fprintf(a.out, "%s is approved, by %s, until %s. PostgreSQL expects more than the %s that it may change: if it changes more, it is rolled back.\n", b.ApprovalID, text(b.ResolvedBy), second(b.ExpiresAt, ""), controlplane.Rows(*b.MaxRows))
	case decision == "approve":
		runs, _, sinceErr := policySince(ctx, client, raw, &b)
		if runs == "" || sinceErr != nil {
			runs = "It runs once, when its client sends it again."
		}
		_, err = fmt.Fprintf(a.out, "%s is approved, by %s, until %s. %s\n", b.ApprovalID, text(b.ResolvedBy), second(b.ExpiresAt, ""), runs)
	default:
		_, err = fmt.Fprintf(a.out, "%s is rejected, by %s. It does not run.\n", b.ApprovalID, text(b.ResolvedBy))
	}
	return written(err)
}

func (a *app) approvalsWatchCommand() *cobra.Command {
	o := clientOptions{operator: true}
	var f approvalFilter
	every := time.Second
	cmd := &cobra.Command{
		Use: "watch", Short: "Show approvals as they are asked for and decided, until interrupted", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			f.status = "pending"
			return a.watchApprovals(c.Context(), &o, f, every)
		},
	}
	f.flags(cmd)
	cmd.Flags().DurationVar(&every, "every", every, "time between two looks, at least 100ms")
	return clientFlags(cmd, &o, "print a JSON object for each change, one a line")
}

// watchApprovals prints what waits, and from then on what changes.
func (a *app) watchApprovals(ctx context.Context, o *clientOptions, f approvalFilter, every time.Duration) error {
	if every < 100*time.Millisecond {
		return fmt.Errorf("--every is at least 100ms")
	}
	if !o.json {
		fmt.Fprintln(a.err, "Watching. Decide with `gate approvals approve` or `reject`; Ctrl-C ends this.")
	}
	waits, out := map[string]bool{}, terminal.Fit(a.out)
	show := func(one *approvalShown) error {
		if o.json {
			return writeLine(a.out, one.raw)
		}
		_, err := fmt.Fprintf(out, "%s  %s  %s  %s  %s%s\n", one.ApprovalID, standing(&one.ApprovalBody, time.Now()), one.risk, requester(one.Context.Actor, one.Context.App), oneStatement(one.SQL), decider(&one.ApprovalBody))
		return err
	}
	client, err := a.clientFor(o)
	if err != nil {
		return err
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	newest, err := newestApproval(ctx, client, f)
	if err != nil {
		return a.refused(err, o.json, nil)
	}
	for {
		found, err := a.approvals(ctx, o, f)
		gone := maps.Clone(waits)
		for i := 0; err == nil && i < len(found); i++ {
			id := found[i].ApprovalID
			if delete(gone, id); !waits[id] {
				waits[id] = true
				err = show(&found[i])
			}
		}
		for id := range gone {
			var one approvalShown
			if err == nil {
				var raw json.RawMessage
				if raw, err = client.call(ctx, http.MethodGet, approvalPath(id), nil, &one.ApprovalBody); err == nil {
					one, err = readApproval(raw)
				}
			}
			if r := (*gateRefusal)(nil); errors.As(err, &r) && r.Code == string(fault.ApprovalNotFound) { // expired and purged
				delete(waits, id)
				err = nil
			} else if err == nil {
				delete(waits, id)
				err = show(&one)
			}
		}
		var asked []approvalShown
		if err == nil {
			asked, err = approvalsSince(ctx, client, f, newest)
		}
		for i := 0; err == nil && i < len(asked); i++ { // the eldest first
			one := &asked[i]
			if newest = one; waits[one.ApprovalID] || gone[one.ApprovalID] || slices.ContainsFunc(found, func(p approvalShown) bool { return p.ApprovalID == one.ApprovalID }) {
				continue
			}
			if one.Status == "pending" {
				waits[one.ApprovalID] = true
			}
			err = show(one)
		}
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return a.refused(err, o.json, nil)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// newestApproval is the one that was asked for last; nil: none was.
func newestApproval(ctx context.Context, client *gateClient, f approvalFilter) (newest *approvalShown, err error) {
	err = client.each(ctx, "/approvals", f.anyStatus(), func(item json.RawMessage) error {
		one, err := readApproval(item)
		newest = &one
		return cmp.Or(err, errEnough)
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return newest, err
}

// approvalsSince are those that were asked for after one, whatever became of them, the eldest
// first: some are decided between two looks.
func approvalsSince(ctx context.Context, client *gateClient, f approvalFilter, last *approvalShown) (found []approvalShown, err error) {
	err = client.each(ctx, "/approvals", f.anyStatus(), func(item json.RawMessage) error {
		one, err := readApproval(item)
		if err == nil && last != nil && (one.ApprovalID == last.ApprovalID || created(&one).Before(created(last))) {
			return errEnough
		}
		found = append(found, one)
		return err
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	slices.Reverse(found)
	return found, err
}

// created is when an approval was asked for, as the gate writes it.
func created(one *approvalShown) (t time.Time) {
	t, _ = time.Parse(time.RFC3339Nano, text(one.CreatedAt))
	return t
}

// anyStatus is the query for approvals that fit a filter, whatever became of them.
func (f *approvalFilter) anyStatus() url.Values {
	return given(url.Values{"actor": {f.actor}, "app": {f.app}, "env": {f.env}})
}
