package pgexec

import (
	"context"
	"errors"
	"maps"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"writegate/commands/fault"
)

// DispatchRead is what evidence records before a safe read in the block is
// sent. It sends nothing.
func (b *Block) DispatchRead(ctx context.Context, o BeginOptions) (Dispatch, error) {
	err := b.usable()
	if err == nil && b.db.definer != b.db.writer && b.opts.DDL {
		b.failed, err = true, errOneRole()
	}
	if err == nil {
		err = b.reads(ctx, o.Meaning)
	}
	if err != nil {
		return Dispatch{}, err
	}
	lim := b.db.bound(o.Limits)
	return Dispatch{Upstream: b.lease.upstream, Limits: lim, Settings: b.recorded(lim, o)}, nil
}

// DispatchWrite is what evidence records before a write is sent, and makes the
// write the next statement. It sends nothing of the client's: the transaction id
// is fetched before the first write, the marker is left where there is one, rows
// are counted where they are limited; where nothing of it is needed, as for a LOCK,
// which applies nothing, there is no round trip. DB.Cancel ends the wait for it. On an error nothing of the statement
// was sent, and the block has failed.
func (b *Block) DispatchWrite(ctx context.Context, o BeginOptions) (Dispatch, error) {
	if err := b.takesWrite(ctx, o); err != nil {
		b.failed = true
		return Dispatch{}, err
	}
	o.Limits = b.db.bound(o.Limits)
	var p preparation
	if !o.NoSnapshot { // whose answers take the snapshot
		p = b.preparation(&o)
	}
	if len(p.batch) > 0 {
		b.lease.begin()
		b.db.cancellable(o.ExecutionID, b.lease)
		refused, err := b.lease.exchange(context.WithoutCancel(ctx), time.Now().Add(b.db.cfg.ConnectTimeout), p.batch)
		b.db.Forget(o.ExecutionID)
		b.lease.finish()
		if f := b.take(p, o.UserCode, refused, err); f != nil {
			b.failed = true
			if err != nil {
				if b.brokeOff(refused, err); b.over {
					f = overtimeFault()
				}
			}
			return Dispatch{}, f
		}
	}
	b.next = &o
	return Dispatch{
		XID: b.xid, Marker: p.marker != nil, Upstream: b.lease.upstream, Limits: o.Limits, Settings: b.recorded(o.Limits, o),
	}, nil
}

// NotSent takes DispatchWrite back: the write does not come, and the block takes
// another statement.
func (b *Block) NotSent() { b.next = nil }

// takesWrite says whether the block can run a write.
func (b *Block) takesWrite(ctx context.Context, o BeginOptions) error {
	switch err := b.usable(); {
	case err != nil:
		return err
	case b.db.definer != b.db.writer && o.DDL != b.opts.DDL:
		return errOneRole()
	}
	return b.reads(ctx, o.Meaning)
}

// reads is that of the lease; an error fails the block.
func (b *Block) reads(ctx context.Context, m Meaning) error {
	return b.asked(b.lease.reads(context.WithoutCancel(ctx), m))
}

// asked is the error of a question of the gate's own. It fails the block.
func (b *Block) asked(err error) error {
	if err == nil {
		return nil
	}
	b.failed = true
	if b.lease.broken {
		b.brokeOff(nil, err)
		return b.gone()
	}
	return err
}

func errOneRole() error {
	return fault.New(fault.UnsupportedSQLShape, "The gate has a database role of its own for DDL, and a transaction runs under one role. Send DDL in a transaction of its own.")
}

// recorded is what differs from the pins, the block's own timeouts included.
func (b *Block) recorded(lim Limits, o BeginOptions) map[string]string {
	s := b.each(lim, o)
	for name, v := range b.own {
		if s == nil {
			s = make(map[string]string, len(b.own))
		}
		if _, ok := s[name]; !ok {
			s[name] = v
		}
	}
	return s
}

// each is what differs from the pins for one statement. transaction_timeout is
// none of it: it is the block's.
func (b *Block) each(lim Limits, o BeginOptions) map[string]string {
	s := b.lease.settings(lim, o.Trace, o.Settings)
	delete(s, "transaction_timeout")
	return s
}

// unset are the commands that put the pins back behind a statement.
func (b *Block) unset(settings map[string]string) []*command {
	if len(settings) == 0 {
		return nil
	}
	pins := maps.Clone(settings)
	for _, pin := range b.db.cfg.pins(b.lease.kind, b.lease.major) {
		if _, ok := pins[pin.name]; ok {
			pins[pin.name] = pin.value
		}
	}
	return set("LOCAL", pins)
}

// A preparation is what goes before a write.
type preparation struct {
	batch   segment
	id      *oneRow
	marker  *command
	counted *oneRow
}

const blockIDSQL = "SELECT pg_catalog.pg_current_xact_id()"

func (b *Block) preparation(o *BeginOptions) (p preparation) {
	var c *command
	if b.xid == 0 {
		c, p.id = query(blockIDSQL)
		p.batch = append(p.batch, c)
	}
	if b.db.cfg.MarkerTable != "" && !b.opts.ReadOnly { // nothing can be left there
		p.marker = putMarker(b.db.cfg.MarkerTable, o.ExecutionID, markerExec)
		p.batch = append(p.batch, p.marker)
	}
	if o.Limits.MaxRows != nil { // behind the marker, which is not the client's
		c, p.counted = query(countSQL)
		p.batch = append(p.batch, c)
	}
	return p
}

// take reads the answers to a preparation.
func (b *Block) take(p preparation, userCode bool, refused *pgconn.PgError, err error) error {
	reached := p.id == nil || len(p.id.values) > 0
	if p.marker != nil && err == nil && reached && !taken(p.marker) && (refused == nil || refused.Code != "25006") {
		return b.db.markerFault(sqlStateOf(refused), errors.New("no marker was left"))
	}
	if err != nil || refused != nil {
		return beginFault(refused, err)
	}
	if p.id != nil {
		if b.xid, err = strconv.ParseUint(p.id.text(0), 10, 64); err != nil {
			return beginFault(nil, errProtocol)
		}
	}
	if p.counted == nil {
		return nil
	}
	if b.counted, err = readCounts(p.counted); err != nil {
		return beginFault(nil, err)
	}
	return b.counted.countable(userCode)
}
