package commands

import (
	"context"
	"slices"
	"sync"
)

// keyedLocks is a mutex per aggregate. A lock exists only while somebody holds
// it or waits for it, so the table is as large as the commands in flight.
//
// A command that needs several aggregates takes their keys in sorted order;
// two commands can therefore never wait for each other in a circle.
type keyedLocks struct {
	mu   sync.Mutex
	keys map[string]*keyLock // guarded by mu
}

type keyLock struct {
	held  chan struct{} // holds one token while the lock is taken
	users int           // holders and waiters; guarded by keyedLocks.mu
}

func newKeyedLocks() *keyedLocks { return &keyedLocks{keys: make(map[string]*keyLock)} }

// lock takes all keys and gives the function that releases them. It fails only
// when ctx ends first, and then holds none of them. Empty and doubled keys are
// taken as one or none; keys is sorted in place.
func (l *keyedLocks) lock(ctx context.Context, keys ...string) (unlock func(), err error) {
	keys = slices.DeleteFunc(keys, func(k string) bool { return k == "" })
	slices.Sort(keys)
	keys = slices.Compact(keys)
	for i, key := range keys {
		if err := l.take(ctx, key); err != nil {
			l.releaseAll(keys[:i])
			return nil, err
		}
	}
	return sync.OnceFunc(func() { l.releaseAll(keys) }), nil
}

func (l *keyedLocks) take(ctx context.Context, key string) error {
	l.mu.Lock()
	k := l.keys[key]
	if k == nil {
		k = &keyLock{held: make(chan struct{}, 1)}
		l.keys[key] = k
	}
	k.users++
	l.mu.Unlock()

	select {
	case k.held <- struct{}{}:
		return nil
	default:
	}
	select {
	case k.held <- struct{}{}:
		return nil
	case <-ctx.Done():
		l.forget(key)
		return context.Cause(ctx)
	}
}

func (l *keyedLocks) releaseAll(keys []string) {
	for _, key := range slices.Backward(keys) {
		l.mu.Lock()
		k := l.keys[key]
		l.mu.Unlock()
		<-k.held
		l.forget(key)
	}
}

// forget drops one user of a key, and the key with its last one.
func (l *keyedLocks) forget(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.keys[key]
	k.users--
	if k.users == 0 {
		delete(l.keys, key)
	}
}

// Keys of the aggregates. The prefix keeps the kinds apart.
func approvalKey(id string) string { return "approval/" + id }

func grantLock(id string) string { return "grant/" + id }

func subjectLock(issuer, subject string) string { return "subject/" + issuer + "\x00" + subject }

func idempotencyKey(scope [32]byte) string { return "key/" + string(scope[:]) }

// policyKey is one aggregate for all names, because one version is active.
const policyKey = "policy"
