package mcpapi

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"writegate/sqlgate"
	"writegate/sqlgate/policy"
)

// ParseClaims reads GATE_MCP_CLAIMS, name=value pairs separated by commas: the claims of
// statements that the record of an agent says nothing about. What is not given has its
// default.
func ParseClaims(list string) (sqlgate.Claims, error) {
	c := sqlgate.Claims{App: "mcp", Tenant: "default", Role: "agent", Host: "mcp", Env: "prod"}
	named := map[string]*string{"app": &c.App, "tenant": &c.Tenant, "role": &c.Role, "host": &c.Host, "env": &c.Env}
	given := map[string]bool{}
	for pair := range strings.SplitSeq(list, ",") {
		if pair = strings.TrimSpace(pair); pair == "" {
			continue
		}
		name, value, _ := strings.Cut(pair, "=")
		to, known := named[name]
		switch {
		case !known:
			return c, fmt.Errorf("%q is none of the claims app, tenant, role, host and env, each as name=value", name)
		case given[name]:
			return c, fmt.Errorf("the claim %s is given twice", name)
		case value == "":
			return c, fmt.Errorf("the claim %s is empty", name)
		}
		*to, given[name] = value, true
	}
	fields := map[string]string{}
	sqlgate.CheckContext(&policy.CaseContext{App: c.App, Tenant: c.Tenant, Role: c.Role, Host: c.Host}, fields)
	if !slices.Contains([]string{"shadow", "staging", "prod"}, c.Env) {
		fields["env"] = "must be shadow, staging or prod"
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		return c, fmt.Errorf("the claim %s %s", name, fields[name])
	}
	return c, nil
}
