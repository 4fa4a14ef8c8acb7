package main

import (
	"crypto/rand"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"writegate/agentctl"
)

// keysCreateCommand makes a project key. It needs no running gate and writes
// nothing: the key is printed once, beside the entry that configures it.
func (a *app) keysCreateCommand() *cobra.Command {
	var project, label, scopes string
	cmd := &cobra.Command{
		Use: "create", Short: "Make a project key for the agent API and print it once, with the entry that configures it", Args: cobra.NoArgs,
		Long: `Make a project key for the API under /v1 and print it once, with its entry for GATE_PROJECT_KEYS.

The entry holds the SHA-256 of the key, not the key. Entries of several keys are separated by
commas. A key is taken back by taking its entry out and starting the gate again.`,
		Example: "  gate keys create --project default --label ops",
		RunE: func(c *cobra.Command, _ []string) error {
			if label == "" { // entries of two keys stand beside each other
				label = "key-" + strings.ToLower(rand.Text()[:8])
			}
			secret := agentctl.NewSecret(agentctl.KeyPrefix)
			entry := agentctl.Entry(secret, project, label, scopes)
			if _, err := agentctl.ParseProjectKeys(entry); err != nil {
				return exitWith(exitUsage, err)
			}
			_, err := fmt.Fprintf(c.OutOrStdout(), "key    %s\nentry  GATE_PROJECT_KEYS=%s\n\nThe key is not stored anywhere: keep it now. Put the entry into the gate's environment and start it.\n", secret, entry)
			return err
		},
	}
	cmd.Flags().StringVar(&project, "project", agentctl.DefaultProject, "project that the key speaks for")
	cmd.Flags().StringVar(&label, "label", "", "name of the key inside the project (default: one of its own)")
	cmd.Flags().StringVar(&scopes, "scopes", "", "scopes, separated by plus signs (default: all)")
	return cmd
}
