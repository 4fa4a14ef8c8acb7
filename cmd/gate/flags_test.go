package main

import (
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
