package main

import (
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"time"

	"writegate/agentctl"
	"writegate/agentctl/egress"
	"writegate/agentctl/issuer"
	"writegate/eventlog/event"
	"writegate/http/agentapi"
	"writegate/http/gateapi"
	"writegate/http/mcpapi"
	"writegate/sqlgate/tlsfiles"
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
	trusted, err := g.settings.agentIssuer(g.log)
	if err != nil {
		return nil, err
	}
	return agentctl.New(agentctl.Options{Commands: g.commands, Store: g.store, Log: g.events, Keys: keys, Tools: tools, Issuer: trusted, Logger: g.log})
}

// agentIssuer is the issuer whose JWTs agents may show; nil where there is none.
func (s *settings) agentIssuer(log *slog.Logger) (*issuer.Issuer, error) {
	if s.AgentOIDCIssuer == "" {
		return nil, nil
	}
	rules, err := egress.ParseRules(s.EgressAllowCIDRs, s.EgressAllowPorts)
	if err != nil {
		return nil, err
	}
	var roots *x509.CertPool
	var guarding []egress.Option
	if s.AgentOIDCCA != "" {
		if roots, _, err = tlsfiles.Authorities(s.AgentOIDCCA, time.Now()); err != nil {
			return nil, fmt.Errorf("GATE_AGENT_OIDC_CA_BUNDLE_PATH: %w", err)
		}
		guarding = append(guarding, egress.WithRoots(roots))
	}
	trusted, err := issuer.New(issuer.Options{URL: s.AgentOIDCIssuer, Audience: s.AgentOIDCAud, Roots: roots, PlainHTTP: s.Profile != profileProduction,
		Guard: egress.New(rules, guarding...), Logger: log})
	if err != nil {
		return nil, fmt.Errorf("GATE_AGENT_OIDC_ISSUER is %s: %w", s.AgentOIDCIssuer, err)
	}
	return trusted, nil
}

// agentIssuerFaults checks what belongs to it, without the file of its authorities.
func (s *settings) agentIssuerFaults() (faults []string) {
	if (s.AgentOIDCIssuer == "") != (s.AgentOIDCAud == "") {
		faults = append(faults, "GATE_AGENT_OIDC_ISSUER and GATE_AGENT_OIDC_AUDIENCE belong together: set both or neither")
	}
	if s.AgentOIDCIssuer == "" && s.AgentOIDCCA != "" {
		faults = append(faults, "GATE_AGENT_OIDC_CA_BUNDLE_PATH means nothing without GATE_AGENT_OIDC_ISSUER")
	}
	if s.AgentOIDCIssuer != "" {
		if _, err := issuer.New(issuer.Options{URL: s.AgentOIDCIssuer, PlainHTTP: s.Profile != profileProduction}); err != nil {
			faults = append(faults, "GATE_AGENT_OIDC_ISSUER: "+err.Error())
		}
		if operators, err := s.operators(); err == nil && operators.LikeJWT() {
			faults = append(faults, "GATE_OPERATOR_TOKEN or GATE_OPERATOR_TOKENS: a token has the form of a JWT, which agents show where GATE_AGENT_OIDC_ISSUER is set; make another one")
		}
	}
	if s.MCPPublicURL != "" {
		u, err := url.Parse(s.MCPPublicURL)
		if err != nil || u.Scheme != "https" && (u.Scheme != "http" || s.Profile == profileProduction) || u.Host == "" || strings.ContainsAny(u.Host, `"\'<> `) || u.User != nil || u.Path != mcpapi.Path || s.MCPPublicURL != u.Scheme+"://"+u.Host+u.Path {
			faults = append(faults, "GATE_MCP_PUBLIC_URL must be the https URL by which agents call POST /mcp, such as https://gate.example.com/mcp")
		}
	}
	if s.PlaneURL != "" {
		u, err := url.Parse(s.PlaneURL)
		if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || strings.ContainsAny(u.Host, `"\'<> `) || s.PlaneURL != u.Scheme+"://"+u.Host {
			faults = append(faults, "GATE_CONTROL_PLANE_URL must be an origin such as https://gate.example.com, without a path")
		}
	}
	return faults
}

// issuerState is what GET /health and GET /metrics say of it.
func (g *service) issuerState() *gateapi.IssuerState {
	if g.agents.Issuer == nil {
		return nil
	}
	status := g.agents.Issuer.Status()
	s := &gateapi.IssuerState{Status: "degraded", Message: status.Message, Issuer: g.agents.Issuer.URL, Keys: status.Keys, KeysAge: -1}
	if status.OK {
		s.Status = "ok"
	}
	if !status.Read.IsZero() {
		at := event.Timestamp(status.Read)
		s.KeysReadAt, s.KeysAge = &at, time.Since(status.Read)
	}
	return s
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
		Issuer: g.settings.AgentOIDCIssuer, PublicURL: g.settings.MCPPublicURL, ControlPlaneURL: g.settings.PlaneURL,
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
