package policy

import (
	"maps"
	"slices"
	"strings"

	"cel.dev/cel-go/cel"
)

// A ValueKind is the type of a variable of a Language.
type ValueKind uint8

// The types that conditions know.
const (
	StringValue ValueKind = iota
	IntValue
	BoolValue
	ListValue // of strings
)

func (k ValueKind) celType() *cel.Type {
	switch k {
	case IntValue:
		return cel.IntType
	case BoolValue:
		return cel.BoolType
	case ListValue:
		return cel.ListType(cel.StringType)
	}
	return cel.StringType
}

// A Language is CEL over other variables than the facts, under the bounds that
// hold for the conditions of a policy document: the rules of agents are written
// in one (spec/v1.md part 6). Its variables have a root, as in sql.class.
type Language struct{ dialect dialect }

// NewLanguage makes a language of the variables by their full names.
func NewLanguage(variables map[string]Variable) (*Language, error) {
	names := slices.Sorted(maps.Keys(variables))
	var options []cel.EnvOption
	for _, name := range names {
		options = append(options, cel.Variable(name, variables[name].Kind.celType()))
	}
	env, err := newCELEnvironment(options)
	if err != nil {
		return nil, err
	}
	return &Language{dialect{env: func() (*cel.Env, error) { return env, nil }, names: names, sizes: newSizes(variables), dotted: true}}, nil
}

// An Expression is a condition of a Language. It is safe for concurrent use.
type Expression struct {
	condition *condition
	reads     []string
}

// Reads names the variables that it may read, sorted.
func (e *Expression) Reads() []string { return e.reads }

// Match evaluates it; ok is false where that failed. values gives a variable by
// its full name: a string, an int64, a bool or a []string.
func (e *Expression) Match(values func(name string) (any, bool)) (match, ok bool) {
	switch e.condition.outcome(resolver(values)) {
	case matched:
		return true, true
	case notMatched:
		return false, true
	}
	return false, false
}

type resolver func(name string) (any, bool)

func (r resolver) ResolveName(name string) (any, bool) { return r(name) }

func (resolver) Parent() cel.Activation { return nil }

// An ExpressionFault is what is wrong with a condition. Line and Column count
// from 1.
type ExpressionFault struct {
	Code         string
	Message      string
	Line, Column int
}

// Cost is what the expression costs on the largest values that its variables can
// have, in units of some 50 ns. It is at most 10,000.
func (e *Expression) Cost() int { return e.condition.cost }

// MaxPatternSteps bounds the patterns of a policy, and MaxDecisionCost what all
// conditions together may cost that are asked in one decision.
const (
	MaxPatternSteps = maxPatternSteps
	MaxDecisionCost = maxDecisionCost
)

// Compile checks a condition against every bound and reports all faults at
// once; the expression is nil where there are any. steps is the size of its
// patterns, compiled, each some 40 bytes of memory, also where there are faults; of
// one policy they are at most MaxPatternSteps.
func (l *Language) Compile(text string) (e *Expression, steps int, faulty []ExpressionFault) {
	c, steps, faults := compileIn(&l.dialect, text)
	if len(faults) > 0 {
		return nil, steps, expressionFaults(faults)
	}
	e = &Expression{condition: c}
	for _, name := range l.dialect.names {
		if c.names[name] {
			e.reads = append(e.reads, name)
		}
	}
	return e, steps, nil
}

func expressionFaults(faults []celFault) []ExpressionFault {
	out := make([]ExpressionFault, len(faults))
	for i, f := range faults {
		out[i] = ExpressionFault{Code: catalogue[f.code].name, Message: ofCondition(f.message), Line: f.line, Column: f.column + 1}
		if f.suggestion != "" {
			out[i].Message += " (try: " + f.suggestion + ")"
		}
	}
	return out
}

// ofCondition says condition where a document's key is when.
func ofCondition(message string) string {
	if rest, ok := strings.CutPrefix(message, "when"); ok {
		return "the condition" + rest
	}
	return strings.Replace(message, "of when ", "of the condition ", 1)
}

// FactBounds are the facts by name.
func FactBounds() map[string]Variable {
	bounds := make(map[string]Variable, len(variables))
	for _, v := range variables {
		bounds[v.name] = v.bounds()
	}
	return bounds
}

// Fact gives a fact by its name, with the meaning it has in a document.
func (f *Facts) Fact(name string) (any, bool) {
	v, ok := variableByName[name]
	switch {
	case !ok:
		return nil, false
	case v.kind == kindBool:
		return v.truth(f), true
	case v.isList():
		return v.list(f), true
	}
	return v.text(f), true
}
