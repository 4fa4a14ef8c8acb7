package policy

import (
	_ "embed"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
)

// exampleDocument is the example of the design page, byte for byte.
//
//go:embed testdata/core-write-gate@1.5.0.yaml
var exampleDocument []byte

// load is Load for a document that must be free of errors.
func load(t testing.TB, document string) *Policy {
	t.Helper()
	p, report := Load([]byte(document), Options{})
	require.NoError(t, report.Err())
	require.NotNil(t, p)
	return p
}

// classified holds the facts of statements that tests decide on, as the
// classification page gives them.
var classified = map[string]Facts{
	"DELETE FROM public.sessions": {
		QueryType: "DELETE", QueryTypes: []string{"DELETE"}, Class: "write", TablesWritten: []string{"public.sessions"},
		ColumnsWritten: []string{"public.sessions.*"}, RiskSignals: []string{"write_without_where"}, Where: []string{"none"},
	},
	"WITH d AS (DELETE FROM audit.log WHERE id = 1 RETURNING id) SELECT * FROM d": {
		QueryType: "SELECT", QueryTypes: []string{"DELETE", "SELECT"}, Class: "write", TablesWritten: []string{"audit.log"},
		ColumnsWritten: []string{"audit.log.*"}, RiskSignals: []string{"data_modifying_cte"}, Flags: []string{"cte", "returning"}, Where: []string{"key_equality"},
	},
}

// classifyBy looks a statement up; what is not there is refused as SQL that
// does not parse.
func classifyBy(known map[string]Facts) Classifier {
	return func(sql string) (Facts, error) {
		f, ok := known[sql]
		if !ok {
			return Facts{}, fault.New(fault.ParserError, "no such statement")
		}
		return f, nil
	}
}

func TestTheExampleOfTheDesignPage(t *testing.T) {
	p, report := Validate(exampleDocument, Options{FileName: "policies/core-write-gate@1.5.0.yaml"}, nil, classifyBy(classified))
	require.NoError(t, report.Err())
	require.Equal(t, "core-write-gate@1.5.0", p.Version())
	require.Equal(t, 8, p.RuleCount())
	require.Equal(t, 2, report.Tests.Passed)
	require.Equal(t, report.Corpus.Cases, report.Corpus.Passed)
	require.Equal(t, []string{"no-destructive-ddl", "ddl-needs-approval", "agents-and-money", "migrator-do-blocks"}, report.Coverage.Uncovered)
	require.Equal(t, RuleCoverage{RuleID: "app-dml", Matched: 1, Cases: []string{"delete without a filter is blocked"}}, report.Coverage.Rules[7])

	var codes []string
	for _, w := range report.Warnings {
		codes = append(codes, w.Code)
	}
	require.ElementsMatch(t, []string{codeFloorLifted, codeNotCovered, codeNotCovered, codeNotCovered, codeNotCovered, codeNeverDecisive}, codes)
}

func TestTheExampleDecidesTheDecisionRecordOfTheDesignPage(t *testing.T) {
	p := load(t, string(exampleDocument))
	r := p.Decide(&Facts{
		QueryType: "UPDATE", QueryTypes: []string{"UPDATE"}, Class: "write", TablesWritten: []string{"billing.invoices"},
		ColumnsWritten: []string{"billing.invoices.paid"}, Where: []string{"key_equality"},
		Actor: "bot", App: "agent-billing", Env: "prod", AgentID: "agt_1", Mode: ModeEnforce,
	})
	rows := int64(100)
	require.Equal(t, Result{
		Decision: RequireApproval, ReasonCode: "agent_money_write", RuleID: "agents-and-money", Layer: LayerPolicy,
		Message: textApprovalByRule, Matched: []string{"agents-and-money", "app-dml"},
		Approval: &ApprovalTerms{TTLSeconds: 900, MaxRows: &rows},
	}, r)
}
