package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"writegate/sqlgate"
	"writegate/sqlgate/pgexec"
)

// What is fine is looked at again after so many looks; what is not, at each.
const looksWhenFine = 20

// roleBook is what was last seen of each pool's role.
type roleBook struct {
	mu      sync.Mutex
	reports map[string]pgexec.RoleReport
}

// roleSeen is told by the database's pools what their roles may do. In production
// a right too many is a startup step that failed, and the pool stops by itself.
func (g *service) roleSeen(r pgexec.RoleReport) {
	g.roles.mu.Lock()
	defer g.roles.mu.Unlock()
	if g.roles.reports == nil {
		g.roles.reports = make(map[string]pgexec.RoleReport)
	}
	g.roles.reports[r.Pool] = r
	for _, finding := range []struct {
		what []string
		says string
	}{{r.Deny, "the database role may do what it must not"}, {r.Warn, "something about the database role is worth a look"}} {
		if len(finding.what) > 0 {
			g.log.Warn(finding.says, "source", "database", "pool", r.Pool, "role", r.Role, "found", strings.Join(finding.what, "; "))
		}
	}
	if g.settings.Profile == profileProduction {
		status, message := g.roles.verdict()
		g.gate.Guard(context.Background(), sqlgate.StepDatabaseRole, status, message)
	}
}

// verdict is the step of all roles together; the caller holds the lock.
func (b *roleBook) verdict() (status, message string) {
	var faults []string
	for pool, r := range b.reports {
		if len(r.Deny) > 0 {
			faults = append(faults, fmt.Sprintf("the role %s for %s connections %s", r.Role, pool, strings.Join(r.Deny, ", ")))
		}
	}
	if len(faults) == 0 {
		return sqlgate.StepOK, "The database roles have no right that production refuses."
	}
	slices.Sort(faults)
	return sqlgate.StepFailed, strings.Join(faults, "; ") + ". docs/database-role.sql makes roles that fit."
}

// expectRoles shows the step before the first connection is made.
func (g *service) expectRoles(ctx context.Context) {
	if g.settings.Profile == profileProduction {
		g.gate.Guard(ctx, sqlgate.StepDatabaseRole, sqlgate.StepPending, "The database has not been reached yet; its first connection shows the role.")
	}
}

// Values of GATE_ENFORCE_PG_HBA_BASELINE.
const (
	baselineOff     = "false"
	baselineEnforce = "true"
)

// keepBaseline makes the checks of the server's access rules until ctx ends,
// after the first ones, which checkBaseline made before anybody was served.
func (g *service) keepBaseline(ctx context.Context, fine bool) {
	for {
		wait := g.look
		if fine || g.settings.EnforceHBA != baselineEnforce {
			wait *= looksWhenFine
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
			fine = g.checkBaseline(ctx)
		}
	}
}

// checkBaseline makes the checks once. Enforced, what fails or cannot be made is
// a startup step that failed; else it is told in the log alone.
func (g *service) checkBaseline(ctx context.Context) (fine bool) {
	findings, err := g.database.Baseline(ctx, g.settings.Profile == profileProduction)
	if ctx.Err() != nil {
		return false
	}
	failed := pgexec.Failed(findings)
	said := pgexec.Texts(findings)
	if err != nil {
		said = "The checks cannot be made: " + err.Error()
	}
	if said != "" && said != g.baselineSaid {
		g.log.Warn("the database's access rules are not what they should be", "source", "database", "found", said, "limits", pgexec.BaselineLimits)
	}
	g.baselineSaid = said
	fine = err == nil && len(failed) == 0
	if g.settings.EnforceHBA != baselineEnforce {
		return fine
	}
	switch {
	case err != nil:
		g.gate.Guard(ctx, sqlgate.StepPGHBA, sqlgate.StepFailed, "The database's access rules cannot be checked while it is out of reach or refuses the gate.")
	case !fine:
		g.gate.Guard(ctx, sqlgate.StepPGHBA, sqlgate.StepFailed, pgexec.Texts(failed)+" "+pgexec.BaselineLimits)
	default:
		g.gate.Guard(ctx, sqlgate.StepPGHBA, sqlgate.StepOK, "The database's access rules let the gate in encrypted and verified alone. "+pgexec.BaselineLimits)
	}
	return fine
}
