package controlplane

import (
	"net/http"

	"writegate/http/httpd"
)

// register is the whole map of this house.
func (s *Server) register(m *httpd.Mux) {
	m.Handle(http.MethodGet, "/login", s.loginPage)
	m.Handle(http.MethodPost, "/login", s.loginForm)
	m.Handle(http.MethodPost, "/logout", s.logoutForm)
	m.Handle(http.MethodPost, "/times", s.timesForm)
	m.Handle(http.MethodGet, "/assets/:stamp/:file", s.asset)
	m.Handle(http.MethodGet, "/charts/:chart", s.chart)

	m.Handle(http.MethodGet, "/", s.page("overview", "overview", "Overview", s.overview))
	m.Handle(http.MethodGet, "/approvals", s.page("approvals", "approvals", "Approvals", s.approvals))
	m.Handle(http.MethodGet, "/approvals/:id", s.page("approval", "approvals", "Approval", s.approval))
	m.Handle(http.MethodGet, "/audit", s.page("audit", "audit", "Decisions", s.audit))
	m.Handle(http.MethodGet, "/audit/download", s.download)
	m.Handle(http.MethodGet, "/requests/:id", s.page("story", "audit", "Timeline of a request", s.story))
	m.Handle(http.MethodGet, "/policies", s.page("policies", "policies", "Policies", s.policies))
	m.Handle(http.MethodGet, "/policies/:version", s.page("policy", "policies", "Policy", s.policy))
	m.Handle(http.MethodGet, "/policy-diff", s.page("diff", "policies", "What changes", s.diff))
	m.Handle(http.MethodGet, "/policy-dry-run", s.page("dryrun", "policies", "Dry run", s.dryRunPage))
	m.Handle(http.MethodPost, "/policy-dry-run", s.posted("dryrun", "policies", "Dry run", s.dryRun))
	m.Handle(http.MethodGet, "/evidence", s.page("evidence", "evidence", "Evidence", s.evidencePage))
	m.Handle(http.MethodPost, "/evidence/verify", s.posted("evidence", "evidence", "Evidence", s.verifyNow))
	m.Handle(http.MethodPost, "/evidence/export", s.export)
	m.Handle(http.MethodPost, "/evidence/check", s.checkUpload)
	m.Handle(http.MethodGet, "/executions", s.page("executions", "executions", "Executions", s.executions))
	m.Handle(http.MethodGet, "/executions/:id", s.page("execution", "executions", "Execution", s.execution))
	m.Handle(http.MethodGet, "/grants", s.page("grants", "approvals", "Grants", s.grants))
	m.Handle(http.MethodGet, "/grants/:id", s.page("grant", "approvals", "Grant", s.grant))
	m.Handle(http.MethodGet, "/grant-new", s.page("grantnew", "approvals", "Give a grant", s.grantNewPage))
	m.Handle(http.MethodPost, "/grant-new", s.posted("grantnew", "approvals", "Give a grant", s.grantNew))
	m.Handle(http.MethodGet, "/agents", s.page("agents", "agents", "Agents", s.agents))
	m.Handle(http.MethodGet, "/agents/:id", s.page("agent", "agents", "Agent", s.agent))
	m.Handle(http.MethodGet, "/logs", s.page("logs", "logs", "Logs", s.logs))

	m.Handle(http.MethodPost, apiPrefix+"/admin/login", s.login)
	m.Handle(http.MethodPost, apiPrefix+"/admin/logout", s.logout)
	for _, f := range forwards {
		m.Handle(f.method, apiPrefix+f.path, s.forward(f), f.params...)
	}
}
