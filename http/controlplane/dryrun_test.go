package controlplane

import (
	"encoding/json"
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
