package toolcheck_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/agentctl/toolcheck"
	"writegate/fixtures/loopback"
)

func TestSecretsComeFromTheirVariablesAlone(t *testing.T) {
	secrets, err := toolcheck.ParseSecrets([]string{
		"GATE_TOOL_SECRET_B=two", "GATE_TOOL_SECRET_B_HOST=b.example:8443", "GATE_TOOL_SECRET_A_1=one=1", "GATE_TOOL_SECRET_A_1_HOST=[2606:2800::1]",
		"GATE_OPERATOR_TOKEN=x", "GATE_TOOL_SECRETS=x", "HOME=/",
	})
	require.NoError(t, err)
	require.Equal(t, []string{"A_1", "B"}, secrets.Names())
	for _, text := range []string{fmt.Sprint(secrets), fmt.Sprintf("%+v", secrets), fmt.Sprintf("%#v", secrets)} {
		require.Equal(t, "2 secrets", text)
	}
}

func TestSecretsThatWouldNeverBeUsedAreRefused(t *testing.T) {
	for says, environ := range map[string][]string{
		"has to name the one host":     {"GATE_TOOL_SECRET_A=x"},
		"there is no GATE_TOOL_SECRET": {"GATE_TOOL_SECRET_A_HOST=a.example"},
		"the value is empty":           {"GATE_TOOL_SECRET_A=", "GATE_TOOL_SECRET_A_HOST=a.example"},
		"no header can carry":          {"GATE_TOOL_SECRET_A=x\r\nHost: y", "GATE_TOOL_SECRET_A_HOST=a.example"},
		"is no host":                   {"GATE_TOOL_SECRET_A=x", "GATE_TOOL_SECRET_A_HOST=https://a.example/"},
		"a secret's name is":           {"GATE_TOOL_SECRET_a=x", "GATE_TOOL_SECRET_a_HOST=a.example"},
		"GATE_TOOL_SECRET_: a secret":  {"GATE_TOOL_SECRET_=x"},
	} {
		_, err := toolcheck.ParseSecrets(environ)
		require.ErrorContains(t, err, says)
		require.NotContains(t, err.Error(), "Host: y")
	}
	require.False(t, toolcheck.ValidSecretName("A_HOST"))
	require.False(t, toolcheck.ValidSecretName(strings.Repeat("A", 49)))
	require.False(t, toolcheck.ValidSecretName("../A"))
	require.True(t, toolcheck.ValidSecretName("RUNSQL_2"))
}

func TestASecretWithAPortIsForThatPort(t *testing.T) {
	l := newLab(t)
	port, _ := l.Serve(loopback.Public, true, func(_ http.ResponseWriter, _ *http.Request) {})
	other, _ := l.Serve(loopback.Public, true, func(_ http.ResponseWriter, _ *http.Request) {})
	checker := l.checkerWith("GATE_TOOL_SECRET_RUNSQL="+secretValue, "GATE_TOOL_SECRET_RUNSQL_HOST=Tools.Test:"+port)
	for url, code := range map[string]string{"https://tools.test:" + port: "", "https://TOOLS.test:" + port: "", "https://tools.test:" + other: "secret_unavailable"} {
		result, err := checker.Verify(t.Context(), "tool_1", toolcheck.Target{Type: toolcheck.TypeHTTP, URL: url, Auth: toolcheck.Auth{Type: "bearer", Secret: "RUNSQL"}}, toolcheck.MaxTimeout)
		require.NoError(t, err)
		require.EqualValues(t, code, result.Code, "%+v", result)
	}
}
