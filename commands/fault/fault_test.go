package fault

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func TestWithAndBecauseLeaveTheOriginalUntouched(t *testing.T) {
	base := New(NotFound, "No such thing.")
	changed := base.With("id", 7).WithBeside("execution_state", "unknown").Because(io.EOF)

	require.Nil(t, base.Details)
	require.Nil(t, base.Beside)
	require.Equal(t, map[string]any{"execution_state": "unknown"}, changed.Beside)
	require.NoError(t, errors.Unwrap(base))
	require.Equal(t, map[string]any{"id": 7}, changed.Details)
	require.ErrorIs(t, changed, io.EOF)
}

func TestOfHidesTheCauseOfAnUncodedError(t *testing.T) {
	f := Of(errors.New("password=hunter2"))
	require.Equal(t, Internal, f.Code)
	require.NotContains(t, f.Message, "hunter2")
	require.Contains(t, f.Error(), "hunter2", "the operational log needs the cause")
}

func TestAFaultIsFoundThroughWrapping(t *testing.T) {
	err := fmt.Errorf("while reading: %w", New(OversizedSQL, "%d bytes", 9))
	require.Equal(t, OversizedSQL, CodeOf(err))
	require.Equal(t, OversizedSQL, Of(err).Code)
	require.ErrorIs(t, err, New(OversizedSQL, ""))
	require.NotErrorIs(t, err, New(OversizedRequest, ""))
	require.Empty(t, CodeOf(io.EOF))
}

// What a client sent is quoted, and not sent back and logged in full.
func TestQuotedTextsAreCut(t *testing.T) {
	long := strings.Repeat("ä", 100_000)
	f := New(PolicyNotFound, "There is no policy version %s of %d.", long, 7).With("policy_version", long).With("list", []string{"a"})
	require.Less(t, len(f.Message), 600)
	require.True(t, utf8.ValidString(f.Message))
	require.Contains(t, f.Message, "ä… of 7.")
	require.Less(t, len(f.Details["policy_version"].(string)), 4200)
	require.Equal(t, []string{"a"}, f.Details["list"])
	require.Equal(t, "a short one", New(PolicyNotFound, "%s", "a short one").Message)
}
