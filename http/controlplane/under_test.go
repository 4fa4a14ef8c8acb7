package controlplane

import (
	"net/http"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// What an approved statement runs under is not taken for a parameter of its, nor a
// parameter for that.
func TestWhatAStatementRunsUnderIsNoParameter(t *testing.T) {
	for _, under := range []string{"TimeZone = 'Asia/Tokyo'", `types of the parameters: "char", "int4"`, "12 more before these in its transaction", "before it in its transaction: SELECT set_config('app.tenant', 'a', true)",
		"before it in its transaction, under TimeZone = 'UTC', with the parameters 'a': SELECT set_config('app.tenant', $1, true)"} {
		require.True(t, runsUnder.MatchString(under), under)
	}
	for _, parameter := range []string{"7::int4", "'TimeZone = x'::text", "'before it in its transaction: x'", "NULL", "12 more", "no constant: the binary form of money, bytes 00"} {
		require.False(t, runsUnder.MatchString(parameter), parameter)
	}
}

// Beside the claims stands who proved to be somebody.
func TestTheCardOfAnApprovalSaysWhoIsProven(t *testing.T) {
	p := startPlane(t, nil)
	p.login(t)
	_, body, _ := p.do(t, http.MethodGet, "/approvals/apr_mock-1", "")
	require.Contains(t, body, "<dt>Proven</dt><dd>user=mock ")
}

// What stands beside a statement is read whole: only a line of a list ends where there is
// no more room.
func TestTheCardOfAnApprovalCutsNoLine(t *testing.T) {
	style, err := os.ReadFile("assets/style.css")
	require.NoError(t, err)
	require.Contains(t, string(style), "\n.facts .line { white-space: normal; overflow: visible; }\n")
}
