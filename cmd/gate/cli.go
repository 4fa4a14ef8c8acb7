package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime/debug"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"writegate/cmd/terminal"
	"writegate/commands/fault"
	"writegate/eventlog/frame"
	"writegate/sqlgate"
)

// Exit codes (design/eventlog.md part 6).
const (
	exitOK          = 0
	exitFailed      = 1  // corruption, a failed test, an invalid policy
	exitPartial     = 2  // verification could not look at everything
	exitUsage       = 64 // the command line is wrong
	exitUnavailable = 69 // another program has the address to listen on
	exitFatal       = 70 // a service could not be begun, or the log or the store failed while it ran
	exitUntold      = 74 // it is done, and the output that tells of it could not be written
	exitLocked      = 75 // another process holds the log
	exitConfigured  = 78 // unsafe or contradictory configuration
)

// streams are the standard streams, so that a test can hand in its own.
type streams struct {
	in  io.Reader
	out io.Writer
	err io.Writer
}

// An exitError ends the process with a code. Its message, where it has one,
// has the person who reads it in mind: it says what to do next.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

func exitWith(code int, err error) error { return &exitError{code, err} }

// serviceEnd is how a service ends whose error names no code: the command line was
// right, or it would not have begun.
func serviceEnd(err error) error {
	if e := (*exitError)(nil); err == nil || errors.As(err, &e) {
		return err
	}
	return exitWith(exitFatal, err)
}

// app is one run of the binary.
type app struct {
	streams
	lines      lineQueue // before streams.err of a command that serves; nil of others
	environ    []string
	onTerminal bool                  // streams.err of a command that serves
	step       func(name string)     // test hook at each named step of the journey; nil in production
	ready      func(addr string)     // test hook: the listener is up
	wireReady  func(addr string)     // test hook: so is the wire listener
	refusing   *sqlgate.ChainFailure // why a gate that is up runs nothing, when it is ready; nil: it does
	drain      time.Duration         // test hook: another drainTime; 0 in production
	look       time.Duration         // test hook: another lookEvery; 0 in production
	parseWall  time.Duration         // test hook: another bound of a parse by the clock on the wall; 0 in production
	logFS      frame.FS              // test hook: what the event log lies on; nil in production
	courtesy   time.Duration         // test hook: how long database and witnesses may take for what the gate goes on without; 0 in production

	sessionClock func() time.Time // test hook: by which sessions idle, and logins at the control plane are limited; nil in production
}

// Run is the whole program: arguments in, exit code out.
func Run(ctx context.Context, args []string, s streams, environ []string) int {
	return (&app{streams: s, environ: environ}).run(ctx, args)
}

func (a *app) run(ctx context.Context, args []string) int {
	root := a.rootCommand()
	root.SetArgs(args)
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.err)
	err := root.ExecuteContext(ctx)
	a.flushLines() // what ends a service finds a place behind them
	defer a.flushLines()
	return a.exitCode(err)
}

// exitCode says what went wrong, once, and turns it into a code.
func (a *app) exitCode(err error) int {
	var e *exitError
	var written *fs.PathError
	out, toFile := a.out.(*os.File)
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &written) && toFile && written.Path == out.Name() && !errors.As(err, &e):
		fmt.Fprintf(a.err, "gate: the output could not be written; what the command changes was changed before: %v\n", err)
		return exitUntold
	case errors.As(err, &e):
		if e.err != nil {
			fmt.Fprintln(a.err, "gate: "+describeError(e.err))
		}
		return e.code
	default:
		fmt.Fprintln(a.err, "gate: "+describeError(err)+"\nRun `gate --help` for the commands, `gate COMMAND --help` for one of them.")
		return exitUsage
	}
}

// describeError prefers the message of a fault, which is written for people.
func describeError(err error) string {
	if f, ok := fault.As(err); ok {
		return f.Error()
	}
	return err.Error()
}

func (a *app) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "gate",
		Short: "Gate stands in front of PostgreSQL and decides, statement by statement, what may be written",
		Long: `Gate stands in front of PostgreSQL and decides, statement by statement, what may be written.

It classifies each statement, evaluates a versioned policy (ALLOW, BLOCK, REQUIRE_APPROVAL),
enforces the decision, and leaves hash-linked evidence of it that anyone can verify.

Start with "gate demo": it needs no configuration and prints what to try. "gate quickstart" puts a gate
in front of a database of yours. Every setting is an environment variable; "gate config" lists them with their values and where those come from.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
		// an empty condition always holds; a statement may stand on standard input
		PersistentPreRunE: func(c *cobra.Command, _ []string) error {
			return terminal.FilledIn(c, "condition", "sql", "accept-loss")
		},
	}
	root.AddCommand(a.serveCommand(), a.demoCommand(), a.quickstartCommand(), a.queryCommand(), a.approvalsCommand(), a.grantsCommand(), a.executionsCommand(), a.auditCommand(), a.policyCommand(), a.logCommand(), a.evidenceCommand(), a.keysCommand(), a.agentsCommand(), a.mcpCommand(), a.verifyCommand(), a.markerCommand(), a.controlPlaneCommand(), a.pgwireCommand(), a.configCommand(), a.versionCommand(), a.manCommand(), a.parseWorkerCommand())
	root.InitDefaultCompletionCmd() // otherwise it comes with the first Execute, unchecked
	if completion, _, err := root.Find([]string{"completion"}); err == nil {
		completion.RunE = func(c *cobra.Command, _ []string) error { return c.Help() } // arguments of what can't run are not looked at
	}
	terminal.CheckArguments(root, nil)
	root.SetFlagErrorFunc(terminal.LikeFlag)
	return root
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version, and the commit that it was built from", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			built := ""
			if info, ok := debug.ReadBuildInfo(); ok {
				built = builtFrom(info.Settings)
			}
			_, err := fmt.Fprintln(c.OutOrStdout(), version+built)
			return err
		},
	}
}

// builtFrom names the commit and its date, where the build knows them.
func builtFrom(settings []debug.BuildSetting) string {
	of := map[string]string{}
	for _, s := range settings {
		of[s.Key] = s.Value
	}
	if of["vcs.revision"] == "" {
		return ""
	}
	changed := ""
	if of["vcs.modified"] == "true" {
		changed = ", with changes"
	}
	return fmt.Sprintf(" (commit %.12s of %s%s)", of["vcs.revision"], of["vcs.time"], changed)
}

func (a *app) configCommand() *cobra.Command {
	var asJSON, changed bool
	cmd := &cobra.Command{
		Use: "config", Short: "Print every setting, its value and where it came from", Args: cobra.NoArgs,
		Long: `Print every setting of the gate, its value, its default and where the value came from.

Secrets are never printed. Settings of parts that this version does not have yet are listed
too; giving one of them another value than its default is refused at start. What "gate serve"
would refuse is told, all of it, and the exit code is 78 then.`,
		RunE: func(c *cobra.Command, _ []string) error {
			s, err := loadServing(a.environ, time.Now())
			if s != nil {
				list := s.describe(a.environ)
				if changed {
					list = slices.DeleteFunc(list, func(s setting) bool { return s.Value == s.Default })
				}
				if err := printSettings(c.OutOrStdout(), list, asJSON); err != nil {
					return err
				}
			}
			if err != nil {
				return exitWith(exitConfigured, err)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&changed, "changed", false, "only those that are not at their default")
	return cmd
}

func printSettings(w io.Writer, list []setting, asJSON bool) error {
	if asJSON {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(list)
	}
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(t, "SETTING\tVALUE\tORIGIN\tMEANING")
	for i, s := range list {
		if s.Group != "" && (i == 0 || s.Group != list[i-1].Group) {
			fmt.Fprintf(t, "\t\t\t\n%s\t\t\t\n", s.Group)
		}
		meaning := s.Doc
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", s.Name, s.Value, s.Origin, meaning)
	}
	return t.Flush()
}
