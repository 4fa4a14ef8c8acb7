package sqlgate

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A gate of before kept an error_id of its own for what it left behind when it
// stopped; an answer has one, that of its occurrence.
func TestAKeptAnswerHasOneErrorID(t *testing.T) {
	const old = `{"error_code":"db_query_timeout","message":"it has an \"error_id\"","error_id":"err_old","execution_state":"unknown"}`
	for _, body := range []string{old, strings.Replace(old, `"error_id":"err_old",`, "", 1)} {
		for _, outcome := range []string{"", "aborted"} {
			text := string((&KeptAnswer{Body: []byte(body), Outcome: outcome, ErrorID: "err_new"}).appendJSON(nil))
			var got map[string]any
			require.NoError(t, json.Unmarshal([]byte(text), &got), text)
			require.Equal(t, 1, strings.Count(text, `"error_id":`), text)
			require.Equal(t, []any{"err_new", true, "unknown", `it has an "error_id"`}, []any{got["error_id"], got["replayed"], got["execution_state"], got["message"]})
			if outcome != "" {
				require.Equal(t, map[string]any{"outcome": outcome}, got["details"])
			}
		}
	}
	// What a result calls its columns is its own.
	rows := `{"decision":"ALLOW","columns":[{"name":"error_id"}],"rows":[{"error_id":7}]}`
	require.Equal(t, rows[:len(rows)-1]+`,"replayed":true}`, string((&KeptAnswer{Body: []byte(rows)}).appendJSON(nil)))
}
