package controlplane

import (
	"cmp"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"writegate/commands/fault"
)

// A source answers as the gate's API does. The real one is the gate; the other
// is invented.
type source interface {
	// do sends one request and gives the answer whatever its status is. Its
	// errors are faults without an address in them. The caller closes the body.
	do(ctx context.Context, r request) (*answer, error)
}

// A request is one call of the gate's API.
type request struct {
	method  string
	path    string // as it is: send takes no character that would have to be escaped
	query   url.Values
	body    io.Reader
	media   string // of the body
	accept  string
	lastID  string // Last-Event-ID
	project bool   // send the project key, and not the operator token
}

// An answer is the gate's, as it came.
type answer struct {
	status int
	header http.Header
	body   io.ReadCloser
}

// maxAnswer bounds what a page reads into memory.
const maxAnswer = 32 << 20

// refusal is the error object of the gate's API (spec/gate.md part 2.3).
type refusal struct {
	ErrorCode string          `json:"error_code"`
	Message   string          `json:"message"`
	ErrorID   string          `json:"error_id"`
	Details   json.RawMessage `json:"details"`
	status    int
}

func (e *refusal) Error() string { return e.Message }

// send is the one way to the gate. A path with anything in it that some reader of
// paths decodes, cleans or takes for a border is none of the gate's: an id in it
// must not lead to another endpoint than the one it was admitted for.
func (s *Server) send(ctx context.Context, r request) (*answer, error) {
	for segment := range strings.SplitSeq(strings.TrimPrefix(r.path, "/"), "/") {
		if strings.Trim(segment, ".") == "" || len(segment) > maxSegment || strings.Trim(segment, plainInPath) != "" {
			return nil, fault.New(fault.NotFound, "There is nothing with this id. Open it from its list.")
		}
	}
	return s.source.do(ctx, r)
}

// Ids and versions of the gate are of these characters, and shorter.
const (
	plainInPath = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.@"
	maxSegment  = 256
)

// ask gets one answer and reads it into a T. A refusal of the gate is an error
// of type *refusal.
func ask[T any](ctx context.Context, s *Server, r request) (T, error) {
	var value T
	if r.method == "" {
		r.method = http.MethodGet
	}
	status, body, err := s.answered(ctx, r)
	if err != nil {
		return value, err
	}
	if status >= http.StatusBadRequest && !(status == http.StatusServiceUnavailable && r.path == "/health") {
		e := &refusal{status: status}
		if err := json.Unmarshal(body, e); err != nil || e.ErrorCode == "" {
			return value, broken(err)
		}
		e.Message = cmp.Or(fieldWords(fieldsOf(e.Details)), forPerson(e.Message))
		return value, e
	}
	if err := json.Unmarshal(body, &value); err != nil {
		return value, broken(err)
	}
	return value, nil
}

// fieldsOf are the fields that details name as wrong, as the API of operators and that of
// agents write them.
func fieldsOf(details json.RawMessage) map[string]string {
	var byName struct {
		Fields map[string]string `json:"fields"`
	}
	if json.Unmarshal(details, &byName) == nil {
		return byName.Fields
	}
	var listed struct {
		Fields []struct{ Pointer, Message string } `json:"fields"`
	}
	_ = json.Unmarshal(details, &listed) // what has another form names none
	fields := make(map[string]string)
	for _, f := range listed.Fields {
		fields[strings.TrimPrefix(f.Pointer, "/")] = f.Message
	}
	return fields
}

// fieldWords say what is wrong with fields: whoever reads it has no details at hand.
func fieldWords(fields map[string]string) string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		list = append(list, capital(strings.ReplaceAll(name, "_", " "))+" "+fields[name]+".")
	}
	return strings.Join(list, " ")
}

// toOperator turns what messages of the gate tell whoever sends statements into what the
// operator does, who reads them here.
var toOperator = strings.NewReplacer(
	", and tell the operator the error_id if it stays", "; the error_id finds the cause in the gate's own log",
	"; send the request again later, and tell the operator if it stays", "; if it stays, look at the database server, the way to it and GATE_DATABASE_URL",
	", and tell the operator if it stays", "; if it stays, look at the log of the database server",
)

// endpoint finds in a message a path of the gate's API, which a person at a page does not
// ask for.
var endpoint = regexp.MustCompile(`\b(?:GET|POST) (/[a-z][a-z0-9/_.{}?=:@-]*[a-z0-9}])`)

// pagesOf are the pages that show what a path answers, by its beginning.
var pagesOf = [][2]string{{"/approvals", "the Approvals page"}, {"/executions", "the Executions page"}, {"/grants", "the Grants page"}, {"/evidence", "the Evidence page"}, {"/policy", "the Policies page"},
	{"/logs", "the Logs page"}, {"/health", "the Overview"}, {"/v1/events", "the Decisions page"}, {"/v1", "the Agents page"}, {"/audit", "the Decisions page"}}

// forPerson is what a person reads of a message of the gate's.
func forPerson(message string) string {
	message = toOperator.Replace(message)
	var b strings.Builder
	from := 0
	for _, at := range endpoint.FindAllStringSubmatchIndex(message, -1) {
		for _, page := range pagesOf {
			if !strings.HasPrefix(message[at[2]:at[3]], page[0]) {
				continue
			}
			words := page[1]
			if before := strings.TrimRight(message[:at[0]], " "); before == "" || strings.HasSuffix(before, ".") {
				words = capital(words)
			}
			b.WriteString(message[from:at[0]] + words)
			from = at[1]
			break
		}
	}
	return b.String() + message[from:]
}

// answered gives an answer whole, one of /v1 as new as the look of ctx needs it.
func (s *Server) answered(ctx context.Context, r request) (status int, body []byte, err error) {
	fetch := func() (int, http.Header, []byte, error) {
		a, err := s.send(ctx, r)
		if err != nil {
			return 0, nil, nil, err
		}
		defer a.body.Close()
		body, err := io.ReadAll(io.LimitReader(a.body, maxAnswer+1))
		if err != nil || len(body) > maxAnswer {
			return 0, nil, nil, broken(err)
		}
		return a.status, a.header, body, nil
	}
	if r.project && r.method == http.MethodGet {
		return s.kept.get(ctx, r, fetch)
	}
	status, _, body, err = fetch()
	return status, body, err
}

// fetch is ask for a plain GET.
func fetch[T any](ctx context.Context, s *Server, path string, pairs ...string) (T, error) {
	return ask[T](ctx, s, request{path: path, query: pairsOf(pairs)})
}

// wholePages bounds how many pages of a list are put together for one page of the
// dashboard: the gate ends a page where its answer would be too large for memory.
const wholePages = 8

// whole reads a list up to limit items, page by page: what stands behind many large
// items is shown too. next is there where the list goes on.
func whole[T any](ctx context.Context, s *Server, r request, limit int) (all list[T], err error) {
	if r.query == nil {
		r.query = make(url.Values)
	}
	for range wholePages {
		r.query.Set("limit", strconv.Itoa(limit-len(all.Items)))
		page, err := ask[list[T]](ctx, s, r)
		if err != nil {
			return all, err
		}
		all.Items, all.NextCursor, all.Damaged = append(all.Items, page.Items...), page.NextCursor, page.Damaged
		if page.next() == "" || len(all.Items) >= limit {
			break
		}
		r.query.Set("cursor", page.next())
	}
	return all, nil
}

// read is whole for a list.
func read[T any](ctx context.Context, s *Server, path string, limit int, pairs ...string) (list[T], error) {
	return whole[T](ctx, s, request{path: path, query: pairsOf(pairs)}, limit)
}

func pairsOf(pairs []string) url.Values {
	query := make(url.Values)
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			query.Add(pairs[i], pairs[i+1])
		}
	}
	return query
}

func broken(cause error) error {
	return fault.New(fault.BackendUnavailable, "The gate's answer could not be read. Look at the gate's log, then reload this page.").Because(cause)
}

// A page of a list (spec/decisions.md part 1).
type list[T any] struct {
	Items      []T     `json:"items"`
	NextCursor *string `json:"next_cursor"`
	Damaged    *damage `json:"damaged"`
}

// A damage tells how far a damaged log verifies; nil: nothing is known to be wrong.
type damage struct {
	VerifiedTo uint64 `json:"verified_to"`
}

func (l list[T]) next() string {
	if l.NextCursor == nil {
		return ""
	}
	return *l.NextCursor
}
