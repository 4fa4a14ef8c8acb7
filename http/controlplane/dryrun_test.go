package controlplane

import (
	"encoding/json"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestADryRunIsSaidInWords(t *testing.T) {
	const outcome = `"dry_run":{"at":"2026-05-01T10:04:11.5Z","execution_id":"exe_1","rows_changed":37,"max_rows":37,"tables":[{"table":"public.orders","inserted":0,"updated":0,"deleted":30,"cascade":false},{"table":"public.items","inserted":1,"updated":0,"deleted":6,"cascade":true}]}`
	var a approval
	require.NoError(t, json.Unmarshal([]byte(`{"approval_id":"apr_1","impact":{"tables":null,`+outcome+`}}`), &a))
	require.Nil(t, a.Impact, "of what PostgreSQL expects nothing is known")
	require.Equal(t, "apr_1", a.ApprovalID)
	require.Equal(t, "would change 37 rows in 2 tables, at 10:04:11", a.DryRun.Words())
	require.Equal(t, []string{"public.orders: 30 deleted", "public.items: 1 inserted, 6 deleted, by a foreign key"}, a.DryRun.Counts())
	var b approval
	require.NoError(t, json.Unmarshal([]byte(`{"impact":{"node":"Delete","rows":3,"tables":[],`+outcome+`}}`), &b))
	require.Equal(t, int64(3), b.Impact.Rows)
	require.NotNil(t, b.DryRun)
	require.NoError(t, json.Unmarshal([]byte(`{"impact":null}`), &b))
}

func TestARowOfADryRunIsReadAsItIs(t *testing.T) {
	for row, want := range map[string]string{
		`{"a":"\u003cb\u003e \u0026 \\u003c \\\u003c \" \n"}`: `{"a":"<b> & \\u003c \\< \" \n"}`,
		"null": "a row that is too long to be shown",
	} {
		require.Equal(t, want, triedRow(json.RawMessage(row)))
	}
}

// What was tried says more of a limit than what PostgreSQL expects.
func TestADryRunSaysThatALimitIsPassed(t *testing.T) {
	for limit, want := range map[string]string{"36": "When it was tried, at 10:04:11, it changed 37 rows, and over 36 nothing is changed.", "37": ""} {
		var a approval
		require.NoError(t, json.Unmarshal([]byte(`{"max_rows":`+limit+`,"estimate_exceeds_max_rows":`+strconv.FormatBool(want != "")+`,"classification":{"query_type":"DELETE","class":"write","where":["key_equality"]},
			"impact":{"node":"Delete","rows":1,"tables":[],"dry_run":{"at":"2026-05-01T10:04:11.5Z","rows_changed":37,"max_rows":37,"tables":[]}}}`), &a))
		words := ""
		for _, m := range expected(&approvalRow{approval: a}) {
			words += m.Words
		}
		require.Equal(t, want, words)
	}
}
