// Package pgwire is the listener that speaks PostgreSQL's own protocol, so that
// a driver can talk to the gate as if the gate were the database
// (design/execution-and-wire.md part 9). It knows bytes, messages and
// connections; what a statement means, whether it may run and what ran is the
// business of sqlgate.Wire, of which each connection has one.
//
// A connection goes through four rooms, each with less trust in the client than
// it may deserve:
//
//   - Start-up (startup.go, tls.go) reads the first packets byte for byte from the
//     socket, never ahead: what a client stuffs behind its request for TLS can
//     not be taken for something that came through TLS.
//   - Login (login.go, scram.go, users.go) proves who the user is. Its failures
//     all look alike and take the same time.
//   - Claims (options.go, claims.go) makes of the startup parameters who asks
//     and for whom. What is not known is refused by name: nothing is dropped in
//     silence, nothing is handed on.
//   - The conversation (reader.go, loop.go, answers.go) reads one message at a
//     time under limits of size and time, hands statements to the Wire, and
//     collects answers until Sync, Flush or 8 KiB. After an error everything up
//     to Sync is dropped, so nothing runs behind a failure.
//
// Of what a client sends, only statement text, parameters and format codes ever
// reach the database, and only through sqlgate. CancelRequests (cancel.go) are
// keys into a registry in memory; an unknown key is forwarded to nobody.
//
// Message formats: https://www.postgresql.org/docs/18/protocol-message-formats.html
package pgwire
