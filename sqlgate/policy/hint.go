package policy

import (
	"regexp"
	"slices"
	"strings"
)

// Hints turn what two general parsers say into what the writer of a policy can
// do about it. They never change what is an error, only what is said of it.

var (
	starValue  = regexp.MustCompile(`[\[{,:-]\s*(\*[^\s,\]}]*)`)
	colonValue = regexp.MustCompile(`^\s*(?:- )?([A-Za-z_]+): (.*: .*)$`)
)

// yamlHint is what to try about a text that is no YAML. The parser often names
// the line before or after the one that a person has to look at.
func yamlHint(lines []string, line int, message string) string {
	if name := quoted(message); line == 0 && strings.Contains(message, "unknown anchor") {
		return `"*` + name + `": a pattern that begins with * needs quotes`
	}
	near := lines[max(0, min(line-2, len(lines))):max(0, min(line+1, len(lines)))]
	for _, text := range near {
		if indent := text[:len(text)-len(strings.TrimLeft(text, " \t"))]; strings.Contains(indent, "\t") {
			return "blanks: YAML takes no tab for an indentation"
		}
	}
	for _, text := range near {
		if m := starValue.FindStringSubmatch(text); m != nil && strings.Contains(message, "alphabetic or numeric") {
			return `"` + m[1] + `": a pattern that begins with * needs quotes`
		}
		if m := colonValue.FindStringSubmatch(text); m != nil && strings.Contains(message, "mapping values are not allowed") && !strings.ContainsAny(m[2], `"'{[`) {
			return m[1] + `: "` + m[2] + `": a text that holds a colon and a blank needs quotes`
		}
	}
	switch {
	case strings.Contains(message, "cannot start any token"):
		return "quotes around a text that begins with @, % or `"
	case strings.Contains(message, "did not find expected ',' or"):
		return "close the bracket, and put quotes around a text that holds a quote or a bracket"
	case strings.Contains(message, "did not find expected"), strings.Contains(message, "mapping values are not allowed"):
		return "look at the indentation here and in the line above: the keys of one mapping begin in one column"
	}
	return ""
}

// words of other languages that people write for an operator of CEL.
var otherWords = map[string]string{
	"and": "&&", "or": "||", "not": "!", "is": "==", "=": "==", "<>": "!=", "like": `matches("..."), startsWith("...") or contains("...")`, "null": `""`, "none": `""`,
}

var (
	wordHere     = regexp.MustCompile(`^[A-Za-z_]+|^<>|^=`)
	noOverload   = regexp.MustCompile(`^found no matching overload for '([^']*)' applied to '(.*)'$`)
	operandTypes = strings.NewReplacer("_==_", "==", "_!=_", "!=", "_<_", "<", "_>_", ">", "_<=_", "<=", "_>=_", ">=", "_+_", "+", "_-_", "-", "!_", "!", "_&&_", "&&", "_||_", "||", "@in", "in", "_?_:_", "? :")
)

// celHint says in words of the document what the compiler of expressions found
// at a place (line from 1, column from 0), and what to try.
func (d *dialect) celHint(text, message string, line, column int) (plain, suggestion string) {
	if m := noOverload.FindStringSubmatch(message); m != nil {
		return overloadHint(operandTypes.Replace(m[1]), m[2])
	}
	before, after := aroundPlace(text, line, column)
	switch {
	case strings.Contains(message, "undeclared reference to"):
		name := quoted(message) // of a dotted one it may be the root alone
		if d.dotted {
			name = dottedBefore.FindString(before) + dottedAfter.FindString(after)
		}
		// What the compiler itself takes for near may be a type, or a function.
		return "undeclared reference to '" + name + "'", d.undeclared(name)
	case strings.HasPrefix(message, "Syntax error"):
		for _, word := range []string{wordHere.FindString(after), lastWord(before)} {
			if operator := otherWords[strings.ToLower(word)]; operator != "" {
				return message, operator + " instead of " + word
			}
		}
		if strings.Contains(message, "<EOF>' expecting") {
			return message, "close what is open: a bracket, or a text in quotes"
		}
	}
	return message, ""
}

var dottedBefore, dottedAfter = regexp.MustCompile(`[A-Za-z0-9_.]*$`), regexp.MustCompile(`^[A-Za-z0-9_.]*`)

// undeclared is what to try for a name that is no variable.
func (d *dialect) undeclared(name string) string {
	if !d.dotted {
		if near := nearest(name, d.names); near != "" {
			return near
		}
		return `"` + name + `": a text needs quotes; a name without is a fact`
	}
	root, field, dot := strings.Cut(name, ".")
	if !dot {
		field = name
	}
	var same, fields, roots []string // variables of that field, the fields of that root, all roots
	for _, v := range d.names {
		r, f, _ := strings.Cut(v, ".")
		if strings.EqualFold(f, field) {
			same = append(same, v)
		}
		if r == root {
			fields = append(fields, f)
		}
		if !slices.Contains(roots, r) {
			roots = append(roots, r)
		}
	}
	switch near := nearest(field, fields); {
	case len(fields) > 0 && dot && near != "":
		return root + "." + near
	case len(same) > 0:
		return strings.Join(same, " or ")
	case len(fields) > 0:
		return root + " has " + strings.Join(fields, ", ")
	case !dot:
		return `"` + name + `": a text needs quotes; a variable has a root, as in ` + d.names[0]
	}
	if near := nearest(name, d.names); near != "" {
		return near
	}
	return "one of the roots " + strings.Join(roots, ", ")
}

// overloadHint explains an operator between types that it does not take.
func overloadHint(operator, operands string) (plain, suggestion string) {
	switch comparison := operator == "==" || operator == "!="; {
	case comparison && strings.Contains(operands, "null"):
		suggestion = `compare with "": a fact that is absent is an empty text`
	case comparison && strings.Contains(operands, "list("):
		suggestion = `"..." in the_list, or the_list.exists(x, x == "...")`
	case comparison && strings.Contains(operands, "bool"):
		suggestion = "true or false without quotes"
	case comparison:
		suggestion = "both sides must be of one type: quotes around a text, none around a number"
	case operator == "in":
		suggestion = `"..." == fact for one value, or fact in ["...", "..."] for several`
	case strings.Contains(operands, "list(") && (operator == "contains" || operator == "startsWith" || operator == "endsWith" || operator == "matches"):
		suggestion = `"..." in the_list, or the_list.exists(x, x.` + operator + `("..."))`
	}
	return operator + " does not go with (" + strings.ReplaceAll(strings.Trim(operands, "()"), ").(", ", ") + ")", suggestion
}

// aroundPlace cuts a text at a place.
func aroundPlace(text string, line, column int) (before, after string) {
	lines := strings.Split(text, "\n")
	if line < 1 || line > len(lines) {
		return "", ""
	}
	runes := []rune(lines[line-1])
	column = max(0, min(column, len(runes)))
	return string(runes[:column]), string(runes[column:])
}

func lastWord(text string) string {
	fields := strings.Fields(text)
	if len(fields) == 0 {
		return ""
	}
	return fields[len(fields)-1]
}

// callHint is the allowed call that a name may stand for.
func callHint(name string) string {
	switch name {
	case "len", "length", "count":
		return "size"
	}
	return nearest(name, []string{"size", "startsWith", "endsWith", "contains", "matches", "exists", "all", "exists_one", "filter"})
}

// formHint is the nearest text of a form: lower case, with the mark that the
// form has between words.
func formHint(text, mark string, form *regexp.Regexp) string {
	near := strings.Trim(regexp.MustCompile(`[^a-z0-9]+`).ReplaceAllString(strings.ToLower(text), mark), mark)
	if !form.MatchString(near) {
		return ""
	}
	return near
}
