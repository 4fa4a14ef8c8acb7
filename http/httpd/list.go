package httpd

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"writegate/commands/fault"
)

// Limits of a list (spec/decisions.md part 1).
const (
	DefaultLimit = 100
	MaxLimit     = 1000
)

// maxCursor bounds a cursor before anybody decodes it.
const maxCursor = 512

// A List is the answer of a list as it is written, the one shape of all lists.
// It takes items until it is as large as an answer may be: the page ends there,
// with a cursor to the next one, whatever its limit was. The first item has room
// in any case, so that who follows the cursors comes to the end.
type List struct {
	call  *Call
	body  bytes.Buffer
	items int
}

// NewList begins the answer of a list.
func (c *Call) NewList() *List {
	l := &List{call: c}
	l.body.WriteString(`{"items":[`)
	return l
}

// Add takes an item. room is false where there is none for it: then the page ends
// before it. The error is a fault rate_limit_exceeded where the client holds all
// large answers that it may have, and the first item makes one.
func (l *List) Add(item any) (room bool, err error) {
	return l.add(func() error {
		enc := json.NewEncoder(&l.body)
		enc.SetEscapeHTML(false)
		err := enc.Encode(item)
		l.body.Truncate(max(0, l.body.Len()-1)) // the newline behind it
		return err
	})
}

// AddJSON is Add for an item that is appended as JSON.
func (l *List) AddJSON(item func([]byte) []byte) (room bool, err error) {
	return l.add(func() error {
		l.body.Write(item(l.body.AvailableBuffer()))
		return nil
	})
}

func (l *List) add(write func() error) (room bool, err error) {
	begin := l.body.Len()
	if l.items > 0 {
		l.body.WriteByte(',')
	}
	if err := write(); err != nil {
		return false, err
	}
	full := l.items > 0 && l.body.Len() > maxPage
	if !full && l.body.Len() > largeAnswer {
		if err := l.call.takeLarge(); err != nil {
			if l.items == 0 {
				return false, err
			}
			full = true // a small page is an answer too
		}
	}
	if full {
		l.body.Truncate(begin)
		return false, nil
	}
	l.items++
	return true, nil
}

// Send answers with the items and the cursor of the next page, "" on the last
// one. more are further members of the answer as JSON, each behind its comma.
func (l *List) Send(next string, more ...byte) {
	l.body.WriteString(`],"next_cursor":`)
	if next == "" {
		l.body.WriteString("null")
	} else {
		l.body.WriteString(strconv.Quote(next)) // cursors are of URL-safe characters
	}
	l.body.Write(more)
	l.body.WriteString("}\n")
	l.call.Raw(http.StatusOK, l.body.Bytes())
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

// OfAnotherLog words why a field may be most at most: what is beyond the end of the log
// stands in another one, whose numbers say nothing of this one's events.
func OfAnotherLog(most uint64) string {
	return fmt.Sprintf("must be at most %d, for the log goes no further. What is beyond is of another log, as it was before a restore, a loss or a `gate log new`: begin again, with from_seq=1 to miss nothing", most)
}

// Moment reads an RFC 3339 time of a query parameter; "" is the zero time. Times
// of events are nanoseconds since 1970 in 64 bits, so a time before 1677 or after
// 2262 is taken as the first or the last of them, which finds the same events.
func Moment(text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	t, err := time.Parse(time.RFC3339Nano, text)
	if first, last := time.Unix(0, math.MinInt64), time.Unix(0, math.MaxInt64); t.Before(first) {
		t = first
	} else if t.After(last) {
		t = last
	}
	return t, err
}

// BadCursor is the fault for a cursor that does not belong to the list.
func BadCursor() *fault.Fault {
	return Invalid(map[string]string{"cursor": "is no cursor of this list with these filters and this order"})
}
