package controlplane

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// What a change of the schema or of rights is about stands in its text: the classifier names
// tables alone. Its words are read here as the scanner of sqlview.go finds them. A statement
// that waits was parsed by the classifier, so it is grammatical; what is not read here with
// certainty is repeated word for word.

// mostSaid is how much of a clause the first sentence repeats.
const mostSaid = 90

// A changeText is the words of a statement, without comments and blanks.
type changeText struct {
	words []string // as they stand
	at    int
}

// readChange reads a text of one statement; nil: it has escapes in its names, or several
// statements, and is not read here.
func readChange(text string) *changeText {
	t := &changeText{}
	for _, p := range scanned(text, nil).pieces {
		if p.Kind == "comment" || p.Kind == "blank" || strings.TrimSpace(p.Text) == "" {
			continue
		}
		t.words = append(t.words, p.Text)
	}
	for len(t.words) > 0 && t.words[len(t.words)-1] == ";" {
		t.words = t.words[:len(t.words)-1]
	}
	for i, word := range t.words {
		if word == ";" || strings.EqualFold(word, "U") && i+1 < len(t.words) && t.words[i+1] == "&" {
			return nil
		}
	}
	return t
}

func (t *changeText) is(i int, words ...string) bool {
	for n, word := range words {
		if i+n >= len(t.words) || !strings.EqualFold(t.words[i+n], word) {
			return false
		}
	}
	return true
}

// skip goes on behind words that stand there.
func (t *changeText) skip(words ...string) bool {
	if !t.is(t.at, words...) {
		return false
	}
	t.at += len(words)
	return true
}

// rest is what was not read yet.
func (t *changeText) rest() []string { return t.words[min(t.at, len(t.words)):] }

// name reads a name with its schema, as PostgreSQL reads it; "": none stands there.
func (t *changeText) name() string {
	var parts []string
	for {
		part, ok := "", false
		if t.at < len(t.words) {
			part, ok = identifier(t.words[t.at])
		}
		if !ok {
			return ""
		}
		parts = append(parts, part)
		if t.at++; !t.skip(".") {
			return quotedName(parts)
		}
	}
}

// identifier is a word as a name.
func identifier(word string) (name string, ok bool) {
	if inner, quoted := strings.CutPrefix(word, `"`); quoted {
		return strings.ReplaceAll(strings.TrimSuffix(inner, `"`), `""`, `"`), len(inner) > 1
	}
	if word == "" || !isWordStart(rune(word[0])) {
		return "", false
	}
	return lowered(word), true
}

// lowered folds the letters that PostgreSQL folds in any encoding.
func lowered(word string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'A' && r <= 'Z' {
			r += 'a' - 'A'
		}
		return r
	}, word)
}

// quotedName joins a name; what may be read as words of a page stands in quotes.
func quotedName(parts []string) string {
	name := strings.Join(parts, ".")
	for _, part := range parts {
		if part == "" || strings.Trim(part, "abcdefghijklmnopqrstuvwxyz0123456789_$") != "" {
			return strconv.Quote(name)
		}
	}
	return name
}

// parenthesis is the end of a parenthesis that begins at a place, or the place.
func parenthesis(words []string, i int) int {
	depth := 0
	for n := i; n < len(words); n++ {
		switch words[n] {
		case "(":
			depth++
		case ")":
			depth--
		}
		if depth == 0 {
			if n == i {
				return i
			}
			return n + 1
		}
	}
	return len(words)
}

// outside is the first of some words that stands in no parenthesis, or the end.
func outside(words []string, of ...string) int {
	for i := 0; i < len(words); {
		if slices.ContainsFunc(of, func(word string) bool { return strings.EqualFold(word, words[i]) }) {
			return i
		}
		i = max(parenthesis(words, i), i+1)
	}
	return len(words)
}

// parted are the parts of a list with commas.
func parted(words []string) (parts [][]string) {
	for {
		i := outside(words, ",")
		parts = append(parts, words[:i])
		if i == len(words) {
			return parts
		}
		words = words[i+1:]
	}
}

// repeated is words as a sentence repeats them, cut where they are many.
func repeated(words []string) string {
	var b strings.Builder
	for i, word := range words {
		c := word[0]
		switch {
		case c == '"':
			word, _ = identifier(word)
			word = quotedName([]string{word})
		case c == '\'' || c == '$' && len(word) > 1:
			word = "'...'"
		default:
			word = lowered(word)
		}
		glued := i == 0 || strings.Contains(",.);:", word) || strings.Contains("(.:", words[i-1]) || word == "(" && isWordPart(rune(words[i-1][len(words[i-1])-1]))
		if i > 0 && isSign(c) && isSign(words[i-1][0]) {
			glued = true // one of several signs is one
		}
		if !glued {
			b.WriteByte(' ')
		}
		if b.Len()+len(word) > mostSaid {
			b.WriteString("...")
			break
		}
		b.WriteString(word)
	}
	return strings.TrimSpace(b.String())
}

func isSign(c byte) bool { return strings.IndexByte("+-*/<>=~!@#%^&|`?:", c) >= 0 }

// fewRepeated is a list as a sentence repeats it.
func fewRepeated(parts [][]string) string {
	var list []string
	for _, part := range parts {
		if len(part) > 0 {
			list = append(list, repeated(part))
		}
	}
	return few(list)
}

// kinds of objects whose names have more than one word, or follow another.
var longKinds = []string{"MATERIALIZED VIEW", "FOREIGN TABLE", "FOREIGN DATA WRAPPER", "EVENT TRIGGER", "CONSTRAINT TRIGGER", "ACCESS METHOD", "OPERATOR CLASS", "OPERATOR FAMILY",
	"TEXT SEARCH CONFIGURATION", "TEXT SEARCH DICTIONARY", "TEXT SEARCH PARSER", "TEXT SEARCH TEMPLATE", "UNIQUE INDEX", "UNLOGGED TABLE", "UNLOGGED SEQUENCE", "USER MAPPING", "DEFAULT PRIVILEGES", "LARGE OBJECT"}

// shortKinds are kinds of objects that have one name of their own, and no other way to be given.
var shortKinds = strings.Fields("AGGREGATE COLLATION CONVERSION DATABASE DOMAIN EXTENSION FUNCTION GROUP INDEX LANGUAGE POLICY PROCEDURE PUBLICATION ROLE ROUTINE RULE SCHEMA SEQUENCE SERVER STATISTICS SUBSCRIPTION TABLE TABLESPACE TRIGGER TYPE USER VIEW")

// A schemaChange is what CREATE, ALTER or DROP says of its object.
type schemaChange struct {
	verb, kind string // in upper case
	replaces   bool   // CREATE OR REPLACE
	names      []string
	on         string     // the table of a trigger, policy or rule
	commands   [][]string // of ALTER, and of CREATE ROLE its options
}

// schemaChange reads what CREATE, ALTER or DROP is about; nil: it is not told here.
func (t *changeText) schemaChange() *schemaChange {
	s := &schemaChange{}
	for _, verb := range []string{"CREATE", "ALTER", "DROP"} {
		if t.is(0, verb) {
			s.verb, t.at = verb, 1
		}
	}
	if s.verb == "" {
		return nil
	}
	s.replaces = t.skip("OR", "REPLACE")
	for t.skip("GLOBAL") || t.skip("LOCAL") || t.skip("TEMP") || t.skip("TEMPORARY") || t.skip("TRUSTED") || t.skip("PROCEDURAL") || t.skip("RECURSIVE") || t.is(t.at, "DEFAULT", "CONVERSION") && t.skip("DEFAULT") {
		continue
	}
	for _, kind := range longKinds {
		if words := strings.Fields(kind); t.is(t.at, words...) {
			s.kind, t.at = kind, t.at+len(words)
			break
		}
	}
	if s.kind == "" && t.at < len(t.words) && slices.Contains(shortKinds, strings.ToUpper(t.words[t.at])) {
		s.kind = strings.ToUpper(t.words[t.at])
		t.at++
	}
	switch s.kind {
	case "", "USER MAPPING", "DEFAULT PRIVILEGES", "LARGE OBJECT":
		return nil
	}
	t.skip("CONCURRENTLY")
	if !t.skip("IF", "EXISTS") {
		t.skip("IF", "NOT", "EXISTS")
	}
	t.skip("ONLY")
	if t.is(t.at, "ALL", "IN", "TABLESPACE") || s.verb == "ALTER" && t.is(t.at, "ALL") { // of tables, and of roles
		return nil
	}
	for {
		if s.verb == "CREATE" && t.is(t.at, "ON") { // an index or statistics without a name
			break
		}
		if s.verb == "CREATE" && s.kind == "SCHEMA" && t.is(t.at, "AUTHORIZATION") {
			return nil
		}
		name := t.name()
		if name == "" {
			return nil
		}
		if slices.Contains([]string{"FUNCTION", "PROCEDURE", "ROUTINE", "AGGREGATE"}, s.kind) && t.is(t.at, "(") {
			end := parenthesis(t.words, t.at)
			name += repeated(t.words[t.at:end])
			t.at = end
		}
		s.names = append(s.names, name)
		if s.verb != "DROP" || !t.skip(",") {
			break
		}
	}
	t.skip("*")
	if slices.Contains([]string{"TRIGGER", "CONSTRAINT TRIGGER", "POLICY", "RULE"}, s.kind) {
		before := "ON"
		if s.kind == "RULE" && s.verb == "CREATE" {
			before = "TO"
		}
		t.at += outside(t.rest(), before) + 1
		if s.on = t.name(); s.on == "" {
			return nil
		}
	}
	if rest := t.rest(); len(rest) > 0 && (s.verb == "ALTER" || slices.Contains([]string{"ROLE", "USER", "GROUP"}, s.kind)) && s.verb != "DROP" {
		s.commands = parted(rest)
	}
	return s
}

// changes says what a statement changes in the schema or in rights, as a sentence; "": it
// does neither, or its text is not read here.
func changes(c *classification, text string) string {
	if c.Class != "ddl" && c.Class != "dcl" && c.QueryType != "ALTER_SYSTEM" {
		return ""
	}
	t := readChange(text)
	if t == nil || len(t.words) == 0 || c.QueryType == "TRUNCATE" || c.QueryType == "CREATE_TABLE_AS" {
		return ""
	}
	first := strings.ToUpper(t.words[0])
	if c.QueryType != first && !strings.HasPrefix(c.QueryType, first+"_") && first != "IMPORT" { // the classifier knows what it is
		return ""
	}
	switch first {
	case "GRANT", "REVOKE":
		return t.rights()
	case "COMMENT", "SECURITY":
		return capital(repeated(t.words[:outside(t.words, "IS")]))
	case "CREATE", "ALTER", "DROP":
	case "REASSIGN", "IMPORT":
		return capital(repeated(t.words))
	default:
		return ""
	}
	s := t.schemaChange()
	if s == nil {
		return capital(repeated(t.words))
	}
	for i, name := range s.names {
		s.names[i] = qualified(c, name)
	}
	kind := strings.ToLower(s.kind)
	object := kind
	if len(s.names) > 0 {
		object += " " + few(s.names)
	}
	switch {
	case s.on != "":
		object += " on " + qualified(c, s.on)
	case s.verb == "CREATE" && (strings.HasSuffix(s.kind, "INDEX") || s.kind == "STATISTICS") && len(c.TablesWritten) > 0:
		object += " on " + tableNames(c.TablesWritten)
	}
	if s.verb == "DROP" && slices.Contains(c.Flags, "cascade") {
		object += hanging(len(s.names))
	}
	if len(s.commands) != 1 {
		said := capital(strings.ToLower(s.verb)) + " " + object
		if len(s.commands) > 1 {
			said += ": " + fewRepeated(s.commands)
		}
		return said
	}
	command := &changeText{words: s.commands[0]}
	switch {
	case command.skip("RENAME", "TO"):
		return "Rename " + object + " to " + repeated(command.rest())
	case command.skip("RENAME"):
		to := outside(command.rest(), "TO")
		if what := command.rest()[:to]; to < len(command.rest()) {
			if len(what) == 1 {
				what = append([]string{"column"}, what...)
			}
			return "Rename " + repeated(what) + " of " + object + " to " + repeated(command.rest()[to+1:])
		}
	case command.skip("SET", "SCHEMA"):
		return "Move " + object + " to schema " + repeated(command.rest())
	case command.skip("OWNER", "TO"):
		return "Give " + object + " to " + repeated(command.rest()) + " as its owner"
	case command.skip("DETACH", "PARTITION"):
		if name := command.name(); name != "" {
			return "Take partition " + qualified(c, name) + " out of " + object
		}
	case command.skip("ATTACH", "PARTITION"):
		if name := command.name(); name != "" {
			return "Make " + qualified(c, name) + " a partition of " + object
		}
	}
	return capital(strings.ToLower(s.verb)) + " " + object + ": " + repeated(s.commands[0])
}

// hanging is what a cascade takes besides the objects that are named.
func hanging(objects int) string {
	if objects == 1 {
		return " and what hangs on it"
	}
	return " and what hangs on them"
}

// qualified is a table's name as the classifier gives it, with its schema, where one alone
// fits.
func qualified(c *classification, name string) string {
	var fit []string
	for _, table := range c.TablesWritten {
		if strings.HasSuffix(table, "."+name) {
			fit = append(fit, table)
		}
	}
	if len(fit) != 1 {
		return name
	}
	return tableNames(fit)
}

// rights says what is given or taken, on what, and to whom.
func (t *changeText) rights() string {
	verb, to := strings.ToLower(t.words[0]), "TO"
	if verb == "revoke" {
		to = "FROM"
	}
	rest := t.words[1:]
	at := outside(rest, to)
	if at == len(rest) {
		return ""
	}
	what, whom := rest[:at], rest[at+1:]
	said := capital(verb) + " "
	if on := outside(what, "ON"); on < len(what) {
		said += fewRepeated(parted(what[:on])) + " on " + fewRepeated(parted(what[on+1:]))
	} else {
		said += "membership of " + fewRepeated(parted(what))
		if len(what) > 2 && strings.EqualFold(what[1], "OPTION") && strings.EqualFold(what[2], "FOR") {
			said = capital(verb) + " " + repeated(what)
		}
	}
	end := outside(whom, "WITH", "CASCADE", "RESTRICT")
	var names []string
	for _, part := range parted(whom[:end]) {
		if len(part) > 0 && strings.EqualFold(strings.Trim(part[0], `"`), "public") {
			names = append(names, "everybody (public)")
		} else if len(part) > 0 {
			names = append(names, repeated(part))
		}
	}
	said += " " + strings.ToLower(to) + " " + few(names)
	switch tail := repeated(whom[end:]); {
	case tail == "cascade":
		said += ", and from whom they gave it"
	case tail != "" && tail != "restrict":
		said += ", " + tail
	}
	return said
}

// changeDangers are what a change of the schema does that its signals do not say, and
// whether one that they call a change of rights is none.
func changeDangers(c *classification, text string) (list []meaning, noRights bool) {
	t := readChange(text)
	if t == nil || c.Class != "ddl" {
		return nil, false
	}
	s := t.schemaChange()
	if s != nil && s.replaces {
		return []meaning{{"Replaces what is there", "high", "If there is one of this name, it is gone, and whatever uses it finds the new one.", ""}}, false
	}
	if s == nil || s.verb != "ALTER" || !strings.HasSuffix(s.kind, "TABLE") {
		return nil, false
	}
	table := qualified(c, s.names[0])
	off := 0
	for _, words := range s.commands {
		command := &changeText{words: words}
		switch {
		case command.skip("DETACH", "PARTITION"):
			part := qualified(c, cmp.Or(command.name(), "the partition"))
			list = append(list, meaning{"Rows leave the table", "high", "Queries of " + table + " find the rows of " + part + " no more. They stay in " + part + ", which is a table of its own then.", ""})
		case command.skip("DISABLE", "TRIGGER", "ALL"):
			off++
			list = append(list, meaning{"Triggers and foreign keys off", "high", "No trigger of " + table + " runs until it is enabled again, and no foreign key of it is checked: rows may stay that belong to nothing.", ""})
		case command.skip("DISABLE", "TRIGGER", "USER"):
			off++
			list = append(list, meaning{"Triggers off", "high", "No trigger of users runs at a write of " + table + " until it is enabled again: what they check or write elsewhere does not happen. Foreign keys are still checked.", ""})
		case command.skip("ENABLE", "REPLICA", "TRIGGER"):
			off++
			list = append(list, meaning{"Trigger off", "high", "The trigger " + cmp.Or(command.name(), "that it names") + " runs no more at writes of " + table + " by clients, and only at those of replication.", ""})
		case command.skip("DISABLE", "TRIGGER"):
			off++
			list = append(list, meaning{"Trigger off", "high", "The trigger " + cmp.Or(command.name(), "that it names") + " does not run at a write of " + table + " until it is enabled again: what it checks or writes elsewhere does not happen.", ""})
		}
	}
	return list, off > 0 && off == len(s.commands)
}

// cascades says what a cascade takes along that nothing names; "": something does, or
// nothing cascades.
func (r *approvalRow) cascades() string {
	c := &r.Classification
	switch {
	case !slices.Contains(c.Flags, "cascade"):
		return ""
	case c.Class == "dcl":
		return "Who was given it by them loses it, too. Who that is, is not known here."
	case c.QueryType == "TRUNCATE" && len(r.Impact.tables()) > 0 && r.Impact.More == 0: // which names what is emptied besides
		return ""
	case c.QueryType == "TRUNCATE":
		return "Tables whose foreign keys lead to it are emptied with it, and those that lead to them. Which, is not known here."
	}
	return "What hangs on it goes with it: views, foreign keys, functions, columns of its type, whatever there is. What that is, is not known here: ask the database first."
}
