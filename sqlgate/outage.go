package sqlgate

import (
	"context"
	"errors"

	"writegate/commands/fault"
	"writegate/sqlgate/pgexec"
)

// noteOutage tells the event log that the database could not be used, where
// that is what kept a statement from its result. Operators alert on this event
// (spec/gate.md part 6), so a client that hung up must not raise it, and one
// session that changed a setting is no outage yet.
func (g *Gate) noteOutage(ctx context.Context, f *fault.Fault) {
	switch {
	case f.Code != fault.DBConnectionFailed && f.Code != fault.DBUnavailable:
		return
	case errors.Is(f, context.Canceled), f.Details["reason"] == pgexec.ReasonSettingsDrift:
		return
	}
	if err := g.Commands.RecordDBUnavailable(context.WithoutCancel(ctx), f.ForLogs(), string(f.Code)); err != nil {
		g.Logger.Error("the outage of the database could not be written to the event log", "source", "gate", "cause", err.Error())
	}
}
