package policy

import (
	"math/bits"
	"slices"
	"strings"
)

// An index tells from the facts which rules may match, a machine word of rules
// at a time, so that most rules are passed over without a look at them.
//
// It holds what the match of each rule says outside of any_of. On enums and
// bools it is exact, and the matchers leave those checks to it. Of texts and
// names it looks at the beginning, which rules out most patterns; who passes
// is still asked in full.
type index struct {
	words int      // of a set of rules
	rules []uint64 // all of them
	sides []*side
}

// A side is one key of a match over all rules.
type side struct {
	v     *variable
	only  bool
	users []uint64 // the rules that have the key
	// first and second hold, for each row, the users that a value of that row
	// does not rule out. A row is a run of as many words as a set has. Texts
	// and names have a row in each, all else in first alone.
	first, second []uint64
}

// rowCount is the number of rows: as many as a word has bits, so that one
// word says what rows a check admits.
const rowCount = 64

// every row.
const every = ^uint64(0)

// exact reports whether rows say all there is to say on a variable.
func (v *variable) exact() bool {
	return v.kind == kindBool || v.kind == kindEnum || v.kind == kindEnumList
}

// rowsOf are the rows of a text by its first two bytes, or of a name by its
// first two segments.
func (v *variable) rowsOf(value string) (first, second int) {
	if v.kind != kindNames {
		return rowOfByte(value, 0), rowOfByte(value, 1)
	}
	segment, rest, _ := strings.Cut(value, ".")
	if i := strings.IndexByte(rest, '.'); i >= 0 {
		rest = rest[:i]
	}
	return rowOfSegment(segment), rowOfSegment(rest)
}

func rowOfByte(text string, i int) int {
	if i >= len(text) {
		return 0
	}
	return int(text[i] % rowCount)
}

func rowOfSegment(segment string) int { return int(bucketOf(segment) % rowCount) }

// rows are those of the values that a pattern may hold, first and second.
func (p *pattern) rows(v *variable) (first, second uint64) {
	if v.kind != kindNames {
		return p.rowsOfByte(0), p.rowsOfByte(1)
	}
	if len(p.segments) == 1 {
		return rowsOfSegment(p.segments[0]), 1 << rowOfSegment("")
	}
	return rowsOfSegment(p.segments[0]), rowsOfSegment(p.segments[1])
}

func (p *pattern) rowsOfByte(i int) uint64 {
	if star := strings.IndexByte(p.text, '*'); star >= 0 && star <= i {
		return every
	}
	return 1 << rowOfByte(p.text, i)
}

func rowsOfSegment(segment string) uint64 {
	if strings.Contains(segment, "*") {
		return every
	}
	return 1 << rowOfSegment(segment)
}

// rows are those of the values that can satisfy the check.
func (c *check) rows() (first, second uint64) {
	switch c.kind {
	case kindBool:
		return 1 << boolRow(c.want), 0
	case kindEnum, kindEnumList:
		return c.bits, 0
	case kindExact:
		for _, value := range c.exact {
			a, b := c.v.rowsOf(value)
			first, second = first|1<<a, second|1<<b
		}
	default:
		for i := range c.patterns.patterns {
			a, b := c.patterns.patterns[i].rows(c.v)
			first, second = first|a, second|b
		}
	}
	return first, second
}

func boolRow(b bool) int {
	if b {
		return 1
	}
	return 0
}

// newIndex builds the index over prepared matchers, in the order of their
// rules, and takes out of each what need not be asked again.
func newIndex(matchers []*matcher) index {
	x := index{words: (len(matchers) + 63) / 64}
	x.rules = make([]uint64, x.words)
	for place, m := range matchers {
		x.rules[place/64] |= 1 << (place % 64)
		m.quickAll = slices.DeleteFunc(m.quickAll, func(c check) bool {
			return x.add(place, &c) && c.v.exact()
		})
	}
	slices.SortStableFunc(x.sides, func(a, b *side) int {
		if n := a.v.effort() - b.v.effort(); n != 0 {
			return n
		}
		return count(b.users) - count(a.users) // what tells most rules comes first
	})
	return x
}

func count(set []uint64) (n int) {
	for _, word := range set {
		n += bits.OnesCount64(word)
	}
	return n
}

// add notes one check of the rule at place. It is false where the rule has the
// key already: two answers to one key are not one row.
func (x *index) add(place int, c *check) bool {
	s := x.side(c)
	word, bit := place/64, uint64(1)<<(place%64)
	if s.users[word]&bit != 0 {
		return false
	}
	s.users[word] |= bit
	first, second := c.rows()
	for row := range rowCount {
		if first&(1<<row) != 0 {
			s.first[row*x.words+word] |= bit
		}
		if second&(1<<row) != 0 {
			s.second[row*x.words+word] |= bit
		}
	}
	return true
}

func (x *index) side(c *check) *side {
	for _, s := range x.sides {
		if s.v == c.v && s.only == c.only {
			return s
		}
	}
	s := &side{v: c.v, only: c.only, users: make([]uint64, x.words), first: make([]uint64, rowCount*x.words)}
	if !c.v.exact() {
		s.second = make([]uint64, rowCount*x.words)
	}
	x.sides = append(x.sides, s)
	return s
}

// candidates are the rules that may match, as a set that belongs to e.
func (x *index) candidates(e *evaluation) []uint64 {
	set := append(e.candidates[:0], x.rules...)
	for _, s := range x.sides {
		if overlap(s.users, set) {
			s.narrow(e, set)
		}
	}
	e.candidates = set
	return set
}

func overlap(a, b []uint64) bool {
	for i, word := range b {
		if word&a[i] != 0 {
			return true
		}
	}
	return false
}

// narrow takes the users out of the set that the facts rule out.
func (s *side) narrow(e *evaluation, set []uint64) {
	switch s.v.kind {
	case kindBool:
		s.keepOne(set, boolRow(e.truth(s.v)))
	case kindEnum:
		s.keepOne(set, bits.TrailingZeros64(e.bits(s.v)))
	case kindEnumList:
		s.narrowWords(e, set)
	case kindText, kindExact:
		s.keepBoth(set, s.v.text(e.facts))
	default:
		s.narrowNames(e, set)
	}
}

// keepOne keeps of the users those in a row of first.
func (s *side) keepOne(set []uint64, row int) {
	rows := s.first[row*len(set):]
	for i := range set {
		set[i] &= rows[i] | ^s.users[i]
	}
}

// keepBoth keeps of the users those in both rows of a value.
func (s *side) keepBoth(set []uint64, value string) {
	first, second := s.v.rowsOf(value)
	a, b := s.first[first*len(set):], s.second[second*len(set):]
	for i := range set {
		set[i] &= a[i]&b[i] | ^s.users[i]
	}
}

// narrowWords goes through the members of an enum list: all of them have to
// pass for an _only key, one of them for a plain one.
func (s *side) narrowWords(e *evaluation, set []uint64) {
	word := e.bits(s.v)
	if s.only {
		for ; word != 0; word &= word - 1 {
			s.keepOne(set, bits.TrailingZeros64(word))
		}
		return
	}
	some := e.emptySet(len(set))
	for ; word != 0; word &= word - 1 {
		rows := s.first[bits.TrailingZeros64(word)*len(set):]
		for i := range some {
			some[i] |= rows[i]
		}
	}
	s.keepSome(set, some)
}

// narrowNames does the same for a list of names. What is not known of a name
// counts for a plain key, so a list with such a name rules nothing out there.
func (s *side) narrowNames(e *evaluation, set []uint64) {
	names := s.v.list(e.facts)
	if s.only {
		for _, name := range names {
			s.keepBoth(set, name)
		}
		return
	}
	if !e.plainNames(s.v, names) {
		return
	}
	some := e.emptySet(len(set))
	for _, name := range names {
		first, second := s.v.rowsOf(name)
		a, b := s.first[first*len(set):], s.second[second*len(set):]
		for i := range some {
			some[i] |= a[i] & b[i]
		}
	}
	s.keepSome(set, some)
}

// keepSome keeps of the users those in some.
func (s *side) keepSome(set, some []uint64) {
	for i := range set {
		set[i] &= some[i] | ^s.users[i]
	}
}
