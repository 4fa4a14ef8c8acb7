package main

import (
	"net/http"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// BenchmarkWaitForAnApproval is a minute in which the 64 requests of one client wait for an
// approval that nobody gives, in a gate in which nothing else happens and in one that takes
// ten writes a second; and that minute without them. It tells processor time in percent of
// one core, of gate and clients together, and what of the waiting is in the log.
//
//	make approval-wait
func BenchmarkWaitForAnApproval(b *testing.B) {
	for _, c := range []struct {
		name                   string
		waiters, writesASecond int
	}{{"quiet", 64, 0}, {"busy", 64, 10}, {"busy, nobody waits", 0, 10}} {
		b.Run(c.name, func(b *testing.B) {
			g := startGate(b, newNotes(b), "GATE_RATE_LIMIT_REQUESTS_PER_MINUTE=100000", "GATE_RATE_LIMIT_BURST=1000")
			id := g.hold(b, ask("INSERT INTO held_notes VALUES ('waited for')"))
			writing, written := time.NewTicker(time.Hour), 0
			defer writing.Stop()
			if c.writesASecond > 0 {
				writing.Reset(time.Second / time.Duration(c.writesASecond))
			}
			head, spent := g.head(b), rusage(b, syscall.RUSAGE_SELF)
			b.ResetTimer()
			for range b.N {
				var waiting sync.WaitGroup
				for range c.waiters {
					waiting.Go(func() {
						r, err := g.try(http.MethodGet, "/approvals/"+id+"?wait=60", nil)
						if err != nil || r.status != http.StatusOK {
							b.Errorf("%v %s", err, r.body)
						}
					})
				}
				for end := time.After(time.Minute); end != nil; {
					select {
					case <-end:
						end = nil
					case <-writing.C:
						written++
						require.Equal(b, http.StatusOK, g.query(b, insertOpen("beside")).status)
					}
				}
				waiting.Wait()
			}
			b.StopTimer()
			spent = rusage(b, syscall.RUSAGE_SELF) - spent
			b.ReportMetric(100*spent.Seconds()/b.Elapsed().Seconds(), "%cpu")
			const eventsOfAWrite = 4 // request, decision, dispatch, success
			b.ReportMetric(float64(g.head(b)-head)-eventsOfAWrite*float64(written), "events")
		})
	}
}
