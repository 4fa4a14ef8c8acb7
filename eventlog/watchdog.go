package eventlog

import (
	"fmt"
	"time"
)

// watch looks at the running sync. A disk that does not answer is worse than
// one that refuses: clients wait, and nobody knows what was written. So new
// commands are refused after SlowSync, and after StuckSync the process ends.
func (l *Log) watch() {
	tick := time.NewTicker(max(l.o.SlowSync/20, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-l.stop:
			return
		case <-tick.C:
			if !l.judgeSync() {
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
		l.fail(fmt.Errorf("a sync did not return within %v", l.o.StuckSync))
		return false
	}
	if age > l.o.SlowSync {
		l.mu.Lock()
		first := !l.stalled && l.syncSince.Load() == since
		l.stalled = l.stalled || first
		l.mu.Unlock()
		if first {
			l.o.Logger.Error("a sync of the log is slow; new commands are refused until it returns", "limit", l.o.SlowSync)
		}
	}
	return true
}
