package policy

import (
	"math"
	"regexp/syntax"
	"strings"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/cost"
	"cel.dev/cel-go/common/types"
)

// The cost of a condition is CEL's own estimate, in its units of some 50 ns,
// with two things better known: how long the texts and lists are that it reads,
// and what a pattern costs on a text. CEL takes that from the length of the
// pattern, and (?:.?.?){240} has 12 characters and 960 steps.
const (
	pairsPerUnit    = 10 // steps of a pattern at places of a text, each 10 ns or less
	callOfPattern   = 2  // units of a call of matches beside that
	literalsPerUnit = 100

	// fewEntries is the length of lists up to which a statement is an ordinary
	// one; what a condition costs then is known beside what it costs at most.
	fewEntries = 8
)

// A Variable is a variable of a Language: its type, and how large its values
// get, which conditions on it are bounded by.
type Variable struct {
	Kind    ValueKind
	Chars   int // of a string, or of each string of a list
	Entries int // of a list
}

// bounds are how large the values of a fact get.
func (v *variable) bounds() Variable {
	b := Variable{Kind: StringValue, Chars: maxClaimChars}
	switch v.kind {
	case kindBool:
		return Variable{Kind: BoolValue}
	case kindEnum, kindEnumList:
		b.Chars = 0
		for _, name := range v.words.names {
			b.Chars = max(b.Chars, len(name))
		}
		b.Entries = min(maxListFacts, len(v.words.names)+1) // and one that is in no vocabulary
	case kindNames:
		b.Chars, b.Entries = max(v.segments, 2)*(maxNameBytes+1)-1, maxListFacts
	case kindText:
		if v.verified {
			b.Chars = maxText
		}
	}
	if v.isList() {
		b.Kind = ListValue
	}
	return b
}

const (
	maxClaimChars = 256 // of what a client says of itself
	maxNameBytes  = 63  // the server cuts longer names, and so does its parser
)

// sizes bounds what a condition reads, for the cost estimate.
type sizes struct {
	of       map[string]Variable
	chars    int // of a text that is no variable's own
	entries  int // of any list at most
	patterns patternPrograms
}

func newSizes(of map[string]Variable) sizes {
	s := sizes{of: of, entries: maxListFacts}
	for _, v := range of {
		s.chars = max(s.chars, v.Chars)
	}
	return s
}

// with is the same for patterns and lists of at most so many entries.
func (s sizes) with(patterns patternPrograms, entries int) sizes {
	s.patterns, s.entries = patterns, entries
	return s
}

// EstimateSize implements cost.Estimator.
func (s sizes) EstimateSize(element cost.AstNode) *cost.SizeEstimate {
	most := Variable{Chars: s.chars, Entries: s.entries}
	if path := element.Path(); len(path) > 0 {
		if v, known := s.of[path[0]]; known {
			most = v
		}
	}
	size := cost.RangedSizeEstimate(0, uint64(most.Chars))
	if element.Type().Kind() == types.ListKind {
		size = cost.RangedSizeEstimate(0, uint64(min(most.Entries, s.entries)))
	}
	return &size
}

// EstimateCallCost implements cost.Estimator: it knows what matches costs.
func (s sizes) EstimateCallCost(function, _ string, target *cost.AstNode, args []cost.AstNode) *cost.CallEstimate {
	if function != "matches" || len(args) == 0 {
		return nil
	}
	text := &args[0]
	if target != nil {
		text = target
	}
	pattern, _ := patternOf(args[len(args)-1].Expr())
	units := s.patterns[pattern].cost(cost.EstimateSize(s, *text).Max)
	return cost.NewCallEstimate(cost.RangedCostEstimate(1, units), nil)
}

// estimate gives what a checked condition costs at most, in units.
func (s sizes) estimate(env *cel.Env, checked *cel.Ast) (uint64, error) {
	e, err := env.EstimateCost(checked, s)
	return e.Max, err
}

// patternPrograms are the patterns of a condition, compiled as package regexp
// compiles them.
type patternPrograms map[string]*patternProgram

// patternsOf compiles the patterns of an expression and gives their steps
// together; it stops where they are more than a document may have. One that is no
// pattern is found by the check.
func patternsOf(parsed *cel.Ast) (programs patternPrograms, steps int) {
	programs = patternPrograms{}
	ast.PostOrderVisit(parsed.NativeRep().Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if e.Kind() != ast.CallKind || e.AsCall().FunctionName() != "matches" {
			return
		}
		args := e.AsCall().Args()
		pattern, _ := patternOf(args[len(args)-1])
		tree, err := syntax.Parse(pattern, syntax.Perl)
		if err != nil || steps > maxPatternSteps {
			return
		}
		p, known := programs[pattern]
		if !known {
			if about := StepsOf(tree, maxPatternSteps+1); about > maxPatternSteps {
				steps += about // it would take megabytes to know exactly
				return
			}
			if p = newPatternProgram(tree); p == nil {
				return
			}
			programs[pattern] = p
		}
		steps += len(p.program.Inst)
	}))
	return programs, steps
}

// StepsOf is at least half of what a pattern compiles to, and no more than most. A
// counted repetition makes megabytes of a few characters, so it is asked before.
func StepsOf(tree *syntax.Regexp, most int) int {
	n := 1 + len(tree.Rune)
	for _, sub := range tree.Sub {
		if n += StepsOf(sub, most); n >= most {
			return most
		}
	}
	if tree.Op == syntax.OpRepeat {
		n = 1 + (n-1)*max(tree.Min, tree.Max, 1) // Max is -1 without an end
	}
	return min(n, most)
}

func patternOf(e ast.Expr) (string, bool) {
	if e == nil || e.Kind() != ast.LiteralKind {
		return "", false
	}
	text, ok := e.AsLiteral().(types.String)
	return string(text), ok
}

// A patternProgram is a pattern, compiled, and what it costs by the length of
// the text.
type patternProgram struct {
	program  *syntax.Prog
	literal  bool // it is found as a text in a text
	anchored bool // a match begins where the text does
	costs    map[uint64]uint64
}

func newPatternProgram(tree *syntax.Regexp) *patternProgram {
	program, err := syntax.Compile(tree.Simplify())
	if err != nil {
		return nil
	}
	p := &patternProgram{program: program, costs: map[uint64]uint64{}}
	_, p.literal = program.Prefix()
	p.anchored = program.StartCond()&syntax.EmptyBeginText != 0
	return p
}

// cost is what the pattern costs on a text of so many characters at most.
//
// Package regexp asks of each step of the program at each place of the text at
// most once whether it goes on from there. So the steps times the places bound
// it; where a match can only begin with the text, those steps and places alone
// count that can be reached together.
func (p *patternProgram) cost(chars uint64) uint64 {
	if p == nil || chars > math.MaxInt32 {
		return math.MaxUint64
	}
	if units, known := p.costs[chars]; known {
		return units
	}
	places, steps := int(chars)+1, len(p.program.Inst)
	units := callOfPattern
	switch {
	case p.literal:
		units += (places + steps*pairsPerUnit) / literalsPerUnit
	case p.anchored:
		units += (p.reach(places) + places + pairsPerUnit - 1) / pairsPerUnit
	default:
		units += (steps*places + pairsPerUnit - 1) / pairsPerUnit
	}
	p.costs[chars] = uint64(units)
	return uint64(units)
}

// reach counts the steps and places that can be reached together from the
// beginning of a text, whatever its characters are.
func (p *patternProgram) reach(places int) (pairs int) {
	type pair struct{ step, place int }
	steps := len(p.program.Inst)
	seen := make([]uint64, (steps*places+63)/64)
	next := []pair{{p.program.Start, 0}}
	for len(next) > 0 {
		at := next[len(next)-1]
		next = next[:len(next)-1]
		bit := at.step*places + at.place
		if at.place == places || seen[bit/64]&(1<<(bit%64)) != 0 {
			continue
		}
		seen[bit/64] |= 1 << (bit % 64)
		pairs++
		switch in := &p.program.Inst[at.step]; in.Op {
		case syntax.InstAlt, syntax.InstAltMatch:
			next = append(next, pair{int(in.Out), at.place}, pair{int(in.Arg), at.place})
		case syntax.InstCapture, syntax.InstNop:
			next = append(next, pair{int(in.Out), at.place})
		case syntax.InstEmptyWidth:
			if syntax.EmptyOp(in.Arg)&syntax.EmptyBeginText == 0 || at.place == 0 {
				next = append(next, pair{int(in.Out), at.place})
			}
		case syntax.InstRune, syntax.InstRune1, syntax.InstRuneAny, syntax.InstRuneAnyNotNL:
			next = append(next, pair{int(in.Out), at.place + 1})
		}
	}
	return pairs
}

// matchCost is what all checks of a policy cost for each name or text of a fact,
// in units: every pattern may be looked at, and those with stars cost more.
type matchCost [variableCount]int

func (p *Policy) matchCost() (cost matchCost) {
	add := func(m *matcher) {
		for _, g := range append(m.anyOf, m.all) {
			for i := range g {
				if s := g[i].patterns; s != nil {
					cost[g[i].v.id] += s.work()
				}
			}
		}
	}
	for i := range p.rules {
		add(&p.rules[i].match)
		if p.rules[i].unless != nil {
			add(p.rules[i].unless)
		}
	}
	return cost
}

// work is what a set costs for a name that is not told on sight.
func (s *patternSet) work() (n int) {
	for i := range s.patterns {
		if n++; s.patterns[i].form == general {
			n += 3 + 2*strings.Count(s.patterns[i].text, "*")
		}
	}
	return n
}

// of is what the checks cost on some facts, in units. Most plain names are told on
// sight from most patterns.
func (c *matchCost) of(f *Facts) (n int) {
	for i, v := range variables {
		switch {
		case c[i] == 0:
		case !v.isList():
			n += c[i]
		default:
			for _, name := range v.list(f) {
				if v.isPlain(name) {
					n += 1 + c[i]/10
				} else {
					n += c[i]
				}
			}
		}
	}
	return n
}

// fewFacts tells whether no list of the facts is long.
func fewFacts(f *Facts) bool {
	for _, v := range variables {
		if v.isList() && len(v.list(f)) > fewEntries {
			return false
		}
	}
	return true
}
