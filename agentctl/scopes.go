package agentctl

// A Scope is one right of a credential (spec/v1.md part 2).
type Scope string

// The scopes. ScopeQuery is for POST /query, and an agent's token alone has it.
const (
	ScopeAgentsRead     Scope = "agents:read"
	ScopeAgentsWrite    Scope = "agents:write"
	ScopeTokensWrite    Scope = "tokens:write"
	ScopePoliciesRead   Scope = "policies:read"
	ScopePoliciesWrite  Scope = "policies:write"
	ScopePoliciesApply  Scope = "policies:apply"
	ScopeTelemetryWrite Scope = "telemetry:write"
	ScopeMetricsRead    Scope = "metrics:read"
	ScopeEventsRead     Scope = "events:read"
	ScopeUsageRead      Scope = "usage:read"
	ScopeToolsRead      Scope = "tools:read"
	ScopeToolsWrite     Scope = "tools:write"
	ScopeToolsVerify    Scope = "tools:verify"
	ScopeQuery          Scope = "gate:query"
)

// KeyScopes are what a project key may do, and does by default.
var KeyScopes = []Scope{ScopeAgentsRead, ScopeAgentsWrite, ScopeTokensWrite, ScopePoliciesRead, ScopePoliciesWrite, ScopePoliciesApply,
	ScopeTelemetryWrite, ScopeMetricsRead, ScopeEventsRead, ScopeUsageRead, ScopeToolsRead, ScopeToolsWrite, ScopeToolsVerify}

// defaultTokenScopes are what a token may do unless its issue says otherwise;
// allowedTokenScopes are all that one can be given: an agent can't change its
// own rules.
var (
	defaultTokenScopes = []string{"agents:read", "telemetry:write", "events:read", "tools:read", "gate:query"}
	allowedTokenScopes = append([]string{"policies:read", "metrics:read", "usage:read", "tools:verify"}, defaultTokenScopes...)
)

// A scopeSet is what a credential may do.
type scopeSet map[Scope]bool

func scopesOf[T ~string](list []T) scopeSet {
	set := make(scopeSet, len(list))
	for _, s := range list {
		set[Scope(s)] = true
	}
	return set
}
