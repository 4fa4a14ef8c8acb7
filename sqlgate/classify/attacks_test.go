package classify

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

// An attack is one line of the attack corpus (design/classification.md part 11).
type attack struct {
	ID           string `json:"id"`
	SQL          string `json:"sql"`
	Must         string `json:"must"`
	NeedsCatalog bool   `json:"needs_catalog"`
}

func attacks(t testing.TB) []attack {
	var all []attack
	for _, line := range corpusLines(t, "attacks.jsonl", 0) {
		var a attack
		require.NoError(t, json.Unmarshal([]byte(line), &a))
		all = append(all, a)
	}
	require.Greater(t, len(all), 200)
	return all
}

// harmlessButRefused lists every harmless statement of the corpus that is no
// safe read, with the reason.
var harmlessButRefused = map[string]string{
	"C136": "txid_current assigns a transaction id, which a reader's transaction must not",
	"E230": "SET changes the session, which is shared; a time zone too changes what later texts mean",
}

func TestNoAttackIsASafeRead(t *testing.T) {
	tb := newTestTables(t, Config{})
	for _, a := range attacks(t) {
		if a.Must != "not_allow_by_default" || a.NeedsCatalog {
			continue
		}
		c, f := classifyText(tb, a.SQL)
		require.False(t, f == nil && c.SafeRead, "%s: %s", a.ID, a.SQL)
	}
}

func TestHarmlessStatementsOfTheCorpusAreSafeReads(t *testing.T) {
	tb := newTestTables(t, Config{})
	for _, a := range attacks(t) {
		if a.Must != "may_allow" {
			continue
		}
		c, f := classifyText(tb, a.SQL)
		reason, known := harmlessButRefused[a.ID]
		require.Equal(t, known, f != nil || !c.SafeRead, "%s: %s: %v %v %s", a.ID, a.SQL, f, c.RiskSignals, reason)
	}
}
