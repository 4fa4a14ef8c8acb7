package gateapi

import (
	"net/http"

	"writegate/http/httpd"
)

// policyStatus is GET /policy/status (design/policy.md part 8).
func (a *api) policyStatus(c *httpd.Call) error {
	status, err := a.Gate.PolicyStatus()
	if err != nil {
		return err
	}
	status.OperatorAuthEnabled = a.Operators.Enabled()
	c.JSON(http.StatusOK, status)
	return nil
}
