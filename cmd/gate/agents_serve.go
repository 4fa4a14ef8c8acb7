package main

import (
	"context"
	"time"

	"writegate/agentctl"
	"writegate/http/agentapi"
	"writegate/http/mcpapi"
)

// projectKeys are the keys of the projects under /v1.
func (s *settings) projectKeys() (*agentctl.ProjectKeys, error) {
	return agentctl.ParseProjectKeys(s.ProjectKeys)
}

// newAgents makes the control plane for agents; it is the overlay of the SQL
// gate as well.
func (g *service) newAgents() (*agentctl.Service, error) {
	keys, err := g.settings.projectKeys()
	if err != nil {
		return nil, err
	}
	tools, err := agentctl.NewToolGuard(g.settings.EgressAllowCIDRs, g.settings.EgressAllowPorts, g.toolSecrets, g.log)
	if err != nil {
		return nil, err
	}
	return agentctl.New(agentctl.Options{Commands: g.commands, Store: g.store, Log: g.events, Keys: keys, Tools: tools, Logger: g.log})
}

// registerAgents adds the endpoints under /v1, and the tools for agents.
func (g *service) registerAgents(stopping context.Context) error {
	guard, err := agentapi.Register(g.handler, agentapi.Options{
		Agents: g.agents, Commands: g.commands, Store: g.store, Log: g.events, Health: g.agentHealth, Now: time.Now,
		Follower: g.events, Head: func() uint64 { return g.events.Head().Seq }, Reaches: g.events.Reaches, Stopping: stopping, StreamsPerClient: g.settings.StreamsPerClient,
	})
	if err != nil || !g.settings.MCPEnabled {
		return err
	}
	claims, err := mcpapi.ParseClaims(g.settings.MCPClaims)
	if err != nil {
		return err
	}
	mcpapi.Register(g.handler, mcpapi.Options{
		Gate: g.gate, Agents: g.agents, Commands: g.commands, Store: g.store, Guard: guard, Claims: claims, MaxSQLBytes: g.settings.MaxSQLBytes,
		Version: version, Logger: g.log, Now: time.Now, Waits: g.waits, Stopping: stopping,
	})
	return nil
}

// agentHealth is GET /v1/health (spec/v1.md part 11): /v1 works while the log is
// sound, also when no policy of the gate is loaded.
func (g *service) agentHealth(ctx context.Context) agentapi.Health {
	applied := g.store.Applied().Seq
	h := agentapi.Health{Status: "ok", Version: version, Uptime: int64(time.Since(g.started).Seconds()), Checks: agentapi.Checks{
		Log:         agentapi.LogCheck{Status: "ok", Seq: g.events.Head().Seq},
		Projections: agentapi.ProjectionsCheck{Status: "ok", AppliedSeq: applied},
		Policy:      agentapi.PolicyCheck{Status: "ok", PolicyVersion: g.activePolicy(ctx)},
		Egress:      agentapi.EgressCheck{Status: "ok", AllowedCIDRs: append([]string{}, splitList(g.settings.EgressAllowCIDRs)...)},
	}}
	if f := g.gate.Chain().Failure(); f != nil {
		h.Status, h.Checks.Policy.Status = "degraded", "degraded"
	}
	if g.store.Full() != nil {
		h.Status, h.Checks.Projections.Status = "failing", "failing"
	}
	if log := g.events.Health(); !log.OK || g.damaged != nil {
		h.Status, h.Checks.Log.Status = "failing", "failing"
	}
	return h
}

// activePolicy names the version that decides; nil where there is none.
func (g *service) activePolicy(ctx context.Context) *string {
	view := g.store.ViewWithin(ctx)
	defer view.Close()
	if active := view.Counters().Active; active != "" {
		return &active
	}
	return nil
}
