package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"sync"
	"syscall"
	"time"

	"writegate/agentctl"
	"writegate/agentctl/toolcheck"
	"writegate/commands"
	"writegate/commands/checkpoints"
	"writegate/commands/fault"
	"writegate/commands/fence"
	"writegate/eventlog"
	"writegate/eventlog/checkpoint"
	"writegate/eventlog/event"
	"writegate/eventlog/frame"
	"writegate/http/gateapi"
	"writegate/http/httpd"
	"writegate/projections"
	"writegate/sqlgate"
	"writegate/sqlgate/classify"
	"writegate/sqlgate/pgexec"
	"writegate/sqlgate/pgwire"
	"writegate/sqlgate/replay"
)

// A service is one running gate: what open made, in the order in which it was
// made; close undoes it backwards.
type service struct {
	settings     *settings
	log          *slog.Logger
	buffer       *httpd.LogBuffer
	started      time.Time
	step         func(string)
	logFS        frame.FS         // nil is the host's
	sessionClock func() time.Time // nil is the host's
	tls          *tlsKeeper
	look         time.Duration // how often what is not fine is looked at again
	courtesy     time.Duration // another firstLookTime, PlanTime and LastOffer; 0 is theirs
	parseWall    time.Duration // 0 is the classifier's own
	roles        roleBook

	toolSecrets toolcheck.Secrets // by name, for verification of tools

	signingKey *checkpoint.PrivateKey // nil: evidence is not signed
	signer     *checkpoint.Signer     // of this log's checkpoints, with the same key; nil likewise

	baselineSaid string // by the last checks of the access rules
	markerSaid   string // by the last look at the marker table
	markerSeen   bool   // a look at it was answered

	fence      *fence.Fence         // nil where there is none
	fenceTaken *event.LogFenceTaken // by this start; nil: not yet

	keeper     *checkpoints.Keeper
	endKeeping func() // ends the keeper's own work and waits for it
	store      *projections.Store
	events     *eventlog.Log
	recovery   eventlog.Recovery
	commands   *commands.Commands
	classifier *classify.Classifier
	database   *pgexec.DB
	agents     *agentctl.Service
	waits      httpd.Shares // for approvals
	gate       *sqlgate.Gate
	limiter    *httpd.Limiter // of statements, whichever way they come
	handler    *httpd.Mux
	wire       *pgwire.Server // nil where it is not enabled

	ended   context.CancelFunc // ends the background work
	work    sync.WaitGroup
	damaged error       // why no command may be given, found at start
	held    []io.Closer // locks of places that no other gate may use
	loose   string      // what other accounts could use of the gate's files until this start

	behindLoss string // what this start took back, where it is the first behind a loss
	missing    string // what is wrong with the logs before this one
}

// open makes everything, from the log up to the handler. Every fault that an
// operator can mend through the API leaves the service up for reading.
func (g *service) open(ctx context.Context) error {
	background, cancel := context.WithCancel(context.WithoutCancel(ctx))
	g.ended = cancel
	g.work.Go(func() { g.tls.run(background) })
	g.makePrivate()
	if g.settings.LogFenceURL != "" {
		g.fence = fence.New()
	}
	if err := g.openTools(); err != nil {
		return err
	}
	if err := g.openLog(ctx, background); err != nil {
		return err
	}
	if err := g.openGate(ctx); err != nil {
		return err
	}
	if g.damaged == nil {
		if err := g.takeFence(ctx); err != nil {
			return err
		}
		// The first event of each alone is read: log verify and log backup read the rest.
		if _, err := g.events.Ancestors(ctx); errors.Is(err, eventlog.ErrAncestor) {
			g.missing = err.Error() + "; this start did not need it, a start that has to fold the log does"
			g.log.Error(g.missing, "source", "gate")
		}
		if err := g.endInherited(ctx); err != nil {
			return fmt.Errorf("the agents of the log before this one could not be deactivated: %w", err)
		}
		if err := g.commands.Start(ctx, g.startup()); err != nil {
			return fmt.Errorf("the start could not be written to the event log: %w", err)
		}
		if g.fence != nil {
			g.fence.Recorded()
			g.work.Go(func() { g.commands.RunLate(background) })
		}
		if err := g.keeper.Begin(ctx, g.commands); err != nil {
			g.log.Error("the gate starts without a new checkpoint of its log", "source", "gate", "cause", err.Error())
		}
		g.keepCheckpoints(background)
		g.work.Go(func() { g.commands.RunExpiry(background) })
		g.work.Go(func() { g.commands.RunThrottle(background) })
		g.work.Go(func() { g.gate.KeepSessions(background) })
		if err := g.agents.Restore(ctx); err != nil {
			return fmt.Errorf("the usage of the last hour could not be read from the event log: %w", err)
		}
		g.work.Go(func() { g.agents.Run(background) })
	}
	if g.agents.Issuer != nil {
		g.work.Go(func() { g.agents.Issuer.Run(background) }) // one that is down does not keep the gate from starting
	}
	g.expectRoles(ctx)
	g.firstLook(ctx)
	if err := g.lookAtFence(); err != nil {
		return err
	}
	if g.settings.OutcomeMarkerTable != "" {
		fine := g.checkMarker(ctx)
		g.work.Go(func() { g.keepMarker(background, fine) })
	}
	if g.settings.EnforceHBA != baselineOff {
		fine := g.checkBaseline(ctx)
		g.work.Go(func() { g.keepBaseline(background, fine) })
	}
	g.gate.RunChain(ctx, g.damaged)
	g.work.Go(func() { g.gate.KeepTrying(background) })
	if every := g.settings.OutcomeCheckSecs; every > 0 && g.damaged == nil {
		g.work.Go(func() { g.gate.KeepChecking(background, time.Duration(every)*time.Second) })
	}
	return g.openAPI(ctx)
}

// firstLook asks the database for its version before the first statement is
// classified. A database out of reach does not keep the gate from starting: it
// is then strict about what is built in, until a connection shows the version.
func (g *service) firstLook(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(g.courtesy, firstLookTime))
	defer cancel()
	if status := g.database.Status(ctx); !status.OK {
		g.log.Warn("the database is out of reach; the gate starts without it", "source", "gate", "cause", status.Message)
		if g.damaged == nil {
			g.databaseOut(ctx, status.Message, "out_of_reach_at_start")
		}
	}
}

// openLog opens store and log, compares them and replays what the store has not seen.
func (g *service) openLog(ctx, background context.Context) (err error) {
	s := g.settings
	g.store, err = projections.Open(projections.Options{Dir: s.ApprovalDBPath, Context: ctx, Logger: g.log.With("source", "projections")})
	if err != nil {
		code := exitFatal
		if errors.Is(err, syscall.EAGAIN) { // of their lock
			code = exitLocked
		} else if errors.Is(err, syscall.ENOTDIR) {
			code = exitConfigured
		}
		return exitWith(code, fmt.Errorf("the projections in %s (GATE_APPROVAL_DB_PATH) cannot be opened: %w", s.ApprovalDBPath, err))
	}
	if err := g.hold(); err != nil {
		return err
	}
	if g.keeper, err = g.newKeeper(); err != nil {
		return err
	}
	options := g.logOptions()
	options.Outside = g.keeper.Papers
	if applied := g.store.Applied(); applied.Seq > 0 {
		options.Projection = &frame.Anchor{LogID: applied.LogID, Seq: applied.Seq, Hash: applied.Hash}
	}
	g.events, g.recovery, err = eventlog.Open(ctx, options)
	if err != nil {
		return exitWith(eventlog.ExitCode(err), fmt.Errorf("the event log %s (GATE_AUDIT_WAL_PATH) cannot be opened: %w", s.AuditWALPath, err))
	}
	dropCounted(s.ApprovalDBPath)
	if origin := g.events.Header().Origin; origin != "" { // it is empty where damage hides the header
		if s.AuditOrigin != "" && s.AuditOrigin != origin {
			const differ = "the event log %s (GATE_AUDIT_WAL_PATH) is called %q, and GATE_AUDIT_ORIGIN names %q"
			if s.WitnessURLs != "" {
				return exitWith(exitConfigured, fmt.Errorf(differ+", so it is not the log that the witnesses know. Find out how it came there, and put the right log back: a log that was put away must not go on", s.AuditWALPath, origin, s.AuditOrigin))
			}
			g.log.Warn(fmt.Sprintf(differ, s.AuditWALPath, origin, s.AuditOrigin), "source", "gate")
		}
		if g.signer, err = signerOf(origin, g.signingKey); err != nil {
			return exitWith(exitConfigured, err)
		}
	}
	g.damaged = damage(g.events.Serving())
	proven, err := g.proveStore(ctx)
	if err != nil {
		return err
	}
	believed := g.store.Applied().Seq > 0 && !proven
	g.keeper.Attach(g.events, g.store, g.signer)
	if err := g.store.Connect(ctx, g.events); err != nil {
		if errors.Is(err, eventlog.ErrAncestor) {
			return exitWith(exitConfigured, fmt.Errorf("the projections can't be made anew without the log before this one; put its folder back, a backup has it: %w", err))
		}
		if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
			return exitWith(exitFatal, fmt.Errorf("the volume of the projections %s (GATE_APPROVAL_DB_PATH) is full, so they can't follow the event log; nothing is lost, free space there and start again: %w", s.ApprovalDBPath, err))
		}
		if frame.Exhausted(err) {
			return exitWith(exitFatal, fmt.Errorf("the projections can't follow the event log, because too many files are open; raise the limit of open files (ulimit -n, LimitNOFILE): %w", err))
		}
		if g.damaged == nil {
			g.damaged = contradict(err)
		}
		return g.readableStore(err)
	}
	if believed && g.damaged == nil && s.AuditVerifyOnStart == eventlog.VerifyFull {
		if err := g.store.Rebuild(ctx, g.events); err != nil {
			return fmt.Errorf("the projections could not be made anew: %w", err)
		}
	}
	g.events.VouchWith(g.store.Vouches)
	g.judgeOutside(ctx)
	g.work.Go(func() { _ = g.store.Run(background, g.events) }) // its errors come through Fatal
	return nil
}

// proveStore puts projections aside that are not what the last event of the log
// says of them: somebody changed them while no gate ran, and what they say of
// approvals, tokens and policies would be believed. proven is false where the log
// says nothing of them.
func (g *service) proveStore(ctx context.Context) (proven bool, err error) {
	at := g.events.Head().Seq
	if g.damaged != nil || at == 0 || g.store.Applied().Seq != at {
		return false, nil
	}
	last, err := g.events.At(ctx, at)
	if err == nil {
		proven, err = g.store.Prove(ctx, &last)
	}
	if errors.Is(err, projections.ErrUnproven) || errors.Is(err, projections.ErrDamaged) {
		g.store, err = g.store.PutAside(err.Error())
	}
	if err != nil {
		return false, fmt.Errorf("the projections could not be held against the event log: %w", err)
	}
	return proven, nil
}

// damage names the code that statements are answered with while a log that is
// corrupt is up for reading; what else keeps it from serving is audit_unavailable.
func damage(err error) error {
	if errors.Is(err, eventlog.ErrCorrupt) {
		return fault.New(fault.AuditCorruptionDetected, "Verification found corruption at the start; GET /evidence/verify shows it").Because(err)
	}
	return err
}

// contradict is what statements are answered with where the projections are not the log's.
func contradict(err error) error {
	return fault.New(fault.AuditCorruptionDetected, "The projections and the event log contradict each other, so the service only answers reads. Stop it and run `gate log verify`; `gate log rebuild` makes the projections anew from a log that verifies.").Because(err)
}

// readableStore sorts what Connect found: another log's store is a mistake of
// the configuration, unless damage hides whose log it is; all else leaves the
// gate up for reading.
func (g *service) readableStore(err error) error {
	if errors.Is(err, projections.ErrOtherLog) && g.events.Serving() == nil {
		return exitWith(exitConfigured, fmt.Errorf("%w: GATE_APPROVAL_DB_PATH and GATE_AUDIT_WAL_PATH must belong together", err))
	}
	g.log.Error("projections and event log contradict each other", "source", "gate", "cause", err.Error())
	return nil
}

func (g *service) logOptions() eventlog.Options {
	s := g.settings
	o := eventlog.Options{
		FS: g.logFS, Path: s.AuditWALPath, JSONLPath: s.AuditLogPath, IndexPath: s.indexPath(), Fsync: s.AuditFsync, OnTornTail: s.AuditOnTornTail,
		VerifyOnStart: s.AuditVerifyOnStart, PreallocateBytes: s.AuditPreallocate, AllowNetworkFS: s.AuditNetworkFS, Origin: s.AuditOrigin,
		SigningKey: g.signingKey, SegmentBytes: s.AuditSegmentBytes, SegmentAge: time.Duration(s.AuditSegmentHours) * time.Hour,
		Logger: g.log.With("source", "eventlog"), Step: g.step, OnCorruption: g.corrupted,
	}
	if g.fence != nil {
		o.Fence = g.fence.Check
	}
	return o
}

// corrupted is told of damage that a verification found while the gate runs:
// from now on it only answers reads.
func (g *service) corrupted(r frame.Report) {
	kind, detail, seq := "corruption_detected", "", uint64(0)
	if len(r.Faults) > 0 {
		kind, detail, seq = string(r.Faults[0].Kind), r.Faults[0].Detail, r.Faults[0].Seq
	}
	if g.gate != nil {
		g.gate.Chain().AuditFailed(fault.AuditCorruptionDetected, "Verification found corruption ("+kind+"); GET /evidence/verify shows it.")
	}
	if g.commands == nil {
		return
	}
	if err := g.commands.RecordCorruption(context.Background(), kind, detail, seq); err != nil {
		g.log.Error("the corruption could not be written to the event log", "source", "gate", "cause", err.Error())
	}
}

// openTools makes what needs no log, before there is one: a start that fails for
// its settings leaves nothing behind that a later restore would refuse.
func (g *service) openTools() (err error) {
	s := g.settings
	if g.classifier, err = newClassifier(s, g.parseWall); err != nil {
		return fmt.Errorf("the classifier cannot be made: %w", err)
	}
	if g.database, err = g.openDatabase(); err != nil {
		return exitWith(exitConfigured, fmt.Errorf("the database settings are not usable: %w", err))
	}
	if err = g.tls.keepDatabase(s, g.database); err != nil {
		return exitWith(exitConfigured, err)
	}
	return nil
}

// openGate makes what decides and what executes.
func (g *service) openGate(ctx context.Context) (err error) {
	s := g.settings
	g.commands, err = commands.New(commands.Options{
		Log: g.events, Store: g.store, Logger: g.log, Step: g.step, DefaultTTL: seconds(s.ApprovalTTL),
	})
	if err != nil {
		return err
	}
	view := g.store.ViewWithin(ctx)
	known := view.Counters()
	if err := view.Close(); err != nil {
		return commands.ViewFault(err)
	}
	back := s.DatabaseTimeline
	if back == known.PutBack && !known.Awaited { // it counted already; else the startup event will say so
		back = ""
	}
	g.database.Knows(known.Timelines, back)
	if g.agents, err = g.newAgents(); err != nil {
		return exitWith(exitConfigured, fmt.Errorf("the agent API cannot be made: %w", err))
	}
	g.waits = gateapi.NewWaits()
	g.gate, err = sqlgate.New(sqlgate.Options{
		Classifier: g.classifier, Database: g.database, Commands: g.commands, Store: g.store,
		Mode: s.Mode, BypassReason: s.BypassReason, BypassUntil: s.bypassUntil(), SQLText: s.AuditSQLText, MaxSQLBytes: s.MaxSQLBytes,
		QueryTimeout: millis(s.DBQueryTimeout), BulkTimeout: millis(s.DBBulkTimeout), ResultRows: s.MaxResultRows, ResultBytes: s.MaxResultBytes, MarkerTable: s.OutcomeMarkerTable,
		Policies: sqlgate.PolicySource{Dir: s.PolicyDir, Manifest: s.PolicyManifest, DefaultTTL: s.ApprovalTTL},
		Events:   g.events.From, ReplayTimeout: millis(s.ReplayTimeout), RequireImpact: s.RequireImpact,
		Wire:          sqlgate.WireOptions{MaxBlocks: s.WireMaxTx, BlocksReserved: s.DBPoolReserved, BlockTime: millis(s.WireTxMax), BlockIdle: millis(s.WireTxIdle), SearchPath: s.SearchPath, LockTimeout: millis(s.DBLockTimeout), TakeWait: g.waits.TakeFor},
		DryRunTimeout: millis(s.DryRunTimeout), DryRunLockTimeout: millis(s.DryRunLockTimeout),
		PlanEstimates: s.PlanEstimates, CatalogRefresh: time.Duration(s.CatalogRefreshSecs) * time.Second, MaxSessions: s.MaxSessions, SessionClock: g.sessionClock,
		Overlay: g.agents, StatusOf: httpd.Status, Logger: g.log, Step: g.step,
	})
	return err
}

// newClassifier makes the classifier that the settings describe. Its parser
// child is this very binary; parseWall bounds what a text may take of it by the
// clock, 0 is the classifier's own bound.
func newClassifier(s *settings, parseWall time.Duration) (*classify.Classifier, error) {
	cfg := classifierConfig(s)
	cfg.RequestWall = parseWall
	return classify.New(cfg)
}

func classifierConfig(s *settings) classify.Config {
	return classify.Config{
		SearchPath: s.SearchPath, KeyColumns: splitList(s.KeyColumns), MaxSQLBytes: s.MaxSQLBytes,
		ParserMode: s.ParserMode, Children: s.ParserChildren, ClientOf: pgexec.ClientOf,
	}
}

// startup is what the startup event says.
func (g *service) startup() commands.Startup {
	s := g.settings
	engine := sqlgate.EngineRecord()
	engine["gate"], engine["go"] = version, runtime.Version()
	if s.OutcomeMarkerTable != "" {
		engine[replay.EngineMarkerTable] = s.OutcomeMarkerTable
	}
	if s.CatalogRefreshSecs != 0 {
		replay.RecordClassifier(engine, classifierConfig(s))
	}
	if s.DatabaseTimeline != "" {
		engine[event.EngineTimeline] = s.DatabaseTimeline
	}
	e := event.Startup{
		Version: version, Profile: s.Profile, Fsync: s.AuditFsync, VerifyOnStart: s.AuditVerifyOnStart, OnTornTail: s.AuditOnTornTail,
		Filesystem: g.recovery.Filesystem, Anchors: g.recovery.Anchors, Engine: engine, Warnings: g.recovery.Warnings,
	}
	if g.signer != nil {
		e.SigningVKey = g.signer.VKey()
	}
	if aside, ok := g.store.Aside(); ok {
		e.Warnings = append(e.Warnings, "Projections were put aside and rebuilt: "+aside.Reason)
	}
	for _, warning := range []string{g.loose, g.missing, g.behindLoss} {
		if warning != "" {
			e.Warnings = append(e.Warnings, warning)
		}
	}
	return commands.Startup{Mode: s.Mode, Event: e, Tails: g.recovery.Tails, Fence: g.fenceTaken}
}

// endInherited takes back, at the first start of a log that was begun behind a loss,
// what the lost events may have ended. No gate has served this log before its first
// startup, so where the work is cut short the next start does the rest.
func (g *service) endInherited(ctx context.Context) error {
	starts := 0
	for e, err := range g.events.From(ctx, 1) {
		if err != nil {
			return err
		}
		if e.Type == event.TypeStartup {
			starts++
		}
		if starts != 1 || e.Seq == 1 && !followsAnother(&e) {
			return nil
		}
	}
	if starts == 0 {
		return nil
	}
	view := g.store.ViewWithin(ctx)
	found, err := view.Inherited(time.Now())
	if err = errors.Join(err, view.Close()); err != nil {
		return err
	}
	g.behindLoss = "The log begins behind a loss. " + tookBack(&found).String()
	g.log.Warn(g.behindLoss, "source", "gate", "approvals", found.Approvals, "agents", len(found.Agents), "tokens", found.Tokens)
	return g.agents.EndInherited(ctx, found.Agents)
}

// followsAnother tells whether a log's first event names a log before it.
func followsAnother(first *event.Envelope) bool {
	var p event.Startup
	return first.Parse(&p) != nil || p.Predecessor != nil
}

// openAPI makes the handler.
func (g *service) openAPI(ctx context.Context) (err error) {
	s := g.settings
	operators, _ := s.operators()                      // checked at load
	proxies, _ := httpd.ParseProxies(s.TrustedProxies) // checked at load
	names, _ := httpd.ParseNames(s.AllowedHosts)       // checked at load
	if g.limiter, err = httpd.NewLimiter(s.RatePerMin, s.RateBurst, time.Now); err != nil {
		return exitWith(exitConfigured, err)
	}
	conventions := httpd.Options{
		Logger: g.log, MaxBodyBytes: s.MaxBodyBytes, Operators: operators, Limiter: g.limiter, Proxies: proxies, Names: names,
		OnIncident: gateapi.OnIncident(g.commands, g.log),
	}
	if g.agents.Issuer != nil {
		conventions.AgentIssuer = g.agents.Issuer.URL
	}
	if g.signer != nil {
		conventions.Earned = gateapi.Receipts(g.log)
	}
	g.handler = httpd.NewMux(conventions)
	files, err := s.auditFiles()
	if err != nil {
		return exitWith(exitConfigured, err)
	}
	gateapi.Register(g.handler, gateapi.Options{
		Gate: g.gate, Commands: g.commands, Store: g.store, Log: g.events, Database: g.database, Classifier: g.classifier,
		Operators: operators, Logs: g.buffer, Version: version, Started: g.started, MaxSQLBytes: s.MaxSQLBytes, Now: time.Now,
		Source: g.events, MaxEvidenceEvents: uint64(s.EvidenceMaxEvents), MaxEvidenceBytes: s.EvidenceMaxBytes, Files: files, StreamsPerClient: s.StreamsPerClient, Waits: g.waits, Stopping: ctx, Checkpoints: g.keeper,
		TLS: g.tls.states, Wire: g.wireStats, WireHealth: g.wireHealth, Issuer: g.issuerState, Fence: g.fenceState,
	})
	return g.registerAgents(ctx)
}

// run serves until ctx ends or the log or the store fails. A clean end drains
// the running requests first; after a failure there is nothing to wait for.
func (g *service) run(ctx context.Context, server *httpd.Server, wire *pgwire.Server) error {
	served := make(chan served, 1)
	go func() { served <- serveBoth(ctx, server, wire) }()
	select {
	case e := <-served:
		if ctx.Err() == nil {
			return e.err
		}
		if e.err != nil {
			g.log.Warn("a listener did not end cleanly", "source", "gate", "cause", e.err.Error())
		}
		return g.shutdown(ctx, e.drained)
	case err := <-g.events.Fatal():
		return g.fatal("the event log failed, so the gate ends; the next start judges what is on disk", err)
	case err := <-g.store.Fatal():
		return g.fatal("the projections failed, so the gate ends; the next start replays the log", err)
	}
}

// served is how serving ended.
type served struct {
	drained bool // whatever ran was answered
	err     error
}

// serveBoth serves both listeners; where one ends by itself the other is ended
// too. wire is nil where it is not enabled.
func serveBoth(ctx context.Context, server *httpd.Server, wire *pgwire.Server) served {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var beside served
	var work sync.WaitGroup
	beside.drained = true
	if wire != nil {
		work.Go(func() {
			defer cancel()
			if beside.drained, beside.err = wire.Serve(ctx); beside.err != nil {
				beside.err = fmt.Errorf("the wire listener ended: %w", beside.err)
			}
		})
	}
	drained, err := server.Serve(ctx)
	if err != nil {
		err = fmt.Errorf("the HTTP API ended: %w", err)
	}
	cancel()
	work.Wait()
	return served{drained && beside.drained, errors.Join(err, beside.err)}
}

// fatal ends the process with the code that says so.
func (g *service) fatal(what string, cause error) error {
	err := fmt.Errorf("%s: %w", what, cause)
	g.log.Error("fatal", "source", "gate", "cause", err.Error())
	return exitWith(exitFatal, err)
}

// shutdown writes the last event of a clean end. A log that was found damaged gets none:
// an operator may have copied the open files, and what comes behind the copy would be
// missing from it.
func (g *service) shutdown(ctx context.Context, drained bool) error {
	if g.damaged != nil {
		return nil
	}
	if err := g.events.Serving(); err != nil {
		g.endKeeping()
		g.log.Warn("the log is damaged, so the gate ends without a shutdown event", "source", "gate", "cause", err.Error())
		return nil
	}
	if g.fence != nil && g.fence.Check() != nil {
		g.endKeeping()
		g.log.Warn("the log may not be written just now, so the gate ends without a shutdown event", "source", "gate", "cause", g.fence.Check())
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTime)
	defer cancel()
	if err := g.agents.FlushUsage(ctx, true); err != nil {
		g.log.Warn("the last usage could not be written to the event log", "source", "gate", "cause", err.Error())
	}
	g.endKeeping() // no checkpoint comes after the last event
	if err := g.commands.Shutdown(ctx, "stopped", drained); err != nil {
		return exitWith(exitFatal, fmt.Errorf("the shutdown event could not be written: %w", err))
	}
	g.keeper.Last(ctx)
	return nil
}

// close undoes open, backwards. The log goes before the store, so that the
// store has folded everything that the log took.
func (g *service) close() {
	if g.classifier != nil {
		g.classifier.Close()
	}
	if g.agents != nil {
		g.agents.Tools.Checker.Close()
	}
	if g.database != nil {
		g.closeDatabase()
	}
	if g.ended != nil {
		defer g.work.Wait()
		defer g.ended()
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	var closing error
	if g.events != nil {
		if closing = g.events.Close(ctx); closing != nil {
			g.log.Error("the event log did not close cleanly; the next start judges it", "source", "gate", "cause", closing.Error())
		}
	}
	if g.fence != nil {
		g.fence.Release(closing == nil) // else a write may hang, and come to the disk later
	}
	if g.store != nil {
		if err := g.store.Close(); err != nil {
			g.log.Error("the projections did not close cleanly; the next start replays", "source", "gate", "cause", err.Error())
		}
	}
	for _, lock := range g.held {
		_ = lock.Close() // it ends with the process at the latest
	}
}
