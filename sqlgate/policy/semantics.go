package policy

import (
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// semantics reports what a rule that is well formed gets wrong about its
// meaning. The nodes are those of its parts, for places.
func (r *documentReader) semantics(u *rule, pointer string, match, unless, lifts, approval *yaml.Node) {
	if u.decision == Allow {
		r.allowQuantifiers(match, pointer+"/match")
		r.allowTooBroad(u, match, pointer+"/match")
		if restsOnClaims(&u.match, u.when) {
			r.add(match, pointer+"/match", codeRestsOnClaim, "add class, query_types_only, tables_written_only, tls_subject or agent_id",
				"only claims narrow this ALLOW, and any client can claim them")
		}
		r.restsOnShape(&u.match, u.when, match, pointer+"/match", "this ALLOW admits")
		if u.when != nil && len(u.when.anyOf) > 0 {
			r.add(match, pointer+"/match", codeConditionAny, "ask for all of them in match (tables_written_only), or by all(...)",
				"the condition of this ALLOW asks whether any of %s matches; the others could be anything", joined(u.when.anyOf))
		}
	}
	if u.unless != nil && restsOnClaims(u.unless, nil) {
		r.add(unless, pointer+"/unless", codeRestsOnClaim, "ask for tls_subject or agent_id, which are verified",
			"only claims make this exception, and any client can claim them")
	}
	if u.unless != nil && u.decision != Allow {
		r.restsOnShape(u.unless, nil, unless, pointer+"/unless", "this exception lets through")
	}
	if u.unless != nil {
		r.exceptionQuantifiers(u.decision, unless, pointer+"/unless")
	}
	if lifts != nil {
		r.lifted(u, lifts, pointer+"/lifts")
	}
	if u.ttlSeconds > longTTLSeconds && approval != nil {
		r.add(approval, pointer+"/approval/ttl_seconds", codeTTLLong, "",
			"an approval of this rule stays usable for %d seconds; over an hour the reason for it may have passed", u.ttlSeconds)
	}
}

// restsOnShape warns of a fingerprint that admits what nothing else bounds. It leaves out
// values, aliases and digits in names of tables (libpg_query's fingerprint), so that the
// update of one row has that of an update of all, and a table that of another.
func (r *documentReader) restsOnShape(m *matcher, when *condition, node *yaml.Node, pointer, admits string) {
	asks := when != nil && slices.Contains(when.reads, shapeVariable)
	for _, g := range m.groups() {
		shaped, bounds := asks, map[*variable]bool{}
		for i := range g {
			shaped = shaped || g[i].v == shapeVariable
			bounds[g[i].v] = bounds[g[i].v] || g[i].only
		}
		reads := scopeOf(g).classes == classes.bit["read"]
		if shaped && !(reads && bounds[tablesRead]) && !(bounds[tablesWritten] && bounds[whereVariable]) {
			r.add(node, pointer, codeRestsOnShape, "add tables_written_only and where_only, or of reads tables_read_only",
				"%s whatever has the fingerprint: that leaves out values, aliases and digits in names of tables, so other rows and other tables have the same", admits)
			return
		}
	}
}

func joined(of []*variable) string {
	var names []string
	for _, v := range of {
		names = append(names, v.name)
	}
	return strings.Join(names, ", ")
}

// allowQuantifiers refuses the keys that ask for any value in an ALLOW: a
// statement that reads one table and writes another has both.
func (r *documentReader) allowQuantifiers(match *yaml.Node, pointer string) {
	for _, g := range groupNodes(match, pointer) {
		for i := 0; i+1 < len(g.node.Content); i += 2 {
			key := g.node.Content[i]
			v := variableByName[key.Value]
			switch {
			case v == nil:
			case v == queryTypeVariable:
				r.add(key, g.pointer+"/"+key.Value, codeAllowAny, "query_types_only",
					"an ALLOW rule looks at query_type, the root of the statement alone; a CTE under it could write")
			case v.isList():
				r.add(key, g.pointer+"/"+key.Value, codeAllowAny, key.Value+"_only",
					"an ALLOW rule asks whether any of %s matches; the others could be anything", key.Value)
			}
		}
	}
}

// exceptionQuantifiers warns of an exception that admits more than it names. One of a
// rule that restricts lets through what a CTE does beside it, where it asks for any value; one
// of an ALLOW leaves that allowed, where it asks for all.
func (r *documentReader) exceptionQuantifiers(decision Decision, unless *yaml.Node, pointer string) {
	for _, g := range groupNodes(unless, pointer) {
		for i := 0; i+1 < len(g.node.Content); i += 2 {
			key := g.node.Content[i]
			v, only, ok := variableOfKey(key.Value)
			here := g.pointer + "/" + key.Value
			switch {
			case !ok:
			case decision == Allow && only:
				r.add(key, here, codeExceptAny, strings.TrimSuffix(key.Value, "_only"),
					"the exception of an ALLOW asks whether all of %s match: a statement that touches something else as well stays allowed", v.name)
			case decision != Allow && v == queryTypeVariable:
				r.add(key, here, codeExceptAny, "query_types_only",
					"the exception of a rule that restricts looks at query_type, the root of the statement alone; a CTE under it could do anything")
			case decision != Allow && !only && v.isList():
				r.add(key, here, codeExceptAny, key.Value+"_only",
					"the exception of a rule that restricts asks whether any of %s matches: a statement that touches something else as well is excepted", key.Value)
			}
		}
	}
}

type groupNode struct {
	node    *yaml.Node
	pointer string
}

// groupNodes lists the mappings of a match: its own and those of any_of.
func groupNodes(match *yaml.Node, pointer string) []groupNode {
	if match.Kind != yaml.MappingNode {
		return nil
	}
	nodes := []groupNode{{match, pointer}}
	anyOf := valueOf(match, "any_of")
	if anyOf == nil || anyOf.Kind != yaml.SequenceNode {
		return nodes
	}
	for i, n := range anyOf.Content {
		if n.Kind == yaml.MappingNode {
			nodes = append(nodes, groupNode{n, pointer + "/any_of/" + itoa(i)})
		}
	}
	return nodes
}

func (r *documentReader) allowTooBroad(u *rule, match *yaml.Node, pointer string) {
	for _, g := range u.match.groups() {
		s := scopeOf(g)
		switch {
		case !s.classed && !s.typed && !s.tabled:
			r.add(match, pointer, codeAllowTooBroad, "query_types_only: [SELECT, INSERT, UPDATE, DELETE]",
				"this ALLOW names neither class nor query_types_only nor tables_written_only, so it admits statements of every kind")
			return
		case s.admitsDefinition():
			r.add(match, pointer, codeAllowTooBroad, "class: [read, write]",
				"this ALLOW admits statements that change the schema or privileges (class ddl or dcl)")
			return
		}
	}
}

// A scope is what a group of checks says of the kind of statement.
type scope struct {
	classed, typed, tabled bool
	classes, types         uint64
}

func scopeOf(g group) scope {
	s := scope{classes: ^uint64(0), types: ^uint64(0)}
	for i := range g {
		switch c := &g[i]; {
		case c.v == classVariable:
			s.classed = true
			s.classes &= c.bits
		case c.v == safeReadVariable && c.want:
			s.classed = true
			s.classes &= classes.bit["read"]
		case c.v == queryTypesVariable && c.only:
			s.typed = true
			s.types &= c.bits
		case c.v == tablesWritten && c.only:
			s.tabled = true
		}
	}
	return s
}

func (s scope) admitsDefinition() bool {
	for _, class := range []string{"ddl", "dcl"} {
		if s.classes&classes.bit[class] != 0 && s.types&queryTypes.set(typesOfClass(class)) != 0 {
			return true
		}
	}
	return false
}

// restsOnClaims reports whether in some alternative there is nothing but
// claims, and the condition reads nothing else either.
func restsOnClaims(m *matcher, when *condition) bool {
	if when != nil {
		for _, v := range when.reads {
			if !v.claim {
				return false
			}
		}
	}
	for _, g := range m.groups() {
		claims, others := identityOf(g)
		if claims > 0 && others == 0 {
			return true
		}
	}
	return false
}

func identityOf(g group) (claims, others int) {
	for i := range g {
		if g[i].v.claim {
			claims++
		} else {
			others++
		}
	}
	return claims, others
}

// lifted warns of every floor signal that a rule lifts, and more so where the
// lift is narrowed to somebody by a claim without proof.
func (r *documentReader) lifted(u *rule, lifts *yaml.Node, pointer string) {
	for i, signal := range u.lifts {
		r.add(lifts, pointer+"/"+itoa(i), codeFloorLifted, "",
			"the rule %s lifts the floor signal %s: what it matches is no longer blocked for it", u.id, signal)
	}
	if len(u.lifts) == 0 {
		return
	}
	for _, g := range u.match.groups() {
		if claims, _ := identityOf(g); claims > 0 && !hasProof(g) {
			r.add(lifts, pointer, codeRestsOnClaim, "ask for tls_subject or agent_id, which are verified",
				"who may pass the floor here rests on claims, and any client can claim them")
			return
		}
	}
}

func hasProof(g group) bool {
	for i := range g {
		if g[i].v.verified {
			return true
		}
	}
	return false
}

// confusable warns of text that does not read as it is.
func (r *documentReader) confusable(n *yaml.Node, pointer, what, text string) {
	if reason := confusableText(text); reason != "" {
		r.add(n, pointer, codeConfusable, "", "%s holds %s, so it may not read as it is", what, reason)
	}
}

// confusableText says what in a text may deceive its reader, or "".
func confusableText(text string) string {
	for _, c := range text {
		switch {
		case c == '\u061c' || c >= '\u200e' && c <= '\u200f' || c >= '\u202a' && c <= '\u202e' || c >= '\u2066' && c <= '\u2069':
			return "a character that changes the direction of writing"
		case c >= '\u200b' && c <= '\u200d' || c == '\u2060' || c == '\ufeff' || c == '\u00ad' || c == '\u00a0' || c == '\u202f' || c == '\u180e':
			return "an invisible character"
		}
	}
	for _, word := range strings.FieldsFunc(text, func(c rune) bool { return scriptOf(c) == 0 }) {
		if mixesScripts(word) {
			return "a word that mixes Latin letters with look-alikes of another script"
		}
	}
	return ""
}
