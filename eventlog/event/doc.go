// Package event is the vocabulary of the log: what an event is, which types
// there are, what each of them says, and the two forms in which it is written.
//
// A command becomes one or more Drafts. Encode turns a draft into its record,
// the exact bytes that the log hashes, in the canonical encoding gate-msgpack-1:
//
//	[1, event_id bin(16), event_type, type_version, time_ns, context{n: text}, payload{key: value}]
//
// Every value has one encoding alone: shortest forms, sorted and unique keys,
// no nil, no float. Decode takes what Encode writes and refuses everything
// else, so two different records never mean the same event.
//
// Once the log has given a draft its sequence number and its hashes it is an
// Envelope. AppendJSON renders it in the one readable form, which serves the
// JSONL file, GET /audit, the stream and evidence bundles alike; ParseJSON
// reads it back without loss, so a line of text can be verified against the
// same hash as the binary record.
//
// What a type says beyond the shared context is its payload: a Go struct per
// type, listed in Types. The struct and the generic Payload are two sides of
// one description, and reading is as strict as writing: an unknown, missing or
// needlessly spelled-out field is an error.
//
// The same description reads from a list of fields and from the bytes of a record,
// so that a replay, which has a Decoder, makes no list of them. Whoever reads a draft
// asks its methods, and need not know which of the two it has.
//
// The package imports nothing of ours and no cgo: the auditor's verifier links it.
package event
