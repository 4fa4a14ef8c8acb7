package classify

// A level holds what one bracket level adds to the depth of the tree.
type level struct {
	chain int // operators and keywords since the last comma: each may wrap what stands before it
	child int // deepest bracket since the last comma
	best  int // deepest list element so far
	setop int // UNION, INTERSECT, EXCEPT and routine bodies: they go on across commas
}

func (v level) depth() int { return max(v.best, v.chain+v.child) + v.setop }

// A depthMeter bounds from above how deep the parse tree of the tokens it sees
// can be, in units of at most eight JSON objects (and sixteen for the
// statement). It may be far too high, never too low: nothing in PostgreSQL's
// grammar nests without a bracket or one of the counted tokens.
type depthMeter struct {
	level
	near     [16]level // outer levels; the first need no allocation
	far      []level
	open     int  // brackets open now
	brackets mark // deepest nesting; at is where it passed the limit
}

func (d *depthMeter) opened(at int) {
	d.open++
	d.brackets.got = max(d.brackets.got, d.open)
	switch {
	case d.open <= len(d.near):
		d.near[d.open-1] = d.level
	case d.open <= maxBracketDepth:
		d.far = append(d.far, d.level)
	default: // refused: counted, not kept
		if d.brackets.at < 0 {
			d.brackets.at = at
		}
		return
	}
	d.level = level{}
}

func (d *depthMeter) closed() {
	inner := d.depth() + 1
	switch far := len(d.far) - 1; {
	case d.open == 0: // the parser refuses it
		return
	case d.open > maxBracketDepth:
		d.open--
		return
	case far >= 0:
		d.level, d.far = d.far[far], d.far[:far]
	default:
		d.level = d.near[d.open-1]
	}
	d.open--
	d.child = max(d.child, inner)
}

func (d *depthMeter) comma() {
	d.best = max(d.best, d.chain+d.child)
	d.chain, d.child = 0, 0
}

// total closes what is still open and gives the bound.
func (d *depthMeter) total() int {
	for d.open > 0 {
		d.closed()
	}
	return d.depth()
}

const longestCountedWord = len("INTERSECT")

// word counts the keywords that wrap an expression, a join or a query. ATOMIC
// opens the body of a routine, whose statements may hold routines again.
func (d *depthMeter) word(w string) {
	if len(w) < 2 || len(w) > longestCountedWord {
		return
	}
	var b [longestCountedWord]byte
	for i := range len(w) {
		b[i] = w[i] | 0x20
	}
	switch string(b[:len(w)]) {
	case "is", "isnull", "notnull", "collate", "at", "between", "like", "ilike", "similar", "in", "not",
		"any", "all", "some", "operator", "escape", "overlaps", "case", "join":
		d.chain++
	case "union", "intersect", "except", "atomic":
		d.setop++
	}
}
