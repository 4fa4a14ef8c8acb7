// Package frame is the event log as bytes on disk: the segment header, the
// frame around each record, the file system calls that make them durable, and
// the judge that reads them back. It knows no payloads and imports nothing of
// ours, so that an auditor's verifier is this package and little more.
//
// # The story
//
// A log is a chain of segment files. Each begins with a header of 4,096 bytes;
// then come frames, 8-byte aligned, written in batches of one system call
// each. A frame carries one record, the hash of the event before it and its
// own hash: change a byte, and every later hash is wrong. Every batch also
// says how far the file was known to be synced before the batch was written
// (durable_off). That is what tells an honest crash from damage: a crash may
// only lose bytes that no later batch has vouched for.
//
// Verify walks a log and names what it finds. It never writes, never decodes a
// record and never trusts a length it has not compared with the bytes that are
// left. Its verdict is ok, partial (an unfinished end, or something that could
// not be looked at) or corruption_detected (a change that no crash can make).
//
// A chain can't see that its own tail was removed. Anchors can: the head file
// (level 1, read here), what the projections applied (level 2), receipts and
// checkpoints (levels 3 and 4), which the caller hands in as (seq, hash).
package frame
