// Package classify turns the text of one SQL statement into facts: right, or
// not known and refused, never confidently wrong (design: DESIGN.md beside this
// file and the pages it names).
//
// A text goes through five stations:
//
//  1. The cache, by its exact bytes, if there is one.
//  2. The guard (guard*.go) reads it once as PostgreSQL's lexer would and
//     refuses what could kill or stall the parser: it stands in front of every
//     call into C.
//  3. A lane: short and shallow texts are parsed in this process, all others by
//     a parser child (supervisor*.go, worker*.go), the same binary in a process
//     of its own that may die without harm and is killed when it takes too long.
//  4. The parser (parse_cgo.go): PostgreSQL 16's own grammar through pg_query,
//     one call for the tree as JSON and its fingerprint.
//  5. The walk (walk*.go, statements*.go, functions*.go): every node, field and
//     enum value is known or the class is unknown.
//
// The outcome is a Classification or a coded refusal. Nothing here talks to a
// database, reads a clock for a decision or keeps state that changes an answer:
// the same bytes under the same Config give the same classification.
package classify
