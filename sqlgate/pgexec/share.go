package pgexec

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"writegate/commands/fault"
)

type clientKey struct{}

// ForClient says for whom the database is used under the context: of what all
// share, one client gets no more than ShareOf. The gate's own work has no client.
func ForClient(ctx context.Context, client string) context.Context {
	return context.WithValue(ctx, clientKey{}, client)
}

// ClientOf is the client of a context, "" without one.
func ClientOf(ctx context.Context) string {
	client, _ := ctx.Value(clientKey{}).(string)
	return client
}

// ShareOf is how much of size one client may have at once, where reserved are
// kept for others; an eighth is the most that is.
func ShareOf(size, reserved int) int { return size - min(reserved, size/8) }

// shares bound the connections of each client. A client that has all it may have
// waits for one of its own.
type shares struct {
	each, size int // size is what all have

	mu sync.Mutex
	of map[string]*share
}

// A share is one client's; users hold a connection of it or wait for one.
type share struct {
	slots chan struct{}
	users int
}

// take waits until the client may have one more connection; without a client it
// always may.
func (s *shares) take(ctx context.Context, client string, timeout <-chan time.Time, waits *atomic.Int64) error {
	if client == "" {
		return nil
	}
	s.mu.Lock()
	own := s.of[client]
	if own == nil {
		own = &share{slots: make(chan struct{}, s.each)}
		s.of[client] = own
	}
	own.users++
	s.mu.Unlock()
	select {
	case own.slots <- struct{}{}:
		return nil
	default:
	}
	waits.Add(1)
	var err error
	select {
	case own.slots <- struct{}{}:
		return nil
	case <-timeout:
		if s.each == s.size {
			err = errAllInUse()
			break
		}
		err = fault.New(fault.RateLimitExceeded, "This client uses %d database connections at once, and the rest is kept for others. Send the request again when one of its statements has ended.", s.each).
			With("retry_after_seconds", 1)
	case <-ctx.Done():
		err = endedWaiting(ctx)
	}
	s.forget(client, own)
	return err
}

// awaited reports whether the client waits for one more connection than it may have.
func (s *shares) awaited(client string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	own := s.of[client]
	return own != nil && own.users > s.each
}

func (s *shares) give(client string) {
	if client == "" {
		return
	}
	s.mu.Lock()
	own := s.of[client]
	s.mu.Unlock()
	<-own.slots
	s.forget(client, own)
}

func (s *shares) forget(client string, own *share) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if own.users--; own.users == 0 {
		delete(s.of, client)
	}
}

func endedWaiting(ctx context.Context) error {
	return fault.New(fault.DBUnavailable, "The request ended while it waited for a database connection. Send it again.").Because(ctx.Err())
}
