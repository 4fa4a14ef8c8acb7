// Package sqlgate is the journey of a statement: classify, decide, record,
// execute, record again, answer.
//
// Gate.Submit walks it as one straight function. Before the append of the
// decision nothing has happened; that append is the commit point, and whatever
// happens after it can be explained from the log. What may be lost at each
// step, and what the caller is then told, is the table of
// design/execution-and-wire.md part 3.
//
// The package composes the pure parts (sqlgate/classify and sqlgate/policy)
// with the two that have effects: sqlgate/pgexec, the only one that talks to
// the database, and commands, the only one that appends to the log. It holds
// three things itself: the running policy, behind an atomic pointer, so that a
// request is decided by exactly one version; the state of the startup chain,
// without which no statement is accepted; and the prepared-statement sessions,
// in memory alone, whose statements go through the journey at every EXECUTE.
//
// A Wire is a connection of the wire listener behind its protocol. It keeps what
// a PostgreSQL session keeps (statements, portals, settings, a transaction) and
// takes every statement through the same four steps: what differs is where its
// result goes, and that several statements may stand or fall together. Such a
// block dispatches each write before it is sent, and records the results of all
// of them once COMMIT was answered; a gate that dies in between leaves executions
// that share a transaction id, by which the next one settles them. BEGIN, SET and
// their kin are decided and recorded too, and are done for real or refused.
//
// A failure is a *fault.Fault. A decision is not a failure: BLOCK and
// REQUIRE_APPROVAL are Answers; on the wire they are a WireRefusal, and what
// PostgreSQL has a SQLSTATE for is a WireError.
package sqlgate
