// Command logverify checks an event log of the gate for an auditor: offline,
// without the service, its database or its keys. It only reads.
//
// It is built without cgo and links nothing of ours but the packages that know
// the bytes, so that what has to be trusted stays small.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"writegate/eventlog/frame"
)

// Exit codes. Scripts build on them; they are part of the contract.
const (
	exitOK         = 0
	exitCorruption = 1
	exitPartial    = 2
	exitUsage      = 64
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// usageError is a mistake in how the command was called.
type usageError struct{ err error }

func (e usageError) Error() string { return e.err.Error() }
func (e usageError) Unwrap() error { return e.err }

// run is the whole command; it gives the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	code := exitUsage
	root := &cobra.Command{
		Use:   "logverify",
		Short: "Check the evidence of a gate, without the gate",
		Long:  about,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return usageError{errors.New("say what to check: logverify wal FILE")}
		},
		Args:          asUsage(cobra.NoArgs),
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddCommand(walCommand(&code))
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	switch {
	case err == nil && cmd.Name() != "wal" || helpAsked(cmd):
		return exitOK
	case err == nil:
		return code
	}
	return explain(cmd, err, stderr)
}

func helpAsked(cmd *cobra.Command) bool {
	f := cmd.Flags().Lookup("help")
	return f != nil && f.Changed
}

// explain prints an error and what to do next, and gives its exit code.
func explain(cmd *cobra.Command, err error, stderr io.Writer) int {
	fmt.Fprintf(stderr, "logverify: %v\n", err)
	var usage usageError
	if errors.As(err, &usage) {
		fmt.Fprintf(stderr, "See %s --help.\n", cmd.CommandPath())
		return exitUsage
	}
	return exitPartial
}

// asUsage turns a complaint about arguments into a usage error.
func asUsage(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return usageError{err}
		}
		return nil
	}
}

func exitOf(s frame.Status) int {
	switch s {
	case frame.OK:
		return exitOK
	case frame.Corruption:
		return exitCorruption
	}
	return exitPartial
}

const about = `logverify checks the evidence that a gate leaves behind: its event log.

Every decision and every execution of a gate is an event in a chain. Each event
carries a SHA-256 hash over its content and the hash of the event before it, so
an event can't be changed, removed, inserted or moved without breaking all that
follow. logverify recomputes the chain from the bytes on disk. It needs no
running gate, no database and no key, and it never writes.

The verdict, and the exit code for scripts:

  ok                   0   everything was checked and nothing is wrong
  corruption_detected  1   something was changed that no crash can explain
  partial              2   nothing is known to be wrong, but not everything
                           could be judged: an unfinished write at the end
                           (what a power cut leaves), a file that can't be
                           read, or only a range was asked for
  (wrong usage)       64

What ok can't say: a chain does not see that its own end was cut off. The report
therefore lists what it could not exclude. Anchors narrow that down: knowledge
kept outside the log of how far it had come. The head file beside the log is
one; it is found and compared by itself.`
