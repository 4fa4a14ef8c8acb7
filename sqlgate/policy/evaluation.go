package policy

import (
	"sync"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/interpreter"
)

// An evaluation is one look at one set of facts: the facts, and what was
// worked out of them once because several rules ask for it. It is the
// activation of CEL programs as well, so that a when reads ready values.
//
// Evaluations are pooled; nothing of one may outlive done.
type evaluation struct {
	facts *Facts
	safe  bool
	words [variableCount]uint64
	known uint32 // bit i: words[i] is worked out
	ready uint32 // bit i: values[i] is worked out
	seen  uint32 // bit i: whether the names of variable i are plain is known
	plain uint32 // bit i: they are

	values [variableCount]ref.Val
	frame  *interpreter.ExecutionFrame // of all conditions, nil before the first

	candidates, some []uint64 // sets of rules, for the index

	// cost is what the conditions that were evaluated cost at most, and costOfFew what
	// they do where no list of the facts is long.
	cost, costOfFew int

	// matched, observed and failed are places of rules, in order.
	matched, observed, failed []int
}

// emptySet is a set of rules of so many words, for one use at a time.
func (e *evaluation) emptySet(words int) []uint64 {
	e.some = append(e.some[:0], make([]uint64, words)...)
	return e.some
}

var evaluations = sync.Pool{New: func() any { return new(evaluation) }}

func evaluate(f *Facts) *evaluation {
	e := evaluations.Get().(*evaluation)
	e.facts, e.safe = f, isSafeRead(f)
	e.known, e.ready, e.seen, e.plain = 0, 0, 0, 0
	e.cost, e.costOfFew = 0, 0
	e.matched, e.observed, e.failed = e.matched[:0], e.observed[:0], e.failed[:0]
	return e
}

func (e *evaluation) done() {
	if e.ready != 0 {
		clear(e.values[:]) // the pool keeps no facts alive
	}
	if e.frame != nil {
		e.frame.Close()
		e.frame = nil
	}
	e.facts = nil
	evaluations.Put(e)
}

func (e *evaluation) truth(v *variable) bool {
	if v == safeReadVariable {
		return e.safe
	}
	return v.truth(e.facts)
}

// bits is the value of an enum fact as a set.
func (e *evaluation) bits(v *variable) uint64 {
	if e.known&(1<<v.id) != 0 {
		return e.words[v.id]
	}
	var word uint64
	if v.kind == kindEnum {
		word = v.words.one(v.text(e.facts))
	} else {
		word = v.words.set(v.list(e.facts))
	}
	e.words[v.id] = word
	e.known |= 1 << v.id
	return word
}

// plainNames reports whether all names of a list are plain.
func (e *evaluation) plainNames(v *variable, names []string) bool {
	if e.seen&(1<<v.id) == 0 {
		e.seen |= 1 << v.id
		e.plain |= 1 << v.id
		for _, name := range names {
			if !v.isPlain(name) {
				e.plain &^= 1 << v.id
				break
			}
		}
	}
	return e.plain&(1<<v.id) != 0
}

// ResolveName gives CEL the value of a fact.
func (e *evaluation) ResolveName(name string) (any, bool) {
	i := variableNames.place(name)
	if i < 0 {
		return nil, false
	}
	v := variables[i]
	if e.ready&(1<<v.id) == 0 {
		e.values[v.id] = e.value(v)
		e.ready |= 1 << v.id
	}
	return e.values[v.id], true
}

// Parent of the activation: there is none.
func (e *evaluation) Parent() cel.Activation { return nil }

func (e *evaluation) value(v *variable) ref.Val {
	switch {
	case v.kind == kindBool:
		return types.Bool(e.truth(v))
	case v.isList():
		return types.NewStringList(types.DefaultTypeAdapter, v.list(e.facts))
	default:
		return types.String(v.text(e.facts))
	}
}
