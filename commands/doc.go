// Package commands is the only writer of the event log.
//
// # How a command runs
//
// A command asks for something to become true: record this decision, resolve
// that approval. It is decided by a pure function of three things (what the
// projections show of its aggregate, the command, the moment), which gives
// either the events that make it true or a fault. The events are appended as
// one group: the sync of that append is the commit point, the only one.
// Whoever opens a view afterwards finds what was answered: a view waits until the
// projections have folded in all that is durable.
//
//	lock aggregates -> view -> decide -> append (fsync: COMMIT POINT) -> unlock -> answer
//
// Commands on one aggregate (an approval, an idempotency key, the policy) are
// serialised by a lock that is held from the view until the events are durable;
// otherwise two retries of one approval could both find it unused. Commands on
// different aggregates meet only in the log's group commit. A plain decision
// has no aggregate: it takes no lock and looks at no view.
//
// # What an error means
//
// An error before the append means that nothing happened. audit_unavailable
// with details.outcome "unknown" means that the log itself doesn't know: the
// caller must execute nothing and the process ends, because the log is
// poisoned. If the projections fail after a good append the events stand, the
// process ends too, and the next start replays them.
//
// Errors are faults (commands/fault); the log's own errors are translated in
// one place, refusal.
package commands
