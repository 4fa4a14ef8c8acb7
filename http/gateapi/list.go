package gateapi

import (
	"errors"
	"net/url"

	"writegate/commands"
	"writegate/commands/fault"
	"writegate/http/httpd"
	"writegate/projections"
)

// readList reads the filters named and the page of a list of the projections.
func readList(c *httpd.Call, filters ...string) (url.Values, projections.Page, error) {
	query, p, err := c.List(filters...)
	return query, projections.Page{Limit: p.Limit, Cursor: p.Cursor, Asc: p.Asc, Work: projections.PageWork}, err
}

// sendList answers with a page that was read from view. The view is closed first:
// a client may take its time, and what a view sees stays on disk for it.
func sendList(list *httpd.List, view *projections.View, next string, err error) error {
	if err = errors.Join(err, view.Close()); err != nil {
		return listFault(err)
	}
	list.Send(next)
	return nil
}

// listFault says of a cursor that does not belong here what to do.
func listFault(err error) error {
	if errors.Is(err, projections.ErrCursor) {
		return httpd.BadCursor()
	}
	return commands.ViewFault(err)
}

func fieldFault(field, problem string) *fault.Fault {
	return httpd.Invalid(map[string]string{field: problem})
}
