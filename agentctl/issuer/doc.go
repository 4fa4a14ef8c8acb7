// Package issuer checks JSON Web Tokens that an OpenID Connect issuer signed for agents
// (GATE_AGENT_OIDC_ISSUER): whose they are, and until when they are good.
//
// Whoever can reach the gate can send it a token, so nothing of one is believed before its
// signature is checked, and nothing that it says makes the gate do work without a bound:
//
//   - Algorithms are those with a public key: RS, PS and ES of 256, 384 and 512, and EdDSA.
//     `none` and HS are not among them, whatever a token or a key says.
//   - Issuer and audience are compared byte by byte. A token has to say when it was issued
//     and when it ends; clocks may differ by Leeway, and no more.
//   - A token whose header names another use (`typ` of a logout token, a proof of
//     possession) is refused.
//   - Keys are read from the issuer's own documents over HTTPS, in bounds of time and
//     bytes, every RefreshEvery, and once more where a token names a key that is not there:
//     at most once in RefetchAfter, however many such tokens come.
//   - An issuer that is down takes nothing away at once: its keys are good for KeysLast
//     after they were read last. A document that is wrong replaces nothing.
//
// The issuer's address is the operator's own setting, like that of the database, and may
// lie inside of the network. Its document may name another host for the keys: the gate goes
// there by the guard of package egress, which lets it reach what is public, or what the
// operator opened, and nothing else.
//
// A token is neither kept nor logged; no error holds any of it but the times that it says.
package issuer
