package gateapi

import (
	"errors"
	"net/url"

	"writegate/commands/fault"
	"writegate/http/httpd"
	"writegate/projections"
)

// readPage reads limit, order and cursor for a list of the projections.
func readPage(query url.Values) (projections.Page, error) {
	p, err := httpd.ParsePage(query)
	return projections.Page{Limit: p.Limit, Cursor: p.Cursor, Asc: p.Asc}, err
}

// listFault says of a cursor that does not belong here what to do.
func listFault(err error) error {
	if errors.Is(err, projections.ErrCursor) {
		return httpd.BadCursor()
	}
	return err
}

func fieldFault(field, problem string) *fault.Fault {
	return httpd.Invalid(map[string]string{field: problem})
}
