package pgexec

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/puddle/v2"

	"writegate/commands/fault"
)

// A poolKind is the use a pool's connections are for.
type poolKind int

const (
	reader poolKind = iota
	writer
	definer // classes ddl, dcl and maintenance, where they have a role of their own
)

func (k poolKind) String() string {
	return [...]string{"reader", "writer", "ddl"}[k]
}

const (
	definerConns = 2
	readerUses   = 100              // a reader is cleaned and looked at after so many
	workAtOnce   = time.Second      // of a use, and
	workInAll    = 10 * time.Second // of all, after which a connection is closed (worn)
	driftWindow  = time.Minute      // three connections that drift within it by themselves
	driftMost    = 3                // stop the pool
	stopTime     = 30 * time.Second // for so long
)

// A pool holds the connections of one use. slots bounds those in use, so that
// waiting for a free one and logging in have their own time limits.
type pool struct {
	kind      poolKind
	cfg       Config
	login     *pgconn.Config // without run-time parameters
	tls       *atomic.Pointer[tlsSet]
	timelines *timelines
	types     *typeCache // of all pools
	log       *slog.Logger
	slots     chan struct{}
	own       shares // of each client
	conns     *puddle.Pool[*conn]
	ctx       context.Context   // ends with the DB
	askEvery  time.Duration     // a constant, but for tests
	spawn     func(func()) bool // a goroutine that the DB's Close waits for

	major      atomic.Int32             // of the server; 0 before the first connection
	version    atomic.Pointer[string]   // of the server, in its own words; nil likewise
	server     atomic.Pointer[Upstream] // that the last connection was made to
	life       atomic.Pointer[string]   // and that server's
	outliving  atomic.Int64             // sessions that were given up and go on
	syncCommit atomic.Bool              // the role or the server says synchronous_commit=off: pin it

	waits       atomic.Int64
	waiting     atomic.Int64 // for a slot, now
	begins      atomic.Int64 // calls of Begin that have no connection yet
	quarantined atomic.Int64

	mu      sync.Mutex
	drifts  []time.Time
	stopped time.Time // until when
	roles   []string  // of all pools
	pools   []*pool
	calls   map[string]ColumnCall // what a text may call like a column; nil: not known yet
	callsAt time.Time
	callsOf string // the server's life that the calls are of
	// judgedAt is when a look at role and calls was last begun.
	judgedAt time.Time
	judged   string      // the server's life that it was begun in
	role     *RoleReport // nil: not looked at yet
	roleAt   time.Time
}

func newPool(kind poolKind, cfg Config, login *pgconn.Config, size int, set *atomic.Pointer[tlsSet], log *slog.Logger) (*pool, error) {
	p := &pool{kind: kind, cfg: cfg, login: login, tls: set, log: log.With("pool", kind.String()), slots: make(chan struct{}, size),
		own: shares{of: map[string]*share{}, each: ShareOf(size, cfg.PoolReserved), size: size}}
	conns, err := puddle.NewPool(&puddle.Config[*conn]{
		Constructor: p.connect,
		Destructor:  func(c *conn) { c.close() },
		MaxSize:     int32(size),
	})
	p.conns = conns
	return p, err
}

// A lease is one connection in use. cancel may come from another goroutine
// while a statement of the client's runs, and from nobody at any other time: a
// CancelRequest that comes late would hit somebody else.
type lease struct {
	*conn
	pool   *pool
	res    *puddle.Resource[*conn]
	client string // whose share it is of
	block  bool   // it carries a transaction of several statements

	mu        sync.Mutex
	running   bool
	begun     time.Time
	cancelled bool        // a CancelRequest was sent: the connection is closed afterwards
	asked     bool        // by the client or by the operator, not by the gate's deadline
	sending   *cancelling // the CancelRequest that is under way; nil: none

	ran     bool              // text of the client's was sent in this use
	watched map[string]string // what the connection reported before settings of the caller's; nil: there were none
}

// expect lets the server report settings of the caller's: what was asked for is
// no drift. The cleaning behind it has the pins reported.
func (l *lease) expect(settings map[string]string) {
	if l.watched == nil {
		l.watched = l.params
	}
	l.params = maps.Clone(l.watched)
	for name := range settings {
		delete(l.params, name)
	}
}

// A Meaning is what a server said of a text that was judged by it. Another server, or this
// one put back to an earlier day, may say something else.
type Meaning struct {
	Major int                   // that it was classified for; 0 = any
	Types Types                 // of its parameters
	Words []string              // of the text that may call something like a column
	Calls map[string]ColumnCall // what those words call, as ColumnCalls said

	Catalogue CatalogueRead // that it was judged by
}

// reads refuses a statement that means something else on this connection's server than on
// that by which it was judged. It sends nothing of the client's, and nothing at all but
// where types were named by another server, or before this one was started. Where the
// connection breaks meanwhile, the lease is broken; where another connection may do better, it is outdated.
func (l *lease) reads(ctx context.Context, m Meaning) error {
	if m.Major != 0 && m.Major != l.major {
		return fault.New(fault.DBUnavailable, "The database is PostgreSQL %d now, and the statement was read as PostgreSQL %d would read it. Nothing was executed; send it again, a prepared one from its PREPARE on.", l.major, m.Major).
			With("reason", "server_major").With("server_major", l.major)
	}
	if len(m.Words) > 0 {
		calls := l.pool.newestCalls(func(of string) bool { return of == l.life })
		l.outdated = l.outdated || calls == nil // of a server that has not been looked at since others were: a new connection looks
		if calls == nil || slices.ContainsFunc(m.Words, func(word string) bool { return calls[word] != m.Calls[word] }) {
			return replacedFault("what a word behind a dot calls is not known to be the same there")
		}
	}
	if err := l.sameCatalogue(ctx, m.Catalogue); err != nil {
		return err
	}
	if m.Types.Server == "" || m.Types.Server == l.life {
		return nil
	}
	now, err := l.typesNamed(ctx, time.Now().Add(l.pool.cfg.ConnectTimeout), slices.Collect(maps.Keys(m.Types.Names)))
	switch {
	case err != nil:
		return err
	case !maps.Equal(now.Names, m.Types.Names):
		return replacedFault("the types of its parameters are others there")
	}
	return nil
}

func replacedFault(why string) *fault.Fault {
	return fault.New(fault.DBUnavailable, "The database server is another one now than that by which the statement was judged, or was started again: %s. Nothing was executed; send it again, a prepared one from its PREPARE on.", why).
		With("reason", "server_replaced")
}

// acquire leases a connection that is alive, clean, and that nothing is known against.
func (p *pool) acquire(ctx context.Context) (*lease, error) {
	return p.acquireAs(ctx, (*conn).cleaned)
}

// acquireAs is acquire with another way to have the connection clean.
func (p *pool) acquireAs(ctx context.Context, clean func(*conn, time.Time) error) (*lease, error) {
	if f := p.refuses(); f != nil {
		return nil, f
	}
	if err := p.takeSlot(ctx); err != nil {
		return nil, err
	}
	for {
		res, err := p.conns.Acquire(ctx)
		if err != nil {
			p.giveSlot(ClientOf(ctx))
			return nil, connectFault(err)
		}
		c := res.Value()
		c.take()
		if err := clean(c, time.Now().Add(p.cfg.ConnectTimeout)); err != nil {
			p.unclean(c, err)
		}
		if c.drift != "" {
			p.quarantine(c, false)
		}
		behind := p.timelines.behind(&c.upstream) != "" // one that was made for somebody who went away may be, too
		if behind || c.uses > 0 && (c.broken || c.drift != "" || c.outdated || c.worn || p.expired(res) || c.stale()) {
			c.broken = c.broken || c.stale()
			res.Destroy()
			continue
		}
		c.uses++
		c.notices, c.foreign = nil, false
		return &lease{conn: c, pool: p, res: res, client: ClientOf(ctx)}, nil
	}
}

func (p *pool) unclean(c *conn, err error) {
	p.log.Warn("a database session that could not be cleaned was ended", "backend_pid", c.upstream.BackendPID, "error", err)
}

// takeSlot waits for room in the client's share and in the pool.
func (p *pool) takeSlot(ctx context.Context) error {
	timer := time.NewTimer(p.cfg.AcquireTimeout)
	defer timer.Stop()
	client := ClientOf(ctx)
	if err := p.own.take(ctx, client, timer.C, &p.waits); err != nil {
		return err
	}
	select {
	case p.slots <- struct{}{}:
		return nil
	default:
	}
	p.waits.Add(1)
	p.waiting.Add(1)
	defer p.waiting.Add(-1)
	var err error
	select {
	case p.slots <- struct{}{}:
		return nil
	case <-timer.C:
		err = errAllInUse()
	case <-ctx.Done():
		err = endedWaiting(ctx)
	}
	p.own.give(client)
	return err
}

func errAllInUse() error {
	return fault.New(fault.DBUnavailable, "All database connections of the gate are in use. Send the request again later.")
}

// awaited reports whether a write waits that takes the connection as soon as this use of
// it has ended. It may be wrong where others wait too: then nobody uses what was begun.
func (l *lease) awaited() bool {
	p := l.pool
	return p.begins.Load() > 0 && (p.waiting.Load() > 0 || p.own.awaited(l.client))
}

func (p *pool) giveSlot(client string) {
	<-p.slots
	p.own.give(client)
}

// release gives the connection back, or closes it where it must not be used again.
func (l *lease) release() {
	if l.drift != "" {
		l.pool.quarantine(l.conn, l.ran)
	}
	if l.watched != nil {
		l.params = l.watched
	}
	if l.owed != nil && l.owed.begun != nil && !l.awaited() && l.reset(time.Now().Add(rollbackWait)) != nil {
		l.broken = true
	}
	goesOn := l.broken && l.client != "" && !l.gone(time.Now().Add(endWait)) && l.outlive()
	if l.broken || l.cancelled || l.drift != "" || l.outdated || l.worn || l.txStatus != 'I' || l.pool.expired(l.res) || l.cleanIfDue() != nil {
		l.res.Destroy()
	} else {
		l.rest(&l.pool.cfg)
		l.res.Release()
	}
	<-l.pool.slots
	if !goesOn {
		l.pool.own.give(l.client)
	}
}

// cleanIfDue has the connection cleaned where a statement ran on it that was no
// safe read, and a reader now and then.
func (l *lease) cleanIfDue() error {
	due := l.dirty || l.kind == reader && l.uses%readerUses == 0
	if !due || l.owed != nil { // nothing was sent since
		return nil
	}
	return l.clean(time.Now().Add(l.pool.cfg.ConnectTimeout))
}

// begin marks the time in which a cancel has something to cancel.
func (l *lease) begin() {
	l.mu.Lock()
	l.running, l.asked, l.begun = true, false, time.Now()
	l.mu.Unlock()
}

// finish ends that time and reports whether somebody asked to cancel in it. It waits for
// a CancelRequest that is under way, which would end what comes next on the connection.
func (l *lease) finish() (asked bool) {
	l.mu.Lock()
	l.running = false
	took := time.Since(l.begun)
	l.worked += took
	l.worn = l.worn || took > workAtOnce || l.worked > workInAll
	asked, sending := l.asked, l.sending
	l.mu.Unlock()
	if sending != nil {
		<-sending.done
	}
	return asked
}

// A cancelling is a CancelRequest that is under way.
type cancelling struct {
	done chan struct{} // closed when err is set
	err  error
}

// cancel asks the server to end the running statement; asked tells a person's wish from
// the gate's own deadline. One request is under way at a time, and for cancelWait at
// most: a host that hangs must not keep the statement from its own end.
func (l *lease) cancel(ctx context.Context, asked bool) CancelState {
	l.mu.Lock()
	if !l.running {
		l.mu.Unlock()
		return CancelNothing
	}
	l.asked = l.asked || asked
	l.cancelled = true
	sending := l.sending
	mine := sending == nil
	if mine {
		sending = &cancelling{done: make(chan struct{})}
		l.sending = sending
	}
	l.mu.Unlock()
	if mine {
		sending.err = l.sendCancel(ctx)
		l.mu.Lock()
		l.sending = nil
		l.mu.Unlock()
		close(sending.done)
	}
	<-sending.done
	if sending.err != nil {
		return CancelUndelivered
	}
	return CancelForwarded
}

// sendCancel shows and expects the certificates of today: those of the login may have
// been exchanged since.
func (l *lease) sendCancel(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, cancelWait)
	defer cancel()
	key := *l.key
	if key.TLSConfig != nil {
		key.TLSConfig = l.pool.tls.Load().forHost(key.TLSConfig.ServerName)
	}
	pg, err := pgconn.Construct(&key)
	if err == nil {
		// It says nothing of an answer that does not come.
		err = cmp.Or(pg.CancelRequest(ctx), ctx.Err())
	}
	if err != nil {
		l.pool.log.Warn("the cancel request did not reach the database", "error", err)
	}
	return err
}

// connect is the pool's constructor: log in, prove the session, note the server.
func (p *pool) connect(ctx context.Context) (*conn, error) {
	hosts := time.Duration(1 + len(p.login.Fallbacks))
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.cfg.ConnectTimeout*(hosts+1))
	defer cancel()
	const attempts = 3 // the first connection learns the version, the second whether commits wait
	for range attempts {
		c, again, err := p.connectOnce(ctx)
		if err != nil {
			return nil, err
		}
		if !again {
			if p.roleDueAt(c) {
				if err := p.judgeRole(ctx, c); err != nil {
					c.close()
					return nil, err
				}
			}
			if !c.broken { // by that look, which the next attempt does not repeat
				return c, nil
			}
		}
		c.close()
	}
	return nil, fault.New(fault.DBConnectionFailed, "The database's settings change while the gate connects. Send the request again later, and tell the operator if it stays.")
}

// connectOnce logs in with what is known of the server; again asks for another
// try with what was learned.
func (p *pool) connectOnce(ctx context.Context) (c *conn, again bool, err error) {
	major := int(p.major.Load())
	pins := p.cfg.pins(p.kind, major)
	pinCommit := p.syncCommit.Load()
	login := p.login.Copy()
	p.tls.Load().apply(login)
	login.ConnectTimeout = cmp.Or(login.ConnectTimeout, p.cfg.ConnectTimeout) // the URL's, which is no longer
	login.MaxProtocolMessageBodyLen = int(p.cfg.MaxResultBytes) + 64<<10
	login.RuntimeParams = make(map[string]string, len(pins)+1)
	for _, pin := range pins {
		login.RuntimeParams[pin.name] = pin.value
	}
	if pinCommit {
		login.RuntimeParams["synchronous_commit"] = "on"
	}
	login.ValidateConnect = func(ctx context.Context, pg *pgconn.PgConn) error { // of each host in turn
		if p.kind != reader {
			if err := pgconn.ValidateConnectTargetSessionAttrsReadWrite(ctx, pg); err != nil {
				return err
			}
		}
		return p.timelines.admit(ctx, pg)
	}
	pg, err := dial(ctx, login)
	if err != nil {
		return nil, false, p.unlearn(err)
	}
	if c, err = takeOver(ctx, pg, p.kind); err != nil {
		return nil, false, err
	}
	if again, err := p.learnMajor(c, major); again || err != nil {
		return closeOn(c, err), again, err
	}
	err = c.assert(ctx, login, pins, time.Now().Add(p.cfg.ConnectTimeout))
	if err == nil {
		err = c.keep(ctx, time.Now().Add(p.cfg.ConnectTimeout))
	}
	if err != nil {
		return closeOn(c, err), false, err
	}
	if p.kind != reader {
		p.timelines.saw(c.upstream.SystemIdentifier, c.upstream.Timeline)
	}
	if old := p.server.Swap(&c.upstream); old != nil && (old.SystemIdentifier != c.upstream.SystemIdentifier || old.Timeline != c.upstream.Timeline) {
		p.log.Warn("connections lead to another server, or to one that was promoted: what the server before acknowledged at the end may be missing there", "host", c.upstream.Host,
			"system_identifier", c.upstream.SystemIdentifier, "timeline", c.upstream.Timeline, "timeline_before", old.Timeline)
	}
	if old := p.life.Swap(&c.life); old != nil && *old != c.life {
		p.types.forget()
	}
	if c.watch.synchronousCommit(c.settled) == "off" && !pinCommit && p.kind != reader {
		p.syncCommit.Store(true)
		return c, true, nil
	}
	return c, false, nil
}

// dial tries one host of the URL after the other. pgconn ends at a host that refuses the
// login, and an old primary may do that while the new one is well. That another host is a
// standby is no cause then: whoever is told so promotes it beside a primary that lives.
func dial(ctx context.Context, login *pgconn.Config) (*pgconn.PgConn, error) {
	var errs, standbys []error
	for _, host := range append([]*pgconn.FallbackConfig{{Host: login.Host, Port: login.Port, TLSConfig: login.TLSConfig}}, login.Fallbacks...) {
		one := login.Copy()
		one.Host, one.Port, one.TLSConfig, one.Fallbacks = host.Host, host.Port, host.TLSConfig, nil
		pg, err := pgconn.ConnectConfig(ctx, one)
		if err == nil {
			return pg, nil
		}
		if errors.Is(err, pgconn.ErrReadOnlyConnection) {
			standbys = append(standbys, err)
		} else {
			errs = append(errs, err)
		}
	}
	if errs == nil {
		return nil, errors.Join(standbys...)
	}
	return nil, errors.Join(errs...)
}

func closeOn(c *conn, err error) *conn {
	if err == nil {
		return c
	}
	c.close()
	return nil
}

// unlearn forgets the version when the server does not know a setting of it:
// the database may have been replaced by an older one.
func (p *pool) unlearn(err error) error {
	var e *pgconn.PgError
	if errors.As(err, &e) && e.Code == "42704" {
		p.major.Store(0)
	}
	return err
}

// learnMajor compares the server's major with the one that the login assumed.
func (p *pool) learnMajor(c *conn, assumed int) (again bool, err error) {
	if c.major < oldestMajor || c.major > newestMajor {
		return false, fault.New(fault.DBConnectionFailed, "The database server's version is not supported: the gate works with PostgreSQL %d to %d. Tell the operator.", oldestMajor, newestMajor).
			With("server_major", c.major)
	}
	p.version.Store(&c.version)
	if c.major == assumed {
		return false, nil
	}
	p.major.Store(int32(c.major))
	if p.cfg.OnServerMajor != nil {
		p.cfg.OnServerMajor(c.major)
	}
	return len(p.cfg.pins(p.kind, c.major)) != len(p.cfg.pins(p.kind, assumed)), nil
}

// expired reports whether the connection has lived its time.
func (p *pool) expired(res *puddle.Resource[*conn]) bool {
	return time.Since(res.CreationTime()) > p.cfg.ConnLifetime
}

// refuses is the fault of a pool that is stopped.
func (p *pool) refuses() *fault.Fault {
	if f := p.deniesRole(); f != nil {
		return f
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Now().Before(p.stopped) {
		return fault.New(fault.DBUnavailable, "Database sessions keep changing settings that the gate pins, so the gate does not use them for a while. Tell the operator.").
			With("reason", "settings_drift")
	}
	return nil
}

// quarantine notes a connection whose settings changed; it is never used again.
// What a client's statement changes costs that statement and the connection. What
// changes without one is of the server or of a role, and meets the next connection
// as well: only that stops the pool, or one client could stop it for all.
func (p *pool) quarantine(c *conn, byStatement bool) {
	p.quarantined.Add(1)
	p.log.Error("a database session changed a pinned setting and is closed", "setting", c.drift, "by_statement", byStatement, "backend_pid", c.upstream.BackendPID)
	if byStatement {
		return
	}
	now := time.Now()
	p.mu.Lock()
	recent := p.drifts[:0]
	for _, t := range p.drifts {
		if now.Sub(t) < driftWindow {
			recent = append(recent, t)
		}
	}
	p.drifts = append(recent, now)
	stop := len(p.drifts) >= driftMost
	if stop {
		p.stopped, p.drifts = now.Add(stopTime), nil
	}
	p.mu.Unlock()
	if stop && p.cfg.OnPoolStopped != nil {
		p.cfg.OnPoolStopped(p.kind.String(), "settings_drift")
	}
}

// purge closes idle connections: all of them after one was lost, since the
// others were lost with it, else those that idled or lived too long.
func (p *pool) purge(all bool) {
	for _, res := range p.conns.AcquireAllIdle() {
		if all || p.expired(res) || res.IdleDuration() > p.cfg.ConnIdle {
			res.Destroy()
		} else {
			res.ReleaseUnused()
		}
	}
}

// lost notes that a connection broke off: what the pool knew of the server may
// be of its former life.
func (p *pool) lost() {
	p.mu.Lock()
	p.roleAt = time.Time{}
	p.mu.Unlock()
	p.purge(true)
}
