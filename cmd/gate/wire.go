package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"writegate/commands"
	"writegate/commands/fault"
	"writegate/eventlog/event"
	"writegate/http/gateapi"
	"writegate/http/httpd"
	"writegate/sqlgate"
	"writegate/sqlgate/pgwire"
)

// wireAuth is GATE_PGWIRE_AUTH with its default: none where no users are named on a
// loopback address, which alone may have that; else passwords.
func (s *settings) wireAuth() string {
	switch {
	case s.WireAuth != "":
		return s.WireAuth
	case s.WireUsersFile == "" && loopback(s.WireListenAddr):
		return pgwire.AuthTrust
	}
	return pgwire.AuthScram
}

// wireUsersPath is where the users lie who log in with a password; "" where nobody does.
func (s *settings) wireUsersPath() string {
	if !s.WireEnabled || s.wireAuth() != pgwire.AuthScram {
		return ""
	}
	return cmp.Or(s.WireUsersFile, filepath.Join(filepath.Dir(s.AuditWALPath), "pgwire_users"))
}

// wireUser is who can log in where GATE_PGWIRE_USERS_FILE names no users.
const wireUser = "gate"

// makeWireUsers makes the users file that no setting names, where there is none yet.
// Its one password is told here and kept nowhere.
func (a *app) makeWireUsers(s *settings) error {
	path := s.wireUsersPath()
	if path == "" || s.WireUsersFile != "" {
		return nil
	}
	if _, err := os.Lstat(path); err == nil {
		return nil
	}
	password := randomText()
	line, err := pgwire.HashPassword(wireUser, password)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err == nil { // it has its name when it is whole
		_, err = fmt.Fprintln(f, line)
		if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
			err = os.Link(f.Name(), path)
		}
		err = errors.Join(err, os.Remove(f.Name()))
	}
	switch {
	case errors.Is(err, fs.ErrExist):
		return nil // another start was first
	case err != nil:
		return fmt.Errorf("the wire listener asks for passwords, and without GATE_PGWIRE_USERS_FILE a users file can't be made: %w", err)
	default:
		_, err = fmt.Fprintf(a.out, "The wire listener asks for a password: user %s, password %s. It is told this once; %s keeps what checks it. Remove that file to have another made.\n", wireUser, password, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}

// wireTLS is GATE_PGWIRE_TLS with its default.
func (s *settings) wireTLS() string {
	switch {
	case s.WireTLS != "":
		return s.WireTLS
	case s.TLSCert != "":
		return pgwire.TLSRequire
	}
	return pgwire.TLSOff
}

// wireFaults are settings of the wire listener that do not go together.
func (s *settings) wireFaults() []string {
	if !s.WireEnabled {
		return nil
	}
	auth, mode := s.wireAuth(), s.wireTLS()
	var faults []string
	for _, rule := range []struct {
		broken bool
		fault  string
	}{
		{!s.WireLabMode, "GATE_PGWIRE_ENABLED needs GATE_PGWIRE_LAB_MODE=true: the wire listener is an experiment and not for production"},
		{auth == pgwire.AuthTrust && !loopback(s.WireListenAddr), "GATE_PGWIRE_LISTEN_ADDR must be a loopback address such as 127.0.0.1:6544 where nobody logs in; else set GATE_PGWIRE_USERS_FILE, or GATE_PGWIRE_AUTH=cert"},
		{auth == pgwire.AuthCert && s.TLSClientCA == "", "GATE_PGWIRE_AUTH is cert and needs GATE_TLS_CLIENT_CA_BUNDLE_PATH, the authorities that sign the clients' certificates"},
		{auth == pgwire.AuthCert && mode != pgwire.TLSRequire, "GATE_PGWIRE_AUTH is cert and needs GATE_PGWIRE_TLS=require"},
		{s.WireListenAddr == s.HTTPListenAddr && !strings.HasSuffix(s.WireListenAddr, ":0"), "GATE_PGWIRE_LISTEN_ADDR and GATE_HTTP_LISTEN_ADDR are both " + s.WireListenAddr + ": each needs an address of its own"},
		{mode != pgwire.TLSOff && s.TLSCert == "", "GATE_PGWIRE_TLS is " + mode + " and needs GATE_TLS_CERT_PATH and GATE_TLS_KEY_PATH"},
	} {
		if rule.broken {
			faults = append(faults, rule.fault)
		}
	}
	return faults
}

// loopback reports whether only this machine can reach an address.
func loopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	return err == nil && (host == "localhost" || net.ParseIP(host).IsLoopback())
}

// textsPerStatement is how many Parse, Bind and Describe messages a client may send
// for each statement of its rate. Drivers prepare many statements as they connect; a
// flood of them would fill the log, since each may leave evidence.
const textsPerStatement = 10

// openWire opens the wire listener, where it is enabled; nil where it is not.
func (g *service) openWire(users *pgwire.Users, material *httpd.TLS, drain time.Duration) (*pgwire.Server, error) {
	s := g.settings
	if !s.WireEnabled {
		return nil, nil
	}
	texts, err := httpd.NewLimiter(min(textsPerStatement*s.RatePerMin, httpd.MostRate), min(textsPerStatement*s.RateBurst, httpd.MostRate), time.Now)
	if err != nil {
		return nil, err
	}
	o := pgwire.Options{
		Addr: s.WireListenAddr, Logger: g.log, Holder: httpd.HolderOf, Open: g.newWire, ServerVersion: g.database.ServerVersion, Database: g.database.Name(), DefaultEnv: s.WireDefaultEnv,
		AgentVerifiers: g.agents.Verifiers, AgentNow: g.agents.AgentNow,
		Auth: s.wireAuth(), Users: users, TLSMode: s.wireTLS(),
		MaxConnections: s.WireMaxConns, MaxPerAddress: s.WireMaxPerIP, MaxUnauthenticated: s.WireMaxUnauth,
		MaxBatchItems: s.WireMaxBatch, MaxMessageBytes: s.WireMaxMessage,
		AuthTimeout: millis(s.WireAuthTimeout), IdleTimeout: seconds(s.WireIdle), WriteTimeout: millis(s.WireWrite),
		TxMax: millis(s.WireTxMax), TxIdle: millis(s.WireTxIdle),
		Allow: g.limiter.Allow, AllowText: texts.AllowN, OnIncident: g.wireIncident, OnLoginFailed: g.wireLoginFailed, Cancels: wireCancels{g.commands},
		Drain: drain, Grace: millis(s.DBCommitTimeout) + cancelMargin, Overdue: g.cancelStatements,
	}
	if material != nil {
		o.TLS = func() *tls.Config { return material.Config() }
	}
	server, err := pgwire.Listen(o)
	if err != nil {
		return nil, listenError("GATE_PGWIRE_LISTEN_ADDR", s.WireListenAddr, err)
	}
	if o.TLSMode == pgwire.TLSOff && !loopback(s.WireListenAddr) {
		g.log.Warn("the wire listener is cleartext on an address that others reach: statements and rows can be read on the way; set GATE_TLS_CERT_PATH and GATE_TLS_KEY_PATH", "source", "pgwire")
	}
	g.wire = server
	g.log.Info("the wire listener is listening; it is an experiment for the lab", "source", "pgwire", "address", server.Addr().String(), "auth", o.Auth, "tls", o.TLSMode)
	return server, nil
}

func (g *service) newWire(l sqlgate.WireLogin) (pgwire.Wire, error) {
	if g.damaged != nil {
		return nil, fault.Of(g.damaged)
	}
	return g.gate.OpenWire(l)
}

// wireStats are the counters for GET /runtime/stats.
func (g *service) wireStats() gateapi.WireStats {
	if g.wire == nil {
		return gateapi.WireStats{}
	}
	s := g.wire.Stats()
	return gateapi.WireStats{Connections: s.Connections, Blocks: g.gate.WireBlocks(), Cancels: s.Cancels}
}

// wireIncident writes down what a client did over its limits, throttled.
func (g *service) wireIncident(i pgwire.Incident) {
	record := commands.Incident{Type: event.TypeRateLimitHit, Client: httpd.HolderOf(i.Client), Limit: g.settings.RatePerMin}
	if i.Oversized {
		record.Type, record.Limit, record.Got = event.TypeOversizedRequest, i.Limit, i.Got
	}
	if err := g.commands.RecordIncident(context.Background(), record); err != nil {
		g.log.Warn("an incident could not be written to the event log", "source", "pgwire", "cause", err.Error())
	}
}

// wireLoginFailed writes down a connection that was refused, throttled. Where it
// can't be written the answer to the client is the same.
func (g *service) wireLoginFailed(l pgwire.LoginFailure) {
	err := g.commands.RecordIncident(context.Background(), commands.Incident{Type: event.TypeWireLoginFailed, Client: httpd.HolderOf(l.Client),
		Login: commands.Login{Cause: l.Cause, SQLState: l.SQLState, User: l.User}})
	if err != nil {
		g.log.Warn("a refused login could not be written to the event log", "source", "pgwire", "cause", err.Error())
	}
}

// requestPrefix begins the id of a request.
const requestPrefix = "req_"

// wireCancels writes what became of CancelRequests.
type wireCancels struct{ commands *commands.Commands }

func (w wireCancels) record(r pgwire.CancelRequest) *commands.CancelRequest {
	l := &r.Login
	return &commands.CancelRequest{Client: r.Address, Request: commands.Request{
		RequestID: requestPrefix + r.ID, Actor: l.Actor, App: l.App, Tenant: l.Tenant, Role: l.Role, Host: l.Host, Env: l.Env,
		Principal: l.Principal(), WireSession: l.ConnectionID, AgentID: l.Agent.ID, Project: l.Agent.Project,
	}}
}

func (w wireCancels) Received(ctx context.Context, r pgwire.CancelRequest) error {
	return w.commands.RecordCancelReceived(ctx, w.record(r))
}

func (w wireCancels) Forwarded(ctx context.Context, r pgwire.CancelRequest, executionID string) error {
	return w.commands.RecordCancelForwarded(ctx, w.record(r), executionID)
}

func (w wireCancels) Unsent(ctx context.Context, r pgwire.CancelRequest, executionID string) error {
	return w.commands.RecordCancelUnsent(ctx, w.record(r), executionID)
}

func (w wireCancels) Rejected(ctx context.Context, r pgwire.CancelRequest, cause string, count int) error {
	return w.commands.RecordCancelRejected(ctx, w.record(r), cause, count)
}

// wireHealth is the wire listener's part of GET /health.
func (g *service) wireHealth() *gateapi.WireHealth {
	if g.wire == nil {
		return nil
	}
	if failure := g.tls.usersFailure(); failure != "" {
		return &gateapi.WireHealth{Status: "users_refused", Message: "The newest users file is refused and the users read before stay in use: " + failure + "."}
	}
	return &gateapi.WireHealth{Status: "ok", Message: "The wire listener is open. It is an experiment for the lab."}
}
