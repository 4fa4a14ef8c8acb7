package policy_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/sqlgate/classify"
	"writegate/sqlgate/policy"
)

// classifier is the real one: the embedded documents are judged as a gate
// judges them.
func classifier(t testing.TB) policy.Classifier {
	t.Helper()
	c, err := classify.New(classify.Config{SearchPath: "public", ServerMajor: 16})
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return func(sql string) (policy.Facts, error) {
		r, err := c.Classify(context.Background(), sql)
		if err != nil {
			return policy.Facts{}, err
		}
		return policy.Facts{
			QueryType: r.QueryType, QueryTypes: r.QueryTypes, Class: r.Class, SafeRead: r.SafeRead,
			TablesRead: r.TablesRead, TablesWritten: r.TablesWritten, ColumnsWritten: r.ColumnsWritten, Functions: r.Functions,
			RiskSignals: r.RiskSignals, Flags: r.Flags, Where: r.Where, Fingerprint: r.Fingerprint,
		}, nil
	}
}

func TestTheEmbeddedDocumentsHoldUnderTheRealClassifier(t *testing.T) {
	classify := classifier(t)
	for name, document := range map[string][]byte{"starting": policy.Starting(""), "sample": policy.Sample()} {
		t.Run(name, func(t *testing.T) {
			_, report := policy.Validate(document, policy.Options{}, nil, classify)
			require.NoError(t, report.Err())
			require.Empty(t, report.Warnings)
			require.Equal(t, report.Corpus.Cases, report.Corpus.Passed)
		})
	}
}

func TestEveryCaseOfTheBaselineRaisesAFloorSignal(t *testing.T) {
	classify := classifier(t)
	p, report := policy.Load(policy.Starting(""), policy.Options{})
	require.NoError(t, report.Err())
	cases, _ := policy.Baseline()
	for _, c := range cases {
		f, err := classify(c.SQL)
		if !assertNoError(t, err, c.SQL) {
			continue
		}
		r := p.Decide(&f)
		if len(r.Floor) == 0 {
			t.Errorf("%s: %s raises %v", c.Name, c.SQL, f.RiskSignals)
		}
	}
}

func assertNoError(t *testing.T, err error, sql string) bool {
	t.Helper()
	if err != nil {
		t.Errorf("%s is refused, so it shows nothing: %v", sql, err)
	}
	return err == nil
}
