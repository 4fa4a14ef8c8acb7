package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"writegate/commands/fault"
	"writegate/eventlog/checkpoint"
	"writegate/http/agentapi"
	"writegate/http/gateapi"
	"writegate/http/httpd"
	"writegate/http/mcpapi"
)

// openAPIPath is the document from the folder of this test.
var openAPIPath = filepath.Join("..", "..", "docs", "openapi.yaml")

// A contractDoc is docs/openapi.yaml as the harness holds it against real
// requests and answers. Its schemas are JSON Schema 2020-12, as OpenAPI 3.1 has
// it; each is compiled once and shared by all tests.
type contractDoc struct {
	root     map[string]any
	compiler *jsonschema.Compiler

	mu      sync.Mutex
	schemas map[string]*jsonschema.Schema // by JSON pointer
}

// openAPI reads the document once.
var openAPI = sync.OnceValues(func() (*contractDoc, error) {
	text, err := os.ReadFile(openAPIPath)
	if err != nil {
		return nil, err
	}
	var fromYAML any
	if err := yaml.Unmarshal(text, &fromYAML); err != nil {
		return nil, err
	}
	asJSON, err := json.Marshal(fromYAML)
	if err != nil {
		return nil, err
	}
	root, err := jsonschema.UnmarshalJSON(strings.NewReader(string(asJSON)))
	if err != nil {
		return nil, err
	}
	d := &contractDoc{root: root.(map[string]any), compiler: jsonschema.NewCompiler(), schemas: map[string]*jsonschema.Schema{}}
	d.compiler.DefaultDraft(jsonschema.Draft2020)
	d.compiler.AssertFormat()
	return d, d.compiler.AddResource("openapi.json", root)
})

// at walks to a place of the document, through references; pointer is where it
// really stands.
func (d *contractDoc) at(path ...string) (value any, pointer string) {
	value = any(d.root)
	for i := 0; i <= len(path); i++ {
		object, _ := value.(map[string]any)
		if ref, ok := object["$ref"].(string); ok {
			var names []string
			for part := range strings.SplitSeq(strings.TrimPrefix(ref, "#/"), "/") {
				names = append(names, unescapePointer.Replace(part))
			}
			return d.at(append(names, path[i:]...)...)
		}
		if i == len(path) {
			break
		}
		if list, ok := value.([]any); ok {
			n, err := strconv.Atoi(path[i])
			if err != nil || n >= len(list) {
				return nil, ""
			}
			value = list[n]
		} else {
			value = object[path[i]]
		}
		pointer += "/" + escapePointer.Replace(path[i])
	}
	return value, pointer
}

var (
	escapePointer   = strings.NewReplacer("~", "~0", "/", "~1")
	unescapePointer = strings.NewReplacer("~1", "/", "~0", "~")
)

// under is a place below another one.
func under(at []string, names ...string) []string { return slices.Concat(at, names) }

func (d *contractDoc) object(path ...string) map[string]any {
	value, _ := d.at(path...)
	object, _ := value.(map[string]any)
	return object
}

func (d *contractDoc) schema(path ...string) (*jsonschema.Schema, error) {
	_, pointer := d.at(path...)
	d.mu.Lock()
	defer d.mu.Unlock()
	if s, ok := d.schemas[pointer]; ok {
		return s, nil
	}
	s, err := d.compiler.Compile("openapi.json#" + pointer)
	if err == nil {
		d.schemas[pointer] = s
	}
	return s, err
}

// check validates JSON against the schema at path.
func (d *contractDoc) check(body []byte, path ...string) error {
	value, err := jsonschema.UnmarshalJSON(strings.NewReader(string(body)))
	if err != nil {
		return err
	}
	return d.checkValue(value, path...)
}

func (d *contractDoc) checkValue(value any, path ...string) error {
	s, err := d.schema(path...)
	if err != nil {
		return err
	}
	return s.Validate(value)
}

// route finds the path of the document that serves a request: one that has the
// method wins, then one without parameters.
func (d *contractDoc) route(method, urlPath string) (template string, found bool) {
	best := -1
	for candidate := range d.object("paths") {
		if !matches(strings.Split(candidate, "/"), strings.Split(urlPath, "/")) {
			continue
		}
		rank := 0
		if d.object("paths", candidate, method) != nil {
			rank += 2
		}
		if candidate == urlPath {
			rank++
		}
		if rank > best {
			template, best = candidate, rank
		}
	}
	return template, best >= 0
}

func matches(names, parts []string) bool {
	if len(names) != len(parts) {
		return false
	}
	for i, name := range names {
		if name != parts[i] && (!strings.HasPrefix(name, "{") || parts[i] == "") {
			return false
		}
	}
	return true
}

// holds checks one exchange: the answer always, the request where it was
// accepted, so that the document may not refuse what the gate takes.
func (d *contractDoc) holds(request *http.Request, body []byte, r reply) error {
	for code, status := range refusedAnywhere {
		if strings.Contains(string(r.body), `"error_code":"`+code+`"`) {
			return d.plainError(r, status, code)
		}
	}
	if err := d.holdsAnswer(request, r); err != nil {
		return fmt.Errorf("docs/openapi.yaml does not hold for the answer to %s %s: %d %s: %w", request.Method, request.URL, r.status, r.body, err)
	}
	if !slices.Contains([]int{http.StatusOK, http.StatusCreated, http.StatusAccepted, http.StatusForbidden}, r.status) {
		return nil
	}
	if err := d.holdsRequest(request, body); err != nil {
		return fmt.Errorf("docs/openapi.yaml refuses what the gate took: %s %s %s: %w", request.Method, request.URL, body, err)
	}
	return nil
}

func (d *contractDoc) holdsAnswer(request *http.Request, r reply) error {
	if r.header.Get("X-Request-Id") == "" {
		return errors.New("there is no X-Request-Id")
	}
	if request.Method == http.MethodHead {
		if len(r.body) > 0 {
			return errors.New("HEAD has a body")
		}
		return nil
	}
	method := strings.ToLower(request.Method)
	template, found := d.route(method, request.URL.Path)
	switch {
	case !found:
		return d.plainError(r, http.StatusNotFound, "not_found")
	case d.object("paths", template, method) == nil:
		if r.header.Get("Allow") == "" {
			return errors.New("there is no Allow header")
		}
		return d.plainError(r, http.StatusMethodNotAllowed, "method_not_allowed")
	}
	at := []string{"paths", template, method, "responses", strconv.Itoa(r.status)}
	if d.object(at...) == nil {
		return errors.New("the document has no such status here")
	}
	headers := d.object(under(at, "headers")...)
	if _, documented := headers[checkpoint.Header]; r.header.Get(checkpoint.Header) != "" && !documented {
		return errors.New("the document has no receipt here")
	}
	for name := range headers {
		if err := d.holdsHeader(r.header, name, under(at, "headers", name)); err != nil {
			return err
		}
	}
	if d.object(under(at, "content")...) == nil {
		return d.empty(r)
	}
	media, _, err := mime.ParseMediaType(r.header.Get("Content-Type"))
	if err != nil {
		return fmt.Errorf("the media type %q: %w", r.header.Get("Content-Type"), err)
	}
	if media != jsonType {
		return d.checkValue(string(r.body), under(at, "content", media, "schema")...)
	}
	return d.check(r.body, under(at, "content", media, "schema")...)
}

// refusedAnywhere are the codes of requests that are refused before anybody looks
// at their path; the document has them once, for all.
var refusedAnywhere = map[string]int{"forbidden_origin": http.StatusForbidden, "misdirected_request": http.StatusMisdirectedRequest}

func (d *contractDoc) empty(r reply) error {
	if len(r.body) > 0 {
		return errors.New("the document has no body here")
	}
	return nil
}

// jsonType is the media type of nearly every body.
const jsonType = "application/json"

func (d *contractDoc) plainError(r reply, status int, code string) error {
	if r.status != status || !strings.Contains(string(r.body), `"error_code":"`+code+`"`) {
		return fmt.Errorf("the document has no such path or method, so it should be %d %s", status, code)
	}
	return d.check(r.body, "components", "schemas", "Error")
}

func (d *contractDoc) holdsHeader(h http.Header, name string, at []string) error {
	text := h.Get(name)
	if text == "" && d.object(at...)["required"] == false {
		return nil
	}
	if text == "" {
		return fmt.Errorf("the header %s is missing", name)
	}
	return d.checkText(text, under(at, "schema")...)
}

// checkText checks a header or a parameter, which is text until its schema says
// otherwise.
func (d *contractDoc) checkText(text string, path ...string) error {
	if d.object(path...)["type"] == "integer" {
		return d.checkValue(json.Number(text), path...)
	}
	return d.checkValue(text, path...)
}

func (d *contractDoc) holdsRequest(request *http.Request, body []byte) error {
	method := strings.ToLower(request.Method)
	if method == "head" {
		method = "get"
	}
	template, _ := d.route(method, request.URL.Path)
	at := []string{"paths", template, method}
	list, _ := d.at(under(at, "parameters")...)
	parameters, _ := list.([]any)
	for i := range parameters {
		if err := d.holdsParameter(request.URL.Query(), under(at, "parameters", strconv.Itoa(i))); err != nil {
			return err
		}
	}
	content := under(at, "requestBody", "content", jsonType)
	if media, _, err := mime.ParseMediaType(request.Header.Get("Content-Type")); err == nil && media != jsonType {
		content[len(content)-1] = media
		return d.checkValue(string(body), under(content, "schema")...)
	}
	if d.object(content...) == nil || (len(body) == 0 && d.object(under(at, "requestBody")...)["required"] == false) {
		return nil
	}
	return d.check(body, under(content, "schema")...)
}

func (d *contractDoc) holdsParameter(query url.Values, at []string) error {
	p := d.object(at...)
	name, _ := p["name"].(string)
	if p["in"] != "query" || !query.Has(name) || query.Get(name) == "" {
		return nil
	}
	schema := under(at, "schema")
	if d.object(schema...)["type"] == "array" {
		schema = under(schema, "items")
	}
	for _, text := range query[name] {
		if err := d.checkText(text, schema...); err != nil {
			return fmt.Errorf("parameter %s: %w", name, err)
		}
	}
	return nil
}

// documented are the operations of the document, as METHOD path.
func (d *contractDoc) documented() []string {
	var list []string
	for path := range d.object("paths") {
		for method := range d.object("paths", path) {
			list = append(list, strings.ToUpper(method)+" "+path)
		}
	}
	return list
}

// registered are the routes of gateapi in the document's spelling.
func registered() []string {
	mux := httpd.NewMux(httpd.Options{})
	gateapi.Register(mux, gateapi.Options{})
	guard, err := agentapi.Register(mux, agentapi.Options{Now: time.Now})
	if err != nil {
		panic(err)
	}
	mcpapi.Register(mux, mcpapi.Options{Guard: guard})
	var list []string
	for _, r := range mux.Routes() {
		parts := strings.Split(r.Path, "/")
		for i, p := range parts {
			if name, ok := strings.CutPrefix(p, ":"); ok {
				parts[i] = "{" + name + "}"
			}
		}
		list = append(list, r.Method+" "+strings.Join(parts, "/"))
	}
	for id, word := range map[string]string{"/approvals/{approval_id}": "/approvals/purge", "/grants/{grant_id}": "/grants/replay"} { // the router knows no static sibling of a parameter
		list[slices.Index(list, "POST "+id)] = "POST " + word
	}
	return list
}

// A new request without a word on what bounds it fails here.
func TestThePageSaysOfEachRequestWhatBoundsIt(t *testing.T) {
	_, rest, ok := strings.Cut(readDoc(t, "docs/OPERATIONS.md"), "<!-- what bounds each request: held against the routes by a test -->\n")
	require.True(t, ok)
	table, _, ok := strings.Cut(rest, "<!-- end of requests -->")
	require.True(t, ok)
	var told []string
	for _, line := range strings.Split(strings.TrimSpace(table), "\n")[2:] {
		cells := strings.Split(strings.Trim(line, "| "), " | ")
		require.Len(t, cells, 4, line)
		for _, route := range strings.Split(strings.ReplaceAll(cells[0], " (as a stream)", ""), ", ") {
			told = append(told, strings.Trim(route, "`"))
		}
	}
	var twice int
	told = slices.DeleteFunc(told, func(route string) bool { // a list, and a stream
		if route == "GET /v1/events" {
			twice++
		}
		return route == "GET /v1/events" && twice > 1
	})
	require.ElementsMatch(t, registered(), told)
}

func TestOpenAPIHasTheRoutesThatAreRegisteredAndNoOther(t *testing.T) {
	d, err := openAPI()
	require.NoError(t, err)
	require.ElementsMatch(t, registered(), d.documented())
}

func TestOpenAPIIsAValidDocumentWithValidExamples(t *testing.T) {
	t.Parallel()
	document, err := openapi3.NewLoader().LoadFromFile(openAPIPath)
	require.NoError(t, err)
	require.NoError(t, document.Validate(context.Background()))
	require.Equal(t, "3.1.0", document.OpenAPI)
	require.Equal(t, version, document.Info.Version)
}

// Each error code stands under the one status that the service gives it.
func TestOpenAPIErrorCodesStandUnderTheirStatus(t *testing.T) {
	d, err := openAPI()
	require.NoError(t, err)
	found := 0
	for _, operation := range d.documented() {
		method, path, _ := strings.Cut(operation, " ")
		at := []string{"paths", path, strings.ToLower(method), "responses"}
		for status := range d.object(at...) {
			code := d.object(under(at, status, "content", "application/json", "schema", "properties", "error_code")...)
			codes, _ := code["enum"].([]any)
			if only, ok := code["const"]; ok {
				codes = append(codes, only)
			}
			for _, c := range codes {
				require.Equal(t, status, strconv.Itoa(httpd.Status(fault.Code(c.(string)))), "%s: %s", operation, c)
				found++
			}
		}
	}
	require.Greater(t, found, 50)
}

// A check that never refuses anything holds nothing.
func TestTheContractCheckRefusesWhatTheDocumentDoesNotHave(t *testing.T) {
	d, err := openAPI()
	require.NoError(t, err)
	header := http.Header{"X-Request-Id": {"req_1"}, "Content-Type": {"application/json"}}
	for name, c := range map[string]struct {
		target, sent string
		status       int
		answer, want string
	}{
		"a field too many":             {"POST /approvals/purge", "", 200, `{"purged":0,"more":1}`, "additional properties 'more' not allowed"},
		"a field too few":              {"GET /logs", "", 200, `{"items":[]}`, "next_cursor"},
		"a status that is not there":   {"GET /logs", "", 418, `{}`, "no such status"},
		"a code of another status":     {"GET /logs", "", 400, `{"error_code":"internal","message":"m","error_id":"err_1"}`, "value must be 'validation_failed'"},
		"a path that is not there":     {"GET /secret", "", 200, `{}`, "should be 404"},
		"a method that is not there":   {"POST /logs", "", 200, `{}`, "no Allow header"},
		"a request it refuses":         {"POST /approvals/purge", `{"all":true}`, 200, `{"purged":0}`, "refuses what the gate took"},
		"a parameter out of its range": {"GET /logs?limit=0", "", 200, `{"items":[],"next_cursor":null}`, "parameter limit"},
		"an id instead of purge":       {"POST /approvals/apr_1", "", 200, `{"purged":0}`, "no Allow header"},
	} {
		t.Run(name, func(t *testing.T) {
			method, target, _ := strings.Cut(c.target, " ")
			request, err := http.NewRequest(method, "http://127.0.0.1"+target, nil)
			require.NoError(t, err)
			require.ErrorContains(t, d.holds(request, []byte(c.sent), reply{c.status, header, []byte(c.answer)}), c.want)
		})
	}
}

// A kept failure is an error object like any other: the answers differ in
// error_id alone, and each error_id is in the logs.
func TestAReplayedFailureIsAnErrorObjectWithAnErrorIDOfItsOwn(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	refused := ask("UPDATE orders SET status = NULL WHERE id = 1")
	first := g.query(t, refused, "idempotency_key=k").json(t)
	again := g.query(t, refused, "idempotency_key=k").json(t)
	require.Equal(t, "db_query_failed", first["error_code"], first)
	require.Equal(t, true, again["replayed"])
	require.NotEqual(t, first["error_id"], again["error_id"])
	require.Contains(t, string(g.get(t, "/logs?source=gate").body), again["error_id"])
	delete(again, "replayed")
	delete(first, "error_id")
	delete(again, "error_id")
	require.Equal(t, first, again)
}
