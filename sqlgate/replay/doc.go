// Package replay decides recorded decisions once more.
//
// The log holds, for every statement, all that its decision was made from: the
// claims in request_received, the rest of facts/v1 in decision_recorded beside
// it. A Reader joins the two into a Decision, as events go by in the order of
// the log. Two things are made of them: a Comparison says what a policy version
// would have decided otherwise (design/policy.md part 8, replay), and a Verifier
// recomputes each decision under the version that it names and says where the
// record and the recomputation differ (part 9).
//
// Where a decision names what was read of the database's catalogues, the Verifier also finds
// again, in what the log keeps of it, what stood behind the names of the statement.
//
// The package is pure: events in, findings out. It reads no log, no clock and
// no file, so that an operator's answer and an auditor's are computed by the
// same lines.
package replay
