package pgwire

import (
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
)

func TestARefusalSaysTheWayThereIsAsItsHint(t *testing.T) {
	f := failureOf(fault.New(fault.UnsupportedSQLShape, "not available through the gate: %s", "COPY").With("hint", "Use SELECT."))
	require.Equal(t, "0A000", f.response.Code)
	require.Equal(t, "Use SELECT.", f.response.Hint)
}
