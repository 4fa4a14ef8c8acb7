// Package agentctl is the control plane for agents (spec/v1.md): who they are,
// with which credentials they come, which rules bind them, and what they use.
//
// Everything it knows is folded from the one event log. A request becomes a
// commands.Change: it is decided against a view under the locks of its
// aggregates, appended, applied, and only then answered. So a revoked token
// fails on its very next request: there is no cache that could outlive it.
//
// Three things live in memory, because they change with every request: the
// minute counters of the rate limit, the windows of usage and throttles, and
// when a credential was last seen. All three are filled again from the log.
//
// At the SQL gate it is the Overlay that sqlgate declares: the rules that are
// applied to an agent can tighten a decision, and never loosen it.
package agentctl
