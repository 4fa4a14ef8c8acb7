package terminal

import (
	"fmt"
	"slices"

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
			empty = slices.Contains(list.GetSlice(), "")
		}
		if empty && err == nil && !slices.Contains(meaningful, f.Name) {
			err = fmt.Errorf("--%s is given without a value; give one, or leave the flag out", f.Name)
		}
	})
	return err
}
