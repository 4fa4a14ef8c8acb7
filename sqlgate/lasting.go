package sqlgate

import (
	"context"
	"strings"

	"writegate/commands/fault"
	"writegate/projections"
	"writegate/sqlgate/classify"
	"writegate/sqlgate/pgexec"
)

// outlasts reports whether the statement names something that no rollback undoes.
func (s *submission) outlasts() bool {
	c := &s.classification
	return classify.OutlastsRollback(c.QueryTypes, c.Functions, c.RiskSignals)
}

// partly is the end of a write that names something that no rollback undoes, or may have
// written to foreign tables: that its transaction was undone does not say that nothing was
// applied.
func partly(end pgexec.Result, f *fault.Fault) (pgexec.Result, *fault.Fault) {
	switch {
	case end.State == pgexec.Failure && end.Outcome == pgexec.OutcomeAborted:
		end.Outcome = pgexec.OutcomePartialPossible
		f = f.With("outcome", end.Outcome)
	case end.Settled != nil && end.Settled.Outcome == pgexec.OutcomeAborted:
		settled := *end.Settled
		settled.Outcome = pgexec.OutcomeNotKnowable
		end.Settled = &settled
		f = f.With("outcome", settled.Outcome)
	default:
		return end, f
	}
	if f.Details["retryable"] != nil {
		f = f.With("retryable", false)
	}
	what := " It calls something that no rollback undoes, and the effect of that may stand"
	if end.Elsewhere {
		what = " The database has foreign tables, or had some, whose servers commit by themselves, so a part of it may stand there"
	}
	f.Message = notUndone.Replace(f.Message) + what + ": look at the database before you send it again."
	return end, f
}

// notUndone takes back what holds for what is inside of the transaction alone.
var notUndone = strings.NewReplacer(
	"; nothing was applied", "", "Nothing of it was applied; send it again in less time.", "", "Nothing was applied", "Its transaction was rolled back",
	"It was not applied; send it again.", "Its transaction was not committed.", pgexec.AdviceRetry, "Another statement was in its way.")

// outlasted is outlasts of an execution that the log knows: of its decision. One whose
// decision is not found is held to.
func (g *Gate) outlasted(ctx context.Context, x *projections.Execution) (bool, error) {
	facts, found, err := g.Commands.DecidedFacts(ctx, x.ID)
	return !found || classify.OutlastsRollback(facts.QueryTypes, facts.Functions, facts.RiskSignals), err
}
