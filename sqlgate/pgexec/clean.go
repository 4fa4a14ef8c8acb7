package pgexec

import (
	"errors"
	"time"
)

const (
	cleanedWithin = 50 * time.Millisecond // then somebody looks whether the connection was cleaned
	readerRest    = time.Second           // after which an idle reader is cleaned
)

var errNotClean = errors.New("the connection could not be cleaned")

// A cleaning is DISCARD ALL, sent when a connection was given back. A statement may
// have left a setting, a session's lock, a temporary table, a prepared statement
// or a channel. Nobody waits for the answer: the next use reads it before its own.
type cleaning struct {
	batch []segment
	shown *oneRow // what the watch then shows, of a reader
}

// clean sends DISCARD ALL. A reader has its settings shown as well: the batch of
// its next use has a client's text in it, and no look before that.
func (c *conn) clean(deadline time.Time) error {
	o := &cleaning{batch: []segment{{own("DISCARD ALL")}}}
	if c.kind == reader {
		var look *command
		look, o.shown = query(c.watch.watchSQL)
		o.batch = append(o.batch, segment{look})
	}
	err := c.net.SetDeadline(deadline)
	if err == nil {
		c.enqueue(o.batch)
		err = c.fe.Flush()
	}
	if err != nil {
		c.broken = true
		return err
	}
	c.owed, c.dirty, c.used = o, false, false
	return nil
}

// cleaned reads the answer to clean, where it was not read yet. After an error the
// connection is only good for closing.
func (c *conn) cleaned() error {
	o := c.owed
	if o == nil {
		return nil
	}
	c.owed = nil
	for _, seg := range o.batch {
		refused, err := c.readSegment(seg)
		if e := lastError(refused, err); e != nil {
			err = e
		}
		if err == nil && c.txStatus != 'I' {
			err = errNotClean
		}
		if err != nil {
			c.broken = true
			return errors.Join(errNotClean, err)
		}
	}
	if o.shown != nil {
		c.compare(o.shown.text(0))
	}
	return nil
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
		err = c.cleaned()
	}
	if err != nil {
		_ = c.net.Close() // the next to take it finds it broken
	}
}
