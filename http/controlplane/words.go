package controlplane

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// signalWords say what a risk signal means to somebody who decides
// (the names are those of the classification, contract 1.0).
var signalWords = map[string]string{
	"unknown_node":           "Holds something that the gate does not know. It cannot say what it does.",
	"server_file_access":     "Reads or writes files of the database server.",
	"server_program":         "Runs a program on the database server, or loads code into it.",
	"sql_executing_function": "Calls a function that runs SQL given to it as text.",
	"remote_access":          "Reaches out to another server.",
	"backend_control":        "Controls the database server itself: signals, backup, replication, statistics.",
	"opaque_code":            "Runs or installs code whose effect the text does not show.",
	"identity_switch":        "Changes whose rights the connection has, or a setting that the gate relies on.",
	"secret_catalog_read":    "Reads what the server keeps secret: password hashes, other sessions, its configuration.",
	"oversized_facts":        "Names more than 256 objects of one kind.",
	"data_modifying_cte":     "Writes from inside a WITH clause.",
	"select_into":            "Looks like a query and creates a table.",
	"write_without_where":    "Has no condition: it touches every row.",
	"tautological_where":     "Has a condition that is always true: it touches every row.",
	"destructive_ddl":        "Drops or empties something for good.",
	"system_catalog_write":   "Writes the server's own tables.",
	"privilege_change":       "Changes who may do what.",
	"unknown_function":       "Calls a function, operator or type that is not built into PostgreSQL; it could do anything.",
	"session_change":         "Changes the state of the connection.",
	"transaction_control":    "Begins or ends transactions.",
	"advisory_lock":          "Takes a lock that can outlast the statement.",
	"row_locking":            "Locks rows, so that others wait.",
	"explain_analyze":        "Explains a statement by running it.",
	"volatile_function":      "Calls a function whose effect can differ each time.",
	"sequence_change":        "Moves a sequence, which a rollback does not undo.",
	"delay_function":         "Waits on purpose.",
	"cascade":                "Cascades: it also drops or empties what depends on its target.",
	"bulk_copy":              "Moves data in bulk.",
	"confusable_text":        "Holds characters that a person reads as something else.",
}

// signalNames writes the name of a signal as people do.
var signalNames = strings.NewReplacer("data_modifying_cte", "data-modifying CTE", "_ddl", " DDL", "_sql", " SQL", "sql_", "SQL-", "_", " ")

// adviceWords say what a change of the schema does to others meanwhile
// (https://www.postgresql.org/docs/current/explicit-locking.html).
var adviceWords = map[string]string{
	"rewrite":        "Rewrites the whole table: the longer the table, the longer it is locked.",
	"scan":           "Reads the whole table to check it: the longer the table, the longer it runs.",
	"breaks_clients": "Programs that use the old name or column fail from then on.",
	"no_transaction": "Runs outside a transaction: if it fails half way, a part of it can stay.",
}

// severityRank orders signals; a floor is what is blocked unless a rule lifts it.
var severityRank = map[string]int{"floor": 3, "high": 2, "medium": 1}

// risk sorts approvals: what could do most harm first.
func risk(c *classification) int {
	most := 0
	for _, s := range c.Signals {
		most = max(most, 10*severityRank[s.Severity])
	}
	if len(c.unlisted()) > 0 {
		most = max(most, misleading)
	}
	if c.Class == "ddl" || c.Class == "dcl" {
		most = max(most, 15)
	}
	if slices.Contains(c.Where, "none") || slices.Contains(c.Where, "tautology") || slices.Contains(c.RiskSignals, "confusable_text") {
		most = max(most, misleading) // no ordinary one
	}
	if slices.ContainsFunc(c.Advice, func(a string) bool { return a == "rewrite" || strings.HasPrefix(a, "blocks_") }) {
		most = max(most, 10) // others wait for it
	}
	if slices.Contains(c.Where, "present") {
		most = max(most, 10) // how many rows that is, the text does not say
	}
	return most + len(c.Signals)
}

// misleading is the rank of what is written to be misread.
const misleading = 20

// riskWord is what a person reads of it.
func riskWord(rank int) string {
	switch {
	case rank >= 20:
		return "high"
	case rank >= 10:
		return "elevated"
	}
	return "ordinary"
}

// RiskOf is the mark that the inbox gives a record of GET /approvals/{id}, and its place in
// the order of the inbox: what could do most harm has the highest.
func RiskOf(record json.RawMessage) (words string, order int, err error) {
	var a approval
	if err := json.Unmarshal(record, &a); err != nil {
		return "", 0, broken(err)
	}
	s := &Server{now: time.Now} // the time that is left is no part of it
	risk := s.rows([]approval{a})[0].Risk
	return riskWords[risk], riskOrder[risk], nil
}

// ExecutionWords say how an execution stands, and why.
func ExecutionWords(state, reasonCode string) string {
	words := wordOr(stateWords, state)
	if reasonCode != "" {
		words += ": " + wordOr(reasonWords, reasonCode)
	}
	return words
}

// A meaning is a signal with its words.
type meaning struct {
	Name, Severity, Words, Subjects string
}

// unlisted are risk signals of which a full list has no place and no severity.
func (c *classification) unlisted() (names []string) {
	if len(c.Signals) < mostSignals {
		return nil
	}
	for _, name := range c.RiskSignals {
		if !slices.ContainsFunc(c.Signals, func(s signal) bool { return s.Signal == name }) {
			names = append(names, name)
		}
	}
	return names
}

func meanings(c *classification) []meaning {
	subjects := make(map[string][]string)
	severity := make(map[string]string)
	for _, s := range c.Signals {
		severity[s.Signal] = s.Severity
		if s.Subject != "" && !slices.Contains(subjects[s.Signal], s.Subject) {
			subjects[s.Signal] = append(subjects[s.Signal], s.Subject)
		}
	}
	var list []meaning
	for _, name := range c.unlisted() {
		severity[name] = "high"
	}
	for _, name := range c.RiskSignals {
		words := cmp.Or(signalWords[name], name)
		if upserts(c) && (name == "write_without_where" || name == "tautological_where") {
			words = "Perhaps every row: each that its source meets is overwritten, and the source has no condition that holds rows back."
		}
		list = append(list, meaning{name, cmp.Or(severity[name], "medium"), words, strings.ReplaceAll(strings.Join(subjects[name], ", "), "?.*", "what it does not name")})
	}
	slices.SortStableFunc(list, func(a, b meaning) int { return cmp.Compare(severityRank[b.Severity], severityRank[a.Severity]) })
	return list
}

// upserts tells whether what a statement changes is what its rows meet.
func upserts(c *classification) bool {
	return c.QueryType == "INSERT" && len(c.TablesWritten) == 1 && len(c.QueryTypes) == 2
}

func advice(c *classification, text string) []string {
	var list []string
	for _, name := range c.Advice {
		if !strings.HasPrefix(name, "blocks_") {
			list = append(list, cmp.Or(adviceWords[name], name))
		}
	}
	if words := keptOut(c, text); words != "" {
		list = append(list, words)
	}
	return list
}

// dropsOrRetypes finds what locks tables besides, which foreign keys or partitions lead to.
var dropsOrRetypes = regexp.MustCompile(`(?i)\b(DROP|TYPE)\b`)

// keptOut says who can't use what meanwhile: what is kept from readers is kept from writers,
// too.
func keptOut(c *classification, text string) string {
	tables, kind := few(tableList(c.TablesWritten)), objectKind.FindStringSubmatch(bareText(text))
	if slices.Contains(c.Flags, "cascade") {
		tables = written(c)
	}
	tables = cmp.Or(tables, "the table")
	all, writes := slices.Contains(c.Advice, "blocks_all"), slices.Contains(c.Advice, "blocks_writes")
	switch {
	case all && writes && len(c.TablesWritten) > 1:
		return "Nobody can read or write at least one of " + tables + " while it runs, nor write the others, and it queues behind whoever uses them now."
	case all:
		others := ""
		if kind != nil && strings.EqualFold(kind[1], "DROP") && strings.EqualFold(kind[3], "INDEX") {
			tables = "the table of " + tables
		} else if kind != nil && strings.EqualFold(kind[3], "TABLE") && dropsOrRetypes.MatchString(bareText(text)) {
			others = " So it may be for tables that its foreign keys refer to, or that it is a part of."
		}
		return "Nobody can read or write " + tables + " while it runs, and it queues behind whoever uses it now." + others
	case writes && kind != nil && strings.EqualFold(kind[3], "DOMAIN"):
		return "Nobody can write the tables that have columns of " + tables + " while it runs; reads go on."
	case writes && kind != nil && strings.EqualFold(kind[1], "ALTER") && strings.EqualFold(kind[3], "SEQUENCE"):
		return "Nobody can take numbers from " + tables + " while it runs."
	case writes:
		return "Nobody can write " + tables + " while it runs; reads go on."
	case slices.Contains(c.Advice, "blocks_partition"):
		return "Nobody can read or write the partition while it runs; the table that it belongs to stays in use."
	}
	return ""
}

// effectVerbs are kinds of statements whose bare name would say something else:
// "delete orders" sounds as if the table went.
var effectVerbs = map[string]string{
	"DELETE": "Delete from", "INSERT": "Insert into", "MERGE": "Merge into", "SELECT": "Read", "TRUNCATE": "Empty", "CREATE_TABLE_AS": "Create table", "COMMENT": "Comment on", "LOCK": "Lock", "DO": "Run a block of code", "COPY_TO": "Copy out of", "COPY_FROM": "Copy into",
}

// objectKind finds what a change of the schema is about, in its text without comments.
var objectKind = regexp.MustCompile(`(?is)^(CREATE|ALTER|DROP)(?: OR REPLACE)?(?: (?:GLOBAL|LOCAL|TEMP|TEMPORARY|TRUSTED|PROCEDURAL|RECURSIVE|DEFAULT))* ` +
	`((?:UNLOGGED |UNIQUE |FOREIGN |EVENT |MATERIALIZED |CONSTRAINT |ACCESS |OPERATOR |USER |TEXT SEARCH )?([A-Z]+))`)

// ofTable are kinds of which the classifier names the table that they stand on.
var ofTable = []string{"TRIGGER", "POLICY", "RULE", "STATISTICS"}

// bareText is the beginning of a text without its comments and with single blanks.
func bareText(text string) string {
	var code strings.Builder
	for _, piece := range viewSQL(cutRunes(text, 400)).Pieces {
		if piece.Kind != "comment" {
			code.WriteString(piece.Text)
		}
		code.WriteByte(' ')
	}
	return strings.Join(strings.Fields(code.String()), " ")
}

func effectVerb(queryType string) string {
	return cmp.Or(effectVerbs[queryType], capital(strings.ReplaceAll(strings.ToLower(queryType), "_", " ")))
}

// effect says in one line what a statement does: of one that writes in several parts,
// what each of them does. Its text tells what a change of the schema is about.
func effect(c *classification, text string) string {
	if words := changes(c, text); words != "" {
		return words
	}
	verb := effectVerb(c.QueryType)
	if words := objectKind.FindStringSubmatch(bareText(text)); words != nil && strings.EqualFold(words[1], strings.TrimSuffix(c.QueryType, "_TABLE_AS")) {
		verb = capital(strings.ToLower(words[1] + " " + words[2]))
		if kind := strings.ToUpper(words[3]); slices.Contains(ofTable, kind) || kind == "INDEX" && c.QueryType == "CREATE" {
			verb += " on"
		}
	}
	if len(c.TablesWritten) > 0 {
		var verbs []string
		for _, queryType := range append([]string{c.QueryType}, c.QueryTypes...) {
			one := effectVerb(queryType)
			if queryType == c.QueryType {
				one = verb
			}
			if queryType != "SELECT" && !slices.Contains(verbs, one) {
				verbs = append(verbs, one)
			}
		}
		if len(verbs) > 0 {
			verb = capital(strings.ToLower(strings.Join(verbs, ", ")))
		}
	}
	called := calls(c)
	switch {
	case called == "" || len(c.TablesWritten) > 0 && c.QueryType != "SELECT": // a write of its own says more, and its dangers name the calls
		called = ""
	case len(c.TablesWritten) == 0 && (c.QueryType == "SELECT" || c.QueryType == "CALL"):
		if verb = "Call " + called; len(c.TablesRead) > 0 {
			verb += ", and read"
		}
		called = ""
	case slices.Contains(c.Flags, "explain") && !slices.Contains(c.Flags, "explain_analyze"): // planning runs some
		called = ", perhaps calling " + called
	default:
		called = ", calling " + called
	}
	if verb == "Read" && slices.Contains(c.RiskSignals, "row_locking") {
		verb = "Lock and read"
	}
	if verb == "Read" && slices.Contains(c.RiskSignals, "unknown_node") {
		verb = "Do what the gate does not know, and read"
	}
	switch {
	case len(c.TablesWritten) > 0:
		return verb + " " + written(c) + called
	case len(c.TablesRead) > 0:
		return verb + " " + tableNames(c.TablesRead) + called
	case c.Class == "ddl" || c.Class == "dcl":
		return verb + " (which, its text says, and this sentence can't tell)"
	}
	return verb + called
}

// few names at most three things of a list.
func few(list []string) string {
	if len(list) <= 3 {
		return strings.Join(list, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(list[:3], ", "), len(list)-3)
}

// written names the tables that a statement writes, and says of a cascade that others hang
// on them.
func written(c *classification) string {
	if list := withoutUnnamed(c.TablesWritten); slices.Contains(c.Flags, "cascade") && len(list) < len(c.TablesWritten) {
		if len(list) == 0 {
			return "what hangs on it"
		}
		return few(tableList(list)) + hanging(len(list))
	}
	return tableNames(c.TablesWritten)
}

func withoutUnnamed(list []string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(name string) bool { return name == "?.*" })
}

// plainInNames are what a name of most tables has.
const plainInNames = "abcdefghijklmnopqrstuvwxyz0123456789_$.*"

// tableNames says which tables; one that the classifier can't name comes last.
func tableNames(list []string) string { return strings.Join(tableList(list), ", ") }

func tableList(list []string) []string {
	named := withoutUnnamed(list)
	for i, name := range named {
		if strings.Trim(name, plainInNames) != "" { // it may be written to be read as our words
			named[i] = strconv.Quote(name)
		}
	}
	if len(named) < len(list) {
		named = append(named, "tables that it does not name")
	}
	return named
}

// whereWords say which rows a write reaches.
var whereWords = map[string]string{
	"none": "every row: there is no condition", "tautology": "every row: its condition is always true",
	"key_equality": "rows whose id, or other key column, has a given value", "present": "the rows that its condition finds",
}

// reach says which rows a statement touches. Of one with several parts the facts do not say
// which condition is that of which part.
func reach(c *classification) string {
	every := slices.Contains(c.Where, "none") || slices.Contains(c.Where, "tautology")
	switch {
	case every && upserts(c) && len(c.Where) == 1:
		return "perhaps every row: each that its source meets"
	case every && (len(c.Where) > 1 || len(c.TablesWritten) > 1):
		return "at least one part touches every row"
	case len(c.Where) > 1:
		return "at least one part touches all rows that its condition finds"
	}
	var list []string
	for _, w := range c.Where {
		list = append(list, cmp.Or(whereWords[w], w))
	}
	return strings.Join(list, "; ")
}

// estimate is what the database expects, or why it was not asked. Its statistics may be
// old, so it is no promise.
func estimate(p *plan) string {
	switch {
	case p == nil || p.Node == "" && p.Unplanned == "":
		return ""
	case p.Node == "":
		return "None: " + p.Unplanned + "."
	}
	return fmt.Sprintf("PostgreSQL expects %s (%s, cost %s). It planned the statement and did not run it.", plural(int(p.Rows), "row", "rows"), p.Node, thousands(int64(math.Round(p.TotalCost))))
}

// estimated is estimate of an approval: where its text says that it reaches every row, that
// is the number.
func (r *approvalRow) estimated() string {
	table, rows := r.everyRow()
	if table == "" {
		return estimate(r.Impact)
	}
	return fmt.Sprintf("Every row, about %s (%s, cost %s). PostgreSQL planned the statement and did not run it.", thousands(rows), r.Impact.Node, thousands(int64(math.Round(r.Impact.TotalCost))))
}

// takenWords say what a foreign key does with the rows that hang on others, and what a
// view's name hides.
var takenWords = map[string][2]string{
	"cascade": {"Deletes elsewhere", "that belong to those deleted from"}, "set_null": {"Empties columns elsewhere", "that belong to those deleted from"},
	"set_default": {"Changes columns elsewhere", "that belong to those deleted from"}, "key_changed": {"Changes elsewhere", "that belong to those whose key is changed in"},
	"view": {"Writes through a view", "that show in"}, "rule": {"A rule may write elsewhere", "that a rule may write, instead or besides, at a write of"}, "child": {"In tables that inherit", "too, since a query reads those as a part of"}, "emptied": {"Empties another table", "go, every one, with those of"},
}

// sizeOf is how large a table is, by the server's last count.
func sizeOf(t reached) string {
	if t.Rows == nil || *t.Rows < 0 {
		return "never counted"
	}
	if t.Bytes <= 0 { // of a partitioned table
		return "about " + plural(int(*t.Rows), "row", "rows")
	}
	return fmt.Sprintf("about %s, %s kB", plural(int(*t.Rows), "row", "rows"), thousands((t.Bytes+1023)/1024))
}

// perRow says how many rows hang on each of another table.
func perRow(rows float64) string {
	switch {
	case rows == 0:
		return ""
	case rows < 10:
		return fmt.Sprintf(", on average %.1f for each", rows)
	}
	return fmt.Sprintf(", on average %s for each", thousands(int64(rows)))
}

// eventWords are the event types as a heading.
var eventWords = map[string]string{
	"request_received": "Request received", "query_rejected": "Refused before a decision", "decision_recorded": "Decided",
	"approval_created": "Approval asked for", "approval_resolved": "Approval resolved", "approval_expired": "Approval expired",
	"approval_used": "Approval used", "approvals_purged": "Expired approvals removed",
	"grant_created": "Grant given", "grant_used": "Grant used", "grant_revoked": "Grant revoked", "grant_expired": "Grant expired",
	"execution_dispatched": "Sent to the database", "execution_success": "Ran", "execution_failure": "Failed",
	"execution_state_unknown": "Outcome unknown", "execution_outcome_resolved": "Outcome checked",
	"policy_loaded": "Policy loaded", "policy_validated": "Policy validated", "policy_activated": "Policy activated",
	"policy_candidate_created": "Policy version submitted", "policy_candidate_rejected": "Policy version refused", "policy_rollback": "Policy rolled back",
	"startup": "Gate started", "shutdown": "Gate stopped", "log_tail_recovered": "Unfinished end of the log set aside", "log_fence_taken": "Log taken by this gate",
	"health_fail": "A check failed", "db_unavailable": "Database out of reach", "rate_limit_hit": "Too many requests",
	"oversized_request": "Request too large", "operator_auth_failed": "Wrong operator token", "wire_login_failed": "Login at the wire refused", "evidence_exported": "Evidence exported", "audit_corruption_detected": "Evidence is damaged",
	"catalog_recorded": "Database's catalogue recorded",
	"emergency_bypass": "Emergency bypass", "read_fence_violation": "A read tried to write", "checkpoint_signed": "Checkpoint signed",
	"session_opened": "Session opened", "session_closed": "Session closed",
	"GATE_CANCEL_REQUEST_RECEIVED": "Cancel request received", "GATE_CANCEL_FORWARDED_TO_BACKEND": "Cancel request forwarded", "GATE_CANCEL_REJECTED": "Cancel request rejected",
	"GATE_CANCEL_BEFORE_DISPATCH": "Cancel request before dispatch",
	"agent_registered":            "Agent registered", "agent_updated": "Agent changed", "agent_deactivated": "Agent deactivated",
	"agent_token_issued": "Agent token issued", "agent_token_revoked": "Agent token revoked", "agent_subject_bound": "Agent subject bound", "agent_subject_unbound": "Agent subject unbound", "agent_policy_created": "Agent rules made",
	"agent_policy_updated": "Agent rules changed", "agent_policy_applied": "Agent rules applied", "agent_policy_detached": "Agent rules detached",
	"telemetry_received": "Telemetry received", "tool_registered": "Tool registered", "tool_updated": "Tool changed", "tool_verified": "Tool verified",
	"usage_recorded": "Usage recorded",
}

func eventWord(name string) string {
	if word, ok := eventWords[name]; ok {
		return word
	}
	return capital(strings.ReplaceAll(name, "_", " "))
}

// capital makes a word the first of a sentence; names of events and kinds are
// ASCII.
func capital(word string) string {
	return strings.ToUpper(word[:min(1, len(word))]) + word[min(1, len(word)):]
}

// reasonWords say why an execution did not succeed; the reasons of rules are named by
// who wrote them.
var reasonWords = map[string]string{
	"db_error": "the database refused it", "row_limit_exceeded": "it would have changed more rows than it may", "result_too_large": "its result was too large",
	"commit_never_sent": "its COMMIT was never sent", "rolled_back": "it was rolled back", "cancelled": "it was cancelled",
	"transaction_overtime": "its transaction was open for longer than it may be", "settings_drift": "a setting that the gate relies on had changed",
	"read_fence_violation": "a read tried to write", "catalog_changed": "what stands behind its names in the database had changed",
}

// refusalWords say why a statement that was approved was not even dispatched.
var refusalWords = map[string]string{
	"row_limit_exceeded": "the gate can't count the rows that it changes, and the approval limits them", "db_connection_failed": "the database was out of reach",
	"approval_mismatch": "it was not the request that was approved, or not from who asked", "approval_expired": "its time was over",
}

// whyNot is that of the event that ended it.
func whyNot(e auditEvent) string {
	if e.Decision == "BLOCK" {
		return "the policy blocks it now (" + strings.ReplaceAll(e.ReasonCode, "_", " ") + ")"
	}
	if words := refusalWords[e.ErrorCode]; words != "" {
		return words
	}
	return wordOr(reasonWords, cmp.Or(e.ReasonCode, e.ErrorCode))
}

// decisionWords are the decisions as people say them.
var decisionWords = map[string]string{"ALLOW": "Allowed", "BLOCK": "Blocked", "REQUIRE_APPROVAL": "Asks for approval"}

// checkWords are the checks of a verification as a person says them
// (contract 4.4, and those of evidence files).
var checkWords = map[string]string{
	"wal_existence": "The log is there", "read_lock": "It could be read undisturbed", "header": "Its header is sound", "event_count": "No event is missing or too many",
	"event_hash": "Every event has the hash of its content", "previous_hash": "Every event links to the one before", "sequence": "Numbers follow one another",
	"chain_start": "It begins where it says", "trailing_bytes": "Nothing stands behind the last event", "padding": "Unused space is empty",
	"anchors": "It agrees with what is kept outside of it", "form": "The file has the form that it must have", "record": "Records and readable text say the same",
	"checkpoint": "A known key signed the checkpoint", "inclusion_proofs": "Both ends are in the checkpoint's tree", "signature": "A known key signed the file",
}

// anchorWords are where knowledge about the log is kept outside of it
// (design/eventlog.md): the farther away, the more it can show.
var anchorWords = map[string]string{
	"L1": "the head file beside the log", "L2": "the store of approvals", "L3": "receipts of clients", "L4": "signed checkpoints",
}

// pathWords and basisWords say how a statement ran, and how its outcome is known
// (design/execution-and-wire.md).
var pathWords = map[string]string{"dry_run": "dry, in a transaction that was rolled back", "tx": "in a transaction", "alone": "outside a transaction", "read": "as a read, in a transaction that can't write"}

var basisWords = map[string]string{
	"pg_xact_status": "the database's own record of transactions", "marker": "a row that the transaction left behind", "commit_acknowledged": "the answer to its COMMIT",
	"rollback_acknowledged": "the answer to its ROLLBACK", "commit_never_sent": "its COMMIT was never sent", "read_only": "it was a read", "read_rolled_back": "it was a read",
	"alone_completed": "the database said that it ended", "marker_expired": "nothing: its marker is too old", "marker_missing": "nothing: its marker is not there any more",
	"pg_stat_activity": "the database still shows it running", "backend_gone": "its connection is gone, and nothing else tells", "other_server": "nothing: this is another server, or another database",
	"other_timeline": "nothing: a failover or a restore lies between", "crash_between": "nothing: the server crashed in between", "foreign_tables": "the database, which did not commit it; it has foreign tables, and their servers commit by themselves", "commit_log_too_old": "nothing: the server does not keep it so long",
}

// stepWords are the parts of a request's time, in their order.
var stepWords = map[string]string{"classify": "Classify", "decide": "Decide", "log": "Write evidence", "database": "Database", "total": "Whole request"}

// operationWords are what the gate does by itself; a statement's kind stays as
// SQL writes it.
func operationWords(name string) string {
	if name != strings.ToLower(name) {
		return strings.ReplaceAll(name, "_", " ")
	}
	return capital(strings.ReplaceAll(name, "_", " "))
}

// A guardState is whether the gate protects right now, in two words.
type guardState struct{ Word, Tone string }

// guarding tells the modes that let things through from those that do not. What
// is invented protects nothing.
func guarding(h *health, mock bool) guardState {
	switch {
	case mock:
		return guardState{"Mock", "calm"}
	case h == nil:
		return guardState{"No answer", "bad"}
	case h.damaged():
		return guardState{"Refusing everything", "bad"}
	case h.Status != "ok":
		return guardState{"Refusing everything", "warn"} // which is safe
	case h.Mode == "shadow":
		return guardState{"NOT ENFORCING", "bad"}
	case h.Mode == "emergency_bypass":
		return guardState{"BYPASS until", "bad"}
	}
	return guardState{"Enforcing", "good"}
}

// modeWords explain a mode in which the gate does not simply enforce.
var modeWords = map[string]string{
	"shadow":           "Shadow mode: decisions are recorded and not enforced. Every statement runs.",
	"approval_first":   "Approval-first mode: every write waits for a person.",
	"emergency_bypass": "Emergency bypass: statements that carry an operator token run even where the decision is to block them.",
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%s %s", thousands(int64(n)), many)
}

// Rows is a number of rows in words.
func Rows(n int64) string { return plural(int(n), "row", "rows") }

func thousands(n int64) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + " " + text[i:]
	}
	return text
}

func ago(then, now time.Time) string {
	d := now.Sub(then)
	switch {
	case d < 2*time.Second:
		return "just now"
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s ago", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min ago", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h ago", int(d.Hours()))
	}
	return fmt.Sprintf("%d days ago", int(d.Hours()/24))
}

func lasting(seconds int64) string {
	d := time.Duration(seconds) * time.Second
	switch {
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s", seconds)
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", int(d.Hours()))
	}
	return fmt.Sprintf("%d days", int(d.Hours()/24))
}

func milliseconds(ms float64) string {
	switch {
	case ms >= 100:
		return fmt.Sprintf("%.0f ms", ms)
	case ms >= 1:
		return fmt.Sprintf("%.1f ms", ms)
	}
	return fmt.Sprintf("%.0f µs", math.Max(ms*1000, 0))
}

func escapeQuery(s string) string { return url.QueryEscape(s) }
