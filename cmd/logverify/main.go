// Command logverify checks what a gate leaves behind, for an auditor: its event
// log, the readable copies of it, evidence bundles, receipts and checkpoints. It
// works offline, without the service, its database or its keys, and only reads.
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

	"writegate/cmd/terminal"
	"writegate/eventlog/checkpoint"
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
	context.AfterFunc(ctx, stop) // a second signal ends what does not look at the first
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// usageError is a mistake in how the command was called.
type usageError struct{ err error }

func (e usageError) Error() string { return e.err.Error() }
func (e usageError) Unwrap() error { return e.err }

// A runner is one run of the program: where it writes, and what came of it.
type runner struct {
	ctx            context.Context
	stdin          io.Reader
	stdout, stderr io.Writer
	code           int
}

func (c *runner) inputs() terminal.Inputs { return terminal.Inputs{Stdin: c.stdin} }

// parseKeys reads the values of --key; what is no key is a mistake in the call.
func parseKeys(values []string) ([]checkpoint.PublicKey, error) {
	keys, err := terminal.Keys(values)
	if err != nil {
		return nil, usageError{err}
	}
	return keys, nil
}

// run is the whole command; it gives the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return runWith(ctx, args, os.Stdin, stdout, stderr)
}

func runWith(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	c := &runner{ctx: ctx, stdin: stdin, stdout: stdout, stderr: stderr, code: exitOK}
	root := &cobra.Command{
		Use:   "logverify",
		Short: "Check the evidence of a gate, without the gate",
		Long:  about,
		RunE: func(*cobra.Command, []string) error {
			return usageError{errors.New("say what to check, for example: logverify wal FILE")}
		},
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if err := terminal.FilledIn(cmd); err != nil {
				return usageError{err}
			}
			return nil
		},
		Args:          asUsage(cobra.NoArgs),
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return usageError{terminal.LikeFlag(c, err)} })
	root.AddCommand(c.walCommand(), c.jsonlCommand(), c.bundleCommand(), c.receiptCommand(), c.checkpointCommand())
	terminal.CheckArguments(root, func(err error) error { return usageError{err} })
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	if cmd, err := root.ExecuteContextC(ctx); err != nil {
		return c.explain(cmd, err)
	}
	return c.code
}

// explain prints an error and what to do next, and gives its exit code.
func (c *runner) explain(cmd *cobra.Command, err error) int {
	if errors.Is(err, context.Canceled) {
		err = errors.New("interrupted: nothing was judged")
	}
	fmt.Fprintf(c.stderr, "logverify: %v\n", err)
	var usage usageError
	if errors.As(err, &usage) {
		fmt.Fprintf(c.stderr, "See %s --help.\n", cmd.CommandPath())
		return exitUsage
	}
	if c.code == exitCorruption {
		return exitCorruption // found, and only the telling failed
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

// tell prints a report and keeps its exit code. A verdict that nobody could
// read is not ok.
func (c *runner) tell(r frame.Report, asJSON bool) error {
	print := terminal.PrintReport
	if asJSON {
		print = terminal.PrintReportJSON
	}
	c.code = exitOf(r.Status)
	return print(c.stdout, r)
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
