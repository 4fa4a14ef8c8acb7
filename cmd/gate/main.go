package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// version is the service's own version (spec/gate.md part 9).
const version = "0.6.0"

// ownerOnly is the umask of this process and of all that it starts: whatever is
// made is for its own account, also by a library that asks for more.
const ownerOnly = 0o077

// sameSignal is how long after the first signal another one counts as the same: a
// terminal sends it to a whole group of processes, and some programs pass theirs on.
const sameSignal = time.Second

// heapBallast is memory that is reserved as the process begins and never touched, so it takes
// address space alone. The live heap of the gate is small and its turnover is not; the
// ballast lets the collector run a third as often, for a bounded price in
// memory. A percentage (GOGC) would multiply the largest result as well.
const heapBallast = 32 << 20

func main() {
	ballast := make([]byte, heapBallast)
	unix.Umask(ownerOnly)
	ctx, end := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go endOnSignals(signals, end)
	code := Run(ctx, os.Args[1:], streams{os.Stdin, os.Stdout, os.Stderr}, os.Environ())
	signal.Stop(signals)
	runtime.KeepAlive(ballast)
	os.Exit(code)
}

// endOnSignals has the first signal end the program cleanly, and the second one at
// once. That harms no evidence: the log is made for an end at any moment.
func endOnSignals(signals <-chan os.Signal, end func()) {
	<-signals
	end()
	first := time.Now()
	for s := range signals {
		if time.Since(first) < sameSignal {
			continue
		}
		lines := newLineQueue(os.Stderr)
		fmt.Fprintln(lines, "gate: a second signal, so this ends at once, without waiting for what runs. The next start judges what is in the log")
		lines.flush()
		code := 128
		if number, ok := s.(syscall.Signal); ok {
			code += int(number) // as a shell says of what a signal ended
		}
		os.Exit(code)
	}
}
