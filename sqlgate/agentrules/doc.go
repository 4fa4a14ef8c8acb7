// Package agentrules is the language of the policies that are applied to
// agents, and their evaluation (spec/v1.md parts 6 and 7): pure, as
// sqlgate/policy is. The same input gives the same layer on any day, so that a
// recorded layer can be computed again from the log alone.
//
// A rule has an action, verb[:argument], and a condition in CEL over five
// roots. Which roots a condition reads says where it runs: sql and request at
// the gate before execution, event and tool at telemetry after the fact, agent
// and usage alone at both.
//
// Among the applications of an agent the highest priority with a deciding match
// decides; inside one priority suspend comes before block, require_approval,
// throttle and allow. What the layer says can only tighten what the gate's own
// policy decided: see Tighten.
package agentrules
