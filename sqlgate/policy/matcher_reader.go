package policy

import (
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// matcher reads the content of match or unless.
func (r *documentReader) matcher(n *yaml.Node, pointer, what string) (m matcher) {
	var anyOf *yaml.Node
	m.all = r.group(n, pointer, what, func(n *yaml.Node) { anyOf = n })
	if anyOf == nil {
		return m
	}
	m.hasAnyOf = true
	here := pointer + "/any_of"
	if anyOf.Kind == yaml.SequenceNode && len(anyOf.Content) == 0 && what == "match" {
		r.add(anyOf, here, codeNeverMatches, "", "any_of has no group, so it never matches")
	}
	r.sequence(anyOf, here, "any_of", func(item *yaml.Node, at string) {
		m.anyOf = append(m.anyOf, r.group(item, at, "a group of any_of", nil))
	})
	return m
}

// group reads checks joined by AND and puts them into the order of facts/v1.
// anyOf is nil inside any_of, which is one level deep.
func (r *documentReader) group(n *yaml.Node, pointer, what string, anyOf func(*yaml.Node)) group {
	if n.Kind != yaml.MappingNode {
		r.mismatch(n, pointer, what+" must be a mapping of facts to lists; {} matches everything")
		return nil
	}
	var g group
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		here := pointer + "/" + escapePointer(key.Value)
		switch v, only, ok := variableOfKey(key.Value); {
		case ok:
			g = append(g, r.check(value, here, v, only, what))
		case key.Value == "any_of" && anyOf != nil:
			anyOf(value)
		case key.Value == "any_of":
			r.add(key, here, codeUnknownField, "", "any_of stands inside any_of; it is one level deep")
		default:
			r.unknownField(key, here, what, keyNames())
		}
	}
	slices.SortStableFunc(g, func(a, b check) int {
		if a.v.id != b.v.id {
			return a.v.id - b.v.id
		}
		return boolOrder(a.only) - boolOrder(b.only)
	})
	return g
}

func boolOrder(b bool) int {
	if b {
		return 1
	}
	return 0
}

func variableOfKey(key string) (v *variable, only, ok bool) {
	if v, ok = variableByName[key]; ok {
		return v, false, true
	}
	if name, cut := strings.CutSuffix(key, "_only"); cut {
		v, ok = variableByName[name]
		return v, true, ok && v.isList()
	}
	return nil, false, false
}

// check reads the values of one key and compiles them.
func (r *documentReader) check(n *yaml.Node, pointer string, v *variable, only bool, where string) check {
	c := check{kind: v.kind, v: v, only: only}
	before := len(r.findings)
	if v.kind == kindBool {
		c.want, _ = r.boolean(n, pointer, v.name)
		return c
	}
	switch v.kind {
	case kindEnum, kindEnumList:
		r.sequence(n, pointer, c.key(), func(item *yaml.Node, at string) {
			if name, ok := r.enum(item, at, v.name, v.words.names); ok {
				c.values = append(c.values, name)
			}
		})
		c.bits = v.words.set(c.values)
	case kindExact:
		r.sequence(n, pointer, c.key(), func(item *yaml.Node, at string) {
			if text, ok := r.text(item, at, v.name, maxPatternChars); ok {
				c.values = append(c.values, text)
			}
		})
		c.exact = c.values
	default:
		c.values = r.patternList(n, pointer, v, c.key())
		c.patterns = newPatternSet(v, c.values)
		if before := r.listWork; v.isList() {
			r.listWork += c.patterns.work()
			if r.listWork > maxListWork && before <= maxListWork {
				r.add(n, pointer, codeLimit, "end patterns with their only star, or name fewer", "the patterns on names are too many for one decision: %d, where at most %d are allowed; a pattern counts as one, and one with a star before its end as four and two for each star", r.listWork, maxListWork)
			}
		}
	}
	if len(c.values) == 0 && !only && where != "unless" && !hasErrors(r.findings[before:]) {
		r.add(n, pointer, codeNeverMatches, c.key()+"_only: []", "%s is an empty list, and no value is in it, so this never matches", c.key())
	}
	return c
}

// patternList reads patterns and expands $lists.
func (r *documentReader) patternList(n *yaml.Node, pointer string, v *variable, key string) []string {
	var values []string
	seen := map[string]bool{}
	take := func(item *yaml.Node, at, text string) {
		if seen[text] {
			return
		}
		seen[text] = true
		p := newPattern(text, v)
		if fault, suggestion := p.shapeFault(v); fault != "" {
			r.add(item, at, codeTypeMismatch, suggestion, "the pattern %s on %s %s", clip(text), v.name, fault)
			return
		}
		values = append(values, text)
	}
	r.sequence(n, pointer, key, func(item *yaml.Node, at string) {
		text, ok := r.text(item, at, "a pattern", maxPatternChars)
		if !ok {
			return
		}
		name, isRef := strings.CutPrefix(text, "$")
		if !isRef {
			r.confusable(item, at, "a pattern", text)
			take(item, at, text)
			return
		}
		for _, entry := range r.expand(item, at, name) {
			take(item, at, entry)
		}
	})
	return r.bounded(n, pointer, key, values)
}

// bounded keeps expanded lists from filling the memory.
func (r *documentReader) bounded(n *yaml.Node, pointer, key string, values []string) []string {
	r.patterns += len(values)
	switch {
	case len(values) > maxPatterns:
		r.add(n, pointer, codeLimit, "", "%s has %d patterns with its lists expanded; at most %d are allowed", key, len(values), maxPatterns)
		return nil
	case r.patterns > maxAllPatterns:
		r.add(n, pointer, codeLimit, "", "the rules have more than %d patterns with their lists expanded", maxAllPatterns)
		return nil
	}
	return values
}

// lists holds the named lists of patterns, expanded on first use.
type lists struct {
	entries  map[string][]listEntry
	expanded map[string][]string
	open     map[string]bool
}

type listEntry struct {
	text    string
	node    *yaml.Node
	pointer string
}

func (r *documentReader) readLists(root *yaml.Node) {
	r.lists = &lists{entries: map[string][]listEntry{}, expanded: map[string][]string{}, open: map[string]bool{}}
	n := valueOf(root, "lists")
	if n == nil {
		return
	}
	if n.Kind != yaml.MappingNode {
		r.mismatch(n, "/lists", "lists must be a mapping of names to lists of patterns")
		return
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		here := "/lists/" + escapePointer(key.Value)
		if !listPattern.MatchString(key.Value) {
			r.add(key, here, codeBadName, "", "the list name %s does not have the form: a lower-case letter, then lower-case letters, digits, underscores or hyphens", clip(key.Value))
		}
		r.lists.entries[key.Value] = nil
		r.sequence(value, here, "a list of patterns", func(item *yaml.Node, at string) {
			if text, ok := r.text(item, at, "a pattern", maxPatternChars); ok {
				r.confusable(item, at, "a pattern", text)
				r.lists.entries[key.Value] = append(r.lists.entries[key.Value], listEntry{text, item, at})
			}
		})
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		r.expand(n.Content[i], "/lists/"+escapePointer(n.Content[i].Value), n.Content[i].Value)
	}
}

func valueOf(n *yaml.Node, key string) *yaml.Node {
	if n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
}

// expand gives the patterns of a list, those of lists inside it included.
func (r *documentReader) expand(n *yaml.Node, pointer, name string) []string {
	l := r.lists
	entries, known := l.entries[name]
	if !known {
		r.unknownList(n, pointer, name)
		return nil
	}
	if done, ok := l.expanded[name]; ok {
		return done
	}
	if l.open[name] {
		r.add(n, pointer, codeUnknownList, "", "the list $%s holds itself", name)
		return nil
	}
	l.open[name] = true
	defer delete(l.open, name)
	var values []string
	seen := map[string]bool{}
	for _, entry := range entries {
		parts := []string{entry.text}
		if inner, isRef := strings.CutPrefix(entry.text, "$"); isRef {
			parts = r.expand(entry.node, entry.pointer, inner)
		}
		for _, text := range parts {
			if !seen[text] {
				seen[text] = true
				values = append(values, text)
			}
		}
	}
	values = r.bounded(n, pointer, "the list $"+name, values)
	l.expanded[name] = values
	return values
}

func (r *documentReader) unknownList(n *yaml.Node, pointer, name string) {
	var names []string
	const helped, most = 100, 1000 // findings that get a hint, and lists to find one among
	if len(r.findings) < helped && len(r.lists.entries) <= most {
		names = slices.Sorted(maps.Keys(r.lists.entries))
	}
	near, hint := nearest(name, names), ""
	switch {
	case len(r.lists.entries) == 0:
		hint = "; no list is defined under lists"
	case near != "":
		near, hint = "$"+near, ""
	case len(names) > 0:
		hint = "; known are $" + strings.Join(someOf(names), ", $")
	}
	r.add(n, pointer, codeUnknownList, near, "there is no list %s%s", clip("$"+name), hint)
}
