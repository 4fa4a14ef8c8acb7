// Package evidence is what leaves the house: a range of the event log as one
// JSON document that anyone can check without the log, the service or the
// network, and the judges of the two forms in which events travel as text.
//
// # The story
//
// An auditor asks for events 400 to 900 and why. Prepare reads the range once
// and checks it, asks the signer for a signed checkpoint that covers it and for
// proofs that its first and last event are in the tree of that checkpoint, and
// signs a text that names both ends. Bundle.Write then reads the range a second
// time and streams it: each record as the exact bytes of the log, and beside it
// the same event as readable JSON. Memory does not grow with the range.
//
// Verify is the other side. It believes nothing that it reads: it takes a bundle
// in its one canonical form and no other, hashes every record, follows every
// link, renders every record again and compares the text, checks both proofs,
// the checkpoint and the signature. What it calls ok is, byte for byte, what
// Write would have written.
//
// VerifyJSONL judges the readable copy of the log in the same spirit, line by
// line. It can begin anywhere, because such files get rotated.
//
// Both answer with a frame.Report, like the judge of the log itself. The formats
// are described for other implementers in docs/spec.
package evidence
