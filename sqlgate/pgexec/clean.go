package pgexec

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

const (
	cleanedWithin = 50 * time.Millisecond // then somebody looks whether the connection was cleaned
	readerRest    = time.Second           // after which an idle reader is cleaned
)

var (
	errNotClean        = errors.New("the connection could not be cleaned")
	errTemporarySchema = errors.New("a session keeps its schema of temporary tables until it ends")
)

// A cleaning goes out when a connection was given back. A statement may have left a
// setting, a session's lock, a temporary table, a prepared statement, a channel, or
// what random() will give. What is cheap is undone each time; the rest is looked for,
// and DISCARD ALL, which throws the server's plans away as well, is for where there
// is some. The next use reads the answer before it sends anything.
type cleaning struct {
	batch segment
	shown *oneRow
}

func (c *conn) newCleaning() *cleaning {
	look, shown := c.looking(false, true)
	return &cleaning{segment{own("RESET ALL"), own("DISCARD SEQUENCES"), look}, shown}
}

// clean sends a cleaning and does not wait for the answer.
func (c *conn) clean(deadline time.Time) error {
	o := c.newCleaning()
	err := c.net.SetDeadline(deadline)
	if err == nil {
		c.enqueue(o.batch)
		err = c.fe.Flush()
	}
	if err != nil {
		c.broken = true
		return err
	}
	c.owes(o)
	return nil
}

// forgetting is what goes before a read of another owner than the last one's. What
// code behind a safe read can leave past READ ONLY and the rollback is names of
// prepared statements, advisory locks of the session and what random() gives next.
func (c *conn) forgetting() segment {
	look, _ := c.looking(false, true)
	return segment{own("DEALLOCATE ALL"), look}
}

// cleanFirst has what reads have left cleaned away before the next exchange.
func (l *lease) cleanFirst() error {
	if !l.used {
		return nil
	}
	return l.clean(time.Now().Add(l.pool.cfg.ConnectTimeout))
}

// owes notes a cleaning that was sent.
func (c *conn) owes(o *cleaning) { c.owed, c.dirty, c.used = o, false, false }

// cleaned reads the answer to a cleaning, where it was not read yet, and has the
// rest discarded where there is some. After an error the connection is only good
// for closing; a setting that still differs is drift.
func (c *conn) cleaned(deadline time.Time) error {
	o := c.owed
	if o == nil {
		return nil
	}
	c.owed = nil
	err := c.net.SetDeadline(deadline)
	var refused *pgconn.PgError
	if err == nil {
		refused, err = c.readSegment(o.batch)
	}
	if err == nil && c.txStatus != 'I' {
		err = errNotClean
	}
	if err == nil && (refused != nil || o.shown.text(1) != c.settled || o.shown.text(2) != "f") {
		err = c.discard(deadline)
	}
	if err != nil {
		c.broken = true
		return errors.Join(errNotClean, err)
	}
	return nil
}

// discard has the server forget everything of the session, and what the gate had
// prepared in it too. The schema of temporary tables stays to the session's end, empty
// but in the search path, so a session that has one is not clean.
func (c *conn) discard(deadline time.Time) error {
	refused, err := c.exchange(context.Background(), deadline, segment{own("DISCARD ALL")})
	if err == nil && refused != nil {
		err = refused
	}
	if err == nil {
		err = c.keep(context.Background(), deadline)
	}
	if err == nil {
		var left bool
		if left, err = c.look(context.Background(), deadline); left {
			err = errTemporarySchema
		}
	}
	return err
}

// take begins a use of the connection, rest ends it.
func (c *conn) take() {
	c.mu.Lock()
	c.taken = true
	c.mu.Unlock()
}

func (c *conn) rest(cfg *Config) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.taken = false
	after := cleanedWithin
	switch {
	case c.owed != nil:
	case c.used:
		after = readerRest
	default:
		return
	}
	if c.later == nil {
		c.later = time.AfterFunc(after, func() { c.lookAfter(cfg) })
	} else {
		c.later.Reset(after)
	}
}

// lookAfter ends the session of an idle connection that could not be cleaned, and
// cleans a reader that has run safe reads alone: what they call through a view may
// leave a lock.
func (c *conn) lookAfter(cfg *Config) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.taken {
		return
	}
	var err error
	if c.owed == nil && c.used {
		err = c.clean(time.Now().Add(cfg.ConnectTimeout))
	}
	if err == nil {
		err = c.cleaned(time.Now().Add(cfg.ConnectTimeout))
	}
	if err != nil {
		_ = c.net.Close() // the next to take it finds it broken
	}
}
