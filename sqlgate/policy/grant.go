package policy

import (
	"maps"
	"slices"

	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"
)

// A GrantCondition says which statements of an agent a grant covers: CEL over the facts,
// under the bounds of a rule's when. It is safe for concurrent use.
type GrantCondition struct {
	condition *condition
	ofRisks   bool // it speaks of risk_signals
}

// ofStatement are the facts that tell what a statement does.
var ofStatement = map[string]bool{"query_type": true, "query_types": true, "class": true, "safe_read": true, "tables_read": true, "tables_written": true,
	"columns_written": true, "functions": true, "risk_signals": true, "flags": true, "where": true}

// notOfGrants are the facts that no grant may go by, with the reason.
var notOfGrants = map[string]string{
	"fingerprint": "it leaves out values, aliases and digits in names of tables, so other rows and other tables have the same",
	"approved":    "what a person approved needs no grant",
	"mode":        "a grant holds in every mode in which it is asked for",
	"session_id":  "any client can claim it, and it ends with the session",
}

// CompileGrant reads the condition of a grant. Beside what a when may not say it may not go
// by the fingerprint, nor ask whether any of several values matches, as an ALLOW may not;
// and it has to say in each of its alternatives what the statement does, since who asks is
// the client's to claim.
func CompileGrant(text string) (*GrantCondition, []ExpressionFault) {
	c, _, faults := compileIn(&factsDialect, text)
	if len(faults) > 0 {
		return nil, expressionFaults(faults)
	}
	refuse := func(code, message, suggestion string) (*GrantCondition, []ExpressionFault) {
		return nil, expressionFaults([]celFault{{code: code, line: 1, message: message, suggestion: suggestion}})
	}
	for _, v := range variables {
		if why := notOfGrants[v.name]; why != "" && c.names[v.name] {
			return refuse(codeCELForbidden, "when reads "+v.name+", which no grant may go by: "+why, "query_types, tables_written, columns_written and where")
		}
	}
	if len(c.anyOf) > 0 {
		return refuse(codeConditionAny, "when asks whether any of "+joined(c.anyOf)+" matches; the others could be anything", "all(...), as in tables_written.all(t, t == \"public.orders\"); for query_type: query_types")
	}
	env, err := factsDialect.env()
	if err != nil {
		return refuse(codeCELCompile, "the expression language could not be set up: "+err.Error(), "")
	}
	parsed, issues := env.Parse(text)
	if issues.Err() != nil { // it was read a moment ago
		return refuse(codeCELCompile, "when can't be read", "")
	}
	if holdsWithoutStatement(parsed.NativeRep().Expr(), true, ofStatement) {
		return refuse(codeRestsOnClaim, "when can hold whatever the statement does: only who asks narrows it, or nothing", "query_types, class, tables_written_only or another fact of the statement in each alternative")
	}
	return &GrantCondition{condition: c, ofRisks: c.names["risk_signals"]}, nil
}

// Covers reports whether the facts of a statement meet the condition. A condition that can't
// be evaluated covers nothing. A risk that the condition does not speak of is none that the
// operator has weighed, so a statement that has one is not covered either.
func (g *GrantCondition) Covers(f *Facts) bool {
	if len(f.RiskSignals) > 0 && !g.ofRisks {
		return false
	}
	e := evaluate(f)
	defer e.done()
	return g.condition.decide(e) == matched
}

// TakesGrants is the longest time, in seconds, of a grant that a rule of the policy takes
// in place of an approval; 0 where none takes any.
func (p *Policy) TakesGrants() int {
	longest := 0
	for i := range p.rules {
		if !p.rules[i].observe {
			longest = max(longest, p.rules[i].grantSeconds)
		}
	}
	return longest
}

// holdsWithoutStatement reports whether an expression could be as wanted, true or false,
// whatever the facts of the statement are: by what a client claims, or by nothing at all.
// Where it can't be told from its form it could. told are the names that tell of the statement.
func holdsWithoutStatement(e ast.Expr, wanted bool, told map[string]bool) bool {
	holds := func(e ast.Expr, wanted bool) bool { return holdsWithoutStatement(e, wanted, told) }
	if e.Kind() == ast.LiteralKind {
		return e.AsLiteral() == types.Bool(wanted)
	}
	if e.Kind() == ast.CallKind {
		args := e.AsCall().Args()
		switch e.AsCall().FunctionName() {
		case operators.LogicalNot:
			return holds(args[0], !wanted)
		case operators.LogicalAnd, operators.LogicalOr:
			left, right := holds(args[0], wanted), holds(args[1], wanted)
			if (e.AsCall().FunctionName() == operators.LogicalAnd) == wanted {
				return left && right
			}
			return left || right
		case operators.Conditional:
			return holds(args[0], true) && holds(args[1], wanted) ||
				holds(args[0], false) && holds(args[2], wanted) ||
				holds(args[1], wanted) && holds(args[2], wanted)
		}
	}
	if e.Kind() == ast.ComprehensionKind { // of all() and exists(): what each value has to meet, which tells of the statement as its list does
		c := e.AsComprehension()
		step := c.LoopStep()
		if c.IterRange().Kind() != ast.IdentKind || !told[c.IterRange().AsIdent()] || step.Kind() != ast.CallKind ||
			!slices.Contains([]string{operators.LogicalAnd, operators.LogicalOr}, step.AsCall().FunctionName()) {
			return true
		}
		told = maps.Clone(told)
		told[c.IterVar()] = true
		return holdsWithoutStatement(step.AsCall().Args()[1], wanted, told)
	}
	// A comparison: one with a claim is the client's to meet, and one of conditions is one of whatever they are.
	names, claimed, nested := false, false, false
	ast.PostOrderVisit(e, ast.NewExprVisitor(func(part ast.Expr) {
		switch {
		case part.Kind() == ast.IdentKind:
			names = names || told[part.AsIdent()]
			claimed = claimed || !told[part.AsIdent()]
		case part.ID() != e.ID():
			nested = nested || isTruth(part)
		}
	}))
	return !names || claimed || nested
}

// isTruth reports an expression that is a condition of its own and no plain fact or literal.
func isTruth(e ast.Expr) bool {
	if e.Kind() == ast.ComprehensionKind {
		return true
	}
	if e.Kind() != ast.CallKind {
		return false
	}
	switch e.AsCall().FunctionName() {
	case "size", operators.Add, operators.Subtract, operators.Negate:
		return false
	}
	return true
}
