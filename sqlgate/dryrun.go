package sqlgate

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"writegate/commands/fault"
	"writegate/eventlog/event"
	"writegate/sqlgate/classify"
	"writegate/sqlgate/pgexec"
	"writegate/sqlgate/policy"
)

// dryRunRows is how many rows are kept for whoever approves, of those before and of those behind.
const dryRunRows = 20

// A dry run is shown beside the approval of the same request that is asked for so long after
// it, and from then on as long as that is pending. So many are kept.
const (
	dryRunKept  = 15 * time.Minute
	mostDryRuns = 100
)

// A DryRunOutcome is what a statement would have changed when it was tried. It is no promise:
// the rows may be others when it runs.
type DryRunOutcome struct {
	At          string            `json:"at"`
	ExecutionID string            `json:"execution_id"`
	RowsChanged int64             `json:"rows_changed"`
	MaxRows     int64             `json:"max_rows"` // with which the statement would just run, as a rule's max_rows counts
	Tables      []pgexec.DryTable `json:"tables"`

	// For whoever approves, where the policy takes it. In the log is the digest of Shown alone,
	// which has a nonce so that nobody finds the rows by it.
	Shown       json.RawMessage `json:"shown,omitempty"`
	ShownSHA256 string          `json:"shown_sha256,omitempty"`
	RowsOmitted string          `json:"rows_omitted,omitempty"`
}

// Words say what was found, and when.
func (o *DryRunOutcome) Words() string {
	words := fmt.Sprintf("would change %s in %s", counted(o.RowsChanged, "row"), counted(int64(len(o.Tables)), "table"))
	if at, err := time.Parse(time.RFC3339Nano, o.At); err == nil {
		words += ", at " + at.UTC().Format(time.TimeOnly)
	}
	return words
}

func counted(n int64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// dryRuns are the tables that one runs on now, and the last outcomes by the digest of their
// request. It is a memory of this run alone.
type dryRuns struct {
	mu   sync.Mutex
	busy map[string]bool
	kept *simplelru.LRU[[32]byte, *keptDryRun]
}

type keptDryRun struct {
	DryRunOutcome
	until time.Time
}

// take has the tables for one dry run alone, all of them or none.
func (d *dryRuns) take(tables []string) (release func(), taken string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, t := range tables {
		if d.busy[t] {
			return nil, t
		}
	}
	if d.busy == nil {
		d.busy = map[string]bool{}
	}
	for _, t := range tables {
		d.busy[t] = true
	}
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		for _, t := range tables {
			delete(d.busy, t)
		}
	}, ""
}

func (d *dryRuns) keep(request [32]byte, o *keptDryRun) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.kept == nil {
		d.kept, _ = simplelru.NewLRU[[32]byte, *keptDryRun](mostDryRuns, nil) // the size is right
	}
	d.kept.Add(request, o)
}

// of is the last outcome for a request; until is how long it is kept from now on, zero for
// as long as it was.
func (d *dryRuns) of(request [32]byte, now, until time.Time) *DryRunOutcome {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.kept == nil {
		return nil
	}
	k, found := d.kept.Get(request)
	switch {
	case !found:
		return nil
	case !now.Before(k.until):
		d.kept.Remove(request)
		return nil
	case until.After(k.until):
		k.until = until
	}
	o := k.DryRunOutcome
	return &o
}

// DryRunOf is what a dry run of the request of a pending approval has found, rows included, for
// whoever approves; nil where there was none, or none that is known any more.
func (g *Gate) DryRunOf(request [32]byte, expires time.Time) *DryRunOutcome {
	return g.dryRuns.of(request, g.Now(), expires)
}

// notDryRun says what the text alone says against a dry run, "" for nothing.
func (s *submission) notDryRun() string {
	c := &s.classification
	writes := []string{classify.TypeInsert, classify.TypeUpdate, classify.TypeDelete}
	switch {
	case !slices.Contains(writes, c.QueryType) || c.Class != classify.ClassWrite || c.Run != classify.RunTransaction ||
		slices.ContainsFunc(c.QueryTypes, func(t string) bool { return t != classify.TypeSelect && !slices.Contains(writes, t) }):
		return "it has to be one INSERT, UPDATE or DELETE, and is " + article(c.QueryType) + " " + c.QueryType
	case slices.Contains(c.Flags, classify.FlagParameters) || s.execute != nil:
		return "it has parameters"
	case len(s.ofText().TablesWritten) != 1:
		return "it has to write one table by name"
	}
	for _, signal := range s.ofText().RiskSignals { // what stands behind its names the database tells better
		if !slices.Contains(plannedDespite, signal) {
			return "it has the risk signal " + signal
		}
	}
	names := classify.NamesOf(s.statement().SQL)
	if names.Unsure {
		return "a name in the text is written in an unusual way"
	}
	if i := slices.IndexFunc(names.Words, func(word string) bool { return slices.Contains(versionColumns, word) }); i >= 0 {
		return "it names the system column " + names.Words[i] + ", by which it could tell its dry run from its run, and do something else in that"
	}
	for _, name := range s.ofText().Functions {
		if tellsSessions.MatchString(name) {
			return "it calls " + name + ", by which it could tell its dry run from its run, and do something else in that"
		}
	}
	return ""
}

// tellsSessions are the functions that tell of the session, such as its time limits: those of a
// dry run are its own, as is the time between its BEGIN and its statement.
var tellsSessions = regexp.MustCompile(`^(pg_catalog\.)?(pg_|txid_|inet_|current_setting$|current_query$|statement_timestamp$)`)

// versionColumns tell which version of a row stands where: a dry run leaves dead ones, and its
// transaction in the rows that it touched.
var versionColumns = []string{"cmax", "cmin", "ctid", "xmax", "xmin"}

// ofText is what the text alone tells, without what stands in the database behind its names.
func (s *submission) ofText() *classify.Classification {
	if s.judged != nil {
		return &s.judged.Text
	}
	return &s.classification
}

// dryRunRequest is the statement with its names, as the database is asked about it.
func (g *Gate) dryRunRequest(s *submission) pgexec.DryRunRequest {
	c := s.ofText()
	names := classify.NamesOf(s.statement().SQL)
	r := pgexec.DryRunRequest{
		Written: c.TablesWritten, Read: c.TablesRead, Columns: c.ColumnsWritten, Words: names.Words, Operators: names.Operators,
		Time: g.DryRunTimeout, LockTime: g.DryRunLockTimeout, Safe: g.safeFunctions,
		// OVERRIDING USER VALUE takes the sequence of a column that is named. Which columns an INSERT
		// names can't be told from those that its conflict updates.
		Defaults: slices.Contains(names.Words, "default") || slices.Contains(names.Words, "overriding") || slices.Contains(c.Flags, classify.FlagOnConflict),
	}
	for queryType, bit := range map[string]int{classify.TypeInsert: pgexec.TriggersInsert, classify.TypeUpdate: pgexec.TriggersUpdate, classify.TypeDelete: pgexec.TriggersDelete} {
		if c.QueryType == queryType || slices.Contains(c.QueryTypes, queryType) {
			r.Events |= bit
		}
	}
	if s.result.DryRun.Rows {
		r.Rows = dryRunRows
	}
	return r
}

// safeFunctions names the first of PostgreSQL's functions that a statement could not call and
// still be a safe read: what the classifier knows of them is all in one place.
func (g *Gate) safeFunctions(ctx context.Context, functions []pgexec.BuiltinCall) (unsafe string, err error) {
	var names, calls []string
	for _, f := range functions {
		if f.Name != "current_setting" { // of which setting no name tells, and policies ask for one of the application's
			names, calls = append(names, f.Name), append(calls, classify.BuiltinCall(f.Name, f.Args))
		}
	}
	if calls = slices.Compact(slices.Sorted(slices.Values(calls))); len(calls) == 0 {
		return "", nil
	}
	c, err := g.Classifier.Classify(ctx, "SELECT "+strings.Join(calls, ", "))
	switch {
	case err != nil:
		return "", err
	case c.SafeRead:
		return "", nil
	}
	for _, signal := range c.Signals {
		if slices.Contains(names, signal.Subject) {
			return signal.Subject, nil
		}
	}
	return names[0], nil
}

// dryRun carries a decided dry run out: what is blocked is answered as ever; all else runs, where
// the rules take it and it is plain, and is rolled back. A client that hangs up does not cancel it.
func (g *Gate) dryRun(ctx context.Context, s *submission) (*Answer, error) {
	if s.result.Decision == policy.Block {
		return g.stop(ctx, s)
	}
	ctx = context.WithoutCancel(ctx)
	if s.result.DryRun == nil {
		return nil, g.refuse(ctx, s, fault.New(fault.DryRunRefused, "The policy takes no dry run of this statement: every rule that asks for its approval, or allows it where none asks, has to say dry_run: allow. Nothing was run. Preview it in place of that, or send it as it is.").
			With("reason", pgexec.DryRunNotAllowed).With("rule_id", s.result.RuleID))
	}
	if why := s.notDryRun(); why != "" {
		return nil, g.refuse(ctx, s, pgexec.NotPlain("%s", why))
	}
	had := s.ofText().TablesWritten
	release, err := g.dryRunAlone(had, nil)
	if err != nil {
		return nil, g.refuse(ctx, s, err)
	}
	defer release()
	request, more := g.dryRunRequest(s), func() {}
	request.Alone = func(tables []string) error {
		free, err := g.dryRunAlone(tables, had)
		if err == nil {
			more = free
		}
		return err
	}
	defer func() { more() }()
	s.executionID = event.NewExecutionID(g.Now())
	begin := time.Now()
	d, err := g.Database.BeginDryRun(s.waits(ctx), g.beginOptions(s, g.limits(s)), request) // nothing of the client's is sent but names of tables
	s.watch.time(phaseDatabase, begin)
	switch {
	case fault.CodeOf(err) == fault.DryRunRefused:
		return nil, g.refuse(ctx, s, err)
	case err != nil:
		return nil, g.notDispatched(ctx, s, err)
	}
	defer d.Rollback() // does nothing once it has ended

	recorded, err := g.recordDecision(ctx, s, s.dispatch(event.PathDryRun, d.Dispatch())) // COMMIT POINT of the log
	if err != nil {
		return nil, err
	}
	begin = time.Now()
	result, report, err := d.Run(ctx, s.statement())
	s.watch.time(phaseDatabase, begin)
	if report != nil {
		s.tried = g.outcomeOf(s, recorded.At, result, report)
	}
	return g.finish(ctx, s, recorded, result, nil, err)
}

// dryRunAlone has tables for one dry run at a time, but those that it has already.
func (g *Gate) dryRunAlone(tables, had []string) (release func(), err error) {
	release, taken := g.dryRuns.take(slices.DeleteFunc(slices.Clone(tables), func(t string) bool { return slices.Contains(had, t) }))
	if taken != "" {
		return nil, pgexec.Busy("another one runs on " + taken)
	}
	return release, nil
}

// outcomeOf is what a dry run has found, and keeps it for an approval of the same request.
func (g *Gate) outcomeOf(s *submission, at time.Time, result pgexec.Result, report *pgexec.DryReport) *DryRunOutcome {
	o := &DryRunOutcome{At: event.Timestamp(at), ExecutionID: s.executionID, RowsChanged: *result.RowsChanged, MaxRows: *result.RowsChanged, Tables: report.Tables}
	kept := &keptDryRun{*o, g.Now().Add(dryRunKept)}
	if kept.RowsOmitted = report.RowsOmitted; len(report.Rows) > 0 {
		var nonce [16]byte
		_, _ = rand.Read(nonce[:]) // never fails (crypto/rand)
		kept.Shown = appendValue(nil, map[string]any{"nonce": hex.EncodeToString(nonce[:]), "tables": report.Rows})
		sum := sha256.Sum256(kept.Shown)
		kept.ShownSHA256 = hex.EncodeToString(sum[:])
		for _, t := range report.Rows {
			s.shown += len(t.Before) + len(t.After)
		}
		s.shownDigest = sum
	}
	g.dryRuns.keep(s.record.RequestDigest, kept)
	return o
}

// dryRunRecord is the outcome as evidence has it.
func (s *submission) dryRunRecord() *event.DryRunResult {
	r := &event.DryRunResult{Tables: []event.TableRows{}, Shown: s.shown, RowsSHA256: s.shownDigest}
	for _, t := range s.tried.Tables {
		r.Tables = append(r.Tables, event.TableRows{Table: t.Table, Inserted: int(t.Inserted), Updated: int(t.Updated), Deleted: int(t.Deleted), Cascade: t.Cascade})
	}
	return r
}
