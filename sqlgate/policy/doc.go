// Package policy turns facts into a decision: the same facts under the same
// bytes give the same decision, on any machine, in any year.
//
// A policy is one document, YAML or JSON, named name@major.minor.patch. Load
// reads it whole and reports everything that is wrong with it at once, each
// finding with its place in the file and a way to mend it; only a document
// without errors becomes a Policy. A rule has a match (plain checks on facts),
// an unless (the same checks, taking the match back) and a when (a bounded CEL
// expression); Decide evaluates all of them over the Facts of one statement:
//
//	facts -> match, unless, when of every rule -> floor -> strictest wins
//
// Strictest wins means that the order of rules never changes a decision, only
// which of several equally strict rules gives the reason. Under every rule
// lies the floor: signals of the classifier that block unless a rule lifts
// them by name. Where no rule matches, a safe read is allowed and all else is
// blocked; that default cannot be configured.
//
// Few rules are for any one statement. An index over all of them, built when
// the document is loaded, tells from the facts which ones may match, and only
// those are asked; it passes over none that would.
//
// The package is pure. It reads no clock, no file, no network and draws no
// random number; the classifier is handed to RunCases as a function, and the
// folder on disk belongs to sqlgate/policyfolder. It knows nothing of the
// classifier's tables either, but holds the closed vocabulary that both share
// (facts/v1): an unknown name in a document is a finding, an unknown name in
// facts matches no enum.
//
// Two quantifiers keep policies honest. A plain key on a list asks whether any
// value matches and suits rules that restrict; a key ending in _only asks
// whether all do and suits rules that allow. What the classifier could not
// resolve (a schema shown as ?, a list that was cut) counts as inside
// everything for the first and inside nothing for the second.
package policy
