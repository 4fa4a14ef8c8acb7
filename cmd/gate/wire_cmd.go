package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"writegate/sqlgate/pgwire"
)

func (a *app) pgwireCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "pgwire", Short: "Commands for the experimental wire listener", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	cmd.AddCommand(a.wireHashCommand())
	return cmd
}

func (a *app) wireHashCommand() *cobra.Command {
	return &cobra.Command{
		Use: "hash-password USER", Short: "Read a password and print the user's line for GATE_PGWIRE_USERS_FILE", Args: cobra.ExactArgs(1),
		Long: `Read a password, from the terminal without showing it or from standard input, and print the line of
a user for GATE_PGWIRE_USERS_FILE. It has PostgreSQL's own form of a SCRAM-SHA-256 verifier: the
password cannot be had from it, but keep it as you keep a password. The file must have mode 0600;
a running gate reads it anew when it changes.`,
		RunE: func(_ *cobra.Command, args []string) error {
			password, err := a.readPassword()
			if err != nil {
				return exitWith(exitFailed, err)
			}
			line, err := pgwire.HashPassword(args[0], password)
			if err != nil {
				return exitWith(exitUsage, err)
			}
			_, err = fmt.Fprintln(a.out, line)
			return err
		},
	}
}
