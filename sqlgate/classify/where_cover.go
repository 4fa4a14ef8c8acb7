package classify

import (
	"math/big"
	"slices"
	"strings"
)

// A cover collects the terms of an OR, and knows when some of them leave no value out:
// x OR NOT x, x < 5 OR x >= 5, x <> 'a' OR x <> 'b'. NULL is left out of account,
// but where a term asks for it.
type cover struct {
	w     *walk
	sides map[uint64]uint8 // by pair of expressions: bits for less, equal, greater
	lines map[uint64]*line // by expression: what it is compared with
	joint []joint
	terms int
}

// A joint term is true where all of its parts are: an AND, or NOT of an OR.
type joint struct {
	at      int32
	negated bool
}

// mostTerms bounds an OR in which joint terms are taken apart.
const mostTerms = 32

// A line is what comparisons with numbers let through.
type line struct {
	below, above     *big.Rat // all that is less than, greater than
	withBelow        bool
	withAbove        bool
	points, excepted map[string]*big.Rat
}

const (
	less    = 1
	equal   = 2
	greater = 4
	all     = less | equal | greater
)

// coversAll reports whether an OR is true for all rows; for an AND with negated,
// whether it is false for all.
func (w *walk) coversAll(i int32, negated bool) bool {
	op, flipped, up := string(w.raw(i, "boolop")), false, w.owner(i)
	for ; w.is(up, "BoolExpr") && string(w.raw(up, "boolop")) == "NOT_EXPR"; up = w.owner(up) {
		flipped = !flipped
	}
	if w.is(up, "BoolExpr") && (string(w.raw(up, "boolop")) == op) != flipped {
		return false // the one around it takes its terms too
	}
	c := w.newCover()
	if c.add(i, negated) {
		return true
	}
	return c.terms <= mostTerms && slices.ContainsFunc(c.joint, func(j joint) bool {
		for part := range w.items(j.at, "args") { // with each of its parts all is covered, so with all of them
			with := w.newCover()
			if !with.add(i, negated) && !with.add(part, j.negated) {
				return false
			}
		}
		return true
	})
}

func (w *walk) newCover() *cover {
	return &cover{w: w, sides: map[uint64]uint8{}, lines: map[uint64]*line{}}
}

// add takes one more term and reports whether all is covered.
func (c *cover) add(i int32, negated bool) bool {
	w := c.w
	w.steps++
	c.terms++
	switch {
	case w.is(i, "BoolExpr"):
		op := string(w.raw(i, "boolop"))
		if op != "NOT_EXPR" && c.side(w.reduce(i).full(), equal, negated) {
			return true
		}
		if op == "NOT_EXPR" || op == "OR_EXPR" && !negated || op == "AND_EXPR" && negated {
			for arg := range w.items(i, "args") {
				if c.add(arg, negated != (op == "NOT_EXPR")) {
					return true
				}
			}
			return false
		}
		c.joint = append(c.joint, joint{i, negated})
		return false
	case w.is(i, "NullTest"):
		return c.side(mix(w.reduce(w.child(i, "arg")).full(), 1), equal, negated != (string(w.raw(i, "nulltesttype")) != "IS_NULL"))
	case w.is(i, "BooleanTest"):
		test, of := string(w.raw(i, "booltesttype")), w.reduce(w.child(i, "arg")).full()
		not := negated != strings.HasPrefix(test, "IS_NOT")
		if strings.HasSuffix(test, "UNKNOWN") {
			return c.side(mix(of, 1), equal, not)
		}
		return c.side(of, equal, not != strings.HasSuffix(test, "FALSE"))
	case w.is(i, "A_Expr"):
		if sides := w.sidesOf(i); sides != 0 {
			return c.compare(i, sides, negated)
		}
	}
	return c.side(w.reduce(i).full(), equal, negated)
}

func (c *cover) side(of uint64, sides uint8, negated bool) bool {
	if negated {
		sides ^= all
	}
	c.sides[of] |= sides
	return c.sides[of] == all
}

// sidesOf gives the sides that a comparison lets through, 0 for what is none.
func (w *walk) sidesOf(i int32) uint8 {
	switch string(w.raw(i, "kind")) {
	case "AEXPR_NOT_DISTINCT", "AEXPR_BETWEEN", "AEXPR_BETWEEN_SYM":
		return equal
	case "AEXPR_DISTINCT", "AEXPR_NOT_BETWEEN", "AEXPR_NOT_BETWEEN_SYM":
		return less | greater
	}
	switch w.comparison(i) {
	case "=", "~~", "~~*":
		return equal
	case "<>", "!=", "!~~", "!~~*":
		return less | greater
	case "<":
		return less
	case ">":
		return greater
	case "<=":
		return less | equal
	case ">=":
		return greater | equal
	}
	return 0
}

func (c *cover) compare(i int32, sides uint8, negated bool) bool {
	w := c.w
	kind, left, right := w.sides(i)
	l, r := w.reduce(left), w.reduce(right)
	kind = strings.Replace(kind, "_NOT_", "_", 1)
	switch kind {
	case "AEXPR_OP":
		for n, side := range [...]int32{left, right} {
			if v, ok := w.constant(side); ok && v.kind == constBool && (sides == equal || sides == all^equal) {
				return c.side([...]uint64{r.full(), l.full()}[n], equal, negated != (v.b != (sides == equal)))
			}
		}
		if l.hash == numberBase || r.full() < l.full() && r.hash != numberBase {
			l, r, sides = r, l, sides&equal|sides&less<<2|sides&greater>>2
		}
		if r.hash == numberBase && c.number(l, r, sides, negated) {
			return true
		}
	case "AEXPR_DISTINCT":
		if r.full() < l.full() {
			l, r = r, l
		}
	case "AEXPR_OP_ANY", "AEXPR_OP_ALL": // = ANY and <> ALL
		if (kind == "AEXPR_OP_ANY") != (sides == equal) {
			return false
		}
		kind = "AEXPR_OP_ANY"
	}
	return c.side(mixText(mix(l.full(), r.full()), []byte(kind)), sides, negated)
}

// number takes the comparison of an expression with a number.
func (c *cover) number(l, r reduced, sides uint8, negated bool) bool {
	if negated {
		sides ^= all
	}
	n := r.added
	if l.added != nil {
		n = new(big.Rat).Sub(n, l.added)
	}
	of := c.lines[l.hash]
	if of == nil {
		of = &line{points: map[string]*big.Rat{}, excepted: map[string]*big.Rat{}}
		c.lines[l.hash] = of
	}
	with := sides&equal != 0
	switch {
	case sides == equal:
		of.points[n.RatString()] = n
	case sides == less|greater:
		of.excepted[n.RatString()] = n
	case sides&less != 0:
		if of.below == nil || of.below.Cmp(n) < 0 {
			of.below, of.withBelow = n, with
		} else if of.below.Cmp(n) == 0 {
			of.withBelow = of.withBelow || with
		}
	default:
		if of.above == nil || of.above.Cmp(n) > 0 {
			of.above, of.withAbove = n, with
		} else if of.above.Cmp(n) == 0 {
			of.withAbove = of.withAbove || with
		}
	}
	return of.isWhole()
}

// isWhole reports whether no number is left out.
func (l *line) isWhole() bool {
	if len(l.excepted) > 1 {
		return true
	}
	for name, n := range l.excepted {
		if l.points[name] != nil || l.below != nil && (l.below.Cmp(n) > 0 || l.below.Cmp(n) == 0 && l.withBelow) ||
			l.above != nil && (l.above.Cmp(n) < 0 || l.above.Cmp(n) == 0 && l.withAbove) {
			return true
		}
	}
	if l.below == nil || l.above == nil {
		return false
	}
	order := l.below.Cmp(l.above)
	return order > 0 || order == 0 && (l.withBelow || l.withAbove || l.points[l.below.RatString()] != nil)
}
