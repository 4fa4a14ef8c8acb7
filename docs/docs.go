// Package docs carries what of these pages the binary needs: the description of the HTTP API, so
// that a running gate answers with exactly the document of its version, and the script of the
// database's roles.
//
// openapi.yaml is what people read and change. Programs get it as JSON, as it
// is, and once more with the paths under /v1 alone and nothing that those do
// not use.
package docs

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"
)

//go:embed openapi.yaml
var page []byte

// DatabaseRole is database-role.sql, which makes the roles of the gate.
//
//go:embed database-role.sql
var DatabaseRole string

// OpenAPI is openapi.yaml as JSON.
var OpenAPI = sync.OnceValues(func() ([]byte, error) {
	document, err := parse()
	if err != nil {
		return nil, err
	}
	return json.Marshal(document)
})

// OpenAPIV1 is the part of openapi.yaml that is about the API under /v1.
var OpenAPIV1 = sync.OnceValues(func() ([]byte, error) {
	document, err := parse()
	if err != nil {
		return nil, err
	}
	return json.Marshal(under(document, "/v1/"))
})

func parse() (map[string]any, error) {
	var document map[string]any
	if err := yaml.Unmarshal(page, &document); err != nil {
		return nil, fmt.Errorf("docs: openapi.yaml: %w", err)
	}
	return document, nil
}

// under keeps the paths with a prefix, and of components and tags those that
// they name.
func under(document map[string]any, prefix string) map[string]any {
	part := maps.Clone(document)
	paths := maps.Clone(object(document, "paths"))
	maps.DeleteFunc(paths, func(path string, _ any) bool { return !strings.HasPrefix(path, prefix) })
	part["paths"] = paths
	w := walk{document: document, names: map[[2]string]bool{}, tags: map[string]bool{}}
	w.take(paths)
	components := map[string]any{}
	for name := range w.names {
		if object(components, name[0]) == nil {
			components[name[0]] = map[string]any{}
		}
		object(components, name[0])[name[1]] = object(document, "components", name[0])[name[1]]
	}
	part["components"] = components
	part["tags"] = w.tagged(document["tags"])
	return part
}

func object(value any, path ...string) map[string]any {
	for _, name := range path {
		m, _ := value.(map[string]any)
		value = m[name]
	}
	m, _ := value.(map[string]any)
	return m
}

// A walk gathers the components and tags that a part of the document names.
type walk struct {
	document map[string]any
	names    map[[2]string]bool // kind and name
	tags     map[string]bool
}

func (w *walk) take(value any) {
	switch v := value.(type) {
	case []any:
		for _, item := range v {
			w.take(item)
		}
	case map[string]any:
		if ref, ok := v["$ref"].(string); ok {
			w.component(strings.TrimPrefix(ref, "#/components/"))
		}
		if _, operation := v["operationId"]; operation {
			w.operation(v)
		}
		for _, item := range v {
			w.take(item)
		}
	}
}

func (w *walk) component(at string) {
	kind, name, _ := strings.Cut(at, "/")
	if key := [2]string{kind, name}; !w.names[key] {
		w.names[key] = true
		w.take(object(w.document, "components", kind)[name])
	}
}

// operation notes what an operation names without a reference.
func (w *walk) operation(o map[string]any) {
	tags, _ := o["tags"].([]any)
	for _, tag := range tags {
		name, _ := tag.(string)
		w.tags[name] = true
	}
	security, _ := o["security"].([]any)
	for _, scheme := range security {
		for name := range object(scheme) {
			w.component("securitySchemes/" + name)
		}
	}
}

func (w *walk) tagged(tags any) []any {
	var kept []any
	list, _ := tags.([]any)
	for _, tag := range list {
		if name, _ := object(tag)["name"].(string); w.tags[name] {
			kept = append(kept, tag)
		}
	}
	return kept
}
