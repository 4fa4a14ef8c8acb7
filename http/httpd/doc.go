// Package httpd holds what every HTTP API of the service needs, each written
// once: the listener, its TLS and its orderly end, request ids, strict JSON, the one
// table from error codes to statuses, limits, operator tokens, lists and
// cursors, and the ring of recent log entries behind GET /logs. It knows no
// endpoint: gateapi and its neighbours bring those.
//
// # The story of a request
//
// The Server accepts it, with a bound on everything a slow or hostile client
// can stretch. The Mux gives it a request id and a recorder, so that a panic
// deep inside becomes a 500 with an error_id instead of a dead process, refuses
// it where it calls the listener by a name that is not its own or comes from a
// web page of another origin (Names), and finds its Handler. Where that may
// change something, words in the query string and in headers that nobody listens
// to are refused (CheckWords). The handler sees a Call: it decodes the body strictly
// (DecodeJSON), may ask who the client and the operator are, and returns an
// answer or an error. An error becomes the contract's error object in one
// place, Call.Fail, which also writes the log line that carries the same
// error_id; what is told to a client and what is kept for the operator part
// there: the cause of a fault is never sent.
//
// Conventions are those of spec/decisions.md part 1, the error object that of
// spec/gate.md part 2.3.
package httpd
