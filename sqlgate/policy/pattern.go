package policy

import (
	"slices"
	"strings"
)

// unresolved is the segment that stands for what the classifier could not
// resolve, such as the schema of a name it has not seen declared.
const unresolved = "?"

// unnamed is the segment that stands for every table, column or function of
// what is before it: public.* are all tables of a schema, ?.* those that a
// statement reaches without naming them, in any schema but the server's own.
const unnamed = "*"

// serversOwn are the schemas that ?.* does not reach into.
var serversOwn = map[string]bool{"pg_catalog": true, "information_schema": true, "pg_toast": true}

// A pattern is one entry of a pattern list: segments divided by dots, where a
// star is any run of characters inside its segment and all else is literal. A
// text (a claim) is one segment, dots and all.
type pattern struct {
	text     string
	segments []string
	form     form
	first    byte // of every plain value that matches, 0 where that is open
}

// A form tells patterns apart that are matched on sight.
type form uint8

const (
	general      form = iota
	literal           // no star: equal texts match
	trailingStar      // one star at the very end: a prefix matches
)

func newPattern(text string, v *variable) pattern {
	p := pattern{text: text, segments: []string{text}}
	if v.kind != kindText {
		p.segments = strings.Split(text, ".")
	}
	if text != "" && text[0] != '*' {
		p.first = text[0]
	}
	switch star := strings.IndexByte(text, '*'); {
	case star < 0:
		p.form = literal
	case star == len(text)-1 && (v.kind == kindText || v.segments == len(p.segments)):
		p.form = trailingStar
	}
	return p
}

// plain matches a value that isPlain: any and all are one question then, and
// most patterns answer it on sight.
func (p *pattern) plain(value string, v *variable) bool {
	switch p.form {
	case literal:
		return p.text == value
	case trailingStar:
		return strings.HasPrefix(value, p.text[:len(p.text)-1])
	default:
		return p.all(value, v)
	}
}

// isPlain reports whether a value has all its segments, each of them resolved,
// so that every pattern can be matched without a doubt.
func (v *variable) isPlain(value string) bool {
	if v.kind == kindText {
		return true
	}
	if value == "" || value[0] == unresolved[0] || value[len(value)-1] == '*' {
		return false
	}
	dots := 0
	for i := range len(value) {
		if value[i] == '.' {
			if dots++; strings.HasPrefix(value[i+1:], unresolved+".") {
				return false
			}
		}
	}
	if v.segments == 0 {
		return dots <= 1
	}
	return dots == v.segments-1
}

// isNamed reports whether a value is a name, of a table with or without its
// columns, and not one that stands for tables or functions without their names.
func (v *variable) isNamed(value string) bool {
	if strings.HasPrefix(value, unresolved+".") {
		return false
	}
	if v.segments == 3 {
		value = strings.TrimSuffix(value, ".*")
	}
	return !strings.HasSuffix(value, ".*")
}

// shapeFault says what is wrong with the pattern as one on v, or "".
func (p *pattern) shapeFault(v *variable) (fault, suggestion string) {
	if v.kind != kindNames {
		return "", ""
	}
	n := len(p.segments)
	if slices.Contains(p.segments, "") {
		return "has an empty segment", ""
	}
	switch {
	case v.segments == 0 && n == 2 && p.segments[0] == "pg_catalog":
		return "names a built-in function with its schema, but built-ins appear bare in the facts, so it could never match", p.segments[1]
	case v.segments == 0 && (n == 1 || n == 2):
		return "", ""
	case v.segments == 0:
		return "is neither a built-in (one segment, such as lower) nor schema.function", ""
	case v.segments == n:
		return "", ""
	case v.segments == 2 && n == 1:
		return "has one segment; a table is schema.table", "public." + p.text
	case v.segments == 2:
		return "has more than two segments; a table is schema.table", strings.Join(p.segments[n-2:], ".")
	case n == 2:
		return "has two segments; a column is schema.table.column", p.text + ".*"
	default:
		return "does not have the three segments of schema.table.column", ""
	}
}

// any reports whether value may lie inside the pattern, counting what is not
// known for certain as inside; it serves rules that restrict.
func (p *pattern) any(value string, v *variable) bool {
	if v.kind == kindText {
		return glob(p.segments[0], value)
	}
	want := len(p.segments)
	parts := strings.Count(value, ".") + 1
	if v.segments == 0 && (want == 1) != (parts == 1) {
		return false // a built-in is no function of a schema, nor the reverse
	}
	if parts > want {
		return p.anyAcross(value, v)
	}
	return p.anySegments(value, want-parts, v)
}

// anyAcross serves a value with more dots than borders: a quoted identifier
// holds one, so the borders are not known and stars may reach across them.
func (p *pattern) anyAcross(value string, v *variable) bool {
	segments := p.segments
	if rest, ok := strings.CutSuffix(value, ".*.*"); ok && v.segments == 3 {
		return glob(segments[0], rest)
	}
	if rest, ok := strings.CutSuffix(value, ".*"); ok && v.segments == 2 && glob(segments[0], rest) {
		return true
	}
	if rest, ok := strings.CutSuffix(value, ".*"); ok && v.segments == 3 {
		value, segments = rest, segments[:2]
	}
	if strings.HasPrefix(value, unresolved+".") {
		segments = append([]string{"*"}, segments[1:]...)
	}
	return glob(strings.Join(segments, "."), value)
}

// anySegments compares segment by segment, the first skipped ones unseen.
func (p *pattern) anySegments(value string, skipped int, v *variable) bool {
	for i := skipped; i < len(p.segments); i++ {
		segment, rest, _ := strings.Cut(value, ".")
		value = rest
		if segment == unresolved && i < len(p.segments)-1 {
			if next, _, _ := strings.Cut(rest, "."); next == unnamed && serversOwn[p.segments[i]] {
				return false
			}
			continue
		}
		if segment == unnamed && i > 0 {
			continue // every table or column, so the named one too
		}
		if !glob(p.segments[i], segment) {
			return false
		}
	}
	return true
}

// all reports whether value lies inside the pattern for certain; it serves
// rules that allow.
func (p *pattern) all(value string, v *variable) bool {
	if v.kind == kindText {
		return glob(p.segments[0], value)
	}
	last := len(p.segments) - 1
	for i, want := range p.segments {
		segment, rest, more := strings.Cut(value, ".")
		if more != (i < last) || (segment == unresolved && i < last) || !glob(want, segment) {
			return false
		}
		value = rest
	}
	return true
}

// glob matches a whole text against one segment, in time linear in the text
// for each star.
func glob(pattern, text string) bool {
	star := strings.IndexByte(pattern, '*')
	if star < 0 {
		return pattern == text
	}
	if !strings.HasPrefix(text, pattern[:star]) {
		return false
	}
	text, pattern = text[star:], pattern[star+1:]
	for {
		star = strings.IndexByte(pattern, '*')
		if star < 0 {
			return strings.HasSuffix(text, pattern)
		}
		at := strings.Index(text, pattern[:star])
		if at < 0 {
			return false
		}
		text, pattern = text[at+star:], pattern[star+1:]
	}
}

// A patternSet is an expanded list of patterns on one variable.
type patternSet struct {
	v        *variable
	patterns []pattern
	literal  map[string]struct{} // those that only equal texts match, where there are many
	others   []pattern           // all but the literal ones

	// starts holds the first bytes of values that some pattern may hold: most
	// values are told from most sets by one bit.
	starts [4]uint64
}

// manyLiterals is where a map becomes quicker than comparing one by one.
const manyLiterals = 8

func newPatternSet(v *variable, texts []string) *patternSet {
	s := &patternSet{v: v, literal: map[string]struct{}{}}
	for _, text := range texts {
		p := newPattern(text, v)
		s.patterns = append(s.patterns, p)
		s.mayStart(p.first)
		if p.form == literal {
			s.literal[text] = struct{}{}
		} else {
			s.others = append(s.others, p)
		}
	}
	if len(s.literal) < manyLiterals {
		s.literal, s.others = nil, s.patterns
	}
	return s
}

// mayStart notes the first byte of a pattern; 0 is any.
func (s *patternSet) mayStart(first byte) {
	if first == 0 {
		s.starts = [4]uint64{^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0)}
		return
	}
	s.starts[first>>6] |= 1 << (first & 63)
}

// any and all ask whether some pattern of the set holds the value; plain is
// what isPlain says of it.
func (s *patternSet) any(value string, plain bool) bool {
	if plain {
		return s.plain(value)
	}
	for i := range s.patterns {
		if s.patterns[i].any(value, s.v) {
			return true
		}
	}
	return false
}

func (s *patternSet) all(value string, plain bool) bool {
	if plain {
		return s.plain(value)
	}
	for i := range s.patterns {
		if s.patterns[i].all(value, s.v) {
			return true
		}
	}
	return false
}

func (s *patternSet) plain(value string) bool {
	var first byte
	if value != "" {
		first = value[0]
	}
	if s.starts[first>>6]&(1<<(first&63)) == 0 {
		return false
	}
	if s.literal != nil {
		if _, ok := s.literal[value]; ok {
			return true
		}
	}
	for i := range s.others {
		p := &s.others[i]
		if (p.first == 0 || p.first == first) && p.plain(value, s.v) {
			return true
		}
	}
	return false
}
