// Package fence keeps gates that were started on copies of one log from writing it both.
//
// # The story
//
// Two gates on one machine are kept apart by the lock of the log's file. A restored backup,
// a cloned machine or a copied disk has a file of its own, and nothing on it knows of the other
// one. So each copy asks a table in a database beside the guarded one, which has a row
// for each log: the epoch that a copy took last, with a nonce, and how far the log of that
// copy has come.
//
//	Take     an advisory lock, not waited for; the row is held against what this copy knows:
//	         the newest log_fence_taken of its chain, or the file beside the log; where the
//	         last holder did not give the fence back, Wait; the file is written and synced;
//	         the row gets the next epoch, if it is still what it was; the caller
//	         appends log_fence_taken with its first events, and calls Recorded
//	Start    confirms, each Every, that session, lock and row are still this gate's
//	Check    says, from an atomic and a clock, whether that was confirmed within Limit
//	Release  gives the fence back, so that the next start need not wait
//
// The file says from which mark to which one the row is being changed. A start that was killed
// in between finds the row at one of the two, and goes on by itself. Each start changes
// the row, one that goes on from a file too: of two copies that both have the file, the first
// one to start leaves the other behind.
//
// # Who may be writing when
//
// A holder counts from the moment at which it sent the question that was answered last, by a
// clock that goes on while the machine sleeps, and stops writing Limit later. Its session, and with it the
// lock, outlives that where the server hears nothing of the holder (pgexec says for how long). It does not
// where the server itself ends: a restart, a failover, or an administrator frees the lock at
// once. So whoever gets the lock, and does not read that it was given back, writes nothing
// before Wait has passed, which is longer than Limit; within it the holder has stopped.
//
// # What is not promised
//
// A failover that loses the row's last change, or a table that is put back to an earlier
// state, lets each copy start whose epoch it then has. A machine that is stopped and continued as a
// copy, memory and all, writes up to Limit before it looks at its clock again. Between a look at the clock and
// the write behind it the process may be stopped. And nobody is kept from starting a gate
// without this setting. All of that is found afterwards, by receipts, checkpoints and witnesses.
package fence
