package agentctl

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/agentctl/toolcheck"
	"writegate/commands/fault"
)

// A project whose tools answer nothing keeps no other from verifying its own.
func TestVerificationsAreSharedByProjects(t *testing.T) {
	arrived, release := make(chan struct{}, toolcheck.MaxRunning), make(chan struct{})
	silent := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { arrived <- struct{}{}; <-release }))
	t.Cleanup(silent.Close)
	at, err := url.Parse(silent.URL)
	require.NoError(t, err)
	w := begin(t)
	w.Tools, err = NewToolGuard("127.0.0.1/32", at.Port(), toolcheck.Secrets{}, nil)
	require.NoError(t, err)
	tool := func(project string, in *ToolInput) string {
		in.Name = "t"
		a, err := w.RegisterTool(t.Context(), key(project), in)
		require.NoError(t, err)
		return strings.TrimPrefix(a.Location, "/v1/tools/")
	}
	function := func(project string) string {
		return tool(project, &ToolInput{Type: toolcheck.TypeFunction, InputSchema: []byte(`{"type":"object"}`)})
	}
	verify := func(ctx context.Context, project, id string, timeout int) error {
		_, err := w.VerifyTool(ctx, key(project), id, &VerifyInput{TimeoutMS: &timeout})
		return err
	}

	var running sync.WaitGroup
	for range verificationsOfOne {
		id := tool("shop", &ToolInput{Type: toolcheck.TypeHTTP, Endpoint: &EndpointInput{URL: silent.URL}})
		running.Go(func() {
			if err := verify(context.Background(), "shop", id, 10_000); err != nil {
				t.Error(err)
			}
		})
	}
	for range verificationsOfOne {
		<-arrived
	}
	own := function("shop")
	err = verify(t.Context(), "shop", own, 500)
	require.Equal(t, fault.VerificationInProgress, fault.CodeOf(err))
	gone, leave := context.WithCancelCause(t.Context())
	leave(fmt.Errorf("the client left"))
	require.Equal(t, fault.AuditUnavailable, fault.CodeOf(verify(gone, "shop", own, 10_000)))
	require.NoError(t, verify(t.Context(), "other", function("other"), 10_000), "half of the places are not for one project")
	close(release)
	running.Wait()
	require.NoError(t, verify(t.Context(), "shop", own, 10_000))
	require.Empty(t, w.verifying.projects, "nothing is kept of who is done")
}
