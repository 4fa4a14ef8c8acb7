package gateapi

import (
	"net/url"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each type that is asked for is an iterator of the store.
func TestAnEventTypeIsAskedForOnce(t *testing.T) {
	f, err := auditFilter(url.Values{"event_type": slices.Repeat([]string{"startup", "", "shutdown"}, 1500)})
	require.NoError(t, err)
	require.Equal(t, []string{"startup", "shutdown"}, f.EventTypes)
}
