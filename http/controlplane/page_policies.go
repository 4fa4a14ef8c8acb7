package controlplane

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"golang.org/x/sync/errgroup"

	"writegate/http/httpd"
)

type policiesView struct {
	Status   *policyStatus
	Versions []policyVersion
	Rules    []ruleWords
	Next     string // older versions, "" where there are none
	Missing  []string
}

// policies is the active version in words, and all versions.
func (s *Server) policies(c *httpd.Call, p *page) error {
	var v policiesView
	var all gather
	ctx := c.Request.Context()
	together(&all, ctx, func(ctx context.Context) error { return into(&v.Status)(fetch[policyStatus](ctx, s, "/policy/status")) })
	together(&all, ctx, func(ctx context.Context) error {
		got, err := read[policyVersion](ctx, s, "/policy/versions", versionsLimit, "cursor", c.Request.URL.Query().Get("cursor"))
		v.Versions, v.Next = got.Items, got.next()
		return err
	})
	v.Missing = all.wait()
	if v.Status != nil && v.Status.PolicyVersion != "" {
		if active, err := fetch[policyVersion](ctx, s, "/policy/versions/"+v.Status.PolicyVersion); err == nil {
			v.Rules = rulesOf(active.Document)
		}
	}
	p.Live, p.Body = "policy_candidate_created policy_candidate_rejected policy_activated policy_rollback policy_loaded", v
	return nil
}

// versionsLimit is how many versions a page or a choice of them has.
const versionsLimit = 200

// choices are the versions that a form offers: the newest, and those that are
// chosen already, which may be older.
func (s *Server) choices(ctx context.Context, chosen ...string) ([]string, error) {
	got, err := read[policyVersion](ctx, s, "/policy/versions", versionsLimit)
	var names []string
	for _, v := range got.Items {
		names = append(names, v.PolicyVersion)
	}
	for _, name := range chosen {
		if name != "" && name != "active" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names, err
}

// ruleWords is a rule as somebody reads it who does not write policies.
type ruleWords struct {
	ID, Decision, Mode, Message, Reason string
	When, Unless                        []string
	Lifts                               []string
	TTL                                 int
	MaxRows                             *int
}

// rulesOf reads the rules of a document for show alone; what decides is the gate's.
func rulesOf(document string) []ruleWords {
	var doc struct {
		Rules []struct {
			ID         string               `yaml:"id"`
			Decision   string               `yaml:"decision"`
			Mode       string               `yaml:"mode"`
			Message    string               `yaml:"message"`
			ReasonCode string               `yaml:"reason_code"`
			Match      map[string]yaml.Node `yaml:"match"`
			Unless     map[string]yaml.Node `yaml:"unless"`
			When       string               `yaml:"when"`
			Lifts      []string             `yaml:"lifts"`
			Approval   struct {
				TTL     yaml.Node `yaml:"ttl_seconds"`
				MaxRows yaml.Node `yaml:"max_rows"`
			} `yaml:"approval"`
		} `yaml:"rules"`
	}
	if yaml.Unmarshal([]byte(document), &doc) != nil {
		return nil
	}
	var rules []ruleWords
	for _, r := range doc.Rules {
		w := ruleWords{ID: r.ID, Decision: r.Decision, Mode: r.Mode, Message: r.Message, Reason: r.ReasonCode, Lifts: r.Lifts}
		w.TTL, _ = strconv.Atoi(r.Approval.TTL.Value) // in plain digits, as the gate reads them
		if rows, err := strconv.Atoi(r.Approval.MaxRows.Value); err == nil {
			w.MaxRows = &rows
		}
		w.When = groupWords(r.Match)
		if w.Unless = groupWords(r.Unless); r.Unless != nil && len(w.Unless) == 0 { // of a document that is older than the error for it
			w.Unless = []string{anyStatement}
		}
		if r.When != "" {
			w.When = append(w.When, "the condition "+strings.TrimSpace(r.When)+" holds")
		}
		rules = append(rules, w)
	}
	return rules
}

const anyStatement = "it is any statement"

// groupWords says what of a statement has to hold, each key for itself.
func groupWords(match map[string]yaml.Node) (words []string) {
	keys := slices.SortedFunc(maps.Keys(match), func(a, b string) int {
		return cmp.Or(cmp.Compare(uint(slices.Index(matchOrder, a)), uint(slices.Index(matchOrder, b))), cmp.Compare(a, b))
	})
	for _, key := range keys {
		node := match[key]
		if key != "any_of" {
			words = append(words, matchWords(key, &node))
			continue
		}
		var groups []map[string]yaml.Node
		if node.Decode(&groups) != nil {
			continue // the gate has refused such a document
		}
		var either []string
		for _, group := range groups {
			words := groupWords(group)
			if len(words) == 0 {
				words = []string{anyStatement}
			}
			either = append(either, strings.Join(words, " and "))
		}
		words = append(words, "one of these holds: "+strings.Join(either, "; or "))
	}
	return words
}

var matchOrder = []string{"class", "query_types", "query_types_only", "tables_read", "tables_read_only", "tables_written", "tables_written_only",
	"columns_written", "columns_written_only", "functions", "functions_only", "risk_signals", "risk_signals_only", "flags", "where", "where_only", "actor", "app", "tenant", "role", "env"}

var matchNames = map[string]string{
	"class": "the class is", "query_types": "the statement is", "query_types_only": "it holds nothing but", "tables_read": "it reads", "tables_read_only": "it reads nothing but",
	"tables_written": "it writes", "tables_written_only": "it writes nothing but", "columns_written": "it writes the column", "columns_written_only": "it writes no column but",
	"functions": "it calls", "functions_only": "it calls nothing but", "risk_signals": "it raises", "risk_signals_only": "it raises nothing but", "flags": "it has",
	"where": "a condition is", "where_only": "every condition is", "actor": "the actor says it is", "app": "the application says it is", "tenant": "the tenant is", "role": "the role is", "env": "the environment is",
}

func matchWords(key string, node *yaml.Node) string {
	name, ok := matchNames[key]
	if !ok {
		name = strings.ReplaceAll(key, "_", " ") + " is"
	}
	var values []string
	if node.Kind == yaml.SequenceNode {
		for _, item := range node.Content {
			values = append(values, item.Value)
		}
	} else {
		values = []string{node.Value}
	}
	if only, yes := strings.CutSuffix(name, " but"); yes && len(values) == 0 {
		return only // nothing, or no column
	}
	if len(values) == 0 {
		values = []string{"nothing"}
	}
	if more := len(values) - 8; more > 0 {
		values = append(values[:8], fmt.Sprintf("%d more", more))
	}
	for i, v := range values {
		if strings.HasPrefix(key, "query_types") {
			values[i] = strings.ReplaceAll(v, "_", " ")
		}
		if list, ok := strings.CutPrefix(v, "$"); ok {
			values[i] = "what is in the list " + list
		} else if words, ok := conditionWords[v]; ok && strings.HasPrefix(key, "where") {
			values[i] = words
		}
	}
	return name + " " + strings.Join(values, " or ")
}

var conditionWords = map[string]string{"none": "missing", "tautology": "always true", "key_equality": "a key", "present": "not a key"}

type policyView struct {
	Version policyVersion
	Rules   []ruleWords
	Report  *policyReport
	Impact  *impactClaim
	Active  string
	Missing []string
	Review  *diffView // what it would change, where it can come into force
	Waiting *waiting
}

// reviewed is how far back a candidate is tried before it can be activated.
const reviewed = "24h"

// A waiting is what a candidate would do to the approvals that wait now.
type waiting struct {
	Count, Blocked, Free int // all that were tried, those that would be blocked, and those that would need no approval
	Changed              []waitingChange
	More                 bool // there are others
}

type waitingChange struct {
	approvalRow
	Would string // decision of the candidate
	Rule  string
}

// Bounds of that.
const (
	waitingTried  = 100
	waitingAtOnce = 4
)

// wouldWait tries the approvals that wait now under a version. An approval that an agent's
// own rules ask for waits under any, and of what EXECUTE runs the name alone is known here.
func (s *Server) wouldWait(ctx context.Context, version string) (*waiting, error) {
	got, err := read[approval](ctx, s, "/approvals", waitingTried, "status", "pending")
	if err != nil {
		return nil, err
	}
	rows := slices.DeleteFunc(s.rows(got.Items), func(r approvalRow) bool { return r.DecidedBy.PolicyID != "" || r.PreparedSQL != "" })
	results := make([]dryRunResult, len(rows))
	var all errgroup.Group
	all.SetLimit(waitingAtOnce)
	for i, r := range rows {
		all.Go(func() error {
			var err error
			results[i], err = s.decidedNow(ctx, &r.approval, version)
			return err
		})
	}
	if err := all.Wait(); err != nil {
		return nil, err
	}
	w := &waiting{Count: len(rows), More: got.next() != "" || len(rows) < len(got.Items)}
	for i, r := range rows {
		switch results[i].Decision {
		case "REQUIRE_APPROVAL":
			continue
		case "BLOCK":
			w.Blocked++
		default:
			w.Free++
		}
		w.Changed = append(w.Changed, waitingChange{r, results[i].Decision, results[i].RuleID})
	}
	return w, nil
}

// decidedNow is what a version decides about the statement of an approval.
func (s *Server) decidedNow(ctx context.Context, a *approval, version string) (result dryRunResult, err error) {
	body, err := jsonBody(map[string]string{"sql": a.SQL, "policy_version": version, "actor": a.Context.Actor, "app": a.Context.App, "tenant": a.Context.Tenant,
		"role": a.Context.Role, "host": a.Context.Host, "env": a.Context.Env})
	if err != nil {
		return result, err
	}
	return ask[dryRunResult](ctx, s, request{method: http.MethodPost, path: "/policy/dry-run", body: body, media: "application/json"})
}

// An impactClaim is what a replay gave that somebody looked at before activating.
type impactClaim struct {
	FromSeq    uint64 `json:"from_seq"`
	ToSeq      uint64 `json:"to_seq"`
	ImpactHash string `json:"impact_hash"`
}

// String is its JSON.
func (i *impactClaim) String() string {
	text, _ := json.Marshal(i) // numbers and a text always can be
	return string(text)
}

// impactOf reads what the comparison of two versions leads on with; nil: nothing.
func impactOf(query url.Values) *impactClaim {
	from, err1 := strconv.ParseUint(query.Get("from_seq"), 10, 64)
	to, err2 := strconv.ParseUint(query.Get("to_seq"), 10, 64)
	if err1 != nil || err2 != nil {
		return nil
	}
	return &impactClaim{from, to, query.Get("impact_hash")}
}

type policyReport struct {
	Valid    bool      `json:"valid"`
	Findings []finding `json:"findings"`
	Warnings []finding `json:"warnings"`
	Tests    counted   `json:"tests"`
	Corpus   counted   `json:"corpus"`
}

// All are errors and warnings.
func (r policyReport) All() []finding { return slices.Concat(r.Findings, r.Warnings) }

// policy is one version: its rules in words, its text, what validation says now,
// and the way to make it the active one.
func (s *Server) policy(c *httpd.Call, p *page) error {
	ctx := c.Request.Context()
	name := c.Params.ByName("version")
	version, err := fetch[policyVersion](ctx, s, "/policy/versions/"+name)
	if err != nil {
		return err
	}
	v := policyView{Version: version, Rules: rulesOf(version.Document), Impact: impactOf(c.Request.URL.Query())}
	var all gather
	together(&all, ctx, func(ctx context.Context) error {
		status, err := fetch[policyStatus](ctx, s, "/policy/status")
		v.Active = status.PolicyVersion
		return err
	})
	together(&all, ctx, func(ctx context.Context) error {
		body, err := jsonBody(map[string]string{"policy_version": name})
		if err != nil {
			return err
		}
		return into(&v.Report)(ask[policyReport](ctx, s, request{method: http.MethodPost, path: "/policy/validate", body: body, media: "application/json"}))
	})
	if (version.Status == "candidate" || version.Status == "archived") && c.Request.Header.Get(backgroundHeader) == "" && !p.Gate.damaged() { // a replay is dear, and its part of the page stays as it is
		together(&all, ctx, func(ctx context.Context) error {
			review := &diffView{Base: "active", Target: name, Last: reviewed}
			err := s.compare(ctx, review)
			if err == nil {
				v.Review = review
			}
			return err
		})
		together(&all, ctx, func(ctx context.Context) (err error) {
			v.Waiting, err = s.wouldWait(ctx, name)
			return err
		})
	}
	v.Missing = all.wait()
	if v.Impact == nil && v.Review != nil {
		if r := v.Review.Diff.Replay; r != nil && r.ImpactHash != "" {
			v.Impact = &impactClaim{r.FromSeq, r.ToSeq, r.ImpactHash}
		}
	}
	p.Title, p.Body = version.PolicyVersion, v
	return nil
}

type diffView struct {
	Versions     []string
	Base, Target string
	Active       string // version in force
	Last         string
	Diff         *policyDiff
	Lines        []diffLine
	Unreplayed   bool // for the log is damaged
	Terms        bool // of approvals change, which a replay does not try
	Problem      string
}

type policyDiff struct {
	Base struct {
		PolicyVersion string `json:"policy_version"`
	} `json:"base"`
	Target struct {
		PolicyVersion string `json:"policy_version"`
	} `json:"target"`
	IdenticalBytes     bool `json:"identical_bytes"`
	IdenticalSemantics bool `json:"identical_semantics"`
	Summary            struct {
		Added         int `json:"added"`
		Removed       int `json:"removed"`
		Modified      int `json:"modified"`
		ActionChanges int `json:"action_changes"`
	} `json:"summary"`
	Changes []struct {
		RuleID        string `json:"rule_id"`
		Change        string `json:"change"`
		ActionChanged bool   `json:"action_changed"`
		Decision      *struct {
			From string `json:"from"`
			To   string `json:"to"`
		} `json:"decision"`
		Direction string `json:"direction"`
		Fields    []struct {
			Path    string     `json:"path"`
			From    fieldValue `json:"from"`
			To      fieldValue `json:"to"`
			Added   []string   `json:"added"`
			Removed []string   `json:"removed"`
		} `json:"fields"`
	} `json:"changes"`
	Replay *struct {
		FromSeq       uint64 `json:"from_seq"`
		ToSeq         uint64 `json:"to_seq"`
		Evaluated     int    `json:"evaluated"`
		Changed       int    `json:"changed"`
		BaseDiffers   int    `json:"recorded_differs"`
		TargetDiffers int    `json:"recorded_differs_from_target"`
		BothDiffer    int    `json:"recorded_differs_from_both"`
		Complete      bool   `json:"complete"`
		ImpactHash    string `json:"impact_hash"`
		Transitions   []struct {
			From    string `json:"from"`
			To      string `json:"to"`
			Count   int    `json:"count"`
			Samples []struct {
				EventID     string `json:"event_id"`
				Seq         uint64 `json:"seq"`
				Fingerprint string `json:"fingerprint"`
				Recorded    string `json:"recorded"`
			} `json:"samples"`
		} `json:"transitions"`
	} `json:"replay"`
	Text string `json:"text"`
}

// A fieldValue is what a policy says in one place, as a person writes it.
type fieldValue string

// UnmarshalJSON implements json.Unmarshaler. Parts that say nothing are left
// out; where none says anything the value is "".
func (v *fieldValue) UnmarshalJSON(raw []byte) error {
	var value any
	if err := json.Unmarshal(raw, &value); err != nil {
		return err
	}
	*v = fieldValue(plainValue(value))
	return nil
}

func plainValue(value any) string {
	switch value := value.(type) {
	case nil:
		return ""
	case string:
		return value
	case map[string]any:
		var parts []string
		for _, key := range slices.Sorted(maps.Keys(value)) {
			if inner := plainValue(value[key]); inner != "" {
				parts = append(parts, strings.ReplaceAll(key, "_", " ")+" "+inner)
			}
		}
		return strings.Join(parts, ", ")
	case []any:
		parts := make([]string, len(value))
		for i, one := range value {
			parts[i] = plainValue(one)
		}
		return strings.Join(parts, ", ")
	}
	return fmt.Sprint(value)
}

// A diffLine is a line of both documents, side by side.
type diffLine struct {
	Left, Right string
	Kind        string // same, changed, added, removed, gap
}

// replayRanges are what "what would have changed" may look back over.
var replayRanges = []string{"1h", "24h", "168h"}

// diff compares two versions, and what the other one would have decided.
func (s *Server) diff(c *httpd.Call, p *page) error {
	query := c.Request.URL.Query()
	ctx := c.Request.Context()
	versions, err := s.choices(ctx, query.Get("base"), query.Get("target"))
	if err != nil {
		return err
	}
	v := diffView{Versions: versions, Base: query.Get("base"), Target: query.Get("target"), Last: query.Get("last")}
	if v.Base == "" {
		v.Base = "active"
	}
	p.Body = &v
	if v.Last != "" && !slices.Contains(replayRanges, v.Last) {
		v.Problem = "Last must be one of " + strings.Join(replayRanges, ", ") + "."
		return nil
	}
	if v.Target == "" {
		return nil
	}
	if v.Last != "" && p.Gate.damaged() {
		v.Last, v.Unreplayed = "", true
	}
	if err := s.compare(ctx, &v); err != nil {
		v.Problem = wordsOf(err)
		return nil
	}
	if status, err := fetch[policyStatus](ctx, s, "/policy/status"); err == nil { // without it there is only no way on
		v.Active = status.PolicyVersion
	}
	return nil
}

// compare fills in what lies between two versions.
func (s *Server) compare(ctx context.Context, v *diffView) error {
	asked := map[string]any{"base": v.Base, "target": v.Target}
	if v.Last != "" {
		asked["replay"] = map[string]string{"last": v.Last}
	}
	body, err := jsonBody(asked)
	if err != nil {
		return err
	}
	found, err := ask[policyDiff](ctx, s, request{method: http.MethodPost, path: "/policy/diff", body: body, media: "application/json"})
	if err != nil {
		return err
	}
	v.Diff, v.Lines = &found, sideBySide(found.Text)
	for _, change := range found.Changes {
		for _, field := range change.Fields {
			v.Terms = v.Terms || strings.HasPrefix(field.Path, "approval")
		}
	}
	return nil
}

// sideBySide turns a unified diff into two columns.
func sideBySide(text string) []diffLine {
	var lines []diffLine
	var removed []string
	flush := func() {
		for _, r := range removed {
			lines = append(lines, diffLine{Left: r, Kind: "removed"})
		}
		removed = nil
	}
	begun := false // the names of the files stand before the first hunk
	for line := range strings.SplitSeq(strings.TrimSuffix(text, "\n"), "\n") {
		begun = begun || strings.HasPrefix(line, "@@")
		switch {
		case !begun, line == "":
		case strings.HasPrefix(line, "@@"):
			flush()
			lines = append(lines, diffLine{Left: line, Kind: "gap"})
		case line[0] == '-':
			removed = append(removed, line[1:])
		case line[0] == '+' && len(removed) > 0:
			lines = append(lines, diffLine{removed[0], line[1:], "changed"})
			removed = removed[1:]
		case line[0] == '+':
			lines = append(lines, diffLine{Right: line[1:], Kind: "added"})
		default:
			flush()
			lines = append(lines, diffLine{line[1:], line[1:], "same"})
		}
	}
	flush()
	return lines
}

type dryRunView struct {
	Versions []string
	Form     map[string]string
	Result   *dryRunResult
	SQL      *sqlView
	Problem  string
}

type dryRunResult struct {
	Decision       string         `json:"decision"`
	ReasonCode     string         `json:"reason_code"`
	Reason         string         `json:"reason"`
	Remedy         string         `json:"remedy"`
	RuleID         string         `json:"rule_id"`
	Fingerprint    string         `json:"fingerprint"`
	Classification classification `json:"classification"`
	PolicyVersion  string         `json:"policy_version"`
	Approval       *struct {
		MaxRows *int64 `json:"max_rows"`
	} `json:"approval"` // nil: it needs none
	RuleTrace []struct {
		RuleID   string `json:"rule_id"`
		Decision string `json:"decision"`
		Mode     string `json:"mode"`
		Outcome  string `json:"outcome"`
		FailedAt string `json:"failed_at"`
		Checks   []struct {
			Key  string          `json:"key"`
			Want json.RawMessage `json:"want"`
			Got  json.RawMessage `json:"got"`
			Pass bool            `json:"pass"`
		} `json:"checks"`
	} `json:"rule_trace"`
}

// dryRunFields are the claims of a dry run and what they are when nobody fills
// them in.
var dryRunFields = []struct{ name, value string }{{"actor", "ana"}, {"app", "shop"}, {"tenant", "acme"}, {"role", "clerk"}, {"host", "desk-1"}, {"env", "prod"}}

func (s *Server) dryRunPage(c *httpd.Call, p *page) error { return s.dryRun(c, p, formValues{}) }

// dryRun says what would be decided about a statement. Nothing runs and nothing
// is recorded.
func (s *Server) dryRun(c *httpd.Call, p *page, form formValues) error {
	ctx := c.Request.Context()
	versions, err := s.choices(ctx, c.Request.URL.Query().Get("version"), form.text("policy_version"))
	if err != nil {
		return err
	}
	v := dryRunView{Versions: versions, Form: map[string]string{"policy_version": c.Request.URL.Query().Get("version")}}
	asked := make(map[string]string)
	for _, f := range dryRunFields {
		v.Form[f.name] = f.value
		if form.Has(f.name) {
			v.Form[f.name] = form.text(f.name)
		}
		asked[f.name] = v.Form[f.name]
	}
	p.Body = &v
	if !form.Has("sql") {
		return nil
	}
	v.Form["sql"], v.Form["policy_version"] = form.Get("sql"), form.text("policy_version")
	asked["sql"] = strings.ReplaceAll(v.Form["sql"], "\r\n", "\n") // what a browser makes of the lines of a text box
	if v.Form["policy_version"] != "" {
		asked["policy_version"] = v.Form["policy_version"]
	}
	body, err := jsonBody(asked)
	if err != nil {
		return err
	}
	result, err := ask[dryRunResult](ctx, s, request{method: http.MethodPost, path: "/policy/dry-run", body: body, media: "application/json"})
	if err != nil {
		v.Problem = wordsOf(err)
		return nil
	}
	shown := s.shownSQL(asked["sql"])
	v.Result, v.SQL = &result, &shown
	return nil
}
