package agentapi

import "net/http"

// A Health is the body of GET /v1/health (spec/v1.md part 11).
type Health struct {
	Status     string `json:"status"` // ok, degraded or failing
	Version    string `json:"version"`
	APIVersion string `json:"api_version"`
	Uptime     int64  `json:"uptime_seconds"`
	Checks     Checks `json:"checks"`
}

// Checks are the parts of a Health.
type Checks struct {
	Log         LogCheck         `json:"log"`
	Projections ProjectionsCheck `json:"projections"`
	Policy      PolicyCheck      `json:"policy"`
	Egress      EgressCheck      `json:"egress"`
}

// LogCheck says whether the event log takes events.
type LogCheck struct {
	Status string `json:"status"`
	Seq    uint64 `json:"seq"`
}

// ProjectionsCheck says how far the views are.
type ProjectionsCheck struct {
	Status     string `json:"status"`
	AppliedSeq uint64 `json:"applied_seq"`
}

// PolicyCheck names the gate's policy; null where none is active.
type PolicyCheck struct {
	Status        string  `json:"status"`
	PolicyVersion *string `json:"policy_version"`
}

// EgressCheck names the networks that verification of tools may reach besides
// public addresses.
type EgressCheck struct {
	Status       string   `json:"status"`
	AllowedCIDRs []string `json:"allowed_cidrs"`
}

func (a *api) health(c *call) error {
	h := a.Health(c.Request.Context())
	h.APIVersion = Version
	status := http.StatusOK
	if h.Status == "failing" {
		status = http.StatusServiceUnavailable
	}
	c.JSON(status, h)
	return nil
}
