// Package projections is what the log means right now: read models of
// approvals, executions, policy versions and idempotency keys, and the index
// behind the audit filters. All of it is folded from events and can be thrown
// away and rebuilt.
//
// Each event type has a projector, a plain function of the event and the
// records it touches. A projector has no clock, draws no random numbers and
// never refuses: what the log says has happened. So every replay of the same
// events gives the same bytes, whatever the batches were, and Digest proves it.
// A type, or a version of a type, that this program does not know stops the
// fold; an event is never skipped.
//
// The store is Pebble without a write-ahead log, because the event log is the
// one that exists already. Every batch carries the sequence number and hash it
// leads to (meta/applied), so after a crash the store holds an exact prefix of
// the log and Connect replays the rest. The same record is an anchor: a store
// that is ahead of its log, or knows another hash, proves that the log lost
// something. Such a store is kept, and the gate does not serve.
//
// The hashes of the log's tree lie in the store as well, written with their
// events. They are no projection, but what checkpoints and proofs are made from.
//
// Readers take a View: one consistent look at all records as of one sequence number.
//
// Sources: design/eventlog.md parts 5, 8, 9 (L2), 11; design/architecture.md.
package projections
