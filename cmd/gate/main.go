package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// version is the service's own version (spec/gate.md part 9).
const version = "0.6.0"

// ownerOnly is the umask of this process and of all that it starts: whatever is
// made is for its own account, also by a library that asks for more.
const ownerOnly = 0o077

func main() {
	unix.Umask(ownerOnly)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := Run(ctx, os.Args[1:], streams{os.Stdin, os.Stdout, os.Stderr}, os.Environ())
	stop()
	os.Exit(code)
}
