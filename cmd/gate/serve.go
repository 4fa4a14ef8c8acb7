package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"writegate/agentctl/toolcheck"
	"writegate/http/httpd"
	"writegate/sqlgate"
	"writegate/sqlgate/classify"
)

// Bounds of a start and of a clean end.
const (
	firstLookTime = 3 * time.Second  // for the database's first answer
	drainTime     = 15 * time.Second // for the requests that are running
	cancelEvery   = time.Second      // after it: until they end, what they run is cancelled
	cancelMargin  = 2 * time.Second  // for their answers, beyond the time that a COMMIT may take
	closeTime     = 10 * time.Second // for the last events and the flush of the projections
)

func (a *app) serveCommand() *cobra.Command {
	return &cobra.Command{
		Use: "serve", Short: "Run the gate", Args: cobra.NoArgs,
		Long: `Run the gate with the settings of the environment ("gate config" lists them).

It serves as soon as its log is judged, its projections are replayed and its policy passed the
startup chain; GET /health says which step failed where one did. An interrupt or SIGTERM drains
the running requests and ends it cleanly.`,
		RunE: func(c *cobra.Command, _ []string) error { return serviceEnd(a.serve(c.Context())) },
	}
}

// serve runs the gate until ctx ends or the log or the store fails.
func (a *app) serve(ctx context.Context) error {
	a.queueLines()
	s, err := loadServing(a.environ, time.Now())
	if err != nil {
		return exitWith(exitConfigured, err)
	}
	if err := addressesFree(s.listenAddrs()); err != nil { // a start whose address is another program's writes nothing
		return err
	}
	buffer := httpd.NewLogBuffer(httpd.LogCapacity)
	logger := slog.New(httpd.BoundLines(buffer.Handler(a.lineHandler(s.LogFormat))))
	keeper := newTLSKeeper(logger, cmp.Or(a.look, lookEvery))
	defer keeper.close()
	listenerTLS, err := keeper.keepListener(s)
	if err != nil {
		return exitWith(exitConfigured, err)
	}
	if err := a.makeWireUsers(s); err != nil {
		return exitWith(exitConfigured, err)
	}
	users, err := keeper.keepUsers(s)
	if err != nil {
		return exitWith(exitConfigured, err)
	}
	key, err := s.signingKey()
	if err != nil {
		return exitWith(exitConfigured, err)
	}
	environ, _ := withSecretFiles(a.environ) // checked at load
	secrets, err := toolcheck.ParseSecrets(environ)
	if err != nil {
		return exitWith(exitConfigured, err)
	}
	g := &service{settings: s, signingKey: key, toolSecrets: secrets, log: logger, buffer: buffer, started: time.Now(), step: a.step, logFS: a.logFS, sessionClock: a.sessionClock, tls: keeper, look: keeper.every, courtesy: a.courtesy, parseWall: a.parseWall}
	defer g.close()
	if err := g.open(ctx); err != nil {
		return err
	}
	proxies, _ := httpd.ParseProxies(s.TrustedProxies) // checked at load
	conns, connsEach := s.HTTPMaxConns, s.HTTPMaxPerIP
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return fmt.Errorf("the limit of open files can't be read: %w", err)
	}
	if conns, connsEach = connsWithin(files.Cur, conns, connsEach); conns != s.HTTPMaxConns {
		logger.Warn("the limit of open files is too low for GATE_HTTP_MAX_CONNECTIONS, of which each is one; fewer are served", "source", "gate",
			"limit", files.Cur, "connections", conns, "per_address", connsEach)
	}
	server, err := httpd.Listen(httpd.ServerOptions{
		MaxConns: conns, MaxConnsEach: connsEach, Proxies: proxies,
		Addr: s.HTTPListenAddr, Handler: g.handler, Logger: logger, TLS: listenerTLS, DrainTimeout: cmp.Or(a.drain, drainTime),
		Overdue: g.cancelStatements, Grace: millis(s.DBCommitTimeout) + cancelMargin,
	})
	if err != nil {
		return errors.Join(listenError("GATE_HTTP_LISTEN_ADDR", s.HTTPListenAddr, err), g.shutdown(ctx, true))
	}
	wire, err := g.openWire(users, listenerTLS, cmp.Or(a.drain, drainTime))
	if err != nil {
		return errors.Join(err, server.Close(), g.shutdown(ctx, true))
	}
	logger.Info("the gate is listening", "source", "gate", "address", server.Addr().String(), "mode", s.Mode, "version", version, "tls", listenerTLS != nil)
	if addr, ok := server.Addr().(*net.TCPAddr); ok && listenerTLS == nil && !addr.IP.IsLoopback() {
		logger.Warn("the API is cleartext on an address that others reach: tokens and statements can be read on the way; set GATE_TLS_CERT_PATH and GATE_TLS_KEY_PATH", "source", "gate")
	}
	if _, err := httpd.ParseOperators(s.OperatorToken, s.OperatorTokens, minProductionToken); err != nil {
		logger.Warn(err.Error()+": whoever guesses it can approve anything, and production refuses it", "source", "gate")
	}
	if g.gate.ModeNow() == sqlgate.ModeEmergencyBypass {
		logger.Warn("emergency bypass: statements with an operator token run whatever was decided about them", "source", "gate",
			"reason", s.BypassReason, "until", s.BypassUntil)
	}
	if s.Mode == sqlgate.ModeEmergencyBypass && g.gate.ModeNow() != s.Mode {
		logger.Warn("GATE_MODE is emergency_bypass and its time is over, so the gate enforces; set GATE_MODE to what it is to be", "source", "gate", "until", s.BypassUntil)
	}
	if wire != nil && a.wireReady != nil {
		a.wireReady(wire.Addr().String())
	}
	a.refusing = g.gate.Chain().Failure()
	if a.ready != nil {
		a.ready(server.Addr().String())
	}
	return g.run(ctx, server, wire)
}

// listenAddrs are the addresses to listen on, by their settings.
func (s *settings) listenAddrs() map[string]string {
	addrs := map[string]string{"GATE_HTTP_LISTEN_ADDR": s.HTTPListenAddr}
	if s.WireEnabled {
		addrs["GATE_PGWIRE_LISTEN_ADDR"] = s.WireListenAddr
	}
	return addrs
}

// addressesFree looks whether this process could listen on addresses, by their settings.
func addressesFree(addrs map[string]string) error {
	for setting, addr := range addrs {
		l, err := net.Listen("tcp", addr)
		if err == nil {
			err = l.Close()
		}
		if err != nil {
			return listenError(setting, addr, err)
		}
	}
	return nil
}

// listenError says what to do where an address can't be listened on.
func listenError(setting, addr string, err error) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		_, port, _ := net.SplitHostPort(addr)
		return exitWith(exitUnavailable, fmt.Errorf("%s is %s, and another program listens there, such as another gate or a `make run` that was not stopped. `ss -ltnp 'sport = :%s'` shows which: stop it, or set another address", setting, addr, port))
	}
	return exitWith(exitConfigured, fmt.Errorf("%s is %s, where this machine can't listen: %w", setting, addr, err))
}

// connsWithin leaves half of the files that the process may open to all but the
// connections of its clients: the log, a verification of all its segments, the
// projections, the database. Where that leaves fewer connections than are asked for, one
// address has a quarter of them at most, as by default.
func connsWithin(files uint64, most, each int) (int, int) {
	fit := int(min(files/2, math.MaxInt32))
	if most <= fit {
		return most, each
	}
	return max(fit, 1), min(each, max(fit/4, 1))
}

// parseWorkerCommand is what the gate starts for texts that are long or deep.
func (a *app) parseWorkerCommand() *cobra.Command {
	return &cobra.Command{
		Use: parseWorkerName, Hidden: true, Args: cobra.NoArgs,
		Short: "Parse statements for a gate that started this process",
		RunE:  func(*cobra.Command, []string) error { return classify.ParseWorker() },
	}
}
