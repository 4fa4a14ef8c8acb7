package policy

import "slices"

// A check is one key of a match or unless, compiled: AND stands between
// checks, OR inside the list of one.
type check struct {
	kind     kind // of v, at hand for deciding
	only     bool
	want     bool   // kindBool
	bits     uint64 // kindEnum, kindEnumList: the names asked for
	v        *variable
	exact    []string    // kindExact
	patterns *patternSet // kindText, kindNames
	values   []string    // as written with lists expanded, for trace and hash

	// exception: the check stands in the unless of a rule that restricts, where what may
	// be is not enough.
	exception bool
}

func (c *check) key() string {
	if c.only {
		return c.v.name + "_only"
	}
	return c.v.name
}

func (c *check) holds(e *evaluation) bool {
	switch c.kind {
	case kindBool:
		return e.truth(c.v) == c.want
	case kindEnum:
		return e.bits(c.v)&c.bits != 0
	case kindEnumList:
		if c.only {
			return e.bits(c.v)&^c.bits == 0
		}
		return e.bits(c.v)&c.bits != 0
	case kindExact:
		return contains(c.exact, c.v.text(e.facts))
	case kindText:
		return c.patterns.any(c.v.text(e.facts), true)
	default:
		return c.holdsNames(e)
	}
}

// holdsNames asks any or all of a list of names. All of a list that was cut is
// never known to hold, since what was cut off might not.
func (c *check) holdsNames(e *evaluation) bool {
	names := c.v.list(e.facts)
	plain := e.plainNames(c.v, names)
	if !c.only {
		for _, name := range names {
			if c.patterns.any(name, plain) && (!c.exception || c.v.isNamed(name) || c.patterns.all(name, plain)) {
				return true
			}
		}
		return false
	}
	if len(names) >= maxListFacts && e.bits(signalsVariable)&signals.bit[signalOversizedFacts] != 0 {
		return false
	}
	for _, name := range names {
		if !c.patterns.all(name, plain) {
			return false
		}
	}
	return true
}

func contains(list []string, value string) bool {
	for _, s := range list {
		if s == value {
			return true
		}
	}
	return false
}

// effort orders variables by what a check on them costs, so that the ones that touch no text
// come first.
func (v *variable) effort() int {
	switch v.kind {
	case kindBool, kindEnum, kindEnumList:
		return 0
	case kindExact, kindText:
		return 1
	default:
		return 2
	}
}

// A group holds checks joined by AND, in the order of facts/v1.
type group []check

// byEffort is the group in the order in which deciding reads it.
func (g group) byEffort() group {
	quick := slices.Clone(g)
	slices.SortStableFunc(quick, func(a, b check) int { return a.v.effort() - b.v.effort() })
	return quick
}

func (g group) holds(e *evaluation) bool {
	for i := range g {
		if !g[i].holds(e) {
			return false
		}
	}
	return true
}

// A matcher is the content of match or unless: a group and, one level deep,
// alternatives of which one must hold where there are any.
type matcher struct {
	all      group
	anyOf    []group
	hasAnyOf bool

	quickAll   group // all and anyOf in the order of their effort
	quickAnyOf []group
}

// prepare makes the matcher ready to decide.
func (m *matcher) prepare() {
	m.quickAll, m.quickAnyOf = m.all.byEffort(), nil
	for _, g := range m.anyOf {
		m.quickAnyOf = append(m.quickAnyOf, g.byEffort())
	}
}

func (m *matcher) holds(e *evaluation) bool {
	if !m.quickAll.holds(e) {
		return false
	}
	if !m.hasAnyOf {
		return true
	}
	for _, g := range m.quickAnyOf {
		if g.holds(e) {
			return true
		}
	}
	return false
}

// groups lists the alternatives as the checks that hold together in each.
func (m *matcher) groups() []group {
	if !m.hasAnyOf {
		return []group{m.all}
	}
	var gs []group
	for _, g := range m.anyOf {
		gs = append(gs, append(append(group{}, m.all...), g...))
	}
	return gs
}
