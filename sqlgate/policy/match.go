package policy

// A check is one key of a match or unless, compiled: AND stands between
// checks, OR inside the list of one.
type check struct {
	v        *variable
	only     bool
	bits     uint64      // kindEnum, kindEnumList: the names asked for
	want     bool        // kindBool
	exact    []string    // kindExact
	patterns *patternSet // kindText, kindNames
	values   []string    // as written with lists expanded, for trace and hash
}

func (c *check) key() string {
	if c.only {
		return c.v.name + "_only"
	}
	return c.v.name
}

func (c *check) holds(e *evaluation) bool {
	switch c.v.kind {
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
		return c.patterns.any(c.v.text(e.facts))
	default:
		return c.holdsNames(e)
	}
}

// holdsNames asks any or all of a list of names. All of a list that was cut is
// never known to hold, since what was cut off might not.
func (c *check) holdsNames(e *evaluation) bool {
	names := c.v.list(e.facts)
	if !c.only {
		for _, name := range names {
			if c.patterns.any(name) {
				return true
			}
		}
		return false
	}
	if len(names) >= maxListFacts && e.bits(signalsVariable)&signals.bit[signalOversizedFacts] != 0 {
		return false
	}
	for _, name := range names {
		if !c.patterns.all(name) {
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

// A group holds checks joined by AND, in the order of facts/v1.
type group []check

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
}

func (m *matcher) holds(e *evaluation) bool {
	if !m.all.holds(e) {
		return false
	}
	if !m.hasAnyOf {
		return true
	}
	for _, g := range m.anyOf {
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

// classBits is the set of classes that the matcher can match at all: what its
// plain keys say of class, and every class where they say nothing.
func (m *matcher) classBits() uint64 {
	bits := ^uint64(0)
	for i := range m.all {
		switch c := &m.all[i]; {
		case c.v == classVariable:
			bits &= c.bits
		case c.v == safeReadVariable && c.want:
			bits &= classes.bit["read"]
		}
	}
	return bits
}
