package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/agnivade/levenshtein"
)

// Severities of findings. An error keeps a document from becoming a policy.
const (
	SeverityError   = "error"
	SeverityWarning = "warning"
	SeverityInfo    = "info"
)

// A Finding is one thing to say about a document: what, where, and how to mend
// it. Line and Column count from 1 (0: the document as a whole); Pointer is a
// JSON pointer (RFC 6901) into the document.
type Finding struct {
	Code       string    `json:"code"`
	Name       string    `json:"name"`
	Severity   string    `json:"severity"`
	Category   string    `json:"category"`
	Message    string    `json:"message"`
	RuleID     string    `json:"rule_id,omitempty"`
	Pointer    string    `json:"pointer,omitempty"`
	Line       int       `json:"line,omitempty"`
	Column     int       `json:"column,omitempty"`
	Related    []Related `json:"related,omitempty"`
	Suggestion string    `json:"suggestion,omitempty"`
}

// Related names another place that a finding is about.
type Related struct {
	RuleID  string `json:"rule_id,omitempty"`
	Pointer string `json:"pointer,omitempty"`
	Line    int    `json:"line,omitempty"`
}

// String is the finding on one line, as a compiler would print it.
func (f Finding) String() string {
	var b strings.Builder
	if f.Line > 0 {
		fmt.Fprintf(&b, "%d:%d: ", f.Line, f.Column)
	}
	fmt.Fprintf(&b, "%s %s %s: %s", f.Severity, f.Code, f.Name, f.Message)
	if f.Suggestion != "" {
		fmt.Fprintf(&b, " (try: %s)", f.Suggestion)
	}
	return b.String()
}

// Codes of findings. They are stable: a code is never given another meaning.
const (
	codeYAMLInvalid   = "PV101"
	codeDuplicateKey  = "PV102"
	codeUnknownField  = "PV103"
	codeMissingField  = "PV104"
	codeTypeMismatch  = "PV105"
	codeBadName       = "PV106"
	codeFilename      = "PV107"
	codeVersionExists = "PV108"
	codeDuplicateRule = "PV109"
	codeUnknownEnum   = "PV110"
	codeReasonCode    = "PV111"
	codeLimit         = "PV112"
	codeAnchor        = "PV113"
	codeUnknownList   = "PV114"
	codeApprovalBlock = "PV115"
	codeFactsVersion  = "PV116"
	codeCELCompile    = "PV201"
	codeNeverMatches  = "PV202"
	codeCELCost       = "PV206"
	codeCELForbidden  = "PV207"
	codeCELMayError   = "PV208"
	codeAllowTooBroad = "PV211"
	codeTTLLong       = "PV215"
	codeConfusable    = "PV217"
	codeAllowAny      = "PV222"
	codeRestsOnClaim  = "PV223"
	codeFloorLifted   = "PV224"
	codeExceptAny     = "PV225"
	codeRestsOnShape  = "PV226"
	codeConditionAny  = "PV227"
	codeTestFailed    = "PV301"
	codeNoTests       = "PV302"
	codeNotCovered    = "PV303"
	codeNeverDecisive = "PV304"
	codeIntegrity     = "PV401"
	codeFileSet       = "PV402"
	codeCorpusChanged = "PV403"
)

var catalogue = map[string]struct{ name, severity string }{
	codeYAMLInvalid:   {"yaml_invalid", SeverityError},
	codeDuplicateKey:  {"duplicate_key", SeverityError},
	codeUnknownField:  {"unknown_field", SeverityError},
	codeMissingField:  {"missing_field", SeverityError},
	codeTypeMismatch:  {"type_mismatch", SeverityError},
	codeBadName:       {"bad_name_or_version", SeverityError},
	codeFilename:      {"filename_mismatch", SeverityError},
	codeVersionExists: {"version_exists", SeverityError},
	codeDuplicateRule: {"duplicate_rule_id", SeverityError},
	codeUnknownEnum:   {"unknown_enum", SeverityError},
	codeReasonCode:    {"reason_code_format", SeverityError},
	codeLimit:         {"limit_exceeded", SeverityError},
	codeAnchor:        {"anchor_or_alias", SeverityError},
	codeUnknownList:   {"unknown_list_ref", SeverityError},
	codeApprovalBlock: {"approval_block", SeverityError},
	codeFactsVersion:  {"facts_version_unsupported", SeverityError},
	codeCELCompile:    {"cel_compile", SeverityError},
	codeNeverMatches:  {"rule_never_matches", SeverityError},
	codeCELCost:       {"cel_cost_unbounded", SeverityError},
	codeCELForbidden:  {"cel_nondeterministic", SeverityError},
	codeCELMayError:   {"cel_may_error", SeverityError},
	codeAllowTooBroad: {"allow_too_broad", SeverityWarning},
	codeTTLLong:       {"approval_ttl_long", SeverityWarning},
	codeConfusable:    {"confusable_text", SeverityWarning},
	codeAllowAny:      {"allow_any_quantifier", SeverityError},
	codeRestsOnClaim:  {"rests_on_claim", SeverityWarning},
	codeFloorLifted:   {"floor_lifted", SeverityWarning},
	codeExceptAny:     {"exception_quantifier", SeverityWarning},
	codeRestsOnShape:  {"rests_on_shape", SeverityWarning},
	codeConditionAny:  {"condition_quantifier", SeverityWarning},
	codeTestFailed:    {"test_failed", SeverityError},
	codeNoTests:       {"no_tests", SeverityWarning},
	codeNotCovered:    {"rule_not_covered", SeverityWarning},
	codeNeverDecisive: {"rule_never_decisive", SeverityWarning},
	codeIntegrity:     {"integrity_mismatch", SeverityError},
	codeFileSet:       {"file_set_mismatch", SeverityError},
	codeCorpusChanged: {"corpus_changed", SeverityWarning},
}

// maxMessageBytes bounds what a finding says: there may be thousands.
const maxMessageBytes = 2000

// NewFinding makes a finding of the catalogue: name, severity and category
// follow from the code.
func NewFinding(code, format string, args ...any) Finding {
	entry := catalogue[code]
	f := Finding{Code: code, Name: entry.name, Severity: entry.severity, Message: fmt.Sprintf(format, args...)}
	if len(f.Message) > maxMessageBytes {
		f.Message = strings.ToValidUTF8(f.Message[:maxMessageBytes], "") + "..."
	}
	switch code[2] {
	case '1':
		f.Category = "structural"
	case '2':
		f.Category = "semantic"
	case '3':
		f.Category = "coverage"
	default:
		f.Category = "integrity"
	}
	return f
}

// sortFindings puts findings in the order of the file, those without a place
// last, so that a report never changes from run to run.
func sortFindings(fs []Finding) {
	slices.SortStableFunc(fs, func(a, b Finding) int {
		if (a.Line == 0) != (b.Line == 0) {
			return cmp.Compare(b.Line, a.Line)
		}
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column), cmp.Compare(a.Code, b.Code))
	})
}

func hasErrors(fs []Finding) bool {
	return slices.ContainsFunc(fs, func(f Finding) bool { return f.Severity == SeverityError })
}

// nearest is the known name that a writer may have meant, or "" where none is
// near: at most a third of the letters differ.
func nearest(name string, known []string) string {
	best, bestDistance := "", len(name)/3+1
	if len(name) > 64 {
		return ""
	}
	for _, k := range known {
		if strings.EqualFold(k, name) {
			return k
		}
		if d := levenshtein.ComputeDistance(name, k); d <= bestDistance && (best == "" || d < bestDistance) {
			best, bestDistance = k, d
		}
	}
	return best
}
