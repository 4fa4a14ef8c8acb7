package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"writegate/sqlgate"
	"writegate/sqlgate/pgexec"
)

// defaultMarkerTable is the name that `gate marker ddl` uses where none is set.
const defaultMarkerTable = "gate.execution_marker"

func (a *app) markerCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "marker", Short: "The table in which writes leave a row, so that their outcome is certain", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	cmd.AddCommand(&cobra.Command{
		Use: "ddl", Short: "Print the statements that make the marker table, with the grants it needs", Args: cobra.NoArgs,
		Long: `Print the statements that make the table of GATE_OUTCOME_MARKER_TABLE (` + defaultMarkerTable + ` where
it is not set), with the grants for the roles of GATE_DATABASE_URL and GATE_DATABASE_DDL_URL (gate_writer
where they are not set), and the one with which its owner tidies it up. Nothing is executed.`,
		RunE: func(c *cobra.Command, _ []string) error {
			s, err := a.settingsFor()
			if err != nil {
				return err
			}
			table := s.OutcomeMarkerTable
			if table == "" {
				table = defaultMarkerTable
			}
			_, err = fmt.Fprint(c.OutOrStdout(), pgexec.MarkerDDL(table, s.OutcomeMarkerKeep, s.writingRoles()))
			return err
		},
	})
	return cmd
}

// writingRoles are the roles that leave markers.
func (s *settings) writingRoles() []string {
	var roles []string
	for _, url := range []string{s.DatabaseURL, s.DatabaseDDLURL} {
		if role := pgexec.RoleOf(url); role != "" && !slices.Contains(roles, role) {
			roles = append(roles, role)
		}
	}
	if len(roles) == 0 {
		return []string{"gate_writer"}
	}
	return roles
}

// keepMarker looks at the marker table until ctx ends, after the first look.
func (g *service) keepMarker(ctx context.Context, fine bool) {
	for {
		wait := g.look
		if fine {
			wait *= looksWhenFine
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
			fine = g.checkMarker(ctx)
		}
	}
}

// checkMarker looks at the marker table once. A table that is not fit is a
// startup step that failed: without its marker no write may be sent, and a
// marker that proves nothing is worse than none. A database that does not
// answer changes nothing about what was seen before.
func (g *service) checkMarker(ctx context.Context) (fine bool) {
	warning, err := g.database.CheckMarker(ctx)
	switch {
	case ctx.Err() != nil:
		return false
	case errors.Is(err, pgexec.ErrMarkerUnusable):
		g.gate.Guard(ctx, sqlgate.StepOutcomeMarker, sqlgate.StepFailed, "GATE_OUTCOME_MARKER_TABLE: "+err.Error()+". `gate marker ddl` prints the table and its grants.")
	case err != nil:
		g.log.Warn("the marker table cannot be looked at while the database does not answer", "source", "database", "cause", err.Error())
		if !g.markerSeen {
			g.gate.Guard(ctx, sqlgate.StepOutcomeMarker, sqlgate.StepPending, "The database has not been reached yet; its marker table is looked at then.")
		}
		return false
	default:
		g.markerSeen = true
		g.gate.Guard(ctx, sqlgate.StepOutcomeMarker, sqlgate.StepOK, "The marker table is there, and the roles that write may use it.")
	}
	if warning != "" && warning != g.markerSaid {
		g.log.Warn("the rights on the marker table are worth a look", "source", "database", "found", warning)
	}
	g.markerSaid = warning
	return err == nil
}
