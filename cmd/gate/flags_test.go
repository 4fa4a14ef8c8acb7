package main

import (
	"bytes"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

// A flag of any command that a script fills with an empty variable is refused:
// without its value the command would do something else than it was told.
func TestNoFlagOfAnyCommandDefaultsSilently(t *testing.T) {
	t.Parallel()
	root := (&app{streams: streams{strings.NewReader(""), io.Discard, io.Discard}}).rootCommand()
	seen, empty := []string{}, []string{}
	var look func(*cobra.Command)
	look = func(cmd *cobra.Command) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Value.Type() != "string" && f.Value.Type() != "stringArray" && f.Value.Type() != "stringSlice" {
				return
			}
			seen = append(seen, cmd.CommandPath()+" --"+f.Name)
			require.NoError(t, cmd.Flags().Set(f.Name, ""))
			if err := root.PersistentPreRunE(cmd, nil); err == nil {
				empty = append(empty, cmd.CommandPath()+" --"+f.Name)
			} else {
				require.Contains(t, err.Error(), "--"+f.Name+" is given without a value")
			}
			if list, ok := f.Value.(pflag.SliceValue); ok {
				require.NoError(t, list.Replace([]string{"x"}))
				return
			}
			require.NoError(t, cmd.Flags().Set(f.Name, "x"))
		})
		for _, c := range cmd.Commands() {
			require.Nil(t, c.PersistentPreRunE, "%s would hide that of the root", c.CommandPath())
			require.Nil(t, c.PersistentPreRun, c.CommandPath())
			look(c)
		}
	}
	look(root)
	require.Subset(t, seen, []string{"gate agents token --replaces", "gate policy activate --replay", "gate log verify --receipts", "gate evidence verify --key"})
	slices.Sort(empty)
	require.Equal(t, []string{"gate agents policies create --condition", "gate log new --accept-loss", "gate policy dry-run --sql"}, empty, "who may be empty says so itself")

	g := newGateDir(t, nil)
	for _, args := range [][]string{{"agents", "token", "agt_1", "--replaces", ""}, {"policy", "activate", "x@1.0.0", "--replay=", "--yes"}, {"log", "verify", "--receipts="}, {"policy", "diff", "a", "b", "--from-seq", "3"}} {
		code, _, errs := g.command(t, args...)
		require.Equal(t, exitUsage, code, "%s: %s", args, errs)
	}
}

// What is wrong with a command line is said before anything is done, with how the
// command is called.
func TestEveryCommandSaysHowItIsCalled(t *testing.T) {
	call := func(args ...string) (int, string) {
		var errs bytes.Buffer
		code := Run(t.Context(), args, streams{strings.NewReader(""), io.Discard, &errs}, nil)
		return code, errs.String()
	}
	commands := 0
	var look func(*cobra.Command)
	look = func(cmd *cobra.Command) {
		for _, below := range cmd.Commands() {
			look(below)
		}
		if cmd.Hidden || !cmd.HasParent() {
			return
		}
		path := strings.Fields(cmd.CommandPath())[1:]
		wrong := map[string][]string{"unknown flag: --no-such-flag": {"--no-such-flag"}, "an argument is empty": {""}}
		if !cmd.HasSubCommands() {
			usage := "it is called as: " + cmd.CommandPath()
			wrong["an argument is empty; "+usage] = []string{""}
			if !strings.Contains(cmd.Use, "...") {
				wrong["4 arguments do not fit; "+usage] = []string{"a", "b", "c", "d"}
			}
			if words := strings.Fields(cmd.Use); len(words) > 1 && words[1] == strings.ToUpper(words[1]) && words[1][0] != '[' && words[1][0] != '-' {
				wrong["0 arguments do not fit; "+usage] = nil
			}
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if f.NoOptDefVal == "" {
				wrong["flag needs an argument: --"+f.Name] = []string{"--" + f.Name}
			}
		})
		for want, args := range wrong {
			commands++
			code, errs := call(slices.Concat(path, args)...)
			require.Equal(t, exitUsage, code, "%q %q: %s", path, args, errs)
			require.Contains(t, errs, want, "%q %q", path, args)
		}
	}
	look((&app{streams: streams{strings.NewReader(""), io.Discard, io.Discard}}).rootCommand())
	require.Greater(t, commands, 150)

	t.Chdir(t.TempDir())
	code, errs := call("evidence", "export", "bundle.json")
	require.Equal(t, exitPartial, code)
	require.Contains(t, errs, "there are no events to export")
	for _, user := range []string{"two\nlines", strings.Repeat("x", 300), "\xff", "# ana", " ana"} {
		var errs bytes.Buffer
		code := Run(t.Context(), []string{"pgwire", "hash-password", user}, streams{strings.NewReader("a password\n"), io.Discard, &errs}, nil)
		require.Equal(t, exitUsage, code, "%q", user)
		require.Contains(t, errs.String(), "a user has 1 to 256 characters", "%q", user)
	}
}
