package toolcheck_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/agentctl/toolcheck"
)

// dear are schemas that the library would read for seconds, minutes or hours:
// it holds each part against all others, path by path.
var dear = map[string]string{
	"many parts":            `{"allOf":[` + strings.Repeat("{},", 20_000) + `{}]}`,
	"many parts, long name": `{"properties":{"` + strings.Repeat("k", 30_000) + `":{"allOf":[` + strings.Repeat("{},", 3_000) + `{}]}}}`,
	"memory":                `{"properties":{"` + strings.Repeat("k", 20_000) + `":{"properties":{` + members(4_000) + `}}}}`,
}

func members(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,"%d":{}`, i)
	}
	return b.String()[1:]
}

// schemaProcesses are those of this process that check schemas.
func schemaProcesses(t *testing.T) (pids []int) {
	t.Helper()
	names, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	for _, name := range names {
		line, err := os.ReadFile(name)
		stat, err2 := os.ReadFile(filepath.Join(filepath.Dir(name), "stat"))
		_, behind, found := strings.Cut(string(stat), ") ")
		if err != nil || err2 != nil || !found || !bytes.HasPrefix(line, []byte("gate-schema\x00")) || strings.Fields(behind)[1] != strconv.Itoa(os.Getpid()) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		require.NoError(t, err)
		pids = append(pids, pid)
	}
	return pids
}

// The work on a text ends with the refusal: nothing goes on behind it.
func TestASchemaThatIsDearToReadIsRefusedAndItsWorkEnds(t *testing.T) {
	for name, text := range dear {
		t.Run(name, func(t *testing.T) {
			checker := newLab(t).checker()
			require.Empty(t, schemaProcesses(t), "none is started before a schema comes")
			require.Empty(t, check(t, checker, `{}`))
			first := schemaProcesses(t)
			require.Len(t, first, toolcheck.MaxSchemas)
			require.LessOrEqual(t, len(text), toolcheck.MaxSchemaBytes)
			require.Contains(t, check(t, checker, text), "more time or memory")
			require.ErrorIs(t, syscall.Kill(first[0], 0), syscall.ESRCH, "the process that worked on it")
			require.Empty(t, check(t, checker, inputSchema), "the next text has a process again")
			checker.Close()
			require.Empty(t, schemaProcesses(t))
			_, err := checker.CheckSchema(t.Context(), "", []byte(`{}`))
			require.Error(t, err)
		})
	}
}

func TestTheSchemasOfAFunctionHaveTheSameBounds(t *testing.T) {
	checker := newLab(t).checker()
	target := toolcheck.Target{Type: toolcheck.TypeFunction, InputSchema: []byte(dear["many parts"])}
	result, err := checker.Verify(t.Context(), "tool_1", target, toolcheck.MaxTimeout)
	require.NoError(t, err)
	require.Equal(t, toolcheck.SchemaMismatch, result.Code)
}

func TestAnOrdinarySchemaMayBeAsLargeAsItMayBe(t *testing.T) {
	var b strings.Builder
	b.WriteString(`{"type":"object","properties":{"first":{}`)
	for i := 0; b.Len() < toolcheck.MaxSchemaBytes-200; i++ {
		fmt.Fprintf(&b, `,"property_%d":{"type":"string","description":"what this property of a tool is for, in a sentence"}`, i)
	}
	b.WriteString(`}}`)
	require.Empty(t, check(t, newLab(t).checker(), b.String()))
}

// A number is computed to what its exponent says, and more than once.
func TestTheNumbersOfASchemaAreBounded(t *testing.T) {
	checker := newLab(t).checker()
	var enum []string
	for i := range 20 {
		enum = append(enum, fmt.Sprintf("1e%d", 1_000_000-i))
	}
	for text, good := range map[string]bool{
		`{"maximum":1.7976931348623157e308,"minimum":-9223372036854775808,"multipleOf":1E-2}`: true,
		`{"maximum":1e1000,"minimum":1e-1000}`:                                                true,
		`{"description":"1e1000000","enum":["1e1000000"]}`:                                    true,
		`{"enum":[` + strings.Repeat("9", 100) + `]}`:                                         true,
		`{"enum":[` + strings.Repeat("9", 101) + `]}`:                                         false,
		`{"maximum":1e1001}`:                    false,
		`{"maximum":1E+1001}`:                   false,
		`{"minimum":1e-1001}`:                   false,
		`{"minimum":1e1000000}`:                 false,
		`{"minimum":1e2000000}`:                 false,
		`{"multipleOf":1e2000000}`:              false,
		`{"multipleOf":1e99999999999999999999}`: false,
		`{"default":{"a":[1e2000000]}}`:         false,
		`{"$schema":"http://json-schema.org/draft-04/schema#","allOf":[{"enum":[` + strings.Join(enum, ",") + `]}]}`: false,
		`{"$schema":"http://json-schema.org/draft-04/schema#","enum":[` + strings.Join(enum, ",") + `,1e2000000]}`:   false,
	} {
		why := check(t, checker, text)
		require.Equal(t, good, why == "", "%s: %s", text, why)
		if !good {
			require.Contains(t, why, "a number of a schema")
		}
	}
}
