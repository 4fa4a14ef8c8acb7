package httpd

import (
	"fmt"
	"math"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/time/rate"

	"writegate/commands/fault"
)

// maxClients bounds how many clients' buckets are kept. The one seen longest
// ago is forgotten; it comes back with a full bucket.
const maxClients = 65_536

// MostRate is the largest rate and burst that can be set (spec/decisions.md part 3).
const MostRate = 10_000_000

// A Limiter is a token bucket per client, which is of an IPv6 address its network
// (HolderOf): a host has more addresses in it than there are buckets.
type Limiter struct {
	perMinute int
	burst     int
	buckets   *lru.Cache[string, *rate.Limiter]
	now       func() time.Time
}

// NewLimiter makes a limiter of perMinute requests on average and burst at
// once, both from 1 to 10,000,000.
func NewLimiter(perMinute, burst int, now func() time.Time) (*Limiter, error) {
	if perMinute < 1 || perMinute > MostRate || burst < 1 || burst > MostRate {
		return nil, fmt.Errorf("rate %d and burst %d must be from 1 to %d", perMinute, burst, MostRate)
	}
	buckets, err := lru.New[string, *rate.Limiter](maxClients)
	if err != nil {
		return nil, err
	}
	return &Limiter{perMinute: perMinute, burst: burst, buckets: buckets, now: now}, nil
}

// Allow takes one token of the client's bucket. Where there is none it says
// how long the client should wait; a refused request costs nothing.
func (l *Limiter) Allow(client string) (wait time.Duration, ok bool) { return l.AllowN(client, 1) }

// AllowN takes several tokens at once, at most as many as the burst has.
func (l *Limiter) AllowN(client string, tokens int) (wait time.Duration, ok bool) {
	client = HolderOf(client)
	bucket, found := l.buckets.Get(client)
	if !found {
		bucket = rate.NewLimiter(rate.Limit(float64(l.perMinute)/60), l.burst)
		if earlier, exists, _ := l.buckets.PeekOrAdd(client, bucket); exists {
			bucket = earlier
		}
	}
	now := l.now()
	reservation := bucket.ReserveN(now, min(tokens, l.burst))
	wait = reservation.DelayFrom(now)
	if wait == 0 {
		return 0, true
	}
	reservation.CancelAt(now)
	return wait, false
}

// Limit counts the call against its client's rate. Its error is a fault
// rate_limit_exceeded, which also becomes the Retry-After header.
func (c *Call) Limit() error {
	l := c.mux.limiter
	if l == nil {
		return nil
	}
	wait, ok := l.Allow(c.Client())
	if ok {
		return nil
	}
	c.mux.report(c, RateLimitHit, int64(l.perMinute), 0)
	seconds := max(1, int(math.Ceil(wait.Seconds())))
	return fault.New(fault.RateLimitExceeded, "Too many requests from this client: %d a minute are allowed. Wait %d s.", l.perMinute, seconds).
		With(retryAfter, seconds)
}

// retryAfter is the detail that becomes the header of that name.
const retryAfter = "retry_after_seconds"
