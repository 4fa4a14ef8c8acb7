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
// A failure is a *fault.Fault. A decision is not a failure: BLOCK and
// REQUIRE_APPROVAL are Answers.
package sqlgate
