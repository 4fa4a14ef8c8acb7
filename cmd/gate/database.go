package main

import (
	"context"
	"time"

	"writegate/sqlgate/pgexec"
)

// openDatabase makes the pools; it connects to nothing yet.
func (g *service) openDatabase() (*pgexec.DB, error) {
	c := g.settings.databaseConfig()
	c.RoleEvery, c.PlanTime = looksWhenFine*g.look, g.courtesy
	c.OnRole = func(r pgexec.RoleReport) { g.work.Go(func() { g.roleSeen(r) }) }
	c.OnServerMajor = g.learnMajor
	if g.fence != nil {
		c.MayCommit = g.mayCommit
	}
	c.OnPoolStopped = func(pool, reason string) { g.work.Go(func() { g.poolStopped(pool, reason) }) }
	return pgexec.Open(c, g.log.With("source", "database"))
}

func (s *settings) databaseConfig() pgexec.Config {
	return pgexec.Config{
		URL: s.DatabaseURL, ReadURL: s.DatabaseReadURL, DDLURL: s.DatabaseDDLURL, SearchPath: s.SearchPath, PoolMax: s.DBPoolMax, PoolReserved: s.DBPoolReserved,
		ConnLifetime: seconds(s.DBConnLifetime), ConnIdle: seconds(s.DBConnIdle), ConnectTimeout: millis(s.DBConnectTimeout),
		AcquireTimeout: millis(s.DBAcquireTimeout), QueryTimeout: millis(s.DBQueryTimeout), BulkQueryTimeout: millis(s.DBBulkTimeout),
		LockTimeout: millis(s.DBLockTimeout), IdleInTxTimeout: millis(s.DBIdleInTxTimeout), CommitTimeout: millis(s.DBCommitTimeout),
		ErrorDetail: s.DBErrorDetail, MaxResultRows: s.MaxResultRows, MaxResultBytes: s.MaxResultBytes,
		MarkerTable: s.OutcomeMarkerTable, MarkerKeep: days(s.OutcomeMarkerKeep),
		TLS:       pgexec.TLSConfig{Mode: s.UpstreamTLSMode, CAPath: s.UpstreamTLSCA, CertPath: s.UpstreamTLSCert, KeyPath: s.UpstreamTLSKey, ServerName: s.UpstreamTLSServerName},
		DenyRoles: s.Profile == profileProduction,
	}
}

// learnMajor tells the classifier which server it is in front of, so that what
// that version has built in counts as built in.
func (g *service) learnMajor(major int) {
	if err := g.classifier.SetServerMajor(major); err != nil {
		g.log.Error("the classifier does not know this version of PostgreSQL; only what all known ones have counts as built in", "source", "gate", "cause", err.Error())
	}
}

// poolStopped says in the log that the database cannot be used for a while.
func (g *service) poolStopped(pool, reason string) {
	g.databaseOut(context.Background(), "The "+pool+" connections are stopped for a while.", reason)
}

func (g *service) databaseOut(ctx context.Context, message, reason string) {
	if err := g.commands.RecordDBUnavailable(context.WithoutCancel(ctx), message, reason); err != nil {
		g.log.Error("the outage of the database could not be written to the event log", "source", "gate", "cause", err.Error())
	}
}

// cancelStatements asks the database, until ctx ends, to end every statement
// that runs: one that was just being sent is caught the next time. What commits
// is left alone; it has a bound of its own.
func (g *service) cancelStatements(ctx context.Context) {
	again := time.NewTicker(cancelEvery)
	defer again.Stop()
	for {
		if n := g.database.CancelAll(ctx); n > 0 {
			g.log.Warn("statements were cancelled because the gate ends", "source", "gate", "statements", n)
		}
		select {
		case <-ctx.Done():
			return
		case <-again.C:
		}
	}
}

// closeDatabase waits for no statement: those that were cut off, and those of a
// gate whose log failed, could not leave evidence of a result any more.
func (g *service) closeDatabase() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go g.cancelStatements(ctx)
	g.database.Close()
}
