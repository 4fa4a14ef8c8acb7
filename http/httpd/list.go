package httpd

import (
	"net/url"
	"strconv"

	"writegate/commands/fault"
)

// Limits of a list (spec/decisions.md part 1).
const (
	DefaultLimit = 100
	MaxLimit     = 1000
)

// maxCursor bounds a cursor before anybody decodes it.
const maxCursor = 512

// A List is the one shape of every list. NextCursor is null on the last page.
type List[T any] struct {
	Items      []T     `json:"items"`
	NextCursor *string `json:"next_cursor"`
}

// NewList makes a list whose items are never null.
func NewList[T any](items []T, next string) List[T] {
	if items == nil {
		items = []T{}
	}
	l := List[T]{Items: items}
	if next != "" {
		l.NextCursor = &next
	}
	return l
}

// A Page is what a client asked of a list. The cursor is opaque here: who keeps
// the list makes it and checks it.
type Page struct {
	Limit  int
	Cursor string
	Asc    bool // newest first unless order=asc
}

// List reads the query parameters of a list: those of its page, and its filters.
// Each of them stands there once at most; repeatable ones are not named here.
func (c *Call) List(filters ...string) (url.Values, Page, error) {
	query, err := c.Query(append([]string{"limit", "cursor", "order"}, filters...)...)
	if err != nil {
		return nil, Page{}, err
	}
	page, err := ParsePage(query)
	return query, page, err
}

// ParsePage reads limit, cursor and order. Its error is a fault
// validation_failed that names each field that is wrong.
func ParsePage(query url.Values) (Page, error) {
	page := Page{Limit: DefaultLimit, Cursor: query.Get("cursor"), Asc: query.Get("order") == "asc"}
	fields := make(map[string]string)
	if text := query.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > MaxLimit {
			fields["limit"] = "must be a whole number from 1 to 1000"
		}
		page.Limit = n
	}
	if order := query.Get("order"); order != "" && order != "asc" && order != "desc" {
		fields["order"] = "must be asc or desc"
	}
	if len(page.Cursor) > maxCursor {
		fields["cursor"] = "is no cursor of this list"
	}
	if len(fields) > 0 {
		return Page{}, Invalid(fields)
	}
	return page, nil
}

// Invalid is the fault validation_failed for named fields: what each must be.
func Invalid(fields map[string]string) *fault.Fault {
	return fault.New(fault.ValidationFailed, "The request is not valid; details.fields says what to change.").With("fields", fields)
}

// BadCursor is the fault for a cursor that does not belong to the list.
func BadCursor() *fault.Fault {
	return Invalid(map[string]string{"cursor": "is no cursor of this list with these filters and this order"})
}
