package policy

// A kind says what values a fact has and how a check on it is written.
type kind uint8

const (
	kindEnum     kind = iota // one name of a vocabulary
	kindEnumList             // names of a vocabulary
	kindText                 // a text, matched by patterns of one segment
	kindExact                // a text, matched byte by byte
	kindNames                // qualified names, matched by patterns of segments
	kindBool
)

// A variable is one fact of facts/v1: its name in documents, in CEL and in
// records, and the way to read it.
type variable struct {
	name     string
	kind     kind
	id       int
	words    *vocabulary // kindEnum, kindEnumList
	segments int         // kindNames: 2 tables, 3 columns, 0 functions (one or two)
	claim    bool        // what the client says of itself
	verified bool        // what the service has proof of
	text     func(*Facts) string
	list     func(*Facts) []string
	truth    func(*Facts) bool
}

func (v *variable) isList() bool { return v.kind == kindEnumList || v.kind == kindNames }

// The variables in the order of facts/v1. Ids are their places.
var variables = number([]*variable{
	{name: "query_type", kind: kindEnum, words: queryTypes, text: func(f *Facts) string { return f.QueryType }},
	{name: "query_types", kind: kindEnumList, words: queryTypes, list: func(f *Facts) []string { return f.QueryTypes }},
	{name: "class", kind: kindEnum, words: classes, text: func(f *Facts) string { return f.Class }},
	{name: "safe_read", kind: kindBool, truth: isSafeRead},
	{name: "tables_read", kind: kindNames, segments: 2, list: func(f *Facts) []string { return f.TablesRead }},
	{name: "tables_written", kind: kindNames, segments: 2, list: func(f *Facts) []string { return f.TablesWritten }},
	{name: "columns_written", kind: kindNames, segments: 3, list: func(f *Facts) []string { return f.ColumnsWritten }},
	{name: "functions", kind: kindNames, list: func(f *Facts) []string { return f.Functions }},
	{name: "risk_signals", kind: kindEnumList, words: signals, list: func(f *Facts) []string { return f.RiskSignals }},
	{name: "flags", kind: kindEnumList, words: flags, list: func(f *Facts) []string { return f.Flags }},
	{name: "where", kind: kindEnumList, words: wheres, list: func(f *Facts) []string { return f.Where }},
	{name: "fingerprint", kind: kindExact, text: func(f *Facts) string { return f.Fingerprint }},
	{name: "actor", kind: kindText, claim: true, text: func(f *Facts) string { return f.Actor }},
	{name: "app", kind: kindText, claim: true, text: func(f *Facts) string { return f.App }},
	{name: "tenant", kind: kindText, claim: true, text: func(f *Facts) string { return f.Tenant }},
	{name: "role", kind: kindText, claim: true, text: func(f *Facts) string { return f.Role }},
	{name: "host", kind: kindText, claim: true, text: func(f *Facts) string { return f.Host }},
	{name: "env", kind: kindEnum, words: envs, claim: true, text: func(f *Facts) string { return f.Env }},
	{name: "tls_subject", kind: kindText, verified: true, text: func(f *Facts) string { return f.TLSSubject }},
	{name: "agent_id", kind: kindText, verified: true, text: func(f *Facts) string { return f.AgentID }},
	{name: "agent_tools_verified", kind: kindBool, verified: true, truth: func(f *Facts) bool { return f.AgentToolsVerified }},
	{name: "mode", kind: kindEnum, words: modes, text: func(f *Facts) string { return f.Mode }},
	{name: "approved", kind: kindBool, verified: true, truth: func(f *Facts) bool { return f.Approved }},
	{name: "session_id", kind: kindExact, claim: true, text: func(f *Facts) string { return f.SessionID }},
	{name: "channel", kind: kindEnum, words: channels, text: func(f *Facts) string { return f.Channel }},
})

const variableCount = 25

var variableByName = func() map[string]*variable {
	m := make(map[string]*variable, len(variables))
	for _, v := range variables {
		m[v.name] = v
	}
	return m
}()

var variableNames = newVocabulary(factNames()...)

func factNames() []string {
	names := make([]string, len(variables))
	for i, v := range variables {
		names[i] = v.name
	}
	return names
}

var (
	classVariable      = variableByName["class"]
	safeReadVariable   = variableByName["safe_read"]
	queryTypesVariable = variableByName["query_types"]
	tablesWritten      = variableByName["tables_written"]
	signalsVariable    = variableByName["risk_signals"]
	queryTypeVariable  = variableByName["query_type"]
	tablesRead         = variableByName["tables_read"]
	whereVariable      = variableByName["where"]
	shapeVariable      = variableByName["fingerprint"]
)

func number(vs []*variable) []*variable {
	for i, v := range vs {
		v.id = i
	}
	return vs
}

// isSafeRead does not take the caller's word alone: a read that carries a
// signal is no safe read, whatever the field says.
func isSafeRead(f *Facts) bool {
	return f.SafeRead && f.Class == "read" && len(f.RiskSignals) == 0
}

// keyNames lists every key that a match may hold, for suggestions.
func keyNames() []string {
	names := []string{"any_of"}
	for _, v := range variables {
		names = append(names, v.name)
		if v.isList() {
			names = append(names, v.name+"_only")
		}
	}
	return names
}
