package controlplane

import "writegate/http/httpd"

type logsView struct {
	Level, Source string
	Levels        []string
	Sources       []string
	Items         []logEntry
	Next          string
}

// logs is the tail of the gate's operational log. It is no evidence.
func (s *Server) logs(c *httpd.Call, p *page) error {
	query := c.Request.URL.Query()
	v := logsView{Level: query.Get("level"), Source: query.Get("source"), Levels: []string{"debug", "info", "warn", "error"},
		Sources: []string{"gate", "http", "sqlgate", "eventlog", "projections", "database", "commands"}}
	got, err := read[logEntry](c.Request.Context(), s, "/logs", 200, "level", v.Level, "source", v.Source, "cursor", query.Get("cursor"))
	if err != nil {
		return err
	}
	v.Items, v.Next = got.Items, got.next()
	p.Body = v
	return nil
}
