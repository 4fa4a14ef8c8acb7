package agentapi

import (
	"net/http"

	"writegate/agentctl"
	"writegate/http/httpd"
	"writegate/projections"
)

// registerSubjects adds the endpoints by which operators say which subject of the issuer of
// agents' tokens speaks for which agent. They lie beside /v1: no project key opens them.
func (a *api) registerSubjects(mux *httpd.Mux) {
	mux.Handle(http.MethodGet, "/subjects", mux.Operator(a.listSubjects))
	mux.Handle(http.MethodPost, "/subjects", mux.Operator(a.bindSubject))
	mux.Handle(http.MethodGet, "/subjects/:subject_id", mux.Operator(a.getSubject))
	mux.Handle(http.MethodPost, "/subjects/:subject_id/unbind", mux.Operator(a.unbindSubject))
}

// bindSubject is POST /subjects. The evidence is durable before the answer.
func (a *api) bindSubject(c *httpd.Call) error {
	var in agentctl.BindInput
	if err := c.Decode(&in); err != nil {
		return err
	}
	body, err := a.Agents.BindSubject(c.Request.Context(), c.Operator(), c.RequestID, &in)
	if err != nil {
		return err
	}
	c.Writer().Header().Set("Location", "/subjects/"+body.SubjectID)
	c.JSON(http.StatusCreated, body)
	return nil
}

// unbindSubject is POST /subjects/:subject_id/unbind. The evidence is durable before the answer.
func (a *api) unbindSubject(c *httpd.Call) error {
	var in struct {
		Reason string `json:"reason"`
	}
	if err := c.Decode(&in); err != nil {
		return err
	}
	body, err := a.Agents.UnbindSubject(c.Request.Context(), c.Operator(), c.RequestID, c.Params.ByName("subject_id"), in.Reason)
	if err != nil {
		return err
	}
	c.JSON(http.StatusOK, body)
	return nil
}

func (a *api) getSubject(c *httpd.Call) error {
	body, err := a.Agents.Subject(c.Request.Context(), c.Params.ByName("subject_id"))
	if err != nil {
		return err
	}
	c.JSON(http.StatusOK, body)
	return nil
}

// listSubjects is GET /subjects.
func (a *api) listSubjects(c *httpd.Call) error {
	query, p, err := c.List("agent_id", "status")
	if err != nil {
		return err
	}
	f := projections.SubjectFilter{AgentID: query.Get("agent_id")}
	switch status := query.Get("status"); status {
	case "":
	case agentctl.SubjectBound, agentctl.SubjectUnbound:
		bound := status == agentctl.SubjectBound
		f.Bound = &bound
	default:
		return httpd.Invalid(map[string]string{"status": "must be bound or unbound"})
	}
	page := projections.Page{Limit: p.Limit, Cursor: p.Cursor, Asc: p.Asc, Work: projections.PageWork}
	l := c.NewList()
	next, err := a.Agents.Subjects(c.Request.Context(), f, page, func(b agentctl.SubjectBody) (bool, error) { return l.Add(b) })
	if err != nil {
		return err
	}
	l.Send(next)
	return nil
}
