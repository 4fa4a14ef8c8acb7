// Package toolcheck verifies that a registered tool is what its owner says: it
// is there, it answers in its protocol, and it has not changed behind anybody's
// back (spec/v1.md part 12).
//
// A verification looks and never touches: an MCP server is asked who it is and
// which tools it has, an HTTP endpoint gets one GET or HEAD, a function is its
// schemas. No tool is ever called.
//
// What comes back from the network is hostile until shown otherwise. It arrives
// through package egress, which holds where a request may go and how large an
// answer may be; here a screen lets nothing through to the protocol's client but
// the one sound answer to the call that was made. Nothing of an answer is told
// on but what the contract names: the protocol's version, the server's name and
// version cut to plain characters, how many tools there are, and places where a
// definition differs. What a tool says of itself is kept as hashes.
//
// The definition of an MCP tool has a fingerprint. The first verification that
// passes pins it; a later one that finds another is drift, and stays drift until
// a person accepts the new fingerprint by its value. That is the answer to a
// server that is harmless on the day it is reviewed and tells models something
// else a week later.
package toolcheck
