package eventlog

import (
	"fmt"
	"time"
)

// standstill is time without a look from which on the process, and not the disk, is
// taken to have been stopped.
const standstill = 2 * time.Second

// watch looks at the running write or sync, or the wait for space that another one makes. A disk that does not answer is worse than
// one that refuses: clients wait, and nobody knows what was written. So new
// commands are refused after SlowSync, and after StuckSync the process ends.
func (l *Log) watch() {
	tick := time.NewTicker(max(l.o.SlowSync/20, time.Millisecond))
	defer tick.Stop()
	looked := time.Now()
	for {
		select {
		case <-l.stop:
			return
		case <-tick.C:
			paused := time.Since(looked) > standstill
			looked = time.Now()
			if since := l.syncSince.Load(); paused && since != 0 {
				// The process stood still, and the disk may have answered: its time begins anew.
				l.syncSince.CompareAndSwap(since, int64(looked.Sub(l.opened))+1)
			} else if !l.judgeSync() {
				return
			}
		}
	}
}

// judgeSync gives false when the log has been poisoned.
func (l *Log) judgeSync() bool {
	since := l.syncSince.Load()
	if since == 0 {
		return true
	}
	age := time.Since(l.opened) - time.Duration(since)
	if age > l.o.StuckSync {
		l.fail(fmt.Errorf("a write or sync did not return within %v", l.o.StuckSync))
		return false
	}
	if age > l.o.SlowSync {
		l.mu.Lock()
		first := !l.stalled && l.syncSince.Load() == since
		l.stalled = l.stalled || first
		l.mu.Unlock()
		if first {
			l.o.Logger.Error("a write or sync of the log is slow; new commands are refused until it returns", "limit", l.o.SlowSync)
		}
	}
	return true
}
