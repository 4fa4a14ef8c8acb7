package docs

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

func pageAsJSON(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("openapi.yaml")
	require.NoError(t, err)
	var document any
	require.NoError(t, yaml.Unmarshal(text, &document))
	out, err := json.Marshal(document)
	require.NoError(t, err)
	return string(out)
}

func TestTheDocumentIsThePage(t *testing.T) {
	text, err := OpenAPI()
	require.NoError(t, err)
	require.JSONEq(t, pageAsJSON(t), string(text))
}

func TestThePartUnderV1HasThosePathsAndWhatTheyUseAndNothingElse(t *testing.T) {
	whole, err := OpenAPI()
	require.NoError(t, err)
	text, err := OpenAPIV1()
	require.NoError(t, err)
	part, err := openapi3.NewLoader().LoadFromData(text)
	require.NoError(t, err, "every reference leads somewhere")
	require.NoError(t, part.Validate(t.Context()))

	var all, v1 map[string]any
	require.NoError(t, json.Unmarshal(whole, &all))
	require.NoError(t, json.Unmarshal(text, &v1))
	for path, item := range object(all, "paths") {
		if strings.HasPrefix(path, "/v1/") {
			require.Equal(t, item, object(v1, "paths")[path], path)
		} else {
			require.NotContains(t, object(v1, "paths"), path)
		}
	}
	require.Greater(t, len(object(v1, "paths")), 10)
	for kind, components := range object(v1, "components") {
		for name, component := range object(components) {
			require.Equal(t, object(all, "components", kind)[name], component)
			if kind != "securitySchemes" {
				require.Contains(t, string(text), `"#/components/`+kind+`/`+name+`"`, "nothing uses it")
			}
		}
	}
	require.Contains(t, part.Components.SecuritySchemes, "agentToken")
	require.Contains(t, part.Components.SecuritySchemes, "projectKey")
	require.Len(t, part.Components.SecuritySchemes, 2)
	for _, tag := range part.Tags {
		require.Contains(t, string(text), `"tags":["`+tag.Name+`"]`, "no operation has it")
	}
}
