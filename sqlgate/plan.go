package sqlgate

import (
	"context"
	"slices"
	"time"

	"writegate/sqlgate/classify"
	"writegate/sqlgate/pgexec"
	"writegate/sqlgate/policy"
)

// planned are the statements whose plan may be asked for, and plannedDespite the
// signals that do not speak against it (design/execution-and-wire.md part 6).
var (
	planned        = []string{classify.TypeSelect, classify.TypeInsert, classify.TypeUpdate, classify.TypeDelete, classify.TypeMerge}
	plannedDespite = []string{classify.SignalWriteWithoutWhere, classify.SignalTautologicalWhere}
)

// estimate asks the database what it expects of the statement, where that is
// switched on and provably runs nothing. Otherwise omitted says why not; both are
// empty where estimates are off. But for a preview the evidence of the decision comes
// before the server is asked.
func (g *Gate) estimate(ctx context.Context, s *submission) (plan *pgexec.Plan, omitted string, err error) {
	if !g.PlanEstimates {
		return nil, "", nil
	}
	switch { // a plan tells what is in the tables
	case s.runs():
	case s.result.Decision == policy.Block:
		return nil, "the policy blocks the statement", nil
	case s.Preview && s.Operator == "":
		return nil, "the statement needs an approval: an operator's preview shows its plan, and so does the record of the approval", nil
	}
	if omitted := notPlanned(s); omitted != "" {
		return nil, omitted, nil
	}
	reading, omitted := g.Database.BeginPlan(ctx, s.classification.Run != classify.RunReadFence, s.classification.Engine.ServerMajor)
	if reading == nil {
		return nil, omitted, nil
	}
	defer reading.Release()
	if !s.Preview {
		if err := g.recordDescription(ctx, s); err != nil {
			return nil, "", err
		}
	}
	text := s.statement().SQL
	names := classify.NamesOf(text)
	plan, omitted = reading.EstimatePlan(ctx, pgexec.PlanRequest{SQL: text, Relations: s.relations(), Words: names.Words, Operators: names.Operators})
	return plan, omitted, nil
}

// relations are all that the text names, once each.
func (s *submission) relations() []string {
	c := &s.classification
	return slices.Compact(slices.Sorted(slices.Values(slices.Concat(c.TablesRead, c.TablesWritten))))
}

// impact is what the person who approves is shown of what the statement reaches, with
// the estimate, as JSON; "" where neither could be had.
func (g *Gate) impact(ctx context.Context, s *submission) (string, error) {
	plan, unplanned, err := g.estimate(ctx, s)
	if err != nil {
		return "", err
	}
	named := s.classification
	if s.judged != nil && s.judged.Found != nil { // what it reaches besides is for the catalogues to say, and how
		named.TablesWritten = without(named.TablesWritten, s.judged.Found.TablesWritten)
		named.ColumnsWritten = without(named.ColumnsWritten, s.judged.Found.ColumnsWritten)
	}
	reach, omitted := g.reach(ctx, &named)
	tried := g.dryRuns.of(s.record.RequestDigest, g.Now(), time.Time{})
	if plan == nil && reach == nil && unplanned == "" && omitted == "" && tried == nil {
		return "", nil
	}
	if tried != nil {
		tried.Shown = nil // rows are in no log
	}
	said := struct {
		*pgexec.Plan
		PlanOmitted string `json:"plan_omitted,omitempty"`
		reached
		DryRun *DryRunOutcome `json:"dry_run,omitempty"`
	}{plan, unplanned, reachedOf(reach, omitted), tried}
	return string(appendValue(nil, said)), nil
}

// reached is how what a write reaches is told.
type reached struct {
	Tables        []pgexec.Reached `json:"tables"`
	TablesMore    int              `json:"tables_more,omitempty"`
	TablesOmitted string           `json:"tables_omitted,omitempty"`
}

func reachedOf(reach *pgexec.Reach, omitted string) reached {
	if reach == nil {
		return reached{TablesOmitted: omitted}
	}
	return reached{Tables: reach.Tables, TablesMore: reach.More}
}

func without(list, others []string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(one string) bool { return slices.Contains(others, one) })
}

// ReachedNow is what a write reaches as the catalogues say now, in the form of the tables in
// an approval's impact; nil where there is nothing to ask, or it is switched off. c are the
// facts of the approval: what its text alone does not tell was added by the catalogues.
func (g *Gate) ReachedNow(ctx context.Context, sql string, c *classify.Classification) []byte {
	if text, err := g.Classifier.Classify(ctx, sql); c.Engine.Catalog != "" && err == nil && len(text.TablesWritten) > 0 {
		c.TablesWritten, c.ColumnsWritten = text.TablesWritten, text.ColumnsWritten
	}
	reach, omitted := g.reach(ctx, c)
	if reach == nil && omitted == "" {
		return nil
	}
	return appendValue(nil, reachedOf(reach, omitted))
}

// reach asks the catalogues which tables a write reaches, besides those that it names;
// nothing of the statement but their names is sent. omitted says why they could not be
// asked; both are empty where there is nothing to ask, or it is switched off.
func (g *Gate) reach(ctx context.Context, c *classify.Classification) (reach *pgexec.Reach, omitted string) {
	if !g.PlanEstimates || len(c.TablesWritten) == 0 {
		return nil, ""
	}
	events := 0
	for queryType, event := range map[string]int{classify.TypeInsert: pgexec.TriggersInsert, classify.TypeDelete: pgexec.TriggersDelete,
		classify.TypeUpdate: pgexec.TriggersUpdate, classify.TypeTruncate: pgexec.TriggersTruncate} {
		if c.QueryType == queryType || slices.Contains(c.QueryTypes, queryType) {
			events |= event
		}
	}
	if events&pgexec.TriggersTruncate != 0 && slices.Contains(c.Flags, classify.FlagCascade) {
		events |= pgexec.TruncateCascades
	}
	reading, omitted := g.Database.BeginPlan(ctx, false, c.Engine.ServerMajor)
	if reading == nil {
		return nil, omitted
	}
	if reach = reading.Reach(ctx, c.TablesWritten, c.ColumnsWritten, events); reach == nil {
		return nil, "the database did not say in time"
	}
	return reach, ""
}

func article(queryType string) string {
	switch queryType[0] {
	case 'A', 'E', 'I', 'O', 'U':
		return "an"
	}
	return "a"
}

// notPlanned says what the text alone says against a plan.
func notPlanned(s *submission) string {
	c := &s.classification
	switch {
	case !slices.Contains(planned, c.QueryType) || slices.ContainsFunc(c.QueryTypes, func(t string) bool { return !slices.Contains(planned, t) }):
		return article(c.QueryType) + " " + c.QueryType + " has no plan that could be asked for"
	case slices.Contains(c.Flags, classify.FlagParameters) || s.execute != nil:
		return "the statement has parameters"
	}
	for _, signal := range c.RiskSignals {
		if !slices.Contains(plannedDespite, signal) {
			return "the statement has the risk signal " + signal
		}
	}
	if classify.NamesOf(s.statement().SQL).Unsure {
		return "a name in the text is written in an unusual way"
	}
	return ""
}
