package policy

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"
)

// Bounds of a when, so that no document can make a decision slow: they hold
// for the worst facts, checked once when the document is compiled, and nothing
// is counted while deciding.
const (
	maxConditionLength = 2048
	maxConditionCost   = 10_000
	maxRegexProgram    = 1000
	maxPatternSteps    = 50_000 // of all patterns of a document, compiled: some 2 MB of memory
	maxNestedLoops     = 1
	maxDecisionCost    = 300_000 // of all conditions of a document: some 30 ms at most
)

// allowedCalls are the functions of a when after its macros are expanded.
var allowedCalls = map[string]bool{
	operators.Equals: true, operators.NotEquals: true, operators.Less: true, operators.LessEquals: true,
	operators.Greater: true, operators.GreaterEquals: true, operators.LogicalAnd: true, operators.LogicalOr: true,
	operators.LogicalNot: true, operators.Conditional: true, operators.In: true, operators.Add: true,
	operators.Subtract: true, operators.Negate: true, operators.NotStrictlyFalse: true,
	"size": true, "startsWith": true, "endsWith": true, "contains": true, "matches": true,
}

// callsThatMayFail end in an error for some values; the rest of what is not
// allowed is refused because its answer may differ or cannot be bounded.
var callsThatMayFail = map[string]string{
	operators.Index: "an index", operators.OptIndex: "an index", operators.Divide: "a division", operators.Modulo: "a modulo",
	"int": "a conversion", "uint": "a conversion", "double": "a conversion", "string": "a conversion",
	"bytes": "a conversion", "bool": "a conversion", "dyn": "a conversion", "type": "a conversion",
	"duration": "a conversion", "timestamp": "a conversion",
}

const allowedText = "allowed are comparisons, && || ! ?: in + -, size, startsWith, endsWith, contains, matches, exists, all, exists_one and filter"

// celEnvironment declares the facts and nothing else. It is built once: it
// depends on no document.
var celEnvironment = sync.OnceValues(func() (*cel.Env, error) {
	var options []cel.EnvOption
	for _, v := range variables {
		options = append(options, cel.Variable(v.name, v.celType()))
	}
	return newCELEnvironment(options)
})

// newCELEnvironment is the language with the bounds of this page and the
// variables given.
func newCELEnvironment(variables []cel.EnvOption) (*cel.Env, error) {
	options := []cel.EnvOption{
		cel.StdLib(),
		cel.ClearMacros(),
		cel.Macros(cel.ExistsMacro, cel.AllMacro, cel.ExistsOneMacro, cel.FilterMacro),
		cel.ASTValidators(
			cel.ValidateRegexLiterals(),
			cel.ValidateComprehensionNestingLimit(maxNestedLoops),
			cel.ValidateRegexProgramSizeLimit(maxRegexProgram),
		),
		cel.RegexProgramSizeLimit(maxRegexProgram),
		cel.ParserExpressionSizeLimit(maxConditionLength),
		cel.ParserRecursionLimit(64),
	}
	return cel.NewCustomEnv(append(options, variables...)...)
}

func (v *variable) celType() *cel.Type {
	switch {
	case v.kind == kindBool:
		return cel.BoolType
	case v.isList():
		return cel.ListType(cel.StringType)
	default:
		return cel.StringType
	}
}

// A celFault is what is wrong with a when, with its place inside the text:
// line from 1, column from 0, as CEL counts.
type celFault struct {
	code         string
	line, column int
	message      string
	suggestion   string
}

// A dialect is the variables that a condition is written over.
type dialect struct {
	env    func() (*cel.Env, error)
	names  []string
	sizes  sizes
	dotted bool // its variables have a root, as in sql.class
}

var factsDialect = dialect{env: celEnvironment, names: factNames(), sizes: newSizes(FactBounds())}

// compileIn checks a condition against every bound and reports all faults at
// once; the condition is nil where there are any. steps is the size of its
// patterns, compiled, also where it is not taken.
func compileIn(d *dialect, text string) (c *condition, steps int, faults []celFault) {
	if n := utf8.RuneCountInString(text); n > maxConditionLength {
		return nil, 0, []celFault{{code: codeLimit, line: 1, message: fmt.Sprintf("when has %d characters; at most %d are allowed", n, maxConditionLength)}}
	}
	env, err := d.env()
	if err != nil {
		return nil, 0, []celFault{{code: codeCELCompile, line: 1, message: "the expression language could not be set up: " + err.Error()}}
	}
	parsed, issues := env.Parse(text)
	if err := issues.Err(); err != nil {
		return nil, 0, d.faultsOf(text, issues)
	}
	programs, steps := patternsOf(parsed)
	if steps > maxPatternSteps {
		return nil, steps, []celFault{tooManyPatterns(steps)}
	}
	faults = forbiddenCalls(parsed, d.dotted)
	checked, issues := env.Check(parsed)
	if err := issues.Err(); err != nil {
		return nil, steps, append(faults, withoutRepeats(d.faultsOf(text, issues), faults)...)
	}
	faults = append(faults, forbiddenTypes(checked)...)
	if len(faults) > 0 {
		return nil, steps, faults
	}
	c, faults = planCondition(d, env, text, checked, programs)
	return c, steps, faults
}

func tooManyPatterns(steps int) celFault {
	return celFault{code: codeLimit, line: 1,
		message:    fmt.Sprintf("the patterns of matches compile to %d steps or more together; a document may have at most %d", steps, maxPatternSteps),
		suggestion: "write patterns without counted repetitions, or use startsWith, endsWith and contains"}
}

func tooCostly(total int) celFault {
	return celFault{code: codeCELCost, line: 1,
		message:    fmt.Sprintf("the conditions could cost %d steps together on the largest facts; a document may have at most %d", total, maxDecisionCost),
		suggestion: "move plain checks into match, or look through fewer lists"}
}

func planCondition(d *dialect, env *cel.Env, text string, checked *cel.Ast, patterns patternPrograms) (*condition, []celFault) {
	most, err := d.sizes.with(patterns, maxListFacts).estimate(env, checked)
	if err != nil {
		return nil, []celFault{{code: codeCELCost, line: 1, message: "the cost of when cannot be bounded: " + err.Error()}}
	}
	if most > maxConditionCost {
		fault := celFault{code: codeCELCost, line: 1,
			message:    fmt.Sprintf("when could cost %d steps on the largest facts; at most %d are allowed", most, maxConditionCost),
			suggestion: "move plain checks into match, or look through fewer lists"}
		if len(patterns) > 0 {
			fault.suggestion = "begin the patterns of matches with ^, write them without counted repetitions, or use startsWith, endsWith and contains"
		}
		return nil, []celFault{fault}
	}
	few, err := d.sizes.with(patterns, fewEntries).estimate(env, checked)
	if err != nil {
		return nil, []celFault{{code: codeCELCost, line: 1, message: "the cost of when cannot be bounded: " + err.Error()}}
	}
	constant, isConstant, err := constantValue(d, env, checked)
	if err != nil {
		return nil, []celFault{{code: codeCELCompile, line: 1, message: "when cannot be planned: " + err.Error()}}
	}
	if isConstant && !constant {
		return nil, []celFault{{code: codeNeverMatches, line: 1, message: "when is false whatever the facts are, so the rule never matches"}}
	}
	program, err := env.Program(checked, cel.EvalOptions(cel.OptOptimize))
	if err != nil {
		return nil, []celFault{{code: codeCELCompile, line: 1, message: "when cannot be planned: " + err.Error()}}
	}
	return &condition{text: text, program: program, reads: readsOf(checked), anyOf: anyOf(checked), names: namesOf(checked), cost: int(most), costOfFew: int(few)}, nil
}

// constantValue evaluates with every fact unknown: an answer all the same does
// not depend on any.
func constantValue(d *dialect, env *cel.Env, checked *cel.Ast) (value, isConstant bool, err error) {
	program, err := env.Program(checked, cel.EvalOptions(cel.OptPartialEval))
	if err != nil {
		return false, false, err
	}
	unknown, err := cel.PartialVars(cel.NoVars(), d.unknown()...)
	if err != nil {
		return false, false, err
	}
	// An error here is one of evaluation, which every outcome counts as failed.
	result, _, _ := program.Eval(unknown)
	b, ok := result.(types.Bool)
	return bool(b), ok, nil
}

func (d *dialect) unknown() []*cel.AttributePatternType {
	var patterns []*cel.AttributePatternType
	for _, name := range d.names {
		patterns = append(patterns, cel.AttributePattern(name))
	}
	return patterns
}

// forbiddenCalls walks the expression before its types are known, so that a
// call that is not allowed is named as such and not as an undeclared one.
func forbiddenCalls(parsed *cel.Ast, dotted bool) []celFault {
	var faults []celFault
	at := placer(parsed)
	ast.PostOrderVisit(parsed.NativeRep().Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		switch e.Kind() {
		case ast.CallKind:
			faults = append(faults, forbiddenCall(e, at)...)
		case ast.MapKind, ast.StructKind:
			faults = append(faults, at(e, codeCELForbidden, "when builds a map or a message; "+allowedText))
		case ast.SelectKind:
			if dotted {
				return // what is no variable with a root is undeclared, and the check says so
			}
			faults = append(faults, at(e, codeCELForbidden, "when selects a field with a dot, but facts have no fields; "+allowedText))
		}
	}))
	return faults
}

func forbiddenCall(e ast.Expr, at func(ast.Expr, string, string) celFault) []celFault {
	call := e.AsCall()
	name := call.FunctionName()
	if what, ok := callsThatMayFail[name]; ok {
		return []celFault{at(e, codeCELMayError, "when holds "+what+", which fails for some values; "+allowedText)}
	}
	if !allowedCalls[name] {
		f := at(e, codeCELForbidden, fmt.Sprintf("when calls %s, which is not on the list; %s", readable(name), allowedText))
		f.suggestion = callHint(name)
		return []celFault{f}
	}
	if name == "matches" {
		args := call.Args()
		if len(args) > 0 && !isText(args[len(args)-1]) {
			return []celFault{at(e, codeCELMayError, "the pattern of matches is not a literal text, so it could be invalid when it runs")}
		}
	}
	return nil
}

func isText(e ast.Expr) bool {
	if e.Kind() != ast.LiteralKind {
		return false
	}
	_, ok := e.AsLiteral().(types.String)
	return ok
}

func readable(name string) string {
	if display, ok := operators.FindReverse(name); ok && display != "" {
		return display
	}
	return name
}

// forbiddenTypes refuses what the checked types show: a result that is not
// bool, and values whose comparison is not the same everywhere.
func forbiddenTypes(checked *cel.Ast) []celFault {
	var faults []celFault
	at := placer(checked)
	root := checked.NativeRep()
	if !checked.OutputType().IsExactType(types.BoolType) {
		faults = append(faults, at(root.Expr(), codeCELCompile,
			fmt.Sprintf("when is of type %s, not bool", cel.FormatCELType(checked.OutputType()))))
	}
	ast.PostOrderVisit(root.Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		switch t := root.GetType(e.ID()); t.Kind() {
		case types.DoubleKind, types.TimestampKind, types.DurationKind, types.MapKind, types.BytesKind, types.UintKind, types.AnyKind:
			faults = append(faults, at(e, codeCELForbidden, fmt.Sprintf("when uses a value of type %s; facts are bool, string and lists of strings, sizes are int", cel.FormatCELType(t))))
		}
	}))
	return faults
}

func placer(a *cel.Ast) func(ast.Expr, string, string) celFault {
	info := a.NativeRep().SourceInfo()
	return func(e ast.Expr, code, message string) celFault {
		place := info.GetStartLocation(e.ID())
		return celFault{code: code, line: max(place.Line(), 1), column: max(place.Column(), 0), message: message}
	}
}

func (d *dialect) faultsOf(text string, issues *cel.Issues) []celFault {
	var faults []celFault
	for _, e := range issues.Errors() {
		f := celFault{code: codeCELCompile, line: max(e.Location.Line(), 1), column: max(e.Location.Column(), 0)}
		if strings.Contains(e.Message, "nesting limit") || strings.Contains(e.Message, "program size") {
			f.code = codeCELCost
		}
		plain, suggestion := d.celHint(text, e.Message, f.line, f.column)
		f.message, f.suggestion = "when: "+plain, suggestion
		faults = append(faults, f)
	}
	if len(faults) == 0 {
		faults = append(faults, celFault{code: codeCELCompile, line: 1, message: "when: " + issues.Err().Error()})
	}
	return faults
}

// withoutRepeats leaves out what the checker says of calls already named.
func withoutRepeats(faults, named []celFault) []celFault {
	var kept []celFault
	for _, f := range faults {
		repeats := false
		for _, n := range named {
			repeats = repeats || (n.line == f.line && n.column == f.column)
		}
		if !repeats {
			kept = append(kept, f)
		}
	}
	return kept
}

func quoted(message string) string {
	_, rest, _ := strings.Cut(message, "'")
	name, _, _ := strings.Cut(rest, "'")
	return name
}

// readsOf lists the facts that the expression may read.
func readsOf(a *cel.Ast) []*variable {
	named := namesOf(a)
	var reads []*variable
	for _, v := range variables {
		if named[v.name] {
			reads = append(reads, v)
		}
	}
	return reads
}

// anyOf lists the lists of which the expression asks whether any value matches, and
// query_type where it asks for that.
func anyOf(a *cel.Ast) []*variable {
	var asked []*variable
	asks := func(e ast.Expr) {
		ast.PostOrderVisit(e, ast.NewExprVisitor(func(e ast.Expr) {
			if e.Kind() != ast.IdentKind {
				return
			}
			if v := variableByName[e.AsIdent()]; v != nil && (v.isList() || v == queryTypeVariable) && !slices.Contains(asked, v) {
				asked = append(asked, v)
			}
		}))
	}
	var visit func(e ast.Expr, negated bool)
	visit = func(e ast.Expr, negated bool) {
		switch e.Kind() {
		case ast.IdentKind:
			if !negated && e.AsIdent() == queryTypeVariable.name {
				asks(e)
			}
		case ast.ListKind:
			for _, item := range e.AsList().Elements() {
				visit(item, negated)
			}
		case ast.CallKind:
			call := e.AsCall()
			name := call.FunctionName()
			if name == operators.In && !negated {
				asks(call.Args()[1])
			}
			parts := call.Args()
			if call.IsMemberFunction() {
				parts = append([]ast.Expr{call.Target()}, parts...)
			}
			for i, part := range parts {
				compared := name == operators.Equals || name == operators.NotEquals || name == operators.In || name == operators.Conditional && i == 0
				if compared && part.Kind() != ast.IdentKind && part.Kind() != ast.LiteralKind { // with true, or with false
					visit(part, false)
					visit(part, true)
					continue
				}
				visit(part, negated != (name == operators.LogicalNot || name == operators.NotEquals))
			}
		case ast.ComprehensionKind:
			loop := e.AsComprehension()
			all := loop.AccuInit().Kind() == ast.LiteralKind && loop.AccuInit().AsLiteral() == types.True
			exists := loop.AccuInit().Kind() == ast.LiteralKind && loop.AccuInit().AsLiteral() == types.False
			if !all && !exists || all == negated {
				asks(loop.IterRange())
			}
			visit(loop.IterRange(), negated)
			visit(loop.LoopStep(), negated)
		}
	}
	visit(a.NativeRep().Expr(), false)
	return asked
}

// namesOf are the variables of a checked expression, those of its own loops
// included.
func namesOf(a *cel.Ast) map[string]bool {
	named := map[string]bool{}
	ast.PostOrderVisit(a.NativeRep().Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if e.Kind() == ast.IdentKind {
			named[e.AsIdent()] = true
		}
	}))
	return named
}
