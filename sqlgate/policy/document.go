package policy

import (
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Bounds of the parts of a document.
const (
	maxRules       = 500
	maxText        = 1000 // description, owner and other single texts
	maxMessage     = 500
	maxTTLSeconds  = 86_400
	longTTLSeconds = 3600

	maxGrantSeconds     = 30 * 86_400
	defaultGrantSeconds = 86_400 // of a rule that takes grants and says no more

	maxPatterns     = 1000    // of one key, lists expanded
	maxAllPatterns  = 100_000 // of all rules together, lists expanded
	maxPatternChars = 512

	// maxListWork bounds the patterns that a decision may look at for each of 256
	// names, lists expanded: some tenths of a second where nothing is told on sight.
	maxListWork = 20_000
)

var (
	namePattern    = regexp.MustCompile(`^[a-z][a-z0-9-]{0,62}$`)
	versionPattern = regexp.MustCompile(`^(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})$`)
	reasonPattern  = regexp.MustCompile(`^[a-z][a-z0-9_]{2,63}$`)
	listPattern    = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,62}$`)
)

// A documentReader reads one policy document.
type documentReader struct {
	*reader
	policy     *Policy
	lists      *lists
	ruleAt     map[string]int // id -> line, for duplicates
	patterns   int            // expanded so far
	listWork   int            // of the patterns on lists
	regexSteps int            // of the patterns of conditions, compiled
	whenCost   int            // of all conditions
	checks     []func()       // run once all is read
}

// document reads the top level. Lists are read before the rules that use them,
// wherever they stand.
func (r *documentReader) document(root *yaml.Node) {
	p := r.policy
	r.readLists(root)
	r.object(root, "", "the document", []field{
		{"schema", true, func(n *yaml.Node, at string) { r.enum(n, at, "schema", []string{SchemaVersion}) }},
		{"facts", true, r.factsVersion},
		{"name", true, func(n *yaml.Node, at string) {
			p.name, _ = r.formed(n, at, "name", namePattern, codeBadName, "a lower-case letter, then at most 62 lower-case letters, digits or hyphens")
		}},
		{"version", true, func(n *yaml.Node, at string) { p.version = r.versionNumber(n, at) }},
		{"description", false, func(n *yaml.Node, at string) { r.text(n, at, "description", maxText) }},
		{"owner", false, func(n *yaml.Node, at string) { r.text(n, at, "owner", maxText) }},
		{"lists", false, func(*yaml.Node, string) {}},
		{"rules", true, r.rules},
		{"tests", false, func(n *yaml.Node, at string) { p.tests = r.cases(n, at, "tests") }},
	})
}

func (r *documentReader) factsVersion(n *yaml.Node, pointer string) {
	if v, ok := r.text(n, pointer, "facts", maxText); ok && v != FactsVersion {
		r.add(n, pointer, codeFactsVersion, FactsVersion, "the facts version %s is not supported by this gate, which knows %s", clip(v), FactsVersion)
	}
}

// formed reads a text of a given form.
func (r *reader) formed(n *yaml.Node, pointer, what string, form *regexp.Regexp, code, words string) (string, bool) {
	value, ok := r.text(n, pointer, what, maxText)
	if !ok {
		return "", false
	}
	if !form.MatchString(value) {
		mark := "-"
		if code == codeReasonCode {
			mark = "_"
		}
		r.add(n, pointer, code, formHint(value, mark, form), "%s %s does not have the form: %s", what, clip(value), words)
		return "", false
	}
	return value, true
}

func (r *documentReader) versionNumber(n *yaml.Node, pointer string) string {
	if n.Kind == yaml.ScalarNode && (n.Tag == "!!float" || n.Tag == "!!int") {
		r.add(n, pointer, codeBadName, n.Value+".0", "version %s must be major.minor.patch, three numbers", n.Value)
		return ""
	}
	v, _ := r.formed(n, pointer, "version", versionPattern, codeBadName, "major.minor.patch in digits without leading zeros, such as 1.4.0")
	return v
}

func (r *documentReader) rules(n *yaml.Node, pointer string) {
	if n.Kind == yaml.SequenceNode {
		switch count := len(n.Content); {
		case count == 0:
			r.add(n, pointer, codeLimit, "", "rules is empty; a policy has at least one rule")
		case count > maxRules:
			r.add(n, pointer, codeLimit, "", "rules has %d entries; at most %d are allowed", count, maxRules)
			return
		}
	}
	r.sequence(n, pointer, "rules", func(item *yaml.Node, at string) {
		r.policy.rules = append(r.policy.rules, r.rule(item, at))
	})
}

// rule reads one rule; what is wrong with it is in the findings.
func (r *documentReader) rule(n *yaml.Node, pointer string) rule {
	u := rule{line: n.Line, column: n.Column}
	r.ruleID = scalarOf(n, "id")
	defer func() { r.ruleID = "" }()
	matchNode, unlessNode := n, n
	var approvalNode, liftsNode, dryRunNode, reasonNode *yaml.Node
	r.object(n, pointer, "a rule", []field{
		{"id", true, func(n *yaml.Node, at string) { u.id = r.ruleName(n, at) }},
		{"decision", true, func(n *yaml.Node, at string) {
			d, _ := r.enum(n, at, "decision", decisions.names)
			u.decision = Decision(d)
		}},
		{"reason_code", true, func(n *yaml.Node, at string) {
			u.reasonCode, _ = r.formed(n, at, "reason_code", reasonPattern, codeReasonCode, "a lower-case letter, then 2 to 63 lower-case letters, digits or underscores")
		}},
		{"match", true, func(n *yaml.Node, at string) { matchNode = n; u.match = r.matcher(n, at, "match") }},
		{"unless", false, func(n *yaml.Node, at string) {
			before := len(r.findings)
			m := r.matcher(n, at, "unless")
			unlessNode, u.unless = n, &m
			if n.Kind == yaml.MappingNode && len(m.all) == 0 && (!m.hasAnyOf || slices.ContainsFunc(m.anyOf, func(g group) bool { return len(g) == 0 })) && !hasErrors(r.findings[before:]) {
				r.add(n, at, codeNeverMatches, "", "unless asks for nothing, so every statement is excepted and the rule never matches; name what is excepted, or leave unless out")
			}
		}},
		{"when", false, func(n *yaml.Node, at string) { u.when = r.when(n, at) }},
		{"mode", false, func(n *yaml.Node, at string) {
			mode, _ := r.enum(n, at, "mode", []string{"enforce", "observe"})
			u.observe = mode == "observe"
		}},
		{"reason", false, func(n *yaml.Node, at string) {
			_, u.needsReason = r.enum(n, at, "reason", []string{"required"})
			reasonNode = n
		}},
		{"lifts", false, func(n *yaml.Node, at string) { liftsNode = n; u.lifts = r.liftedSignals(n, at) }},
		{"message", false, func(n *yaml.Node, at string) { u.message = r.message(n, at, "message") }},
		{"remedy", false, func(n *yaml.Node, at string) { u.remedy = r.message(n, at, "remedy") }},
		{"approval", false, func(n *yaml.Node, at string) { approvalNode = n; r.approval(n, at, &u) }},
		{"dry_run", false, func(n *yaml.Node, at string) { dryRunNode = n; u.dryRun = r.dryRun(n, at) }},
	})
	if u.unless != nil && u.decision != Allow {
		for _, g := range append(u.unless.anyOf, u.unless.all) {
			for i := range g {
				g[i].exception = true
			}
		}
	}
	u.liftBits, u.self = signals.set(u.lifts), []string{u.id}
	r.misplaced(&u, pointer, approvalNode, liftsNode, dryRunNode)
	if reasonNode != nil && u.decision == Block {
		r.add(reasonNode, pointer+"/reason", codeApprovalBlock, "", "reason stands in a BLOCK rule; no reason lets pass what it blocks")
	}
	r.semantics(&u, pointer, matchNode, unlessNode, liftsNode, approvalNode)
	return u
}

// misplaced reports approval, lifts and dry_run where they cannot stand.
func (r *documentReader) misplaced(u *rule, pointer string, approval, lifts, dryRun *yaml.Node) {
	if approval != nil && u.decision != "" && u.decision != RequireApproval {
		r.add(approval, pointer+"/approval", codeApprovalBlock, "", "approval stands in a rule of decision %s; only REQUIRE_APPROVAL rules have one", u.decision)
	}
	if lifts != nil && u.decision == Block {
		r.add(lifts, pointer+"/lifts", codeApprovalBlock, "", "lifts stands in a BLOCK rule; only ALLOW and REQUIRE_APPROVAL rules can lift a floor signal")
	}
	if dryRun != nil && u.decision == Block {
		r.add(dryRun, pointer+"/dry_run", codeApprovalBlock, "", "dry_run stands in a BLOCK rule; what is blocked never reaches the database, not even to be rolled back")
	}
	if lifts != nil && u.grantSeconds > 0 {
		r.add(lifts, pointer+"/lifts", codeApprovalBlock, "", "lifts stands in a rule that takes grants; nothing passes the floor without a person who looks at the statement")
	}
}

func scalarOf(n *yaml.Node, key string) string {
	if n.Kind != yaml.MappingNode {
		return ""
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key && namePattern.MatchString(n.Content[i+1].Value) {
			return n.Content[i+1].Value
		}
	}
	return ""
}

func (r *documentReader) ruleName(n *yaml.Node, pointer string) string {
	id, ok := r.formed(n, pointer, "id", namePattern, codeBadName, "a lower-case letter, then at most 62 lower-case letters, digits or hyphens")
	switch {
	case !ok:
		return ""
	case id == RuleDefault || strings.HasPrefix(id, "floor"):
		r.add(n, pointer, codeBadName, "", "the id %s is kept for the gate itself: default, and all that begins with floor", id)
		return ""
	}
	if line, taken := r.ruleAt[id]; taken {
		f := r.add(n, pointer, codeDuplicateRule, "", "the rule id %s is taken by the rule in line %d", id, line)
		f.Related = []Related{{RuleID: id, Line: line}}
	}
	r.ruleAt[id] = n.Line
	return id
}

func (r *documentReader) message(n *yaml.Node, pointer, what string) string {
	text, _ := r.text(n, pointer, what, maxMessage)
	r.confusable(n, pointer, what, text)
	return text
}

func (r *documentReader) liftedSignals(n *yaml.Node, pointer string) []string {
	var lifted []string
	r.sequence(n, pointer, "lifts", func(item *yaml.Node, at string) {
		name, ok := r.text(item, at, "a signal", maxText)
		switch {
		case !ok:
		case signals.has(name) && signals.bit[name]&floorMask == 0:
			r.add(item, at, codeUnknownEnum, "", "%s is not a floor signal, so there is nothing to lift; it only ends safe_read", name)
		case !signals.has(name):
			r.unknownName(item, at, "lifts", name, floorSignals)
		case !slices.Contains(lifted, name):
			lifted = append(lifted, name)
		}
	})
	return lifted
}

func (r *documentReader) approval(n *yaml.Node, pointer string, u *rule) {
	var mostNode *yaml.Node
	most := 0
	r.object(n, pointer, "approval", []field{
		{"ttl_seconds", false, func(n *yaml.Node, at string) {
			ttl, _ := r.integer(n, at, "ttl_seconds", 1, maxTTLSeconds)
			u.ttlSeconds = int(ttl)
		}},
		{"max_rows", false, func(n *yaml.Node, at string) {
			if rows, ok := r.integer(n, at, "max_rows", 0, 1<<53-1); ok {
				u.maxRows = &rows
			}
		}},
		{"grants", false, func(n *yaml.Node, at string) {
			if takes, _ := r.boolean(n, at, "grants"); takes {
				u.grantSeconds = defaultGrantSeconds
			}
		}},
		{"max_grant_seconds", false, func(n *yaml.Node, at string) {
			mostNode = n
			seconds, _ := r.integer(n, at, "max_grant_seconds", 1, maxGrantSeconds)
			most = int(seconds)
		}},
	})
	switch {
	case u.grantSeconds > 0 && most > 0:
		u.grantSeconds = most
	case mostNode != nil && u.grantSeconds == 0:
		r.add(mostNode, pointer+"/max_grant_seconds", codeApprovalBlock, "grants: true", "max_grant_seconds bounds grants, and the rule takes none")
	}
}

// dryRun reads "allow", or a mapping that says what else is shown.
func (r *documentReader) dryRun(n *yaml.Node, pointer string) *DryRunTerms {
	if n.Kind == yaml.ScalarNode {
		if word, _ := r.enum(n, pointer, "dry_run", []string{"allow"}); word == "" {
			return nil
		}
		return &DryRunTerms{}
	}
	terms := new(DryRunTerms)
	r.object(n, pointer, "dry_run, where it is not the word allow,", []field{
		{"rows", true, func(n *yaml.Node, at string) { terms.Rows, _ = r.boolean(n, at, "rows") }},
	})
	return terms
}

// when compiles the condition and maps its faults into the file.
func (r *documentReader) when(n *yaml.Node, pointer string) *condition {
	text, ok := r.text(n, pointer, "when", maxDocumentBytes)
	if !ok {
		return nil
	}
	if strings.TrimSpace(text) == "" {
		r.add(n, pointer, codeCELCompile, "", "when is empty; leave the key out where there is no condition")
		return nil
	}
	if r.regexSteps > maxPatternSteps || r.whenCost > maxDecisionCost {
		return nil // said already; what follows is not compiled
	}
	c, steps, faults := compileIn(&factsDialect, text)
	r.regexSteps += steps
	if c != nil {
		r.whenCost += c.cost
	}
	switch {
	case r.regexSteps > maxPatternSteps:
		c, faults = nil, []celFault{tooManyPatterns(r.regexSteps)}
	case r.whenCost > maxDecisionCost:
		c, faults = nil, []celFault{tooCostly(r.whenCost)}
	}
	for _, fault := range faults {
		f := r.add(n, pointer, fault.code, fault.suggestion, "%s", fault.message)
		f.Line, f.Column = r.placeInside(n, fault.line, fault.column)
	}
	return c
}

// placeInside maps a place inside a scalar's text (line from 1, column from 0)
// to one in the file. Where line breaks or escapes were folded away it stays at
// the start of the scalar.
func (r *reader) placeInside(n *yaml.Node, line, column int) (int, int) {
	switch {
	case n.Style&yaml.LiteralStyle != 0:
		if i := n.Line + line - 1; i < len(r.lines) {
			indent := len(r.lines[i]) - len(strings.TrimLeft(r.lines[i], " "))
			text := strings.Split(n.Value, "\n")
			if line-1 < len(text) {
				indent -= len(text[line-1]) - len(strings.TrimLeft(text[line-1], " "))
			}
			return i + 1, max(indent, 0) + column + 1
		}
	case n.Style&yaml.FoldedStyle != 0 || line != 1:
	case n.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle) != 0:
		if r.standsAt(n.Line, n.Column+1, n.Value) {
			return n.Line, n.Column + 1 + column
		}
	default:
		if r.standsAt(n.Line, n.Column, n.Value) {
			return n.Line, n.Column + column
		}
	}
	return n.Line, n.Column
}

func (r *reader) standsAt(line, column int, text string) bool {
	if line < 1 || line > len(r.lines) {
		return false
	}
	runes := []rune(r.lines[line-1])
	return column >= 1 && column-1 <= len(runes) && strings.HasPrefix(string(runes[column-1:]), text)
}
