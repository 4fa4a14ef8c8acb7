package main

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What a gate serves is what the tests hold it against, without any credential.
func TestAGateServesItsOwnDescription(t *testing.T) {
	t.Parallel()
	d, err := openAPI()
	require.NoError(t, err)
	g := startShop(t)
	page, err := json.Marshal(d.root)
	require.NoError(t, err)
	whole := g.get(t, "/openapi.json")
	require.Equal(t, http.StatusOK, whole.status)
	require.Equal(t, "application/json", whole.header.Get("Content-Type"))
	require.JSONEq(t, string(page), string(whole.body))

	part := g.get(t, "/v1/openapi.json")
	require.Equal(t, http.StatusOK, part.status)
	require.Equal(t, "1.0", part.header.Get("X-Api-Version"))
	paths := part.json(t)["paths"].(map[string]any)
	for path, item := range whole.json(t)["paths"].(map[string]any) {
		require.Equal(t, strings.HasPrefix(path, "/v1/"), paths[path] != nil, path)
		if paths[path] != nil {
			require.Equal(t, item, paths[path])
		}
	}
}
