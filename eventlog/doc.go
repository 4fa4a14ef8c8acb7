// Package eventlog is the log: the one place where what happened becomes durable.
//
// # The story
//
// commands hands over a Group, the events of one command. Append encodes them
// outside any lock, then takes the lock for the moment in which they get their
// sequence numbers and hashes, and waits. A single goroutine, the flusher,
// takes whatever has gathered as one batch, writes it with one system call and
// syncs it with another. While it syncs, the next batch fills: load alone makes
// the batches larger, and no timer makes anybody wait. A batch is committed by
// the moment its sync returned without an error, and by nothing else.
//
// An error of a write or of a sync is the end of the process (poison): after it
// nothing is known about the file, and a second sync that succeeds would prove
// nothing. Whoever waits learns whether the outcome is unknown or the group was
// never written, and the next start finds out what the disk has.
//
// Open is the judge of that start. It drops the page cache where the last run
// did not end cleanly, verifies the file against its anchors, keeps a torn tail
// in quarantine before it zeroes it, and rewrites the last batch, the only one
// that no later batch vouches for. It repairs nothing else: a log that is
// corrupt is opened for reading and refuses to be written.
//
// Everything beside the file W is derived from it: the head file W.head (an
// anchor, written after each batch), the JSONL projection, the sparse index.
// Each can be removed and comes back.
//
// The bytes are package frame's, the vocabulary is package event's. Sources:
// design/eventlog.md parts 2, 4 to 9.
package eventlog
