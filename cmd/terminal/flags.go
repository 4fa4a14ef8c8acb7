package terminal

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/agnivade/levenshtein"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// FilledIn refuses a flag that is given without a value, as a script's empty
// variable gives it: who writes --replaces or --wal relies on it, and without a
// value the command would do as if it were not there. Flags in meaningful may be
// empty. The error is a mistake of the caller.
func FilledIn(cmd *cobra.Command, meaningful ...string) (err error) {
	cmd.Flags().Visit(func(f *pflag.Flag) {
		empty := f.Value.Type() == "string" && f.Value.String() == ""
		if list, ok := f.Value.(pflag.SliceValue); ok {
			empty = len(list.GetSlice()) == 0 || slices.Contains(list.GetSlice(), "")
		}
		if empty && err == nil && !slices.Contains(meaningful, f.Name) {
			err = fmt.Errorf("--%s is given without a value; give one, or leave the flag out", f.Name)
		}
	})
	return err
}

// LikeFlag is a mistake in a flag, with the flag of the command that is most like one
// that is not known.
func LikeFlag(cmd *cobra.Command, err error) error {
	_, name, found := strings.Cut(err.Error(), "unknown flag: --")
	if !found {
		return err
	}
	like, least := "", 3
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if d := levenshtein.ComputeDistance(name, f.Name); d < least && !f.Hidden {
			like, least = f.Name, d
		}
	})
	if like == "" {
		return err
	}
	return fmt.Errorf("%w; did you mean --%s?", err, like)
}

// CheckArguments has a command and all below it say how they are called where
// their arguments are too few or too many, and refuse an empty one: a script's
// lost variable is no name of a file. wrap turns the error into the program's own
// for a mistake of the caller; nil leaves it.
func CheckArguments(cmd *cobra.Command, wrap func(error) error) {
	check := cmd.Args
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		err := arguments(cmd, check, args)
		if err == nil || wrap == nil {
			return err
		}
		return wrap(err)
	}
	for _, below := range cmd.Commands() {
		CheckArguments(below, wrap)
	}
}

func arguments(cmd *cobra.Command, check cobra.PositionalArgs, args []string) error {
	usage := "it is called as: " + cmd.UseLine()
	switch {
	case slices.Contains(args, ""):
		return errors.New("an argument is empty; " + usage)
	case check == nil:
		return nil
	}
	err := check(cmd, args)
	switch {
	case err == nil:
	case !cmd.HasSubCommands():
		err = fmt.Errorf("%d arguments do not fit; %s", len(args), usage)
	case len(args) > 0:
		cmd.SuggestionsMinimumDistance = 2
		if like := cmd.SuggestionsFor(args[0]); len(like) > 0 {
			err = fmt.Errorf("%w; did you mean %s?", err, strings.Join(like, " or "))
		}
	}
	return err
}
