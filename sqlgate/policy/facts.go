package policy

import (
	"slices"
	"strings"
)

// Versions that decisions are recorded with, so that an old decision is
// computed again under the same meaning or called unreplayable.
const (
	FactsVersion  = "facts/v1"
	SchemaVersion = "gate.policy/v1"
	CorpusVersion = "gate.corpus/v1"
	CELVersion    = "v0.33.2"
	// RulesVersion is that of the meaning of rules. In 1, which records don't name, the
	// exception of an ALLOW did not see tables without their names.
	RulesVersion = "2"
)

// Facts is all that a decision may depend on: the classification of one
// statement and the context of its request, under the names of facts/v1. There
// is no time in it and no constant of the SQL text. Lists are sorted and free
// of duplicates.
//
// The JSON form leaves out empty values, as the decision record does.
type Facts struct {
	QueryType      string   `json:"query_type,omitempty"`
	QueryTypes     []string `json:"query_types,omitempty"`
	Class          string   `json:"class,omitempty"`
	SafeRead       bool     `json:"safe_read,omitempty"`
	TablesRead     []string `json:"tables_read,omitempty"`
	TablesWritten  []string `json:"tables_written,omitempty"`
	ColumnsWritten []string `json:"columns_written,omitempty"`
	Functions      []string `json:"functions,omitempty"`
	RiskSignals    []string `json:"risk_signals,omitempty"`
	Flags          []string `json:"flags,omitempty"`
	Where          []string `json:"where,omitempty"`
	Fingerprint    string   `json:"fingerprint,omitempty"`

	// Claims of the client, unverified, exact bytes.
	Actor  string `json:"actor,omitempty"`
	App    string `json:"app,omitempty"`
	Tenant string `json:"tenant,omitempty"`
	Role   string `json:"role,omitempty"`
	Host   string `json:"host,omitempty"`
	Env    string `json:"env,omitempty"`

	// TLSSubject is the name of a verified client certificate, its subject (RFC
	// 2253) as a rule, AgentID the agent of a valid token; both are empty without proof.
	TLSSubject         string `json:"tls_subject,omitempty"`
	AgentID            string `json:"agent_id,omitempty"`
	AgentToolsVerified bool   `json:"agent_tools_verified,omitempty"`

	// Mode is ModeApprovalFirst in that mode and ModeEnforce in all others, so
	// that a rule cannot see shadow or bypass.
	Mode string `json:"mode,omitempty"`
	// Approved says that the request carries a valid approval for exactly
	// this statement and context.
	Approved bool `json:"approved,omitempty"`
	// GrantSeconds is how long the grant is for that an operator gave the agent and whose
	// condition these facts meet; 0 = there is none. It is no fact that a rule could see:
	// it stands for the approval that a rule asks for, where the rule takes grants.
	GrantSeconds int `json:"grant_seconds,omitempty"`
	// ReasonGiven says that the request tells why. It is no fact that a rule could see: it
	// is what a rule with reason: required asks for.
	ReasonGiven bool   `json:"reason_given,omitempty"`
	SessionID   string `json:"session_id,omitempty"`
	// Channel is how the statement came in: ChannelHTTP, ChannelWire or ChannelMCP.
	Channel string `json:"channel,omitempty"`

	// MarkerTable is the gate's own table in the database, schema.table, empty
	// where there is none. It is no fact that a rule could see: a statement that
	// names the table is blocked, whatever the rules say.
	MarkerTable string `json:"-"`
}

// namesMarkerTable also holds for all tables of its schema, and where a list was
// cut, so that what is behind the cut is not known.
func (f *Facts) namesMarkerTable() bool {
	if f.MarkerTable == "" {
		return false
	}
	schema, _, _ := strings.Cut(f.MarkerTable, ".")
	for _, tables := range [][]string{f.TablesRead, f.TablesWritten} {
		if slices.Contains(tables, f.MarkerTable) || slices.Contains(tables, schema+"."+unnamed) || len(tables) >= maxListFacts && slices.Contains(f.RiskSignals, signalOversizedFacts) {
			return true
		}
	}
	return false
}

// Values of Facts.Mode.
const (
	ModeEnforce       = "enforce"
	ModeApprovalFirst = "approval_first"
)

// Values of Facts.Channel.
const (
	ChannelHTTP = "http" // POST /query
	ChannelWire = "wire" // the listener that speaks PostgreSQL's protocol
	ChannelMCP  = "mcp"  // POST /mcp
)

// maxListFacts is the number of entries a list of facts may have; past it the
// classifier cuts the list and raises oversized_facts.
const maxListFacts = 256

// queryTypesByClass is the closed vocabulary of query types, grouped by the
// class that a statement of the type has when nothing in it is stricter.
var queryTypesByClass = []struct {
	class string
	types []string
}{
	{"read", []string{"SELECT", "SHOW", "EXPLAIN", "COPY_TO"}},
	{"write", []string{"INSERT", "UPDATE", "DELETE", "MERGE", "COPY_FROM", "REFRESH"}},
	{"ddl", []string{"CREATE", "CREATE_TABLE_AS", "CREATE_FUNCTION", "ALTER", "DROP", "TRUNCATE", "COMMENT"}},
	{"dcl", []string{"GRANT", "REVOKE", "CREATE_ROLE", "ALTER_ROLE", "DROP_ROLE", "ALTER_DEFAULT_PRIVILEGES",
		"REASSIGN_OWNED", "SECURITY_LABEL", "ALTER_OWNER"}},
	{"tcl", []string{"BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE", "PREPARE_TRANSACTION"}},
	{"session", []string{"SET", "RESET", "DISCARD", "LISTEN", "UNLISTEN", "NOTIFY", "PREPARE", "EXECUTE",
		"DEALLOCATE", "DECLARE", "FETCH", "CLOSE"}},
	{"procedural", []string{"DO", "CALL"}},
	{"maintenance", []string{"VACUUM", "ANALYZE", "REINDEX", "CLUSTER", "CHECKPOINT"}},
	{"utility", []string{"LOCK", "LOAD", "ALTER_SYSTEM"}},
	{"unknown", []string{"UNKNOWN"}},
}

// floorSignals block every statement that raises one, unless a rule lifts the
// signal by name. Their order is that of the trace and of the reason given
// where several are raised.
var floorSignals = []string{
	signalUnknownNode, "server_file_access", "server_program", "sql_executing_function", "remote_access",
	"backend_control", "opaque_code", "identity_switch", "secret_catalog_read", signalOversizedFacts,
}

const (
	signalUnknownNode    = "unknown_node"
	signalOversizedFacts = "oversized_facts"
)

var otherSignals = []string{
	"data_modifying_cte", "select_into", "row_locking", "explain_analyze",
	"volatile_function", "unknown_function", "sequence_change", "advisory_lock", "delay_function",
	"write_without_where", "tautological_where", "destructive_ddl", "cascade", "bulk_copy",
	"system_catalog_write", "privilege_change", "session_change", "transaction_control",
	"confusable_text",
}

// A vocabulary is a closed set of names. A set of its members is a word of
// bits, which makes every check on an enum one machine instruction.
type vocabulary struct {
	names   []string
	bit     map[string]uint64
	buckets [256][]int // places of names by their hash: one or two in most
}

// foreign is the bit of every name outside a vocabulary. No check contains
// it: such a name satisfies no plain key and breaks every _only key.
const foreign = uint64(1) << 63

func newVocabulary(names ...string) *vocabulary {
	v := &vocabulary{names: names, bit: make(map[string]uint64, len(names))}
	for i, name := range names {
		v.bit[name] = 1 << i
		h := bucketOf(name)
		v.buckets[h] = append(v.buckets[h], i)
	}
	return v
}

// bucketOf is a hash that is good enough for a few dozen known names and much
// cheaper than that of a map.
func bucketOf(name string) uint8 {
	n := len(name)
	if n == 0 {
		return 0
	}
	return uint8(n)*7 + name[0]*31 + name[n-1]*17 + name[n/2]
}

// place is the index of a name, or -1.
func (v *vocabulary) place(name string) int {
	for _, i := range v.buckets[bucketOf(name)] {
		if v.names[i] == name {
			return i
		}
	}
	return -1
}

func (v *vocabulary) has(name string) bool { return v.place(name) >= 0 }

func (v *vocabulary) one(name string) uint64 {
	if i := v.place(name); i >= 0 {
		return 1 << i
	}
	return foreign
}

func (v *vocabulary) set(names []string) uint64 {
	var bits uint64
	for _, name := range names {
		bits |= v.one(name)
	}
	return bits
}

var (
	classes    = newVocabulary(classNames()...)
	queryTypes = newVocabulary(allQueryTypes()...)
	signals    = newVocabulary(append(append([]string{}, floorSignals...), otherSignals...)...)
	flags      = newVocabulary("returning", "cascade", "concurrently", "if_exists", "or_replace", "temporary",
		"on_conflict", "cte", "explain", "explain_analyze", "parameters", "prepared", "limit")
	wheres = newVocabulary("none", "tautology", "key_equality", "present")
	envs   = newVocabulary("shadow", "staging", "prod")
	modes  = newVocabulary(ModeEnforce, ModeApprovalFirst)

	channels = newVocabulary(ChannelHTTP, ChannelWire, ChannelMCP)

	floorMask = signals.set(floorSignals)
)

func classNames() []string {
	names := make([]string, len(queryTypesByClass))
	for i, group := range queryTypesByClass {
		names[i] = group.class
	}
	return names
}

func allQueryTypes() []string {
	var names []string
	for _, group := range queryTypesByClass {
		names = append(names, group.types...)
	}
	return names
}

func typesOfClass(class string) []string {
	for _, group := range queryTypesByClass {
		if group.class == class {
			return group.types
		}
	}
	return nil
}
