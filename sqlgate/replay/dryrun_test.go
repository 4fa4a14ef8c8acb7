package replay

import (
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
)

func TestADryRunThatNoRuleTookIsADifference(t *testing.T) {
	const takes = `{ id: updates, decision: REQUIRE_APPROVAL, reason_code: ask_first, match: { query_types: [UPDATE] }, dry_run: allow }`
	p := load(t, rules("1.0.0", blockDeletes, takes, allowWrites))
	for name, c := range map[string]struct {
		kind   string
		terms  *event.DryRunTerms
		run    string
		path   string
		fields string
	}{
		"as it is":                        {"UPDATE", &event.DryRunTerms{}, event.RunDryRun, event.PathDryRun, ""},
		"with rows that the rule has not": {"UPDATE", &event.DryRunTerms{Rows: true}, event.RunDryRun, event.PathDryRun, "dry_run: recorded with rows, recomputed allow"},
		"of a rule that takes none":       {"INSERT", &event.DryRunTerms{}, event.RunDryRun, event.PathDryRun, "dry_run: recorded allow, recomputed none"},
		"of none, and dispatched":         {"INSERT", nil, event.RunDryRun, event.PathDryRun, "by the path dry_run, and its decision says ALLOW, run dry_run, dry run none"},
		"of a BLOCK":                      {"DELETE", nil, event.RunDryRun, event.PathDryRun, "its decision says BLOCK"},
		"that ran for good":               {"UPDATE", &event.DryRunTerms{}, event.RunDryRun, event.PathTx, "by the path tx"},
		"of a statement that was none":    {"INSERT", nil, "transaction", event.PathDryRun, "run transaction"},
	} {
		var s story
		at := s.starts(engine)
		s.brings(p.Document())
		seq := s.decides(p, write(c.kind), at)
		decision := &s.events[seq-1].Draft
		var recorded event.DecisionRecorded
		require.NoError(t, decision.Parse(&recorded))
		recorded.Run, recorded.DryRun = c.run, c.terms
		decision.Payload = recorded.Fields()
		s.add(event.New(moment, event.Context{RequestID: "req", ExecutionID: "exe_1"}, &event.ExecutionDispatched{Path: c.path}))
		result, found := verify(&s, 0, 0)
		if c.fields == "" {
			require.Empty(t, found, name)
			continue
		}
		require.Positive(t, result.Differences, name)
		require.Contains(t, found[len(found)-1].Fields[0], c.fields, name)
	}
}
