package fence

import (
	"time"

	"golang.org/x/sys/unix"
)

// sinceBoot is a clock that nobody sets and that goes on while the machine sleeps, unlike
// the one that time.Since reads.
func sinceBoot() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		panic("CLOCK_BOOTTIME can't be read: " + err.Error()) // Linux has it since 2.6.39
	}
	return time.Duration(t.Nano())
}
