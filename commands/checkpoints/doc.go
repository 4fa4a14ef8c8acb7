// Package checkpoints has the log vouched for by what is kept away from it.
//
// # The story
//
// A chain can't see its own end removed, and whoever holds the host can write
// it anew. So a Keeper signs, now and then, how many events there are and the
// root of their tree, keeps the note in a folder that can be copied away, writes
// a checkpoint_signed event, and offers the note to witnesses: other people's
// servers, which cosign only what continues what they saw before.
//
// The order is the point of it. The signer proves the tree against the newest
// note there is before it signs; the note is on disk before the event that
// names it, and before anybody else has it. So whoever dies in between leaves a
// note that the next start finds, holds against the log, offers again, and
// names in an event.
//
// While the log is opened the witnesses are asked how many events they know, and
// that is held against the log's files alone: whoever puts a host back puts notes
// and projections back as he likes. Then, before anything is appended, Judge holds the
// newest note against the log. A note of more events than there are, or of other
// ones, and a witness that knows more, prove that the log was cut or written
// anew: it is accused, and serves only readers from then on. A witness that is
// out of reach proves nothing, is named in what a report does not exclude, and is
// asked the same when it is there again.
//
// The hashes that later roots and proofs are made from lie in the projections. They
// are read from one view, so a checkpoint is of events that are durable and
// applied.
//
// Sources: design/eventlog.md parts 8 and 9; C2SP tlog-checkpoint, tlog-witness.
package checkpoints
