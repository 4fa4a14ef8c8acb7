package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// version is the service's own version (spec/gate.md part 9).
const version = "0.6.0"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := Run(ctx, os.Args[1:], streams{os.Stdin, os.Stdout, os.Stderr}, os.Environ())
	stop()
	os.Exit(code)
}
