package gateapi

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
	"writegate/eventlog"
)

// A log that was closed under an export is a service that stops, and no fault of its own.
func TestAnExportFromALogThatClosesIsUnavailable(t *testing.T) {
	require.Equal(t, fault.AuditUnavailable, fault.CodeOf(exportFault(fmt.Errorf("reading: %w", eventlog.ErrClosed))))
}
