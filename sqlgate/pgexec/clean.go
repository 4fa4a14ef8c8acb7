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
	pinsLook      = 100                   // uses, of which one begins with a look at the pins, though RESET ALL went before
)

var (
	errNotClean        = errors.New("the connection could not be cleaned")
	errTemporarySchema = errors.New("a session keeps its schema of temporary tables until it ends")
)

// A cleaning goes out when a connection was given back. A statement may have left a
// setting, a session's lock, a temporary table, a prepared statement, a channel, or
// what random() will give. What is cheap is undone each time; the rest is looked for,
// and DISCARD ALL, which throws the server's plans away as well, is for where there
// is some. The next use reads the answer before it sends anything. Behind a COMMIT the
// session is only reset, and the next use looks.
type cleaning struct {
	batch segment
	shown *oneRow // nil: the next use looks
	begun *ahead  // what stands behind it; nil: nothing
}

func (c *conn) newCleaning() *cleaning {
	look, shown := c.looking(look{pins: true, clean: true})
	return &cleaning{batch: append(resetting(), look), shown: shown}
}

// leave has the session reset behind the next exchange, and a transaction begun where a
// write waits for the connection. Each stands behind a Sync of its own. Up to one Sync the
// server has one transaction: a BEGIN there would make the reset a part of it, which its
// rollback takes back, and would take isolation and time limits from what is not reset yet.
func (l *lease) leave() {
	o := &cleaning{batch: resetting()}
	if l.awaited() {
		l.unseen = true
		o.begun = l.beginning()
	}
	l.leaving = o
}

func resetting() segment { return segment{own("RESET ALL"), own("DISCARD SEQUENCES")} }

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
	c.owed, c.unseen, c.dirty, c.used = o, false, false, false
	return nil
}

// forgetting is what goes before a read of another owner than the last one's. What
// code behind a safe read can leave past READ ONLY and the rollback is names of
// prepared statements, advisory locks of the session and what random() gives next.
func (c *conn) forgetting() segment {
	look, _ := c.looking(look{clean: true})
	c.comparisons = nil
	return segment{own("DEALLOCATE ALL"), look}
}

// cleanFirst has what reads have left cleaned away before the next exchange.
func (l *lease) cleanFirst() error {
	if !l.used {
		return nil
	}
	return l.clean(time.Now().Add(l.pool.cfg.ConnectTimeout))
}

// cleaned reads the answer to a cleaning, where it was not read yet, looks where
// nobody has since, and has the rest discarded where there is some. After an error the
// connection is only good for closing; a setting that still differs is drift.
func (c *conn) cleaned(deadline time.Time) error {
	err := c.reset(deadline)
	if err == nil && c.unseen {
		c.unseen = false
		look, shown := c.looking(look{pins: true, clean: true})
		err = c.answered(deadline, &cleaning{batch: segment{look}, shown: shown}, true)
	}
	return err
}

// reset is cleaned without the look that was left to the next use. A transaction that was
// begun for another one is ended, and what its look has seen is not relied on.
func (c *conn) reset(deadline time.Time) error {
	err := c.heard(deadline)
	if err == nil && c.ahead != nil {
		c.ahead = nil
		if !c.rollback(deadline) {
			return errNotClean
		}
		if err = c.clean(deadline); err == nil {
			err = c.heard(deadline)
		}
	}
	return err
}

// heard reads the answer to a cleaning that was sent.
func (c *conn) heard(deadline time.Time) error {
	o := c.owed
	if o == nil {
		return nil
	}
	c.owed = nil
	return c.answered(deadline, o, false)
}

// answered reads the answer to a cleaning, which is sent before that where it was not.
func (c *conn) answered(deadline time.Time, o *cleaning, send bool) error {
	err := c.net.SetDeadline(deadline)
	if err == nil && send {
		c.enqueue(o.batch)
		err = c.fe.Flush()
	}
	var refused *pgconn.PgError
	if err == nil {
		refused, err = c.readSegment(o.batch)
	}
	if err == nil && c.txStatus != 'I' {
		err = errNotClean
	}
	if err == nil && o.begun != nil {
		err = c.answeredAhead(deadline, o.begun, refused == nil)
	}
	switch {
	case err != nil:
	case refused != nil || o.shown != nil && !c.clear(o.shown):
		err = c.discard(deadline)
	case o.shown == nil && c.ahead == nil:
		c.unseen = true
	}
	if err != nil {
		c.broken = true
		return errors.Join(errNotClean, err)
	}
	return nil
}

// clear tells of a look whether nothing is left in the session.
func (c *conn) clear(shown *oneRow) bool {
	return c.unchanged(shown.text(lookSettings)) && shown.text(lookLeft) == "f"
}

// opening is the look with which a transaction begins: at what the use before has left
// too, where nobody has looked since. A connection of which that is not known is cleaned
// once more before another use.
func (c *conn) opening(assign bool) (cmd *command, shown *oneRow, seen func() bool) {
	left := c.unseen
	cmd, shown = c.looking(look{assign: assign, pins: c.uses%pinsLook == 0, clean: left})
	c.unseen, c.dirty = false, c.dirty || left
	return cmd, shown, func() bool {
		if left && !c.clear(shown) {
			return false
		}
		c.dirty = c.dirty && !left
		return true
	}
}

// An ahead is a transaction that was begun, behind a COMMIT and in its write, for a write
// that waited for the connection. Nobody else gets it: what came later would see an older
// now() than its own.
type ahead struct {
	at    time.Time
	batch segment
	shown *oneRow
	seen  func() bool
}

// begunSince reports whether a transaction is open for whoever waits since then.
func (c *conn) begunSince(then time.Time) bool { return c.ahead != nil && c.ahead.at.After(then) }

// beginning opens the transaction of a write.
func (c *conn) beginning() *ahead {
	cmd, shown, seen := c.opening(true)
	return &ahead{time.Now(), segment{own("BEGIN"), cmd}, shown, seen}
}

// answeredAhead reads the answer to what was begun. Where that, or the reset before it,
// failed there is nothing that anybody could use.
func (c *conn) answeredAhead(deadline time.Time, begun *ahead, reset bool) error {
	refused, err := c.readSegment(begun.batch)
	switch {
	case err != nil:
		return err
	case reset && refused == nil && c.txStatus == 'T':
		c.ahead = begun
	case c.txStatus != 'I' && !c.rollback(deadline):
		return errNotClean
	}
	return nil
}

// afresh has a session that the look at its beginning found unclean discarded.
func (l *lease) afresh() error {
	deadline := time.Now().Add(l.pool.cfg.ConnectTimeout)
	if !l.rollback(deadline) {
		return errNotClean
	}
	return l.discard(deadline)
}

// discard has the server forget everything of the session, and what the gate had
// prepared in it too. The schema of temporary tables stays to the session's end, empty
// but in the search path, so a session that has one is not clean.
func (c *conn) discard(deadline time.Time) error {
	c.comparisons = nil
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
	case c.owed != nil, c.unseen:
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
	if c.owed == nil && !c.unseen && c.used {
		err = c.clean(time.Now().Add(cfg.ConnectTimeout))
	}
	if err == nil {
		err = c.cleaned(time.Now().Add(cfg.ConnectTimeout))
	}
	if err != nil {
		_ = c.net.Close() // the next to take it finds it broken
	}
}
