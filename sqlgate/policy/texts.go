package policy

// What a client is told where the document says nothing.
const (
	textDefaultDeny   = "No rule of the policy allows this statement, and it is not a safe read."
	remedyDefaultDeny = "Ask the owner of the policy for a rule that allows it, or send a statement that only reads."

	textRuleEvalError   = "The condition of a rule failed on this statement, so the statement is blocked."
	remedyRuleEvalError = "Tell the owner of the policy: the condition of the named rule must be mended."

	textApprovalFirst   = "The gate runs in the mode approval_first: everything but a safe read needs an approval."
	remedyApprovalFirst = "Have the approval resolved, then send the same request again with its approval_id."

	textMarkerTable   = "The statement names the gate's own table of execution markers, which proves what was applied."
	remedyMarkerTable = "Leave that table out. Its owner tidies it up at the database itself; no rule can let a statement at it pass."

	textReasonRequired   = "A rule of the policy lets this statement pass with a reason alone, and the request has none."
	remedyReasonRequired = "Say why, and send it again: in the field reason of POST /query, the argument reason of the tool sql, or by SET gate.reason = '...' on a connection of the wire listener."

	textBlockedByRule  = "A rule of the policy blocks this statement."
	textApprovalByRule = "A rule of the policy asks for an approval of this statement."

	remedyFloor = "Rewrite the statement without it. Only a rule that lifts this signal by name can let it pass."
)

var floorTexts = map[string]string{
	signalUnknownNode:        "The statement holds something that the classifier does not know.",
	"server_file_access":     "The statement reaches files of the database server.",
	"server_program":         "The statement runs a program or loads code on the database server, or changes its configuration.",
	"sql_executing_function": "The statement calls a function that runs SQL given as text.",
	"remote_access":          "The statement reaches another server.",
	"backend_control":        "The statement controls other sessions or the database server itself.",
	"opaque_code":            "The statement runs or installs code that cannot be looked into.",
	"identity_switch":        "The statement changes the role or a setting that the gate relies on.",
	"secret_catalog_read":    "The statement reads secrets of the catalogue or what other sessions do.",
	signalOversizedFacts:     "The statement touches more objects than the gate can list.",
}
