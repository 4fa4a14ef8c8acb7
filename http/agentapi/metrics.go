package agentapi

import (
	"net/http"
	"net/url"
	"strings"

	"writegate/agentctl"
)

// metrics is GET /v1/metrics.
func (a *api) metrics(c *call) error {
	query, err := c.Query("since", "until", "interval", "group_by", "agent_id", "type")
	if err != nil {
		return asList(err)
	}
	f, err := eventFilter(url.Values{"since": query["since"], "until": query["until"]})
	if err != nil {
		return err
	}
	q := agentctl.MetricsQuery{Since: f.Since, Until: f.Until, Interval: query.Get("interval"), AgentID: query.Get("agent_id"), Type: query.Get("type")}
	if group := query.Get("group_by"); group != "" {
		q.GroupBy = strings.Split(group, ",")
	}
	if q.Until.IsZero() {
		q.Until = a.Now()
	}
	if q.Since.IsZero() {
		q.Since = q.Until.Add(-hoursBack)
	}
	body, err := a.Agents.Metrics(c.Request.Context(), &c.caller, q)
	if err != nil {
		return err
	}
	c.JSON(http.StatusOK, body)
	return nil
}
