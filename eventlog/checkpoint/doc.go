// Package checkpoint makes what the log says checkable by somebody who does
// not hold the log: receipts, signed checkpoints, proofs and witnesses.
//
// # The story
//
// A chain can't see that its own tail was removed, and whoever may write the
// file may chain it anew from any event on. Both show only against something
// that is kept elsewhere. This package makes such things and reads them back.
//
// The events of a log are the leaves of a tree (RFC 6962, through
// golang.org/x/mod/sumdb/tlog): leaf seq-1 is the event_hash of event seq. One
// root of 32 bytes stands for all events up to a size, and short proofs show
// that an event is among them, or that a later root continues an earlier one.
//
// A Receipt goes to a client with the answer that wrote events. It says: event
// seq had this event_hash. The signature is made once for a batch, over the
// root of a small tree of the batch's own events; the Accumulator makes it,
// and each receipt of the batch carries its path in that tree.
//
// A Checkpoint says: at this size the root was this. It is a signed note
// (golang.org/x/mod/sumdb/note), a few lines of text that can be mailed,
// printed and compared. A Signer makes it and refuses to sign a tree that does
// not continue the checkpoint it signed before; a Folder keeps them all.
//
// A Witness is somebody else's server. It keeps the newest checkpoint it has
// seen and adds its cosignature only to one that continues it. With it even
// whoever holds the host, the key and all files can't show two histories.
//
// A Tree keeps the hashes that proofs are made from; a verifier needs none of
// that: Roots gives the root at any asked sizes in one pass over the events,
// with 32 bytes a level.
//
// Everything that is read here may come from an attacker. Parsers are strict
// and bounded: what is accepted has one form, and another bit is another
// receipt. What a signature does not cover is proven against what it covers.
//
// The formats are those of design part 9, C2SP's tlog-checkpoint,
// tlog-cosignature and tlog-witness. The package imports the codec of events
// and nothing else of ours, and is linked into the auditor's verifier.
package checkpoint
